"""The settings of a config, section by section, with their types, bounds and defaults.

Every section refuses unknown names and converts nothing in silence: a string is no number, a boolean
no integer. `check_section` turns what is wrong into `Problems`, so that all of it is reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from epibatch.core.errors import ConfigError, NotAvailableError

from .other_libraries import setting_advice
from .setting_types import (
    LOGGER_NAMES,
    AgentsToModules,
    AutoresetMode,
    CallbackClasses,
    CallbackFunctions,
    Coefficient,
    Count,
    Device,
    Environment,
    Fraction,
    FragmentLength,
    Integer,
    Loggers,
    ModuleConfig,
    ModuleSpec,
    Number,
    Policies,
    PoliciesToTrain,
    Positive,
    Space,
    Switch,
    VectorizeMode,
    Views,
    Wrappers,
)

__all__ = [
    "ALIASES",
    "CallbackSettings",
    "CheckpointingSettings",
    "DebuggingSettings",
    "EnvRunnerSettings",
    "EnvironmentSettings",
    "EvaluationSettings",
    "LOGGER_NAMES",
    "LearnerSectionSettings",
    "MultiAgentSectionSettings",
    "PPOTrainingSettings",
    "Problems",
    "RLModuleSettings",
    "ReportingSettings",
    "Section",
    "StopSettings",
    "TrainingSettings",
    "check_section",
    "default_of",
    "fitting_part",
    "resolve_aliases",
    "setting_names",
]


# ------------------------------------------------------------------------------------------ sections


class Section(BaseModel):
    """One section of a config; wrong names and values are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True, frozen=True)


class EnvironmentSettings(Section):
    """What is acted in, and how actions reach it."""

    env: Environment = None
    env_config: dict[str, Any] = Field(default_factory=dict)
    wrappers: Wrappers = Field(default_factory=list)
    observation_space: Space = None
    action_space: Space = None
    normalize_actions: Switch = True
    clip_actions: Switch = False


class EnvRunnerSettings(Section):
    """How many environments step together, and how episodes are cut."""

    num_env_runners: Count = 0
    num_envs_per_env_runner: Annotated[Positive, Field(le=2**17)] = 1
    gym_env_vectorize_mode: VectorizeMode = "sync"
    gym_env_autoreset_mode: AutoresetMode = None
    add_default_connectors_to_env_to_module_pipeline: Switch = True
    add_default_connectors_to_module_to_env_pipeline: Switch = True
    rollout_fragment_length: FragmentLength = "auto"
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    explore: Switch = True
    episode_lookback_horizon: Count = 1


class LearnerSectionSettings(Section):
    """How many learners, and whether their pipeline has its default pieces."""

    num_learners: Count = 0
    device: Device = "cpu"
    add_default_connectors_to_learner_pipeline: Switch = True
    columns: Literal["all", "auto"] = "all"


class TrainingSettings(Section):
    """What every gradient-based algorithm is tuned by."""

    lr: Annotated[Number, Field(gt=0, allow_inf_nan=False)] = 0.001
    gamma: Fraction = 0.99
    train_batch_size: Positive = 4000
    minibatch_size: Annotated[Integer | None, Field(ge=1)] = None
    num_epochs: Positive = 1
    shuffle_batch_per_epoch: Switch = True
    grad_clip: Annotated[Number | None, Field(gt=0)] = None
    grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm"

    def model_post_init(self, context: Any, /) -> None:
        """A minibatch size that nobody gave is never larger than the batch."""
        if self.minibatch_size is not None and "minibatch_size" not in self.model_fields_set:
            self.__dict__["minibatch_size"] = min(self.minibatch_size, self.train_batch_size)


class PPOTrainingSettings(TrainingSettings):
    """PPO's own coefficients; the defaults are RLlib 2.60's."""

    lr: Annotated[Number, Field(gt=0, allow_inf_nan=False)] = 5e-5
    minibatch_size: Annotated[Integer | None, Field(ge=1)] = 128
    num_epochs: Positive = 30
    lambda_: Fraction = 1.0
    standardize_advantages: bool = True
    clip_param: Annotated[Number, Field(gt=0)] = 0.3
    vf_clip_param: Annotated[Number, Field(gt=0)] = 10.0
    vf_loss_coeff: Coefficient = 1.0
    entropy_coeff: Coefficient = 0.0
    use_kl_loss: Switch = True
    kl_coeff: Coefficient = 0.2
    kl_target: Annotated[Number, Field(gt=0, allow_inf_nan=False)] = 0.01


class RLModuleSettings(Section):
    """The network: settings of the default module, or a spec of one's own."""

    module_config: ModuleConfig = Field(default_factory=dict, alias="model_config")
    rl_module_spec: ModuleSpec = None
    view_requirements: Views = Field(default_factory=dict)


class MultiAgentSectionSettings(Section):
    """Which modules there are, which agents each of them decides for, and which of them learn."""

    policies: Policies = None
    policy_mapping_fn: AgentsToModules = None
    policies_to_train: PoliciesToTrain = None
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    algorithm_config_overrides_per_module: dict[str, dict[str, Any]] = Field(default_factory=dict)


class EvaluationSettings(Section):
    """When and how long the policy is measured apart from the training."""

    evaluation_interval: Annotated[Integer | None, Field(ge=1)] = None
    evaluation_duration: Positive = 10
    evaluation_duration_unit: Literal["episodes", "timesteps"] = "episodes"
    evaluation_config: dict[str, Any] = Field(default_factory=dict)
    evaluation_num_env_runners: Count = 0


class CallbackSettings(Section):
    """What of a user's own is called when something happens."""

    callbacks_class: CallbackClasses = None
    on_algorithm_init: CallbackFunctions = None
    on_train_result: CallbackFunctions = None
    on_evaluate_start: CallbackFunctions = None
    on_evaluate_end: CallbackFunctions = None
    on_checkpoint_loaded: CallbackFunctions = None
    on_environment_created: CallbackFunctions = None
    on_episode_created: CallbackFunctions = None
    on_episode_start: CallbackFunctions = None
    on_episode_step: CallbackFunctions = None
    on_episode_end: CallbackFunctions = None
    on_sample_end: CallbackFunctions = None


class DebuggingSettings(Section):
    """Reproducibility and logging."""

    seed: Annotated[Integer | None, Field(ge=0, lt=2**32)] = None
    log_level: Literal["DEBUG", "INFO", "WARN", "ERROR"] = "WARN"
    time_pieces: Switch = False
    check_first_update: Literal["warn", "error", "off"] = "warn"


class StopSettings(Section):
    """When `epibatch train` stops: a goal to reach, and limits on the way to it."""

    episode_return_mean: Annotated[Number | None, Field(allow_inf_nan=False)] = None
    evaluation_return_mean: Annotated[Number | None, Field(allow_inf_nan=False)] = None
    num_env_steps_sampled_lifetime: Annotated[Integer | None, Field(ge=1)] = None
    training_iteration: Annotated[Integer | None, Field(ge=1)] = None
    time_total_s: Annotated[Number | None, Field(gt=0)] = None


class ReportingSettings(Section):
    """What is reported of an iteration, and to whom."""

    metrics_num_episodes_for_smoothing: Positive = 100
    loggers: Loggers = Field(default_factory=lambda: ["jsonl", "csv"])


class CheckpointingSettings(Section):
    """When `epibatch train` saves, and how many checkpoints it keeps."""

    checkpoint_frequency: Count = 0
    checkpoint_interval_s: Annotated[Number | None, Field(gt=0)] = 60.0
    num_to_keep: Annotated[Integer | None, Field(ge=1)] = 2
    end_episodes: Switch = False


ALIASES: dict[str, dict[str, str]] = {
    "training": {"train_batch_size_per_learner": "train_batch_size", "lambda": "lambda_"},
    "rl_module": {"model_config_dict": "model_config"},
    "stop": {
        "env_runners/episode_return_mean": "episode_return_mean",
        "evaluation/env_runners/episode_return_mean": "evaluation_return_mean",
    },
}
"""Per section: a second spelling that is taken too -> the setting it means."""


# ------------------------------------------------------------------------------------------ checking


class Problems:
    """Collects what is wrong with a config, to report all of it in one error.

    Example:
        >>> problems = Problems()
        >>> problems.add("training.lr", "must be above 0, found -1")
        >>> len(problems)
        1
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self._wrong = False

    def add(self, path: str, text: str) -> None:
        """Note that the setting at `path` is wrong."""
        self.found.append((path, text))
        self._wrong = True

    def add_unavailable(self, path: str, text: str) -> None:
        """Note that the setting at `path` asks for something that this release does not have."""
        self.found.append((path, text))

    def extend(self, others: Problems) -> None:
        """Take over what others noted."""
        self.found += others.found
        self._wrong = self._wrong or others._wrong

    def __len__(self) -> int:
        return len(self.found)

    def raise_if_any(self, where: str) -> None:
        """Raise one error that lists everything noted so far.

        Raises:
            ConfigError: something is wrong.
            NotAvailableError: nothing is wrong, but something is not available.
        """
        if not self.found:
            return
        lines = [f"{path}: {text}".replace("\n", "\n      ") for path, text in self.found]
        kind = ConfigError if self._wrong else NotAvailableError
        raise kind(
            where,
            expected="known settings with fitting values",
            found="".join(f"\n    - {line}" for line in lines),
            do=f"correct {'this setting' if len(lines) == 1 else f'these {len(lines)} settings'}",
        )


def setting_names(model: type[Section]) -> list[str]:
    """The names that users write, in order; they differ from the attributes where one is reserved."""
    return [field.alias or name for name, field in model.model_fields.items()]


def default_of(model: type[Section], name: str) -> Any:
    """The default of a setting, by the name that users write."""
    for attribute, field in model.model_fields.items():
        if name in (attribute, field.alias):
            return field.get_default(call_default_factory=True)
    return None


def resolve_aliases(section: str, values: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Replace second spellings by the setting's name; both at once is a problem."""
    aliases = ALIASES.get(section, {})
    resolved: dict[str, Any] = {}
    for key, value in values.items():
        name = aliases.get(key, key)
        if name in resolved:
            problems.add(f"{section}.{key}", f"given twice: {key!r} and another spelling of {name!r}")
        resolved[name] = value
    return resolved


def check_section(
    section: str, model: type[Section], values: Mapping[str, Any], problems: Problems, places: Mapping[str, str]
) -> Section | None:
    """Build one section's settings, noting each wrong name or value.

    Args:
        section: its name, the first part of every path.
        model: the settings class.
        values: setting -> value, aliases resolved.
        problems: where to note what is wrong.
        places: every setting of the whole config -> the section it belongs to, for hints.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = ".".join([section, *map(str, detail["loc"])])
            if detail["type"] == "extra_forbidden":
                problems.add(path, unknown_setting(str(detail["loc"][-1]), section, model, places))
            else:
                message = detail["msg"].removeprefix("Value error, ")
                message = message[0].lower() + message[1:]
                problems.add(path, f"{message}, found {_brief(detail.get('input'))}")
        return None


def fitting_part(model: type[Section], values: Mapping[str, Any]) -> Section:
    """One section's settings from those of the values that are right by themselves; defaults for the others."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        wrong = {detail["loc"][0] for detail in error.errors(include_url=False) if detail["loc"]}
        return model.model_validate({name: value for name, value in values.items() if name not in wrong})


def unknown_setting(name: str, section: str, model: type[Section], places: Mapping[str, str]) -> str:
    """What to say about a setting that the section does not have."""
    if places.get(name, section) != section:
        return f"unknown setting here; it belongs to {places[name]}"
    known = [*setting_names(model), *ALIASES.get(section, {}), *(n for n, place in places.items() if place == section)]
    return f"unknown setting; {setting_advice(name, known)}"


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
