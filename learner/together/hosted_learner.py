"""`HostedLearner`: a learner in a process of its own, one of several that learn together."""

from __future__ import annotations

import io
import os
import socket
import struct
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import cloudpickle
import torch

from epibatch.cluster import node_address
from epibatch.core.metrics import MetricsLogger
from epibatch.core.random_state import get_random_state, seed_everything, set_random_state
from epibatch.core.random_streams import random_stream, seed_of

from ...connectors.step_watches import PieceSeconds
from ...episodes import unpack_episodes
from ..learner import Learner
from .learners import Learners
from .shared_update import SharedUpdate
from .torch_learners import TorchLearners, free_address

__all__ = ["HostedLearner", "Setup", "UpdateAnswer"]

ResultT = TypeVar("ResultT")

_ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR


@dataclass(frozen=True)
class Setup:
    """Changes that a hosted learner takes over before it does what it is asked for.

    Args:
        learner: Another learner to build, packed; None: the learner stays.
        state: The state to take over, as `Learner.get_state` gives it; None: it has the newest.
        random: States of random generators to take over, by the number of the learner.
    """

    learner: bytes | None = None
    state: Mapping[str, Any] | None = None
    random: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def pack(learner: Learner, **changes: Any) -> bytes:
        """Return all that a learner is built from, as bytes.

        Args:
            learner: The learner.
            **changes: Arguments of it that are to have other values.
        """
        buffer = io.BytesIO()  # torch's format, as tensors of a GPU can be loaded where there is none
        torch.save((type(learner), {**learner.parts(), **changes}), buffer, pickle_module=cloudpickle)
        return buffer.getvalue()

    def build(self, device: str, learners: Learners) -> Learner:
        """Build the packed learner.

        Args:
            device: Where its modules and minibatches are.
            learners: The learners that it is one of.
        """
        buffer = io.BytesIO(self.learner or b"")
        learner_class, parts = torch.load(buffer, map_location=device, weights_only=False)
        built: Learner = learner_class(**{**parts, "device": None if device == "cpu" else device}, learners=learners)
        return built


@dataclass(frozen=True)
class UpdateAnswer:
    """Results and state after an update of one of several learners.

    Args:
        results: As `Learner.update` returns them; equal on all learners.
        state: The state after the update; None on all learners but the first.
        random: The state of the process's random generators after it.
        warnings: What was warned of.
        history: The depth and the calls of the learner pipeline's `history`.
        logged: What pieces logged, for `MetricsLogger.add_from`; None without a logger.
        piece_seconds: Seconds of each piece, if the pipeline's `watch` adds them up.
        row_outputs: `Learner.row_outputs`.
    """

    results: dict[str, Any]
    state: dict[str, Any] | None
    random: dict[str, Any]
    warnings: list[Warning]
    history: tuple[int, int]
    logged: Any = None
    piece_seconds: dict[str, float] = field(default_factory=dict)
    row_outputs: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)


class HostedLearner:
    """Hosts one of several learners that update the same modules, each from its share of the episodes.

    Args:
        index: Its number, from 1.
        restarts: How many processes of this number there were before.
        count: Number of learners.
        seed: The seed of the run; None: a random one.
        device: Where modules and minibatches are.
        timeout_s: Seconds to wait for the others in an exchange.
    """

    def __init__(
        self, *, index: int, restarts: int, count: int, seed: int | None, device: str, timeout_s: float
    ) -> None:
        self._index, self._count, self._device, self._timeout_s = index, count, device, timeout_s
        self._learners = Learners()
        self._learner: Learner | None = None
        if seed is not None:
            seed_everything(seed_of(random_stream(seed, "learner process", index, restarts)))

    def open(self) -> tuple[str, str]:
        """Return this machine's address for other machines, and an address on it where all learners can meet."""
        return node_address(), free_address()

    def join(self, address: str) -> None:
        """Meet the other learners.

        Args:
            address: Where they meet, as `open` of learner 1 returned it, under its machine's name for all of them.

        Raises:
            WorkerLostError: they do not come in time.
        """
        host = address.removeprefix("tcp://").rpartition(":")[0]
        interface = _interface_to(host)
        if interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        self._learners = TorchLearners(
            index=self._index, count=self._count, address=address, device=self._device, timeout_s=self._timeout_s
        )

    def update(
        self, setup: Setup, packed: Any, times_pieces: bool | None, num_env_steps: int | None = None
    ) -> UpdateAnswer:
        """Learn from this learner's share of the episodes or of a batch.

        Args:
            setup: What changed since the last call.
            packed: The share: a batch by module, or episodes as `pack_episodes` gave them.
            times_pieces: For the logger that the pipeline is given; None: it is given none.
            num_env_steps: Environment steps that this share counts as; None: its own.

        Raises:
            WorkerLostError: another learner is gone.
            OtherLearnerError: another learner failed, and raises the error itself.
        """
        logged = None if times_pieces is None else MetricsLogger(times_pieces=times_pieces)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            is_batch = isinstance(packed, Mapping)
            learner, data = self._agree(lambda: (self._become(setup), packed if is_batch else unpack_episodes(packed)))
            share: dict[str, Any] = {"batch" if is_batch else "episodes": data}
            results = learner.update(**share, metrics=logged, num_env_steps=num_env_steps)
        connector = learner.connector
        history, watch = getattr(connector, "history", None), getattr(connector, "watch", None)
        return UpdateAnswer(
            results=results,
            state=learner.get_state() if self._index == 1 else None,
            random=get_random_state(),
            warnings=[warning.message for warning in caught if isinstance(warning.message, Warning)],
            history=(0, 0) if history is None else (history.depth, history.calls),
            logged=None if logged is None else logged.take(),
            piece_seconds=watch.take() if isinstance(watch, PieceSeconds) else {},
            row_outputs=learner.row_outputs,
        )

    def apply(
        self, setup: Setup, function: Callable[[Learner], ResultT]
    ) -> tuple[ResultT, dict[str, Any] | None, dict[str, Any]]:
        """Call a function with the learner.

        Args:
            setup: What changed since the last call.
            function: What to call.

        Returns:
            Its result; the learner's state after it, None on all learners but the first; and that of the process's
            random generators.
        """
        learner = self._agree(lambda: self._become(setup))
        result = function(learner)
        return result, learner.get_state() if self._index == 1 else None, get_random_state()

    def get_state(self) -> dict[str, Any] | None:
        """Return the learner's state; None if there is no learner yet."""
        return None if self._learner is None else self._learner.get_state()

    def stop(self) -> None:
        """Leave the other learners."""
        if isinstance(self._learners, TorchLearners):
            self._learners.close()

    def _become(self, setup: Setup) -> Learner:
        if setup.learner is not None:
            self._learner = None  # frees its memory first
            self._learner = setup.build(self._device, self._learners)
        learner = self._learner
        if learner is None:
            raise RuntimeError("the first setup has a learner")
        if setup.state is not None:
            learner.set_state(setup.state)
        if str(self._index) in setup.random:
            set_random_state(setup.random[str(self._index)])
        return learner

    def _agree(self, prepare: Callable[[], ResultT]) -> ResultT:
        """Return what a function returns, if it succeeds on all learners; all of them must call this."""
        shared = SharedUpdate(self._learners)
        prepared = shared.attempt(prepare)
        shared.finish(None)
        return cast("ResultT", prepared)


def _interface_to(host: str) -> str | None:
    """Return the name of the network interface of this machine that reaches another one; None if it is not known.

    Gloo else takes the interface of the machine's name, which may be another one, or unknown without a network.

    Args:
        host: The other machine, or this one.
    """
    if sys.platform != "linux":
        return None
    import fcntl  # here, because only Linux has it

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect((host, 9))
        own_address = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _ADDRESS_OF_INTERFACE, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            if answer[20:24] == own_address:
                return name
    return None
