"""Clones, pieces in two pipelines, and states of pipelines by the stable names of their pieces."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors import ConnectorPipelineV2
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import CheckpointError, PieceError, UnknownNameError
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import Lab

BOX = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)


def show(piece, *values):
    for value in values:
        piece(rl_module=None, batch={}, episodes=[SingleAgentEpisode(observations=[np.array([value])])])


def mean_of(piece):
    state = piece.get_state()
    parts = [state["synchronised"], state["since"]]
    count = sum(part["count"] for part in parts)
    return sum(part["count"] * part["mean"][0] for part in parts) / count, count


def test_a_clone_goes_on_from_a_copy_of_the_state():
    piece = MeanStdFilter(BOX, clip_by_value=3.0)
    show(piece, 1.0, 3.0)
    clone = piece.clone()
    assert type(clone) is MeanStdFilter and clone.clip_by_value == 3.0
    assert clone.input_observation_space is BOX
    show(clone, 8.0)
    assert mean_of(clone) == (4.0, 3)
    assert mean_of(piece) == (2.0, 2)


def test_a_clone_of_a_frozen_piece_is_frozen():
    pipeline = EnvToModulePipeline(BOX, connectors=[MeanStdFilter()])
    show(pipeline[0], 1.0, 3.0)
    pipeline.freeze()
    for clone in (pipeline.clone()[0], pipeline[0].clone()):
        show(clone, 8.0)
        assert mean_of(clone) == (2.0, 2)


@pytest.mark.parametrize("seen_before", [(), (1.0, 3.0)])
def test_a_clone_that_shares_its_state_learns_for_both(seen_before):
    piece = MeanStdFilter(BOX)
    show(piece, *seen_before)
    twin = piece.clone(share_state=True)
    show(twin, 8.0)
    show(piece, 2.0)
    expected = np.mean([*seen_before, 8.0, 2.0]), len(seen_before) + 2
    assert mean_of(piece) == mean_of(twin) == expected


def test_agents_of_a_shared_piece_keep_their_statistics():
    spaces = gym.spaces.Dict(a=BOX, b=BOX)
    piece = MeanStdFilter(spaces, multi_agent=True)
    twin = piece.clone(share_state=True)
    for each, value in ((piece, 1.0), (twin, 3.0), (piece, 5.0)):
        episode = MultiAgentEpisode(observation_space=spaces)
        episode.add_env_reset(observations={"a": np.array([value]), "b": np.array([-value])})
        each(rl_module=None, batch={}, episodes=[episode])
    agents = piece.get_state()["agents"]
    assert {agent: own["since"]["mean"][0] for agent, own in agents.items()} == {"a": 3.0, "b": -3.0}
    assert {own["since"]["count"] for own in agents.values()} == {3}


def test_a_pipeline_clones_its_pieces():
    pipeline = EnvToModulePipeline(BOX, gym.spaces.Discrete(2), connectors=[MeanStdFilter()])
    show(pipeline, 1.0, 3.0)
    clone = pipeline.clone()
    assert type(clone) is EnvToModulePipeline
    assert clone[0] is not pipeline[0]
    show(clone, 8.0)
    assert (mean_of(clone[0]), mean_of(pipeline[0])) == ((4.0, 3), (2.0, 2))


def test_a_piece_in_two_pipelines_is_refused():
    piece = FrameStacking(num_frames=2)
    first = EnvToModulePipeline(connectors=[piece])
    with pytest.raises(PieceError, match=r"\(FrameStacking\)[\s\S]*EnvToModulePipeline already[\s\S]*share\(\)"):
        LearnerConnectorPipeline(connectors=[piece])
    assert first[0] is piece


def test_so_is_one_that_stands_twice_in_one():
    piece = MeanStdFilter()
    with pytest.raises(PieceError, match="twice"):
        EnvToModulePipeline(connectors=[piece, piece])


def test_a_refused_piece_leaves_the_pipeline_as_it_was():
    piece = FrameStacking(num_frames=2)
    first = EnvToModulePipeline(connectors=[piece])
    second = EnvToModulePipeline(connectors=[])
    with pytest.raises(PieceError, match="already"):
        second.append(piece)
    assert len(second) == 0
    first.remove("frame_stacking")
    second.append(piece)
    assert second[0] is piece


def test_on_purpose_it_is_fine():
    piece = MeanStdFilter().share()
    pipelines = [EnvToModulePipeline(BOX, gym.spaces.Discrete(2), connectors=[piece]) for _ in range(2)]
    show(pipelines[0], 1.0)
    show(pipelines[1], 3.0)
    assert mean_of(piece) == (2.0, 2)


def test_a_pipeline_that_is_gone_keeps_nothing():
    piece = FrameStacking(num_frames=2)
    first = EnvToModulePipeline(connectors=[piece])
    del first
    assert EnvToModulePipeline(connectors=[piece])[0] is piece


def test_a_refused_pipeline_takes_no_piece():
    piece, other = FrameStacking(num_frames=2), MeanStdFilter()
    first = EnvToModulePipeline(connectors=[piece])
    with pytest.raises(PieceError, match="already") as refused:
        EnvToModulePipeline(connectors=[other, piece])
    assert EnvToModulePipeline(connectors=[other])[0] is other
    assert first[0] is piece and refused.value.__traceback__ is not None  # which holds the refused pipeline


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda piece: pickle.loads(pickle.dumps(piece))])
def test_a_copy_is_in_no_pipeline_yet(copied):
    first = EnvToModulePipeline(BOX, connectors=[MeanStdFilter()])
    show(first, 1.0, 3.0)
    second = EnvToModulePipeline(BOX, connectors=[copied(first[0])])
    show(second, 8.0)
    assert (mean_of(second[0]), mean_of(first[0])) == ((4.0, 3), (2.0, 2))


def test_nested_pipelines_keep_their_pieces():
    inner = ConnectorPipelineV2(connectors=[FrameStacking(num_frames=2)])
    outer = EnvToModulePipeline(connectors=[inner])
    assert outer.pieces() == (inner[0],)


def test_a_hook_that_gives_one_piece_to_every_pipeline_is_told():
    piece = MeanStdFilter()
    config = (
        PPOConfig().environment("CartPole-v1").env_runners(env_to_module_connector=lambda env, spaces, device: piece)
    )
    runner = SingleAgentEnvRunner(config=config)
    with pytest.raises(PieceError, match="make a new MeanStdFilter for each place"):
        SingleAgentEnvRunner(config=config)
    runner.stop()


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


class SecondCounter(Counter):
    """Another stateful class with several words in its name."""


def pipeline(*pieces, obs=None, act=None):
    return ConnectorPipelineV2(obs, act, connectors=list(pieces))


def trace(pipe):
    shared = {}
    pipe(rl_module=None, batch={}, episodes=[], shared_data=shared)
    return shared.get("trace", [])


def test_stable_names_number_the_pieces_of_one_class():
    pipe = pipeline(Marker(name="0"), SecondCounter(), Marker(name="1"), SecondCounter(), Marker(name="2"))
    assert pipe["marker"].name == "0"
    assert pipe["marker_2"].name == "2"
    pipe.remove("marker_1")
    assert trace(pipe) == ["0", "2"]
    assert pipe["second_counter_1"] is pipe[2]


def test_states_are_kept_by_stable_name():
    pipe = pipeline(Marker(), Counter(count=1), SecondCounter(count=2), Counter(count=3))
    state = pipe.get_state()
    assert state == {"counter": {"count": 1}, "second_counter": {"count": 2}, "counter_1": {"count": 3}}
    other = pipeline(Marker(), Counter(), SecondCounter(), Counter())
    other.set_state(state)
    assert [piece.count for piece in other[Counter]] == [1, 2, 3]
    other.reset_state()
    assert [piece.count for piece in other[Counter]] == [0, 0, 0]


def test_states_are_merged_by_name_even_behind_stateless_pieces():
    pipe = pipeline(Marker(), Counter(), SecondCounter(), Counter())
    states = [
        {"counter": {"count": i}, "second_counter": {"count": 10 * i}, "counter_1": {"count": 100 * i}}
        for i in (1, 2, 3)
    ]
    assert pipe.merge_states(states) == {
        "counter": {"count": 6},
        "second_counter": {"count": 60},
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
    with pytest.raises(UnknownNameError, match="second_counter") as raised:
        pipeline(Counter()).set_state({"second_counter": {"count": 1}})
    assert "counter" in str(raised.value)


def test_states_of_which_one_does_not_fit_change_no_piece():
    pipe = pipeline(Counter(count=1), Counter(count=2))
    with pytest.raises(CheckpointError, match=r"'counter_1'[\s\S]*KeyError: 'count'"):
        pipe.set_state({"counter": {"count": 7}, "counter_1": {"cuont": 8}})
    assert pipe.get_state() == {"counter": {"count": 1}, "counter_1": {"count": 2}}


def test_components_select_states():
    pipe = pipeline(Counter(count=1), SecondCounter(count=2))
    assert set(pipe.get_state(components="counter")) == {"counter"}
    assert set(pipe.get_state(not_components=["counter"])) == {"second_counter"}
