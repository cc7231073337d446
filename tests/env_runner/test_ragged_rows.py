"""Observations of any number of rows: what runners, episodes and buffers keep, and what networks get."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, GraphInstance, Sequence, Text, Tuple

from epibatch.algorithms import PPOConfig
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import (
    AddNextObservationsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.connectors.observations import PadRaggedRows
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, SpaceError
from epibatch.core.rl_module import MultiRLModuleSpec, RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer

POINT = Box(-99, 99, (2,), np.float32)
CLOUD = Sequence(POINT, stack=True)
LENGTHS = (2, 0, 3, 1)


def cloud(t: int) -> Any:
    """Rows of the observation at step t; all numbers of an episode differ."""
    return 10 * t + np.arange(2 * LENGTHS[t], dtype=np.float32).reshape(-1, 2)


def graph(t: int) -> Any:
    if LENGTHS[t] == 0:
        return GraphInstance(np.zeros((1, 2), np.float32), None, None)
    return GraphInstance(cloud(t), np.array([1, 2]), np.array([[0, 0], [1, 0]]))


KINDS: dict[str, tuple[Any, Any]] = {
    "arrays": (CLOUD, cloud),
    "tuples": (Sequence(POINT), lambda t: tuple(cloud(t))),
    "structs": (Sequence(Dict(p=POINT, k=Discrete(9))), lambda t: tuple({"p": p, "k": 3} for p in cloud(t))),
    "graph": (Graph(POINT, Discrete(3)), graph),
    "nested": (
        Dict(seen=Sequence(POINT), t=Discrete(9), heard=Tuple([Sequence(Discrete(4))])),
        lambda t: {"t": t, "heard": ((1,) * t,)} | ({"seen": tuple(cloud(t))} if LENGTHS[t] else {}),
    ),
}


class Clouds(gym.Env):
    """Episodes of three steps."""

    action_space = Discrete(2)

    def __init__(self, kind: str = "arrays") -> None:
        self.observation_space, self._make = KINDS[kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._make(0), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._make(self.t), 1.0, self.t == 3, False, {}


def pad(*args: Any) -> PadRaggedRows:
    return PadRaggedRows(max_rows=4)


def runner_of(kind: str, mode: str = "sync", autoreset: str | None = None) -> SingleAgentEnvRunner:
    def vector(num_envs: int, autoreset_mode: Any = gym.vector.AutoresetMode.NEXT_STEP) -> Any:
        return gym.vector.SyncVectorEnv([lambda: Clouds(kind)] * num_envs, autoreset_mode=autoreset_mode)

    env = vector if mode == "vector_entry_point" else lambda _: Clouds(kind)
    config = PPOConfig().environment(env).debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode=mode, gym_env_autoreset_mode=autoreset)
    return SingleAgentEnvRunner(config=config.env_runners(env_to_module_connector=pad))


MODES = [("sync", None), ("sync", "same_step"), ("vector_entry_point", "same_step"), ("vector_entry_point", None)]


@pytest.mark.parametrize("kind", KINDS)
def test_runners_keep_rows_as_they_came(kind):
    for mode, autoreset in MODES if kind in ("tuples", "graph") else [*MODES[:1], ("async", None)]:
        runner = runner_of(kind, mode, autoreset)
        for episode in runner.sample(num_episodes=2) + runner.sample(num_episodes=2):
            assert len(episode) == 3
            for t in range(4):
                row = episode.get_observations(t)
                if kind in ("arrays", "tuples"):
                    np.testing.assert_array_equal(row, cloud(t))
                elif kind == "structs":
                    np.testing.assert_array_equal(row["p"], cloud(t))
                    assert row["k"].tolist() == [3] * LENGTHS[t]
                elif kind == "graph":
                    np.testing.assert_array_equal(row["nodes"], graph(t).nodes)
                    assert row["edges"].tolist() == ([1, 2] if LENGTHS[t] else [])
                    assert row["edge_links"].shape == (2 * bool(LENGTHS[t]), 2)
                else:
                    np.testing.assert_array_equal(row["seen"], cloud(t))
                    assert (row["t"], row["heard"][0].tolist()) == (t, [1] * t)
        runner.stop()


def padded(steps: list[int], size: int) -> tuple[Any, Any]:
    """Values and masks by a loop."""
    value, mask = np.zeros((len(steps), size, 2), np.float32), np.zeros((len(steps), size), bool)
    for i, t in enumerate(steps):
        value[i, : LENGTHS[t]], mask[i, : LENGTHS[t]] = cloud(t), True
    return value, mask


def own_episode(steps: list[int]) -> SingleAgentEpisode:
    nothing = [0.0] * (len(steps) - 1)
    observations = [cloud(t) for t in steps]
    return SingleAgentEpisode(observations=observations, actions=nothing, rewards=nothing, len_lookback_buffer=0)


@pytest.mark.parametrize("limit", [None, 5])
def test_batches_are_padded_with_a_mask(limit):
    sampled = runner_of("arrays").sample(num_episodes=1)
    for chunks, steps in (([own_episode([0, 1, 2, 3])], [0, 1, 2]), (sampled, [0, 1, 2] * len(sampled))):
        acting = EnvToModulePipeline(CLOUD, None, connectors=[PadRaggedRows(max_rows=limit), BatchIndividualItems()])
        newest = acting(episodes=chunks, rl_module=None, batch={})["obs"]
        wanted = padded([3] * len(chunks), limit or 1)
        np.testing.assert_array_equal(newest["value"], wanted[0])
        np.testing.assert_array_equal(newest["mask"], wanted[1])
        learner = LearnerConnectorPipeline(
            CLOUD,
            None,
            connectors=[
                PadRaggedRows(max_rows=limit),
                AddNextObservationsFromEpisodesToTrainBatch(),
                BatchIndividualItems(),
            ],
        )
        batch = learner(episodes=chunks, rl_module=None, batch={})
        for name, at in (("obs", steps), ("new_obs", [t + 1 for t in steps])):
            value, mask = padded(at, limit or 3)
            np.testing.assert_array_equal(batch[name]["value"], value)
            np.testing.assert_array_equal(batch[name]["mask"], mask)
        bootstrapped = LearnerConnectorPipeline(
            CLOUD, None, connectors=[AddOneTsToEpisodesAndTruncate(), PadRaggedRows(), BatchIndividualItems()]
        )(episodes=chunks[:1], rl_module=None, batch={})
        np.testing.assert_array_equal(bootstrapped["obs"]["value"], padded([0, 1, 2, 3], 3)[0])


def test_spaces_say_what_a_module_gets():
    fixed = PadRaggedRows(Dict(a=CLOUD, b=Discrete(2)), max_rows=7).observation_space
    assert fixed["b"] == Discrete(2) and fixed["a"]["value"] == Box(-99, 99, (7, 2), np.float32)
    assert fixed["a"]["mask"] == gym.spaces.MultiBinary(7)
    free = PadRaggedRows(Sequence(Box(1, 9, (2,), np.int64)), None).observation_space
    assert free["value"] == Sequence(Box(0, 9, (2,), np.int64), stack=True)  # padding is a member
    assert all(np.array([[5, 6], [0, 0]])[i] in free["value"].feature_space for i in range(2))
    boxes = PadRaggedRows(Dict(a=Box(-1, 1, (6, 2))), columns="obs/a").observation_space
    assert boxes["a"]["value"].shape == (6, 2) and boxes["a"]["mask"].n == 6
    episodes = [SingleAgentEpisode(observations=[{"a": np.ones((n, 2), np.float32)}]) for n in (6, 4)]
    pipeline = EnvToModulePipeline(
        Dict(a=Box(-1, 1, (6, 2))), None, connectors=[PadRaggedRows(columns="obs/a"), BatchIndividualItems()]
    )
    assert pipeline(episodes=episodes, rl_module=None, batch={})["obs"]["a"]["mask"].sum(1).tolist() == [6, 4]


def test_default_networks_do_not_see_padding():
    space = PadRaggedRows(CLOUD, max_rows=3).observation_space
    module = RLModuleSpec(observation_space=space, action_space=Discrete(2)).build()
    mask = torch.tensor([[True, True, False]])
    clean = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]])
    noisy = clean.masked_fill(~mask[..., None], torch.nan)
    first, second = (
        module.forward_inference({"obs": {"value": value, "mask": mask}})[Columns.ACTION_DIST_INPUTS]
        for value in (clean, noisy)
    )
    assert torch.equal(first, second) and torch.isfinite(first).all()


class Pair(MultiAgentEnv):
    """Two agents with rows, and one without."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.possible_agents = self.agents = ["a", "b", "c"]
        self.observation_spaces = {"a": Sequence(POINT), "b": Sequence(POINT), "c": POINT}
        self.action_spaces = dict.fromkeys("abc", Discrete(2))

    def observe(self) -> Any:
        return {"a": tuple(cloud(self.t)), "b": tuple(cloud(3 - self.t)), "c": np.zeros(2, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.observe(), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        return self.observe(), dict.fromkeys(actions, 1.0), {"__all__": self.t == 3}, {"__all__": False}, {}


class SetNetwork(TorchRLModule, ValueFunctionAPI):
    def setup(self) -> None:
        self.heads = torch.nn.Linear(self.observation_space["value"].feature_space.shape[0], 3)

    def pooled(self, batch: Any) -> Any:
        obs = batch[Columns.OBS]
        return (torch.tanh(self.heads(obs["value"])) * obs["mask"][..., None]).sum(-2)

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {Columns.ACTION_DIST_INPUTS: self.pooled(batch)[..., :2]}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.pooled(batch)[..., 2]


def multi_agent_config() -> PPOConfig:
    config = PPOConfig().environment(Pair).debugging(seed=0)
    config.multi_agent(policies={"sets", "rest"}, policy_mapping_fn=lambda agent, _: "rest" if agent == "c" else "sets")
    config.env_runners(env_to_module_connector=lambda *args: PadRaggedRows(), num_envs_per_env_runner=2)
    config.training(train_batch_size=32, minibatch_size=16, num_epochs=1)
    config.training(learner_connector=lambda *args: PadRaggedRows())
    specs = {"sets": RLModuleSpec(module_class=SetNetwork), "rest": RLModuleSpec()}
    return config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))


@pytest.mark.slow
def test_agents_with_rows_learn():
    algo = multi_agent_config().build_algo()
    algo.train()  # the first-update check warns if acting and learning differ
    algo.stop()


def test_rows_of_agents_are_replayed():
    runner, buffer = MultiAgentEnvRunner(config=multi_agent_config()), MultiAgentEpisodeReplayBuffer(capacity=50)
    for _ in range(5):
        buffer.add(runner.sample(num_timesteps=2))
    state = buffer.get_state()
    buffer = MultiAgentEpisodeReplayBuffer(capacity=50)
    buffer.set_state(state)
    for episode in buffer.sample(20):
        if episode.agent_id != "c":
            (first,) = (t for t in range(4) if np.array_equal(cloud(t), episode.get_observations(0)))
            after = first + (1 if episode.agent_id == "a" else -1)
            np.testing.assert_array_equal(episode.get_observations(1), cloud(after))
    runner.stop()


def test_rows_that_are_replayed_are_padded():
    runner, buffer = runner_of("arrays"), EpisodeReplayBuffer(capacity=30)
    for _ in range(9):
        buffer.add(runner.sample(num_timesteps=6))
    runner.stop()
    state, buffer = buffer.get_state(), EpisodeReplayBuffer(capacity=30)
    buffer.set_state(state)
    pieces = [PadRaggedRows(), AddNextObservationsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    drawn = buffer.sample(200)
    batch = LearnerConnectorPipeline(CLOUD, None, connectors=pieces)(episodes=drawn, rl_module=None, batch={})
    pairs = [[rows.tolist() for rows in batch[name]["mask"].sum(1)] for name in ("obs", "new_obs")]
    assert set(zip(*pairs)) == {(2, 0), (0, 3), (3, 1)}
    for name, lengths in zip(("obs", "new_obs"), pairs):
        value, mask = padded([LENGTHS.index(n) for n in lengths], batch[name]["mask"].shape[1])
        np.testing.assert_array_equal(batch[name]["value"], value)
        np.testing.assert_array_equal(batch[name]["mask"], mask)


def ppo(**settings: Any) -> PPOConfig:
    config = PPOConfig().environment(Clouds).training(train_batch_size=16, minibatch_size=16, num_epochs=1)
    return config.env_runners(**settings)


def call(piece: Any, episode: Any, space: Any = CLOUD) -> Any:
    pipeline = EnvToModulePipeline(space, None, connectors=[piece, BatchIndividualItems()])
    return pipeline(episodes=[episode], rl_module=None, batch={})


ACTING = {"env_to_module_connector": lambda *args: PadRaggedRows()}
OWN = RLModuleSpec(module_class=SetNetwork)
REFUSED = {
    "no piece": (lambda: ppo().build_algo(), SpaceError, r"module 'default_policy'[\s\S]*put PadRaggedRows"),
    "in one pipeline": (
        lambda: ppo(**ACTING).rl_module(rl_module_spec=OWN).build_algo().train(),
        ColumnError,
        r"column 'obs'[\s\S]*put PadRaggedRows into this pipeline, too",
    ),
    "a network of one length": (lambda: ppo(**ACTING).build_algo(), SpaceError, "with max_rows if the network needs"),
    "too many rows": (
        lambda: call(PadRaggedRows(max_rows=2), own_episode([2])),
        ColumnError,
        r"at most 2 rows[\s\S]*3 rows[\s\S]*max_rows=3",
    ),
    "rows of two shapes": (
        lambda: call(PadRaggedRows(), SingleAgentEpisode(observations=[np.zeros((2, 3))])),
        ColumnError,
        r"differ in axis 0 only[\s\S]*\(2, 3\)",
    ),
    "no rows in a Dict": (lambda: PadRaggedRows(Dict(a=POINT)).observation_space, SpaceError, "columns='obs/points'"),
    "no length": (lambda: PadRaggedRows(max_rows=0), ConfigError, r"max_rows[\s\S]*0"),
    "Sequences of text": (lambda: PadRaggedRows(Sequence(Text(3))).observation_space, SpaceError, "inner rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    function, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        function()


class Wrong(Clouds):
    def __init__(self) -> None:
        super().__init__()
        self._make = lambda t: cloud(t) if t < 2 else np.zeros((2, 3), np.float32)


def test_rows_that_are_not_of_the_space_are_named():
    runner = SingleAgentEnvRunner(config=ppo(env_to_module_connector=pad).environment(Wrong))
    with pytest.raises(SpaceError, match=r"any number of rows, numbers of shape \(2,\)[\s\S]*\(2, 3\)"):
        runner.sample(num_episodes=1)
    runner.stop()


@pytest.mark.parametrize("max_rows", [None, 6])
def test_rows_on_another_axis(max_rows):
    rng = np.random.default_rng(0)
    clouds = [rng.normal(size=(3, n, 2)).astype(np.float32) for n in (2, 5, 0)]
    space = gym.spaces.Box(-np.inf, np.inf, (3, 5, 2), np.float32)
    piece = PadRaggedRows(space, axis=1, max_rows=max_rows)
    batch = piece(batch={}, episodes=[SingleAgentEpisode(observations=[cloud]) for cloud in clouds])
    length = max_rows or 5
    assert piece.observation_space["value"].shape == (3, length, 2)
    for cloud, (row,) in zip(clouds, batch["obs"].values()):
        expected, mask = np.zeros((3, length, 2), np.float32), np.arange(length) < cloud.shape[1]
        for i in range(3):
            for j in range(cloud.shape[1]):
                expected[i, j] = cloud[i, j]
        np.testing.assert_array_equal(row["value"], expected)
        np.testing.assert_array_equal(row["mask"], mask)
    with pytest.raises(SpaceError, match=r"axis 3 of Box"):
        PadRaggedRows(space, axis=3).observation_space  # noqa: B018
