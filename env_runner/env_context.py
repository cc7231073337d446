"""An environment's config, with the number of the runner that makes the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["EnvContext"]


class EnvContext(dict[str, Any]):
    """An `env_config`, a dict, with RLlib's attributes.

    Args:
        env_config: The config; copied. If it is an `EnvContext`, its attributes are copied too.
        worker_index: Number of the runner: 0 in the main process, else from 1.
        vector_index: Always 0 when a runner makes environments, as in RLlib.
        remote: Always False then.
        num_workers: Number of runners in other processes.

    Examples:
        >>> context = EnvContext({"length": 3}, worker_index=2, num_workers=4)
        >>> context, context.worker_index
        ({'length': 3}, 2)
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        worker_index: int = 0,
        vector_index: int = 0,
        remote: bool = False,
        num_workers: int | None = None,
    ) -> None:
        super().__init__(env_config or {})
        self.worker_index, self.vector_index = worker_index, vector_index
        self.remote, self.num_workers = remote, num_workers
        if isinstance(env_config, EnvContext):
            vars(self).update(vars(env_config))
