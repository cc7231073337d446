"""Editing, looking up and calling pipelines, and what is no argument of theirs."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import env_to_module, learner, module_to_env
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, BatchIndividualItems, FrameStacking
from epibatch.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline, FlattenObservations, MeanStdFilter
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.observations import Affine, FrozenModule
from epibatch.core.errors import BatchLayoutError, ConfigError, PieceError, PipelineError, SpaceError, UnknownNameError
from epibatch.core.metrics import MetricsLogger
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_episodes import assert_same
from fixture_pieces import Lab, played

BOX_OF_LAB = Lab.obs_space
BOX, TWO = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)


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


class Widen(Marker):
    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-1, 1, (input_observation_space.shape[0] + 1,))


def pipeline(*pieces, obs=None, act=None):
    return ConnectorPipelineV2(obs, act, connectors=list(pieces))


def trace(pipe):
    shared = {}
    pipe(rl_module=None, batch={}, episodes=[], shared_data=shared)
    return shared.get("trace", [])


def test_editing():
    pipe = pipeline((Marker, (), {"name": "m"}))
    pipe.prepend(Other(name="first"))
    pipe.append(Child(name="last"))
    pipe.insert_before("Marker", Other(name="before"))
    pipe.insert_after(Marker, Other(name="after"))
    assert trace(pipe) == ["first", "before", "m", "after", "last"]
    pipe.remove("Marker")
    pipe.remove(Other)
    assert trace(pipe) == [piece.name for piece in pipe] == ["before", "after", "last"]
    assert len(pipe) == 3


@pytest.mark.parametrize("name", ["child", "Child", Child])
def test_pieces_are_named_by_class_or_stable_name(name):
    pipe = pipeline(Marker(name="m"), Child(name="c"))
    pipe.insert_after(name, Marker(name="after"))
    assert trace(pipe) == ["m", "c", "after"]
    pipe.remove(name)
    assert trace(pipe) == ["m", "after"]


def test_looking_up():
    first, other, child = Marker(), Other(), Child()
    pipe = pipeline(first, other, child)
    assert (pipe[0], pipe[-1], pipe["Marker"], pipe["other"]) == (first, child, first, other)
    assert pipe[Other] == [other, child]
    assert pipe[Child] == [child]
    assert pipe[Marker] == [first, other, child]
    assert pipe[Widen] == []


@pytest.mark.parametrize(
    "act",
    [
        lambda pipe, name: pipe.insert_before(name, Marker()),
        lambda pipe, name: pipe.insert_after(name, Marker()),
        lambda pipe, name: pipe.remove(name),
        lambda pipe, name: pipe[name],
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_one(act):
    pipe = pipeline(Marker(name="m"), Other(name="o"))
    with pytest.raises(UnknownNameError, match=r"Markr[\s\S]*did you mean '[Mm]arker'") as raised:
        act(pipe, "Markr")
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, KeyError)
    assert trace(pipe) == ["m", "o"]


@pytest.mark.parametrize("edit", ["insert_before", "insert_after"])
def test_an_unknown_class_is_an_error(edit):
    pipe = pipeline(Marker(name="m"))
    with pytest.raises(UnknownNameError, match="Widen"):
        getattr(pipe, edit)(Widen, Marker())
    assert trace(pipe) == ["m"]


@pytest.mark.parametrize("item", [None, 3, "not a registered piece", lambda x: x, Marker, object()])
def test_only_connectors_are_pieces(item):
    with pytest.raises((PieceError, UnknownNameError)) as raised:
        pipeline(Marker(), item)
    assert "1" in str(raised.value) or isinstance(raised.value, UnknownNameError)
    pipe = pipeline(Marker())
    for edit in (pipe.append, pipe.prepend, lambda piece: pipe.insert_after("Marker", piece)):
        with pytest.raises((PieceError, UnknownNameError)):
            edit(item)
    assert len(pipe) == 1


def test_spaces_flow_through_the_pieces():
    pipe = pipeline(Widen(), Marker(), Widen(), obs=BOX, act=TWO)
    assert pipe.observation_space.shape == (5,) and pipe.action_space == TWO
    assert pipe[2].input_observation_space.shape == (4,)
    pipe.prepend(Widen())
    assert pipe.observation_space.shape == (6,)
    pipe.remove(Widen)
    pipe.remove(Widen)
    assert pipe.observation_space.shape == (4,)
    for connectors in (None, []):
        empty = ConnectorPipelineV2(BOX, TWO, connectors=connectors)
        assert (empty.observation_space, empty.action_space) == (BOX, TWO)


def test_a_pipeline_is_a_piece(lab):
    inner = pipeline(Marker(name="in1"), Marker(name="in2"))
    assert trace(pipeline(Marker(name="a"), inner, Marker(name="b"))) == ["a", "in1", "in2", "b"]
    episodes, module = [lab.episode("a", 2), lab.episode("b", 3)], lab.module()
    flat = lab.run("learner", lab.defaults("learner"), episodes, rl_module=module)
    front, back = lab.defaults("learner")[:2], lab.defaults("learner")[2:]
    nested = lab.run("learner", [pipeline(*front), *back], episodes, rl_module=module)
    assert {name: own.tolist() for name, own in flat.items()} == {name: own.tolist() for name, own in nested.items()}


class Fails(ConnectorV2):
    """Raises as often as it is told to."""

    def __call__(self, *, batch, fails=False, **kwargs):
        if fails:
            raise ValueError("once")
        return batch


def learned():
    episodes = [Lab.episode("a", 3, state=2, end="terminated"), Lab.episode("b", 5, state=2)]
    return learner.default_pipeline(BOX_OF_LAB, TWO), {"episodes": episodes}


def acted():
    running = [Lab.episode("a", 3, state=2), Lab.episode("b", 0, state=2)]
    return env_to_module.default_pipeline(BOX_OF_LAB, TWO), {"episodes": running}


def sent_to_env(normalize):
    actions = {"actions": torch.tensor([[0.5], [0.25]]), "state_out": {"h": torch.zeros(2, 2)}}
    space = gym.spaces.Box(-2, 2, (1,), np.float32)
    pipe = module_to_env.default_pipeline(BOX_OF_LAB, space, normalize_actions=normalize)
    return pipe, {**acted()[1], "batch": actions}


@pytest.mark.parametrize("make", [learned, acted, lambda: sent_to_env(False), lambda: sent_to_env(True)])
@pytest.mark.parametrize("state", [0, 2])
def test_after_a_call_that_raises_all_pieces_are_as_before(make, state):
    """Whatever piece raises: the next call gives what a pipeline gives that never failed."""
    module = Lab.module(state)
    for position in range(len(make()[0]) + 1):
        (pipe, call), (expected, _) = make(), make()
        for one in (pipe, expected):
            one.replace_pieces([*one.connectors[:position], Fails(), *one.connectors[position:]])
        with pytest.raises(ValueError, match="once"):
            pipe(rl_module=module, fails=True, **call)
        assert [declared(piece) for piece in pipe] == [declared(piece) for piece in expected]
        found = pipe(rl_module=module, **make()[1])
        assert_same(found, expected(rl_module=module, **make()[1]))


def declared(piece):
    """Return what a piece declares, its arguments and its state."""
    names = ("reads", "writes", "removes", "lookback", "trains", "frozen", "shared", "rewrites_observations")
    return {name: getattr(piece, name) for name in names}, piece.get_ctor_args_and_kwargs(), piece.get_state()


def test_metrics_time_the_pipeline_and_each_piece():
    def timed_call(logger):
        pieces = [Marker(), Marker(), AddObservationsFromEpisodesToBatch()]
        pipe = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=pieces)
        pipe(episodes=[Lab.episode("a", 0, numpy=False)], metrics=logger, metrics_prefix_key=("p",))
        return logger.reduce()

    results = timed_call(MetricsLogger())["p"]
    pieces = results["timers"]["connectors"]
    assert list(pieces) == ["marker", "marker_1", "add_observations_from_episodes_to_batch"]
    assert all(seconds > 0.0 for seconds in pieces.values())
    assert results["connector_pipeline_timer"] == pytest.approx(sum(pieces.values()))
    assert timed_call(MetricsLogger(times_pieces=False)) == {}


def test_a_piece_that_skips_the_base_constructor_works():
    class Forgetful(ConnectorV2):
        def __init__(self):
            self.calls = 0

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            self.calls += 1
            return batch

    pipe = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=[Forgetful()])
    pipe(episodes=[Lab.episode("a", 0)])
    assert pipe[0].calls == 1 and pipe.observation_space == Lab.obs_space


def test_an_edit_that_the_pipeline_or_the_outer_one_cannot_work_with_is_refused():
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
    with pytest.raises(SpaceError, match="FrameStacking"):
        outer.prepend(FrameStacking(num_frames=4))
    assert len(inner) == len(outer) == 2 and [pipe.num_edits for pipe in (inner, middle, outer)] == edits
    assert outer.observation_space == Lab.obs_space
    assert "obs" in outer(episodes=[Lab.episode("a", 0)], shared_data={})
    inner.remove(Declared)
    assert len(outer.plan().connectors) == 2


def test_a_refused_edit_leaves_the_spaces_of_later_pieces_as_they_were():
    frames = gym.spaces.Box(0, 1, (2, 2, 1), np.float32)
    inner = pipeline(Marker())
    outer = EnvToModulePipeline(frames, TWO, connectors=[inner, FrameStacking(num_frames=2)])
    with pytest.raises(SpaceError, match="FrameStacking"):
        inner.append(Widen())
    assert outer[1].input_observation_space == frames and outer.observation_space.shape == (2, 2, 2)


# -- arguments -------------------------------------------------------------------------------------------


def episode():
    return played([np.zeros(2)] * 3)


def batching():
    pieces = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), BatchIndividualItems()]
    return LearnerConnectorPipeline(connectors=pieces)


def several():
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": np.zeros(2), "b": np.ones(2)})
    episode.add_env_step({"a": np.zeros(2), "b": np.ones(2)}, {"a": 0, "b": 1}, {"a": 0.0, "b": 1.0})
    return episode


EPISODES = "expected: a list of SingleAgentEpisode, or of MultiAgentEpisode\n  found:    {}\n"
BATCH = "LearnerConnectorPipeline(batch=...)\n  expected: a dict of columns"
MISTAKES = [
    (lambda: LearnerConnectorPipeline(3), SpaceError, ["input_observation_space", "int 3"]),
    (lambda: LearnerConnectorPipeline(None, gym.spaces.Box), SpaceError, ["input_action_space", "env.action_space"]),
    (lambda: LearnerConnectorPipeline([FrameStacking()]), PieceError, ["as `connectors=`", "a list"]),
    (lambda: LearnerConnectorPipeline(connectors=FrameStacking()), PieceError, ["a list of pieces", "FrameStacking"]),
    (lambda: LearnerConnectorPipeline(connectors="frame_stacking"), PieceError, ["a list of pieces", "str"]),
    (lambda: LearnerConnectorPipeline(connectors={"piece": "clip"}), PieceError, ["a list of pieces"]),
    (lambda: LearnerConnectorPipeline(connectrs=[]), PieceError, ["connectrs", "did you mean 'connectors'"]),
    (lambda: batching()(episodes=None), PipelineError, [EPISODES.format("a NoneType")]),
    (lambda: batching()(episodes=3), PipelineError, [EPISODES.format("a int")]),
    (lambda: batching()(episodes="ab"), PipelineError, [EPISODES.format("a str of str at position 0")]),
    (lambda: batching()(episodes=[3]), PipelineError, [EPISODES.format("a list of int at position 0")]),
    (lambda: batching()(episodes=[episode(), None]), PipelineError, ["a list of NoneType at position 1"]),
    (lambda: batching()(episodes=[[episode()]]), PipelineError, ["a list of list at position 0"]),
    (lambda: batching()(episodes=episode()), PipelineError, [EPISODES.format("a SingleAgentEpisode")]),
    (lambda: batching()(episodes=several()), PipelineError, ["found:    a MultiAgentEpisode"]),
    (lambda: batching()(batch=3, episodes=[episode()]), BatchLayoutError, [BATCH]),
    (lambda: batching()(batch=[], episodes=[episode()]), BatchLayoutError, [BATCH]),
]


@pytest.mark.parametrize(("call", "error", "fragments"), MISTAKES)
def test_what_is_no_argument(call, error, fragments):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message.startswith("LearnerConnectorPipeline")
    assert [text for text in fragments if text not in message] == [], message


def test_parts_of_episodes_and_keywords_of_other_classes_are_arguments():
    class Own(ConnectorPipelineV2):
        pass

    assert len(Own(connectors=[], anything=1)) == 0
    batch = batching()(episodes=[segment.episode for segment in several().segments])
    assert batch["obs"].tolist() == [[0, 0], [1, 1]]


def test_a_parameter_that_changes_in_a_pipeline_takes_effect_with_the_state_kept():
    frame = gym.spaces.Box(-9.0, 9.0, (2, 1), np.float32)
    pieces = [MeanStdFilter(), FrameStacking(num_frames=2), BatchIndividualItems()]
    pipe = EnvToModulePipeline(frame, gym.spaces.Discrete(2), connectors=pieces)
    assert pipe.input_spec == gym.spaces.Dict(obs=frame, actions=gym.spaces.Discrete(2))
    episode = SingleAgentEpisode(observations=[np.ones((2, 1), np.float32)])
    assert pipe(episodes=[episode])["obs"].shape == (1, 2, 2)
    pieces[1].num_frames = 4
    pieces[0].clip_by_value = 2.0
    assert pipe.lookback_needed == 3 and pipe.num_edits == 2
    assert pipe.observation_space == gym.spaces.Box(-2.0, 2.0, (2, 4), np.float32)
    assert pipe(episodes=[episode])["obs"].shape == (1, 2, 4)
    assert pieces[0].get_state()["since"]["count"] == 2  # both calls counted
    for name, value, error, words in (
        ("num_frame", 3, PieceError, "write num_frames"),
        ("num_frames", "4", ConfigError, "a valid integer"),
        ("axis", 7, SpaceError, "room for axis=7"),
    ):
        with pytest.raises(error, match=words):
            setattr(pieces[1], name, value)
        assert pieces[1].num_frames == 4 and pieces[1].axis is None
        assert pipe(episodes=[episode])["obs"].shape == (1, 2, 4)
    pieces[1].notes = "of mine"  # no parameter's name
    again = copy.deepcopy(pipe)
    again[1].num_frames = 3
    assert again.observation_space.shape == (2, 3) and pipe.observation_space.shape == (2, 4)
    pipe.remove(FrameStacking)
    pieces[1].num_frames = 2  # in no pipeline any more
    assert pieces[1].lookback == 1

    affine = Affine(columns="rewards")
    train = LearnerConnectorPipeline(connectors=[affine])
    affine.loc = 1.0
    for loc in (2.0, 3.0):
        train.set_state({"affine": {"loc": np.float64(loc), "scale": np.float64(loc)}})
        assert (affine.loc, affine.scale) == (loc, loc)
    with pytest.raises(PieceError, match=r"Affine.loc[\s\S]*part of what the piece has learned"):
        affine.loc = 9.0
    assert affine.loc == 3.0

    networks = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
    frozen = FrozenModule(module=networks[0], columns="rewards")
    LearnerConnectorPipeline(connectors=[frozen])
    for name, value in ("module", networks[1]), ("batch_size", 3):
        setattr(frozen, name, value)
        assert frozen.transform(np.ones((1, 1), np.float32)) == networks[1](torch.ones(1, 1)).item()

    part = gym.spaces.Dict(x=gym.spaces.Box(-9, 9, (2,)), y=gym.spaces.Box(-9, 9, (1,)))
    flatten, spaces = FlattenObservations(multi_agent=True, agent_ids=["a"]), gym.spaces.Dict(a=part)
    agents = EnvToModulePipeline(spaces, gym.spaces.Dict(a=gym.spaces.Discrete(2)), connectors=[flatten])
    for keys, size in ([], 3), (["y"], 2):
        flatten.keys_to_remove = keys
        game = MultiAgentEpisode()
        game.add_env_reset(observations={"a": {"x": np.zeros(2, np.float32), "y": np.zeros(1, np.float32)}})
        agents(episodes=[game])
        assert game.get_observations(-1)["a"].shape == (size,)
