"""Metrics of a runner: steps, returns and lengths of episodes, agents and modules, seconds, logged values."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from epibatch.core.metrics import MetricsLogger, merge_logged
from epibatch.core.plain import key_text
from epibatch.core.restoring import check_count

from ..episodes.multi_agent_episode import MultiAgentEpisode


class EpisodeMetrics:
    """Sums rewards per environment and stores the newest ended episodes.

    Args:
        num_envs: How many environments step together.
        window: Over how many ended episodes means, minima and maxima are taken.

    Examples:
        >>> metrics = EpisodeMetrics(2)
        >>> metrics.add(np.array([1.0, 2.0]), skipped=[])
        >>> metrics.end(1)
        >>> metrics.report()["episode_return_mean"]
        2.0
    """

    def __init__(self, num_envs: int, window: int = 100) -> None:
        self._returns = np.zeros(num_envs)
        self._steps = 0
        self._begun = [0] * num_envs  # the step before each environment's episode
        self._ended: deque[tuple[float, int]] = deque(maxlen=window)
        self._new: list[tuple[float, int]] = []  # those that ended since the last report
        self.lifetime = 0

    def add(self, rewards: Any, skipped: list[int], idle: Collection[int] = ()) -> None:
        """Count one vector step.

        Args:
            rewards: Shape [N].
            skipped: Environments whose step belongs to no episode.
            idle: Environments that were not stepped; their rewards are 0.
        """
        self._returns += rewards
        self._steps += 1
        if skipped:
            self.forget(skipped)
        for env in idle:
            self._begun[env] += 1

    def end(self, env: int) -> None:
        """Count the running episode of an environment as ended."""
        ended = self._returns.item(env), self._steps - self._begun[env]
        self._ended.append(ended)
        self._new.append(ended)
        self.lifetime += 1
        self._returns[env] = 0.0
        self._begun[env] = self._steps

    def forget(self, envs: list[int] | None = None) -> None:
        """Start counting again, in all environments or some."""
        for env in range(len(self._begun)) if envs is None else envs:
            self._returns[env] = 0.0
            self._begun[env] = self._steps

    def report(self) -> dict[str, float]:
        """Return means, minima and maxima over the window.

        `num_episodes` and `episode_return_mean_this_iter` (left out without one) are about the
        episodes that ended since the last report.
        """
        out: dict[str, float] = {"num_episodes": len(self._new), "num_episodes_lifetime": self.lifetime}
        if self._new:
            out["episode_return_mean_this_iter"] = float(np.mean([value for value, _ in self._new]))
        self._new = []
        for name, values in zip(("return", "len"), zip(*self._ended) if self._ended else ((), ())):
            array = np.array(values or [np.nan], np.float64)
            out[f"episode_{name}_mean"] = float(array.mean())
            out[f"episode_{name}_min"] = float(array.min())
            out[f"episode_{name}_max"] = float(array.max())
        return out

    def take(self) -> list[tuple[float, int]]:
        """Return returns and lengths of the episodes that ended since the last report, and count this as one."""
        new, self._new = self._new, []
        return new

    def add_from(self, ended: Sequence[tuple[float, int]]) -> None:
        """Count the episodes that another object's `take` gave as ended here."""
        self._ended.extend(ended)
        self._new.extend(ended)
        self.lifetime += len(ended)

    def get_state(self) -> dict[str, Any]:
        """Return the stored episodes and the lifetime count, without running sums."""
        return {"ended": np.array(self._ended, np.float64).reshape(-1, 2), "lifetime": self.lifetime}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`."""
        lifetime = check_count("state of episode metrics, 'lifetime'", state["lifetime"])
        ended = [(float(value), int(length)) for value, length in state["ended"]]
        self._ended.clear()
        self._ended.extend(ended)
        self.lifetime = lifetime
        self._new = []
        self.forget()


_STEPS = "num_{}_steps_sampled"


class AgentMetrics:
    """Counts agents' steps, and stores their returns in the newest ended episodes.

    Steps are counted by observations after the reset's, as RLlib does. An agent's first observation counts too if it
    appears later. A step that ends without an observation does not count. A return has all rewards that the
    environment gave, including rewards outside the agent's steps. The keys are the agents' names as text.

    Args:
        num_envs: How many environments step together.
        window: Over how many ended episodes of an agent, or of a module, its means are taken.

    Attributes:
        steps: Of all agents over the lifetime.

    Examples:
        >>> game = MultiAgentEpisode()
        >>> game.add_env_reset(observations={"x": 0.0})
        >>> game.add_env_step({"x": 1.0}, {"x": 0}, {"x": 0.5}, terminateds={"__all__": True})
        >>> metrics = AgentMetrics(1)
        >>> metrics.add(game, ["x"])
        >>> metrics.end(0, game)
        >>> metrics.report()["module_episode_returns_mean"]
        {'default_policy': 0.5}
    """

    def __init__(self, num_envs: int, window: int = 100) -> None:
        self.steps = 0
        self._window = window
        self._lifetime: dict[str, Counter[str]] = {"agent": Counter(), "module": Counter()}
        self._ended: dict[str, defaultdict[str, deque[float]]] = {
            name: defaultdict(self._remembered) for name in ("agent_returns", "module_returns", "agent_steps")
        }
        self._texts = _KeyTexts()
        self._begin_report()
        self._earlier: list[_Totals] = [_Totals() for _ in range(num_envs)]

    def _remembered(self) -> deque[float]:
        return deque(maxlen=self._window)

    def add(self, episode: MultiAgentEpisode, observed: Collection[Any]) -> None:
        """Count one step of an environment.

        Args:
            episode: Its episode.
            observed: The agents that got an observation in the step.
        """
        self.steps += len(observed)
        self._lifetime["agent"].update(map(self._texts.__getitem__, observed))
        self._lifetime["module"].update(map(str, map(episode.module_for, observed)))

    def cut(self, env: int, chunk: MultiAgentEpisode) -> None:
        """Add the steps and rewards of a running episode's chunk, as the episode continues in another chunk."""
        self._earlier[env].take(chunk)

    def end(self, env: int, chunk: MultiAgentEpisode) -> None:
        """Count the running episode of an environment as ended with this chunk.

        If the chunk is not done, the environment goes on, and rewards that wait are the next episode's.
        """
        totals, self._earlier[env] = self._earlier[env], _Totals()
        totals.take(chunk)
        for agent, reward in chunk.pending_rewards.items() if chunk.is_done else ():
            totals.returns[agent] += float(np.sum(reward))
        modules: defaultdict[str, float] = defaultdict(float)
        for agent, value in totals.returns.items():
            if not (value or totals.steps.get(agent)):
                continue  # it only saw the end
            self._store("agent_returns", self._texts[agent], [value])
            self._store("agent_steps", self._texts[agent], [totals.steps.get(agent, 0)])
            if agent in totals.steps:  # one that never appeared has no module
                modules[str(chunk.module_for(agent))] += value
        for module_id, value in modules.items():
            self._store("module_returns", module_id, [value])

    def _store(self, name: str, key: str, values: Sequence[float]) -> None:
        self._ended[name][key].extend(values)
        self._new[name][key] += len(values)

    def forget(self, envs: list[int] | None = None) -> None:
        """Start counting again, in all environments or some."""
        for env in range(len(self._earlier)) if envs is None else envs:
            self._earlier[env] = _Totals()

    def report(self) -> dict[str, Any]:
        """Return steps since the last report and over the lifetime, and means over the window; each a dict by name."""
        out: dict[str, Any] = {
            "agent_episode_returns_mean": _means(self._ended["agent_returns"]),
            "module_episode_returns_mean": _means(self._ended["module_returns"]),
            "agent_steps": _means(self._ended["agent_steps"]),
        }
        for kind, counts in self._lifetime.items():
            out[_STEPS.format(kind)] = dict(counts - self._reported[kind])
            out[f"{_STEPS.format(kind)}_lifetime"] = dict(counts)
        self._begin_report()
        return out

    def _begin_report(self) -> None:
        self._reported = {kind: Counter(counts) for kind, counts in self._lifetime.items()}
        self._steps_reported = self.steps
        self._new: dict[str, Counter[str]] = {name: Counter() for name in self._ended}  # number of new values

    def take(self) -> dict[str, Any]:
        """Return steps and ended episodes since the last report as data, and count this as one."""
        data = {
            "steps": self.steps - self._steps_reported,
            "counts": {kind: dict(counts - self._reported[kind]) for kind, counts in self._lifetime.items()},
            "ended": {
                name: {key: list(self._ended[name][key])[-count:] for key, count in counts.items() if count}
                for name, counts in self._new.items()
            },
        }
        self._begin_report()
        return data

    def add_from(self, data: Mapping[str, Any]) -> None:
        """Count the steps and episodes that another object's `take` gave, too."""
        self.steps += data["steps"]
        for kind, counts in data["counts"].items():
            self._lifetime[kind].update(counts)
        for name, by_key in data["ended"].items():
            for key, values in by_key.items():
                self._store(name, key, values)

    def get_state(self) -> dict[str, Any]:
        """Return the stored episodes and the lifetime counts, without running sums."""
        return {
            "steps": self.steps,
            "lifetime": {kind: dict(counts) for kind, counts in self._lifetime.items()},
            "ended": {
                name: {key: list(values) for key, values in by_name.items()} for name, by_name in self._ended.items()
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        where = "state of agent metrics"
        self.steps = check_count(f"{where}, 'steps'", state["steps"])
        for kind in self._lifetime:
            counts = {key: check_count(f"{where}, {key!r}", count) for key, count in state["lifetime"][kind].items()}
            self._lifetime[kind] = Counter(counts)
        for name in self._ended:
            self._ended[name].clear()
            for key, values in state["ended"][name].items():
                self._ended[name][key].extend(value if type(value) is int else float(value) for value in values)
        self._begin_report()
        self.forget()


class _KeyTexts(dict[Any, str]):
    """Agent -> its name as text; made once, as agents step often."""

    def __missing__(self, agent: Any) -> str:
        text = self[agent] = key_text(agent)
        return text


class _Totals:
    """Sum of the rewards and number of steps of each agent in an episode."""

    __slots__ = ("returns", "steps")

    def __init__(self) -> None:
        self.returns: defaultdict[Any, float] = defaultdict(float)
        self.steps: defaultdict[Any, int] = defaultdict(int)

    def take(self, chunk: MultiAgentEpisode) -> None:
        """Add a chunk's rewards and steps."""
        for segment in chunk.segments:
            self.returns[segment.agent_id] += segment.episode.get_return()
            self.steps[segment.agent_id] += len(segment.episode)


def _means(by_name: Mapping[str, deque[float]]) -> dict[str, float]:
    return {name: sum(values) / len(values) for name, values in by_name.items() if values}


class SamplingMetrics:
    """Counts the steps of N environments, the ended episodes, and the time.

    Args:
        num_envs: How many environments step together.
        window: Over how many ended episodes means, minima and maxima are taken.
        several_agents: True to count agents' and modules' steps and returns, too.

    Attributes:
        agents: The metrics of several agents; None for one agent.
        episodes: Returns and lengths.
        steps: Environment steps over the lifetime.
        seconds: Spent sampling since the last report.
        logged: The logger that pieces get as `metrics`.

    Examples:
        >>> import numpy as np
        >>> metrics = SamplingMetrics(3)
        >>> metrics.add(np.ones(3), skipped=[1])
        >>> metrics.report()["num_env_steps_sampled"]
        2
    """

    def __init__(self, num_envs: int, window: int = 100, *, several_agents: bool = False) -> None:
        self.agents = AgentMetrics(num_envs, window) if several_agents else None
        self.episodes = EpisodeMetrics(num_envs, window)
        self.steps = 0
        self.seconds = 0.0
        self.logged = MetricsLogger(times_pieces=False)
        self._num_envs = num_envs
        self._reported = 0

    def add(self, rewards: Any, skipped: list[int], idle: Collection[int] = ()) -> None:
        """Count one vector step.

        Args:
            rewards: Shape [N].
            skipped: Environments whose step belongs to no episode.
            idle: Environments that were not stepped; their rewards are 0.
        """
        self.episodes.add(rewards, skipped, idle)
        self.steps += self._num_envs - len(skipped) - len(idle)

    def forget(self, envs: list[int] | None = None) -> None:
        """Drop running episodes, as all environments are reset, or some."""
        self.episodes.forget(envs)
        if self.agents is not None:
            self.agents.forget(envs)

    def report(self) -> dict[str, Any]:
        """Return counts since the last report and over the lifetime, returns, seconds, and values that pieces logged.

        Raises:
            ConfigError: a piece logs under a name of these metrics.
        """
        metrics = {
            **self.episodes.report(),
            **(self.agents.report() if self.agents is not None else {}),
            "num_env_steps_sampled": self.steps - self._reported,
            "num_env_steps_sampled_lifetime": self.steps,
            "sample": self.seconds,
        }
        self._reported, self.seconds = self.steps, 0.0
        return merge_logged(metrics, self.logged, "environment runner")

    def continue_from(self, steps: int) -> None:
        """Let the lifetime have this many steps, besides those that were not reported yet."""
        self.steps, self._reported = steps + self.steps - self._reported, steps

    def take(self) -> dict[str, Any]:
        """Return what was counted and logged since the last report as data for `add_from`, and count this as one."""
        data = {
            "steps": self.steps - self._reported,
            "seconds": self.seconds,
            "episodes": self.episodes.take(),
            "agents": None if self.agents is None else self.agents.take(),
            "logged": self.logged.take(),
        }
        self._reported, self.seconds = self.steps, 0.0
        return data

    def add_from(self, data: Mapping[str, Any]) -> None:
        """Count what `take` of another runner's metrics gave, as if it were counted here now.

        Raises:
            ConfigError: the runners log a key with other options.
        """
        self.steps += data["steps"]
        self.seconds += data["seconds"]
        self.episodes.add_from(data["episodes"])
        if self.agents is not None and data["agents"] is not None:
            self.agents.add_from(data["agents"])
        self.logged.add_from(data["logged"])  # last, so that all else counts if it raises

    def get_state(self) -> dict[str, Any]:
        """Return the lifetime counts, the stored episodes, and the values that pieces logged."""
        state = {
            "num_env_steps_sampled_lifetime": self.steps,
            "episode_metrics": self.episodes.get_state(),
            "logged_metrics": self.logged.get_state(),
        }
        if self.agents is not None:
            state["agent_metrics"] = self.agents.get_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`, or a part of it."""
        if "num_env_steps_sampled_lifetime" in state:
            self.steps = self._reported = check_count(
                "state of a runner, 'num_env_steps_sampled_lifetime'", state["num_env_steps_sampled_lifetime"]
            )
        if "episode_metrics" in state:
            self.episodes.set_state(state["episode_metrics"])
        if "agent_metrics" in state and self.agents is not None:
            self.agents.set_state(state["agent_metrics"])
        if "logged_metrics" in state:
            self.logged.set_state(state["logged_metrics"])
