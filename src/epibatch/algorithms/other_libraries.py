"""Names of other libraries, of RLlib's configs first, and what to use here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from epibatch.core.errors import nearest
from epibatch.core.rl_module.default_model_config import DefaultModelConfig

ACT = "use act(obs, state), which returns (action, state)"
"""In place of a policy's methods of other libraries."""

RLLIB_METHODS: dict[str, str] = {
    "build": "use build_algo()",
    "experimental": "leave it out: nothing is experimental here",
    "exploration": "use env_runners(explore=...); of DQN also training(epsilon=[[0, 1.0], [10_000, 0.05]])",
    "rollouts": "use env_runners(...)",
}
"""Methods of RLlib's configs that are not here -> what to do instead."""

_ALWAYS = "leave it out: PPO always has a critic and generalised advantages"
_SCHEDULE = "use {0}=[[0, first value], [environment steps, value], ...]"
_OPTIMIZER = "use optimizer: training(optimizer={'optimizer': 'adam', 'weight_decay': 0.01, 'eps': 1e-5})"
_STANDARDIZE = "use standardize_advantages: 'batch' (or True), 'minibatch', or False"
_DEVICE = "use learners(device='cuda')"
_CLIPPED_VALUES = (
    "use use_clipped_value_loss; vf_clip_param is something else: it bounds the squared error of each value"
)
_BUFFER = "use replay_buffer_config={'capacity': ...}"
_INTENSITY = "use training_intensity (drawn steps for each sampled one)"
_NOT_HERE = "leave it out: nothing here does this"
_ITERATION = "use train_batch_size; with replay, IMPALA or APPO min_env_steps_per_iteration of a subclass of the config"
_HELD_OUT = "use held_out: offline_data(held_out=0.1) evaluates so much of the episodes"
_DATA = "leave it out: input_ and output are paths, and epibatch data convert writes other formats"
_NO_WAIT = "leave it out: processes are replaced at once, and the others go on meanwhile"

OTHER_SETTINGS: dict[str, str] = {
    "adam_epsilon": _OPTIMIZER,
    "anneal_lr": _SCHEDULE.format("lr"),
    "batch_size": "use minibatch_size (steps of a minibatch), or train_batch_size (steps of an iteration)",
    "buffer_size": _BUFFER,
    "clip_coef": "use clip_param",
    "clip_epsilon": "use clip_param",
    "clip_range": "use clip_param",
    "clip_range_vf": _CLIPPED_VALUES,
    "clip_rewards": "use the piece RewardClipping or RewardSign in the learner pipeline",
    "clip_vloss": _CLIPPED_VALUES,
    "critic_coeff": "use vf_loss_coeff",
    "delay_between_env_runner_restarts_s": _NO_WAIT,
    "discount_factor": "use gamma",
    "end_e": _SCHEDULE.format("epsilon"),
    "ent_coef": "use entropy_coeff",
    "entropy_coef": "use entropy_coeff",
    "entropy_coeff_schedule": _SCHEDULE.format("entropy_coeff"),
    "env_runner_restore_timeout_s": _NO_WAIT,
    "eps": _OPTIMIZER,
    "eps_clip": "use clip_param",
    "exploration_final_eps": _SCHEDULE.format("epsilon"),
    "exploration_fraction": _SCHEDULE.format("epsilon"),
    "frames_per_batch": "use train_batch_size (steps of an iteration)",
    "gae_lambda": "use lambda_",
    "gradient_steps": _INTENSITY,
    "hidden_dims": "use model_config: rl_module(model_config={'fcnet_hiddens': [...]})",
    "hidden_sizes": "use model_config: rl_module(model_config={'fcnet_hiddens': [...]})",
    "lam": "use lambda_",
    "learning_rate": "use lr",
    "learning_starts": "use num_steps_sampled_before_learning_starts",
    "lmbda": "use lambda_",
    "lr_schedule": _SCHEDULE.format("lr"),
    "max_grad_norm": "use grad_clip",
    "n_envs": "use num_envs_per_env_runner",
    "n_epochs": "use num_epochs",
    "n_steps": "use rollout_fragment_length (steps of each environment)",
    "norm_adv": _STANDARDIZE,
    "normalize_advantage": _STANDARDIZE,
    "normalize_advantages": _STANDARDIZE,
    "num_envs": "use num_envs_per_env_runner",
    "num_envs_per_worker": "use num_envs_per_env_runner",
    "num_gpu_loader_threads": "leave it out: batches are made where the learner is",
    "num_gpus": _DEVICE,
    "num_learning_epochs": "use num_epochs",
    "num_mini_batches": "use minibatch_size: train_batch_size / num_mini_batches",
    "num_minibatches": "use minibatch_size: train_batch_size / num_minibatches",
    "num_rollout_workers": "use num_env_runners",
    "num_sgd_iter": "use num_epochs",
    "num_steps": "use rollout_fragment_length (steps of each environment)",
    "num_steps_per_env": "use rollout_fragment_length (steps of each environment)",
    "num_workers": "use num_env_runners",
    "obs_normalization": "use the piece MeanStdFilter in the env-to-module pipeline",
    "observation_filter": "use the piece MeanStdFilter in the env-to-module pipeline",
    "opt_type": _OPTIMIZER,
    "optimizer_class": _OPTIMIZER,
    "optimizer_kwargs": _OPTIMIZER,
    "policy_kwargs": "use model_config: rl_module(model_config={...})",
    "repeat_per_collect": "use num_epochs",
    "rnd_cfg": "use the piece RandomNetworkDistillation in the learner pipeline",
    "schedule": "use desired_kl: training(desired_kl=0.01, use_kl_loss=False)",
    "sgd_minibatch_size": "use minibatch_size",
    "start_e": _SCHEDULE.format("epsilon"),
    "step_per_collect": "use train_batch_size (steps of an iteration)",
    "symmetry_cfg": "use loss: a class of SymmetricPPOLoss",
    "target_network_frequency": "use target_network_update_freq (updates)",
    "target_update_interval": "use target_network_update_freq (updates)",
    "tensorboard_log": "use loggers: reporting(loggers=['tensorboard'])",
    "total_frames": "use num_env_steps_sampled_lifetime: stopping(num_env_steps_sampled_lifetime=...)",
    "total_timesteps": "use num_env_steps_sampled_lifetime: stopping(num_env_steps_sampled_lifetime=...)",
    "train_freq": _INTENSITY,
    "train_frequency": _INTENSITY,
    "update_epochs": "use num_epochs",
    "use_critic": _ALWAYS,
    "use_gae": _ALWAYS,
    "value_loss_coef": "use vf_loss_coeff",
    "vf_coef": "use vf_loss_coeff",
    "vtrace": "leave it out: IMPALA and APPO always have V-trace",
    "weight_decay": _OPTIMIZER,
}
"""Settings of other libraries, and of earlier versions of RLlib -> what to do here."""

_RLLIB_SETTINGS: tuple[tuple[str, str], ...] = (
    (r"_\w+", "leave it out: it is private to RLlib"),
    (r"min_(sample|train)_timesteps_per_iteration", _ITERATION),
    (r"min_time_s_per_iteration", "leave it out: iterations have a number of steps; train_batch_size is one of PPO"),
    (r"keep_per_episode_custom_metrics|custom_stats_cls_lookup", "use metrics_logger.log_value(...) in a callback"),
    (r"metrics_episode_collection_timeout_s", "use sample_timeout_s"),
    (r"log_gradients", "leave it out: results always have grad_norm"),
    (r"log_sys_usage|fake_sampler|sampler_perf_stats_ema_coef|sample_collector|preprocessor_pref", _NOT_HERE),
    (r"enable_tf1_exec_eagerly", "leave it out: networks are always PyTorch's"),
    (r"checkpoint_trainable_policies_only", "leave it out: checkpoints have all modules"),
    (r"export_native_model_files", "use algo.get_policy().export(path)"),
    (r"is_atari", "use wrappers: environment(wrappers=['AtariPreprocessing'])"),
    (r"render_env", "use env_config: environment(env_config={'render_mode': 'rgb_array'})"),
    (r"action_mask_key", "use the piece action_mask in the env-to-module pipeline"),
    (r"observation_fn", "use the piece AddOtherAgentsFromEpisodesToBatch in the env-to-module pipeline"),
    (r"disable_env_checking|validate_env_runners_after_construction", "leave it out: environments are always checked"),
    (r"create_local_env_runner|create_env_on_local_worker", "use num_env_runners: with 0 the main process samples"),
    (r"use_worker_filter_stats|(use_)?env_runner_state_server\w*", "use merge_env_runner_states"),
    (r"compress_observations", "leave it out: columns are not compressed"),
    (r"episodes_to_numpy", "leave it out: columns of episodes are always arrays"),
    (r"exploration_config", "use explore; of DQN also training(epsilon=...)"),
    (r"remote_worker_envs", "use gym_env_vectorize_mode='async'"),
    (r"remote_env_batch_wait_ms", "use gym_env_batch_size"),
    (r"local_gpu_idx", "use learners(device='cuda:1')"),
    (r"custom_resources_per_learner", "use num_cpus_per_learner and num_gpus_per_learner"),
    (r"max_requests_in_flight_per_(aggregator_actor|learner)", "leave it out: each learner makes its own batches"),
    (r"learner_class|learner_config_dict", "use loss, or an update rule of your own"),
    (r"before_learn_on_batch", "use learner_connector"),
    (r"torch_compile_learner_what_to_compile", "leave it out: the loss and the module in it are compiled together"),
    (r"on_evaluate_offline_(start|end)", "use on_evaluate_start and on_evaluate_end"),
    (r"on_\w+_runners_recreated", "leave it out: a warning says that a process was replaced"),
    (r"evaluation_auto_duration_\w+", "use evaluation_duration, a number"),
    (r"evaluation_(unhealthy|error_after)_\w+", "use evaluation_sample_timeout_s"),
    (r"custom_evaluation_function", "use evaluation_sets={'easy': {...}, 'hard': {...}}"),
    (r"(?!offline_evaluation_interval)\w*offline_(eval|loss)\w*|off_policy_estimation_methods|ope_\w+", _HELD_OUT),
    (r"actions_in_input_normalized", "use normalize_actions: environment(normalize_actions=False) if they are not"),
    (r"(input|output|map_batches|iter_batches|materialize|prelearner)_\w+", _DATA),
    (r"offline_(data_class|sampling)|postprocess_inputs|ignore_final_observation", _DATA),
    (r"dataset_num_iters_per_learner|shuffle_buffer_size", "use train_batch_size"),
    (r"policy_(map_capacity|map_cache|states_are_swappable)", "leave it out: all modules stay in memory"),
    (r"(q|policy)_model_config|hiddens", "use model_config: rl_module(model_config={'fcnet_hiddens': [...]})"),
    (r"categorical_distribution_temperature", "leave it out: DQN explores with epsilon"),
    (r"optimization_config|value_lr", "use actor_lr and critic_lr"),
    (r"decay|momentum", _OPTIMIZER),
    (r"beta|bc_logstd_coeff|moving_average_\w+|vf_coeff", "use MARWILConfig, which weights actions by advantages"),
    (r"burnin_len", "use model_config: rl_module(model_config={'burn_in': ...})"),
    (r"lambda_", "leave it out: this algorithm has no trace decay"),
    (r"twin_q", "leave it out: there are always two critics"),
    (r"target_network_update_freq", "use tau: targets move after each update"),
    (r"minibatch_buffer_size|replay_(proportion|buffer_num_slots)|learner_queue_timeout", "use learner_queue_size"),
    (r"num_multi_gpu_tower_stacks|timeout_s_(sampler|aggregator)_manager", _NOT_HERE),
)
"""Patterns of further settings of RLlib 2.60 -> what to do here, if an algorithm has no such setting."""

_INNER = {
    "api_stack",
    "change",
    "extend_learner_connector",
    "framework",
    "from_document",
    "overrides_for",
    "resources",
}
"""Public methods that configs themselves, algorithms and checkpoints call, and those that change nothing."""


def other_setting(name: str, known: Iterable[str] = ()) -> str:
    """Advice on a name that is another library's setting, spelt nearly so, or an option of the default networks.

    Args:
        name: What was given.
        known: Names that are settings here; if one of them is nearer, there is no advice.

    Returns:
        What to use, or "".

    Examples:
        >>> other_setting("learning_rat")
        'use lr'
    """
    if name in DefaultModelConfig.__dataclass_fields__:
        return f"it is an option of model_config: rl_module(model_config={{{name!r}: ...}})"
    names = [*known]
    close = difflib.get_close_matches(name, [*names, *OTHER_SETTINGS], n=1, cutoff=0.8)
    return _exact_advice(name, names) or (OTHER_SETTINGS.get(close[0], "") if close else "")


def _exact_advice(name: str, known: Iterable[str]) -> str:
    """Advice on another library's setting; none on one that is nearly a setting here."""
    if name in OTHER_SETTINGS or difflib.get_close_matches(name, known, n=1, cutoff=0.9):
        return OTHER_SETTINGS.get(name, "")
    return next((advice for pattern, advice in _RLLIB_SETTINGS if re.fullmatch(pattern, name)), "")


def setting_advice(name: str, known: Iterable[str]) -> str:
    """Say what to use in place of a setting that is not here: that of another library, or the nearest.

    Examples:
        >>> setting_advice("n_epochs", ["lr", "gamma"])
        'use num_epochs'
        >>> setting_advice("gama", ["lr", "gamma"])
        "did you mean 'gamma'? Known: gamma, lr"
    """
    names = list(dict.fromkeys(known))
    other, near = other_setting(name, names), nearest(name, names)
    setting = re.fullmatch(r"use (\w+)", other or "")
    is_guess = setting is not None and setting[1] not in names and not _exact_advice(name, names)
    return near if not other or (is_guess and near.startswith("did you mean")) else other


def unknown_attribute(cls: type, name: str, settings: Iterable[str]) -> str:
    """The message for a method or setting that a config class does not have.

    Args:
        cls: The config class.
        name: What was asked for.
        settings: The names of its settings.

    Examples:
        >>> class Config:
        ...     def training(self): ...
        >>> print(unknown_attribute(Config, "rollouts", ["lr"]))
        Config has no method 'rollouts': use env_runners(...)
    """
    public = [method for method in dir(cls) if not method.startswith("_") and callable(getattr(cls, method))]
    methods = [method for method in public if method not in _INNER]
    if name in RLLIB_METHODS:
        return f"{cls.__name__} has no method {name!r}: {RLLIB_METHODS[name]}"
    names = sorted(settings)
    other = other_setting(name, [*methods, *names])
    return f"{cls.__name__} has no setting or method {name!r}; {other or nearest(name, [*methods, *names])}"
