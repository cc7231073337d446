"""The table of test_library.py, for environments, and for running them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core import save_state
from epibatch.core.errors import (
    CheckpointError,
    ColumnError,
    ConfigError,
    EnvironmentContractError,
    EpisodeError,
    SpaceError,
)
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import SingleAgentEnvRunner

OBS, ACT = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
ROW = np.zeros(2, np.float32)


def module(forward: Any = None, state: Any = None) -> Any:
    class Own(TorchRLModule):
        def get_initial_state(self):
            return state or {}

        def _forward(self, batch, **kwargs):
            return forward(batch)

    return Own


def env_of(space: Any = OBS, row: Any = ROW, reward: Any = 0.0, ends: Any = (False, False), later: Any = 0) -> type:
    """An environment whose every step (from `later` on) returns these."""

    class Own(gym.Env):
        observation_space, action_space = space, ACT
        steps = 0

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            self.steps += 1
            wrong = (row, reward, *ends, {})
            return wrong if self.steps > later else (self.observation_space.sample(), 0.0, False, False, {})

    return Own


def steps(env: Any, mode: str = "sync", **settings: Any) -> Any:
    """Let two of these environments be stepped at random."""
    config = PPOConfig().environment(env).rl_module(rl_module_spec=RLModuleSpec(module_class=module()))
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode=mode, **settings)
    runner = SingleAgentEnvRunner(config=config)
    try:
        return runner.sample(num_timesteps=8, random_actions=True)
    finally:
        runner.stop()


def own_vector(num_envs: int = 2, **changes: Any) -> Any:
    """A function that makes a vector environment; changes are attributes, or methods as functions of its own."""

    def make() -> Any:
        env = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs)
        for name, value in changes.items():
            setattr(env, name, value)
        return env

    return make


def after(method: Any, place: int, change: Any) -> Any:
    """A vector environment's method whose result is changed in one place."""

    def changed(*args: Any, **kwargs: Any) -> Any:
        result = list(method(*args, **kwargs))
        result[place] = change(result[place])
        return tuple(result)

    return changed


def changed_step(place: int, change: Any) -> Any:
    """A function that makes a vector environment whose steps are changed in one place."""

    def make() -> Any:
        env = own_vector()()
        env.step = after(env.step, place, change)
        return env

    return make


def cart_pole(width: int = 4) -> Any:
    return PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [width]})


def written(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def without(folder: Path, name: str) -> Path:
    """A checkpoint that lacks one of its files."""
    saved = save_state(folder / "saved", {"x": ROW})
    (saved / name).unlink()
    return saved


def set_state(**parts: Any) -> None:
    """Give an algorithm its own state with parts changed; None leaves one out."""
    algorithm = cart_pole().build_algo()
    state = {**algorithm.get_state(), **parts}
    try:
        algorithm.set_state({name: part for name, part in state.items() if part is not None})
    finally:
        algorithm.stop()


# What is done wrong: (error, how it is done, what the message names).

# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    # environments
    "misspelt wrapper": (ConfigError, lambda: cart_pole().environment(wrappers=["TimeLimits"]), [
        "environment.wrappers", "'TimeLimits'", "did you mean 'TimeLimit'"]),
    "misspelt keyword of a wrapper": (ConfigError, lambda: PPOConfig.from_yaml(
        "environment: {wrappers: [{wrapper: TimeLimit, max_step: 3}]}"), [
        "environment.wrappers", "TimeLimit has no argument 'max_step'", "max_episode_steps"]),
    "another key in an observation": (SpaceError, lambda: steps(env_of(gym.spaces.Dict(a=OBS), {"b": 0})), [
        "Own.step()", "['a']", "['b']"]),
    "fractions where integers are declared": (SpaceError, lambda: steps(
        changed_step(0, lambda rows: rows.astype(complex)), "vector_entry_point"), ["'obs'", "float32", "complex128"]),
    "reward that is NaN later": (ColumnError, lambda: steps(env_of(reward=float("nan"), later=2)), [
        "'rewards'", "nan", "environments [0, 1]"]),
    "flags that are numbers": (ColumnError, lambda: steps(
        changed_step(3, lambda flags: flags.astype(float)), "vector_entry_point"), [
        "'truncateds'", "bools", "float64"]),
    "step with four values": (EnvironmentContractError, lambda: steps(own_vector(step=lambda actions: (0,) * 4),
        "vector_entry_point"), ["step()", "5 values", "4 values"]),
    "end in the step that resets": (EpisodeError, lambda: steps(
        changed_step(2, np.ones_like), "vector_entry_point"), ["resets a step later", "environments [0, 1]"]),
    # running and restoring
    "state that cannot be saved": (CheckpointError, lambda folder: save_state(folder / "s", {"f": [print]}), [
        "state['f'][0]", "builtin_function_or_method", "get_state"]),
    "saving over other files": (CheckpointError, lambda folder: save_state(written(folder / "f" / "x").parent, {}), [
        "saving to", "x", "a folder of its own"]),
    "state with iterations below 0": (CheckpointError, lambda: set_state(counters={
        "training_iteration": -1, "num_env_steps_sampled_lifetime": 0, "time_total_s": 0.0}), [
        "'training_iteration'", "-1"]),
    "state without a part": (CheckpointError, lambda: set_state(random=None), ["PPO.set_state", "random"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
