"""Fluent settings: the part of a config that is set and read, without what is built from it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.errors import ConfigError

from .multi_agent_config import mapping_of, overrides_by_module, policies_of_sections
from .policy_spec import PolicySpec
from .section_values import SectionValues
from .settings import StopSettings

__all__ = ["FluentSettings"]

SelfT = TypeVar("SelfT", bound="FluentSettings")

NOT_GIVEN: Any = object()


class FluentSettings(SectionValues):
    """What a config can be told, section by section; every method changes this config and returns it.

    The settings are read flat, as attributes (`config.lr`, `config.num_envs_per_env_runner`), and stand in
    sections in files (`to_yaml`). A wrong name or value raises at once, with all that is wrong in the call.

    Args:
        allow_imports: whether a piece in a list of specs may be named by an import path; importing runs code.

    Raises:
        ConfigError: unknown settings or unfitting values, all of them in one message.

    Example:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> config = PPOConfig().environment("CartPole-v1").training(lr=3e-4, gamma=0.98)
        >>> config.lr, config.num_epochs
        (0.0003, 30)
    """

    # ------------------------------------------------------------------------------------- setting

    def environment(self: SelfT, env: Any = NOT_GIVEN, **settings: Any) -> SelfT:
        """Say what is acted in.

        Args:
            env: a name known to Gymnasium or given to `register_env`, an environment class, or a function of
                the `env_config` dict.
            **settings: `env_config`, `wrappers` (Gymnasium's, by name, or functions), `observation_space`,
                `action_space` (where there is no env to ask), `normalize_actions` (modules act in [-1, 1]),
                `clip_actions`.
        """
        if env is not NOT_GIVEN:
            settings["env"] = env
        return self.change("environment", {"environment": settings})

    def env_runners(self: SelfT, **settings: Any) -> SelfT:
        """Say how environments step and how episodes are cut.

        Args:
            **settings: `num_envs_per_env_runner`, `gym_env_vectorize_mode` ("sync", "async",
                "vector_entry_point"), `gym_env_autoreset_mode` ("next_step", "same_step", "disabled"; None: the
                environment's own), `rollout_fragment_length` (steps per environment, or "auto"), `batch_mode`,
                `explore`, `episode_lookback_horizon`, `env_to_module_connector` (`lambda env, spaces, device: ...`
                or a list of piece specs), `module_to_env_connector` (`lambda env, spaces: ...` or a list),
                `add_default_connectors_to_env_to_module_pipeline`,
                `add_default_connectors_to_module_to_env_pipeline`; `num_env_runners` must stay 0.
        """
        return self.change("env_runners", {"env_runners": settings})

    def learners(self: SelfT, **settings: Any) -> SelfT:
        """Set up the learner's pipeline, and say where the network lives.

        Args:
            **settings: `device` ("cpu", "cuda", "cuda:0", ...) of the network and of all tensors that it is given,
                when it acts too; `learner_connector` (`lambda obs_space, act_space: ...` or a list of piece specs),
                `add_default_connectors_to_learner_pipeline`; `columns` ("auto": train batches go without those that
                nobody reads); `num_learners` must stay 0.
        """
        return self.change("learners", {"learners": settings})

    def training(self: SelfT, **settings: Any) -> SelfT:
        """Set learning rate, batch sizes and the coefficients of the loss.

        Args:
            **settings: `lr`, `gamma`, `train_batch_size` (env steps per iteration; also
                `train_batch_size_per_learner`), `minibatch_size`, `num_epochs`, `shuffle_batch_per_epoch`, `grad_clip`,
                `grad_clip_by`, `learner_connector`, `model` (settings of the default module), and those of the
                algorithm.
        """
        parts: dict[str, dict[str, Any]] = {"training": dict(settings), "learners": {}, "rl_module": {}}
        if "model" in settings:
            parts["rl_module"]["model_config"] = parts["training"].pop("model")
        for name in ("learner_connector", "add_default_connectors_to_learner_pipeline"):
            if name in settings:
                parts["learners"][name] = parts["training"].pop(name)
        return self.change("training", parts)

    def rl_module(self: SelfT, **settings: Any) -> SelfT:
        """Choose the network.

        Args:
            **settings: `model_config` (a dict or `DefaultModelConfig`, such as `{"fcnet_hiddens": [64, 64]}`; also
                `model_config_dict`), `rl_module_spec` (a network of one's own, or a `MultiRLModuleSpec` with several),
                `view_requirements` (name -> `View`, or a dict of its arguments: columns of other steps that all modules
                get), `algorithm_config_overrides_per_module` (see `multi_agent`).
        """
        parts = {"rl_module": dict(settings), "multi_agent": {}}
        name = "algorithm_config_overrides_per_module"
        if name in settings:
            own = parts["rl_module"].pop(name)
            earlier = self.algorithm_config_overrides_per_module
            parts["multi_agent"][name] = {**earlier, **own} if isinstance(own, Mapping) else own
        return self.change("rl_module", parts)

    def evaluation(self: SelfT, **settings: Any) -> SelfT:
        """Measure the policy apart from the training, which it does not change.

        Args:
            **settings: `evaluation_interval` (iterations from one evaluation to the next; None: only when
                `algo.evaluate()` is called), `evaluation_duration`, `evaluation_duration_unit` ("episodes" or
                "timesteps"), `evaluation_config` (settings of the sections `environment` and `env_runners` that
                differ, such as `{"explore": True, "env_config": {...}}`); `evaluation_num_env_runners` must stay 0.
        """
        return self.change("evaluation", {"evaluation": settings})

    def callbacks(self: SelfT, callbacks_class: Any = NOT_GIVEN, **settings: Any) -> SelfT:
        """Have functions of your own called when something happens.

        Args:
            callbacks_class: a subclass of `Callbacks`, or a list of them; runner and algorithm make their own objects.
            **settings: a function, or a list of them, by event: `on_algorithm_init`, `on_train_result`,
                `on_evaluate_start`, `on_evaluate_end`, `on_checkpoint_loaded`, `on_environment_created`,
                `on_episode_created`, `on_episode_start`, `on_episode_step`, `on_episode_end`, `on_sample_end`; the
                methods of `Callbacks` say what each is given. Import paths, `module:function`, need `allow_imports`.
        """
        if callbacks_class is not NOT_GIVEN:
            settings["callbacks_class"] = callbacks_class
        return self.change("callbacks", {"callbacks": settings})

    def debugging(self: SelfT, **settings: Any) -> SelfT:
        """Set the `seed` (environments, network, minibatches), `log_level`, `time_pieces` and `check_first_update`.

        `time_pieces=True` puts the seconds of every connector piece into each iteration's results.
        `check_first_update` is "warn", "error" or "off": whether the learner compares, before a module's first gradient
        step, what it computes in training with what was recorded while it acted.
        """
        return self.change("debugging", {"debugging": settings})

    def reporting(self: SelfT, **settings: Any) -> SelfT:
        """Say over how many episodes returns are averaged, and who takes a run's results.

        Args:
            **settings: `metrics_num_episodes_for_smoothing` (ended episodes that `episode_return_mean` and the like
                are about), `loggers` (names of `LOGGERS`, and objects with a method `log(results)`, for
                `epibatch train` and `TrainingRun`).
        """
        return self.change("reporting", {"reporting": settings})

    def checkpointing(self: SelfT, **settings: Any) -> SelfT:
        """Say when `epibatch train` saves while it runs, and how many checkpoints it keeps.

        Args:
            **settings: `checkpoint_frequency` (iterations between two saves; 0: none for that reason),
                `checkpoint_interval_s` (seconds between two saves; None: none for that reason), `num_to_keep`
                (newest checkpoints; None: all), `end_episodes` (whether a save ends the running episodes, so that a
                resumed run goes on bit for bit like this one; see `Algorithm.save_to_path`).
        """
        return self.change("checkpointing", {"checkpointing": settings})

    def stopping(self: SelfT, **settings: Any) -> SelfT:
        """Say when `epibatch train` stops.

        Args:
            **settings: the goals `episode_return_mean` and `evaluation_return_mean`, and the limits
                `num_env_steps_sampled_lifetime`, `training_iteration`, `time_total_s`.
        """
        return self.change("stopping", {"stop": settings})

    def multi_agent(self: SelfT, **settings: Any) -> SelfT:
        """Say which modules there are, which agents each decides for, and which of them learn.

        Args:
            **settings: `policies` (module ids, or id -> None, `PolicySpec`, its fields as a dict, or RLModuleSpec),
                `policy_mapping_fn` (a function `(agent_id, episode, **kwargs) -> module id`, or a table of agents or
                patterns, see `AgentMapping`; not needed for one module), `policies_to_train` (ids, or a function
                `(module_id, batch) -> bool`; None: all), `count_steps_by` ("env_steps" or "agent_steps": what
                `train_batch_size` counts), `algorithm_config_overrides_per_module` (id -> settings of the training).
        """
        return self.change("multi_agent", {"multi_agent": settings})

    def api_stack(self: SelfT, **switches: bool) -> SelfT:
        """Warn that there is one API stack; RLlib's switches `enable_...` change nothing.

        Raises:
            ConfigError: a switch turns the stack of RLModules and connectors off.
        """
        off = [name for name, value in switches.items() if not value]
        if off:
            raise ConfigError(
                f"{type(self).__name__}.api_stack",
                expected="RLModules and connectors; there is no other stack here",
                found=f"{off[0]}=False",
                do="leave the call out",
            )
        return self._changes_nothing("api_stack", "there is one stack, with RLModules and connectors")

    def framework(self: SelfT, framework: str | None = "torch", **options: Any) -> SelfT:
        """Warn that networks are always PyTorch's; RLlib's options change nothing.

        Raises:
            ConfigError: the framework is another one.
        """
        if framework not in (None, "torch"):
            raise ConfigError(
                f"{type(self).__name__}.framework",
                expected="'torch'",
                found=repr(framework),
                do="write the module in PyTorch, and leave the call out",
            )
        return self._changes_nothing("framework", "networks are always PyTorch's")

    def _changes_nothing(self: SelfT, method: str, reason: str) -> SelfT:
        text = f"{type(self).__name__}.{method}(...) changes nothing: {reason}. Leave the call out."
        warnings.warn(text, stacklevel=3)
        return self

    @property
    def in_evaluation(self) -> bool:
        """Whether this is the config of the environments that `evaluate` measures in."""
        return self._in_evaluation

    @property
    def allows_imports(self) -> bool:
        """Whether pieces may be named by an import path."""
        return self._allow_imports

    @property
    def stop_rules(self) -> StopSettings:
        """The `stop` section."""
        rules = self._settings["stop"]
        return rules if isinstance(rules, StopSettings) else StopSettings()

    @property
    def is_multi_agent(self) -> bool:
        """Whether there are other modules than the default one, as RLlib sees it."""
        return list(self.policies) != [DEFAULT_MODULE_ID]

    @property
    def policies(self) -> dict[str, PolicySpec]:
        """Module id -> what is different about it."""
        return policies_of_sections(self._settings)

    @property
    def policy_mapping_fn(self) -> Any:
        """Which module decides for an agent: called as `fn(agent_id, episode)`; None if that was not said."""
        return mapping_of(self._settings)

    def overrides_for(self, module_id: str) -> dict[str, Any]:
        """The settings of the training that a module has of its own."""
        return overrides_by_module(self._settings).get(module_id, {})

    def get_config_for_module(self: SelfT, module_id: str) -> SelfT:
        """The config as it is for one module: its own settings in place of the common ones."""
        own = self.overrides_for(module_id)
        return self.copy().change("get_config_for_module", {"training": own}) if own else self

    @property
    def other_device(self) -> str | None:
        """The `device`, or None for the CPU, where tensors are made anyway."""
        return None if self.device == "cpu" else str(self.device)

    @property
    def total_train_batch_size(self) -> int:
        """Env steps of one training iteration, over all learners."""
        return int(self.train_batch_size) * max(1, int(self.num_learners))

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps that each environment of a runner contributes to one `sample()`, at least 1."""
        if self.rollout_fragment_length != "auto":
            return int(self.rollout_fragment_length)
        return max(1, -(-self.total_train_batch_size // int(self.num_envs_per_env_runner)))
