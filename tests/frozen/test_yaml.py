"""Ten configs as they were written before: they load, and they are written in the same way again."""

from __future__ import annotations

from pathlib import Path

import pytest

from epibatch.algorithms import AgentMapping, PolicySpec, PPOConfig
from epibatch.connectors.views import View

TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).with_name("yaml").glob("*.yaml")}


def views():
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .learners(columns="auto")
        .rl_module(
            model_config={"fcnet_hiddens": [8]},
            view_requirements={
                "prev_rewards": View("rewards", shift=-1),
                "last_actions": View("actions", shift="-3:-1"),
                "frames": {"column": "obs", "shift": [-2, 0]},
            },
        )
    )


def agents():
    return (
        PPOConfig()
        .environment("cart_poles", env_config={"num_agents": 3})
        .env_runners(batch_mode="complete_episodes")
        .multi_agent(
            policies={
                "first": PolicySpec(config={"lr": 5e-4, "clip_param": 0.1}),
                "others": {"model_config": {"use_lstm": True, "max_seq_len": 5}},
            },
            policy_mapping_fn=AgentMapping({"0": "first", "*": "others"}),
            policies_to_train=["first"],
            count_steps_by="agent_steps",
        )
        .rl_module(algorithm_config_overrides_per_module={"others": {"gamma": 0.9}})
    )


LATER = {
    "check_first_update: warn",
    "checkpoint_score_order: max",
    "curve: env_runners/episode_return_mean",
    "env_resets_itself: false",
    "episode_end: all",
    "failed_episodes: truncate",
    "fault_tolerance:",
    "keep_running_episodes: false",
    "max_sub_environment_restarts_per_sample: 100",
    "no_done_at_end: false",
    "num_envs_per_worker: 1",
    "optimizer: adam",
    "restart_failed_sub_environments: false",
    "results: {}",
    "soft_horizon: false",
}
"""Settings that came later, with their defaults."""


@pytest.mark.parametrize("name", TEXTS)
def test_configs_are_written_as_before(name):
    text = TEXTS[name]
    older = "".join(line for line in text.splitlines(keepends=True) if line.strip() not in LATER)
    for written in (text, older):
        assert PPOConfig.from_yaml(written, allow_imports=True).to_yaml() == text


@pytest.mark.parametrize("config", [views, agents], ids=lambda config: config.__name__)
def test_objects_are_written_as_before(config):
    assert config().to_yaml() == TEXTS[config.__name__]
