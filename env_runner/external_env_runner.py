"""A runner of episodes that simulators drive: they ask for actions, in this process or over a socket."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.errors import ConfigError, RunnerError

from .envs.env_restarts import FAILURE
from .envs.external_envs import ExternalEnvs
from .envs.external_server import EpisodeServer
from .runner_config import RunnerConfig
from .runner_state import Pending, Running
from .single_agent_env_runner import SingleAgentEnvRunner

__all__ = ["ExternalEnvRunner"]

_UNFIT = {"wrappers": "wrap", "horizon": "truncate", "random_first_horizon": "truncate"}


class ExternalEnvRunner(SingleAgentEnvRunner):
    """Makes episodes of simulators that run on their own and ask for actions.

    The config has the spaces in place of an environment. `num_envs_per_env_runner` is the number of episodes that can
    run at once. Simulators in this process call the methods of `runner.env`, an `ExternalEnvs`, from other threads.
    With a `port` in the `env_config` others connect to 127.0.0.1, see docs/external-environments.md. `sample()` waits
    for simulators, and they wait while nothing samples.

    A reset does not reach simulators. Running episodes are dropped then, and their simulators get None in place of an
    action. The episode of a simulator that goes away is truncated, or dropped with `failed_episodes="drop"`.

    Args:
        config: Spaces, pipelines and module, as `AlgorithmConfig` has them.
        worker_index: Distinguishes the runners of one algorithm; each listens at a port of its own, `port` and this
            number more.

    Raises:
        ConfigError: a config without spaces, or settings that only an environment can follow.
        RunnerError: the port is taken.

    Examples:
        >>> import gymnasium as gym
        >>> from threading import Thread
        >>> from epibatch.algorithms import PPOConfig
        >>> spaces = {"observation_space": gym.spaces.Box(0.0, 1.0, (2,)), "action_space": gym.spaces.Discrete(2)}
        >>> runner = ExternalEnvRunner(config=PPOConfig().environment(**spaces))
        >>> def simulate(env):
        ...     episode_id = env.start_episode()
        ...     for step in range(3):
        ...         action = env.observe(episode_id, np.zeros(2), 1.0 * (step > 0))
        ...     env.end_episode(episode_id, np.ones(2), 1.0)
        >>> Thread(target=simulate, args=[runner.env]).start()
        >>> [len(episode) for episode in runner.sample(num_episodes=1)]
        [3]
        >>> runner.stop()
    """

    needs_env = False
    env: ExternalEnvs
    server: EpisodeServer | None = None
    """What simulators of other processes connect to: it has `port` and `token`; None without a port."""

    def __init__(self, *, config: RunnerConfig, worker_index: int = 0) -> None:
        settings = dict(config.env_config)
        port = settings.pop("port", None)
        unknown = settings.keys() - EpisodeServer.settings
        if unknown or (settings and port is None):
            expected = f"port, and with it {', '.join(EpisodeServer.settings)}"
            raise _error(f"env_config of {expected}", ", ".join(settings), "correct the names, or set port")
        super().__init__(config=config, worker_index=worker_index)
        if port is not None and not (config.num_env_runners and not worker_index):  # that one does not sample
            port = port + worker_index if type(port) is int and port else port
            self.server = EpisodeServer(self.env, port=port, **settings)

    def make_env(self) -> ExternalEnvs:
        """Make the environments that simulators drive."""
        config: Any = self.config
        spaces = config.observation_space, config.action_space
        if None in spaces:
            raise _error("the spaces of simulators", "none", "set .environment(observation_space=, action_space=)")
        for name, verb in _UNFIT.items():
            if getattr(config, name) and not (name == "horizon" and config.soft_horizon):
                do = f"leave it out, and {verb} in the simulator"
                raise _error("episodes as simulators send them", f"{name}={getattr(config, name)!r}", do)
        return ExternalEnvs(config.num_envs_per_env_runner, *spaces)

    def stop(self) -> None:
        """Let simulators know that the runner was stopped, and close the connections."""
        super().stop()
        if self.server is not None:
            self.server.close()

    def checkpoint_reset(self) -> None:
        """Do nothing: the episodes of simulators go on."""

    def _reset(self, explore: bool) -> None:
        observations, infos = self._stepper.reset(self._reset_seeds.next(self._stepper.num_seeds))
        self._recorder.reset(observations, infos)  # rows that no episode has
        self._reset_seeds.used()
        self._metrics.forget()
        self._pending = Pending(envs=[])
        self._callbacks.before_reset(range(self.num_envs))
        self._running = Running.WHOLE

    def _take_step(self, explore: bool, random_actions: bool, mask: np.ndarray[Any, np.dtype[np.bool_]] | None) -> int:
        if mask is not None:
            raise RunnerError(
                f"{type(self).__name__}, a step of some environments",
                expected="a step of those that ask for actions",
                found="a mask, or a piece that skips steps",
                do="leave it out: simulators step on their own",
            )
        chosen = self._choose_all(explore, random_actions)
        simulators: ExternalEnvs = self._stepper.env  # also if another thread calls stop()
        if chosen is not None:
            simulators.send(chosen[1])
        begins, steps, lost = simulators.wait()
        ended = self._lose(lost) if lost else 0
        if steps.any():
            ended += super()._take_step(explore, random_actions, steps)
        if begins.any():
            self._choose_all(explore, random_actions)
            self._begin(begins, explore)
        return ended

    def _choose_all(self, explore: bool, random_actions: bool) -> Any:
        """Return the newest actions of all environments; None before the first one."""
        return self._choose_actions(explore, random_actions, kept=range(self.num_envs))

    def _begin(self, mask: np.ndarray[Any, np.dtype[np.bool_]], explore: bool) -> None:
        """Begin the episodes whose first observations came."""
        envs = np.flatnonzero(mask).tolist()
        observations, infos = self._stepper.reset(None, mask)
        self._recorder.reset(observations, infos, mask=mask)
        self._metrics.forget(envs)
        self._run_env_to_module(explore, envs)
        self._callbacks.after_reset(envs)

    def _lose(self, envs: list[int]) -> int:
        """End the episodes of simulators that have gone; return how many are handed over."""
        info = {FAILURE: "the simulator has gone"} if self.config.failed_episodes == "truncate" else None
        cut = self._recorder.truncate(dict.fromkeys(envs, info))
        for chunk in cut:
            self._metrics.episodes.end(chunk.env)
        idle = range(self.num_envs)
        self._callbacks.stepped((), (), begun=False, failed=envs, idle=idle, cut=cut, restarted=envs)
        self._callbacks.before_reset(envs)
        return sum(len(chunk) > 0 for chunk in cut)


def _error(expected: str, found: str, do: str) -> ConfigError:
    return ConfigError("ExternalEnvRunner", expected=expected, found=found, do=do)
