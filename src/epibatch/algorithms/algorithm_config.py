"""`AlgorithmConfig`: settings of a training run, and what is built from them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import gymnasium as gym
from pydantic import ValidationError

from epibatch.core import DEFAULT_MODULE_ID, rl_module
from epibatch.core.errors import ConfigError, EpibatchError, EpibatchWarning, NotAvailableError
from epibatch.core.imports import load_object
from epibatch.core.runtime import device_error
from epibatch.core.settings import ErrorList

from ..connectors.common.agent_to_module_mapping import AgentToModuleMapping
from ..connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from ..connectors.env_to_module.env_to_module_pipeline import default_pipeline as default_env_to_module
from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from ..connectors.learner.learner_connector_pipeline import default_pipeline as default_learner
from ..connectors.learner.never_terminate import NeverTerminate
from ..connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from ..connectors.module_to_env.module_to_env_pipeline import default_pipeline as default_module_to_env
from ..connectors.views.declared_views import declare_views
from .config.config_io import ConfigDocument, config_schema, config_to_dict, read_document, to_yaml_text
from .config.module_specs import burns_in, check_model_config, complete_spec, module_views, multi_module_spec
from .config.multi_agent import (
    check_agents,
    mapping_of,
    module_spaces,
    overrides_by_module,
    policies_of_settings,
    specs_by_module,
)
from .config.pipelines import PIPELINES, add_burn_in, single_spaces, user_pieces
from .config.settings import (
    EVALUATED,
    AlgorithmSettings,
    StopSettings,
    TrainingSettings,
    add_contradictions,
    explain_override,
    validated,
)
from .config.signatures import METHODS, section_method
from .other_libraries import setting_advice, unknown_attribute
from .policy_spec import PolicySpec, settings_of
from .recorded_episodes import RecordedEpisodes
from .registry import config_class, import_path, name_in_files
from .train_batches import TrainBatches

if TYPE_CHECKING:
    from epibatch.core.rl_module.rl_module import Heads, RLModuleSpec

    from .algorithm import Algorithm
    from .sources import Source

__all__ = ["AlgorithmConfig"]

ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")


class AlgorithmConfig:
    """Settings of a training run, and builders of its pipelines, network and Algorithm.

    Use the config of an algorithm, such as `PPOConfig`. Every section has a method, which changes this config and
    returns it. Settings are read flat, as attributes (`config.lr`, `config.num_envs_per_env_runner`), and stand in
    sections in files (`to_yaml`). A wrong name or value raises at once, with all that is wrong in the call.

    Args:
        allow_imports: True if pieces and callbacks may be named by an import path; importing runs code.

    Raises:
        ConfigError: unknown settings or values that do not fit, all of them in one message.

    Examples:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> config = PPOConfig().environment("CartPole-v1").training(lr=3e-4, gamma=0.98)
        >>> config.lr, config.num_epochs
        (0.0003, 30)
    """

    model: ClassVar[type[AlgorithmSettings]] = AlgorithmSettings
    """The settings."""
    training_model: ClassVar[type[TrainingSettings]] = TrainingSettings
    """The section `training`, of which `register_algorithm` makes the settings."""
    rule: ClassVar[Any] = None
    """The algorithm's `UpdateRule`, a class that takes the section `training` as `settings`; or what `loss` may be."""
    min_env_steps_per_iteration: ClassVar[int] = 0
    """Environment steps of an iteration, at least: `train` calls `training_step` until it has so many."""
    heads: ClassVar[Heads] = "actor_critic"
    """What the default network gives, as for `default_module_spec`: "q_values" for an algorithm like DQN, say."""
    offline: ClassVar[bool] = False
    """True: the algorithm learns from recorded episodes (`offline_data`) and never samples."""
    algorithm_class: ClassVar[str] = "epibatch.algorithms.algorithm:Algorithm"
    """Import path of the class whose `training_step` runs the algorithm."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "model" in vars(cls):
            cls._make_methods()

    @classmethod
    def use_settings(cls, model: type[AlgorithmSettings]) -> None:
        """Let the settings be those of a model, and make their typed methods."""
        cls.model = model
        cls._make_methods()

    @classmethod
    @cache
    def get_algorithm_class(cls) -> type[Algorithm]:
        """The class whose `training_step` runs the algorithm; without an `algorithm_class`, one made for this config.

        Raises:
            NotAvailableError: this is the general config.
        """
        if not cls.model.default_of("algorithm"):
            raise NotAvailableError(
                f"{cls.__name__}.build_algo",
                expected="the config of an algorithm",
                found="the general config",
                do='use PPOConfig, or give the class a name: @register_algorithm("my_sac")',
            )
        found: type[Algorithm] = load_object(cls.algorithm_class, "algorithm_class")
        if cls.algorithm_class != AlgorithmConfig.algorithm_class:
            return found
        named: type[AlgorithmConfig] = next(base for base in cls.__mro__ if "model" in vars(base))
        if named is not cls:
            return named.get_algorithm_class()
        attributes = {"config_class": cls, "__module__": cls.__module__, "__doc__": cls.__doc__}
        return type(cls.__name__.removesuffix("Config"), (found,), attributes)

    @classmethod
    def _make_methods(cls) -> None:
        """Make a method for each section, with typed keywords for all settings; a method that is written stays."""
        for method in METHODS:
            written = getattr(cls, method, None)
            if written is None or getattr(written, "is_generated", False):
                setattr(cls, method, section_method(cls.model, method))

    def __init__(self, *, allow_imports: bool = False) -> None:
        self._allow_imports = allow_imports
        self._in_evaluation = False
        self._settings = self.model()
        self._num_changes: Counter[str] = Counter()

    def api_stack(self: ConfigT, **switches: bool) -> ConfigT:
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

    def framework(self: ConfigT, framework: str | None = "torch", **options: Any) -> ConfigT:
        """Set the `torch_compile_...` settings; warn that RLlib's other options change nothing.

        Args:
            framework: "torch".
            **options: Settings of `learners` and `env_runners`, and RLlib's.

        Raises:
            ConfigError: the framework is another one, or a setting is wrong.
        """
        if framework not in (None, "torch"):
            raise ConfigError(
                f"{type(self).__name__}.framework",
                expected="'torch'",
                found=repr(framework),
                do="write the module in PyTorch, and leave the call out",
            )
        parts: dict[str, dict[str, Any]] = {"learners": {}, "env_runners": {}}
        for name in [name for name in options if name.startswith("torch_compile_")]:
            parts["learners" if name.startswith("torch_compile_learner") else "env_runners"][name] = options.pop(name)
        if any(parts.values()):
            self.change("framework", parts)
        if not options and any(parts.values()):
            return self
        return self._changes_nothing("framework", "networks are always PyTorch's")

    def resources(self: ConfigT, **settings: Any) -> ConfigT:
        """Set the `placement_strategy`; warn that RLlib's other settings change nothing.

        Args:
            **settings: RLlib's, such as `num_cpus_for_main_process`.
        """
        if "placement_strategy" in settings:
            self.change("resources", {"env_runners": {"placement_strategy": settings.pop("placement_strategy")}})
        if not settings:
            return self
        return self._changes_nothing(
            f"resources({', '.join(settings)})",
            "the main process takes what it needs; env_runners(num_cpus_per_env_runner=...) and "
            "learners(num_gpus_per_learner=...) are for the others, and learners(device='cuda') chooses a GPU",
        )

    def _changes_nothing(self: ConfigT, method: str, reason: str) -> ConfigT:
        call = method if method.endswith(")") else f"{method}(...)"
        text = f"{type(self).__name__}.{call} changes nothing: {reason}. Leave the call out."
        warnings.warn(text, stacklevel=3)
        return self

    # ------------------------------------------------------------------------- reading and changing

    def change(self: ConfigT, method: str, parts: Mapping[str, Mapping[str, Any]]) -> ConfigT:
        """Check new settings of some sections together; adopt all of them or none.

        Args:
            method: The caller, for messages.
            parts: Section -> its new settings.
        """
        errors = ErrorList()
        values = self._checked(parts, errors)
        errors.raise_if_any(f"{type(self).__name__}.{method}")
        self._settings = values
        self._num_changes.update(parts.keys())
        return self

    def _checked(self, parts: Mapping[str, Any], errors: ErrorList, *, env_imports: bool = True) -> AlgorithmSettings:
        """All settings with new ones in their sections, as far as they are right."""
        data = {name: getattr(self._settings, name) for name in self._settings.model_fields_set}
        data |= {section: self._merged(section, new) for section, new in parts.items()}
        context = {"imports": self._allow_imports, "env_imports": env_imports}
        return validated(self.model, data, errors, context)

    def _merged(self, section: str, new: Any) -> Any:
        """A section's settings that were given, with the new ones in place of theirs."""
        if not isinstance(new, Mapping) or section not in self.model.sections():
            return new
        values, spellings = getattr(self._settings, section).given(), self.model.sections()[section].spellings()
        for name in ("model_config", "model_config_dict"):
            if section == "rl_module" and isinstance(new.get(name), Mapping):
                new = {**new, name: {**values.get("model_config", {}), **new[name]}}
        changed = {spellings.get(name) for name in new}
        return {**{name: value for name, value in values.items() if spellings[name] not in changed}, **new}

    def __getattr__(self, name: str) -> Any:
        section = None if name.startswith("_") else self.model.section_of().get(name)
        if section is not None:
            values = getattr(self._settings, section)
            return getattr(values, values.spellings()[name])
        if name == "algorithm":
            return self._settings.algorithm
        raise AttributeError(unknown_attribute(type(self), name, self.model.section_of()))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        section = self.model.section_of().get(name)
        if section is None:
            raise ConfigError(
                f"{type(self).__name__}.{name}",
                expected="a known setting",
                found=repr(name),
                do=setting_advice(name, self.model.section_of()),
            )
        self.change(name, {section: {name: value}})

    def copy(self: ConfigT) -> ConfigT:
        """A config of its own with the same settings; dicts and lists in them are copied."""
        twin = type(self)(allow_imports=self._allow_imports)
        twin._settings = self._settings
        for name in self.model.sections():
            section = getattr(twin._settings, name)
            given = {key: _copy_containers(value) for key, value in section if key in section.model_fields_set}
            twin._settings = twin._settings.model_copy(update={name: section.model_copy(update=given)})
        for hook in PIPELINES.values():
            if isinstance(getattr(self, hook.setting), list):  # which validation copies
                twin.change("copy", {hook.section: {hook.setting: getattr(self, hook.setting)}})
        return twin

    def __repr__(self) -> str:
        sections = [getattr(self._settings, section) for section in self.model.sections()]
        given = {name: value for section in sections for name, value in section.given().items()}
        arguments = [
            f"{name}=<{len(value)} episodes>" if name == "input_" and value is not None else f"{name}={value!r}"
            for name, value in given.items()
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"

    @property
    def samples(self) -> bool:
        """True if runners sample what is learned from; False if recorded episodes take their place."""
        return self.input_ is None

    @property
    def acts(self) -> bool:
        """True if there is something to act in: an environment, or simulators that a runner class waits for."""
        cls = self.env_runner_cls
        cls = load_object(cls, "env_runner_cls") if isinstance(cls, str) else cls
        return self.env is not None or not getattr(cls, "needs_env", True)

    def validate(self) -> None:
        """Check what no single setting can show.

        Raises:
            ConfigError: settings that contradict each other, all of them in one message.
        """
        errors = ErrorList()
        add_contradictions(self._settings, errors)
        if self.input_ is not None and self.num_env_runners and not self.samples:
            errors.add("env_runners.num_env_runners", "expected 0 with offline_data.input_, as nothing is sampled")
        fault = device_error(self.device)
        if fault is not None:
            errors.add("learners.device", f"{self.device!r} cannot be used here: {fault}; cpu can be used everywhere")
        errors.raise_if_any(type(self).__name__)
        if self.sample_while_learning and not self.num_env_runners and not self.in_evaluation:
            warning = EpibatchWarning(
                "env_runners.sample_while_learning",
                expected="processes that sample while this one learns: num_env_runners above 0",
                found="num_env_runners=0, with which the setting has no effect",
                do="set num_env_runners=2, say, or leave sample_while_learning out",
            )
            warnings.warn(warning, stacklevel=3)

    @property
    def settings(self) -> AlgorithmSettings:
        """All settings, in sections."""
        return self._settings

    @property
    def num_changes(self) -> Counter[str]:
        """Number of changes of each section that was changed."""
        return self._num_changes

    @property
    def in_evaluation(self) -> bool:
        """True for the config of the environments that `evaluate` measures in."""
        return self._in_evaluation

    @property
    def allows_imports(self) -> bool:
        """True if pieces and callbacks may be named by an import path."""
        return self._allow_imports

    @property
    def stop_rules(self) -> StopSettings:
        """The `stop` section."""
        return self._settings.stop

    @property
    def is_multi_agent(self) -> bool:
        """True if there are other modules than the default one, as RLlib sees it."""
        return list(self.policies) != [DEFAULT_MODULE_ID]

    @property
    def keep_actions_for_env(self) -> bool:
        """True if runners store `actions_for_env` with the other outputs of each step: what they sample is recorded."""
        return self.output is not None

    @property
    def policies(self) -> dict[str, PolicySpec]:
        """Module id -> what is different about it."""
        return policies_of_settings(self._settings)

    @property
    def policy_mapping_fn(self) -> Any:
        """The mapping from agents to modules, called as `fn(agent_id, episode)`; None if it is not set."""
        return mapping_of(self._settings)

    def overrides_for(self, module_id: str) -> dict[str, Any]:
        """The settings of the training that a module has of its own."""
        return overrides_by_module(self._settings).get(module_id, {})

    def get_config_for_module(self: ConfigT, module_id: str) -> ConfigT:
        """The config as it is for one module: its own settings in place of the common ones."""
        overrides = self.overrides_for(module_id)
        return self.copy().change("get_config_for_module", {"training": overrides}) if overrides else self

    def get_evaluation_config_object(self: ConfigT, name: str = "") -> ConfigT:
        """Return the config of evaluation: greedy actions by default, and at most one environment per episode.

        Its episodes are truncated at the `horizon`, and the first ones are not shortened, unless `evaluation_config`
        says so.

        `env_config` is merged into that of the training; every other setting replaces the training's. With
        "vector_entry_point" the number of environments stays, as the entry point may only support that number.

        Args:
            name: One of `evaluation_sets`; its settings replace those of `evaluation_config` in the same way. "": none.

        Raises:
            KeyError: there is no such set.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=64)
            >>> evaluation = config.evaluation(evaluation_duration=5).get_evaluation_config_object()
            >>> evaluation.num_envs_per_env_runner, evaluation.explore
            (5, False)
        """
        own = self.evaluation_sets[name] if name else {}
        env_configs = [part.get("env_config", {}) for part in (self.evaluation_config, own)]
        settings: dict[str, Any] = {
            "explore": False,
            "soft_horizon": False,
            "random_first_horizon": None,
            "sample_timeout_s": self.evaluation_sample_timeout_s,
            **self.evaluation_config,
            **own,
            "env_config": {**self.env_config, **env_configs[0], **env_configs[1]},
            "num_env_runners": self.evaluation_num_env_runners,
        }
        mode = settings.get("gym_env_vectorize_mode", self.gym_env_vectorize_mode)
        if self.evaluation_duration_unit == "episodes" and mode != "vector_entry_point":
            count = settings.get("num_envs_per_env_runner", self.num_envs_per_env_runner)
            most = -(-self.evaluation_duration // max(1, self.evaluation_num_env_runners))
            settings["num_envs_per_env_runner"] = min(count, most)
        parts: dict[str, dict[str, Any]] = {section: {} for section in EVALUATED}
        parts["offline_data"] = {"input_": None, "output": None}
        for setting, value in settings.items():
            parts[self.model.section_of()[setting]][setting] = value
        config = self.copy().change("evaluation_config", parts)
        config._in_evaluation = True
        return config

    @property
    def other_device(self) -> str | None:
        """The `device`, or None for the CPU, where tensors are made anyway."""
        return None if self.device == "cpu" else str(self.device)

    @property
    def total_train_batch_size(self) -> int:
        """Env steps of one training iteration, over all learners."""
        return int(self.train_batch_size) * max(1, int(self.num_learners))

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps that each environment of a runner contributes to one `sample()`, at least 1.

        With "auto", all runners together cover the train batch in one `sample()` each.

        Args:
            worker_index: The runner's number; RLlib's argument.
        """
        if self.rollout_fragment_length != "auto":
            return int(self.rollout_fragment_length)
        num_envs = int(self.num_envs_per_env_runner) * max(1, int(self.num_env_runners))
        return max(1, -(-self.total_train_batch_size // num_envs))

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """Settings for `evaluation_config` or `algorithm_config_overrides_per_module`, checked at once.

        Args:
            **settings: Of the sections `environment` and `env_runners`, or of `training`.

        Raises:
            ConfigError: unknown settings, those of other sections, or values that do not fit.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> PPOConfig().evaluation(evaluation_config=PPOConfig.overrides(explore=True)).evaluation_config
            {'explore': True}
        """
        try:
            return cls.model.overrides().validate_python(settings, context={"env_imports": True})
        except ValidationError as error:
            errors = ErrorList()
            errors.add_details(error, cls._explain_override)
        errors.raise_if_any(f"{cls.__name__}.overrides")
        return settings

    @classmethod
    def _explain_override(cls, detail: Any) -> str | None:
        unknown = detail["type"] == "extra_forbidden"
        return explain_override(cls.model, str(detail["loc"][-1]), (*EVALUATED, "training")) if unknown else None

    # --------------------------------------------------------------------------------------- files

    @classmethod
    def from_dict(cls: type[ConfigT], data: Mapping[str, Any], *, allow_imports: bool = False) -> ConfigT:
        """Read a config from nested dicts, the form that `to_dict` gives.

        Args:
            data: Sections (`environment`, `env_runners`, `learners`, `training`, `rl_module`, `debugging`,
                `reporting`, `checkpointing`, `stop`), the pipelines `env_to_module`, `module_to_env`, `learner` as
                lists of piece specs, and `algorithm`.
            allow_imports: True if pieces and environments may be named by import path; importing runs code.

        Raises:
            ConfigError: everything that is wrong, each with its path.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> PPOConfig.from_dict({"environment": {"env": "CartPole-v1"}, "training": {"lr": 0.01}}).lr
            0.01
        """
        return cls.from_document(ConfigDocument(f"{cls.__name__} from data", data), allow_imports=allow_imports)

    @classmethod
    def from_yaml(cls: type[ConfigT], source: str | Path, *, allow_imports: bool = False) -> ConfigT:
        """Read a config from YAML.

        Args:
            source: A path, or the text itself.
            allow_imports: As in `from_dict`.
        """
        document = read_document(source, f"{cls.__name__} from ")
        return cls.from_document(document, allow_imports=allow_imports)

    @classmethod
    def from_document(
        cls: type[ConfigT], document: ConfigDocument, *, allow_imports: bool = False, complete: bool = False
    ) -> ConfigT:
        """Read a config from data whose errors have lines.

        Args:
            document: The data.
            allow_imports: As in `from_dict`.
            complete: True if `algorithm` and an environment have to be given.
        """
        cls = cls.class_in(document, allow_imports=allow_imports)
        config, errors = cls(allow_imports=allow_imports), ErrorList()
        sections = document.sections(errors)
        if sections.get("algorithm") == import_path(cls):
            sections["algorithm"] = cls.model.default_of("algorithm")
        if complete:
            document.add_missing(str(cls.model.default_of("algorithm")), cls.offline, errors)
        values = config._checked(sections, errors, env_imports=allow_imports)
        add_contradictions(values, errors)
        own_network = cls.get_default_rl_module_spec is not AlgorithmConfig.get_default_rl_module_spec
        if values.rl_module.rl_module_spec is None and not own_network:
            check_model_config(values.rl_module.module_config, errors)
        errors.raise_if_any(document.where, document.shown)
        config._settings = values
        return config

    @classmethod
    def class_in(cls: type[ConfigT], document: ConfigDocument, *, allow_imports: bool = False) -> type[ConfigT]:
        """Return the config class of the algorithm that a document names, if that is a subclass of this one.

        Args:
            document: The data.
            allow_imports: True if it may name the class by its import path.

        Raises:
            ConfigError: there is no such algorithm, or it may not be imported; with line and column.
        """
        name = document.data.get("algorithm") if isinstance(document.data, Mapping) else None
        if not isinstance(name, str) or not name:
            return cls
        try:
            found = config_class(name, allow_imports=allow_imports)
        except EpibatchError as error:
            if cls is not AlgorithmConfig:  # its settings refuse other names
                return cls
            errors = ErrorList()
            errors.add("algorithm", f"{error.found}; {error.do}")
            errors.raise_if_any(document.where, document.shown)
        return found if issubclass(found, cls) else cls

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of config files, by which editors complete and check them."""
        return config_schema(cls.model)

    def to_dict(self) -> dict[str, Any]:
        """The config as nested dicts of plain data.

        Raises:
            ConfigError: something in it is code (a function, a class, a space); each is named.
        """
        data = config_to_dict(self._settings, f"{type(self).__name__} as data")
        return {**data, "algorithm": name_in_files(type(self))}

    def to_yaml(self) -> str:
        """The config as YAML text; `from_yaml` reads it back."""
        return to_yaml_text(self.to_dict())

    # ------------------------------------------------------------------------------------ building

    def build_env_to_module_connector(
        self, env: Any = None, spaces: Mapping[str, Any] | None = None, device: Any = None
    ) -> EnvToModulePipeline:
        """Build the pipeline from episodes to the module's input.

        Args:
            env: The (vector) environment, passed to the hook.
            spaces: `{"__env__": (obs, act), "__env_single__": (obs, act)}`; taken from `env` if left out.
            device: torch device of the tensors; default: the config's.
        """
        device = device or self.other_device
        pieces = self.user_pieces("env_to_module", (env, spaces, device), env)
        observation, action = self._single_spaces(spaces, env)
        if self.is_multi_agent and isinstance(observation, gym.spaces.Dict):
            check_agents(self.policy_mapping_fn, observation.spaces, self._module_ids())
        if not self.add_default_connectors_to_env_to_module_pipeline:
            return EnvToModulePipeline(observation, action, connectors=pieces)
        views, per_module = module_views(self)
        return default_env_to_module(
            observation,
            action,
            connectors=pieces,
            device=device,
            views=views,
            views_per_module=per_module,
            **self._agents(),
        )

    def build_module_to_env_connector(
        self, env: Any = None, spaces: Mapping[str, Any] | None = None
    ) -> ModuleToEnvPipeline:
        """Build the pipeline from the module's output to the environments' actions; arguments as above."""
        pieces = self.user_pieces("module_to_env", (env, spaces), env)
        observation, action = self._single_spaces(spaces, env)
        if not self.add_default_connectors_to_module_to_env_pipeline:
            return ModuleToEnvPipeline(observation, action, connectors=pieces)
        return default_module_to_env(
            observation,
            action,
            connectors=pieces,
            normalize_actions=self.normalize_actions,
            clip_actions=self.clip_actions,
            **self._agents(),
        )

    def build_learner_connector(
        self, input_observation_space: Any = None, input_action_space: Any = None, device: Any = None, env: Any = None
    ) -> LearnerConnectorPipeline:
        """Build the pipeline from episodes to a train batch, without what the algorithm itself adds.

        Args:
            input_observation_space: Space of the episodes' observations: one environment's, as changed by
                env-to-module pieces that rewrite them.
            input_action_space: One environment's action space.
            device: torch device of the tensors; default: the config's.
            env: Passed to a hook with a single parameter.
        """
        pieces = self.user_pieces("learner", (input_observation_space, input_action_space), env)
        if self.no_done_at_end:
            pieces.insert(0, NeverTerminate())
        spaces = (input_observation_space, input_action_space)
        if not self.add_default_connectors_to_learner_pipeline:
            return LearnerConnectorPipeline(*spaces, connectors=pieces)
        views, per_module = module_views(self)
        return default_learner(
            *spaces,
            connectors=pieces,
            advantages=False,
            burn_in=burns_in(self._model_configs()),
            device=device or self.other_device,
            views=views,
            views_per_module=per_module,
            **self._agents(),
        )

    def update_views(self, pipeline: Any) -> None:
        """Let a pipeline for this config have the views that its modules declare; unless its default pieces are off."""
        name = "learner" if pipeline.training else "env_to_module"
        if not getattr(self, f"add_default_connectors_to_{name}_pipeline"):
            return
        views, per_module = module_views(self)
        if views or per_module or any(getattr(piece, "declared", False) for piece in pipeline):
            declare_views(pipeline, views, per_module)

    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Put the algorithm's own pieces into a learner pipeline; none here."""

    def update_modules(self, pipeline: Any) -> None:
        """Let a pipeline that was built know the modules of this config, which have changed."""
        agents = self._agents()
        for place, piece in enumerate(pipeline.connectors):
            if agents and type(piece) is AgentToModuleMapping:  # a subclass is the user's
                pipeline.connectors[place] = AgentToModuleMapping(**agents)
        if "numpy_to_tensor" in pipeline.names and pipeline.training and burns_in(self._model_configs()):
            add_burn_in(pipeline)
        self.update_views(pipeline)
        pipeline.plan()

    def user_pieces(self, name: str, arguments: tuple[Any, ...], env: Any) -> list[Any]:
        """The user's pieces of one pipeline (env_to_module, module_to_env, learner), newly made."""
        return user_pieces(
            name, getattr(self, PIPELINES[name].setting), arguments, env, allow_imports=self._allow_imports
        )

    def _module_spaces(self, observation: Any, action: Any) -> dict[str, tuple[Any, Any]]:
        """Module id -> the spaces that follow from those of the agents; one space is that of all."""
        agents = self._agents()
        if agents:
            piece = AgentToModuleMapping(**agents)
            piece.input_observation_space, piece.input_action_space = observation, action
            observation, action = piece.observation_space, piece.action_space

        def of(space: Any, module_id: str) -> Any:
            several = bool(agents) and isinstance(space, gym.spaces.Dict)
            return space.spaces.get(module_id) if several else space

        return {key: (of(observation, key), of(action, key)) for key in self._module_ids()}

    def _model_configs(self) -> list[Any]:
        """Every model_config that a module may have parts of."""
        specs = [self.rl_module_spec, self.get_default_rl_module_spec(), *specs_by_module(self._settings).values()]
        configs = [getattr(spec, "model_config", None) for spec in specs]
        return [self.model_config, *configs, *(policy.model_config for policy in self.policies.values())]

    def _module_ids(self) -> list[str]:
        return list(module_spaces(self._settings))

    def _agents(self) -> dict[str, Any]:
        """Arguments of default pipelines for several agents; empty if there is one agent."""
        if not self.is_multi_agent:
            return {}
        return {
            "rl_module_specs": module_spaces(self._settings),
            "agent_to_module_mapping_fn": self.policy_mapping_fn,
        }

    def _single_spaces(self, spaces: Mapping[str, Any] | None, env: Any) -> tuple[Any, Any]:
        return single_spaces(spaces, env, (self.observation_space, self.action_space))

    def get_rl_module_spec(self, env: Any = None, spaces: Mapping[str, Any] | None = None) -> Any:
        """The network's spec: the user's, or the default one for the spaces; of several modules if there are several.

        Args:
            env: The (vector) environment, asked for its spaces if there are no `spaces`.
            spaces: As for the pipelines, and under `default_policy` the env-to-module pipeline's output
                observation space with the action space.
        """
        if self.is_multi_agent:
            return self.get_multi_rl_module_spec(env=env, spaces=spaces)
        found = None if spaces is None else spaces.get("default_policy")
        observation, action = self._single_spaces(spaces, env) if found is None else found
        if self.rl_module_spec is not None:
            spec = self.rl_module_spec
            return complete_spec(self, spec, (observation, action), spec.model_config or dict(self.model_config))
        spec = self.get_default_rl_module_spec()
        settings = {**settings_of(spec.model_config), **self.model_config}
        return complete_spec(self, spec, (observation, action), settings)

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return a spec with the class of all networks that the config gives none, and options for these.

        Without a class `heads` decides; options in `model_config` win.

        An algorithm with a network of its own overrides it.
        """
        return rl_module.RLModuleSpec()

    def get_multi_rl_module_spec(
        self, *, env: Any = None, spaces: Mapping[str, Any] | None = None, inference_only: bool = False
    ) -> Any:
        """The spec of all modules, each with its spaces and settings.

        Args:
            env: The (vector) environment, asked for its agents' spaces if there are no `spaces`.
            spaces: Module id -> the env-to-module pipeline's output observation space and the action space; or as for
                the pipelines. What is missing follows from the agents' spaces and the mapping.
            inference_only: Build for acting only, without modules that only learners need.

        Raises:
            ConfigError: a module has no spaces.
            SpaceError: the agents of a module have different spaces.
        """
        found = dict(spaces or {})
        if not all(module_id in found for module_id in self._module_ids()):
            environment = found if "__env_single__" in found else None
            found = {**self._module_spaces(*self._single_spaces(environment, env)), **found}
        return multi_module_spec(self, found, inference_only)

    def make_source(self, env_runner_group: Any) -> Source:
        """Return where the train batches come from: the recorded episodes if there are any, else the runners.

        Args:
            env_runner_group: The runners; with recorded episodes they only have spaces, pipelines and module.
        """
        return TrainBatches(env_runner_group, self) if self.input_ is None else RecordedEpisodes(self)

    def build_algo(self) -> Algorithm:
        """Build environment, pipelines, module and learner.

        Raises:
            ConfigError: the config has neither an environment nor recorded episodes, or its settings contradict each
                other.
        """
        return self.get_algorithm_class()(self)


AlgorithmConfig._make_methods()


def _copy_containers(value: Any) -> Any:
    """Copy dicts and lists, and keep everything else in them."""
    if type(value) is dict:
        return {key: _copy_containers(item) for key, item in value.items()}
    return [_copy_containers(item) for item in value] if type(value) is list else value
