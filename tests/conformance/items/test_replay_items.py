"""Behaviours of replay buffers, stated one by one."""

from __future__ import annotations

import pytest

from epibatch.episodes.replay import EpisodeReplayBuffer
from oracle.libraries import RLLIB
from oracle.probes import behaviour

pytestmark = pytest.mark.filterwarnings("ignore")  # of RLlib, about its own future


def buffer_of(library):
    if library is not RLLIB:
        return EpisodeReplayBuffer(100)
    from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer as Buffer

    return Buffer(100)


def part(library, start, stop, id_="e"):
    """Steps of an episode whose observations and rewards are their numbers."""
    return library.SingleAgentEpisode(
        id_=id_, observations=[float(t) for t in range(start, stop + 1)], actions=[0] * (stop - start),
        rewards=[float(t) for t in range(start, stop)], t_started=start, len_lookback_buffer=0,
    )  # fmt: skip


@behaviour("C65")
def test_chunks_of_one_id_are_one_episode(library):
    buffer = buffer_of(library)
    for start, stop in ((0, 3), (3, 7)):
        buffer.add(part(library, start, stop))
    buffer.add(part(library, 0, 2, "f"))
    assert (buffer.get_num_episodes(), buffer.get_num_timesteps(), buffer.get_added_timesteps()) == (2, 9, 9)


@behaviour("C65")
def test_rewards_of_n_steps_are_summed(library):
    buffer = buffer_of(library)
    for start, stop in ((0, 3), (3, 9)):
        buffer.add(part(library, start, stop))
    drawn = buffer.sample(num_items=60, n_step=3, gamma=0.5, sample_episodes=True, lookback=0)
    for episode in drawn:
        t = int(episode.get_observations(0))
        if t <= 6:
            assert episode.get_rewards(-1) == t + 0.5 * (t + 1) + 0.25 * (t + 2)
            assert episode.get_observations(-1) == t + 3 and episode.get_extra_model_outputs("n_step", -1) == 3
