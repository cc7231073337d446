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
from epibatch.core.distributions import Categorical, MultiCategorical, SquashedGaussian, distribution_for
from epibatch.core.errors import ColumnError, ConfigError, NotAvailableError, SpaceError, UnknownNameError
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
    "text observations": (SpaceError, lambda: runs(Text(5)), ["Text", "TransformObservation"]),
    "text within observations": (SpaceError, lambda: runs(Dict(a=OBS, b=Tuple([Text(5)]))), [
        "Text", "TransformObservation"]),
    "text for a module of one's own": (SpaceError, lambda: runs(Text(5), own=True), ["Text", "TransformObservation"]),
    "ragged observations": (SpaceError, lambda: runs(Sequence(OBS)), ["Sequence", "TransformObservation"]),
    "graph observations": (SpaceError, lambda: runs(Graph(OBS, None)), ["Graph", "TransformObservation"]),
    "network for text": (SpaceError, lambda: sees(Dict(a=OBS, b=Tuple([Text(5)])), None), [
        "at ['b'][0] of Dict", "encode the text", "TransformObservation"]),
    "network for sequences": (SpaceError, lambda: sees(Sequence(OBS), None), ["Sequence", "pad the sequence"]),
    "text actions": (SpaceError, lambda: runs(action_space=Text(5)), ["Text", "get_exploration_action_dist_cls"]),
    "integer actions without bounds": (SpaceError, lambda: runs(action_space=Box(-np.inf, 5, (2,), np.int64)), [
        "bounds on both sides", "int64"]),
    "a choice among too many": (SpaceError, lambda: runs(action_space=Box(0, 2**40, (1,), np.int64)), [
        "at most 1048576 integers", "float Box"]),
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
    "observation outside of its space": (SpaceError, lambda: sees(Discrete(3), torch.tensor([1, 7])), [
        "from [0] on, [3] of them", "[7]"]),
    "observation nested otherwise": (ColumnError, lambda: sees(NESTED, {"a": torch.tensor([5])}), [
        "a tensor at obs['b']", "keys ['a']"]),
    "image of another size": (SpaceError, lambda: sees(Box(0, 1, (8, 8, 3)), torch.zeros(1, 3, 8, 8)), [
        "(8, 8, 3)", "(1, 3, 8, 8)"]),
    "convolutions without stride": (ConfigError, lambda: sees(Box(0, 1, (8, 8, 3)), None, conv_filters=[[16, 4]]), [
        "conv_filters", "[channels, kernel, stride]"]),
    "previous actions as an option": (ConfigError, lambda: sees(OBS, None, lstm_use_prev_action=True), [
        "lstm_use_prev_action", "PrevActionsPrevRewards"]),
    # flat observations
    "flat text": (SpaceError, lambda: flattens(Dict(a=Text(5), b=OBS), {"a": "x", "b": np.zeros(2)}), [
        "flattening Dict", "keys_to_remove"]),
    "flat observations of no known space": (SpaceError, lambda: flattens(None, np.zeros(2)), [
        "FlattenObservations(observation_space)"]),
    "key to remove that is not there": (UnknownNameError, lambda: flattens(
        NESTED, {"a": 5, "b": np.zeros(2, int)}, keys_to_remove=["c"]), ["'c'", "Known: a, b"]),
    "keys to remove from a vector": (SpaceError, lambda: flattens(OBS, np.zeros(2), keys_to_remove=["a"]), [
        "a Dict observation space", "Box"]),
    "keys to remove as text": (ConfigError, lambda: FlattenObservations(keys_to_remove="a"), ["pass ['a']"]),
    "flat observations outside of their space": (SpaceError, lambda: flattens(
        NESTED, {"a": 4, "b": np.zeros(2, int)}), ["Discrete(3, start=5)", "values from 4 to 4"]),
    # distributions
    "too few logits": (SpaceError, lambda: MultiCategorical.from_logits(torch.zeros(1, 4), [2, 3]), [
        "2+3 logits", "(1, 4)"]),
    "too few inputs for a nested action": (SpaceError, lambda: distribution_for(NESTED).from_logits(
        torch.zeros(1, 7)), ["3+5 inputs for 2 parts", "(1, 7)"]),
    "nested action without a part": (ColumnError, lambda: distribution_for(NESTED).from_logits(
        torch.zeros(1, 8)).logp({"a": torch.tensor([5])}), ["a: leaf, b: leaf"]),
    "bounds without end": (SpaceError, lambda: SquashedGaussian.from_logits(torch.zeros(1, 2), high=np.inf), [
        "finite bounds", "inf"]),
    "argument that a distribution does not take": (ConfigError, lambda: Categorical.get_partial_dist_cls(strat=3), [
        "strat", "did you mean 'start'"]),
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
