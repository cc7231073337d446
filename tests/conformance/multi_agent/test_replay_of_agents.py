"""Replay buffers of several agents beside RLlib's: what they count of random episodes and parts of episodes.

RLlib lets the oldest episodes go as a whole, and counts capacity in env steps. So they are compared as long as nothing
has to go, and no agent's step is open at the end of a part.
"""

from __future__ import annotations

import numpy as np
import pytest
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.utils.replay_buffers.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer as RLlibBuffer

from epibatch.episodes import MultiAgentEpisode
from epibatch.episodes.replay import MultiAgentEpisodeReplayBuffer

MODULES = {"a": "one", "b": "one", "c": "two", "d": "three"}


def module_of(agent_id, episode=None, **_):
    return MODULES[agent_id]


def check_counters(seed):
    """Counts are those of RLlib's buffer, as long as nothing has to go."""
    rng = np.random.default_rng(seed)
    ours, theirs = MultiAgentEpisodeReplayBuffer(10_000, seed=seed), RLlibBuffer(10_000)
    for number in range(int(rng.integers(1, 6))):
        mapping = {"agent_to_module_mapping_fn": module_of}
        pair = [kind(id_=f"e{number}", **mapping) for kind in (MultiAgentEpisode, RLlibEpisode)]
        agents = [agent for agent in MODULES if rng.random() < 0.6] or ["b"]
        for episode in pair:
            episode.add_env_reset(observations={agent: rng.random() for agent in agents})
        for part in range(int(rng.integers(1, 4))):
            if part:
                pair = [episode.cut() for episode in pair]
            steps = int(rng.integers(1, 6))
            for step in range(steps):
                end = rng.random() < 0.2 and step == steps - 1
                values = [dict.fromkeys(agents, value) for value in (rng.random(), 1, 0.5)]
                ends = {"terminateds": {"__all__": True}} if end else {}
                for episode in pair:
                    episode.add_env_step(*values, **ends)
            ours.add(pair[0])
            theirs.add(pair[1])
            if end:
                break
    assert set(ours.get_module_ids()) == set(theirs.get_module_ids())
    for name in ("get_num_timesteps", "get_added_timesteps", "get_num_episodes", "get_num_episodes_evicted"):
        for module in (None, *ours.get_module_ids()):
            assert getattr(ours, name)(module) == getattr(theirs, name)(module), (name, module)
    for name in ("get_num_agent_timesteps", "get_added_agent_timesteps", "__len__"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name


@pytest.mark.parametrize("first", [0, 100])
def test_counters_are_rllibs(first):
    for seed in range(first, first + 50):
        check_counters(seed)
