"""Undeclared pieces between built-in ones: what they see and may do, and how errors in them are reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2, EpisodeColumn, Piece
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columns import (
    CastColumns,
    CheckFinite,
    ConcatenateColumns,
    DropColumns,
    RenameColumns,
    SelectColumns,
)
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, BatchIndividualItems, NumpyToTensor
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.connectors.observations import Clip
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpibatchError, EpisodeStateError, PieceOutputError, PipelineError
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import VectorRecorder
from fixture_pieces import Lab, UserPiece


def train(*pieces: Any, episodes: Any = None, **call: Any) -> Any:
    """Run pieces in a learner pipeline, on an episode of three steps by default."""
    pipeline = LearnerConnectorPipeline(connectors=list(pieces))
    return pipeline(episodes=[Lab.episode("e", 3)] if episodes is None else episodes, **call)


def observations() -> Any:
    return AddObservationsFromEpisodesToBatch(as_learner_connector=True)


def message(error: Any) -> str:
    """An error's text and notes."""
    return "\n".join([str(error.value), *getattr(error.value, "__notes__", ())])


class Left(Piece):
    """Leaves what a function makes of the columns."""

    made: Any

    def run(self, columns, group):
        return self.made(columns, group)


@pytest.mark.parametrize(
    ("made", "fragment"),
    [
        (lambda columns, group: None, "`return columns`"),
        (lambda columns, group: columns["rewards"], "return columns"),
        (lambda columns, group: {**columns, "x": EpisodeColumn(np.zeros(2), group.counts)}, "'x'"),
        (lambda columns, group: {**columns, "x": EpisodeColumn(np.zeros(1))}, "'x'"),
    ],
)
def test_run_that_leaves_something_else_than_rows_of_the_group_is_named(made, fragment):
    with pytest.raises(PieceOutputError, match=rf"piece 1 \(Left\)[\s\S]*Left.run[\s\S]*{fragment}"):
        train(AddColumnsFromEpisodesToTrainBatch(), Left(made=made), BatchIndividualItems())


def test_a_declared_plain_piece_is_checked_and_may_not_write_to_episodes_in_silence():
    class Declared(ConnectorV2):
        reads: Any = (Columns.REWARDS,)

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            for episode in episodes:
                episode.set_rewards(new_data=1.0, at_indices=0)
            return batch

    class Shaping(Declared):
        reads = ()
        mutates_episodes = True

    with pytest.raises(PipelineError, match=r"Declared[\s\S]*'rewards'[\s\S]*AddColumnsFromEpisodesToTrainBatch"):
        LearnerConnectorPipeline(connectors=[Declared()])
    pipeline = LearnerConnectorPipeline(connectors=[AddColumnsFromEpisodesToTrainBatch(), Declared()])
    with pytest.raises(EpisodeStateError, match=r"piece 1 \(Declared\)[\s\S]*mutates_episodes = True"):
        pipeline(episodes=[Lab.episode("a", 2)])
    assert pipeline.history.writable
    episode = Lab.episode("a", 2)
    train(Shaping(), episodes=[episode])
    assert episode.get_rewards(0) == 1.0


def test_keywords_reach_every_piece_and_shared_data_is_one_dict():
    first, second = Lab(False).spy(), Lab(False).spy()
    pipeline = EnvToModulePipeline(connectors=[first, AddObservationsFromEpisodesToBatch(), second])
    episodes = [Lab.episode("a", 0, numpy=False)]
    pipeline(episodes=episodes, explore=True, raw_observations=[1])
    assert first.kwargs["raw_observations"] == second.kwargs["raw_observations"] == [1]
    assert first.explore is second.explore is True and first.seen == {}
    assert first.shared_data is second.shared_data and isinstance(first.shared_data, dict)
    assert list(first.episodes) == episodes


def test_user_pieces_see_plain_dicts_and_lists_between_built_in_pieces(lab):
    first, second, third = lab.spy(), lab.spy(), lab.spy()
    pieces = [first, observations(), second, AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems(), third]
    lab.run("learner", pieces, [lab.episode("a", 2), lab.episode("b", 1)], rl_module=lab.module())
    assert first.seen == {}
    assert type(second.seen) is type(second.seen["obs"]) is dict
    assert type(second.seen["obs"]["a",]) is type(first.episodes) is list
    assert type(third.seen["obs"]) is np.ndarray


def test_changing_a_batch_in_a_user_piece_changes_what_later_pieces_get(lab):
    def change(batch, episodes):
        batch["obs"]["a",] = [np.full((2, 2), 9.0, np.float32)[i] for i in range(2)]
        batch["extra"] = {("a",): [1.0, 2.0], ("b",): [3.0]}

    pieces = [observations(), lab.user(change), AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    batch = lab.run("learner", pieces, [lab.episode("a", 2), lab.episode("b", 1)], rl_module=lab.module())
    assert batch["obs"].tolist() == [[9.0, 9.0], [9.0, 9.0], [0.0, 10.0]]
    assert batch["extra"].tolist() == [1.0, 2.0, 3.0]


def short_episodes_left_out(batch, episodes):
    del episodes[0], episodes[-1]


def test_a_first_piece_may_leave_episodes_out():
    episodes = [Lab.episode("a", 1), Lab.episode("b", 3, offset=10), Lab.episode("c", 1, offset=20)]
    pieces = [UserPiece(short_episodes_left_out), UserPiece(), observations(), AddColumnsFromEpisodesToTrainBatch()]
    batch = train(*pieces, BatchIndividualItems(), episodes=episodes)
    assert batch["obs"][:, 0].tolist() == [10, 11, 12] and batch["rewards"].tolist() == [10.5, 11.5, 12.5]


@pytest.mark.parametrize("change", [lambda batch, episodes: episodes.reverse(), short_episodes_left_out])
def test_where_there_are_columns_the_list_of_episodes_stays(change):
    episodes = [Lab.episode(id_, 2) for id_ in "abc"]
    with pytest.raises(PieceOutputError, match="its list of episodes"):
        train(observations(), UserPiece(change), AddColumnsFromEpisodesToTrainBatch(), episodes=episodes)
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


RAGGED = {"obs": {("e",): [np.zeros(2), np.zeros(3)]}}


@pytest.mark.parametrize(
    ("pieces", "batch", "place"),
    [
        ([UserPiece(), UserPiece(lambda *_: RAGGED)], {}, "piece 1 (UserPiece), the batch it left:"),
        ([], RAGGED, "in the batch that the pipeline was given:"),
    ],
    ids=["piece", "caller"],
)
def test_an_unusable_batch_is_the_fault_of_who_left_it(pieces, batch, place):
    pipeline = EnvToModulePipeline(connectors=[*pieces, AddObservationsFromEpisodesToBatch()])
    with pytest.raises(EpibatchError) as error:
        pipeline(episodes=[Lab.episode("e", 0, numpy=False)], batch=batch)
    assert place in message(error) and "AddObservationsFromEpisodesToBatch" not in message(error)


class Returns(ConnectorV2):
    """Returns something that is no batch."""

    out: Any = None

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return self.out


@pytest.mark.parametrize("out", [None, [1], "batch", {("e",): [1]}])
def test_a_piece_that_returns_no_batch_is_named(out):
    piece = Returns()
    piece.out = out
    with pytest.raises(PieceOutputError, match=r"piece 0 \(Returns\)[\s\S]*end __call__ with `return batch`"):
        EnvToModulePipeline(connectors=[piece])(episodes=[Lab.episode("e", 0, numpy=False)])


# -- writing to episodes ---------------------------------------------------------------------------


def shapes(where, in_place=False):
    """A piece that lowers rewards at some indices."""

    def change(batch, episodes):
        for episode in filter(len, episodes):
            rewards = episode.get_rewards(where)
            if in_place:
                rewards -= 0.5
            else:
                episode.set_rewards(new_data=rewards - 0.5, at_indices=where)

    return UserPiece(change)


@pytest.mark.parametrize("where", [None, 0, slice(0, 2), [0, -1], slice(None)])
def test_rewards_of_passed_steps_are_not_written_while_acting(where):
    episode = Lab.episode("e", 3)
    before = episode.get_rewards().tolist()
    with pytest.raises(EpisodeStateError) as error:
        EnvToModulePipeline(connectors=[shapes(where)])(episodes=[episode])
    for words in ("EnvToModulePipeline, piece 0 (UserPiece)", "episode 'e', column 'rewards'", "learner_connector"):
        assert words in message(error)
    assert episode.get_rewards().tolist() == before
    with pytest.raises(ValueError, match="read-only"):
        EnvToModulePipeline(connectors=[shapes(None, in_place=True)])(episodes=[episode])
    episode.set_rewards(new_data=np.zeros(3))  # outside a pipeline anything goes
    train(shapes(where), episodes=[episode])
    assert episode.get_rewards().min() == -0.5


@pytest.mark.parametrize("where", [-1, [-1], slice(-1, None)])
def test_the_newest_reward_is_written_once_per_step_while_acting(where):
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [4]})
    config.env_runners(env_to_module_connector=lambda env, spaces, device: shapes(where))
    runner = SingleAgentEnvRunner(config=config.debugging(seed=0))
    (episode,) = runner.sample(num_episodes=1)
    runner.stop()
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
    "each with its columns": lambda: [Lab.episode(name, 3, rewards=[0.0, 1.0, 2.0]) for name in "ab"],
    "a block": recorded_episodes,
    "views of a block": lambda: list(recorded_episodes()),
}


class Asks(Piece):
    reads = writes = ()

    def run(self, batch, call):
        assert call.lengths.tolist() == [3, 3]
        return batch


class Writes(Piece):
    reads = writes = ()
    mutates_episodes = True

    def run(self, batch, call):
        for episode in call.plain_episodes():
            episode.set_rewards(new_data=episode.get_rewards() + 0.5)
            episode.set_observations(new_data=np.full((4, 5), 9.0))  # of another shape: no rows of a block
        return batch


@pytest.mark.parametrize("kind", EPISODES)
@pytest.mark.parametrize("before", [False, True])
def test_what_a_columnar_piece_writes_to_episodes_is_seen_by_later_pieces(before, kind):
    columns = AddColumnsFromEpisodesToTrainBatch()
    pieces = [Asks(), Writes(), columns] if before else [columns, Writes()]
    batch = train(*pieces, observations(), episodes=EPISODES[kind]())
    rewards = [0.5, 1.5, 2.5] if before else [0, 1, 2]
    assert [items[0].tolist() for items in batch["rewards"].values()] == [rewards] * 2
    assert [items[0].tolist() for items in batch["obs"].values()] == [[[9.0] * 5] * 3] * 2


# -- columns that are looked up --------------------------------------------------------------------


def looks_up(name):
    return UserPiece(lambda batch, episodes: {**batch, "more": batch[name]})


ADD = AddColumnsFromEpisodesToTrainBatch
LATER = "It is added after this piece, by piece 1 (AddColumns"
ABSENT = "no column 'reward' at this place. Its columns: actions, rewards, terminateds, truncateds"


@pytest.mark.parametrize(
    ("pieces", "key", "present", "absent"),
    [
        (
            lambda: [looks_up("rewards"), ADD()],
            "rewards",
            ["Its columns: none.", LATER, "ColumnTransform", "episode.get_rewards()"],
            [],
        ),
        (lambda: [Left(made=lambda columns, group: columns["rewards"]), ADD()], "rewards", ["by piece 1 (Add"], []),
        (lambda: [ADD(), looks_up("reward")], "reward", [ABSENT], ["It is added"]),
        (lambda: [UserPiece(lambda b, e: e[0].get_infos(-1)["won"])], "won", ["If the batch was meant:"], []),
        (lambda: [ADD(), UserPiece(lambda b, e: e[0].get_infos(-1)["won"])], "won", ["If the batch was meant:"], []),
        (lambda: [ADD(), UserPiece(lambda batch, e: {"other": 1}["rewards"])], "rewards", [], ["column"]),
    ],
)
def test_a_missing_key_comes_with_the_columns_or_the_piece_that_adds_it(pieces, key, present, absent):
    with pytest.raises(KeyError) as error:
        train(*pieces())
    assert error.value.args == (key,)
    assert [text for text in present if text not in message(error)] == []
    assert [text for text in absent if text in message(error)] == []


@pytest.mark.parametrize("key", [["a"], {"a": 1}, 3, None])
def test_a_key_error_about_no_name_stays_one(key):
    def fail(batch, episodes):
        raise KeyError(key)

    with pytest.raises(KeyError) as error:
        train(UserPiece(fail))
    assert error.value.args == (key,) and "piece 0 (UserPiece)" in message(error)


# -- columnar pieces after BatchIndividualItems, where a MultiRLModule's batch has columns by module --


class Shift(ColumnTransform):
    """Adds 100."""

    columns: Any = "obs"
    takes_tensors = True

    def transform(self, x):
        return x + 100


def arrays(struct):
    return {key: arrays(own) for key, own in struct.items()} if isinstance(struct, dict) else np.asarray(struct)


def batch_of(after, *, multi, tensors=False, state=0):
    """A train batch of default pieces and this one."""
    pieces = [*Lab.defaults("learner")[: None if tensors else -1], after]
    episodes = [Lab.episode("a", 3, state=state), Lab.episode("b", 2, offset=20, state=state)]
    out = train(*pieces, episodes=episodes, rl_module=Lab.module(state, multi=multi))
    assert not multi or list(out) == ["default_policy"]
    return arrays(out["default_policy"] if multi else out)


@pytest.mark.parametrize("state", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Shift(columns=("rewards", "obs")),
        lambda: Clip(low=1, high=12),
        lambda: CastColumns(columns="rewards", dtype="float64"),
        lambda: CheckFinite(columns="obs"),
        CheckFinite,
        lambda: RenameColumns(names={"rewards": "r", "obs": "rewards"}),
        lambda: DropColumns(columns="action_logp"),
        lambda: SelectColumns(columns=["obs"]),
        lambda: ConcatenateColumns(columns=["obs", "action_logp"], to="both"),
    ],
)
def test_a_module_of_modules_has_what_one_module_has(make, state):
    for tensors in (False, True):
        one, other = (batch_of(make(), multi=multi, tensors=tensors, state=state) for multi in (False, True))
        np.testing.assert_equal(one, other)


def test_called_by_itself_a_piece_finds_the_modules_columns_too():
    batch = {"default_policy": {"obs": np.zeros((2, 2), np.float32)}}
    out = Shift()(rl_module=Lab.module(multi=True), batch=batch, episodes=[Lab.episode("a", 2)])
    assert out["default_policy"]["obs"].tolist() == [[100, 100], [100, 100]] and list(out) == ["default_policy"]


def test_an_error_names_the_module():
    class Breaks(Shift):
        def transform(self, x):
            raise ValueError("no")

    with pytest.raises(ValueError, match=r"(?s)piece 5 \(Breaks\):.*for module 'default_policy':.*column 'obs':.*no"):
        batch_of(Breaks(), multi=True)


@pytest.mark.parametrize("multi", [False, True])
def test_after_batching_a_column_that_is_not_there_is_not_taken_from_the_episodes(multi):
    with pytest.raises(ColumnError, match="put Shift before BatchIndividualItems"):
        train(ADD(), BatchIndividualItems(), Shift(), rl_module=Lab.module(multi=multi))
