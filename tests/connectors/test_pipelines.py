"""Editing, looking up and calling pipelines, and what is no argument of theirs."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    FrameStacking,
)
from epibatch.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    PieceError,
    PipelineError,
    SpaceError,
    UnknownNameError,
)
from epibatch.core.metrics import MetricsLogger
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import Lab, played


class Marker(ConnectorV2):
    """Appends its name to `trace` in shared_data."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, name="", **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.name = name

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        shared_data.setdefault("trace", []).append(self.name or type(self).__name__)
        return batch


class Other(Marker):
    pass


class Child(Other):
    pass


class Widen(ConnectorV2):
    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-1, 1, (input_observation_space.shape[0] + 1,))

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


def pipeline(*pieces, obs=None, act=None):
    return ConnectorPipelineV2(obs, act, connectors=list(pieces))


def trace(pipe):
    shared = {}
    pipe(rl_module=None, batch={}, episodes=[], shared_data=shared)
    return shared.get("trace", [])


def test_editing():
    pipe = pipeline(Marker(name="m"))
    pipe.prepend(Other(name="first"))
    pipe.append(Child(name="last"))
    pipe.insert_before("Marker", Other(name="before"))
    pipe.insert_after(Marker, Other(name="after"))
    assert trace(pipe) == ["first", "before", "m", "after", "last"]
    pipe.remove("Marker")
    pipe.remove(Other)
    assert trace(pipe) == ["before", "after", "last"]
    assert len(pipe) == 3
    assert [piece.name for piece in pipe] == ["before", "after", "last"]


@pytest.mark.parametrize("name", ["child", "Child", Child])
def test_pieces_are_named_by_class_or_stable_name(name):
    pipe = pipeline(Marker(name="m"), Child(name="c"))
    pipe.insert_after(name, Marker(name="behind"))
    assert trace(pipe) == ["m", "c", "behind"]
    pipe.remove(name)
    assert trace(pipe) == ["m", "behind"]


def test_looking_up():
    first, other, child = Marker(), Other(), Child()
    pipe = pipeline(first, other, child)
    assert pipe[0] is first
    assert pipe[-1] is child
    assert pipe["Marker"] is first
    assert pipe["other"] is other
    assert pipe[Other] == [other, child]
    assert pipe[Child] == [child]
    assert pipe[Marker] == [first, other, child]
    assert pipe[Widen] == []


@pytest.mark.parametrize(
    "act",
    [
        lambda pipe: pipe.insert_before("Markr", Marker()),
        lambda pipe: pipe.insert_after("Markr", Marker()),
        lambda pipe: pipe.remove("Markr"),
        lambda pipe: pipe["Markr"],
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_one(act):
    pipe = pipeline(Marker(name="m"), Other(name="o"))
    with pytest.raises(UnknownNameError, match=r"did you mean '[Mm]arker'") as raised:
        act(pipe)
    assert "Markr" in str(raised.value)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, KeyError)
    assert trace(pipe) == ["m", "o"]


@pytest.mark.parametrize("edit", ["insert_before", "insert_after"])
def test_an_unknown_class_is_an_error(edit):
    pipe = pipeline(Marker())
    with pytest.raises(UnknownNameError, match="Widen"):
        getattr(pipe, edit)(Widen, Marker())
    assert len(pipe) == 1


@pytest.mark.parametrize("item", [None, 3, "not a registered piece", lambda batch: batch, Marker, object()])
def test_only_connectors_are_pieces(item):
    with pytest.raises((PieceError, UnknownNameError)) as raised:
        pipeline(Marker(), item)
    assert "1" in str(raised.value) or isinstance(raised.value, UnknownNameError)
    pipe = pipeline(Marker())
    for edit in (pipe.append, pipe.prepend, lambda piece: pipe.insert_after("Marker", piece)):
        with pytest.raises((PieceError, UnknownNameError)):
            edit(item)
    assert len(pipe) == 1


def test_a_piece_can_be_class_and_arguments():
    pipe = pipeline((Marker, (), {"name": "built"}))
    assert trace(pipe) == ["built"]


def test_spaces_flow_through_the_pieces():
    box, discrete = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    pipe = pipeline(Widen(), Marker(), Widen(), obs=box, act=discrete)
    assert pipe.observation_space.shape == (5,)
    assert pipe.action_space == discrete
    assert pipe[2].input_observation_space.shape == (4,)
    pipe.prepend(Widen())
    assert pipe.observation_space.shape == (6,)
    pipe.remove(Widen)
    pipe.remove(Widen)
    assert pipe.observation_space.shape == (4,)


@pytest.mark.parametrize("connectors", [None, []])
def test_an_empty_pipeline_hands_its_spaces_through(connectors):
    box, discrete = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    pipe = ConnectorPipelineV2(box, discrete, connectors=connectors)
    assert (pipe.observation_space, pipe.action_space) == (box, discrete)


def test_a_pipeline_is_a_piece():
    inner = pipeline(Marker(name="in1"), Marker(name="in2"))
    assert trace(pipeline(Marker(name="a"), inner, Marker(name="b"))) == ["a", "in1", "in2", "b"]


def timed_call(logger):
    pieces = [Marker(), Marker(), AddObservationsFromEpisodesToBatch()]
    pipe = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=pieces)
    pipe(episodes=[Lab.episode("a", 0, numpy=False)], metrics=logger, metrics_prefix_key=("p",))


def test_metrics_time_the_pipeline_and_each_piece():
    logger = MetricsLogger()
    timed_call(logger)
    results = logger.reduce()["p"]
    pieces = results["timers"]["connectors"]
    assert list(pieces) == ["marker", "marker_1", "add_observations_from_episodes_to_batch"]
    assert all(seconds > 0.0 for seconds in pieces.values())
    assert results["connector_pipeline_timer"] == pytest.approx(sum(pieces.values()))


def test_a_logger_may_be_for_the_pieces_alone():
    logger = MetricsLogger(times_pieces=False)
    timed_call(logger)
    assert logger.reduce() == {}


def test_a_piece_that_skips_the_base_constructor_works():
    class Forgetful(ConnectorV2):
        def __init__(self):
            self.calls = 0

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            self.calls += 1
            return batch

    pipe = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=[Forgetful()])
    pipe(rl_module=None, batch={}, episodes=[Lab.episode("a", 0)])
    assert pipe[0].calls == 1 and pipe.observation_space == Lab.obs_space


def test_an_edit_that_is_refused_changes_nothing():
    pipe = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=[Marker()])
    with pytest.raises(SpaceError, match="FrameStacking"):
        pipe.prepend(FrameStacking(num_frames=4))
    assert len(pipe) == 1 and pipe.observation_space == Lab.obs_space


def test_an_edit_that_the_outer_pipeline_cannot_work_with_is_refused():
    class Declared(Marker):
        reads = ()

    class Reads(Marker):
        reads = ("obs",)

    inner = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch(), Declared()])
    middle = EnvToModulePipeline(connectors=[inner])
    outer = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=[middle, Reads()])
    edits = [pipe.num_edits for pipe in (inner, middle, outer)]
    with pytest.raises(PipelineError, match="'obs'"):
        inner.remove(AddObservationsFromEpisodesToBatch)
    assert len(inner) == 2 and [pipe.num_edits for pipe in (inner, middle, outer)] == edits
    assert outer.observation_space == Lab.obs_space
    assert "obs" in outer(episodes=[Lab.episode("a", 0)], shared_data={})
    inner.remove(Declared)
    assert len(outer.plan().connectors) == 2


class Noted(ConnectorV2):
    number = 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return {**batch, "number": [self.number]}


def test_a_copy_runs_the_piece_that_was_put_into_it():
    pipeline = ConnectorPipelineV2(connectors=[Noted().share()])
    twin = copy.deepcopy(pipeline)
    twin.connectors[0] = pipeline.connectors[0]
    twin.connectors[0].number = 7
    assert twin(episodes=[Lab.episode("a", 1)])["number"] == [7]


def episode():
    return played([np.zeros(2)] * 3)


def batching():
    pieces = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), BatchIndividualItems()]
    return LearnerConnectorPipeline(connectors=pieces)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: LearnerConnectorPipeline(3), SpaceError, ["input_observation_space", "int 3"]),
        (
            lambda: LearnerConnectorPipeline(None, gym.spaces.Box),
            SpaceError,
            ["input_action_space", "env.action_space"],
        ),
        (lambda: LearnerConnectorPipeline([FrameStacking()]), PieceError, ["as `connectors=`", "a list"]),
        (
            lambda: LearnerConnectorPipeline(connectors=FrameStacking()),
            PieceError,
            ["a list of pieces", "FrameStacking"],
        ),
        (lambda: LearnerConnectorPipeline(connectors="frame_stacking"), PieceError, ["a list of pieces", "str"]),
        (lambda: LearnerConnectorPipeline(connectors={"piece": "frame_stacking"}), PieceError, ["a list of pieces"]),
        (lambda: LearnerConnectorPipeline(connectrs=[]), PieceError, ["connectrs", "did you mean 'connectors'"]),
    ],
)
def test_constructor_arguments(make, error, words):
    with pytest.raises(error) as caught:
        make()
    message = str(caught.value)
    assert message.startswith("LearnerConnectorPipeline")
    assert [word for word in words if word not in message] == [], message


def test_a_subclass_of_somebody_elses_may_pass_keywords_on():
    class Own(ConnectorPipelineV2):
        pass

    assert len(Own(connectors=[], anything=1)) == 0


@pytest.mark.parametrize(
    ("episodes", "found"),
    [
        (None, "a NoneType"),
        (3, "a int"),
        ("ab", "a str of str at position 0"),
        ([3], "a list of int at position 0"),
        ([episode(), None], "a list of NoneType at position 1"),
        ([[episode()]], "a list of list at position 0"),
        (episode(), "a SingleAgentEpisode"),
    ],
)
def test_what_is_no_list_of_episodes(episodes, found):
    with pytest.raises(
        PipelineError, match=f"expected: a list of SingleAgentEpisode, or of MultiAgentEpisode\n  found:    {found}\n"
    ):
        batching()(episodes=episodes)


@pytest.mark.parametrize("batch", [3, [], "x"])
def test_what_is_no_batch(batch):
    with pytest.raises(
        BatchLayoutError, match=r"LearnerConnectorPipeline\(batch=\.\.\.\)\n  expected: a dict of columns"
    ):
        batching()(batch=batch, episodes=[episode()])


@pytest.mark.parametrize("state", [3, None, [], {"batch_individual_items": 3}])
def test_what_is_no_state(state):
    with pytest.raises(CheckpointError, match=r"LearnerConnectorPipeline\.set_state"):
        batching().set_state(state)


def test_episodes_of_several_agents_are_episodes_too():
    several = MultiAgentEpisode(id_="e")
    several.add_env_reset(observations={"a": np.zeros(2), "b": np.ones(2)})
    several.add_env_step({"a": np.zeros(2), "b": np.ones(2)}, {"a": 0, "b": 1}, {"a": 0.0, "b": 1.0})
    with pytest.raises(PipelineError, match="found:    a MultiAgentEpisode"):
        batching()(rl_module=None, batch={}, episodes=several)
    with pytest.raises(PipelineError, match="AgentToModuleMapping"):
        batching()(rl_module=None, batch={}, episodes=[several])
    batch = batching()(rl_module=None, batch={}, episodes=[segment.episode for segment in several.segments])
    assert batch["obs"].tolist() == [[0, 0], [1, 1]]
