"""Columns and their parts renamed, dropped, chosen: on both sides, in each layout, and refused where needed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.columns import DropColumns, RemoveEmptyParts, RenameColumns, SelectColumns
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.connectors.rewards import RewardScaling
from epibatch.core.errors import ColumnError, ConfigError, PieceError, PipelineError, SpaceError
from fixture_pieces import played

ALL = {"obs", "actions", "rewards", "terminateds", "truncateds", "vf_preds"}


def test_columns_behind_the_pieces_that_make_them(nested):
    batch = nested.train([], [nested.episode()], behind=[RenameColumns(names={"vf_preds": "values", "rewards": "r"})])
    assert set(batch) == (ALL - {"vf_preds", "rewards"}) | {"values", "r"}
    assert batch["values"].tolist() == [0.0, 10.0, 20.0]
    assert batch["r"].tolist() == [0.5, 1.5, 2.5]
    batch = nested.train([], [nested.episode()], behind=[DropColumns(columns=["vf_preds", "truncateds"])])
    assert set(batch) == ALL - {"vf_preds", "truncateds"}
    batch = nested.train([], [nested.episode()], behind=[SelectColumns(columns=["obs", "rewards"])])
    assert set(batch) == {"obs", "rewards"}


def test_names_change_all_at_once_and_back_again(nested):
    piece = RenameColumns(names={"rewards": "vf_preds", "vf_preds": "rewards"})
    batch = nested.train([], [nested.episode()], behind=[piece])
    assert (batch["rewards"].tolist(), batch["vf_preds"].tolist()) == ([0.0, 10.0, 20.0], [0.5, 1.5, 2.5])
    batch = nested.train([], [nested.episode()], behind=[piece, piece.undo()])
    assert batch["rewards"].tolist() == [0.5, 1.5, 2.5]
    assert piece.undo().undo() == piece


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (
            RenameColumns(names={"obs/info/gear": "obs/gear", "obs/pose": "obs/place"}),
            {"place": [[1, -1]], "gear": [1], "info": {"speed": [0.125]}},
        ),
        (DropColumns(columns=["obs/info/speed"]), {"pose": [[1, -1]], "info": {"gear": [1]}}),
        (SelectColumns(columns=["obs/info/gear", "obs/pose"]), {"pose": [[1, -1]], "info": {"gear": [1]}}),
        (RenameColumns(names={"obs/info/gear": "gear"}), {"pose": [[1, -1]], "info": {"speed": [0.125]}}),
    ],
    ids=lambda own: "" if isinstance(own, dict) else type(own).__name__,
)
def test_parts_of_observations_are_the_same_on_both_sides(piece, expected, nested):
    trained = nested.train([piece], [nested.episode(3), nested.episode(3, "f")])
    acting, pipeline = nested.act([piece], [nested.episode(1), nested.episode(1, "f")])
    assert _lists(trained["obs"], slice(1, 2)) == _lists(acting["obs"], slice(0, 1)) == expected
    row = _rows(acting["obs"], 0, pipeline.observation_space)
    assert pipeline.observation_space.contains(row)
    if "gear" in acting:
        assert (trained["gear"].tolist(), acting["gear"].tolist()) == ([0, 1, 2] * 2, [1, 1])


def _lists(struct, rows):
    return {k: _lists(v, rows) if isinstance(v, dict) else np.asarray(v)[rows].tolist() for k, v in struct.items()}


def _rows(struct, i, space):
    parts = struct.items()
    return {key: _rows(own, i, space[key]) if isinstance(own, dict) else np.asarray(own[i]) for key, own in parts}


def test_masks_always_stay():
    config = PPOConfig().learners(learner_connector=None)
    pipeline = config.build_learner_connector(gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2))
    config.extend_learner_connector(pipeline)
    pipeline.insert_after(
        "add_columns_from_episodes_to_train_batch", SelectColumns(columns=["obs", "rewards", "actions", "terminateds"])
    )

    made = played(np.zeros((3, 2), np.float32))
    pipeline.remove("general_advantage_estimation")
    batch = pipeline(rl_module=None, batch={}, episodes=[made])
    assert batch["loss_mask"].tolist() == [True, True, False]
    assert "truncateds" not in batch


@pytest.mark.parametrize(
    ("piece", "match"),
    [
        (DropColumns(columns="rewards"), "column 'rewards'[\\s\\S]*dropped before, by piece 3 \\(DropColumns\\)"),
        (SelectColumns(columns=["obs", "actions"]), "dropped before, by piece 3 \\(SelectColumns\\)"),
        (RenameColumns(names={"terminateds": "done"}), "column 'terminateds'[\\s\\S]*RenameColumns"),
    ],
)
def test_a_later_piece_that_reads_it_is_named_when_the_pipeline_is_built(piece, match):
    config = PPOConfig()
    pipeline = config.build_learner_connector(gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2))
    config.extend_learner_connector(pipeline)  # advantages read rewards
    with pytest.raises(PipelineError, match=match):
        pipeline.insert_after("add_columns_from_episodes_to_train_batch", piece)
    pipeline.append(piece)


def test_a_column_written_again_may_be_read():
    pieces = [AddColumnsFromEpisodesToTrainBatch(), RenameColumns(names={"rewards": "raw"}), RewardScaling(scale=2.0)]
    LearnerConnectorPipeline(connectors=[*pieces, DropColumns(columns="rewards"), BatchIndividualItems()])
    pieces = [*pieces, DropColumns(columns="rewards"), DropColumns(columns="rewards")]
    with pytest.raises(PipelineError, match="dropped before"):
        LearnerConnectorPipeline(connectors=pieces)


@pytest.mark.parametrize(
    "piece", [DropColumns(columns="rewards"), RenameColumns(names={"rewards": "r"}), SelectColumns(columns=["rewards"])]
)
def test_in_front_of_the_piece_that_makes_the_column(piece, nested):
    with pytest.raises(PipelineError, match=r"written only later, by 2 \(AddColumns|written only later"):
        nested.train([piece], [nested.episode()])


@pytest.mark.parametrize(
    ("front", "behind", "error", "match"),
    [
        ([], [DropColumns(columns="vf_pred")], ColumnError, "did you mean 'vf_preds'"),
        ([], [SelectColumns(columns="vf_pred")], ColumnError, "did you mean 'vf_preds'"),
        ([RenameColumns(names={"vf_preds": "v"})], [], ColumnError, "after the piece that makes the column"),
        ([DropColumns(columns="obs/info/geer")], [], ColumnError, r"'geer' of 'obs/info'[\s\S]*did you mean 'gear'"),
        ([DropColumns(columns=["obs/pose", "obs/info"])], [], ColumnError, "a part of 'obs' that stays"),
        ([], [RenameColumns(names={"rewards": "vf_preds"})], ColumnError, "one that is taken"),
        ([], [RenameColumns(names={"rewards": "obs/r"})], SpaceError, "parts of 'obs' alone"),
    ],
)
def test_columns_that_do_not_fit_are_named(front, behind, error, match, nested):
    with pytest.raises(error, match=match):
        nested.train(front, [nested.episode()], behind=behind, space=nested.space if behind else None)


@pytest.mark.parametrize(
    ("cls", "arguments", "error", "match"),
    [
        *((RenameColumns, {"names": names}, ConfigError, "RenameColumns.names") for names in
          ({}, {"a": ""}, {"a": "c", "b": "c"}, {"a": 1}, ["a"])),
        *((cls, {"columns": []}, PieceError, f"{cls.__name__}.columns") for cls in (DropColumns, SelectColumns)),
        *((DropColumns, {"columns": ["rewards", own]}, ConfigError, "losses need it") for own in
          ("loss_mask", "seq_lens")),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant(cls, arguments, error, match):
    with pytest.raises(error, match=match):
        cls(**arguments)


BOX = gym.spaces.Box(-1, 1, (2,))


NONE = gym.spaces.Box(-1, 1, (0, 3))


SPACE = gym.spaces.Dict(a=BOX, b=gym.spaces.Dict(c=NONE), d=gym.spaces.Tuple([NONE, BOX, gym.spaces.Dict()]))


LEFT = gym.spaces.Dict(a=BOX, d=gym.spaces.Tuple([BOX]))


def row(t):
    value, nothing = np.full(2, t / 8, np.float32), np.zeros((0, 3), np.float32)
    return {"a": value, "b": {"c": nothing}, "d": (nothing, -value, {})}


def test_rows_and_space_on_both_sides(nested):
    trained = nested.train([RemoveEmptyParts()], [played([row(t) for t in range(4)])], space=SPACE)["obs"]
    acting, pipeline = nested.act([RemoveEmptyParts()], [played([row(t) for t in range(3)])], space=SPACE)
    assert trained.keys() == acting["obs"].keys() == {"a", "d"}
    assert trained["a"][:, 0].tolist() == [0, 0.125, 0.25] and trained["d"][0][:, 0].tolist() == [0, -0.125, -0.25]
    assert acting["obs"]["a"][0].tolist() == trained["a"][2].tolist()
    assert pipeline.observation_space == LEFT
    assert pipeline.observation_space.contains({"a": acting["obs"]["a"][0], "d": (acting["obs"]["d"][0][0],)})


def test_what_is_full_stays_as_it_is(nested):
    batch = nested.train([RemoveEmptyParts(columns=["obs"])], [nested.episode(2)])
    assert batch["obs"]["info"]["gear"].tolist() == [0, 1]
    assert RemoveEmptyParts(nested.space).observation_space == nested.space


def test_nothing_left_is_named(nested):
    one = played([{"a": np.zeros(0)}] * 2)
    with pytest.raises(ColumnError, match="a part of 'obs' that stays"):
        nested.train([RemoveEmptyParts()], [one], space=None)
