"""Observations whose keys come and go, or whose rank changes, after the first step: errors that name key and step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.observations import Clip
from epibatch.core.errors import ColumnError, SpaceError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, SingleAgentEnvRunner, make_multi_agent
from epibatch.episodes import SingleAgentEpisode, reader_of

SPACE = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Box(-1, 1, (3,)))
ODD = {  # what is odd from step 3 on, and what the message says of it
    "a key less": (lambda row: {"a": row["a"]}, r"'?a'?, '?b'?|a: leaf, b: leaf"),
    "a key more": (lambda row: {**row, "c": row["a"]}, r"'?c'?"),
    "another rank": (lambda row: {**row, "b": row["b"][..., None]}, r"\['b'\][\s\S]*\(3,\)[\s\S]*\(3, 1\)"),
}


def observation(kind: str, t: int) -> Any:
    row = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)}
    return ODD[kind][0](row) if t >= 3 else row


class One(gym.Env):
    observation_space, action_space = SPACE, gym.spaces.Discrete(2)

    def __init__(self, kind: str = "") -> None:
        self.kind = kind

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return observation(self.kind, 0), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return observation(self.kind, self.t), 1.0, False, False, {}


class Two(MultiAgentEnv):
    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.kind, self.possible_agents = kind, ["ann", "bob"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, SPACE)
        self.action_spaces = {agent: gym.spaces.Discrete(2) for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return {agent: observation(self.kind, 0) for agent in self.possible_agents}, {}

    def step(self, action_dict: Any) -> Any:
        self.t += 1
        rows = {"ann": observation(self.kind, 0), "bob": observation(self.kind, self.t)}
        return rows, dict.fromkeys(rows, 1.0), {"__all__": False}, {}, {}


class Vector(gym.vector.VectorEnv):
    single_observation_space, single_action_space = SPACE, gym.spaces.Discrete(2)

    def __init__(self, num_envs: int, kind: str = "") -> None:
        self.num_envs, self.kind = num_envs, kind
        self.observation_space = gym.vector.utils.batch_space(SPACE, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.rows(), {}

    def rows(self) -> Any:
        return {key: np.stack([leaf] * self.num_envs) for key, leaf in observation(self.kind, self.t).items()}

    def step(self, actions: Any) -> Any:
        self.t += 1
        none = np.zeros(self.num_envs, np.bool_)
        return self.rows(), np.ones(self.num_envs), none, none, {}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize(
    ("env", "mode", "step"),
    [
        (One, "sync", "number 0 of 2, 2 steps into its episode"),
        (One, "async", "number 0 of 2, 2 steps into its episode"),
        (Two, "sync", r"environment 0:[\s\S]*'bob' at env step 3"),
        (Two, "async", r"environment 0:[\s\S]*'bob' at env step 3"),
        (Vector, "vector_entry_point", "3 steps after the reset"),
    ],
)
def test_runners_name_key_and_step(env, mode, step, kind):
    config = PPOConfig().environment(env, env_config={"kind": kind})
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode=mode)
    if env is Two:
        config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent, episode, **kwargs: "p")
    runner = (MultiAgentEnvRunner if env is Two else SingleAgentEnvRunner)(config=config)
    runner.sample(num_timesteps=2)  # a cut does not change the count
    with pytest.raises(SpaceError, match=f"{step}[\\s\\S]*obs[\\s\\S]*({ODD[kind][1]})"):
        runner.sample(num_timesteps=20)
    runner.stop()


@pytest.mark.parametrize("kind", ODD)
def test_episodes_without_a_space_name_key_and_step(kind):
    def add_and_read() -> None:
        for t in range(1, 5):
            episode.add_env_step(observation(kind, t), 0, 1.0)
        reader_of([episode]).rows("obs", 0, 5).check()

    episode = SingleAgentEpisode(len_lookback_buffer=0)
    episode.add_env_reset(observation(kind, 0))
    with pytest.raises(ColumnError, match=f"column 'obs'[\\s\\S]*{ODD[kind][1]}") as raised:
        add_and_read()
    assert ("row 3" if kind == "another rank" else "at t=3") in str(raised.value)


class Transformed(ColumnTransform):
    """Makes of observations what it is told to."""

    columns = "obs"
    how: Any = None

    def transform(self, x: Any) -> Any:
        return self.how(x)


@pytest.mark.parametrize(
    "how",
    [
        lambda x: np.fft.fft(x),
        lambda x: np.array([{"row": row} for row in x]),
        lambda x: np.array([str(row) for row in x]),
        lambda x: x.astype("datetime64[s]"),
    ],
    ids=["complex", "objects", "text", "dates"],
)
@pytest.mark.parametrize("several", [False, True])
def test_a_piece_that_leaves_observations_without_a_space_is_named(how: Any, several: bool) -> None:
    config = PPOConfig().environment((lambda _: Two()) if several else "CartPole-v1")
    if several:
        config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, *_, **__: "p")
    config.env_runners(env_to_module_connector=lambda *_: [Clip(low=-9, high=9), Transformed(how=how)])
    with pytest.raises(SpaceError, match=r"piece 1 \(Transformed\)[\s\S]*found: +none, after[\s\S]*do: +return real"):
        config.build_algo()


class Wider(ConnectorV2):
    """Gives each observation twice, and says nothing of it."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, to_batch=False, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.to_batch = to_batch

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            row = np.tile(episode.get_observations(-1), 2)
            if self.to_batch:
                self.add_batch_item(batch, "obs", row, episode)
            else:
                episode.set_observations(at_indices=-1, new_data=row)
        return batch


class Declared(Wider):
    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)


class OwnModule(TorchRLModule):
    def setup(self) -> None:
        self.pi = torch.nn.Linear(*self.observation_space.shape, 2)

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {"action_dist_inputs": self.pi(batch["obs"])}


@pytest.mark.parametrize("to_batch", [False, True])
@pytest.mark.parametrize("kind", ["default", "own module", "agents"])
def test_a_piece_that_does_not_declare_what_it_changes_is_named(kind, to_batch):
    pieces = [Wider(to_batch=to_batch), Clip(low=-9.0, high=9.0)]
    config = PPOConfig().environment("CartPole-v1").env_runners(env_to_module_connector=lambda env: pieces)
    config.debugging(seed=0)
    if kind == "own module":
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=OwnModule))
    if kind == "agents":
        config.environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
        config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent, episode, **kwargs: "p")
    runner = (MultiAgentEnvRunner if kind == "agents" else SingleAgentEnvRunner)(config=config)
    with pytest.raises((SpaceError, RuntimeError), match=r"^piece 'wider' \(Wider\) changes .*recompute_output_obs"):
        runner.sample(num_timesteps=4)
    runner.stop()


def test_a_piece_that_declares_it_is_not_named_in_an_error_of_the_module():
    class Wrong(OwnModule):
        def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
            return {"action_dist_inputs": self.pi(batch["obs"][:, :3])}

    config = PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=RLModuleSpec(module_class=Wrong))
    runner = SingleAgentEnvRunner(config=config.env_runners(env_to_module_connector=lambda env: [Declared()]))
    with pytest.raises(RuntimeError, match=r"^in Wrong's forward pass"):
        runner.sample(num_timesteps=4)
