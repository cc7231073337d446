"""A fault of ours is found where a listed difference lies as well: that excuses only what the page says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from batches.acting_runs import ActingCall
from batches.beside import hold_acting, hold_learner
from batches.chunks import BatchChunk
from batches.learner_runs import LearnerCall
from epibatch.connectors.common import AddStatesFromEpisodesToBatch, BatchIndividualItems, NumpyToTensor
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, GeneralAdvantageEstimation
from epibatch.connectors.module_to_env import GetActions, NormalizeAndClipActions
from epibatch.core.errors import LookbackError
from epibatch.episodes import SingleAgentEpisode
from oracle.episode_operations import cut, join, round_trip, slice_
from oracle.episodes import Chunk
from oracle.twins import Case, Twins
from oracle.writes import Write, write

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
CHOICE = gym.spaces.Discrete(2)
LATE = gym.spaces.Tuple((gym.spaces.Discrete(2, start=3), gym.spaces.Discrete(2, start=3)))


def chunk(actions: Any = CHOICE, length: int = 3, **fields: Any) -> BatchChunk:
    return BatchChunk(BOX, actions, length, **{"seed": 5, "id_": "e", **fields})


def without_logp(batch: Any) -> None:
    del batch["action_logp"]


def another_logp(batch: Any) -> None:
    batch["action_logp"] = batch["action_logp"] + 1


def another_action(batch: Any) -> None:
    column = batch["actions_for_env"]
    batch["actions_for_env"] = type(column)(column.data + 1, column.counts)


def start_of_the_first_part_only(batch: Any) -> None:
    first, second = batch["actions"]
    batch["actions"] = (first, second - 3)


def observations_of_64_bits(batch: Any) -> None:
    batch["obs"] = batch["obs"].double()


def rewards_of_32_bits(batch: Any) -> None:
    column = batch["rewards"]
    batch["rewards"] = type(column)(column.data.astype(np.float32), column.counts)


def advantages_of_64_bits(batch: Any) -> None:
    batch["default_policy"]["advantages"] = batch["default_policy"]["advantages"].double()


def other_past_rewards(batch: Any) -> None:
    batch["default_policy"]["past_rewards"][-1, -1] += 1


def targets_in_a_column(batch: Any) -> None:
    batch["default_policy"]["value_targets"] = torch.unsqueeze(batch["default_policy"]["value_targets"], -1)


BATCHES = {
    "greedy-logp": (GetActions, without_logp, ActingCall((chunk(),))),
    "O43": (GetActions, another_logp, ActingCall((chunk(),), given="actions")),
    "actions-for-env": (NormalizeAndClipActions, another_action, ActingCall((chunk(),), normalize=False)),
    "discrete-start": (GetActions, start_of_the_first_part_only, ActingCall((chunk(LATE),))),
    "O42": (NumpyToTensor, observations_of_64_bits, ActingCall((chunk(),))),
    "column-types": (
        BatchIndividualItems,
        other_past_rewards,
        LearnerCall((chunk(reward="int"),), front=("rewards_at_indices", "past_rewards"), seed=1),
    ),
    "O28": (GeneralAdvantageEstimation, advantages_of_64_bits, LearnerCall((chunk(),), ppo=(0.9, 0.8))),
    "bootstrap-targets": (GeneralAdvantageEstimation, targets_in_a_column, LearnerCall((chunk(),), ppo=(0.9, 0.8))),
}


@pytest.mark.parametrize("beside", BATCHES)
def test_of_a_batch(beside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piece, spoil, call = BATCHES[beside]
    right = piece.run

    def wrong(self: Any, batch: Any, call: Any) -> Any:
        out = right(self, batch, call)
        spoil(out)
        return out

    hold: Callable[[Any], Any] = hold_acting if isinstance(call, ActingCall) else hold_learner
    hold(call)
    monkeypatch.setattr(piece, "run", wrong)
    with pytest.raises(AssertionError, match="not listed"):
        hold(call)


def of_the_first_chunk(right: Any, self: Any, batch: Any, call: Any) -> Any:
    try:
        return right(self, batch, call)
    except LookbackError as error:
        raise LookbackError(str(error).replace("chunk 1 of 2", "chunk 0 of 2")) from None


def whatever_the_lookback(right: Any, self: Any, batch: Any, call: Any) -> Any:
    if not call.counts.all():
        raise LookbackError("too little of it")
    return right(self, batch, call)


def other_rewards(right: Any, self: Any, batch: Any, call: Any) -> Any:
    out = right(self, batch, call)
    rewards_of_32_bits(out)
    return out


def other_notes(right: Any, self: Any, batch: Any, call: Any) -> Any:
    out = right(self, batch, call)
    out["default_policy"]["notes"][1][0] += "!"
    return out


RECURRENT = {"layout": "h", "id_": "e_9"}
LATE_CHUNKS = (chunk(length=0, **RECURRENT), chunk(length=2, t_started=2, **RECURRENT))
NOTED = (chunk(objects=True, **RECURRENT), chunk(length=2, objects=True, seed=6, **RECURRENT))
ALONE = {
    "no-steps": (AddColumnsFromEpisodesToTrainBatch, other_rewards, LearnerCall((chunk(length=0), chunk(id_="f")))),
    "no-steps and too little lookback": (
        AddStatesFromEpisodesToBatch,
        of_the_first_chunk,
        LearnerCall(LATE_CHUNKS, layout="h"),
    ),
    "no-steps and an error that should not be": (
        AddStatesFromEpisodesToBatch,
        whatever_the_lookback,
        LearnerCall((LATE_CHUNKS[0], chunk(length=2, t_started=2, lookback=1, **RECURRENT)), layout="h"),
    ),
    "object-outputs": (BatchIndividualItems, other_notes, LearnerCall(NOTED, layout="h", max_seq_len=4)),
    "object-outputs and no-steps": (
        BatchIndividualItems,
        other_notes,
        LearnerCall((*NOTED, chunk(length=0, objects=True, **RECURRENT)), layout="h", max_seq_len=4),
    ),
}


@pytest.mark.parametrize("beside", ALONE)
def test_of_a_piece_that_is_called_alone(beside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piece, fault, call = ALONE[beside]
    right = piece.run
    assert hold_learner(call, ("alone",)) == [False]
    monkeypatch.setattr(piece, "run", lambda self, batch, call: fault(right, self, batch, call))
    with pytest.raises(AssertionError, match="not listed"):
        hold_learner(call, ("alone",))


NESTED = Chunk(gym.spaces.Tuple((BOX,)), CHOICE, 4, lookback=3, t_started=3)
NESTED_ACTIONS = Chunk(BOX, gym.spaces.Tuple((BOX,)), 4)
FLAT = Chunk(BOX, CHOICE, 4)
EMPTY = Chunk(BOX, CHOICE, 0, extras=("vf_preds",))


def join_steps(twins: Twins) -> None:
    others = Twins(*Case(Chunk(BOX, CHOICE, 2, extras=("vf_preds",)), True, "own").build(), arrays=True)
    for mine, other in ((twins.theirs, others.theirs), (twins.ours, others.ours)):
        mine.set_observations(new_data=other.get_observations(0), at_indices=0)
    join(twins, (others.theirs, others.ours), "right")


EPISODES = {
    "O60, slice": ("slice", NESTED, lambda twins: slice_(twins, slice(1, 3), 3)),
    "O60, no rows": ("slice", NESTED_ACTIONS, lambda twins: (cut(twins, 0), slice_(twins, slice(1, None), 1))),
    "O60, cut": ("cut", NESTED, lambda twins: cut(twins, 3)),
    "extra-keys": ("concat_episode", EMPTY, join_steps),
    "set-arrays": ("set_actions", FLAT, lambda twins: write(twins, Write(1, slice(0, 2)))),
    "state-no-steps": ("from_state", EMPTY, round_trip),
}


@pytest.mark.parametrize("beside", EPISODES)
def test_of_an_episode(beside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The episode, or what the call gives, says that it is truncated."""
    name, chunk, do = EPISODES[beside]

    def twins() -> Twins:
        return Twins(*Case(chunk, True, "own").build(), arrays=True)

    do(twins())
    right = getattr(SingleAgentEpisode, name)

    def wrong(*arguments: Any, **keywords: Any) -> Any:
        out = right(*arguments, **keywords)
        (arguments[0] if out is None else out).is_truncated = True
        return out

    monkeypatch.setattr(SingleAgentEpisode, name, staticmethod(wrong) if name == "from_state" else wrong)
    with pytest.raises(AssertionError, match="not listed"):
        do(twins())
