"""Editing, looking up, calling and checking pipelines, and their state."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    FrameStacking,
    NumpyToTensor,
    TensorToNumpy,
)
from epibatch.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.core.columns import Columns
from epibatch.core.errors import (
    ColumnError,
    EpisodeStateError,
    PieceError,
    PieceOutputError,
    PipelineError,
    SpaceError,
    UnknownNameError,
)
from epibatch.core.metrics import MetricsLogger


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


def test_pieces_run_in_order():
    assert trace(pipeline(Marker(name="1"), Marker(name="2"), Other())) == ["1", "2", "Other"]


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


def test_stable_names_number_the_pieces_of_one_class():
    pipe = pipeline(Marker(name="0"), MeanStdFilter(), Marker(name="1"), MeanStdFilter(), Marker(name="2"))
    assert pipe["marker"].name == "0"
    assert pipe["marker_2"].name == "2"
    pipe.remove("marker_1")
    assert trace(pipe) == ["0", "2"]
    assert pipe["mean_std_filter_1"] is pipe[2]


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


@pytest.mark.parametrize("wrong", [None, [], 3, "batch"])
def test_a_piece_must_return_the_batch(lab, wrong):
    class Broken(ConnectorV2):
        def __call__(self, **kwargs):
            return wrong

    pipe = LearnerConnectorPipeline(lab.obs_space, lab.act_space, connectors=[Marker(), Broken()])
    with pytest.raises(PieceOutputError) as raised:
        pipe(rl_module=None, batch={}, episodes=[lab.episode("a", 1)])
    message = str(raised.value)
    assert "LearnerConnectorPipeline" in message
    assert "piece 1 (Broken)" in message
    assert type(wrong).__name__ in message
    assert "return batch" in message


@pytest.mark.parametrize("error", [ValueError("own words"), KeyError("own words"), IndexError("own words")])
def test_an_error_in_a_piece_keeps_its_class_and_gains_the_place(lab, error):
    class Broken(ConnectorV2):
        def __call__(self, **kwargs):
            raise error

    pipe = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=[Marker(), Broken()])
    with pytest.raises(type(error), match="own words") as raised:
        pipe(rl_module=None, batch={}, episodes=[lab.episode("a", 0, numpy=False)])
    said = [str(raised.value), *getattr(raised.value, "__notes__", ())]
    assert any("EnvToModulePipeline, piece 1 (Broken)" in text for text in said)


def test_a_declared_plain_piece_is_checked_and_may_not_write_to_episodes_in_silence(lab):
    class Declared(ConnectorV2):
        reads = (Columns.REWARDS,)

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            for episode in episodes:
                episode.set_rewards(new_data=1.0, at_indices=0)
            return batch

    class Shaping(Declared):
        reads = ()
        mutates_episodes = True

    with pytest.raises(PipelineError, match=r"Declared[\s\S]*'rewards'[\s\S]*AddColumnsFromEpisodesToTrainBatch"):
        LearnerConnectorPipeline(connectors=[Declared()])
    pieces = [AddColumnsFromEpisodesToTrainBatch(), Declared()]
    with pytest.raises(EpisodeStateError, match=r"piece 1 \(Declared\)[\s\S]*mutates_episodes = True"):
        LearnerConnectorPipeline(connectors=pieces)(episodes=[lab.episode("a", 2)])
    episode = lab.episode("a", 2)
    LearnerConnectorPipeline(connectors=[Shaping()])(episodes=[episode])
    assert episode.get_rewards(0) == 1.0


def test_keywords_reach_every_piece_and_shared_data_is_one_dict(lab):
    first, second = lab.spy(), lab.spy()
    pipe = EnvToModulePipeline(
        lab.obs_space, lab.act_space, connectors=[first, AddObservationsFromEpisodesToBatch(), second]
    )
    episodes = [lab.episode("a", 0, numpy=False)]
    pipe(rl_module=None, batch={}, episodes=episodes, explore=True, raw_observations=[1], metrics_prefix_key=("k",))
    assert first.kwargs["raw_observations"] == second.kwargs["raw_observations"] == [1]
    assert first.kwargs["metrics_prefix_key"] == ("k",)
    assert first.explore is second.explore is True
    assert first.shared_data is second.shared_data
    assert list(first.episodes) == episodes
    assert "data" not in first.kwargs


def test_user_pieces_see_plain_dicts_and_lists_between_built_in_pieces(lab):
    first, second, third = lab.spy(), lab.spy(), lab.spy()
    pieces = [
        first,
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        second,
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
        third,
    ]
    lab.run("learner", pieces, [lab.episode("a", 2), lab.episode("b", 1)], rl_module=lab.module())
    assert first.seen == {}
    assert type(second.seen) is dict
    assert type(second.seen["obs"]) is dict
    assert type(second.seen["obs"]["a",]) is list
    assert type(third.seen["obs"]) is np.ndarray
    assert type(first.episodes) is list


def test_changing_a_batch_in_a_user_piece_changes_what_later_pieces_get(lab):
    def change(batch, episodes):
        batch["obs"]["a",] = [np.full((2, 2), 9.0, np.float32)[i] for i in range(2)]
        batch["extra"] = {("a",): [1.0, 2.0], ("b",): [3.0]}

    pieces = [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        lab.user(change),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
    ]
    batch = lab.run("learner", pieces, [lab.episode("a", 2), lab.episode("b", 1)], rl_module=lab.module())
    assert batch["obs"].tolist() == [[9.0, 9.0], [9.0, 9.0], [0.0, 10.0]]
    assert batch["extra"].tolist() == [1.0, 2.0, 3.0]


def test_changing_items_in_place_reaches_later_pieces_but_no_episode(lab):
    def change(batch, episodes):
        for items in batch["obs"].values():
            for item in items:
                item *= 2.0

    episodes = [lab.episode("a", 2)]
    pieces = [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        lab.user(change),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
    ]
    batch = lab.run("learner", pieces, episodes, rl_module=lab.module())
    assert batch["obs"].tolist() == [[0.0, 20.0], [2.0, 22.0]]
    assert episodes[0].get_observations()[:, 1].tolist() == [10.0, 11.0, 12.0]


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


def test_a_nested_pipeline_of_built_in_pieces_gives_the_same(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3)]
    flat = lab.run("learner", lab.defaults("learner"), episodes, rl_module=lab.module())
    front, back = lab.defaults("learner")[:2], lab.defaults("learner")[2:]
    nested = lab.run("learner", [pipeline(*front), *back], episodes, rl_module=lab.module())
    assert flat.keys() == nested.keys()
    for name in flat:
        assert np.array_equal(flat[name], nested[name])


def test_states_are_kept_by_stable_name(lab):
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


def test_freezing_reaches_every_piece_and_those_of_nested_pipelines(lab):
    inner, outer, free = Counter(), Counter(count=5), Counter()
    pipe = pipeline(Marker(), pipeline(Marker(), pipeline(inner)), outer)
    pipe.freeze()
    for pieces in (pipe, pipeline(free)):
        pieces(rl_module=None, batch={}, episodes=[lab.episode("a", 1), lab.episode("b", 1)])
    assert (inner.count, outer.count, free.count) == (0, 5, 2)
    pipe.set_state({"counter": {"count": 7}})
    pipe(rl_module=None, batch={}, episodes=[lab.episode("a", 1)])
    assert outer.count == 7


def test_a_state_of_a_piece_that_is_not_there_is_an_error():
    with pytest.raises(UnknownNameError, match="mean_std_filter") as raised:
        pipeline(Counter()).set_state({"mean_std_filter": {"count": 1}})
    assert "counter" in str(raised.value)


def test_states_of_which_one_does_not_fit_change_no_piece():
    pipe = pipeline(Counter(count=1), Counter(count=2))
    with pytest.raises(KeyError, match="count"):
        pipe.set_state({"counter": {"count": 7}, "counter_1": {"cuont": 8}})
    assert pipe.get_state() == {"counter": {"count": 1}, "counter_1": {"count": 2}}


def test_components_select_states():
    pipe = pipeline(Counter(count=1), MeanStdFilter(count=2))
    assert set(pipe.get_state(components="counter")) == {"counter"}
    assert set(pipe.get_state(not_components=["counter"])) == {"mean_std_filter"}


def test_a_column_with_the_wrong_rows_names_pipeline_piece_column_and_episode(lab):
    pipe = LearnerConnectorPipeline(lab.obs_space, lab.act_space, connectors=lab.defaults("learner"))
    mine = {"extra": {("a",): [0.0, 0.0], ("odd_one",): [0.0]}}
    with pytest.raises(ColumnError) as raised:
        pipe(rl_module=lab.module(), batch=mine, episodes=[lab.episode("a", 2), lab.episode("odd_one", 3)])
    message = str(raised.value)
    for part in ("LearnerConnectorPipeline", "BatchIndividualItems", "'extra'", "odd_one", "3", "1"):
        assert part in message


def test_a_key_that_is_no_chunk_of_the_call_is_an_error(lab):
    pipe = LearnerConnectorPipeline(lab.obs_space, lab.act_space, connectors=lab.defaults("learner"))
    with pytest.raises(ValueError, match="stranger"):
        pipe(rl_module=lab.module(), batch={"x": {("stranger",): [0.0]}}, episodes=[lab.episode("a", 1)])


def test_tensor_to_numpy_may_stand_anywhere_behind_the_module(lab):
    result = lab.env_step([lab.episode("a", 0, numpy=False)], {"actions": np.array([1])}, [lab.user(), TensorToNumpy()])
    assert result["actions"].tolist() == [1]


def timed_call(lab, logger):
    pieces = [Marker(), Marker(), AddObservationsFromEpisodesToBatch()]
    pipe = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=pieces)
    pipe(episodes=[lab.episode("a", 0, numpy=False)], metrics=logger, metrics_prefix_key=("p",))


def test_metrics_time_the_pipeline_and_each_piece(lab):
    logger = MetricsLogger()
    timed_call(lab, logger)
    results = logger.reduce()["p"]
    pieces = results["timers"]["connectors"]
    assert list(pieces) == ["marker", "marker_1", "add_observations_from_episodes_to_batch"]
    assert all(seconds > 0.0 for seconds in pieces.values())
    assert results["connector_pipeline_timer"] == pytest.approx(sum(pieces.values()))


def test_a_logger_may_be_for_the_pieces_alone(lab):
    logger = MetricsLogger(times_pieces=False)
    timed_call(lab, logger)
    assert logger.reduce() == {}


def test_pieces_given_as_the_first_argument_are_not_taken_for_a_space():
    with pytest.raises(PieceError, match=r"EnvToModulePipeline\(connectors=\[\.\.\.\]\)"):
        EnvToModulePipeline([Marker()])


@pytest.mark.parametrize(
    ("episodes", "found"),
    [
        ([{"obs": [1.0]}], "a list of dict"),
        ((episode for episode in ()), "a generator"),
        ("episodes", "a str"),
    ],
)
def test_something_else_than_episodes_is_named(episodes, found):
    with pytest.raises(PipelineError, match=rf"a list of SingleAgentEpisode[\s\S]*{found}"):
        EnvToModulePipeline(connectors=[Marker()])(rl_module=None, batch={}, episodes=episodes)


def test_a_piece_that_skips_the_base_constructor_works(lab):
    class Forgetful(ConnectorV2):
        def __init__(self):
            self.calls = 0

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            self.calls += 1
            return batch

    pipe = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=[Forgetful()])
    pipe(rl_module=None, batch={}, episodes=[lab.episode("a", 0)])
    assert pipe[0].calls == 1 and pipe.observation_space == lab.obs_space


def test_an_edit_that_is_refused_changes_nothing(lab):
    pipe = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=[Marker()])
    with pytest.raises(SpaceError, match="FrameStacking"):
        pipe.prepend(FrameStacking(num_frames=4))
    assert len(pipe) == 1 and pipe.observation_space == lab.obs_space


def test_a_piece_that_calls_a_pipeline_of_its_own_sees_plain_columns(lab):
    inner = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])
    seen = []

    def call(batch, episodes):
        seen.append(inner(rl_module=None, batch={}, episodes=episodes))

    lab.run("env_to_module", [lab.user(call)], [lab.episode("a", 1)])
    assert list(seen[0]["obs"]) == [("a",)]


def test_arrays_that_a_plain_piece_batched_do_not_share_memory_with_the_episode(lab):
    def share(batch, episodes):
        batch["mine"] = episodes[0].get_observations(slice(0, 3))

    episode = lab.episode("a", 3)
    before = episode.get_observations().copy()
    pieces = [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems(), lab.user(share), NumpyToTensor()]
    batch = lab.run("learner", pieces, [episode], rl_module=lab.module())
    batch["mine"].fill_(99)
    np.testing.assert_array_equal(episode.get_observations(), before)


def test_an_array_of_another_length_is_named_and_not_the_other_columns(lab):
    def add(batch, episodes):
        batch["extra"] = np.zeros(10)

    with pytest.raises(ColumnError, match=r"column 'extra'[\s\S]*3 rows[\s\S]*10 rows"):
        lab.run("learner", [lab.user(add), *lab.defaults("learner")], [lab.episode("a", 3)], rl_module=lab.module())
