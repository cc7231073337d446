"""Algorithms whose runners and learners are processes of their own."""

from __future__ import annotations

import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError


def config(**env_runners):
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, num_cpus_per_env_runner=0, **env_runners)
        .training(train_batch_size=200, minibatch_size=50, num_epochs=2)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=3)
    )


# ------------------------------------------------------------------------------------------- wrong settings


@pytest.mark.parametrize("place", ["environment.env", "callbacks.on_episode_end", "learners.learner_connector"])
def test_a_setting_that_cannot_be_sent_is_named(tmp_path, place):
    section, name = place.split(".")
    with open(tmp_path / "log.txt", "w") as file:
        settings = getattr(config(), section)(**{name: lambda *_, **__: file.write("")})
        with pytest.raises(ConfigError, match=rf"(?s)^{place}.*TextIOWrapper at {place}"):
            settings.build_algo()
