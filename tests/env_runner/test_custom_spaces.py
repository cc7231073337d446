"""Spaces of classes of one's own: refused by name, registered, or batched as Gymnasium was told."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from epibatch.algorithms.ppo import PPO, PPOConfig
from epibatch.cluster import registrations
from epibatch.core.errors import RegistryError, SpaceError
from epibatch.core.registry import register_space
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.core.spaces import space_from_dict, space_to_dict
from epibatch.env_runner import MultiAgentEnv, SingleAgentEnvRunner


class Angles(gym.Space[Any]):
    def __init__(self) -> None:
        super().__init__((3,), np.float32)

    def sample(self, *_: Any, **__: Any) -> Any:
        return self.np_random.uniform(-np.pi, np.pi, 3).astype(np.float32)

    def contains(self, x: Any) -> bool:
        return bool((np.abs(x) <= np.pi).all())


class Known(Angles):
    pass


def box(space: Any) -> Any:
    return gym.spaces.Box(-np.pi, np.pi, space.shape, space.dtype)


class Arm(gym.Env[Any, Any]):
    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: Any) -> None:
        self.observation_space, self.t = space, 0

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(3, self.t, np.float32), 1.0, self.t == 3, False, {}


class Linear(TorchRLModule):
    def setup(self) -> None:
        self.net = torch.nn.Linear(3, 2)

    def _forward(self, batch: Any, **_: Any) -> Any:
        return {"action_dist_inputs": self.net(batch["obs"])}


def test_a_space_is_named_or_registered() -> None:
    def runner(space: Any) -> Any:
        config = PPOConfig().environment(lambda _: Arm(space)).env_runners(num_envs_per_env_runner=2)
        return SingleAgentEnvRunner(config=config.rl_module(rl_module_spec=RLModuleSpec(module_class=Linear)))

    with pytest.raises(SpaceError, match=r"Angles, a class that it does not know\n.*register_space\(Angles, encode\)"):
        runner(Angles())
    batch_space.register(Known, lambda space, n=1: batch_space(box(space), n))
    create_empty_array.register(Known, lambda space, n=1, fn=np.zeros: create_empty_array(box(space), n, fn))
    concatenate.register(Known, lambda space, items, out: concatenate(box(space), items, out))
    iterate.register(Known, lambda space, items: iter(items))
    sampled = runner(Known()).sample(num_episodes=2)
    assert [part.get_observations()[:, 0].tolist() for part in sampled] == [[0.0, 1.0, 2.0, 3.0]] * 2


class Turns(gym.Space[Any]):
    """Values are lists of angles, which no array of Gymnasium holds."""

    def __init__(self, count: int = 3) -> None:
        super().__init__(None, None)
        self.count = count

    def sample(self, *_: Any, **__: Any) -> Any:
        return [float(x) for x in self.np_random.uniform(-3, 3, self.count)]

    def contains(self, x: Any) -> bool:
        return isinstance(x, list) and len(x) == self.count


class Finer(Turns):
    pass


class Words(gym.Space[Any]):
    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, *_: Any, **__: Any) -> Any:
        return "left"

    def contains(self, x: Any) -> bool:
        return x in ("left", "right")


class Hand(gym.Env[Any, Any]):
    """It pays 1 for "left", which only a decoded action is."""

    def __init__(self, turns: Any = None, decides: Any = None) -> None:
        self.observation_space = gym.spaces.Dict(turns=turns or Finer(), flag=gym.spaces.Discrete(2))
        self.action_space = decides or gym.spaces.Tuple([Words(), gym.spaces.Discrete(3)])
        self.t = 0

    def observe(self) -> Any:
        return {"turns": [self.t, 0.5, 2.0], "flag": self.t % 2}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        word = action[0] if isinstance(action, tuple) else action
        assert word in ("left", "right")
        self.t += 1
        return self.observe(), float(word == "left"), self.t == 4, False, {}


class Two(MultiAgentEnv):
    """Both agents observe and act as one hand does."""

    def __init__(self) -> None:
        super().__init__()
        self.hand, self.possible_agents = Hand(), ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, self.hand.observation_space)
        self.action_spaces = dict.fromkeys(self.possible_agents, self.hand.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, _ = self.hand.reset(seed=seed)
        return dict.fromkeys(self.possible_agents, observation), {}

    def step(self, action_dict: Any) -> Any:
        rewards = {agent: self.hand.step(action)[1] for agent, action in action_dict.items()}
        ended = self.hand.t >= 4
        return dict.fromkeys(rewards, self.hand.observe()), rewards, {"__all__": ended}, {"__all__": False}, {}


WORDS = ("left", "right")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Register both classes, and forget them afterwards."""
    monkeypatch.setattr("epibatch.core.registered_spaces._codecs", {})

    def encoder(box: Any) -> Any:
        assert box.shape == (3,)
        return torch.nn.Linear(3, 5)

    register_space(Turns, lambda space, turns: np.array(turns, np.float32), network=encoder)
    words = {"as_space": lambda space: gym.spaces.Discrete(2)}
    register_space(Words, lambda space, word: WORDS.index(word), lambda space, index: WORDS[int(index)], **words)


def config(env: Any, **settings: Any) -> PPOConfig:
    made = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=2, **settings)
    return made.training(train_batch_size=40, minibatch_size=20, num_epochs=1).debugging(seed=0)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_registered_spaces_are_arrays_in_episodes_and_values_in_the_environment(registered: Any, mode: str) -> None:
    algo = config(Hand, gym_env_vectorize_mode=mode).build_algo()
    episodes = algo.env_runner.sample(num_episodes=3)
    for episode in episodes:
        seen = episode.get_observations()
        assert seen["turns"].tolist() == [[float(t), 0.5, 2.0] for t in range(5)]
        assert seen["flag"].tolist() == [0, 1, 0, 1, 0]
        assert episode.get_rewards().tolist() == [float(WORDS[int(i)] == "left") for i in episode.get_actions()[0]]
    algo.stop()


def test_the_default_network_learns_with_the_registered_one_and_is_restored(registered: Any, tmp_path: Any) -> None:
    algo = config(Hand).build_algo()
    networks = [m for m in algo.get_module().modules() if isinstance(m, torch.nn.Linear) and m.weight.shape == (5, 3)]
    assert networks
    before = [network.weight.detach().clone() for network in networks]
    algo.train()
    after = algo.get_module().state_dict()
    learned = [m.weight for m in algo.get_module().modules() if isinstance(m, torch.nn.Linear)]
    assert all(not any(torch.equal(old, new) for new in learned) for old in before)
    algo.save_to_path(tmp_path / "saved")
    algo.stop()
    restored = PPO.from_checkpoint(tmp_path / "saved", config=config(Hand))
    assert all(torch.equal(after[name], value) for name, value in restored.get_module().state_dict().items())
    restored.stop()
    space = restored.get_module().observation_space
    assert space_from_dict(space_to_dict(space)) == space


def test_agents_have_registered_spaces(registered: Any) -> None:
    several = config(Two).multi_agent(policies={"p"}, policy_mapping_fn=lambda agent, episode: "p")
    algo = several.build_algo()
    algo.train()
    chunk = algo.env_runner.sample(num_episodes=1)[0].agent_episodes["a"]
    assert chunk.get_observations()["turns"][0].tolist() == [0.0, 0.5, 2.0]
    assert chunk.get_rewards().tolist() == [float(WORDS[int(i)] == "left") for i in chunk.get_actions()[0]]
    algo.stop()


@pytest.mark.slow
def test_processes_that_know_nothing_register_the_spaces_of_agents(
    registered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: real(method or "spawn"))
    several = config(Two, gym_env_vectorize_mode="async")
    several.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent, episode: "p")
    algo = several.build_algo()
    chunk = algo.env_runner.sample(num_episodes=1)[0].agent_episodes["a"]
    assert chunk.get_observations()["turns"][0].tolist() == [0.0, 0.5, 2.0]
    algo.stop()


def test_what_is_not_registered_is_named(registered: Any) -> None:
    for env, match in (
        (lambda: Hand(turns=Unknown()), r"observation space\['turns'\][\s\S]*register_space\(Unknown, encode\)"),
        (lambda: Hand(decides=Unknown()), r"same observation and action space[\s\S]*register_space"),
    ):
        with pytest.raises(SpaceError, match=match):
            SingleAgentEnvRunner(config=config(env))
    register_space(Unknown, lambda space, value: np.float32(value))
    runner = SingleAgentEnvRunner(config=config(lambda: Hand(decides=Unknown())))
    with pytest.raises(SpaceError, match=r"action space Unknown[\s\S]*without decode[\s\S]*decode"):
        runner.sample(num_timesteps=1)
    for wrong in ((gym.spaces.Box, np.asarray), (Hand, np.asarray), (Turns, None), (Turns, np.asarray, 3)):
        with pytest.raises(RegistryError, match="class of spaces of your own"):
            register_space(*wrong)
    for settings, match in (
        ({"as_space": lambda space: 3}, "gymnasium Space"),
        ({"as_space": lambda space: gym.spaces.Discrete(2), "network": torch.nn.Linear}, "a Box, for its network"),
        ({"network": lambda box: torch.nn.Linear(1, 1)}, "a vector for each row"),
    ):
        register_space(Unknown, lambda space, value: np.zeros((2, 1), np.float32), **settings)
        with pytest.raises(SpaceError, match=match):
            SingleAgentEnvRunner(config=config(lambda: Hand(turns=Unknown())))


def sampled(runner: Any) -> None:
    runner.sample(num_timesteps=4)


@pytest.mark.parametrize(
    ("functions", "match"),
    [
        ({"encode": lambda value: 0}, r"encode of register_space\(Words[\s\S]*takes 1 positional[\s\S]*'left'"),
        ({"encode": lambda space, value: {}[value]}, r"encode of register_space\(Words[\s\S]*KeyError: 'left'"),
        ({"decode": lambda space, n: [][n]}, r"decode of register_space\(Words[\s\S]*IndexError[\s\S]*for .*[01]"),
        (
            {"decode": lambda space, n: "up"},
            r"decode of register_space\(Words[\s\S]*by its contains\n.*'up', for .*[01]",
        ),
    ],
)
def test_a_function_that_fails_is_named_with_its_value(registered: Any, functions: Any, match: str) -> None:
    rest = {"encode": lambda space, word: WORDS.index(word), "decode": lambda space, index: WORDS[int(index)]}
    register_space(Words, **{**rest, **functions}, as_space=lambda space: gym.spaces.Discrete(2))
    env = Speaks if "encode" in functions else Hand
    with pytest.raises(SpaceError, match=match) as caught:
        sampled(SingleAgentEnvRunner(config=config(env)))
    assert caught.value.where.startswith(next(iter(functions)))
    assert "encode" not in functions or caught.value.__cause__ is not None


def test_a_space_without_contains_is_not_checked(registered: Any) -> None:
    register_space(
        Unknown, lambda space, value: 0, lambda space, n: "left", as_space=lambda space: gym.spaces.Discrete(2)
    )
    runner = SingleAgentEnvRunner(config=config(lambda: Hand(decides=Unknown())))
    assert runner.sample(num_episodes=1)[0].get_return() == 4.0


class Speaks(Hand):
    """It observes words."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Words()

    def observe(self) -> Any:
        return "left"


class Unknown(gym.Space[Any]):
    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, *_: Any, **__: Any) -> Any:
        return 1.0


def test_a_network_that_this_process_does_not_know_is_named(registered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    algo = config(Hand).build_algo()
    spaces = algo.get_module().observation_space, algo.get_module().action_space
    algo.stop()
    monkeypatch.setattr("epibatch.core.registered_spaces._codecs", {})
    with pytest.raises(SpaceError, match=r"arrays of .*:Turns[\s\S]*network="):
        RLModuleSpec(observation_space=spaces[0], action_space=spaces[1]).build()


def test_processes_of_a_cluster_register_the_same(registered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = cloudpickle.dumps(registrations().sendable(lambda value: bool(cloudpickle.dumps(value))))
    monkeypatch.setattr("epibatch.core.registered_spaces._codecs", {})
    pickle.loads(sent).apply()
    assert set(registrations().spaces) == {Turns, Words}
