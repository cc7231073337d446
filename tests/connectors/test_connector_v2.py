"""The contract of pieces, their batch helpers, and subclasses of built-in pieces that override `__call__`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorPipelineV2, ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    EnvToModulePipeline,
    NumpyToTensor,
    WriteObservationsToEpisodes,
)
from epibatch.connectors.learner import (
    LearnerConnectorPipeline,
)
from epibatch.connectors.module_to_env import GetActions, ModuleToEnvPipeline
from epibatch.core.errors import BatchLayoutError, PieceError
from epibatch.core.rl_module import RLModuleSpec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import Lab, played

BOX, TWO = gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Discrete(2)


class Bare(ConnectorV2):
    """Without a constructor of its own."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        return batch


class PassesOn(Bare):
    """As ported classes do."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Widened(Bare):
    """Multiplies the width of the observations; gives one more action."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, factor=2, **kwargs):
        self.factor = factor
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-1, 1, (input_observation_space.shape[0] * self.factor,), np.float32)

    def recompute_output_action_space(self, input_observation_space, input_action_space):
        return gym.spaces.Discrete(int(input_action_space.n) + 1)


class Named(Widened):
    def __init__(self, name, *args, **kwargs):
        super().__init__(*args, factor=7, **kwargs)
        self.name = name


class Heir(Named):
    pass


def test_output_spaces_follow_from_the_inputs():
    piece = Bare(BOX, TWO)
    assert (piece.observation_space, piece.action_space) == (BOX, TWO) and Bare().observation_space is None
    piece = Widened(factor=3)
    assert piece.observation_space is None
    piece.input_action_space = TWO
    for width in (4, 5):
        piece.input_observation_space = gym.spaces.Box(-1, 1, (width,))
        assert piece.observation_space.shape == (3 * width,)
    assert piece.action_space == gym.spaces.Discrete(3)
    assert Widened(gym.spaces.Box(-1, 1, (4,)), TWO, factor=5).observation_space.shape == (20,)


@pytest.mark.parametrize(
    ("cls", "args", "kwargs"),
    [
        (Bare, (), {}),
        (Heir, ("x",), {}),
        (Heir, (), {"name": "y"}),
        (Widened, (BOX, TWO), {"factor": 3}),
        (PassesOn, (), {"gain": 2}),
        (Bare, (None,), {"input_action_space": TWO, "multi_agent": True}),
    ],
)
def test_constructor_arguments_are_those_of_the_class_that_was_called(cls, args, kwargs):
    assert cls(*args, **kwargs).get_ctor_args_and_kwargs() == (args, kwargs)


def test_a_class_without_a_constructor_of_its_own_takes_no_keywords():
    with pytest.raises(PieceError, match=r"(?s)found:    gain.*a constructor of Bare's own"):
        Bare(gain=2)


# -- helpers ---------------------------------------------------------------------------------------------


def two():
    return [Lab.episode("a", 1), Lab.episode("b", 1)]


def several():
    episode = MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations={"x": 0.0})
    return episode


def zipped(column):
    return list(ConnectorV2.single_agent_episode_iterator(two(), zip_with_batch_column=column))


ITEM, ITEMS = ConnectorV2.add_batch_item, ConnectorV2.add_n_batch_items
CHANGE = ConnectorV2.foreach_batch_item_change_in_place
AGENTS = r"id=game[\s\S]*single_agent_episode_iterator"


@pytest.mark.parametrize(
    ("call", "error", "fragment"),
    [
        (lambda: ITEM({"x": [1.0]}, "x", 1.0, two()[0]), BatchLayoutError, "'x'"),
        (lambda: ITEM({"x": {("a",): [1.0]}}, "x", 1.0), BatchLayoutError, "'x'"),
        (lambda: ITEM({"default_policy": {"obs": [1]}}, "x", 1.0, two()[0]), ValueError, "module"),
        (lambda: ITEMS({"default_policy": {"obs": [1]}}, "x", [1.0], 1, two()[0]), ValueError, "module"),
        (lambda: ITEM({}, "obs", 0.0, several()), BatchLayoutError, AGENTS),
        (lambda: ITEMS({}, "obs", [0.0], 1, several()), BatchLayoutError, AGENTS),
        (lambda: ITEMS({}, "x", [1.0], 2, two()[0]), ValueError, "'x'"),
        (lambda: ITEMS({}, "x", np.zeros((3, 2)), 2, two()[0]), ValueError, "'x'"),
        (lambda: ITEMS({}, "x", {"u": np.zeros(2), "v": np.zeros(3)}, 2, two()[0]), ValueError, "'x'"),
        (lambda: CHANGE({"x": {("a",): [1]}}, ["x", "z"], lambda item, *ids: item), ValueError, "'z'"),
        (lambda: zipped({("a",): [1]}), ValueError, "'b'"),
        (lambda: zipped({("a",): [1], ("c",): [2]}), ValueError, "'b'"),
    ],
)
def test_what_helpers_cannot_do_is_named(call, error, fragment):
    with pytest.raises(error, match=fragment):
        call()


def test_helpers_read_and_change_columns():
    batch = {"x": {("a",): [1, 2]}, "y": {("a",): [3, 4]}, "z": [1, 2]}
    CHANGE(batch, ["x", "y"], lambda items, *ids: (items[1], items[0]))
    CHANGE(batch, "z", lambda item, *ids: item + 1)
    assert batch == {"x": {("a",): [3, 4]}, "y": {("a",): [1, 2]}, "z": [2, 3]}
    switched = ConnectorV2.switch_batch_from_column_to_module_ids({"obs": {"m1": 1, "m2": 2}, "actions": {"m1": 3}})
    assert switched == {"m1": {"obs": 1, "actions": 3}, "m2": {"obs": 2}}
    for column in ({("a",): [1], ("b",): [2]}, {("b",): [2], ("a",): [1]}):
        assert [(episode.id_, item) for episode, item in zipped(column)] == [("a", 1), ("b", 2)]
    for stepped in (True, False):
        parts = ConnectorV2.single_agent_episode_iterator(two(), agents_that_stepped_only=stepped)
        assert [part.id_ for part in parts] == ["a", "b"]


def test_helpers_inside_a_pipeline_use_the_keys_of_the_call(lab):
    def add(batch, episodes):
        for i, episode in enumerate(episodes):
            ConnectorV2.add_batch_item(batch, "x", i, episode)
        pairs = list(ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column=batch["x"]))
        assert [item for _, item in pairs] == [0, 1]

    episodes = [lab.episode("a", 1), lab.episode("a", 1, t_started=1, lookback=1)]
    seen = lab.see("learner", [lab.user(add)], episodes)
    assert {key: [int(i) for i in items] for key, items in seen["x"].items()} == {("a_0",): [0], ("a_1",): [1]}


# -- subclasses of built-in pieces that override `__call__` ----------------------------------------------


def episode(length: int = 3, id_: str = "e") -> Any:
    rows = np.arange(length + 1, dtype=np.float32)[:, None]
    actions, ended = [t % 2 for t in range(length)], length > 0
    return played(rows, np.arange(float(length)), id_=id_, actions=actions, terminated=ended, observation_space=BOX)


def plus_one(batch: Any) -> Any:
    ConnectorV2.foreach_batch_item_change_in_place(batch, "obs", lambda x, *_: x + 1)
    return batch


class PlusOne(AddObservationsFromEpisodesToBatch):
    """Adds observations that are one too large."""

    def __call__(self, *, batch: Any, **call: Any) -> Any:
        return plus_one(super().__call__(batch=batch, **call))


class More(PlusOne):
    """Overrides nothing itself."""


class Mixin:
    def __call__(self, **call: Any) -> Any:
        return plus_one(super().__call__(**call))  # type: ignore[misc]


class Mixed(Mixin, AddObservationsFromEpisodesToBatch):  # type: ignore[misc]
    """Overrides by a class that is no piece."""


@pytest.mark.parametrize("piece", [PlusOne, More, Mixed])
@pytest.mark.parametrize("kind", [EnvToModulePipeline, LearnerConnectorPipeline, ConnectorPipelineV2])
def test_an_override_is_called_in_every_pipeline(kind: Any, piece: Any) -> None:
    learning = kind is LearnerConnectorPipeline
    pipeline = kind(BOX, TWO, connectors=[piece(as_learner_connector=learning), BatchIndividualItems()])
    for _ in range(2):
        assert pipeline(episodes=[episode()])["obs"].tolist() == ([[1], [2], [3]] if learning else [[4]])


def test_what_an_override_leaves_need_not_be_what_the_piece_says() -> None:
    class Other(AddObservationsFromEpisodesToBatch):
        def __call__(self, *, batch: Any, episodes: Any, **call: Any) -> Any:
            for one in episodes:
                self.add_batch_item(batch, "obs", np.zeros((2, 2)), one)
                self.add_batch_item(batch, "mine", 7, one)
            return batch

    class Reader(Bare):
        reads = ("mine",)

    pipeline = EnvToModulePipeline(BOX, TWO, connectors=[Other(), Reader(), BatchIndividualItems(), NumpyToTensor()])
    out = pipeline(episodes=[episode(0)])
    assert out["obs"].shape == (1, 2, 2) and out["mine"].tolist() == [7]


def test_an_override_may_pass_other_arguments_on() -> None:
    class Greedy(GetActions):
        def __call__(self, **call: Any) -> Any:
            return super().__call__(**{**call, "explore": False})

    module = RLModuleSpec(observation_space=BOX, action_space=TWO).build()
    pipeline = ModuleToEnvPipeline(BOX, TWO, connectors=[Greedy()])
    for _ in range(20):
        call = {"rl_module": module, "episodes": [episode(0)], "explore": True}
        assert pipeline(batch={"action_dist_inputs": torch.zeros(1, 2)}, **call)["actions"].tolist() == [0]


def test_pieces_and_pipelines_that_a_piece_calls_leave_its_pipeline_alone() -> None:
    inner = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])
    add, join = AddObservationsFromEpisodesToBatch(), BatchIndividualItems()
    seen: list[Any] = []

    class Peek(Bare):
        def __call__(self, *, batch: Any, episodes: Any, **call: Any) -> Any:
            seen.append(inner(episodes=episodes))
            seen.append(join(batch=add(batch={}, episodes=episodes, **call), episodes=episodes, **call))
            return batch

    pieces = [Peek(), AddObservationsFromEpisodesToBatch(as_learner_connector=True), BatchIndividualItems()]
    batch = LearnerConnectorPipeline(BOX, TWO, connectors=pieces)(episodes=[episode()])
    assert batch["obs"].tolist() == [[0], [1], [2]]
    assert list(seen[0]["obs"]) == [("e",)] and seen[1]["obs"].tolist() == [[3]]


def test_what_writes_observations_back_and_transforms_may_be_overridden() -> None:
    class Back(WriteObservationsToEpisodes):
        def __call__(self, **call: Any) -> Any:
            return super().__call__(**call)

    class Doubled(ColumnTransform):
        columns = "obs"

        def transform(self, x: Any) -> Any:
            return 2 * x

        def __call__(self, *, batch: Any, **call: Any) -> Any:
            return plus_one(super().__call__(batch=batch, **call))

    one = SingleAgentEpisode(id_="e", observations=[np.ones(1, np.float32)])
    pipeline = EnvToModulePipeline(BOX, TWO, connectors=[PlusOne(), Doubled(), Back()])
    assert pipeline(episodes=[one])["obs"]["e",] == [[5]]
    assert one.get_observations(-1).tolist() == [5]


def test_overrides_run_in_traces_and_profiles() -> None:
    pipeline = EnvToModulePipeline(BOX, TWO, connectors=[PlusOne(), BatchIndividualItems()])
    assert "plus_one" in str(pipeline.trace([episode(0)]))
    with pipeline.profile() as profile:
        assert pipeline(episodes=[episode(0)])["obs"].tolist() == [[1]]
    assert [row.calls for row in profile.rows()] == [1, 1]
