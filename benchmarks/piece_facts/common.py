"""Pieces of both sides."""

from benchmarks.piece_facts.facts import Bare, Facts

WHOLE = "it moves rows and computes nothing; timed with its pipeline ([L1 to L4, E1 to E4](../benchmarks/README.md))"


def stacked(episodes):
    """For each episode a strided window of 4 frames, zeros in front, into one array."""
    import numpy as np

    counts = [len(own) for own in episodes]
    out = np.empty((sum(counts), *episodes[0].obs.shape[1:-1], 4), episodes[0].obs.dtype)
    start = 0
    for own, count in zip(episodes, counts):
        padded = np.concatenate([np.zeros((3, *own.obs.shape[1:]), own.obs.dtype), own.obs[:-1]])
        for frame in range(4):
            out[start : start + count, ..., frame] = padded[frame : frame + count, ..., 0]
        start += count
    return out


FACTS = {
    "add_observations_from_episodes_to_batch": Facts(
        Bare("np.concatenate([own.obs[:-1] for own in episodes])", {"as_learner_connector": True}, gives="obs"),
    ),
    "add_other_agents_from_episodes_to_batch": Facts("it is about several agents at once"),
    "add_states_from_episodes_to_batch": Facts(WHOLE),
    "add_time_dim_to_batch_and_zero_pad": Facts(WHOLE),
    "agent_to_module_mapping": Facts(WHOLE),
    "batch_individual_items": Facts(WHOLE),
    "flatten_observations": Facts(
        Bare(
            "np.concatenate([own.obs[:-1] for own in episodes]).reshape(-1, 256).astype(np.float32)",
            {"as_learner_connector": True},
            gives="obs",
            observations="frame",
        ),
    ),
    "frame_stacking": Facts(
        Bare(stacked, {"num_frames": 4, "as_learner_connector": True}, gives="obs", observations="frame"),
    ),
    "numpy_to_tensor": Facts(WHOLE),
    "stack_agents": Facts("it is about several agents at once"),
    "tensor_to_numpy": Facts(WHOLE),
}
