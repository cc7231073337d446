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
    "exploration": "use env_runners(explore=...)",
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
    names = [*known, *OTHER_SETTINGS]
    close = [name] if name in OTHER_SETTINGS else difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return OTHER_SETTINGS.get(close[0], "") if close else ""


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
    is_guess = setting is not None and setting[1] not in names and name not in OTHER_SETTINGS
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
