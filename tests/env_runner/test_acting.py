"""What stands between a batch and the environment's step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.views import View
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


class Looks(Doubles):
    """Looks something up."""

    view_requirements: ClassVar = {"next_obs": View("obs", shift=1)}

    def __init__(self, look):
        self.look = look

    def forward_inference(self, batch):
        return self.look(batch)


def test_an_error_names_module_and_shapes():
    batch = {"other": np.zeros((2, 3)), "nested": {"x": np.zeros(1)}}
    table = {"a": 1}
    for look, error in [(lambda: table["b"], KeyError), (lambda: {}[3], KeyError), (lambda: len(3), TypeError)]:
        module = Looks(lambda batch, look=look: look())
        with pytest.raises(error) as raised:
            forward(module, batch, explore=False, t=0)
        assert type(raised.value) is error
        said = " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
        assert "Looks's forward pass, with other [2, 3], nested {'x': [1]}" in said


@pytest.mark.parametrize("look", [lambda batch: batch["next_obs"], lambda batch: dict(batch)["next_obs"]])
def test_a_column_that_is_not_there_while_acting_comes_with_those_that_are(look):
    said = noted(Looks(look), {"obs": np.zeros(2)})
    assert "no column 'next_obs' at this place. Its columns: obs. Read what" in said
    assert "_forward_train only" in said
    several = {"left": {"obs": np.zeros(2)}, "right": {"obs": np.zeros(2), "actions": np.zeros(2)}}
    assert "Its columns: left/obs, right/obs, right/actions." in noted(ModulesOf(Looks(look)), several)


def noted(module, batch):
    with pytest.raises(KeyError) as raised:
        forward(module, batch, explore=False, t=0)
    return " ".join(raised.value.__notes__)


class ModulesOf(dict):
    """One module for all."""

    def __init__(self, module):
        super().__init__(left=module, right=module)

    def forward_inference(self, batch):
        return {module_id: self[module_id].look(own) for module_id, own in batch.items()}


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


DISCRETE = gym.spaces.Discrete(2)
SHIFTED = gym.spaces.Discrete(3, start=5)
MANY = gym.spaces.MultiDiscrete([2, 4])
BITS = gym.spaces.MultiBinary(2)
NESTED = gym.spaces.Dict(a=DISCRETE, b=gym.spaces.Box(-1, 1, (1,)))


class Chooses:
    """A module that chooses its actions itself."""

    def __init__(self, space, actions):
        self.action_space, self.actions = space, actions

    def forward_exploration(self, batch, t):
        return {"actions": self.actions}


def chosen(space, actions):
    rows = len(actions["a"] if isinstance(actions, dict) else actions)
    return act(Chooses(space, actions), lambda batch, **_: batch, {}, [0] * rows, explore=True, t=0)["actions"]


@pytest.mark.parametrize(
    ("space", "actions", "found"),
    [
        (DISCRETE, np.array([0, 7]), "7"),
        (DISCRETE, np.array([0, -1]), "-1"),
        (DISCRETE, np.array([1.0, 0.7]), "0.7"),
        (DISCRETE, torch.tensor([2, 0]), "2"),
        (DISCRETE, np.array([np.nan, 0.0]), "nan"),
        (DISCRETE, np.array(["0", "1"]), "'0', '1'"),
        (SHIFTED, np.array([4, 5]), "4"),
        (MANY, np.array([[0, 4]]), "4"),
        (MANY, np.array([[2, 3]]), "2"),
        (BITS, torch.tensor([[0, 2]]), "2"),
        (NESTED, {"a": np.array([3]), "b": np.zeros((1, 1))}, "3"),
    ],
)
def test_a_modules_own_actions_must_be_members_of_its_space(space, actions, found):
    with pytest.raises(ColumnError) as raised:
        chosen(space, actions)
    said = str(raised.value)
    assert "column 'actions' of Chooses's outputs" in said and f"found:    {found}\n" in said


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (DISCRETE, np.array([1.0, 0.0], np.float32), [1, 0]),
        (DISCRETE, torch.tensor([1.0, 0.0]), [1, 0]),
        (SHIFTED, np.array([5, 7]), [5, 7]),
        (MANY, torch.tensor([[1.0, 3.0]]), [[1, 3]]),
        (BITS, np.array([[True, False]]), [[1, 0]]),
        (gym.spaces.Box(-1, 1, (1,)), np.array([[7.5]]), [[7.5]]),  # clipped by a piece, if the config says so
    ],
)
def test_whole_numbers_of_another_type_are_converted(space, actions, expected):
    actual = chosen(space, actions)
    assert actual.tolist() == expected
    assert np.asarray(actual).dtype.kind in ("f" if isinstance(space, gym.spaces.Box) else "ib")


@pytest.mark.parametrize("action", [7, -1, 0.7])
def test_an_action_outside_its_space_does_not_reach_the_environment(toys, action):
    runner = toys.runner(2)
    runner.module.forward_exploration = lambda batch, **_: {"actions": torch.full((len(batch["obs"]),), action)}
    with pytest.raises(ColumnError, match=r"members of Discrete\(2\)"):
        runner.sample(num_timesteps=2)
    assert not any(env.actions for env in toys.envs)
    runner.module.forward_exploration = lambda batch, **_: {"actions": torch.full((len(batch["obs"]),), 1.0)}
    (chunk, _) = runner.sample(num_timesteps=4)
    assert chunk.get_actions().tolist() == [1, 1] and chunk.get_actions().dtype.kind == "i"
    assert {env.actions[0].dtype.kind for env in toys.envs} == {"i"}
