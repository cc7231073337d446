"""Draw docs/batch-episodes.svg and docs/batch-cells.svg: two episodes, and the train batch that they become.

Usage: python docs/make_batch_pictures.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from epibatch.algorithms.ppo import PPOConfig
from epibatch.episodes import SingleAgentEpisode


def episode(id_, first, steps, lookback=0, **ends):
    """Return a chunk from step `first` on, whose recorded states are numbers of their steps."""
    times = range(first - lookback, first + steps)
    return SingleAgentEpisode(
        id_=id_,
        observations=[np.full(4, t, np.float32) for t in range(first - lookback, first + steps + 1)],
        actions=[0 for _ in times],
        rewards=[1.0 for _ in times],
        extra_model_outputs={
            "action_logp": [np.float32(-0.7) for _ in times],
            "action_dist_inputs": [np.zeros(2, np.float32) for _ in times],
            "state_out": [{key: np.full(4, t + 1, np.float32) for key in "hc"} for t in times],
        },
        t_started=first,
        len_lookback_buffer=lookback,
        **ends,
    )


def main() -> None:
    """Write the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    model = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4, "fcnet_hiddens": [4]}
    algo = PPOConfig().environment("CartPole-v1").rl_module(model_config=model).debugging(seed=0).build_algo()
    chunks = [episode("a", 0, 6), episode("a", 6, 5, lookback=2, terminated=True), episode("b", 0, 3, truncated=True)]
    inspection = algo.learner.connector.inspect(chunks, algo.learner.module)
    algo.stop()
    for part, name in (("episodes", "batch-episodes.svg"), ("batch", "batch-cells.svg")):
        (folder / name).write_text(inspection.svg(part), encoding="utf-8")


if __name__ == "__main__":
    main()
