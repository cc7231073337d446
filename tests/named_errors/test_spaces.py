"""The table of tests/test_named_errors.py, for spaces, networks for them and their distributions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiDiscrete, Sequence, Text, Tuple

from epibatch.algorithms import PPOConfig
from epibatch.connectors.common import FlattenObservations
from epibatch.core.distributions import Categorical, MultiCategorical, distribution_for
from epibatch.core.errors import ColumnError, NotAvailableError, SpaceError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, default_module_spec
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode

OBS, ACT = Box(-1, 1, (2,)), Discrete(2)
NESTED = Dict(a=Discrete(3, start=5), b=MultiDiscrete([2, 3]))


class Own(TorchRLModule):
    """A user's module, which no default one checks spaces for."""


def runs(observation_space: Any = OBS, action_space: Any = ACT, shown: Any = None, own: bool = False) -> Any:
    """Sample from an environment with these spaces."""

    class Shows(gym.Env[Any, Any]):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return self.observation_space.sample() if shown is None else shown, {}

        def step(self, action: Any) -> Any:
            return self.reset()[0], 0.0, False, False, {}

    Shows.observation_space, Shows.action_space = observation_space, action_space
    config = PPOConfig().environment(lambda env_config: Shows())
    if own:
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=Own))
    runner = SingleAgentEnvRunner(config=config)
    try:
        return runner.sample(num_timesteps=2)
    finally:
        runner.stop()


def sees(space: Any, obs: Any, **model_config: Any) -> Any:
    """Show a default module of this space something."""
    module = default_module_spec(space, ACT, {"fcnet_hiddens": [4], **model_config}).build()
    return module.forward_inference({"obs": obs})


def flattens(space: Any, row: Any, **options: Any) -> Any:
    return FlattenObservations(space, **options)(batch={}, episodes=[SingleAgentEpisode(observations=[row])])


# fmt: off
MISTAKES: dict[str, tuple[type[Exception], Any, list[str]]] = {
    # spaces
    "ragged observations": (SpaceError, lambda: runs(Sequence(OBS)), ["Sequence", "TransformObservation"]),
    "graph observations": (SpaceError, lambda: runs(Graph(OBS, None)), ["Graph", "TransformObservation"]),
    "no actions at all": (SpaceError, lambda: distribution_for(Dict(a=ACT, b=Tuple([]))), ["Tuple() at ['b']"]),
    "integer actions beyond int64": (SpaceError, lambda: runs(action_space=Box(2**63, 2**63 + 3, (1,), np.uint64)), [
        "bounds that int64 holds", "uint64"]),
    "actions without entries": (SpaceError, lambda: runs(action_space=Box(-1, 1, (0,))), ["at least one entry"]),
    "no observations at all": (SpaceError, lambda: runs(Dict({})), ["at least one part", "Dict()"]),
    "no observations at all, for a module of one's own": (SpaceError, lambda: runs(Tuple([]), own=True), [
        "at least one part", "Tuple()"]),
    "observations without numbers": (SpaceError, lambda: runs(Box(0, 1, (0,))), ["at least one number"]),
    "network for nothing": (SpaceError, lambda: sees(Dict(a=Dict({}), b=Box(0, 1, (3, 0))), None), [
        "at least one number"]),
    # observations
    "observation nested otherwise": (ColumnError, lambda: sees(NESTED, {"a": torch.tensor([5])}), [
        "a tensor at obs['b']", "keys ['a']"]),
    # flat observations
    "flat observations outside of their space": (SpaceError, lambda: flattens(
        NESTED, {"a": 4, "b": np.zeros(2, int)}), ["Discrete(3, start=5)", "values from 4 to 4"]),
    # distributions
    "too few inputs for a nested action": (SpaceError, lambda: distribution_for(NESTED).from_logits(
        torch.zeros(1, 7)), ["3+5 inputs for 2 parts", "(1, 7)"]),
    "divergence between kinds": (NotAvailableError, lambda: Categorical(torch.zeros(1, 2)).kl(
        MultiCategorical.from_logits(torch.zeros(1, 2), [2])), ["another Categorical", "MultiCategorical"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)


def test_the_advice_for_text_works():
    """The wrapper that the message names: text as a Box of character codes."""

    class Says(gym.Env[Any, Any]):
        observation_space, action_space = Text(5, min_length=5), ACT

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return "ABCDE", {}

        def step(self, action: Any) -> Any:
            return "BCDEF", 0.0, False, False, {}

    def encoded(env_config: Any) -> Any:
        def codes(text: str) -> Any:
            return np.array([ord(letter) for letter in text], np.float32)

        return gym.wrappers.TransformObservation(Says(), codes, Box(0, 255, (5,)))

    runner = SingleAgentEnvRunner(config=PPOConfig().environment(encoded))
    (episode,) = runner.sample(num_timesteps=1)
    runner.stop()
    assert episode.get_observations(-1).tolist() == [66, 67, 68, 69, 70]
