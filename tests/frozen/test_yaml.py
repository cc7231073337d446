"""`to_yaml()` of ten configs, compared with the text that was written before."""

from __future__ import annotations

from pathlib import Path

import pytest

from epibatch.algorithms import AgentMapping, PolicySpec, PPOConfig
from epibatch.connectors.views import View

TEXTS = Path(__file__).with_name("yaml")


def plain():
    return PPOConfig().environment("CartPole-v1")


def training():
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=64)
        .training(lr=3e-4, gamma=0.98, lambda_=0.95, clip_param=0.2, vf_clip_param=float("inf"), entropy_coeff=1e-3)
        .training(train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=10, use_kl_loss=False)
        .training(grad_clip=0.5, grad_clip_by="norm", shuffle_batch_per_epoch=False)
        .debugging(seed=7, log_level="INFO")
    )


def lstm():
    network = {"fcnet_hiddens": [16, 8], "use_lstm": True, "lstm_cell_size": 8, "use_prev_action": True}
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .training(train_batch_size=200, minibatch_size=100)
        .rl_module(model_config={**network, "max_seq_len": 10, "sequence_end": "overlap", "burn_in": 2})
    )


def continuous():
    return (
        PPOConfig()
        .environment("Pendulum-v1", env_config={"g": 9.81}, clip_actions=True, normalize_actions=False)
        .env_runners(gym_env_vectorize_mode="async", gym_env_autoreset_mode="same_step", explore=False)
        .rl_module(model_config={"squash_actions": True, "free_log_std": True, "log_std_clip_param": 5.0})
    )


def images():
    wrappers = [{"wrapper": "TimeLimit", "max_episode_steps": 200}, "RecordEpisodeStatistics"]
    return (
        PPOConfig()
        .environment("CartPole-v1", env_config={"render_mode": "rgb_array"}, wrappers=wrappers)
        .env_runners(env_to_module_connector=[{"piece": "resize", "height": 42, "width": 42}, "to_chw_float"])
        .training(learner_connector=["to_chw_float"])
        .rl_module(model_config={"conv_filters": [[16, 4, 2], [32, 4, 2]], "conv_activation": "silu"})
    )


def pieces():
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            env_to_module_connector=["mean_std_filter", {"piece": "frame_stacking", "num_frames": 4}],
            module_to_env_connector=[{"piece": "rename_columns", "names": {"vf_preds": "values"}}],
            add_default_connectors_to_module_to_env_pipeline=False,
        )
        .learners(learner_connector=[{"piece": "reward_clipping"}, {"piece": "frame_stacking", "num_frames": 4}])
    )


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


def evaluation():
    return (
        PPOConfig()
        .environment("CartPole-v1", env_config={"sutton_barto_reward": True})
        .evaluation(
            evaluation_interval=5,
            evaluation_duration=20_000,
            evaluation_duration_unit="timesteps",
            evaluation_config={"env_config": {"sutton_barto_reward": False}, "explore": True}
            | {"num_envs_per_env_runner": 4, "wrappers": [{"wrapper": "TimeLimit", "max_episode_steps": 50}]},
        )
        .stopping(evaluation_return_mean=475, training_iteration=100)
    )


def runs():
    text = """
    algorithm: ppo
    environment: {env: pettingzoo/classic/rps_v2}
    training: {lr: 3e-4, lambda: 0.95, train_batch_size: 1_000}
    multi_agent: {policies: [player_0, player_1], policy_mapping_fn: {"*_0": player_0, "*": player_1}}
    callbacks: {on_train_result: "pprint:pprint"}
    reporting: {loggers: [jsonl, tensorboard], metrics_num_episodes_for_smoothing: 20}
    checkpointing: {checkpoint_frequency: 10, checkpoint_interval_s: null, num_to_keep: null, end_episodes: true}
    debugging: {time_pieces: true}
    stop: {env_runners/episode_return_mean: 475, num_env_steps_sampled_lifetime: 400_000, time_total_s: 60}
    """
    return PPOConfig.from_yaml(text, allow_imports=True)


LATER = {
    "check_first_update: warn",
    "checkpoint_score_order: max",
    "curve: env_runners/episode_return_mean",
    "failed_episodes: truncate",
    "fault_tolerance:",
    "max_sub_environment_restarts_per_sample: 100",
    "num_envs_per_worker: 1",
    "optimizer: adam",
    "restart_failed_sub_environments: false",
    "results: {}",
}
"""Settings that came later, with their defaults."""
CONFIGS = [plain, training, lstm, continuous, images, pieces, views, agents, evaluation, runs]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_configs_are_written_as_before(config):
    text = (TEXTS / f"{config.__name__}.yaml").read_text(encoding="utf-8")
    assert config().to_yaml() == text
    older = "".join(line for line in text.splitlines(keepends=True) if line.strip() not in LATER)
    assert PPOConfig.from_yaml(text, allow_imports=True).to_yaml() == text
    assert PPOConfig.from_yaml(older, allow_imports=True).to_yaml() == text
