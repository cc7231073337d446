"""Fluent settings: the part of a config that is set and read, without what is built from it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from epibatch.core.devices import missing_device
from epibatch.core.errors import ConfigError, NotAvailableError, explain, nearest

from .evaluation_config import note_overrides
from .pipelines import PIPELINES, check_hook
from .rllib_methods import unknown_attribute
from .setting_checks import note_contradictions, note_distribution, note_import_paths
from .settings import (
    ALIASES,
    CallbackSettings,
    CheckpointingSettings,
    DebuggingSettings,
    EnvironmentSettings,
    EnvRunnerSettings,
    EvaluationSettings,
    LearnerSectionSettings,
    Problems,
    ReportingSettings,
    RLModuleSettings,
    Section,
    StopSettings,
    TrainingSettings,
    check_section,
    fitting_part,
    resolve_aliases,
    setting_names,
)

__all__ = ["FluentSettings"]

SelfT = TypeVar("SelfT", bound="FluentSettings")

NOT_GIVEN: Any = object()


class FluentSettings:
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

    algorithm: ClassVar[str] = ""
    sections: ClassVar[dict[str, type[Section]]] = {
        "environment": EnvironmentSettings,
        "env_runners": EnvRunnerSettings,
        "learners": LearnerSectionSettings,
        "training": TrainingSettings,
        "rl_module": RLModuleSettings,
        "evaluation": EvaluationSettings,
        "callbacks": CallbackSettings,
        "debugging": DebuggingSettings,
        "reporting": ReportingSettings,
        "checkpointing": CheckpointingSettings,
        "stop": StopSettings,
    }

    def __init__(self, *, allow_imports: bool = False) -> None:
        self._allow_imports = allow_imports
        self._in_evaluation = False
        self._settings: dict[str, Section] = {name: model() for name, model in self.sections.items()}
        self._pipelines: dict[str, Any] = dict.fromkeys(PIPELINES)

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
                `add_default_connectors_to_learner_pipeline`; `num_learners` must stay 0.
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
                `model_config_dict`), `rl_module_spec` (a network of one's own).
        """
        return self.change("rl_module", {"rl_module": settings})

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
        """Set the `seed` (environments, network, minibatches), the `log_level`, and `time_pieces`.

        `time_pieces=True` puts the seconds of every connector piece into each iteration's results.
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
                (newest checkpoints; None: all).
        """
        return self.change("checkpointing", {"checkpointing": settings})

    def stopping(self: SelfT, **settings: Any) -> SelfT:
        """Say when `epibatch train` stops.

        Args:
            **settings: the goals `episode_return_mean` and `evaluation_return_mean`, and the limits
                `num_env_steps_sampled_lifetime`, `training_iteration`, `time_total_s`.
        """
        return self.change("stopping", {"stop": settings})

    def multi_agent(self, **_: Any) -> Any:
        """Not in this release; raises NotAvailableError."""
        raise NotAvailableError(
            explain(
                f"{type(self).__name__}.multi_agent",
                expected="one agent per environment",
                found="a multi-agent setup, which this release cannot train",
                do="train one agent; connector pieces for several agents come with a later release",
            )
        )

    def change(self: SelfT, method: str, parts: Mapping[str, Mapping[str, Any]]) -> SelfT:
        """Check new settings of some sections together; adopt all of them or none."""
        problems = Problems()
        changed = {section: self.check(section, settings, problems) for section, settings in parts.items()}
        problems.raise_if_any(f"{type(self).__name__}.{method}")
        for section, (settings, pipelines) in changed.items():
            self._settings[section] = settings
            self._pipelines.update(pipelines)
        return self

    def check(self, section: str, new: Mapping[str, Any], problems: Problems) -> tuple[Any, dict[str, Any]]:
        """One section's settings with the new ones, as far as they are right, and its new pipelines."""
        values = resolve_aliases(section, new, problems)
        pipelines: dict[str, Any] = {}
        for name, hook in PIPELINES.items():
            if hook.section == section and hook.setting in values:
                pipelines[name] = values.pop(hook.setting)
                path = f"{section}.{hook.setting}"
                check_hook(hook, pipelines[name], path, problems, allow_imports=self._allow_imports)
        given = self.given(section)
        if section == "rl_module" and isinstance(values.get("model_config"), Mapping):
            values["model_config"] = {**given.get("model_config", {}), **values["model_config"]}
        model = self.sections[section]
        merged = {**given, **values}
        settings = check_section(section, model, merged, problems, self.places()) or fitting_part(model, merged)
        note_distribution(section, settings, problems)
        if isinstance(settings, EvaluationSettings):
            note_overrides(settings.evaluation_config, type(self), problems)
        if isinstance(settings, CallbackSettings):
            note_import_paths(settings, problems, allow_imports=self._allow_imports)
        return settings, pipelines

    def all_settings(self, section: str) -> dict[str, Any]:
        """Every setting of a section, by the names that users write."""
        current = self._settings[section]
        return {field.alias or name: getattr(current, name) for name, field in type(current).model_fields.items()}

    def given(self, section: str) -> dict[str, Any]:
        """The settings of a section that were set, by the names that users write."""
        current = self._settings[section]
        return {
            field.alias or name: getattr(current, name)
            for name, field in type(current).model_fields.items()
            if name in current.model_fields_set
        }

    @classmethod
    def places(cls) -> dict[str, str]:
        """Every setting -> its section."""
        places = {name: section for section, model in cls.sections.items() for name in setting_names(model)}
        return {**places, **{hook.setting: hook.section for hook in PIPELINES.values()}}

    # ------------------------------------------------------------------------------------- reading

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            section, setting = self._find(name)
            if section:
                model = type(self._settings[section])
                for attribute, field in model.model_fields.items():
                    if setting in (attribute, field.alias):
                        return getattr(self._settings[section], attribute)
            for hook in PIPELINES.values():
                if hook.setting == name:
                    return self._pipelines[hook.name]
        raise AttributeError(unknown_attribute(type(self), name, self.places()))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        section, setting = self._find(name)
        if not section:
            section = next((hook.section for hook in PIPELINES.values() if hook.setting == name), "")
        if not section:
            raise ConfigError(
                explain(
                    f"{type(self).__name__}.{name}",
                    expected="a known setting",
                    found=repr(name),
                    do=nearest(name, self.places()),
                )
            )
        self.change(name, {section: {setting: value}})

    @classmethod
    def _find(cls, name: str) -> tuple[str, str]:
        """The section of a setting and the setting's own name, second spellings resolved."""
        for section, model in cls.sections.items():
            setting = ALIASES.get(section, {}).get(name, name)
            if setting in setting_names(model):
                return section, setting
        return "", name

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

    def copy(self: SelfT) -> SelfT:
        """A config of its own with the same settings."""
        twin = type(self)(allow_imports=self._allow_imports)
        twin._settings = dict(self._settings)  # sections are frozen
        twin._pipelines = {
            name: copy.deepcopy(value) if isinstance(value, list) else value for name, value in self._pipelines.items()
        }
        return twin

    def __repr__(self) -> str:
        changed = [
            f"{name}={getattr(settings, name)!r}"
            for settings in self._settings.values()
            for name in settings.model_fields_set
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def validate(self) -> None:
        """Check what no single setting can show.

        Raises:
            ConfigError: settings that contradict each other, all of them in one message.
        """
        problems = Problems()
        self.check_together({}, problems)
        fault = missing_device(self.device)
        if fault is not None:
            problems.add("learners.device", f"{self.device!r} cannot be used here: {fault}; cpu can be used everywhere")
        problems.raise_if_any(type(self).__name__)

    def check_together(self, new: Mapping[str, Section], problems: Problems) -> None:
        """Note settings that contradict each other.

        Args:
            new: sections that are about to replace this config's.
            problems: where to note them.
        """
        note_contradictions({**self._settings, **new}, problems)
