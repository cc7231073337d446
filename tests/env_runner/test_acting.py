"""What stands between a batch and the environment's step."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from epibatch.core.errors import ColumnError
from epibatch.env_runner.acting import act, check_actions, forward


class Doubles:
    """A module that doubles its observations, and says how it was asked."""

    def forward_exploration(self, batch, t):
        return {"actions": 2 * batch["obs"], "asked": f"explore at {t}"}

    def forward_inference(self, batch):
        return {"actions": 2 * batch["obs"], "asked": "infer"}


@pytest.mark.parametrize(("explore", "asked"), [(True, "explore at 7"), (False, "infer")])
def test_the_forward_pass_that_fits(explore, asked):
    def pipeline(*, rl_module, batch, episodes, explore, shared_data):
        shared_data["seen"] = (len(episodes), explore)
        return batch

    shared = {}
    columns = act(Doubles(), pipeline, {"obs": np.arange(2)}, [1, 2], explore=explore, t=7, shared_data=shared)
    assert columns["actions"].tolist() == [0, 2] and columns["asked"] == asked
    assert shared["seen"] == (2, explore)


def test_an_error_names_module_and_shapes():
    with pytest.raises(KeyError) as raised:
        forward(Doubles(), {"other": np.zeros((2, 3)), "nested": {"x": np.zeros(1)}}, explore=False, t=0)
    said = " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "Doubles's forward pass, with other [2, 3], nested {'x': [1]}" in said


@pytest.mark.parametrize(
    ("columns", "found"),
    [({}, "none"), ({"actions": np.zeros(3)}, r"\[3\]"), ({"actions": {"a": np.zeros(2), "b": np.float32(1)}}, "one")],
)
def test_actions_are_one_per_environment(columns, found):
    with pytest.raises(ColumnError, match=rf"2 rows, one per environment[\s\S]*{found}"):
        check_actions(columns, 2)
    check_actions({"actions": (np.zeros(2), np.zeros((2, 4)))}, 2)


def test_a_module_like_thing_is_enough():
    module = SimpleNamespace(forward_inference=lambda batch: {"actions": batch["obs"]})
    assert forward(module, {"obs": np.ones(1)}, explore=False, t=0)["actions"].tolist() == [1.0]
