"""Errors name the piece that made them; what a piece may do ends with the piece."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ColumnarPiece, ConnectorV2
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.core.errors import EpibatchError, EpisodeStateError, PieceOutputError
from epibatch.episodes import VectorRecorder
from fixture_pieces import Lab


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


@pytest.mark.parametrize("out", [None, [1], "batch"])
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
    return recorder.harvest(0)


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
