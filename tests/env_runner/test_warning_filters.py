"""Filters of warnings count in processes of environments, and in those of a cluster."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym

from epibatch.cluster import Registrations, registrations
from epibatch.env_runner import AsyncEnvs


class Grumbles(gym.Env[Any, Any]):
    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        warnings.warn("the simulator grumbles", UserWarning, stacklevel=1)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, False, False, {}


def test_environments_warn_in_their_processes_if_the_driver_would(capfd: Any) -> None:
    for action, is_shown in (("ignore", False), ("always", True)):
        with warnings.catch_warnings():
            warnings.simplefilter(action)  # type: ignore[arg-type]
            envs = AsyncEnvs([Grumbles], context="spawn")
            envs.reset(seed=0)
            envs.close()
        assert ("the simulator grumbles" in capfd.readouterr().err) is is_shown


def test_processes_of_a_cluster_have_the_drivers_filters() -> None:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error", DeprecationWarning)
        warnings.filterwarnings("ignore", message="the simulator")
        sent = registrations()
        warnings.simplefilter("always")
        sent.apply()
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn("the simulator grumbles", UserWarning, stacklevel=1)
            warnings.warn("old", DeprecationWarning, stacklevel=1)  # shown there: it could be of Ray's own code
        assert [str(item.message) for item in caught] == ["old"]
        before = list(warnings.filters)
        Registrations().apply()
        assert list(warnings.filters) == before
