"""Random schedules of several agents: who observes, acts, gets rewards and ends at which env step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

AGENTS = ("b", "a", "c", "d")  # appearing in an order that no sorting gives


@dataclass(frozen=True)
class Schedule:
    """An episode as the calls that make it.

    Attributes:
        reset: keywords of `add_env_reset`.
        steps: keywords of `add_env_step`, one dict per env step.
        mild: whether RLlib's episode holds all of it.
    """

    reset: dict[str, Any]
    steps: list[dict[str, Any]]
    mild: bool = False

    @property
    def level(self) -> list[int]:
        """The env steps at which every agent so far lives and has just observed."""
        newest, ended, out = dict.fromkeys(self.reset["observations"], 0), set(), [0]
        for t, step in enumerate(self.steps, 1):
            newest.update(dict.fromkeys(step["observations"], t))
            ended |= {a for name in ("terminateds", "truncateds") for a, flag in step[name].items() if flag}
            if newest and not ended and set(newest.values()) == {t}:
                out.append(t)
        return out

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


VECTOR = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
SPACES: dict[str, dict[str, gym.Space[Any]]] = {
    "vector": {"observations": VECTOR, "actions": gym.spaces.Discrete(4)},
    "nested": {
        "observations": gym.spaces.Dict({"v": VECTOR, "n": gym.spaces.Discrete(3)}),
        "actions": gym.spaces.Discrete(4),
    },
    "none": {},
}
"""By kind of observations: the space of every agent's column."""


def of_kind(schedule: Schedule, kind: str) -> Schedule:
    """The schedule with another kind of observations: a key of `SPACES`."""
    if kind != "nested":
        return schedule

    def nested(observations: dict[str, Any]) -> dict[str, Any]:
        return {agent: {"v": row, "n": int(row[0]) % 3} for agent, row in observations.items()}

    reset = {**schedule.reset, "observations": nested(schedule.reset["observations"])}
    steps = [{**step, "observations": nested(step["observations"])} for step in schedule.steps]
    return Schedule(reset, steps, schedule.mild)


def by_agent(kind: str) -> dict[str, Any]:
    """The spaces as keywords of an episode."""
    return {f"{name[:-1]}_space": dict.fromkeys(AGENTS, space) for name, space in SPACES[kind].items()}


_MOVES = {
    # state of the agent -> what it may be given: o(bservation), a(ction), r(eward), i(nfo), t(erminated), x (truncated)
    "unborn": ["", "o", "or", "r", "ot", "oi"],
    "ready": [
        "",
        "oar",
        "oari",
        "a",
        "ar",
        "r",
        "oart",
        "oarx",
        "oartx",
        "at",
        "art",
        "artx",
        "t",
        "x",
        "tx",
        "rt",
        "i",
    ],
    "pending": ["", "o", "or", "r", "ort", "ox", "otx", "t", "tx", "rt", "oi", "ri"],
    "dead": ["", "o", "or", "t"],
}
MILD = {
    "unborn": ["", "o"],
    "ready": ["", "oar", "oar", "oari", "ar", "oart", "oarx"],
    "pending": ["", "or", "or", "r", "ort", "orx"],
    "dead": [""],
}
"""Moves of which RLlib's episodes keep everything, if nothing else is unusual (see `schedules`)."""


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
    draw: st.DrawFn, agents: int = 3, length: int = 10, mild: bool = False, moves: dict[str, list[str]] | None = None
) -> Schedule:
    """Schedules that an environment may have: births, deaths, returns, pauses, turns, rewards at any time.

    Args:
        agents: most agents.
        length: most env steps.
        mild: only what RLlib's episodes hold without a fault: `MILD` moves, an agent from the start on, and an end at
            which every agent is told something, with one flag.
        moves: another table than `_MOVES`.
    """
    values = _Values(draw(st.integers(0, 2**16)))
    names = AGENTS[: draw(st.integers(1, agents))]
    table = MILD if mild else moves or _MOVES
    state = dict.fromkeys(names, "unborn")
    reset: dict[str, Any] = {"observations": {}, "infos": {}}
    for agent in names:
        if draw(st.booleans()) or (mild and agent == names[-1] and not reset["observations"]):
            reset["observations"][agent] = values.observation()
            reset["infos"][agent] = {"reset": values.count}
            state[agent] = "ready"
    steps: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, length))):
        chosen = {agent: draw(st.sampled_from(table[state[agent]])) for agent in names}
        if mild:
            _let_one_live(chosen, state)
        step = empty_step()
        for agent, move in chosen.items():
            _entry(values, agent, move, step)
            state[agent] = _next(state[agent], move)
        steps.append(step)
        born = [agent for agent in names if state[agent] != "unborn"]
        if born and all(state[agent] == "dead" for agent in born):
            return Schedule(reset, steps, mild)
    if steps and draw(st.booleans()):
        flags = draw(st.sampled_from(_ENDS[:2] if mild else _ENDS))
        steps.append(_end_of_all(flags, values, state, {"ready": "oar"} if mild else {}))
    return Schedule(reset, steps, mild)


def _let_one_live(moves: dict[str, str], state: dict[str, str]) -> None:
    """Change moves so that the agents do not end one by one, unless the last ones terminate and nobody comes."""
    living = [agent for agent in moves if state[agent] in ("ready", "pending")]
    newcomers = any(state[agent] == "unborn" and moves[agent] for agent in moves)
    unusual = newcomers or any("x" in moves[agent] for agent in living)
    if unusual and all(set(moves[agent]) & set("tx") for agent in living):
        moves.update({agent: moves[agent].rstrip("tx") for agent in living})


def scripted(*moves: dict[str, str], reset: str = "ab") -> Schedule:
    """A schedule by hand: each env step's moves by agent, in the letters of `_MOVES`."""
    values, steps = _Values(0), []
    observations = {agent: values.observation() for agent in reset}
    for by_agent_ in moves:
        steps.append(empty_step())
        for agent, move in by_agent_.items():
            _entry(values, agent, move, steps[-1])
    return Schedule({"observations": observations, "infos": {agent: {"reset": 1} for agent in reset}}, steps)


_ENDS = (("terminateds",), ("truncateds",), ("terminateds", "truncateds"))


def _end_of_all(
    flags: tuple[str, ...], values: _Values, state: dict[str, str], moves: dict[str, str]
) -> dict[str, Any]:
    """One more env step, which ends all; what is truncated needs an observation."""
    step = empty_step()
    for name in flags:
        step[name]["__all__"] = True
    pending = "or" if moves or flags == ("truncateds",) else "r"
    for agent, its in state.items():
        _entry(values, agent, {"pending": pending, **moves}.get(its, ""), step)
    return step
