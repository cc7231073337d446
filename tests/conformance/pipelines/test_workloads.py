"""The learner workloads of the benchmarks, in small: their shapes, both libraries' batches."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from batches.beside import hold_learner
from batches.chunks import BatchChunk, build_all
from batches.learner_runs import LearnerCall
from batches.modules import built
from batches.snapshots import flat_mismatches, snapshot
from oracle.libraries import BOTH

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
def test_train_batches(name):
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
