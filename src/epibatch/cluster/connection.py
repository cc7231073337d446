"""The connection to Ray: the one that runs, the one that `RAY_ADDRESS` names, or a new one on this machine."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import warnings
from typing import Any

from epibatch.core.errors import ConfigError, EpibatchWarning, RunnerError
from epibatch.core.imports import import_extra

_own_addresses: set[str] = set()  # of the Rays that `connect` started


def connect(*, num_cpus_needed: float, object_store_memory: int | None = None) -> Any:
    """Connect this process to Ray, and return the module `ray`.

    Ray that is connected already is used as it is. Else `RAY_ADDRESS` says which cluster is used. Without it a Ray
    with one node starts in processes of this machine, without a dashboard, and ends with this process. No cores are
    reserved there, so that any number of processes starts; they share the cores of the machine.

    Args:
        num_cpus_needed: Cores that all processes together will ask for. More than there are is warned of.
        object_store_memory: Bytes of shared memory of a Ray that starts here; None: Ray's default.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: No cluster answers at `RAY_ADDRESS`.
        RunnerError: Ray does not start on this machine.
    """
    ray = import_extra("ray", "ray", "processes that sample or learn (num_env_runners, num_learners)")
    if ray.is_initialized():
        pass
    elif os.environ.get("RAY_ADDRESS"):
        _join(ray, os.environ["RAY_ADDRESS"])
    else:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _start(ray, include_dashboard=False, object_store_memory=object_store_memory)
        _own_addresses.add(ray.get_runtime_context().gcs_address)
    _warn_of_few_cores(ray, num_cpus_needed)
    return ray


def reserves_cores(ray: Any) -> bool:
    """True if actors must ask Ray for cores; False on a Ray of one machine that `connect` started."""
    return ray.get_runtime_context().gcs_address not in _own_addresses


def node_address() -> str:
    """Return the IP address of this machine as the other nodes of the connected Ray know it."""
    from ray.util import get_node_ip_address

    address: str = get_node_ip_address()
    return address


def _join(ray: Any, address: str) -> None:
    try:
        _init(ray, address=address)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"RAY_ADDRESS={address}",
            expected="the address of a Ray cluster that runs",
            found=f"{type(error).__name__}: {error}",
            do="start it with `ray start --head`, or unset RAY_ADDRESS to use this machine alone",
        ) from error


def _start(ray: Any, **settings: Any) -> None:
    try:
        _init(ray, address="local", **settings)
    except Exception as error:  # Ray has no class for what goes wrong
        raise RunnerError(
            "starting Ray on this machine",
            expected="processes that answer",
            found=f"{type(error).__name__}: {error}",
            do="free some memory and try again, or train without processes: num_env_runners=0, num_learners=0",
        ) from error


def _init(ray: Any, **settings: Any) -> None:
    """Initialise Ray, and keep the caller's handler of SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(logging_level=logging.ERROR, **settings)
    except SystemExit as end:
        if end.code == signal.SIGTERM and callable(before):  # Ray's handler
            before(signal.SIGTERM, None)
        raise
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _warn_of_few_cores(ray: Any, needed: float) -> None:
    cores = ray.cluster_resources().get("CPU", 0.0)
    if needed <= cores:
        return
    if reserves_cores(ray):
        advice = "start more nodes, ask for less (num_cpus_per_env_runner), or let an autoscaler add nodes"
    else:
        advice = f"for speed, ask for {math.floor(cores)} processes; set num_envs_per_env_runner to step more at once"
    warning = EpibatchWarning(
        "processes on Ray", expected=f"at most {cores:g} cores, which there are", found=f"{needed:g} asked", do=advice
    )
    warnings.warn(warning, stacklevel=3)
