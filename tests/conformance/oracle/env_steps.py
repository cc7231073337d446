"""What every agent saw and did at every env step of a schedule, in dicts, by the rules of open steps alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oracle.agents import Schedule


@dataclass
class EnvSteps:
    """An episode by env step.

    Attributes:
        seen: for each env step agent -> observation.
        done: for each env step agent -> the action that followed the observation there.
        taken: (env step, agent) of those -> the env step that the action brought.
    """

    seen: list[dict[str, Any]]
    done: list[dict[str, Any]]
    taken: dict[tuple[int, str], int] = field(default_factory=dict)


def by_env_step(schedule: Schedule) -> EnvSteps:
    """Play a schedule."""
    out = EnvSteps([dict(schedule.reset["observations"])], [{}])
    newest = dict.fromkeys(out.seen[0], 0)
    alive, waiting = set(newest), set()
    for t, step in enumerate(schedule.steps, 1):
        out.seen.append(dict(step["observations"]))
        out.done.append({})
        for agent, action in step["actions"].items():
            out.done[newest[agent]][agent] = action
            out.taken[newest[agent], agent] = t
            waiting.add(agent)
        for agent in step["observations"]:
            newest[agent] = t
            alive.add(agent)
            waiting.discard(agent)
        flags = {**step["terminateds"], **step["truncateds"]}
        for agent in sorted(alive if "__all__" in flags else alive & flags.keys()):
            if agent in waiting:
                out.seen[t][agent] = out.seen[newest[agent]][agent]  # it ended without one: the last one again
            alive.discard(agent)
            waiting.discard(agent)
    return out
