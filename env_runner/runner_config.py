"""The configs of runners: their attributes, and one without an Algorithm."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from torch import nn

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.errors import ConfigError, RunnerArgumentError, nearest
from epibatch.core.rl_module.recurrent_module import DefaultRecurrentModule
from epibatch.core.rl_module.rl_module import MultiRLModuleSpec, RLModule, RLModuleSpec

from ..connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ..connectors.env_to_module.env_to_module_pipeline import default_pipeline as default_env_to_module
from ..connectors.module_to_env.module_to_env_pipeline import default_pipeline as default_module_to_env
from ..connectors.views.view import as_views

ConfigT = TypeVar("ConfigT")


class AnyRunnerConfig(Protocol):
    """The attributes and builders that every runner uses. Values are those without an Algorithm."""

    env: Any
    env_config: dict[str, Any]
    num_env_runners: int = 0
    wrappers: Sequence[Any] = ()
    num_envs_per_env_runner: int = 1
    gym_env_vectorize_mode: Literal["sync", "async", "vector_entry_point"] = "sync"
    num_envs_per_worker: int = 1
    gym_env_batch_size: int | None = None
    gym_env_autoreset_mode: Literal["next_step", "same_step", "disabled"] | None = None
    env_resets_itself: bool = False
    missing_final_obs: Any = None
    rollout_fragment_length: Any = 200
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    explore: Literal[True, False, "sample", "mode", "mean", "random"] = True
    torch_compile_worker: bool = False
    torch_compile_worker_dynamo_backend: str = "inductor"
    torch_compile_worker_dynamo_mode: str | None = None
    episode_lookback_horizon: int = 1
    horizon: int | None = None
    soft_horizon: bool = False
    random_first_horizon: int | None = None
    keep_running_episodes: bool = False
    metrics_num_episodes_for_smoothing: int = 100
    restart_failed_sub_environments: bool = False
    max_sub_environment_restarts_per_sample: int = 100
    max_sub_environment_restarts: int | None = None
    sub_environment_timeout_s: float | None = None
    failed_episodes: Literal["truncate", "drop"] = "truncate"
    seed: int | None = None
    callbacks_class: Any = None
    on_environment_created: Any = None
    on_episode_created: Any = None
    on_episode_start: Any = None
    on_episode_step: Any = None
    on_episode_end: Any = None
    on_sample_end: Any = None

    @property
    def keep_actions_for_env(self) -> bool:
        """True if runners store `actions_for_env` with the other outputs of each step."""
        return False

    def build_env_to_module_connector(self, env: Any = None, spaces: Any = None, device: Any = None) -> Any:
        """Build the pipeline from observations to the module."""

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        """Build the pipeline from the module to actions."""

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Return the steps that each environment takes per `sample()` without arguments."""


class RunnerConfig(AnyRunnerConfig, Protocol):
    """The attributes and builders that a runner uses; `AlgorithmConfig` has them."""

    def get_rl_module_spec(self, env: Any = None, spaces: Any = None) -> Any:
        """Return the spec of the module."""


class MultiAgentRunnerConfig(AnyRunnerConfig, Protocol):
    """The attributes and builders that a runner of several agents uses.

    Its env-to-module pipeline maps agents to modules, its module-to-env pipeline maps them back.
    """

    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    episode_end: Literal["all", "any"] = "all"

    @property
    def policy_mapping_fn(self) -> Any:
        """The function from agent and episode to a module's id."""

    def get_multi_rl_module_spec(self, *, env: Any = None, spaces: Any = None) -> Any:
        """Return the spec of the modules, a `MultiRLModuleSpec`."""


class GroupConfig(RunnerConfig, MultiAgentRunnerConfig, Protocol):
    """The attributes and methods that an `EnvRunnerGroup` uses beside its runners; `AlgorithmConfig` has them."""

    env_runner_cls: type[Any] | str | None
    num_cpus_per_env_runner: float
    num_gpus_per_env_runner: float
    custom_resources_per_env_runner: dict[str, float]
    placement_strategy: Any
    device: Any
    time_pieces: bool
    merge_env_runner_states: Any
    broadcast_env_runner_states: bool
    max_requests_in_flight_per_env_runner: int
    max_bytes_in_flight: int | None
    sample_timeout_s: float | None
    env_runner_health_probe_timeout_s: float
    restart_failed_env_runners: bool
    max_num_env_runner_restarts: int
    num_consecutive_env_runner_failures_tolerance: int
    ignore_env_runner_failures: bool

    @property
    def is_multi_agent(self) -> bool:
        """True if runners of several agents sample."""

    @property
    def settings(self) -> Any:
        """All settings, in sections."""

    @property
    def num_changes(self) -> Counter[str]:
        """Number of changes of each section that was changed."""

    def copy(self: ConfigT) -> ConfigT:
        """Return a config of its own with the same settings."""

    def change(self: ConfigT, method: str, parts: Mapping[str, Mapping[str, Any]]) -> ConfigT:
        """Change settings of some sections, and return the config."""


class _Given:
    """Takes the place of a spec where there is a module already."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def build(self) -> Any:
        return self._module


class OwnLoopConfig(RunnerConfig, MultiAgentRunnerConfig):
    """The config of a runner that is made without an Algorithm.

    Args:
        env: What a config takes: the id of an environment, a class, or a function of `env_config`.
        module: An RLModule, which the runner acts with as it is; an RLModuleSpec, of which spaces may be left open; for
            several agents a MultiRLModule, a MultiRLModuleSpec, or an RLModuleSpec for all modules. None: the default
            network.
        num_envs: Environments that step together.
        model_config: Options of default networks.
        env_to_module: Your pieces from episodes to the module, or the whole pipeline.
        module_to_env: Your pieces from the module to actions, or the whole pipeline.
        normalize_actions: As for `connectors.module_to_env.default_pipeline`.
        clip_actions: Likewise.
        policy_mapping_fn: For several agents: the function `(agent_id, episode) -> module_id`; default: one module.
        several_agents: True for a runner of several agents.
        **settings: Further attributes of `AnyRunnerConfig`, such as `seed` and `gym_env_vectorize_mode`.

    Raises:
        RunnerArgumentError: no environment, or a setting that does not exist.
    """

    def __init__(
        self,
        *,
        env: Any = None,
        module: Any = None,
        num_envs: int = 1,
        model_config: Any = None,
        env_to_module: Any = (),
        module_to_env: Any = (),
        normalize_actions: bool = True,
        clip_actions: bool = False,
        policy_mapping_fn: Callable[..., Any] | None = None,
        several_agents: bool = False,
        **settings: Any,
    ) -> None:
        if env is None:
            raise RunnerArgumentError(
                "a runner",
                expected="env=... for a loop of your own, or the config=... of an Algorithm",
                found="neither",
                do='pass env="CartPole-v1", say',
            )
        if isinstance(module, type) or (isinstance(module, nn.Module) and not hasattr(module, "forward_exploration")):
            raise RunnerArgumentError(
                "a runner, module=...",
                expected="an RLModule, or a spec of one",
                found=f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__,
                do="pass an object, or RLModuleSpec(module_class)"
                if isinstance(module, type)
                else "subclass "
                "TorchRLModule and write _forward(self, batch), which returns {'action_dist_inputs': ...}",
            )
        self.env_config = {}
        known = AnyRunnerConfig.__annotations__.keys() - {"num_envs_per_env_runner"}
        known |= MultiAgentRunnerConfig.__annotations__.keys() if several_agents else set()
        for name, value in settings.items():
            if name not in known:
                names = [*known, "module", "num_envs", "model_config", "env_to_module", "module_to_env"]
                expected, do = "a setting of runners", nearest(name, names)
                raise RunnerArgumentError(f"a runner, {name}=...", expected=expected, found=repr(value), do=do)
            setattr(self, name, value)
        for name, value in (("num_envs", num_envs), ("rollout_fragment_length", self.rollout_fragment_length)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                expected, do = "an int of at least 1", f"pass {name}=16, say"
                raise RunnerArgumentError(f"a runner, {name}=...", expected=expected, found=repr(value), do=do)
        self.env, self.num_envs_per_env_runner = env, int(num_envs)
        self._mapping = policy_mapping_fn or _one_module
        self._module, self._model_config = module, model_config
        self._pieces = {"env_to_module": env_to_module, "module_to_env": module_to_env}
        self._actions = {"normalize_actions": normalize_actions, "clip_actions": clip_actions}
        self._several = several_agents

    @property
    def policy_mapping_fn(self) -> Any:
        """The function from agent and episode to a module's id."""
        return self._mapping

    def build_env_to_module_connector(self, env: Any = None, spaces: Any = None, device: Any = None) -> Any:
        """Build the pipeline from observations to the module, on the module's device."""
        members: Any = getattr(self._module, "rl_module_specs", self._module) if self._several else None
        views: dict[str, Any] = {"views": self._views_of(self._module)}
        if hasattr(members, "items"):
            views = {"views_per_module": {key: self._views_of(member) for key, member in members.items()}}
        return self._pipeline("env_to_module", default_env_to_module, spaces, device=self._device, **views)

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        """Build the pipeline from the module to actions."""
        return self._pipeline("module_to_env", default_module_to_env, spaces, **self._actions)

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Return the steps that each environment takes per `sample()` without arguments."""
        return int(self.rollout_fragment_length)

    def get_rl_module_spec(self, env: Any = None, spaces: Any = None) -> Any:
        """Return the spec of the module."""
        if self._module is not None and not isinstance(self._module, RLModuleSpec):
            return _Given(self._module)
        return self._filled(self._module or RLModuleSpec(), *spaces[DEFAULT_MODULE_ID])

    def get_multi_rl_module_spec(self, *, env: Any = None, spaces: Any = None) -> Any:
        """Return the spec of the modules."""
        given = self._module
        if given is not None and not isinstance(given, (RLModuleSpec, MultiRLModuleSpec)):
            return _Given(given)
        modules = {name: pair for name, pair in spaces.items() if not str(name).startswith("__")}
        specs = getattr(given, "rl_module_specs", None) or dict.fromkeys(modules, given or RLModuleSpec())
        specs = {name: self._filled(spec, *modules.get(name, (None, None))) for name, spec in specs.items()}
        if isinstance(given, MultiRLModuleSpec):
            return dataclasses.replace(given, rl_module_specs=specs)
        return MultiRLModuleSpec(rl_module_specs=specs)

    def _views_of(self, module: Any) -> Mapping[str, Any]:
        """The columns of other steps that a module reads, or one that is built of a spec."""
        options = getattr(module, "model_config", None) or self._model_config
        kind = type(module) if isinstance(module, RLModule) else getattr(module, "module_class", None)
        kind = kind or DefaultRecurrentModule
        return as_views(kind.get_view_requirements(options), f"{kind.__name__}.view_requirements")

    @property
    def _device(self) -> Any:
        parameters = getattr(self._module, "parameters", None)
        first = next(iter(parameters()), None) if callable(parameters) else None
        return None if first is None else first.device

    def _pipeline(self, name: str, default: Callable[..., Any], spaces: Any, **options: Any) -> Any:
        given, (observation, action) = self._pieces[name], spaces["__env_single__"]
        if isinstance(given, ConnectorPipelineV2):
            if given.input_observation_space is None:
                given.input_observation_space, given.input_action_space = observation, action
            return given
        if self._several:
            options["agent_to_module_mapping_fn"] = self._mapping
        return default(observation, action, connectors=given, **options)

    def _filled(self, spec: RLModuleSpec, observation: Any, action: Any) -> RLModuleSpec:
        return dataclasses.replace(
            spec,
            observation_space=observation if spec.observation_space is None else spec.observation_space,
            action_space=action if spec.action_space is None else spec.action_space,
            model_config=spec.model_config or self._model_config,
        )


def config_or_settings(
    config: ConfigT | None, settings: Mapping[str, Any], *, several_agents: bool = False
) -> ConfigT | OwnLoopConfig:
    """Return a runner's config: the one that was given, or one of its settings.

    Args:
        config: As `AlgorithmConfig` has it; None: there are settings.
        settings: Keywords of `OwnLoopConfig`.
        several_agents: True for a runner of several agents.

    Raises:
        RunnerArgumentError: both were given, or settings that do not fit.
    """
    if config is None:
        return OwnLoopConfig(several_agents=several_agents, **settings)
    if known := settings.keys() & {*AnyRunnerConfig.__annotations__, "module", "num_envs", "model_config"}:
        raise RunnerArgumentError(
            "a runner",
            expected="a config, or settings",
            found=f"config and {', '.join(sorted(known))}",
            do="set them in the config, or leave it out",
        )
    return config


def check_batch_size(config: AnyRunnerConfig) -> None:
    """Check that a runner's environments can answer one by one, if its config says for how many of them to wait.

    Raises:
        ConfigError: they cannot.
    """
    mode, autoreset = config.gym_env_vectorize_mode, config.gym_env_autoreset_mode
    if config.gym_env_batch_size is not None and (mode != "async" or autoreset == "disabled"):
        raise ConfigError(
            "gym_env_batch_size",
            expected='gym_env_vectorize_mode="async", and autoreset mode next_step or same_step',
            found=f"{mode}, {autoreset or 'next_step'}",
            do="set these, or leave gym_env_batch_size out",
        )


def _one_module(agent_id: Any, episode: Any = None, **kwargs: Any) -> str:
    return DEFAULT_MODULE_ID
