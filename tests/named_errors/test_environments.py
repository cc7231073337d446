"""The table of test_library.py, for environments, spaces, networks for them, and acting."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple

from epibatch.algorithms import PPOConfig
from epibatch.connectors.common import FlattenObservations
from epibatch.core.errors import ColumnError, ConfigError, EnvironmentContractError, EpisodeError, SpaceError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, default_module_spec
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode
from fixture_envs import RandomEnv, ScriptedEnv

OBS, ACT = Box(-1, 1, (2,), np.float32), Discrete(2)
ROW = np.zeros(2, np.float32)
NESTED = Dict(a=Discrete(3, start=5), b=MultiDiscrete([2, 3]))
PARTS = Dict(code=Discrete(2), where=Box(-1, 1, (2,)))


class Own(TorchRLModule):
    """A user's module, which no default one checks spaces for."""


def sampled(env: Any, mode: str = "sync", own: bool = True) -> Any:
    """Step two environments at random."""
    config = PPOConfig().environment(env if mode != "sync" else lambda env_config: copy.deepcopy(env))
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode=mode)
    if own:
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=Own))
    runner = SingleAgentEnvRunner(config=config)
    try:
        return runner.sample(num_timesteps=8, random_actions=True)
    finally:
        runner.stop()


def spaces(observation_space: Any = OBS, action_space: Any = ACT, own: bool = False) -> Any:
    return sampled(RandomEnv(observation_space, action_space), own=own)


def changed(place: int, change: Any) -> Any:
    """Step a vector environment whose steps are changed in one place."""

    def make() -> Any:
        env = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
        step = env.step

        def changed_step(actions: Any) -> Any:
            result = list(step(actions))
            result[place] = change(result[place])
            return tuple(result)

        env.step = changed_step
        return env

    return sampled(make, "vector_entry_point")


def cart_pole() -> PPOConfig:
    return PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [4]})


def acts(observation: Any, nested: bool = False) -> Any:
    """Let the policy of a new algorithm act."""
    config = cart_pole()
    if nested:
        config.environment(lambda env_config: RandomEnv(PARTS))
    algorithm = config.build_algo()
    try:
        return algorithm.get_policy().act(observation)
    finally:
        algorithm.stop()


def evaluates(overrides: Any) -> Any:
    algorithm = cart_pole().evaluation(evaluation_config=overrides).build_algo()
    try:
        return algorithm.evaluate()
    finally:
        algorithm.stop()


def sees(space: Any, obs: Any) -> Any:
    """Show a default module of this space something."""
    return default_module_spec(space, ACT, {"fcnet_hiddens": [4]}).build().forward_inference({"obs": obs})


def flattens(space: Any, row: Any) -> Any:
    return FlattenObservations(space)(batch={}, episodes=[SingleAgentEpisode(observations=[row])])


# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    # environments
    "misspelt wrapper": (ConfigError, lambda: cart_pole().environment(wrappers=["TimeLimits"]), [
        "environment.wrappers", "'TimeLimits'", "did you mean 'TimeLimit'"]),
    "misspelt keyword of a wrapper": (ConfigError, lambda: PPOConfig.from_yaml(
        "environment: {wrappers: [{wrapper: TimeLimit, max_step: 3}]}"), [
        "environment.wrappers", "TimeLimit has no argument 'max_step'", "max_episode_steps"]),
    "another key in an observation": (SpaceError, lambda: sampled(
        ScriptedEnv(({"b": 0}, 0.0, False, False, {}), space=Dict(a=OBS))), ["ScriptedEnv.step()", "['a']", "['b']"]),
    "reward that is NaN later": (EnvironmentContractError, lambda: sampled(ScriptedEnv(
        (ROW, 0.0, False, False, {}), (ROW, float("nan"), False, False, {}), space=OBS)), [
        "1 steps into its episode", "finite reward", "nan"]),
    "complex numbers": (SpaceError, lambda: changed(0, lambda rows: rows.astype(complex)), [
        "'obs'", "float32", "complex128"]),
    "flags that are numbers": (ColumnError, lambda: changed(3, lambda flags: flags.astype(float)), [
        "'truncateds'", "bools", "float64"]),
    "end in the step that resets": (EpisodeError, lambda: changed(2, np.ones_like), [
        "resets a step later", "environments [0, 1]"]),
    # spaces
    "integer actions beyond int64": (SpaceError, lambda: spaces(
        action_space=Box(2**63, 2**63 + 3, (1,), np.uint64)), ["bounds that int64 holds", "uint64"]),
    "actions without entries": (SpaceError, lambda: spaces(action_space=Box(-1, 1, (0,))), ["at least one entry"]),
    "no observations at all": (SpaceError, lambda: spaces(Dict({})), ["at least one part", "Dict()"]),
    "no observations at all, for a module of one's own": (SpaceError, lambda: spaces(Tuple([]), own=True), [
        "at least one part", "Tuple()"]),
    "observations without numbers": (SpaceError, lambda: spaces(Box(0, 1, (0,))), ["at least one number"]),
    "observation nested otherwise": (ColumnError, lambda: sees(NESTED, {"a": torch.tensor([5])}), [
        "a tensor at obs['b']", "keys ['a']"]),
    "flat observations outside of their space": (SpaceError, lambda: flattens(
        NESTED, {"a": 4, "b": np.zeros(2, int)}), ["Discrete(3, start=5)", "values from 4 to 4"]),
    # acting
    "observation of another shape": (SpaceError, lambda: acts(np.zeros(3)), [
        "observation for Policy.act", "(4,)", "shape (3,)"]),
    "observation that is text": (SpaceError, lambda: acts("left"), ["observation for Policy.act", "str of <U4"]),
    "code outside of its space": (SpaceError, lambda: acts({"code": [0, -1], "where": np.zeros((2, 2))}, True), [
        "part ['code']", "[-1] in rows [1]"]),
    "observation of which one part is a batch": (SpaceError, lambda: acts(
        {"code": np.array([1]), "where": np.zeros(2)}, True), ["obs['code'] a batch of 1; obs['where'] single"]),
    "evaluation in other spaces": (ConfigError, lambda: evaluates({"env": "Acrobot-v1"}), [
        "evaluation_config, environment", "shape (4,)", "shape (6,)"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)


def test_the_advice_for_text_works():
    """The wrapper that the message names: text as a Box of character codes."""

    def encoded(env_config: Any) -> Any:
        says = ScriptedEnv(("BCDEF", 0.0, False, False, {}), reset=("ABCDE", {}))
        says.observation_space = Text(5, min_length=5)
        codes = Box(0, 255, (5,))
        return gym.wrappers.TransformObservation(says, lambda text: np.array([*map(ord, text)], np.float32), codes)

    runner = SingleAgentEnvRunner(config=PPOConfig().environment(encoded))
    (episode,) = runner.sample(num_timesteps=1)
    runner.stop()
    assert episode.get_observations(-1).tolist() == [66, 67, 68, 69, 70]
