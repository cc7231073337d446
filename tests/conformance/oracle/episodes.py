"""Random chunks of single-agent episodes, from which both libraries build theirs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from oracle.libraries import Library
from oracle.spaces import rows, spaces

ENDS = ("running", "terminated", "truncated")
REWARDS = ("float", "int", "float32")
EXTRAS = ("action_logp", "vf_preds", "action_dist_inputs", "weights_seq_no", "tags", "nested")

lengths = st.one_of(st.integers(0, 6), st.integers(0, 60))
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Chunk:
    """One chunk of an episode, as data: what happened, in plain lists.

    Attributes:
        lookback: steps of the columns that lie before the chunk's start.
        length: steps after them.
        state: width of the recurrent state in `state_out`; 0 for none.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    length: int
    lookback: int = 0
    t_started: int = 0
    end: str = "running"
    reward: str = "float"
    extras: tuple[str, ...] = ()
    state: int = 0
    seed: int = 0
    id_: str = "e"
    columns: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        total = self.lookback + self.length
        made = {name: extra_rows(name, rng, total) for name in self.extras}
        if self.state:
            made["state_out"] = state_rows(rng, total, self.state)
        columns = {
            "observations": rows(self.observation_space, rng, total + 1),
            "infos": [{"step": i} for i in range(total + 1)],
            "actions": rows(self.action_space, rng, total),
            "rewards": reward_rows(self.reward, rng, total),
            "extra_model_outputs": made,
        }
        object.__setattr__(self, "columns", columns)

    def build(self, library: Library, *, numpy: bool = True, **keywords: Any) -> Any:
        """This chunk as an episode of a library.

        Args:
            library: which.
            numpy: call `to_numpy()` on it, as RLlib does before its learner pipeline.
            **keywords: arguments of the episode's constructor that replace this chunk's.
        """
        copied = {name: list(column) for name, column in self.columns.items() if name != "extra_model_outputs"}
        arguments = {
            "id_": self.id_,
            **copied,
            "extra_model_outputs": {key: list(v) for key, v in self.columns["extra_model_outputs"].items()},
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "t_started": self.t_started,
            "len_lookback_buffer": self.lookback,
            "terminated": self.end in ("terminated", "both"),
            "truncated": self.end in ("truncated", "both"),
            **keywords,
        }
        episode = library.SingleAgentEpisode(**arguments)
        return episode.to_numpy() if numpy else episode


def extra_rows(name: str, rng: np.random.Generator, count: int) -> list[Any]:
    """Rows of one extra model output."""
    if name in ("action_logp", "vf_preds"):
        return list(rng.standard_normal(count).astype(np.float32))
    if name == "action_dist_inputs":
        return list(rng.standard_normal((count, 3)).astype(np.float32))
    if name == "weights_seq_no":
        return [int(i) for i in rng.integers(0, 9, count)]
    if name == "tags":
        return list(rng.integers(-5, 5, (count, 2)))
    assert name == "nested"
    return [{"x": a, "y": (b,)} for a, b in zip(rng.standard_normal((count, 2)), rng.integers(0, 9, count))]


def state_rows(rng: np.random.Generator, count: int, width: int) -> list[Any]:
    """Rows of a recurrent module's `state_out`."""
    values = rng.standard_normal((2, count, width)).astype(np.float32)
    return [{"h": h, "c": c} for h, c in zip(*values)]


def reward_rows(kind: str, rng: np.random.Generator, count: int) -> list[Any]:
    """Rewards as Python floats or ints or as float32 scalars; few bits, so that sums are exact."""
    eighths = rng.integers(-40, 40, count)
    if kind == "int":
        return [int(i) for i in eighths]
    return [np.float32(i / 8) if kind == "float32" else float(i / 8) for i in eighths]


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "t_started": st.sampled_from([0, 0, 1, 3, 7]),
    "length": lengths,
    "end": st.sampled_from(ENDS),
    "reward": st.sampled_from(REWARDS),
    "extras": st.sets(st.sampled_from(EXTRAS), max_size=4).map(lambda names: tuple(sorted(names))),
    "state": st.sampled_from([0, 0, 2]),
    "seed": seeds,
}
LOOKBACKS = [st.integers(0, most) for most in range(5)]


def _drawn_fields(draw: st.DrawFn, fixed: dict[str, Any]) -> dict[str, Any]:
    """The fields of a chunk: those that are fixed, and the others drawn; a fixed one may be a strategy."""
    given = {**FIELDS, **fixed}
    fields = {name: draw(own) if isinstance(own, st.SearchStrategy) else own for name, own in given.items()}
    if "lookback" not in fields:
        fields["lookback"] = draw(LOOKBACKS[min(fields["t_started"], 4)])
    return fields


@st.composite
def chunks(
    draw: st.DrawFn,
    observation_spaces: st.SearchStrategy[gym.Space[Any]] = spaces,
    action_spaces: st.SearchStrategy[gym.Space[Any]] = spaces,
    **fixed: Any,
) -> Chunk:
    """Chunks of 0 to 60 steps, with and without lookback, running or ended.

    Args:
        draw: Hypothesis's.
        observation_spaces: which observation spaces.
        action_spaces: which action spaces.
        **fixed: fields of `Chunk` that are not drawn, or drawn from this strategy.
    """
    return Chunk(draw(observation_spaces), draw(action_spaces), **_drawn_fields(draw, fixed))


@st.composite
def several_chunks(
    draw: st.DrawFn,
    count: st.SearchStrategy[int],
    observation_spaces: st.SearchStrategy[gym.Space[Any]] = spaces,
    action_spaces: st.SearchStrategy[gym.Space[Any]] = spaces,
    common: tuple[str, ...] = (),
    **fixed: Any,
) -> list[Chunk]:
    """Some chunks of one pair of spaces, each of an episode of its own.

    Args:
        draw: Hypothesis's.
        count: how many.
        observation_spaces: which observation spaces.
        action_spaces: which action spaces.
        common: fields that are drawn once for all of them.
        **fixed: as in `chunks`.
    """
    own = draw(observation_spaces), draw(action_spaces)
    shared = {**fixed, **{name: draw(FIELDS[name]) for name in common}}
    return [Chunk(*own, id_=f"e{i}", **_drawn_fields(draw, shared)) for i in range(draw(count))]
