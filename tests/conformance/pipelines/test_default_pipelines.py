"""Default pieces and pipelines beside RLlib's: after each piece, at the end, alone, and in workloads of benchmarks."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from batches.acting_runs import acting_calls
from batches.beside import hold_acting, hold_learner
from batches.chunks import BatchChunk, build_all, built
from batches.learner_runs import WAYS, LearnerCall, learner_calls
from batches.stages import flat_mismatches, snapshot
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch
from oracle.behaviours import holds
from oracle.cases import random_cases
from oracle.libraries import BOTH


@holds("C40", "C44", "C45", "C47")
@random_cases(call=learner_calls(False))
def test_train_batches(call):
    hold_learner(call, (*WAYS, "two pipelines"))


@holds("C40", "C43", "C44", "C54")
@random_cases(call=learner_calls(True))
def test_train_batches_with_bootstrap_rows_and_advantages(call):
    hold_learner(call)


@holds("C40", "C45", "C46", "C47", "C53")
@random_cases(call=acting_calls())
def test_a_vector_step(call):
    hold_acting(call)


@random_cases(call=learner_calls(False, front=(), columns=(), batched=()))
def test_pieces_of_a_learner_pipeline(call):
    hold_learner(call, ("alone",))


@random_cases(call=acting_calls(users=()))
def test_pieces_of_acting_pipelines(call):
    hold_acting(call, ("alone",))


VECTOR = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)
EXTRAS = ("action_dist_inputs", "action_logp", "vf_preds", "weights_seq_no")


def chunks(spaces, count=12, layout="", seed=3):
    """Chunks of 1 to 40 steps: some go on from the chunk before, and they end in all ways."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        started = int(rng.integers(0, 2)) * 7
        fields = {
            "t_started": started,
            "lookback": min(started, 4),
            "end": str(rng.choice(["running", "terminated", "truncated"])),
        }
        out.append(
            BatchChunk(
                *spaces, length=int(rng.integers(1, 40)), id_=f"e{i}", extras=EXTRAS, layout=layout, seed=i, **fields
            )
        )
    return tuple(out)


PLAIN = chunks((VECTOR, gym.spaces.Discrete(4)))
WORKLOADS = {
    "L1": LearnerCall(PLAIN),
    "L2": LearnerCall(chunks((VECTOR, gym.spaces.Discrete(4)), layout="h and c"), "h and c", 20),
    "L5": LearnerCall(PLAIN, ppo=(0.99, 0.95)),
    "L6": LearnerCall(PLAIN, front=("reward_of_every_step",)),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_train_batches_of_workloads(name):
    equal = hold_learner(WORKLOADS[name])
    assert all(equal) or name == "L5"  # whose advantages and bootstrap targets are listed differences


def test_stacked_frames():
    """L3: images in stacks of four."""
    made = chunks((gym.spaces.Box(0, 255, (12, 12, 1), np.uint8), gym.spaces.Discrete(4)), count=6)
    call, out = LearnerCall(made), []
    for library in BOTH:
        stack = library.module("connectors.common.frame_stacking").FrameStacking
        pieces = [stack(num_frames=4, as_learner_connector=True), *call.pieces(library)]
        pipeline = library.learner.LearnerConnectorPipeline(*call.spaces, connectors=pieces)
        module = built(library, call.spaces, "", multi=True)
        batch = pipeline(rl_module=module, batch={}, episodes=build_all(library, made), shared_data={})
        out.append(snapshot(batch))
    assert flat_mismatches(*out) == []
    assert out[1]["default_policy", "obs"].shape == (sum(chunk.length for chunk in made), 12, 12, 4)


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
    @given(call=learner_calls(False, front=(), columns=(), batched=()))
    def holds(call):
        smallest.append(call)
        hold_learner(call)

    with pytest.raises(AssertionError, match="truncateds"):
        holds()
    (only,) = smallest[-1].chunks
    assert (only.length, only.end) == (5, "truncated")
