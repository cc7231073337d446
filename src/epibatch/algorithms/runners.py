"""Which runner a config asks for."""

from __future__ import annotations

from typing import Any

__all__ = ["make_runner", "modules_of"]


def make_runner(config: Any, worker_index: int) -> Any:
    """A `SingleAgentEnvRunner`, or a `MultiAgentEnvRunner` if the config has policies.

    Args:
        config: an `AlgorithmConfig`.
        worker_index: distinguishes the runners of one algorithm.
    """
    if config.is_multi_agent:
        from ..env_runner.multi_agent_env_runner import MultiAgentEnvRunner

        return MultiAgentEnvRunner(config=config, worker_index=worker_index)
    from ..env_runner.single_agent_env_runner import SingleAgentEnvRunner

    return SingleAgentEnvRunner(config=config, worker_index=worker_index)


def modules_of(module: Any) -> dict[str, Any]:
    """Module id -> module; of a single one the id is ""."""
    return dict(module.items()) if hasattr(module, "foreach_module") else {"": module}
