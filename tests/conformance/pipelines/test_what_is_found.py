"""The properties themselves: each listed difference is met, nothing else is excused, and a planted fault is found."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from batches.acting_differences import ActingSituation
from batches.acting_runs import ActingCall
from batches.beside import hold_acting, hold_learner
from batches.chunks import BatchChunk
from batches.learner_differences import LearnerSituation
from batches.learner_runs import LearnerCall, learner_calls
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch
from oracle import differences

BOX = gym.spaces.Box(-1, 1, (2,))
NESTED = gym.spaces.Dict(a=BOX)
CHOICE = gym.spaces.Discrete(2)


def chunk(length: int = 3, **fields) -> BatchChunk:
    spaces = fields.pop("spaces", (BOX, CHOICE))
    return BatchChunk(*spaces, **{"length": length, "seed": 5, **fields})


LEARNER = {
    "O12": LearnerCall((chunk(id_="a_b"), chunk(2, id_="a_b"))),
    "O28": LearnerCall((chunk(), chunk(2, id_="f")), ppo=(0.9, 0.8)),
    "O29": LearnerCall((chunk(layout="h"),), layout="h", max_seq_len=2, ppo=(0.9, 0.8)),
    "batch-keys": LearnerCall(
        (chunk(), chunk(2, id_="f")), front=("own_rewards_column",), columns=("two_columns_at_once",)
    ),
    "bootstrap-targets": LearnerCall((chunk(), chunk(2, id_="f")), ppo=(0.9, 0.8)),
    "column-types": LearnerCall((chunk(reward="int"),), front=("rewards_at_indices",)),
    "columns": LearnerCall((chunk(),), numpy=False),
    "missing-history": LearnerCall((chunk(t_started=3, lookback=1),), front=("past_observations",)),
    "nested-writes": LearnerCall((chunk(spaces=(NESTED, CHOICE)),), front=("swapped_observations",)),
    "no-steps": LearnerCall((chunk(0), chunk(2, id_="f"))),
    "object-outputs": LearnerCall((chunk(objects=True),)),
    "row-count": LearnerCall((chunk(),), front=("one_item_per_step",), columns=("one_item_per_step",)),
    "row-map": LearnerCall((chunk(spaces=(NESTED, CHOICE)),)),
}
ACTING = {
    "O42": ActingCall((chunk(),)),
    "O43": ActingCall((chunk(),), given="actions"),
    "O44": ActingCall((chunk(spaces=(BOX, gym.spaces.Box(0, np.inf, (3,)))),), seed=3),
    "actions-for-env": ActingCall((chunk(),), normalize=False),
    "columns": ActingCall((chunk(),)),
    "discrete-start": ActingCall((chunk(spaces=(BOX, gym.spaces.Discrete(2, start=3))),)),
    "env-action-types": ActingCall((chunk(),)),
    "greedy-logp": ActingCall((chunk(spaces=(BOX, gym.spaces.MultiDiscrete([2, 2]))),)),
    "missing-history": ActingCall((chunk(1, t_started=3, lookback=1),), users=("newest_frames",)),
    "module-to-env-output": ActingCall((chunk(),)),
}


def explained(situation: type) -> set[str]:
    return {identity for identity, kind, _ in differences._explanations if kind is situation}


def test_every_explanation_has_an_example() -> None:
    assert explained(LearnerSituation) == set(LEARNER)
    assert explained(ActingSituation) == set(ACTING)


@pytest.mark.parametrize(
    ("identity", "hold", "call"),
    [(name, hold_learner, call) for name, call in LEARNER.items()]
    + [(name, hold_acting, call) for name, call in ACTING.items()],
    ids=[*(f"learner-{name}" for name in LEARNER), *(f"acting-{name}" for name in ACTING)],
)
def test_a_listed_difference_is_met_and_nothing_is_excused_without_its_row(identity, hold, call, monkeypatch) -> None:
    before = differences.differences_met[identity]
    hold(call)
    assert differences.differences_met[identity] > before
    monkeypatch.setattr(differences, "IDS", differences.IDS - {identity})
    monkeypatch.setattr("batches.learner_differences.IDS", differences.IDS)
    with pytest.raises(AssertionError, match="not listed"):
        hold(call)


@pytest.mark.slow
def test_a_planted_fault_is_found_and_shrunk(monkeypatch) -> None:
    """One flag is wrong in one corner: truncated chunks of at least five steps."""
    right = AddColumnsFromEpisodesToTrainBatch.run

    def wrong(self, batch, call):
        out = right(self, batch, call)
        ends = np.cumsum(call.counts) - 1
        for i, episode in enumerate(call.episodes):
            if episode.is_truncated and len(episode) >= 5:
                out["truncateds"].data[ends[i] - 1] = True
        return out

    monkeypatch.setattr(AddColumnsFromEpisodesToTrainBatch, "run", wrong)
    smallest: list[LearnerCall] = []

    @settings(
        max_examples=300,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(call=learner_calls(False, numpy=True, front=(), columns=(), batched=()))
    def holds(call):
        smallest.append(call)
        hold_learner(call)

    with pytest.raises(AssertionError, match="truncateds"):
        holds()
    (only,) = smallest[-1].chunks
    assert (only.length, only.end) == (5, "truncated")
