"""Columns of one row per sequence whose second axis is as long as the sequences, against a loop over the episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columns import ConcatenateColumns, RenameColumns
from epibatch.connectors.sequences import BurnIn, JaggedSequences, PackSequences
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import ColumnError, UnknownNameError
from epibatch.env_runner import make_multi_agent

LENGTHS = [9, 1, 4, 6]


class Doubled(ColumnTransform):
    """Takes rows of [4, 5], sees to it that it gets them, and doubles them."""

    takes_tensors = True
    columns: Any = "memory/h"

    def transform(self, x: Any) -> Any:
        assert tuple(x.shape[1:]) == (4, 5)
        return x * 2


def views() -> TrajectoryViews:
    memory = View("state_out", "-4:-1", per_sequence=True, mask=True)
    return TrajectoryViews(views={"memory": memory}, as_learner_connector=True)


def batch_of(played: Any, module: Any, episodes: Any, *behind: Any, **options: Any) -> dict[str, Any]:
    """A batch with the states of the last four steps, sequences being of four steps, too."""
    pipeline = played.pipeline(behind=behind, **options)
    pipeline.insert_after("AddTimeDimToBatchAndZeroPad", views())
    batch: dict[str, Any] = pipeline(rl_module=module, batch={}, episodes=episodes)
    return batch


def memory_before(episode: Any, row: int) -> tuple[Any, Any]:
    """The recorded h of the four steps before a row, and which of these steps there are."""
    found, there = np.zeros((4, 5), np.float32), np.zeros(4, bool)
    for place, step in enumerate(range(row - 4, row)):
        if step >= 0:
            found[place], there[place] = episode.get_extra_model_outputs("state_out", step)["h"], True
    return found, there


def firsts(episodes: Any, steps: int = 4) -> list[tuple[Any, int]]:
    """The episode and the first row of each sequence."""
    return [(episode, row) for episode in episodes for row in range(0, len(episode), steps)]


def check(batch: Any, expected: list[tuple[Any, int]], factor: float = 1.0, name: str = "memory") -> None:
    rows = [memory_before(episode, row) for episode, row in expected]
    assert batch[name]["h"].shape == (len(rows), 4, 5)
    np.testing.assert_array_equal(batch[name]["h"].numpy(), factor * np.stack([row for row, _ in rows]))
    np.testing.assert_array_equal(batch[f"{name}_mask"].numpy(), np.stack([there for _, there in rows]))


@pytest.mark.parametrize("piece", [None, JaggedSequences, PackSequences])
def test_memory_keeps_its_rows_beside_sequences_that_are_jagged_or_packed(played: Any, piece: Any) -> None:
    module = played.module()
    episodes = played.episodes(module, LENGTHS)
    batch = batch_of(played, module, episodes, *([piece()] if piece else []))
    check(batch, firsts(episodes))
    if piece is JaggedSequences:
        assert batch["obs"].shape == (sum(LENGTHS), 3)


def test_sequences_of_a_bootstrap_row_alone_are_left_out_of_packed_memory(played: Any) -> None:
    module = played.module()
    episodes = played.episodes(module, LENGTHS)
    assert batch_of(played, module, episodes, ppo=True)["memory"]["h"].shape[0] == 8  # 4 steps, and one row behind
    check(batch_of(played, module, episodes, PackSequences(), ppo=True), firsts(episodes))


def test_packing_memory_is_refused_by_name(played: Any) -> None:
    module = played.module()
    with pytest.raises(UnknownNameError, match=r"found: +'memory'"):
        batch_of(played, module, played.episodes(module, [5]), PackSequences(columns=["memory"]))


def test_burning_in_takes_memory_at_the_first_row_that_is_left(played: Any) -> None:
    seen = []

    class Remembering(type(played.module())):
        """Notes the memory that it is given, on its way to burn states in."""

        def forward_train(self, batch: Any, **kwargs: Any) -> Any:
            seen.append((batch["memory"]["h"], batch["memory_mask"], batch["obs"].shape[:2]))
            return super().forward_train(batch, **kwargs)

    options = {"fcnet_hiddens": [6], "use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 4, "burn_in": 2}
    module = Remembering(observation_space=played.obs_space, action_space=played.act_space, model_config=options)
    episodes = played.episodes(module, LENGTHS)
    seen.clear()
    batch = batch_of(played, module, episodes, burn_in=True)
    expected = firsts(episodes, steps=2)
    check(batch, expected)  # sequences of two steps are left, each with what was in front of it
    burned = [(episode, row) for episode, row in expected if row]
    ((memory, mask, shape),) = seen  # a sequence that others stand in front of is burned in from two rows before it
    assert shape == (len(burned), 2)
    check({"memory": {"h": memory}, "memory_mask": mask}, [(episode, row - 2) for episode, row in burned])


@pytest.mark.parametrize("where", ["arrays", "tensors"])
def test_transforms_see_rows_of_a_sequence_and_no_time_axis(played: Any, where: str) -> None:
    module = played.module()
    episodes = played.episodes(module, LENGTHS)
    pipeline = played.pipeline(behind=[Doubled(), JaggedSequences()] if where == "tensors" else [JaggedSequences()])
    pipeline.insert_after("AddTimeDimToBatchAndZeroPad", views())
    if where == "arrays":
        pipeline.insert_after("TrajectoryViews", Doubled())
    check(pipeline(rl_module=module, batch={}, episodes=episodes), firsts(episodes), factor=2.0)


def test_memory_that_was_changed_cannot_be_taken_anew_when_states_are_burned_in(played: Any) -> None:
    module = played.module(burn_in=2)
    pipeline = played.pipeline(burn_in=True)
    pipeline.insert_after("AddTimeDimToBatchAndZeroPad", views())
    pipeline.insert_before("BurnIn", Doubled())
    with pytest.raises(ColumnError, match=r"column 'memory'[\s\S]*put that piece after BurnIn"):
        pipeline(rl_module=module, batch={}, episodes=played.episodes(module, [9]))


def test_renamed_memory_is_memory_still(played: Any) -> None:
    module, names = played.module(), {"memory": "m", "obs": "seen", "memory_mask": "m_mask"}
    episodes = played.episodes(module, LENGTHS)
    batch = batch_of(played, module, episodes, RenameColumns(names=names), JaggedSequences())
    check(batch, firsts(episodes), name="m")
    assert batch["seen"].shape == (sum(LENGTHS), 3)


def test_renamed_memory_is_taken_anew_when_states_are_burned_in(played: Any) -> None:
    module = played.module(burn_in=2)
    episodes = played.episodes(module, LENGTHS)
    pipeline = played.pipeline(behind=[BurnIn()])
    pipeline.insert_after("AddTimeDimToBatchAndZeroPad", views())
    pipeline.insert_before("BurnIn", RenameColumns(names={"memory": "m", "memory_mask": "m_mask"}))
    check(pipeline(rl_module=module, batch={}, episodes=episodes), firsts(episodes, steps=2), name="m")


def test_what_is_joined_of_columns_per_sequence_is_one_too_and_others_are_refused(played: Any) -> None:
    module = played.module()
    episodes = played.episodes(module, LENGTHS)
    joined = ConcatenateColumns(columns=["memory/h", "memory/c"], to="m", axis=-1, keep=True)
    batch = batch_of(played, module, episodes, joined, JaggedSequences())
    assert torch.equal(batch["m"], torch.cat([batch["memory"]["h"], batch["memory"]["c"]], -1))
    mixed = ConcatenateColumns(columns=["memory/h", "obs"], to="m", axis=-1, keep=True)
    with pytest.raises(ColumnError, match="'memory' and 'obs', whose rows are of others"):
        batch_of(played, module, episodes, mixed)


@pytest.mark.parametrize("burn_in", [0, 1])
@pytest.mark.parametrize("shared", [True, False])
def test_memory_of_several_agents_is_that_in_front_of_the_first_row_of_each_sequence(
    shared: bool, burn_in: int
) -> None:
    """The row is found by its observation, in all agents' parts of the episodes."""
    model = {"use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 4 + burn_in, "burn_in": burn_in}
    memory = View("state_out", "-4:-1", per_sequence=True, mask=True)
    other = "p" if shared else "q"
    config = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2}).debugging(seed=0)
    config.rl_module(model_config=model, view_requirements={"memory": memory})
    config.multi_agent(policies=sorted({"p", other}), policy_mapping_fn={"0": "p", "*": other})
    algo = config.build_algo()
    chunks = algo.env_runner.sample(num_timesteps=60)
    pipeline = algo.learner.connector
    plain = pipeline(rl_module=algo.learner.module, batch={}, episodes=chunks)
    pipeline.append(JaggedSequences())
    batch = pipeline(rl_module=algo.learner.module, batch={}, episodes=chunks)
    algo.stop()
    rows = {}
    for segment in (segment for chunk in chunks for segment in chunk.segments):
        for row, obs in enumerate(segment.episode.get_observations()):
            rows.setdefault(obs.tobytes(), (segment.episode, row))
    for module_id, own in batch.items():
        firsts_seen = plain[module_id]["obs"][:, 0].numpy()
        check(own, [rows[obs.tobytes()] for obs in firsts_seen])
        assert len(own["obs"]) == int(own["seq_lens"].sum())
