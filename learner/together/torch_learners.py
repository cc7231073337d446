"""Learners in several processes, connected by `torch.distributed`."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from epibatch.core.errors import ConfigError, NotAvailableError, WorkerLostError

from .learners import Learners

if TYPE_CHECKING:
    from collections.abc import Iterator


class TorchLearners(Learners):
    """Learners in several processes, connected by `torch.distributed`: gloo for CPUs, NCCL for GPUs.

    The constructor waits until all processes have called it. It makes the process group of its process; `close` ends
    it. Each process holds one learner.

    Args:
        index: The number of this learner, from 1 to `count`.
        count: The number of learners, at least 1.
        address: Where the learners meet: "tcp://host:port" on the machine of learner 1, as `free_address` returns it
            there; or another `init_method` of `torch.distributed.init_process_group`.
        device: The device of this learner's modules. With a CUDA device gradients are added up by NCCL.
        timeout_s: Seconds that this learner waits for the others in the constructor, and in each call.

    Raises:
        ConfigError: an index or number of learners that does not exist.
        NotAvailableError: this torch was built without `torch.distributed`.
        WorkerLostError: the other learners did not come in time.
    """

    def __init__(
        self,
        *,
        index: int,
        count: int,
        address: str,
        device: torch.device | str | None = None,
        timeout_s: float = 1800.0,
    ) -> None:
        if count < 1 or not 1 <= index <= count:
            expected, found = "a number from 1 to the number of learners", f"index={index}, count={count}"
            raise ConfigError("TorchLearners", expected=expected, found=found, do="number the learners from 1")
        if not distributed.is_available():
            expected, found = "a torch with torch.distributed", f"torch {torch.__version__} without it"
            raise NotAvailableError(
                "TorchLearners", expected=expected, found=found, do="install another build, or use num_learners=0"
            )
        self.index, self.count = index, count
        place = torch.device("cpu" if device is None else device)
        on_gpu = place.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(place)
        with self._connected():
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                init_method=address,
                rank=index - 1,
                world_size=count,
                timeout=timedelta(seconds=timeout_s),
            )

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all learners, in the order of their indexes."""
        values: list[Any] = [None] * self.count
        with self._connected():
            distributed.all_gather_object(values, value)
        return values

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace the entries of a tensor by their sums over all learners."""
        with self._connected():
            distributed.all_reduce(tensor)

    def close(self) -> None:
        """End the process group, if it has not ended; a waiting learner of another process then raises an error."""
        if distributed.is_initialized():
            distributed.destroy_process_group()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except torch.cuda.OutOfMemoryError:  # of this learner, and a start again does not mend it
            raise
        except RuntimeError as error:  # torch.distributed has subclasses for some causes alone
            raise WorkerLostError(
                f"learner {self.index} of {self.count}",
                expected="an answer of all other learners",
                found=f"{type(error).__name__}: {error}",
                do="look for a learner whose process or machine ended or hangs, and start all learners again",
            ) from error


def free_address(host: str = "127.0.0.1") -> str:
    """Return an address where learners can meet, at a port that is free now on this machine.

    Args:
        host: The name or IP address under which the other learners reach this machine.

    Examples:
        >>> free_address("127.0.0.1").rpartition(":")[0]
        'tcp://127.0.0.1'
    """
    with socket.socket() as listener:
        listener.bind(("", 0))
        return f"tcp://{host}:{listener.getsockname()[1]}"
