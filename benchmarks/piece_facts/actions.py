"""Pieces about actions."""

from benchmarks.piece_facts.facts import Bare, Facts

FACTS: dict[str, Facts] = {
    "action_mask": Facts("it needs masks in the observations, `mask != 0`, which the sample does not have"),
    "clip_actions": Facts(Bare("np.clip(actions, -0.5, 0.5)", {"low": -0.5, "high": 0.5}, actions="box")),
    "discretize_actions": Facts(
        Bare("((actions.astype(np.float64) + 1) / (2 / 11)).clip(0, 10).astype(np.int64)", actions="box"),
    ),
    "episode_noise": Facts("it draws once for an episode, and then repeats it"),
    "project_discrete_actions": Facts(
        "it maps back what the module chose, `choices % n`, where the environment acts",
    ),
    "rescale_actions": Facts(
        Bare(
            "(actions.astype(np.float64) * 2).astype(np.float32).clip(-2, 2)", {"low": -2.0, "high": 2.0}, actions="box"
        )
    ),
}
