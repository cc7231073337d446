"""The contract of RLModule, held by a module without torch."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.distributions import Categorical, DiagGaussian
from epibatch.core.errors import ColumnError, ConfigError, NotAvailableError, RunnerError, SpaceError
from epibatch.core.rl_module import MultiRLModule, RLModule

BOX = gym.spaces.Box(-1, 1, (4,))


class Recording(RLModule):
    framework = "numpy"
    built = 0

    def setup(self):
        self.built += 1
        self.seen = self.model_config

    def _forward(self, batch, **kwargs):
        return {"how": "any", **kwargs}

    def _forward_exploration(self, batch, **kwargs):
        return {"how": "exploration"}


def test_setup_runs_once_after_the_fields_are_set():
    module = Recording(observation_space=BOX, model_config={"a": 1})
    assert module.built == 1
    assert module.seen == {"a": 1}
    assert module.observation_space is BOX
    assert module.action_space is None
    assert (module.inference_only, module.learner_only) == (False, False)


def test_forward_methods_fall_back_on_forward():
    module = Recording()
    assert module.forward_inference({}, t=1) == {"how": "any", "t": 1}
    assert module.forward_train({}) == {"how": "any"}
    assert module.forward_exploration({}) == {"how": "exploration"}


def test_modules_for_acting_only_refuse_to_train():
    with pytest.raises(RunnerError, match="inference_only=False"):
        Recording(inference_only=True).forward_train({})


def test_modules_without_forward_say_so():
    with pytest.raises(NotAvailableError, match="implement _forward"):
        RLModule().forward_inference({})


@pytest.mark.parametrize(("key", "message"), [("observation_spac", "'observation_space'"), ("size", "model_config")])
def test_unknown_keywords(key, message):
    with pytest.raises(ConfigError, match=message):
        Recording(**{key: 1})


@pytest.mark.parametrize("config", [{"state_dim": 3}, None, "anything"])
def test_configs_are_kept_as_they_are(config):
    assert Recording(model_config=config).model_config == ({} if config is None else config)


def test_is_stateful_asks_once():
    calls = []

    class Stateful(RLModule):
        def get_initial_state(self):
            calls.append(1)
            return {"h": np.zeros(3)}

    module = Stateful()
    assert module.is_stateful()
    assert module.is_stateful()
    assert calls == [1]
    assert not RLModule().is_stateful()


def test_states_are_dicts():
    class Bare(RLModule):
        def get_initial_state(self):
            return np.zeros(3)

    with pytest.raises(ColumnError, match="a dict of unbatched arrays"):
        Bare().is_stateful()


@pytest.mark.parametrize(("space", "cls"), [(gym.spaces.Discrete(2), Categorical), (BOX, DiagGaussian)])
@pytest.mark.parametrize("situation", ["inference", "exploration", "train"])
def test_distributions_follow_the_action_space(space, cls, situation):
    assert getattr(RLModule(action_space=space), f"get_{situation}_action_dist_cls")() is cls
    with pytest.raises(SpaceError):
        getattr(RLModule(), f"get_{situation}_action_dist_cls")()


def test_as_multi_rl_module():
    module = Recording()
    multi = module.as_multi_rl_module()
    assert isinstance(multi, MultiRLModule)
    assert multi["default_policy"] is module
    assert module.unwrapped() is module
