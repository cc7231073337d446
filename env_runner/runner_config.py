"""Protocols of the configurations that runners use."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["MultiAgentRunnerConfig", "RunnerConfig"]


class _AnyRunnerConfig(Protocol):
    """The attributes and builders that every runner uses."""

    env: Any
    env_config: dict[str, Any]
    wrappers: list[Any]
    num_envs_per_env_runner: int
    gym_env_vectorize_mode: str
    gym_env_autoreset_mode: str | None
    rollout_fragment_length: Any
    batch_mode: str
    explore: bool
    episode_lookback_horizon: int
    metrics_num_episodes_for_smoothing: int
    seed: int | None
    callbacks_class: Any
    on_environment_created: Any
    on_episode_created: Any
    on_episode_start: Any
    on_episode_step: Any
    on_episode_end: Any
    on_sample_end: Any

    def build_env_to_module_connector(self, env: Any = None, spaces: Any = None, device: Any = None) -> Any:
        """Build the pipeline from observations to the module."""

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        """Build the pipeline from the module to actions."""

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Return the steps that each environment takes per `sample()` without arguments."""


class RunnerConfig(_AnyRunnerConfig, Protocol):
    """The attributes and builders that a runner uses; `AlgorithmConfig` has them."""

    def get_rl_module_spec(self, env: Any = None, spaces: Any = None) -> Any:
        """Return the spec of the module."""


class MultiAgentRunnerConfig(_AnyRunnerConfig, Protocol):
    """The attributes and builders that a runner of several agents uses.

    Its env-to-module pipeline maps agents to modules, its module-to-env pipeline maps them back.
    """

    count_steps_by: str
    policy_mapping_fn: Any

    def get_multi_rl_module_spec(self, env: Any = None, spaces: Any = None) -> Any:
        """Return the spec of the modules, a `MultiRLModuleSpec`."""
