"""Random Gymnasium spaces, rows of them, and chunks of episodes, from which both libraries build theirs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from oracle.libraries import Library

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


@st.composite
def boxes(draw: st.DrawFn, max_axes: int = 3, dtypes: tuple[str, ...] = FLOATS + INTEGERS) -> gym.spaces.Box:
    """Boxes of 0 to 3 axes; floats bounded on both sides, on one, or not at all."""
    shape = draw(st.lists(st.integers(1, 3), max_size=max_axes).map(tuple))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    if dtype.kind == "f":
        low, high = draw(st.sampled_from([(-np.inf, np.inf), (-2.0, 3.0), (0.0, np.inf), (-np.inf, 1.0)]))
    elif dtype.kind == "u":
        low, high = draw(st.sampled_from([(0, 255), (1, 9)]))
    else:
        low, high = draw(st.sampled_from([(-100, 100), (0, 7)]))
    return gym.spaces.Box(low, high, shape, dtype.type)


discretes = st.builds(
    lambda n, start: gym.spaces.Discrete(n, start=start), st.integers(1, 5), st.sampled_from([0, 0, 3])
)
multi_discretes = st.one_of(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(gym.spaces.MultiDiscrete),
    st.just(gym.spaces.MultiDiscrete([[2, 3], [4, 2]])),
)
multi_binaries = st.sampled_from([1, 4, (2, 3)]).map(gym.spaces.MultiBinary)
leaf_spaces = st.one_of(boxes(), discretes, multi_discretes, multi_binaries)


def nested(leaves: st.SearchStrategy[gym.Space[Any]]) -> st.SearchStrategy[gym.Space[Any]]:
    """The leaves alone, and Dicts and Tuples of them in each other."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(gym.spaces.Dict),
            st.lists(inner, min_size=1, max_size=3).map(gym.spaces.Tuple),
        ),
        max_leaves=4,
    )


spaces = nested(leaf_spaces)
"""Any space that both libraries can store."""


def rows(space: gym.Space[Any], rng: np.random.Generator, count: int) -> list[Any]:
    """Draw members of a space, as an environment would deliver them.

    Returns:
        `count` structures with the space's shapes and types; Discrete ones are `np.int64`.
    """
    if isinstance(space, gym.spaces.Dict):
        columns = {key: rows(inner, rng, count) for key, inner in space.spaces.items()}
        return [{key: column[i] for key, column in columns.items()} for i in range(count)]
    if isinstance(space, gym.spaces.Tuple):
        parts = [rows(inner, rng, count) for inner in space.spaces]
        return [tuple(part[i] for part in parts) for i in range(count)]
    return list(_leaf_rows(space, rng, count))


def _leaf_rows(space: gym.Space[Any], rng: np.random.Generator, count: int) -> Any:
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, count)
    if isinstance(space, gym.spaces.MultiDiscrete):
        low = space.start
        return rng.integers(low, low + space.nvec, (count, *space.shape)).astype(space.dtype)
    if isinstance(space, gym.spaces.MultiBinary):
        return rng.integers(0, 2, (count, *space.shape)).astype(space.dtype)
    assert isinstance(space, gym.spaces.Box)
    if space.dtype.kind != "f":
        values = rng.integers(space.low, space.high, (count, *space.shape), endpoint=True)
    else:
        values = np.clip(rng.standard_normal((count, *space.shape)) * 2, space.low, space.high)
    values = values.astype(space.dtype)
    return [np.asarray(row) for row in values]


# -- chunks -----------------------------------------------------------------------------------------

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
