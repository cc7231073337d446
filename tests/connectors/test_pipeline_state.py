"""States of pipelines, by the stable names of their pieces."""

from __future__ import annotations

import pytest

from epibatch.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.core.errors import (
    CheckpointError,
    UnknownNameError,
)
from fixture_pieces import Lab


class Marker(ConnectorV2):
    """Appends its name to `trace` in shared_data."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, name="", **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.name = name

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        shared_data.setdefault("trace", []).append(self.name or type(self).__name__)
        return batch


class Counter(ConnectorV2):
    """A stateful piece: its state is a sum, merged by adding."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, count=0, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.count = count
        self.frozen = False

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.count += 0 if self.frozen else len(episodes)
        return batch

    def freeze(self):
        self.frozen = True

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]

    def reset_state(self):
        self.count = 0

    def merge_states(self, states):
        return {"count": sum(state["count"] for state in states)}


class MeanStdFilter(Counter):
    """Another stateful class with several words in its name."""


def pipeline(*pieces, obs=None, act=None):
    return ConnectorPipelineV2(obs, act, connectors=list(pieces))


def trace(pipe):
    shared = {}
    pipe(rl_module=None, batch={}, episodes=[], shared_data=shared)
    return shared.get("trace", [])


def test_stable_names_number_the_pieces_of_one_class():
    pipe = pipeline(Marker(name="0"), MeanStdFilter(), Marker(name="1"), MeanStdFilter(), Marker(name="2"))
    assert pipe["marker"].name == "0"
    assert pipe["marker_2"].name == "2"
    pipe.remove("marker_1")
    assert trace(pipe) == ["0", "2"]
    assert pipe["mean_std_filter_1"] is pipe[2]


def test_states_are_kept_by_stable_name():
    pipe = pipeline(Marker(), Counter(count=1), MeanStdFilter(count=2), Counter(count=3))
    state = pipe.get_state()
    assert state == {"counter": {"count": 1}, "mean_std_filter": {"count": 2}, "counter_1": {"count": 3}}
    other = pipeline(Marker(), Counter(), MeanStdFilter(), Counter())
    other.set_state(state)
    assert [piece.count for piece in other[Counter]] == [1, 2, 3]
    other.reset_state()
    assert [piece.count for piece in other[Counter]] == [0, 0, 0]


def test_states_are_merged_by_name_even_behind_stateless_pieces():
    pipe = pipeline(Marker(), Counter(), MeanStdFilter(), Counter())
    states = [
        {"counter": {"count": i}, "mean_std_filter": {"count": 10 * i}, "counter_1": {"count": 100 * i}}
        for i in (1, 2, 3)
    ]
    assert pipe.merge_states(states) == {
        "counter": {"count": 6},
        "mean_std_filter": {"count": 60},
        "counter_1": {"count": 600},
    }


def test_freezing_reaches_every_piece_and_those_of_nested_pipelines():
    inner, outer, free = Counter(), Counter(count=5), Counter()
    pipe = pipeline(Marker(), pipeline(Marker(), pipeline(inner)), outer)
    pipe.freeze()
    for pieces in (pipe, pipeline(free)):
        pieces(rl_module=None, batch={}, episodes=[Lab.episode("a", 1), Lab.episode("b", 1)])
    assert (inner.count, outer.count, free.count) == (0, 5, 2)
    pipe.set_state({"counter": {"count": 7}})
    pipe(rl_module=None, batch={}, episodes=[Lab.episode("a", 1)])
    assert outer.count == 7


def test_a_state_of_a_piece_that_is_not_there_is_an_error():
    with pytest.raises(UnknownNameError, match="mean_std_filter") as raised:
        pipeline(Counter()).set_state({"mean_std_filter": {"count": 1}})
    assert "counter" in str(raised.value)


def test_states_of_which_one_does_not_fit_change_no_piece():
    pipe = pipeline(Counter(count=1), Counter(count=2))
    with pytest.raises(CheckpointError, match=r"'counter_1'[\s\S]*KeyError: 'count'"):
        pipe.set_state({"counter": {"count": 7}, "counter_1": {"cuont": 8}})
    assert pipe.get_state() == {"counter": {"count": 1}, "counter_1": {"count": 2}}


def test_components_select_states():
    pipe = pipeline(Counter(count=1), MeanStdFilter(count=2))
    assert set(pipe.get_state(components="counter")) == {"counter"}
    assert set(pipe.get_state(not_components=["counter"])) == {"mean_std_filter"}
