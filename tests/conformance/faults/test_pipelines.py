"""Faults of pipelines and of what every piece inherits."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import BatchLayoutError, ColumnError, UnknownNameError
from oracle.probes import Raises, plain, probe, tried

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


def pieces_of(library: Any) -> tuple[type, type]:
    """A piece without state and one that counts."""

    class Marker(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            batch["keywords"] = sorted(kwargs)
            return batch

    class Counter(Marker):
        count = 0

        def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> Any:
            return {"count": self.count}

        def set_state(self, state: Any) -> None:
            self.count = state["count"]

        def merge_states(self, states: Any) -> Any:
            return {"count": sum(state["count"] for state in states)}

    return Marker, Counter


def pipeline_of(library: Any, *classes: type) -> Any:
    return library.ConnectorPipelineV2(BOX, DISCRETE, connectors=[cls() for cls in classes])


def order(pipeline: Any) -> list[str]:
    return [type(piece).__name__ for piece in pipeline.connectors]


@probe("O2", ours=[{"count": 5}], theirs=[{}])
def test_states_are_merged_behind_a_stateless_piece(library: Any) -> Any:
    pipeline = pipeline_of(library, *pieces_of(library))
    states = []
    for count in (2, 3):
        pipeline.connectors[1].count = count
        states.append(pipeline.get_state())
    return list(pipeline.merge_states(states).values())


@probe("O3", ours=[1, 2], theirs=[2, 2])
def test_two_pieces_of_a_class_keep_their_states(library: Any) -> Any:
    _, counter = pieces_of(library)
    pipeline, copy = pipeline_of(library, counter, counter), pipeline_of(library, counter, counter)
    for piece, count in zip(pipeline.connectors, (1, 2)):
        piece.count = count
    copy.set_state(pipeline.get_state())
    return [piece.count for piece in copy.connectors]


@probe(
    "O4",
    ours=[Raises(UnknownNameError, "'Countr'"), Raises(UnknownNameError, "'Countr'"), ["Marker", "Counter"]],
    theirs=["Counter", "Counter", ["Marker", "Marker", "Counter", "Marker"]],
)
def test_inserting_next_to_a_piece_that_is_not_there(library: Any) -> Any:
    marker, counter = pieces_of(library)
    pipeline = pipeline_of(library, marker, counter)
    before = tried(lambda: type(pipeline.insert_before("Countr", marker())).__name__)
    after = tried(lambda: type(pipeline.insert_after("Countr", marker())).__name__)
    return [before, after, order(pipeline)]


@probe("O5", ours="Counter", theirs=Raises(AttributeError, "no attribute 'name'", "__getitem__"))
def test_looking_up_by_class_name(library: Any) -> Any:
    return type(pipeline_of(library, *pieces_of(library))["Counter"]).__name__


@probe("O6", ours=[BOX, DISCRETE], theirs=[None, None])
def test_an_empty_pipeline_has_the_spaces_of_its_input(library: Any) -> Any:
    pipeline = pipeline_of(library)
    return [pipeline.observation_space, pipeline.action_space]


@probe("O6", ours=0, theirs=Raises(TypeError, "'NoneType' object is not iterable", "__init__"))
def test_a_pipeline_without_pieces(library: Any) -> Any:
    return len(library.ConnectorPipelineV2())


IMAGE = gym.spaces.Box(0, 1, (4, 4, 1), np.float32)
SPACES = {"input_observation_space": BOX, "input_action_space": DISCRETE}


@probe("O7", ours=(4, 4, 3), theirs=Raises(AttributeError, "no attribute '_multi_agent'"))
def test_frame_stacking_takes_spaces_in_its_constructor(library: Any) -> Any:
    piece = library.module("connectors.env_to_module.frame_stacking").FrameStackingEnvToModule
    return piece(IMAGE, DISCRETE, num_frames=3).observation_space.shape


@probe("O7", ours=(2,), theirs=Raises(AttributeError, "no attribute 'clip_by_value'"))
def test_mean_std_filter_takes_spaces_in_its_constructor(library: Any) -> Any:
    return library.env_to_module.MeanStdFilter(**SPACES).observation_space.shape


@probe("O7", ours="Dict", theirs=Raises(AttributeError, "no attribute '_multi_agent'"))
def test_previous_actions_take_spaces_in_their_constructor(library: Any) -> Any:
    return type(library.env_to_module.PrevActionsPrevRewards(**SPACES).observation_space).__name__


@probe("O8", ours=[5, 3, 4], theirs=[5, None, 8])
def test_the_arguments_of_subclasses_are_recorded(library: Any) -> Any:
    """Of a class, of a subclass as it is, and of one whose constructor hands the double to its parent's."""
    marker, _ = pieces_of(library)

    class Repeat(marker):
        def __init__(self, observations: Any = None, actions: Any = None, *, times: int = 2, **kwargs: Any) -> None:
            super().__init__(observations, actions, **kwargs)
            self.times = times

    class Same(Repeat):
        pass

    class Twice(Repeat):
        def __init__(self, observations: Any = None, actions: Any = None, *, times: int = 2, **kwargs: Any) -> None:
            super().__init__(observations, actions, times=2 * times, **kwargs)

    pieces = (Repeat(times=5), Same(times=3), Twice(times=4))
    return [piece.get_ctor_args_and_kwargs()[1].get("times") for piece in pieces]


@probe("O9", ours=[], theirs=["data"])
def test_pieces_are_passed_the_batch_once(library: Any) -> Any:
    batch = pipeline_of(library, pieces_of(library)[0])(rl_module=None, batch={}, episodes=[])
    return [name for name in batch["keywords"] if name not in ("explore", "shared_data", "metrics")]


@probe("O10", ours=Raises(ColumnError, "7"), theirs={"x": {("e",): [[0.0, 0.0, 0.0]]}})
def test_the_number_of_items_is_checked(library: Any) -> Any:
    batch: Any = {}
    episode = library.SingleAgentEpisode(id_="e")
    return tried(lambda: library.ConnectorV2.add_n_batch_items(batch, "x", np.zeros(3), 7, episode)) or plain(batch)


@probe(
    "O10",
    ours=Raises(BatchLayoutError, "all its items added with an episode"),
    theirs=Raises(TypeError, "list indices must be integers or slices, not tuple"),
)
def test_items_with_and_without_an_episode(library: Any) -> Any:
    batch: Any = {}
    library.ConnectorV2.add_batch_item(batch, "x", 1)
    library.ConnectorV2.add_batch_item(batch, "x", 1, library.SingleAgentEpisode(id_="e"))
    return plain(batch)
