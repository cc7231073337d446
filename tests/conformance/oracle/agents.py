"""Random schedules of several agents: who observes, acts, gets rewards and ends at which env step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

AGENTS = ("b", "a", "c", "d")  # appearing in an order that no sorting gives


@dataclass(frozen=True)
class Schedule:
    """An episode as the calls that make it.

    Attributes:
        reset: keywords of `add_env_reset`.
        steps: keywords of `add_env_step`, one dict per env step.
    """

    reset: dict[str, Any]
    steps: list[dict[str, Any]]

    def play(self, cls: Any, until: int | None = None, **keywords: Any) -> Any:
        """The episode after `until` env steps (default: all)."""
        episode = cls(id_="game", **keywords)
        episode.add_env_reset(**self.reset)
        for step in self.steps[:until]:
            episode.add_env_step(**step)
        return episode

    def rewards(self) -> float:
        """The sum of all rewards that were given."""
        return float(sum(sum(step["rewards"].values()) for step in self.steps))


_MOVES = {
    # state of the agent -> what it may be given: o(bservation), a(ction), r(eward), i(nfo), t(erminated), x (truncated)
    "unborn": ["", "o", "or", "r", "ot", "oi"],
    "ready": ["", "oar", "oari", "a", "ar", "r", "oart", "oarx", "at", "art", "t", "x", "rt", "i"],
    "pending": ["", "o", "or", "r", "ort", "ox", "t", "rt", "oi", "ri"],
    "dead": ["", "o", "or", "t"],
}


class _Values:
    """Values that tell rows apart; rewards are eighths, so that sums are exact in any order."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        self.rng = np.random.default_rng(seed)

    def observation(self) -> np.ndarray[Any, Any]:
        self.count += 1
        return np.array([self.count, -self.count], np.float32)

    def action(self) -> int:
        return int(self.rng.integers(0, 4))

    def reward(self) -> float:
        return float(self.rng.integers(-8, 9)) / 8

    def outputs(self) -> dict[str, Any]:
        self.count += 1
        return {"logp": np.float32(-self.count), "state_out": {"h": np.full(2, self.count, np.float32)}}


def _entry(values: _Values, agent: str, move: str, step: dict[str, Any]) -> None:
    if "o" in move:
        step["observations"][agent] = values.observation()
    if "a" in move:
        step["actions"][agent] = values.action()
        step["extra_model_outputs"][agent] = values.outputs()
    if "r" in move:
        step["rewards"][agent] = values.reward()
    if "i" in move:
        step["infos"][agent] = {f"n{values.count}": values.count}
    if "t" in move:
        step["terminateds"][agent] = True
    if "x" in move:
        step["truncateds"][agent] = True


def _next(state: str, move: str) -> str:
    if "t" in move or "x" in move:
        return state if state == "unborn" and "o" not in move else "dead"
    if "o" in move:
        return "ready"
    return "pending" if "a" in move else state


def empty_step() -> dict[str, Any]:
    """An env step in which nothing happens."""
    names = ("observations", "actions", "rewards", "infos", "terminateds", "truncateds", "extra_model_outputs")
    return {name: {} for name in names}


@st.composite
def schedules(
    draw: st.DrawFn, agents: int = 3, length: int = 10, leave_out: str = "", moves: dict[str, list[str]] | None = None
) -> Schedule:
    """Schedules that an environment may have: births, deaths, returns, pauses, turns, rewards at any time.

    Args:
        agents: most agents.
        length: most env steps.
        leave_out: letters of what is not to happen.
        moves: another table than `_MOVES`.
    """
    values = _Values(draw(st.integers(0, 2**16)))
    names = AGENTS[: draw(st.integers(1, agents))]
    table = {s: [m for m in ms if not set(m) & set(leave_out)] for s, ms in (moves or _MOVES).items()}
    state = dict.fromkeys(names, "unborn")
    reset: dict[str, Any] = {"observations": {}, "infos": {}}
    for agent in names:
        if draw(st.booleans()):
            reset["observations"][agent] = values.observation()
            reset["infos"][agent] = {"reset": values.count}
            state[agent] = "ready"
    steps: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, length))):
        step = empty_step()
        for agent in names:
            move = draw(st.sampled_from(table[state[agent]]))
            _entry(values, agent, move, step)
            state[agent] = _next(state[agent], move)
        steps.append(step)
        born = [agent for agent in names if state[agent] != "unborn"]
        if born and all(state[agent] == "dead" for agent in born):
            return Schedule(reset, steps)
    if steps and draw(st.booleans()):
        _end_all(draw(st.sampled_from(["terminateds", "truncateds"])), values, steps, state)
    return Schedule(reset, steps)


def _end_all(flags: str, values: _Values, steps: list[dict[str, Any]], state: dict[str, str]) -> None:
    """One more env step, which ends all; what is truncated needs an observation."""
    step = empty_step()
    step[flags]["__all__"] = True
    for agent, its in state.items():
        if its == "pending" and flags == "truncateds":
            _entry(values, agent, "or", step)
        elif its == "pending":
            _entry(values, agent, "r", step)
    steps.append(step)
