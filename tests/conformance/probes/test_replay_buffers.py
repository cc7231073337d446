"""Faults of replay buffers."""

from __future__ import annotations

from typing import Any

import pytest

from epibatch.episodes.replay import EpisodeReplayBuffer
from oracle.libraries import RLLIB
from oracle.probes import probe

pytestmark = pytest.mark.filterwarnings("ignore")  # of RLlib, about its own future
STARTS = {0: (False, 3), 1: (False, 3), 2: (True, 3)}


@probe("O32", ours={**STARTS, 3: (True, 2), 4: (True, 1)}, theirs={**STARTS, 3: (False, 3), 4: (False, 3)})
def test_steps_that_are_left_at_an_end(library: Any) -> Any:
    """For each start of an episode of 5 steps: whether it was terminated, and of how many steps its reward is."""
    kind: Any = EpisodeReplayBuffer
    if library is RLLIB:
        from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer as kind
    buffer = kind(100)
    buffer.add(
        library.SingleAgentEpisode(
            observations=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], actions=[0] * 5, rewards=[1.0] * 5, terminated=True,
            len_lookback_buffer=0,
        )
    )  # fmt: skip
    drawn = buffer.sample(num_items=200, n_step=3, gamma=0.5, sample_episodes=True, lookback=0)
    found = {
        episode.t_started: (bool(episode.is_terminated), int(episode.get_extra_model_outputs("n_step", -1)))
        for episode in drawn
    }
    return dict(sorted(found.items()))
