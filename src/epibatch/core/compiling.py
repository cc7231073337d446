"""Functions that `torch.compile` makes faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from epibatch.core.errors import ConfigError

__all__ = ["compiled"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def compiled(function: FunctionT, *, name: str, setting: str, backend: str, mode: str | None) -> FunctionT:
    """Return a function as `torch.compile` makes it, with errors that say what could not be compiled.

    Args:
        function: Of tensors.
        name: What it belongs to, for messages.
        setting: The setting that asks for it, which `<setting>_dynamo_backend` goes with.
        backend: As for `torch.compile`.
        mode: Likewise; None: torch's default.

    Raises:
        ConfigError: torch has no such backend. Calls raise it if the function cannot be compiled.

    Examples:
        >>> double = compiled(lambda x: 2 * x, name="f", setting="torch_compile_learner", backend="eager", mode=None)
        >>> double(torch.ones(2))
        tensor([2., 2.])
    """
    from torch._dynamo.exc import TorchDynamoException  # loads much that other programs do not need

    def failed(error: Exception) -> ConfigError:
        return ConfigError(
            f"torch.compile of {name}, backend {backend!r}",
            expected="a backend that can compile it",
            found=" ".join(str(error).strip().split("\n")[:2]),  # after it torch says how to debug the compiler
            do=f'leave out {setting}, or set {setting}_dynamo_backend="aot_eager", which needs no C++ or CUDA compiler',
        )

    try:
        run = torch.compile(function, backend=backend, mode=mode)
    except TorchDynamoException as error:
        raise failed(error) from error

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return run(*args, **keywords)
        except TorchDynamoException as error:
            raise failed(error) from error

    return call  # type: ignore[return-value]  # it takes the same arguments
