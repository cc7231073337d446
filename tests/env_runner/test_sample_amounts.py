from __future__ import annotations

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import RunnerArgumentError
from epibatch.env_runner.sample_amounts import sample_amounts


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rollout_fragment_length": 7}, (21, None)),
        ({"batch_mode": "complete_episodes"}, (None, 3)),
    ],
)
def test_without_a_number_the_config_decides(settings, expected):
    config = PPOConfig().env_runners(num_envs_per_env_runner=3, **settings)
    assert sample_amounts(config, 3, 0) == expected


@pytest.mark.parametrize("given", [{"num_timesteps": np.int64(5)}, {"num_episodes": 0}])
def test_a_number_is_taken_as_it_is(given):
    steps, episodes = sample_amounts(PPOConfig(), 3, 0, **given)
    assert {"num_timesteps": steps, "num_episodes": episodes} == {"num_timesteps": None, "num_episodes": None} | given


@pytest.mark.parametrize(
    "given", [{"num_timesteps": 1.5}, {"num_episodes": -1}, {"num_timesteps": 1, "num_episodes": 1}]
)
def test_what_is_refused(given):
    with pytest.raises(RunnerArgumentError, match="an int of at least 0"):
        sample_amounts(PPOConfig(), 3, 0, **given)
