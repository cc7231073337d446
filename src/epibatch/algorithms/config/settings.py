"""The settings of a config: one model per section, and the whole of them.

A section refuses unknown names and converts nothing in silence: a string is no number, a boolean no integer.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal

import gymnasium as gym
from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    WrapValidator,
    create_model,
)
from pydantic_core import ErrorDetails

from epibatch.core.errors import DataError, EpibatchError, nearest
from epibatch.core.imports import load_object
from epibatch.core.plain import python_scalar
from epibatch.core.registry import registered_envs
from epibatch.core.runtime import device_name
from epibatch.core.settings import (
    PLAIN,
    Coefficient,
    Count,
    ErrorList,
    Fraction,
    Number,
    Place,
    Positive,
    PositiveNumber,
    PositiveOrInfinite,
    ScheduledCoefficient,
    SettingsModel,
    Switch,
    brief,
    check_import,
    import_problem,
    not_available,
    raise_problems,
)
from epibatch.core.space_dicts import space_from_dict

from ...connectors.views.view import as_views
from ...env_runner.callbacks import callback_problem
from ...env_runner.env_runner import EnvRunner
from ...env_runner.envs.env_checks import adapter_advice
from ...env_runner.envs.make_env import wrapper_problem
from ...episodes import MultiAgentEpisode, SingleAgentEpisode
from ...learner.settings import OptimizerSettings, PPOSettings, loss_problem
from ...offline.formats import read_episodes
from ..other_libraries import RLLIB_METHODS, setting_advice
from ..policy_spec import PolicySpec, policies_of, settings_of
from ..run.results import RETURN_MEAN
from .multi_agent import AgentMapping, add_policy_errors
from .pipelines import PIPELINES, hook_problems

EVALUATED = ("environment", "env_runners")
"""Sections whose settings evaluation can have of its own."""

LOGGER_NAMES = ("jsonl", "csv", "tensorboard", "video", "wandb", "mlflow")
"""Loggers that a config can name."""

_HOOKS = frozenset(hook.setting for hook in PIPELINES.values())
_OF_QUEUE = ("learner_queue_size", "simple_queue_size", "use_circular_buffer")
_OF_BUFFER = ("circular_buffer_num_batches", "circular_buffer_iterations_per_batch")
COMMON_SETTINGS = {
    "train_batch_size": "all modules learn from one sample",
    "broadcast_interval": "the weights of all modules are sent together",
    **dict.fromkeys((*_OF_QUEUE, *_OF_BUFFER), "all modules learn from one queue"),
}
"""Settings of the training that no module has of its own -> why."""


# -------------------------------------------------------------------------------------------- types


def _allows(info: ValidationInfo, what: str) -> bool:
    return bool((info.context or {}).get(what))


def _environment(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, (gym.Env, gym.vector.VectorEnv)):
        raise ValueError("expected an environment's name, class or factory, so that several can be made")
    if not (value is None or (isinstance(value, str) and value) or callable(value)):
        advice = adapter_advice(value)
        raise ValueError(f"expected an environment's name, its class, or a function of env_config{advice}")
    _check_env_import(value, (), info)
    return value


def _env_config(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    _check_env_import(value.get("env_id"), ("env_id",), info)  # for Gymnasium's wrapper of old environments
    return value


def _check_env_import(env: Any, place: Place, info: ValidationInfo) -> None:
    if isinstance(env, str) and ":" in env and env not in registered_envs() and not _allows(info, "env_imports"):
        raise_problems([(place, f"{import_problem(env)}, or import the module and register its environments first")])


def _wrappers(value: Sequence[Any]) -> list[Any]:
    problems = [f"[{i}] {problem}" for i, problem in enumerate(map(wrapper_problem, value)) if problem]
    if problems:
        raise ValueError("; ".join(problems))
    return list(value)


def _space(value: Any) -> Any:
    if value is None or isinstance(value, gym.Space):
        return value
    if isinstance(value, Mapping):
        return space_from_dict(dict(value))
    raise ValueError("expected a gymnasium Space, or in files a mapping such as {type: Discrete, n: 2}")


def _fragment_length(value: Any) -> Any:
    length = python_scalar(value)
    if length == "auto" or (isinstance(length, int) and not isinstance(length, bool) and length > 0):
        return length
    raise ValueError("expected a positive integer or 'auto'")


def _placeholder(value: Any) -> Any:
    number = python_scalar(value)
    if number is None or number in ("nan", "zero", "keep"):
        return number
    if isinstance(number, (int, float)) and not isinstance(number, bool) and not math.isinf(number):
        return "nan" if math.isnan(number) else float(number)
    raise ValueError("expected 'nan', 'zero', 'keep' or a finite number")


def _enum_value(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _autoreset_name(value: Any) -> Any:
    """Gymnasium's AutoresetMode by the name that files use."""
    return value.name.lower() if isinstance(value, gym.vector.AutoresetMode) else value


def _pieces(value: Any, info: ValidationInfo) -> Any:
    hook = next(hook for hook in PIPELINES.values() if hook.setting == info.field_name)
    raise_problems(hook_problems(hook, value, allow_imports=_allows(info, "imports")))
    return copy.deepcopy(list(value)) if isinstance(value, Sequence) else value


def _module_spec(value: Any) -> Any:
    if value is None or callable(getattr(value, "build", None)):
        return value
    raise ValueError("expected an RLModuleSpec")


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _episodes(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, (str, os.PathLike)):
        try:
            value = read_episodes(value)
        except EpibatchError as error:
            expected = f"recorded episodes in {os.fspath(value)!r}: {error.expected}"
            raise DataError(error.where, expected=expected, found=error.found, do=error.do) from error
    kinds = (SingleAgentEpisode, MultiAgentEpisode)
    if isinstance(value, Sequence) and len(value) and isinstance(value[0], kinds) and any(map(len, value)):
        return value
    raise ValueError("expected a list of episodes with steps, a data set, or the path of one")


def _views(value: Any) -> Any:
    return as_views({} if value is None else value, "view_requirements")


def _agents_to_modules(value: Any) -> Any:
    if isinstance(value, Mapping):
        return AgentMapping(value)
    if value is None or callable(value):
        return value
    raise ValueError("expected a function (agent_id, episode, **kwargs) -> module id, or a table of agents or patterns")


def _policies(value: Any, configs: TypeAdapter[Any] | None = None) -> dict[str, PolicySpec] | None:
    """Bring policies into one form; the adapter checks what each has of its own."""
    if value is None:
        return None
    specs = policies_of(value)
    if configs is None:
        return specs
    models = configs.validate_python({key: {"config": dict(spec.config)} for key, spec in specs.items()})
    return {key: dataclasses.replace(spec, config=models[key].config) for key, spec in specs.items()}


def _policies_to_train(value: Any) -> Any:
    if value is None or callable(value):
        return value
    ids = sorted(value, key=str) if isinstance(value, (set, frozenset)) else python_scalar(value)
    if not isinstance(ids, (list, tuple)) or not all(isinstance(module_id, str) for module_id in ids):
        raise ValueError("expected module ids, or a function (module_id, batch) -> bool")
    return list(ids)


def _loss(value: Any, info: ValidationInfo) -> Any:
    check_import(value, info)
    is_path = isinstance(value, str) and ":" in value
    problem = None if value is None else loss_problem(load_object(value, "loss", "loss") if is_path else value)
    if problem is not None:
        raise_problems([((), f"expected {problem[0]}; found {problem[1]}")])
    return value


def _runner_class(value: Any, info: ValidationInfo) -> Any:
    if not str(value).startswith("epibatch."):
        check_import(value, info)
    target = load_object(value, "env_runner_cls") if isinstance(value, str) else value
    if target is not None and not (isinstance(target, type) and issubclass(target, EnvRunner)):
        found = f"{target.__module__}.{target.__name__}" if isinstance(target, type) else repr(target)
        raise ValueError(
            "expected a subclass of epibatch's SingleAgentEnvRunner or MultiAgentEnvRunner, or its import path "
            f"module:Class, found {found}"
        )
    return value


def _callbacks(value: Any, info: ValidationInfo, kind: str) -> Any:
    problem = callback_problem(value, kind)
    if problem:
        raise ValueError(problem)
    paths = [path for path in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(path, str)]
    if paths and not _allows(info, "imports"):
        raise_problems(((), f"{import_problem(path)}, or give the function itself, in Python") for path in paths)
    raise_problems(((), problem) for path in paths if (problem := _wrong_target(path, kind)))
    return value


def _wrong_target(path: str, kind: str) -> str | None:
    try:
        target = load_object(path, repr(path), kind)
    except EpibatchError as error:
        return str(error)
    return None if callable(target) else f"expected a {kind}, found at {path!r}: {type(target).__name__} {target!r}"


def _loggers(value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise ValueError("expected a list such as [jsonl, csv]")
    for logger in value:
        named = isinstance(logger, str)
        if isinstance(logger, type) or not (
            logger in LOGGER_NAMES if named else callable(getattr(logger, "log", None))
        ):
            hint = f"; {nearest(logger, LOGGER_NAMES)}" if named else ""
            raise ValueError(f"expected names of loggers or objects with a method log(results){hint}")
    if any(logger in value[:i] for i, logger in enumerate(value)):
        raise ValueError("expected each logger once")
    return list(value)


def _must_be_zero(value: int, advice: str) -> int:
    if value:
        raise not_available(f"not available yet; expected 0, found {value}: {advice}")
    return value


def _created_model(name: str, base: type[SettingsModel], fields: dict[str, Any]) -> Any:
    """Return a model whose descriptions are those of its fields; pydantic looks for no source text, which is slow."""
    arguments = {"use_attribute_docstrings": False}
    return create_model(name, __base__=base, __module__=__name__, __cls_kwargs__=arguments, **fields)


def _partial(name: str, *models: type[SettingsModel], without: Collection[str] = ()) -> Any:
    """A type of some settings of some sections, which are kept as a dict of those that are given."""
    fields: dict[str, Any] = {
        attribute: (field.rebuild_annotation(), Field(None, validation_alias=field.validation_alias))
        for model in models
        for attribute, field in model.model_fields.items()
        if attribute not in without and attribute not in _HOOKS
    }
    partial_model = _created_model(name, SettingsModel, fields)

    def kept(value: Any, check: Callable[[Any], SettingsModel]) -> dict[str, Any]:
        settings = check(value)
        return {settings.spellings()[key]: getattr(settings, settings.spellings()[key]) for key in value}

    return Annotated[partial_model, WrapValidator(kept)]


_NAMES_OR_SPECS = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}
_PIECES_SCHEMA = {
    "type": ["array", "null"],
    "description": "Pieces of the pipeline: names, or mappings such as {piece: frame_stacking, num_frames: 4}.",
    "items": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["piece"]}]},
}
_PATHS_SCHEMA = {"type": ["string", "array", "null"], "items": {"type": "string"}}
_IDS_SCHEMA = {"type": ["array", "null"], "items": {"type": "string"}}

_POLICIES_SCHEMA = {
    "anyOf": [_IDS_SCHEMA, {"type": "object", "additionalProperties": {"type": ["object", "null"]}}],
}

Pieces = Annotated[
    Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None,
    PlainValidator(_pieces),
    WithJsonSchema(_PIECES_SCHEMA),
]
Space = Annotated[gym.Space[Any] | None, PlainValidator(_space), WithJsonSchema({"type": ["object", "null"]})]
CallbackFunctions = Annotated[
    Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None,
    PlainValidator(partial(_callbacks, kind="function")),
    WithJsonSchema(_PATHS_SCHEMA),
]


# ----------------------------------------------------------------------------------------- sections


class EnvironmentSettings(SettingsModel):
    """Set what is acted in, and how actions reach it."""

    env: Annotated[
        str | type[Any] | Callable[..., Any] | None,
        PlainValidator(_environment),
        WithJsonSchema({"type": ["string", "null"]}),
    ] = None
    """A name known to Gymnasium or given to `register_env`, an environment class, or a function of the `env_config`
    dict."""
    env_config: Annotated[dict[str, Any], AfterValidator(_env_config)] = Field(default_factory=dict)
    """Keywords for the constructor of a Gymnasium id; the dict that a function or class is called with."""
    wrappers: Annotated[
        Sequence[str | Mapping[str, Any] | Callable[..., Any]],
        PlainValidator(_wrappers),
        WithJsonSchema(_NAMES_OR_SPECS),
    ] = Field(default_factory=list)
    """Gymnasium's wrappers around each environment, the innermost first: names, `{"wrapper": name, ...}`, functions."""
    observation_space: Space = None
    """The space, where there is no environment to ask."""
    action_space: Space = None
    """The space, where there is no environment to ask."""
    normalize_actions: Switch = True
    """True if modules act in [-1, 1], and actions are stretched to the bounds of a Box."""
    clip_actions: Switch = False
    """True if actions are clipped to the bounds of a Box; for actions that are not normalised."""


class EnvRunnerSettings(SettingsModel):
    """Set how environments step, how episodes are cut, and the pieces of the two acting pipelines."""

    num_env_runners: Count = 0
    """Processes that sample, as Ray actors; 0: this process samples, without Ray."""
    num_cpus_per_env_runner: Coefficient = 1.0
    """Cores that Ray reserves for each of these processes; fractions are allowed."""
    num_gpus_per_env_runner: Coefficient = 0.0
    """GPUs that Ray reserves for each of them."""
    custom_resources_per_env_runner: dict[str, Coefficient] = Field(default_factory=dict)
    """Ray's custom resources for each of them: name -> amount."""
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] | None = None
    """How Ray places the processes on nodes, as a placement group; None: wherever there is room."""
    sample_timeout_s: PositiveNumber | None = 60.0
    """Seconds without a step after which a process is taken to hang, and is replaced; None: no limit."""
    max_requests_in_flight_per_env_runner: Positive = 1
    """Samples that each process is asked for before earlier ones were taken; more than 1 needs `sample_while_learning`,
    or IMPALA or APPO, whose default is 2."""
    max_bytes_in_flight: Positive | None = None
    """Bytes of samples that were asked for and not taken, of all processes together; None: no limit but
    `max_requests_in_flight_per_env_runner`."""
    sample_while_learning: Switch = False
    """True: the next batch is sampled while the modules learn from this one, so it is one update older."""
    merge_env_runner_states: Literal["training_only"] | Switch = "training_only"
    """False: statistics of connectors are not merged, so that each process has its own."""
    broadcast_env_runner_states: Switch = Field(
        default=True, validation_alias=AliasChoices("broadcast_env_runner_states", "update_worker_filter_stats")
    )
    """False: merged statistics are not sent to the processes, which go on with their own."""
    env_runner_cls: Annotated[
        type[Any] | str | None, PlainValidator(_runner_class), WithJsonSchema({"type": ["string", "null"]})
    ] = None
    """A subclass of `SingleAgentEnvRunner` or `TensorEnvRunner`, with policies of `MultiAgentEnvRunner`, or its import
    path; those of epibatch need no `allow_imports`."""
    num_envs_per_env_runner: Annotated[Positive, Field(le=2**17)] = 1
    """Environments that step together."""
    gym_env_vectorize_mode: Annotated[Literal["sync", "async", "vector_entry_point"], BeforeValidator(_enum_value)] = (
        "sync"
    )
    """"async" steps them in worker processes; "vector_entry_point" takes the id's own vector version."""
    num_envs_per_worker: Positive = 1
    """Environments of each worker process, with "async"."""
    gym_env_batch_size: Positive | None = None
    """With "async": the runner acts once this many environments have answered, and does not wait for slow ones; None:
    it waits for all."""
    gym_env_autoreset_mode: Annotated[
        Literal["next_step", "same_step", "disabled"] | None, BeforeValidator(_autoreset_name)
    ] = None
    """When reset observations come; None: as the vector environment does by itself."""
    env_resets_itself: Switch = False
    """True if `step` of the environment resets it, and returns the next episode's first observation with an end."""
    missing_final_obs: Annotated[
        float | Literal["nan", "zero", "keep"] | None,
        PlainValidator(_placeholder),
        WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["nan", "zero", "keep"]}, {"type": "null"}]}),
    ] = None
    """Last observation of an episode whose terminal one the environment does not give: "nan", "zero" or a number in
    every entry, or "keep" for the observation before; None: this is an error. Training reads the one before."""
    add_default_connectors_to_env_to_module_pipeline: Switch = True
    """False: the pipeline has only your pieces."""
    add_default_connectors_to_module_to_env_pipeline: Switch = True
    """False: the pipeline has only your pieces."""
    rollout_fragment_length: Annotated[
        int | Literal["auto"],
        PlainValidator(_fragment_length),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]}),
    ] = "auto"
    """Steps of each environment in a sample; "auto" covers `train_batch_size`, and with a replay buffer about 16 steps
    of all environments of a runner."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """Samples cut running episodes, or consist of whole ones."""
    keep_running_episodes: Switch = False
    """True: when whole episodes are sampled, running ones go on in the next sample; False: all environments reset."""
    horizon: Positive | None = None
    """Steps after which an episode is truncated, in place of a lower `TimeLimit`; None: as the environment ends it."""
    soft_horizon: Switch = False
    """True: at the `horizon` an episode ends without flag or reset, and the next one goes on from there."""
    no_done_at_end: Switch = False
    """True: train batches have no flags of ends, so that the value of the last observation always counts."""
    random_first_horizon: Positive | None = None
    """Each environment's first episode is truncated after a random number of steps, 1 to this; None: it is not."""
    torch_compile_worker: Switch = False
    """True: `torch.compile` makes what modules compute to act faster after first steps that take longer."""
    torch_compile_worker_dynamo_backend: str = "inductor"
    """Its backend."""
    torch_compile_worker_dynamo_mode: str | None = None
    """Its mode, such as "reduce-overhead"; None: torch's default."""
    explore: Annotated[Literal[True, False, "sample", "mode", "mean", "random"], PLAIN] = True
    """True, or "sample": actions are drawn from the distribution. False, or "mode": its most likely ones are taken.
    "mean": its mean is taken. "random": actions are drawn from the action space."""
    episode_lookback_horizon: Count = 1
    """Steps that a chunk keeps from before a cut, at least; pieces that read further back get more."""
    env_to_module_connector: Pieces = None
    """Your pieces from episodes to the module: `lambda env, spaces, device: ...`, or a list of piece specs."""
    module_to_env_connector: Pieces = None
    """Your pieces from the module to the environments: `lambda env, spaces: ...`, or a list of piece specs."""


class LearnerSectionSettings(SettingsModel):
    """Set the learner's pipeline, and where the network lives."""

    num_learners: Count = 0
    """Processes that learn together, as Ray actors, each from its share of the batch; 0: this process learns."""
    num_cpus_per_learner: Coefficient | Literal["auto"] = "auto"
    """Cores that Ray reserves for each of them; "auto": 1, or none beside a GPU."""
    num_gpus_per_learner: Coefficient = 0.0
    """GPUs that Ray reserves for each of them; with at least one, its modules are there."""
    num_aggregator_actors_per_learner: Annotated[
        Count, AfterValidator(partial(_must_be_zero, advice="each learner runs the learner pipeline on its own share"))
    ] = Field(default=0, validation_alias=AliasChoices("num_aggregator_actors_per_learner", "num_aggregator_actors"))
    """Must be 0: each learner makes its own batches."""
    device: Annotated[str | Any, PlainValidator(device_name), WithJsonSchema({"type": "string"})] = "cpu"
    """Device of the network and of all tensors that it is given: "cpu", "cuda", "cuda:0"."""
    add_default_connectors_to_learner_pipeline: Switch = True
    """False: the pipeline has only your pieces, and none of the algorithm's."""
    autocast: Literal["bfloat16"] | None = None
    """"bfloat16": `torch.autocast` computes losses partly in this type; None: in float32."""
    torch_compile_learner: Switch = False
    """True: `torch.compile` makes losses, and the modules in them, faster after a first update that takes longer."""
    torch_compile_learner_dynamo_backend: str = "inductor"
    """Its backend."""
    torch_compile_learner_dynamo_mode: str | None = None
    """Its mode, such as "reduce-overhead"; None: torch's default."""
    columns: Literal["all", "auto"] = "all"
    """"auto": train batches omit columns that are not read."""
    learner_connector: Pieces = None
    """Your pieces from episodes to train batches: `lambda obs_space, act_space: ...`, or a list of piece specs."""


BATCH_SIZE_NAMES = AliasChoices("train_batch_size", "train_batch_size_per_learner")
"""The names of the setting `train_batch_size`, for models that have another default."""


class TrainingSettings(OptimizerSettings):
    """Set learning rate, batch sizes, optimiser and loss."""

    first_names: ClassVar[tuple[str, ...]] = (
        "lr",
        "gamma",
        "train_batch_size",
        "minibatch_size",
        "num_epochs",
        "shuffle_batch_per_epoch",
    )

    lr: ScheduledCoefficient = 0.001
    """Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps learned from."""
    gamma: Fraction = 0.99
    """Discount."""
    train_batch_size: Positive = Field(default=4000, validation_alias=BATCH_SIZE_NAMES)
    """Environment steps of an iteration, at least."""
    loss: Annotated[
        Callable[..., Any] | str | None, PlainValidator(_loss), WithJsonSchema({"type": ["string", "null"]})
    ] = None
    """A function `(batch, outputs, distribution_class) -> (loss, metrics)`, a `Loss`, a class of one, or the import
    path of these; None: the algorithm's."""
    shuffle_batch_per_epoch: Switch = True
    """False: the batch is shuffled once."""

    def model_post_init(self, context: Any, /) -> None:
        """Bound a default minibatch size by the batch."""
        if self.minibatch_size is not None and "minibatch_size" not in self.model_fields_set:
            self.__dict__["minibatch_size"] = min(self.minibatch_size, self.train_batch_size)


class PPOTrainingSettings(PPOSettings, TrainingSettings):
    """Set learning rate, batch sizes and the coefficients of PPO's loss; the defaults are RLlib 2.60's."""

    first_names: ClassVar[tuple[str, ...]] = (
        *TrainingSettings.first_names,
        "grad_clip",
        "grad_clip_by",
        "lambda_",
        "standardize_advantages",
    )

    lr: ScheduledCoefficient = 5e-5
    """Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps learned from."""
    minibatch_size: Positive | None = 128
    """Timesteps of a minibatch; None: the whole batch; left out: no more than the batch has."""
    num_epochs: Positive = 30
    """Passes through each batch."""
    lambda_: Fraction = Field(default=1.0, validation_alias=AliasChoices("lambda_", "lambda"))
    """Trace decay of generalised advantage estimation."""


class OfflineDataSettings(SettingsModel):
    """Set recorded episodes, which take the place of sampled ones, and where sampled ones are recorded."""

    input_: Annotated[Any, PlainValidator(_episodes), WithJsonSchema({"type": ["string", "null"]})] = Field(
        default=None, validation_alias=AliasChoices("input_", "input")
    )
    """The path of a data set, an `EpisodeDataset`, a list of episodes, or another sequence of them that a learner
    pipeline takes; None: episodes are sampled."""
    output: Annotated[str | None, BeforeValidator(_path_text)] = None
    """Folder of a data set, to which every episode that is sampled for training is written, with its model outputs and
    with the actions as the environment gets them (`actions_for_env`); a relative one lies in the run's folder."""
    held_out: Fraction = 0.0
    """Share of the recorded episodes that is not learned from, but measured: the losses of its steps are
    `offline_evaluation` in the results."""


class RLModuleSettings(SettingsModel):
    """Choose the network."""

    module_config: Annotated[dict[str, Any], BeforeValidator(settings_of)] = Field(
        default_factory=dict, validation_alias=AliasChoices("model_config", "model_config_dict")
    )
    """Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a `DefaultModelConfig`."""
    rl_module_spec: Annotated[Any, PlainValidator(_module_spec), WithJsonSchema({"type": "null"})] = None
    """A network of your own (`RLModuleSpec`), or several (`MultiRLModuleSpec`)."""
    view_requirements: Annotated[
        Mapping[str, Any],
        PlainValidator(_views),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "object"}}),
    ] = Field(default_factory=dict)
    """Columns of other steps that all modules get: name -> `View`, or its arguments."""


class MultiAgentSectionSettings(SettingsModel):
    """Set which modules there are, which agents each decides for, and which of them learn."""

    policies: Annotated[Collection[str] | Mapping[str, Any] | None, PlainValidator(_policies)] = None
    """Module ids; or id -> None, `PolicySpec`, its fields as a dict, or `RLModuleSpec`; None: those of the table."""
    policy_mapping_fn: Annotated[
        Callable[..., str] | Mapping[Any, str] | None,
        PlainValidator(_agents_to_modules),
        WithJsonSchema({"type": ["object", "null"], "additionalProperties": {"type": "string"}}),
    ] = None
    """A function `(agent_id, episode, **kwargs) -> module id`, or a table of agents or patterns (`AgentMapping`)."""
    policies_to_train: Annotated[
        Callable[..., bool] | Collection[str] | None, PlainValidator(_policies_to_train), WithJsonSchema(_IDS_SCHEMA)
    ] = None
    """Ids of the modules that learn, or a function `(module_id, batch) -> bool`; None: all."""
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    """What `train_batch_size` counts."""
    episode_end: Literal["all", "any"] = "all"
    """Without `__all__`, an episode ends when the flags of all agents are set, or that of any agent."""
    algorithm_config_overrides_per_module: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Module id -> settings of the training that it has of its own."""


_Name = Annotated[str, Field(pattern=r"^[\w.-]+$")]
_EvaluationOverrides = _partial("EvaluationOverrides", EnvironmentSettings, EnvRunnerSettings)


class EvaluationSettings(SettingsModel):
    """Set when and how long the policy is measured apart from the training, which it does not change."""

    evaluation_interval: Positive | None = None
    """Iterations from one evaluation to the next; None: only when `algo.evaluate()` is called."""
    evaluation_duration: Positive = 10
    """How much is sampled for one evaluation."""
    evaluation_duration_unit: Literal["episodes", "timesteps"] = "episodes"
    """What the duration counts."""
    evaluation_config: _EvaluationOverrides = Field(default_factory=dict)  # type: ignore[valid-type]
    """Settings of `environment` and `env_runners` that differ, such as `{"explore": True}`."""
    evaluation_sets: dict[_Name, _EvaluationOverrides] = Field(default_factory=dict)  # type: ignore[valid-type]
    """Name -> settings in which a set of environments differs from `evaluation_config`, such as
    `{"hard": {"env_config": {"level": 9}}}`. Each set is evaluated, and has its results below its name."""
    evaluation_num_env_runners: Count = 0
    """Processes that evaluate, as Ray actors, for each set; 0: this process evaluates."""
    evaluation_parallel_to_training: Switch = False
    """True: these processes evaluate while an iteration samples and learns, with the weights from before it."""
    evaluation_sample_timeout_s: PositiveNumber | None = 120.0
    """Seconds without a step after which one of these processes is taken to hang, and is replaced; None: no limit."""
    evaluation_force_reset_envs_before_iteration: Literal[True] = True
    """Must be True: each evaluation begins new episodes."""
    offline_evaluation_interval: Positive = 1
    """Iterations from one measurement of the losses of episodes that are `held_out` to the next."""


class CallbackSettings(SettingsModel):
    """Set functions of your own that are called when something happens.

    Each is a function, its import path `module:function` (which needs `allow_imports`), or a list of these.
    The methods of `Callbacks` have their arguments.
    """

    callbacks_class: Annotated[
        type[Any] | str | Sequence[type[Any] | str] | None,
        PlainValidator(partial(_callbacks, kind="class")),
        WithJsonSchema(_PATHS_SCHEMA),
    ] = None
    """A subclass of `Callbacks`, or a list of them; runner and algorithm make their own objects."""
    on_algorithm_init: CallbackFunctions = None
    """The algorithm is built."""
    on_train_result: CallbackFunctions = None
    """An iteration has its results."""
    on_evaluate_start: CallbackFunctions = None
    """An evaluation begins."""
    on_evaluate_end: CallbackFunctions = None
    """An evaluation has its results."""
    on_checkpoint_loaded: CallbackFunctions = None
    """The algorithm was restored."""
    on_environment_created: CallbackFunctions = None
    """A runner made its environments."""
    on_episode_created: CallbackFunctions = None
    """An episode was made and is not reset yet."""
    on_episode_start: CallbackFunctions = None
    """An episode was reset."""
    on_episode_step: CallbackFunctions = None
    """An episode got a step."""
    on_episode_end: CallbackFunctions = None
    """An episode ended."""
    on_sample_end: CallbackFunctions = None
    """A sample is complete."""


class FaultToleranceSettings(SettingsModel):
    """Set what happens if an environment fails: raises, breaks its contract, hangs, or loses its process."""

    restart_failed_sub_environments: Switch = False
    """True if a failed environment is made again, with a new seed, while the others go on; False: `sample()` raises."""
    max_sub_environment_restarts_per_sample: Positive = 100
    """Restarts of one environment in one call of `sample()`, which then raises."""
    max_sub_environment_restarts: Count | None = None
    """Restarts of all environments of a runner, over its lifetime; None: no limit."""
    sub_environment_timeout_s: PositiveNumber | None = None
    """Seconds after which a worker process ("async") that does not answer is killed; None: no limit."""
    failed_episodes: Literal["truncate", "drop"] = "truncate"
    """"truncate" ends the episode of a failed environment before the failed step, "drop" forgets it."""
    restart_failed_env_runners: Switch = True
    """True if a process that samples is replaced when it dies or hangs; only with `num_env_runners`."""
    ignore_env_runner_failures: Switch = False
    """True: without restarts the others go on, as long as there is one; False: `train()` raises."""
    max_num_env_runner_restarts: Count = 1000
    """Restarts of each process that samples."""
    num_consecutive_env_runner_failures_tolerance: Count = 100
    """Failures in a row of one process that samples, without a sample between them. Unless it is set, losing each 10
    times ends the run too, if none of them samples in between."""
    env_runner_health_probe_timeout_s: PositiveNumber = 30.0
    """Seconds in which a process must say how far it is, when its sample is late."""
    restart_failed_learners: Switch = True
    """True if processes that learn are replaced when one dies; the update that it was in is made again."""
    max_num_learner_restarts: Count = 100
    """Restarts of the processes that learn, which are replaced together."""


class DebuggingSettings(SettingsModel):
    """Set the seed, and what is logged and checked."""

    seed: Annotated[Count | None, Field(lt=2**32)] = None
    """Seed of environments, network and minibatches."""
    log_level: Literal["DEBUG", "INFO", "WARN", "ERROR"] = "WARN"
    """Level of the logger."""
    time_pieces: Switch = False
    """True if the results of each iteration have the seconds of every connector piece."""
    check_first_update: Literal["warn", "error", "off"] = "warn"
    """What follows if a module computes something else in its first gradient step than was recorded while it acted."""


class ReportingSettings(SettingsModel):
    """Set over how many episodes returns are averaged, and where a run's results go."""

    metrics_num_episodes_for_smoothing: Positive = 100
    """Ended episodes that `episode_return_mean` and the like are about."""
    loggers: Annotated[
        Sequence[Any],
        PlainValidator(_loggers),
        WithJsonSchema({"type": "array", "items": {"enum": list(LOGGER_NAMES)}, "uniqueItems": True}),
    ] = Field(default_factory=lambda: ["jsonl", "csv"])
    """Names of `LOGGERS`, and objects with a method `log(results)`, for `epibatch train` and `TrainingRun`."""
    curve: str = RETURN_MEAN
    """Result that the learning curve shows, such as `env_runners/module_episode_returns_mean/main`."""


class CheckpointingSettings(SettingsModel):
    """Set when `epibatch train` saves while it runs, and how many checkpoints it keeps."""

    checkpoint_frequency: Count = 0
    """Iterations between two saves; 0: none for that reason."""
    checkpoint_interval_s: PositiveOrInfinite | None = 60.0
    """Seconds between two saves; None: none for that reason."""
    num_to_keep: Positive | None = 2
    """Newest checkpoints that are kept; None: all."""
    checkpoint_score_attribute: str | None = None
    """Result, such as `evaluation/env_runners/episode_return_mean`, by which the best checkpoint is kept too, as
    `checkpoints/best`; None: no best one."""
    checkpoint_score_order: Literal["max", "min"] = "max"
    """"min": the lowest value is the best."""
    end_episodes: Switch = False
    """True if a save ends the running episodes, so that a resumed run goes on bit for bit like this one."""


class StopSettings(SettingsModel):
    """Set when `epibatch train` stops: goals to reach, and limits on the way to them."""

    episode_return_mean: Number | None = Field(
        default=None, validation_alias=AliasChoices("episode_return_mean", "env_runners/episode_return_mean")
    )
    """Goal: mean return of the latest episodes."""
    evaluation_return_mean: Number | None = Field(
        default=None,
        validation_alias=AliasChoices("evaluation_return_mean", "evaluation/env_runners/episode_return_mean"),
    )
    """Goal: mean return of an evaluation."""
    results: Annotated[dict[str, Number], BeforeValidator(settings_of)] = Field(default_factory=dict)
    """Goals: result -> value that it has to reach or exceed, such as
    `{"env_runners/module_episode_returns_mean/main": 100}`; a result that has to fall can be no goal."""
    num_env_steps_sampled_lifetime: Positive | None = None
    """Limit of environment steps."""
    training_iteration: Positive | None = None
    """Limit of iterations."""
    time_total_s: PositiveOrInfinite | None = None
    """Limit of seconds."""


# ---------------------------------------------------------------------------------------- together


def _multi_agent_settings(name: str, training: type[TrainingSettings]) -> Any:
    """The section of an algorithm: modules can have settings of its training of their own."""
    base = MultiAgentSectionSettings.model_fields
    overrides = _partial("ModuleOverrides", training, without=COMMON_SETTINGS)
    module_model = _created_model("ModuleSettings", SettingsModel, {"config": (overrides, ...)})
    check = PlainValidator(partial(_policies, configs=TypeAdapter(dict[str, module_model])))  # type: ignore[valid-type]
    policies = Annotated[base["policies"].annotation, check, WithJsonSchema(_POLICIES_SCHEMA)]  # type: ignore[valid-type]
    per_module = "algorithm_config_overrides_per_module"
    fields: dict[str, Any] = {
        "policies": (policies, Field(None, description=base["policies"].description)),
        per_module: (
            dict[str, overrides],  # type: ignore[valid-type]
            Field(default_factory=dict, description=base[per_module].description),
        ),
    }
    return _created_model(name, MultiAgentSectionSettings, fields)


class AlgorithmSettings(SettingsModel):
    """All settings of a config, in sections."""

    algorithm: Literal[""] = ""
    environment: EnvironmentSettings = Field(default_factory=EnvironmentSettings)
    env_runners: EnvRunnerSettings = Field(default_factory=EnvRunnerSettings)
    learners: LearnerSectionSettings = Field(default_factory=LearnerSectionSettings)
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    offline_data: OfflineDataSettings = Field(default_factory=OfflineDataSettings)
    rl_module: RLModuleSettings = Field(default_factory=RLModuleSettings)
    multi_agent: MultiAgentSectionSettings = Field(default_factory=MultiAgentSectionSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    callbacks: CallbackSettings = Field(default_factory=CallbackSettings)
    fault_tolerance: FaultToleranceSettings = Field(default_factory=FaultToleranceSettings)
    debugging: DebuggingSettings = Field(default_factory=DebuggingSettings)
    reporting: ReportingSettings = Field(default_factory=ReportingSettings)
    checkpointing: CheckpointingSettings = Field(default_factory=CheckpointingSettings)
    stop: StopSettings = Field(default_factory=StopSettings)

    @classmethod
    @cache
    def sections(cls) -> dict[str, type[SettingsModel]]:
        """Name of a section -> its model."""
        models: dict[str, Any] = {name: field.annotation for name, field in cls.model_fields.items()}
        return {name: model for name, model in models.items() if name != "algorithm"}

    @classmethod
    @cache
    def section_of(cls) -> dict[str, str]:
        """Every spelling of every setting -> its section."""
        return {spelling: name for name, model in cls.sections().items() for spelling in model.spellings()}

    @classmethod
    @cache
    def overrides(cls) -> TypeAdapter[dict[str, Any]]:
        """Return the validator of settings for evaluation or for single modules."""
        sections = cls.sections()
        models = [sections[name] for name in (*EVALUATED, "training")]
        return TypeAdapter(_partial("Overrides", *models))


def algorithm_settings(name: str, training: type[TrainingSettings], config: type[Any]) -> type[AlgorithmSettings]:
    """Return the model of all settings of an algorithm.

    Args:
        name: Its name in files.
        training: The section `training`.
        config: The config class, whose attribute `model` the result becomes; pickles find it there.
    """
    agents = _multi_agent_settings(f"{config.__name__}MultiAgent", training)
    fields: dict[str, Any] = {
        "algorithm": (Literal[name], name),
        "training": (training, Field(default_factory=training)),
        "multi_agent": (agents, Field(default_factory=agents)),
    }
    made: type[AlgorithmSettings] = _created_model(f"{config.__name__}Model", AlgorithmSettings, fields)
    for model, place in ((made, "model"), (agents, "model_of_agents")):
        model.__module__, model.__qualname__ = config.__module__, f"{config.__qualname__}.{place}"
    config.model_of_agents = agents
    return made


# ----------------------------------------------------------------------------------------- checking


def validated(
    model: type[AlgorithmSettings], data: Mapping[str, Any], errors: ErrorList, context: Mapping[str, bool]
) -> AlgorithmSettings:
    """Build all settings; those that are wrong are added to the errors and have their defaults.

    Args:
        model: Of an algorithm's settings.
        data: Section -> its settings, as a mapping or as a model.
        errors: Where to add what is wrong.
        context: What is allowed: "imports" of pieces and callbacks, "env_imports" of environments, by their paths.
    """
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        places = errors.add_details(error, partial(_explain, model))
    for place in places:
        data = _drop_place(data, place)
    try:
        return model.model_validate(data, context=context)
    except ValidationError:  # a key that is no text
        return model()


def _drop_place(data: Mapping[Any, Any], place: Place) -> Mapping[Any, Any]:
    """A copy without the value at a place, or without the list that it stands in."""
    key, inner = place[0], data.get(place[0])
    if len(place) > 1 and isinstance(inner, Mapping) and place[1] in inner:
        return {**data, key: _drop_place(inner, place[1:])}
    return {name: value for name, value in data.items() if name != key}


def _explain(model: type[AlgorithmSettings], detail: ErrorDetails) -> str | None:
    """Say what is wrong where pydantic knows too little: names, and sections that are none."""
    place, sections, section_of = detail["loc"], model.sections(), model.section_of()
    name, section = str(place[-1]), sections.get(str(place[0]))
    if detail["type"] == "model_type" and section is not None and len(place) == 1:
        names = ", ".join(section.names())
        return f"expected a mapping with some of {names}; found {brief(detail['input'])}"
    if detail["type"] not in ("extra_forbidden", "invalid_key"):
        return None
    if len(place) > 2:
        return explain_override(model, name, EVALUATED if place[0] == "evaluation" else ("training",))
    if section is None:
        choices = ["algorithm", *sections, *PIPELINES]
        if name in section_of:
            return f"no section; this setting belongs to {section_of[name]}"
        return f"no such section; {RLLIB_METHODS.get(name) or nearest(name, choices)}"
    if name in section.spellings():
        return f"given twice: {name!r} and another spelling of the setting"
    if name in section_of:
        return f"unknown setting here; it belongs to {section_of[name]}"
    return f"unknown setting; {setting_advice(name, section.spellings())}"


def explain_override(model: type[AlgorithmSettings], name: str, sections: Sequence[str]) -> str:
    """Say what is wrong with the name of a setting that evaluation or a single module is to have of its own."""
    if name in COMMON_SETTINGS and tuple(sections) == ("training",):
        return f"no setting of single modules: {COMMON_SETTINGS[name]}"
    if name in _HOOKS:
        return "no setting here: evaluation and modules have the pieces of the training"
    if name in model.section_of():
        return f"belongs to {model.section_of()[name]}; here are settings of {' and '.join(sections)}"
    names = [setting for section in sections for setting in model.sections()[section].names()]
    return f"unknown setting; {setting_advice(name, names)}"


def add_contradictions(settings: AlgorithmSettings, errors: ErrorList) -> None:
    """Add what no setting shows by itself."""
    size, batch = settings.training.minibatch_size, settings.training.train_batch_size
    if size is not None and size > batch:
        errors.add("training.minibatch_size", f"expected at most train_batch_size ({batch}), found {size}")
    if settings.learners.num_gpus_per_learner and not settings.learners.num_learners:
        errors.add(
            "learners.num_gpus_per_learner", "needs num_learners; device='cuda' lets this process learn on a GPU"
        )
    if settings.learners.num_gpus_per_learner > 1:
        errors.add("learners.num_gpus_per_learner", "expected at most 1, as a learner uses one GPU; set num_learners")
    evaluated: Any = settings.evaluation
    data = settings.offline_data.input_
    if evaluated.evaluation_parallel_to_training and not evaluated.evaluation_num_env_runners:
        errors.add("evaluation.evaluation_parallel_to_training", "needs processes: set evaluation_num_env_runners")
    sets: dict[str, Any] = {f"evaluation_sets.{name}": own for name, own in evaluated.evaluation_sets.items()}
    for name, own in {"evaluation_config": evaluated.evaluation_config, **sets}.items():
        if own.get("num_env_runners"):
            errors.add(f"evaluation.{name}.num_env_runners", "expected 0; set evaluation.evaluation_num_env_runners")
    common = evaluated.evaluation_config.get("env", settings.environment.env)
    envs = [own.get("env", common) for own in sets.values()] or [common]
    if data is not None and None in envs and evaluated.evaluation_interval is not None:
        errors.add("evaluation.evaluation_interval", "needs an environment: evaluation_config={'env': 'CartPole-v1'}")
    goal = settings.stop.evaluation_return_mean
    if goal is not None and settings.evaluation.evaluation_interval is None:
        errors.add("stop.evaluation_return_mean", "needs evaluations: set evaluation.evaluation_interval")
    elif goal is not None and sets:
        key = f"evaluation/{next(iter(evaluated.evaluation_sets))}/{RETURN_MEAN}"
        errors.add(
            "stop.evaluation_return_mean", f"expected the goal of a set, such as stop.results: {{{key}: {goal:g}}}"
        )
    measured = {f"stop.results.{key}": key for key in settings.stop.results}
    measured["checkpointing.checkpoint_score_attribute"] = settings.checkpointing.checkpoint_score_attribute or ""
    for place, key in measured.items():
        if key.startswith("evaluation/") and settings.evaluation.evaluation_interval is None:
            errors.add(place, f"{key} needs evaluations: set evaluation.evaluation_interval")
    add_policy_errors(settings, errors)
