"""What undeclared pieces between built-in ones see and may do, and how what goes wrong in them is told."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors import ColumnarPiece
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    NumpyToTensor,
)
from epibatch.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.core.columns import Columns
from epibatch.core.errors import (
    ColumnError,
    EpisodeStateError,
    PieceOutputError,
    PipelineError,
)
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


def test_a_nested_pipeline_of_built_in_pieces_gives_the_same(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3)]
    flat = lab.run("learner", lab.defaults("learner"), episodes, rl_module=lab.module())
    front, back = lab.defaults("learner")[:2], lab.defaults("learner")[2:]
    nested = lab.run("learner", [pipeline(*front), *back], episodes, rl_module=lab.module())
    assert flat.keys() == nested.keys()
    for name in flat:
        assert np.array_equal(flat[name], nested[name])


def test_a_column_with_the_wrong_rows_names_pipeline_piece_column_and_episode():
    pipe = LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=Lab.defaults("learner"))
    mine = {"extra": {("a",): [0.0, 0.0], ("odd_one",): [0.0]}}
    with pytest.raises(ColumnError) as raised:
        pipe(rl_module=Lab.module(), batch=mine, episodes=[Lab.episode("a", 2), Lab.episode("odd_one", 3)])
    message = str(raised.value)
    for part in ("LearnerConnectorPipeline", "BatchIndividualItems", "'extra'", "odd_one", "3", "1"):
        assert part in message


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
