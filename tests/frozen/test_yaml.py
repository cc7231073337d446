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
    "broadcast_env_runner_states: true",
    "check_first_update: warn",
    "checkpoint_score_order: max",
    "curve: env_runners/episode_return_mean",
    "custom_resources_per_env_runner: {}",
    "env_resets_itself: false",
    "env_runner_health_probe_timeout_s: 30.0",
    "episode_end: all",
    "evaluation_force_reset_envs_before_iteration: true",
    "evaluation_parallel_to_training: false",
    "evaluation_sample_timeout_s: 120.0",
    "evaluation_sets: {}",
    "failed_episodes: truncate",
    "fault_tolerance:",
    "held_out: 0.0",
    "ignore_env_runner_failures: false",
    "keep_running_episodes: false",
    "max_num_env_runner_restarts: 1000",
    "max_num_learner_restarts: 100",
    "max_requests_in_flight_per_env_runner: 1",
    "max_sub_environment_restarts_per_sample: 100",
    "merge_env_runner_states: training_only",
    "no_done_at_end: false",
    "num_aggregator_actors_per_learner: 0",
    "num_consecutive_env_runner_failures_tolerance: 100",
    "num_cpus_per_env_runner: 1.0",
    "num_cpus_per_learner: auto",
    "num_envs_per_worker: 1",
    "num_gpus_per_env_runner: 0.0",
    "num_gpus_per_learner: 0.0",
    "offline_data:",
    "offline_evaluation_interval: 1",
    "optimizer: adam",
    "restart_failed_env_runners: true",
    "restart_failed_learners: true",
    "restart_failed_sub_environments: false",
    "results: {}",
    "sample_timeout_s: 60.0",
    "sample_while_learning: false",
    "soft_horizon: false",
    "torch_compile_learner: false",
    "torch_compile_learner_dynamo_backend: inductor",
    "torch_compile_worker: false",
    "torch_compile_worker_dynamo_backend: inductor",
    "use_clipped_value_loss: false",
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
