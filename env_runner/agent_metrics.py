"""Steps and returns of each agent and of each module."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from typing import Any

from epibatch.core.restoring import check_count

from ..episodes.multi_agent_episode import MultiAgentEpisode

__all__ = ["AgentMetrics"]

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

    Example:
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
        self._reported: dict[str, Counter[str]] = {"agent": Counter(), "module": Counter()}
        self._ended: dict[str, defaultdict[str, deque[float]]] = {
            name: defaultdict(self._remembered) for name in ("agent_returns", "module_returns", "agent_steps")
        }
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
        self._lifetime["agent"].update(map(str, observed))
        self._lifetime["module"].update(map(str, map(episode.module_for, observed)))

    def cut(self, env: int, chunk: MultiAgentEpisode) -> None:
        """Add the steps and rewards of a running episode's chunk, as the episode continues in another chunk."""
        self._earlier[env].take(chunk)

    def end(self, env: int, chunk: MultiAgentEpisode) -> None:
        """Count the running episode of an environment as ended with this chunk."""
        totals, self._earlier[env] = self._earlier[env], _Totals()
        totals.take(chunk)
        for agent, reward in chunk.pending_rewards.items():
            totals.returns[agent] += float(reward)
        modules: defaultdict[str, float] = defaultdict(float)
        for agent, value in totals.returns.items():
            if not (value or totals.steps.get(agent)):
                continue  # it only saw the end
            self._ended["agent_returns"][str(agent)].append(value)
            self._ended["agent_steps"][str(agent)].append(totals.steps.get(agent, 0))
            if agent in totals.steps:  # one that never appeared has no module
                modules[str(chunk.module_for(agent))] += value
        for module_id, value in modules.items():
            self._ended["module_returns"][module_id].append(value)

    def forget(self) -> None:
        """Start counting again in all environments."""
        self._earlier = [_Totals() for _ in self._earlier]

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
            self._reported[kind] = Counter(counts)
        return out

    def get_state(self) -> dict[str, Any]:
        """Return the stored episodes and the lifetime counts, without running sums."""
        return {
            "steps": self.steps,
            "lifetime": {kind: dict(counts) for kind, counts in self._lifetime.items()},
            "ended": {
                name: {own: list(values) for own, values in by_name.items()} for name, by_name in self._ended.items()
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        where = "state of agent metrics"
        self.steps = check_count(f"{where}, 'steps'", state["steps"])
        for kind in self._lifetime:
            counts = {own: check_count(f"{where}, {own!r}", count) for own, count in state["lifetime"][kind].items()}
            self._lifetime[kind], self._reported[kind] = Counter(counts), Counter(counts)
        for name in self._ended:
            self._ended[name].clear()
            for own, values in state["ended"][name].items():
                self._ended[name][own].extend(value if type(value) is int else float(value) for value in values)
        self.forget()


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
