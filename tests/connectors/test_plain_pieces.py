"""What undeclared pieces between built-in ones see and may do, and how what goes wrong in them is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ColumnarPiece, ConnectorV2, EpisodeColumn
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, BatchIndividualItems, NumpyToTensor
from epibatch.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpibatchError, EpisodeStateError, PieceOutputError, PipelineError
from epibatch.episodes import VectorRecorder
from fixture_pieces import Lab


def pipeline(*pieces, obs=None, act=None):
    return ConnectorPipelineV2(obs, act, connectors=list(pieces))


class Centred(ColumnarPiece):
    """Forgets to return the columns."""

    input_layouts = ("episodes",)

    def run(self, columns, group):
        columns["rewards"].data = columns["rewards"].data - 1


def test_run_must_return_the_columns():
    pieces = [AddColumnsFromEpisodesToTrainBatch(), Centred(), BatchIndividualItems(), NumpyToTensor()]
    pipe = LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=pieces)
    with pytest.raises(PieceOutputError, match=r"piece 1 \(Centred\)[\s\S]*Centred.run[\s\S]*`return columns`"):
        pipe(rl_module=None, batch={}, episodes=[Lab.episode("a", 1)])


class Left(ColumnarPiece):
    """Leaves what a function makes of the columns."""

    made: Any

    def run(self, columns, group):
        return self.made(columns, group)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda columns, group: columns["rewards"], "return columns"),
        (lambda columns, group: {**columns, "x": EpisodeColumn(np.zeros(2), group.counts)}, "'x'"),
        (lambda columns, group: {**columns, "x": EpisodeColumn(np.zeros(1))}, "'x'"),
    ],
)
def test_run_that_leaves_something_else_than_rows_of_the_group_is_named(made, told):
    pieces = [AddColumnsFromEpisodesToTrainBatch(), Left(made=made), BatchIndividualItems()]
    with pytest.raises(PieceOutputError, match=rf"piece 1 \(Left\)[\s\S]*Left.run[\s\S]*{told}"):
        LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=pieces)(episodes=[Lab.episode("a", 3)])


def test_a_column_that_run_looks_up_too_early_is_told():
    pieces = [Lab.user(), Centred(), AddColumnsFromEpisodesToTrainBatch()]
    pipe = LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=pieces)
    with pytest.raises(KeyError, match="rewards") as raised:
        pipe(rl_module=None, batch={}, episodes=[Lab.episode("a", 1)])
    assert any("by piece 2 (AddColumnsFromEpisodesToTrainBatch)" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("error", [ValueError("own words"), KeyError("own words"), IndexError("own words")])
def test_an_error_in_a_piece_keeps_its_class_and_gains_the_place(error):
    class Broken(ConnectorV2):
        def __call__(self, **kwargs):
            raise error

    pipe = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=[Lab.user(), Broken()])
    with pytest.raises(type(error), match="own words") as raised:
        pipe(rl_module=None, batch={}, episodes=[Lab.episode("a", 0, numpy=False)])
    said = [str(raised.value), *getattr(raised.value, "__notes__", ())]
    assert any("EnvToModulePipeline, piece 1 (Broken)" in text for text in said)


def test_a_declared_plain_piece_is_checked_and_may_not_write_to_episodes_in_silence():
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
        LearnerConnectorPipeline(connectors=pieces)(episodes=[Lab.episode("a", 2)])
    episode = Lab.episode("a", 2)
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


def test_a_nested_pipeline_of_built_in_pieces_gives_the_same(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3)]
    flat = lab.run("learner", lab.defaults("learner"), episodes, rl_module=lab.module())
    front, back = lab.defaults("learner")[:2], lab.defaults("learner")[2:]
    nested = lab.run("learner", [pipeline(*front), *back], episodes, rl_module=lab.module())
    assert flat.keys() == nested.keys()
    for name in flat:
        assert np.array_equal(flat[name], nested[name])


def test_a_key_that_is_no_chunk_of_the_call_is_an_error():
    pipe = LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=Lab.defaults("learner"))
    with pytest.raises(ValueError, match="stranger"):
        pipe(rl_module=Lab.module(), batch={"x": {("stranger",): [0.0]}}, episodes=[Lab.episode("a", 1)])


def test_a_piece_that_calls_a_pipeline_of_its_own_sees_plain_columns(lab):
    inner = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])
    seen = []

    def call(batch, episodes):
        seen.append(inner(rl_module=None, batch={}, episodes=episodes))

    lab.run("env_to_module", [lab.user(call)], [lab.episode("a", 1)])
    assert list(seen[0]["obs"]) == [("a",)]


def short_episodes_left_out(batch, episodes):
    del episodes[0], episodes[-1]


def test_a_first_piece_may_leave_episodes_out():
    episodes = [Lab.episode("a", 1), Lab.episode("b", 3, offset=10), Lab.episode("c", 1, offset=20)]
    pieces = [Lab.user(short_episodes_left_out), Lab.user()]
    pieces += [AddObservationsFromEpisodesToBatch(as_learner_connector=True)]
    pieces += [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    batch = LearnerConnectorPipeline(connectors=pieces)(rl_module=None, episodes=episodes)
    assert batch["obs"][:, 0].tolist() == [10, 11, 12] and batch["rewards"].tolist() == [10.5, 11.5, 12.5]


@pytest.mark.parametrize("change", [lambda batch, episodes: episodes.reverse(), short_episodes_left_out])
def test_where_there_are_columns_the_list_of_episodes_stays(change):
    episodes = [Lab.episode(id_, 2, offset=offset) for id_, offset in (("a", 0), ("b", 10), ("c", 20))]
    pieces = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), Lab.user(change)]
    pieces += [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    with pytest.raises(PieceOutputError, match="its list of episodes"):
        LearnerConnectorPipeline(connectors=pieces)(rl_module=None, episodes=episodes)
    assert [episode.id_ for episode in episodes] == ["a", "b", "c"]


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


class Returns(ConnectorV2):
    """Leaves a given batch."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return self.out


def told(error):
    return "\n".join([str(error.value), *getattr(error.value, "__notes__", ())])


RAGGED = {"obs": {("e",): [np.zeros(2), np.zeros(3)]}}


def test_an_unusable_batch_is_the_fault_of_the_piece_that_left_it():
    pipe = EnvToModulePipeline(connectors=[Returns({}), Returns(RAGGED), AddObservationsFromEpisodesToBatch()])
    with pytest.raises(EpibatchError) as error:
        pipe(episodes=[Lab.episode("e", 0, numpy=False)])
    assert "in EnvToModulePipeline, piece 1 (Returns), the batch it left:" in told(error)
    assert "AddObservationsFromEpisodesToBatch" not in told(error)


def test_an_unusable_batch_at_the_start_is_the_callers():
    pipe = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])
    with pytest.raises(EpibatchError) as error:
        pipe(episodes=[Lab.episode("e", 0, numpy=False)], batch=RAGGED)
    assert "in the batch that the pipeline was given:" in told(error)
    assert "AddObservationsFromEpisodesToBatch" not in told(error)


@pytest.mark.parametrize("out", [None, [1], "batch", {("e",): [1]}])
def test_a_piece_that_returns_no_batch_is_told_to(out):
    with pytest.raises(PieceOutputError, match=r"piece 0 \(Returns\)[\s\S]*end __call__ with `return batch`"):
        EnvToModulePipeline(connectors=[Returns(out)])(episodes=[Lab.episode("e", 0, numpy=False)])


def test_a_failed_declared_piece_leaves_episodes_writable():
    class Declared(ConnectorV2):
        reads = ()

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            episodes[0].set_rewards(new_data=1.0, at_indices=0)

    pipe = LearnerConnectorPipeline(connectors=[Declared()])
    with pytest.raises(EpisodeStateError):
        pipe(episodes=[Lab.episode("e", 2)])
    assert pipe.history.writable


class Shapes(ConnectorV2):
    """Writes rewards where it is told to."""

    def __init__(self, where=None, in_place=False):
        super().__init__()
        self.where, self.in_place = where, in_place

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in filter(len, episodes):
            rewards = episode.get_rewards(self.where)
            if self.in_place:
                rewards -= 0.5
            else:
                episode.set_rewards(new_data=rewards - 0.5, at_indices=self.where)
        return batch


@pytest.mark.parametrize("where", [None, 0, slice(0, 2), [0, -1], slice(None)])
def test_rewards_of_passed_steps_are_not_written_while_acting(where):
    episode = Lab.episode("e", 3)
    before = episode.get_rewards().tolist()
    with pytest.raises(EpisodeStateError) as error:
        EnvToModulePipeline(connectors=[Shapes(where)])(episodes=[episode])
    for words in ("EnvToModulePipeline, piece 0 (Shapes)", "episode 'e', column 'rewards'", "learner_connector"):
        assert words in told(error)
    assert episode.get_rewards().tolist() == before
    episode.set_rewards(new_data=np.zeros(3))  # outside a pipeline anything goes
    LearnerConnectorPipeline(connectors=[Shapes(where)])(episodes=[episode])
    assert episode.get_rewards().min() == -0.5


def test_rewards_are_not_changed_in_place_while_acting():
    episode = Lab.episode("e", 3)
    with pytest.raises(ValueError, match="read-only"):
        EnvToModulePipeline(connectors=[Shapes(in_place=True)])(episodes=[episode])


@pytest.mark.parametrize("where", [-1, [-1], slice(-1, None)])
def test_the_newest_reward_is_written_once_per_step_while_acting(where):
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [4]})
    config.env_runners(env_to_module_connector=lambda env, spaces, device: Shapes(where))
    algorithm = config.debugging(seed=0).build_algo()
    (episode,) = algorithm.env_runner.sample(num_episodes=1)
    algorithm.stop()
    assert episode.get_rewards().tolist() == [0.5] * len(episode)


def recorded_episodes():
    """Two environments' episodes of three steps, in one block."""
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros((2, 2), np.float32))
    nobody = np.zeros(2, np.bool_)
    for t in range(3):
        recorder.commit()
        recorder.step(np.zeros(2, np.int64), np.full(2, t), nobody, nobody, np.full((2, 2), t, np.float32))
    return recorder.flush(0)


EPISODES = {
    "each with its columns": lambda lab: [lab.episode(name, 3, rewards=[0.0, 1.0, 2.0]) for name in "ab"],
    "a block": lambda lab: recorded_episodes(),
    "views of a block": lambda lab: list(recorded_episodes()),
}


@pytest.mark.parametrize("kind", EPISODES)
def test_a_columnar_piece_that_writes_to_episodes_is_seen_behind_it_and_not_before(lab, kind):
    class Asks(ColumnarPiece):
        reads = writes = ()

        def run(self, batch, call):
            assert call.lengths.tolist() == [3, 3]
            return batch

    class Writes(ColumnarPiece):
        reads = writes = ()
        mutates_episodes = True

        def run(self, batch, call):
            for episode in call.plain_episodes():
                episode.set_rewards(new_data=episode.get_rewards() + 0.5)
                episode.set_observations(new_data=np.full((4, 5), 9.0))  # of another shape: no rows of a block
            return batch

    columns, observations = AddColumnsFromEpisodesToTrainBatch(), AddObservationsFromEpisodesToBatch
    for pieces, rewards in (([columns, Writes()], [0, 1, 2]), ([Asks(), Writes(), columns], [0.5, 1.5, 2.5])):
        pieces = [*pieces, observations(as_learner_connector=True)]
        batch = LearnerConnectorPipeline(connectors=pieces)(episodes=EPISODES[kind](lab))
        assert [items[0].tolist() for items in batch["rewards"].values()] == [rewards] * 2
        assert [items[0].tolist() for items in batch["obs"].values()] == [[[9.0] * 5] * 3] * 2


class Looks(ConnectorV2):
    """Looks up a column in the batch, or something in a dict of its own."""

    def __init__(self, name, own=None):
        super().__init__()
        self.name, self.own = name, own

    def __call__(self, *, batch, **kwargs):
        own = self.own
        if own is not None:
            del batch
            return own[self.name]
        return {**batch, "more": batch[self.name]}


def test_a_column_that_comes_later_is_named_with_the_piece_that_adds_it():
    add = AddColumnsFromEpisodesToTrainBatch()
    with pytest.raises(KeyError) as error:
        LearnerConnectorPipeline(connectors=[Looks("rewards"), add])(episodes=[Lab.episode("e", 2)])
    assert error.value.args == ("rewards",)
    assert "Its columns: none. It is added after this piece, by piece 1 (AddColumns" in told(error)
    assert "ColumnTransform with columns = 'rewards'" in told(error)
    assert "read episode.get_rewards()" in told(error)


def test_a_column_that_is_not_there_at_all_comes_with_those_that_are():
    with pytest.raises(KeyError) as error:
        LearnerConnectorPipeline(connectors=[AddColumnsFromEpisodesToTrainBatch(), Looks("reward")])(
            episodes=[Lab.episode("e", 2)]
        )
    assert "no column 'reward' at this place. Its columns: actions, rewards, terminateds, truncateds" in told(error)
    assert "It is added" not in told(error)


def test_another_key_that_is_missing_keeps_its_error():
    class Wins(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            return {**batch, "wins": episodes[0].get_infos(-1)["success"]}

    for before in ([], [AddColumnsFromEpisodesToTrainBatch()]):
        with pytest.raises(KeyError) as error:
            LearnerConnectorPipeline(connectors=[*before, Wins()])(episodes=[Lab.episode("e", 2)])
        assert error.value.args == ("success",) and "If the batch was meant:" in told(error)


def test_a_key_that_is_in_the_batch_gets_no_list_of_columns():
    add = AddColumnsFromEpisodesToTrainBatch()
    with pytest.raises(KeyError) as error:
        LearnerConnectorPipeline(connectors=[add, Looks("rewards", {"other": 1})])(episodes=[Lab.episode("e", 2)])
    assert error.value.args == ("rewards",) and "column" not in told(error)


@pytest.mark.parametrize("key", [["a"], {"a": 1}, 3, None])
def test_a_key_error_about_no_name_stays_one(key):
    class Raises(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            raise KeyError(key)

    with pytest.raises(KeyError) as error:
        LearnerConnectorPipeline(connectors=[Raises()])(episodes=[Lab.episode("e", 2)])
    assert error.value.args == (key,) and "piece 0 (Raises)" in told(error)
