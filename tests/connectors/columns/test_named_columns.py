"""Columns and their parts renamed, dropped, chosen: on both sides, in each layout, and refused where needed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.columns import DropColumns, RemoveEmptyParts, RenameColumns, SelectColumns
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
    NumpyToTensor,
)
from epibatch.connectors.rewards import RewardScaling
from epibatch.core.errors import ColumnError, ConfigError, PieceError, PipelineError, SpaceError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
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


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "piece",
    [
        RenameColumns(names={"obs/info/gear": "obs/gear", "obs/pose": "obs/place"}),
        DropColumns(columns=["obs/info/speed"]),
        SelectColumns(columns=["obs/info/gear", "obs/pose"]),
        RenameColumns(names={"obs/info/gear": "gear"}),
    ],
    ids=lambda piece: type(piece).__name__,
)
def test_parts_of_observations_are_the_same_on_both_sides(piece, recorded, nested):
    expected = {
        "RenameColumns": {"place": [[1, -1]], "gear": [1], "info": {"speed": [0.125]}},
        "DropColumns": {"pose": [[1, -1]], "info": {"gear": [1]}},
        "SelectColumns": {"pose": [[1, -1]], "info": {"gear": [1]}},
    }[type(piece).__name__]
    if piece == RenameColumns(names={"obs/info/gear": "gear"}):
        expected = {"pose": [[1, -1]], "info": {"speed": [0.125]}}
    episodes = nested.recorded(3) if recorded else [nested.episode(3), nested.episode(3, "f")]
    trained = nested.train([piece], episodes)
    acting, pipeline = nested.act([piece], [nested.episode(1), nested.episode(1, "f")])
    assert _lists(trained["obs"], slice(1, 2)) == _lists(acting["obs"], slice(0, 1)) == expected
    row = _rows(acting["obs"], 0, pipeline.observation_space)
    assert pipeline.observation_space.contains(row)
    if "gear" in acting:
        assert (trained["gear"].tolist(), acting["gear"].tolist()) == ([0, 1, 2] * 2, [1, 1])


def _lists(struct, rows):
    return {k: _lists(v, rows) if isinstance(v, dict) else np.asarray(v)[rows].tolist() for k, v in struct.items()}


def _rows(struct, i, space):
    out = {
        key: _rows(own, i, space[key]) if isinstance(own, dict) else np.asarray(own[i]) for key, own in struct.items()
    }
    return out


def test_a_chunk_behind_a_cut(nested):
    chunk = nested.episode(4, first=3, lookback=2)
    batch = nested.train([DropColumns(columns="obs/info")], [chunk], behind=[DropColumns(columns="vf_preds")])
    assert batch["obs"]["pose"][:, 0].tolist() == [5.0, 6.0]
    assert chunk.get_observations(0).keys() == {"pose", "info"}


def test_tensors():

    made = played(np.float32([[0], [1]]), [1.0])
    front = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    front += [BatchIndividualItems(), NumpyToTensor(as_learner_connector=True)]
    module = torch.nn.Linear(1, 1)
    module.is_stateful = lambda: False
    pieces = [*front, RenameColumns(names={"obs": "obs/only"}), SelectColumns(columns=["obs", "rewards"])]
    batch = LearnerConnectorPipeline(connectors=pieces)(rl_module=module, batch={}, episodes=[made])
    assert set(batch) == {"obs", "rewards"} and torch.equal(batch["obs"]["only"], torch.zeros(1, 1))


def test_masks_always_stay():
    config = PPOConfig().learners(learner_connector=None)
    pipeline = config.build_learner_connector(gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2))
    config.extend_learner_connector(pipeline)
    pipeline.insert_after(
        "add_columns_from_episodes_to_train_batch", SelectColumns(columns=["obs", "rewards", "actions", "terminateds"])
    )

    made = SingleAgentEpisode(
        observations=np.zeros((3, 2), np.float32), actions=[0, 1], rewards=[1.0, 2.0], len_lookback_buffer=0
    )
    pipeline.remove("general_advantage_estimation")
    batch = pipeline(rl_module=None, batch={}, episodes=[made])
    assert batch["loss_mask"].tolist() == [True, True, False]
    assert "truncateds" not in batch
    for name in ("loss_mask", "seq_lens"):
        with pytest.raises(ConfigError, match="losses need it"):
            DropColumns(columns=["rewards", name])


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


def test_columns_that_are_not_there_are_named(nested):
    for piece in (DropColumns(columns="vf_pred"), SelectColumns(columns=["vf_pred"])):
        with pytest.raises(ColumnError, match="did you mean 'vf_preds'"):
            nested.train([], [nested.episode()], behind=[piece])
    with pytest.raises(ColumnError, match="after the piece that makes the column"):
        nested.train([RenameColumns(names={"vf_preds": "v"})], [nested.episode()])
    with pytest.raises(ColumnError, match=r"a part 'geer' of 'obs/info'[\s\S]*did you mean 'gear'"):
        nested.train([DropColumns(columns="obs/info/geer")], [nested.episode()], space=None)


def test_what_cannot_be_meant(nested):
    for names in ({}, {"a": ""}, {"a": "c", "b": "c"}, {"a": 1}, ["a"]):
        with pytest.raises(ConfigError, match=r"RenameColumns.names"):
            RenameColumns(names=names)
    for cls in (DropColumns, SelectColumns):
        with pytest.raises(PieceError, match=f"{cls.__name__}.columns"):
            cls(columns=[])
    with pytest.raises(ColumnError, match="one that is taken"):
        nested.train([], [nested.episode()], behind=[RenameColumns(names={"rewards": "vf_preds"})])
    with pytest.raises(SpaceError, match="parts of 'obs' alone"):
        nested.train([], [nested.episode()], behind=[RenameColumns(names={"rewards": "obs/r"})])
    with pytest.raises(ColumnError, match="a part of 'obs' that stays"):
        nested.train([DropColumns(columns=["obs/pose", "obs/info"])], [nested.episode()], space=None)


def test_each_agents_observations():
    spaces = gym.spaces.Dict(a=gym.spaces.Discrete(9), b=gym.spaces.Box(-1, 1, (2,)))
    both = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: agent)
    seen = {"a": 3, "b": np.float32([0.5, 1])}
    both.add_env_reset(observations={"x": seen, "y": seen})
    both.add_env_step(observations={"x": seen, "y": seen}, actions={"x": 0, "y": 1}, rewards={"x": 1.0, "y": 2.0})
    config = PPOConfig().multi_agent(policies=["x", "y"], policy_mapping_fn={"x": "x", "y": "y"})
    config.learners(learner_connector=lambda o, a: DropColumns(columns="obs/a"))
    given = [gym.spaces.Dict(x=space, y=space) for space in (spaces, gym.spaces.Discrete(2))]
    pipeline = config.build_learner_connector(*given)
    batch = pipeline(rl_module=None, batch={}, episodes=[both])
    assert {module: own["obs"]["b"].tolist() for module, own in batch.items()} == {"x": [[0.5, 1.0]], "y": [[0.5, 1.0]]}
    assert pipeline.observation_space["x"] == gym.spaces.Dict(b=gym.spaces.Box(-1, 1, (2,)))


BOX = gym.spaces.Box(-1, 1, (2,))


NONE = gym.spaces.Box(-1, 1, (0, 3))


SPACE = gym.spaces.Dict(a=BOX, b=gym.spaces.Dict(c=NONE), d=gym.spaces.Tuple([NONE, BOX, gym.spaces.Dict()]))


LEFT = gym.spaces.Dict(a=BOX, d=gym.spaces.Tuple([BOX]))


def row(t):
    value, nothing = np.full(2, t / 8, np.float32), np.zeros((0, 3), np.float32)
    return {"a": value, "b": {"c": nothing}, "d": (nothing, -value, {})}


def episode(steps):
    rows = [row(t) for t in range(steps + 1)]
    return played(rows)


def test_rows_and_space_on_both_sides(nested):
    trained = nested.train([RemoveEmptyParts()], [episode(3)], space=SPACE)["obs"]
    acting, pipeline = nested.act([RemoveEmptyParts()], [episode(2)], space=SPACE)
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
    rows = [{"a": np.zeros(0)}] * 2
    one = played(rows)
    with pytest.raises(ColumnError, match="a part of 'obs' that stays"):
        nested.train([RemoveEmptyParts()], [one], space=None)
