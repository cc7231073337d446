from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.errors import RunnerArgumentError


@pytest.mark.parametrize(
    ("settings", "given", "steps", "whole"),
    [
        ({"rollout_fragment_length": 7}, {}, 21, False),
        ({"batch_mode": "complete_episodes"}, {}, None, True),
        ({}, {"num_timesteps": np.int64(6)}, 6, False),
        ({}, {"num_episodes": 0}, 0, True),
    ],
)
def test_a_number_or_the_config_decides(toys, settings, given, steps, whole):
    episodes = toys.runner(3, **settings).sample(**given)
    assert steps is None or steps <= sum(map(len, episodes)) < steps + 3
    assert not whole or (all(episode.is_done for episode in episodes) and len(episodes) == (3 if steps is None else 0))


@pytest.mark.parametrize(
    "given", [{"num_timesteps": 1.5}, {"num_episodes": -1}, {"num_timesteps": 1, "num_episodes": 1}]
)
def test_what_is_refused(toys, given):
    with pytest.raises(RunnerArgumentError, match="an int of at least 0"):
        toys.runner().sample(**given)
