"""Makes the runner that a config asks for."""

from __future__ import annotations

import inspect
from typing import Any

from epibatch.core.errors import ConfigError
from epibatch.core.imports import load_object

from ..env_runner import EnvRunner
from ..multi_agent_env_runner import MultiAgentEnvRunner
from ..runner_config import GroupConfig
from ..single_agent_env_runner import SingleAgentEnvRunner
from ..tensor_env_runner import TensorEnvRunner


def make_runner(config: GroupConfig, worker_index: int) -> EnvRunner[Any]:
    """Make the runner that a config asks for: a `MultiAgentEnvRunner` if it has policies, or a subclass.

    Args:
        config: An `AlgorithmConfig`.
        worker_index: Distinguishes the runners of one algorithm.

    Raises:
        ConfigError: the config's class is not such a subclass, has abstract methods, or takes other arguments.
    """
    base: type[Any] = MultiAgentEnvRunner if config.is_multi_agent else SingleAgentEnvRunner
    bases = (base,) if config.is_multi_agent else (base, TensorEnvRunner)
    cls = config.env_runner_cls or base
    runner = load_object(cls, "env_runners.env_runner_cls") if isinstance(cls, str) else cls
    arguments = {"config": config, "worker_index": worker_index}
    problem = None if issubclass(runner, bases) else "which does not inherit from it"
    if inspect.isabstract(runner):
        problem = f"which lacks {', '.join(sorted(runner.__abstractmethods__))}"
    try:
        inspect.signature(runner).bind(**arguments)
    except TypeError as error:
        problem = f"whose constructor does not take these: {error}"
    if problem is not None:
        raise ConfigError(
            "env_runners.env_runner_cls",
            expected=f"a subclass of {base.__name__} that is made with {', '.join(arguments)}",
            found=f"{runner.__name__}, {problem}",
            do=f"write class {runner.__name__}({base.__name__}); an __init__ takes *, config, **kwargs",
        )
    made: EnvRunner[Any] = runner(**arguments)
    return made
