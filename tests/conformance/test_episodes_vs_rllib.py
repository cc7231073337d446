"""The same random operations on RLlib's SingleAgentEpisode and on ours.

Excused are only the listed differences: columns are arrays here (RLlib's lists are stacked before they are
compared), negative slice steps, steps with fill, slices over both ends with fill, fill rows without a space,
done flags of slices whose stop lies behind the end, both done flags through a concat, custom data and ids of
slices. Where RLlib cannot restore its own state it goes on with the episode it has.
`EPIBATCH_CASES` sets the number of cases.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.episodes.single_agent_episode import SingleAgentEpisode as Ours

pytest.importorskip("ray", reason="RLlib is the oracle")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode as Theirs

pytestmark = pytest.mark.filterwarnings("ignore")
ERRORS = (IndexError, AssertionError, KeyError, ValueError)
CASES = int(os.environ.get("EPIBATCH_CASES", "100"))
FLOATS = gym.spaces.Box(-1e6, 1e6, (3,), np.float32)
NUMBER = gym.spaces.Discrete(50)

Make = Callable[[int], Any]
OBSERVATIONS: dict[str, tuple[gym.Space[Any], Make]] = {
    "box": (FLOATS, lambda i: np.array([i, -i, 0.5], np.float32)),
    "discrete": (NUMBER, lambda i: i % 50),
    "dict": (
        gym.spaces.Dict({"a": FLOATS, "b": gym.spaces.Dict({"c": NUMBER})}),
        lambda i: {"a": np.array([i, -i, 0.5], np.float32), "b": {"c": i % 50}},
    ),
    "tuple": (gym.spaces.Tuple((NUMBER, FLOATS)), lambda i: (i % 50, np.full(3, i, np.float32))),
}
ACTIONS: dict[str, tuple[gym.Space[Any], Make]] = {
    "discrete": (gym.spaces.Discrete(3), lambda i: i % 3),
    "box": (gym.spaces.Box(-1e6, 1e6, (2,), np.float32), lambda i: np.full(2, i / 2, np.float32)),
    "multi_discrete": (gym.spaces.MultiDiscrete([2, 3]), lambda i: np.array([i % 2, i % 3])),
    "dict": (gym.spaces.Dict({"p": gym.spaces.Discrete(4), "q": FLOATS}), lambda i: {"p": i % 4, "q": np.full(3, i)}),
}


def leaves(struct: Any) -> list[Any]:
    if isinstance(struct, dict):
        return [leaf for key in sorted(struct) for leaf in leaves(struct[key])]
    if isinstance(struct, tuple):
        return [leaf for value in struct for leaf in leaves(value)]
    return [struct]


def assert_stream(ours: Any, theirs: Any, check_dtype: bool = True) -> None:
    """Our stacked struct equals their list of rows (or their own stacked struct)."""
    if isinstance(theirs, list):
        if not theirs:
            assert all(len(leaf) == 0 for leaf in leaves(ours))
            return
        expected = [np.stack([np.asarray(v) for v in column]) for column in zip(*(leaves(row) for row in theirs))]
    else:
        expected = [np.asarray(leaf) for leaf in leaves(theirs)]
    for found, value in zip(leaves(ours), expected, strict=True):
        np.testing.assert_array_equal(found, value)
        assert np.shape(found) == value.shape
        if check_dtype:
            assert np.asarray(found).dtype == value.dtype


def caught(call: Callable[[], Any]) -> tuple[Any, type[BaseException] | None]:
    try:
        return call(), None
    except ERRORS as error:
        return None, next(kind for kind in ERRORS if isinstance(error, kind))


class Twins:
    """One episode of each library, given the same random operations."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.clock = 0
        self.obs_space, self.obs = OBSERVATIONS[self.pick(sorted(OBSERVATIONS))]
        self.act_space, self.act = ACTIONS[self.pick(sorted(ACTIONS))]
        n = int(self.rng.integers(0, 7))
        spaces = {"observation_space": self.obs_space, "action_space": self.act_space}
        lookback: Any = self.pick(["auto", 0, 1, 2, 5])
        self.ours, self.theirs = (self.build(kind, n, lookback, spaces) for kind in (Ours, Theirs))
        self.clock = n

    def build(self, kind: Any, n: int, lookback: Any, spaces: dict[str, Any]) -> Any:
        if n == 0:
            episode = kind(id_="e", **spaces)
            episode.add_env_reset(self.obs(0), {"i": 0})
            return episode
        return kind(
            id_="e",
            observations=[self.obs(i) for i in range(n + 1)],
            infos=[{"i": i} for i in range(n + 1)],
            actions=[self.act(i) for i in range(1, n + 1)],
            rewards=[i / 4 for i in range(1, n + 1)],
            extra_model_outputs={"x": [np.array([i, 0.5], np.float32) for i in range(1, n + 1)]},
            t_started=3,
            len_lookback_buffer=lookback,
            **spaces,
        )

    def pick(self, options: list[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def both(self, call: Callable[[Any], Any]) -> tuple[Any, Any, type[BaseException] | None]:
        """Run `call` on each; both must succeed or raise the same kind of error."""
        ours, our_error = caught(lambda: call(self.ours))
        theirs, their_error = caught(lambda: call(self.theirs))
        assert our_error == their_error
        return ours, theirs, our_error

    def check(self) -> None:
        ours, theirs = self.ours, self.theirs
        for name in ("observations", "actions", "rewards"):
            assert_stream(getattr(ours, name).data, getattr(theirs, name).data)
            assert getattr(ours, name).lookback == getattr(theirs, name).lookback
            assert len(getattr(ours, name)) == len(getattr(theirs, name))
        assert list(ours.infos.data) == list(theirs.infos.data)
        if len(theirs.rewards.data):
            assert sorted(ours.extra_model_outputs) == sorted(theirs.extra_model_outputs)
        for key in ours.extra_model_outputs:
            assert_stream(ours.extra_model_outputs[key].data, theirs.extra_model_outputs[key].data)
        for name in ("id_", "t", "t_started", "is_terminated", "is_truncated", "is_done", "is_reset"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert (len(ours), ours.env_steps()) == (len(theirs), theirs.env_steps())
        assert ours.get_return() == pytest.approx(theirs.get_return())

    # ------------------------------------------------------------ operations
    def step(self) -> None:
        self.clock += 1
        i = self.clock
        chance = self.rng.random()  # RLlib's concat drops `truncated` where both flags are set
        done = {"terminated": chance < 0.04, "truncated": 0.04 <= chance < 0.08}
        options = {**done, "extra_model_outputs": {"x": np.array([i, 0.5], np.float32)}}
        self.both(lambda e: e.add_env_step(self.obs(i), self.act(i), i / 4, {"i": i}, **options))

    def reset_again(self) -> None:
        self.both(lambda e: e.add_env_reset(self.obs(0)))

    def index(self) -> Any:
        n = len(self.theirs) + self.theirs.rewards.lookback + 2
        kind = self.pick(["int", "slice", "slice", "list", None])
        if kind is None:
            return None
        if kind == "int":
            return int(self.rng.integers(-n, n))
        if kind == "list":
            return [int(i) for i in self.rng.integers(-n, n, int(self.rng.integers(0, 4)))]
        start, stop = (None if self.rng.random() < 0.2 else int(i) for i in self.rng.integers(-n, n + 1, 2))
        return slice(start, stop, self.pick([None, None, 1, 2, 3]))

    def get(self) -> None:
        name = self.pick(["observations", "actions", "rewards", "infos", "extra"])
        indices, options = self.index(), {"neg_index_as_lookback": bool(self.rng.random() < 0.4)}
        if name != "extra" and self.rng.random() < 0.4 and not self.excused_fill(indices, name, options):
            options["fill"] = 0
        stream = self.theirs.extra_model_outputs.get("x") if name == "extra" else getattr(self.theirs, name)
        if stream is None or not len(stream.data):  # RLlib asserts on slices of empty columns
            return
        if name in ("observations", "actions") and self.rng.random() < 0.3:
            options["one_hot_discrete"] = True
        arguments = ("x", indices) if name == "extra" else (indices,)
        method = "get_extra_model_outputs" if name == "extra" else f"get_{name}"
        ours, theirs, error = self.both(lambda e: getattr(e, method)(*arguments, **options))
        if error is not None:
            return
        if name == "infos":
            assert ours == theirs
        else:
            assert_stream(ours, theirs, "fill" not in options)

    def excused_fill(self, indices: Any, name: str, options: dict[str, Any]) -> bool:
        """Whether RLlib's fill is wrong here: stepped slices, slices over both ends, empty ranges."""
        if not isinstance(indices, slice):
            return False
        stream = getattr(self.theirs, name)
        lookback, total = stream.lookback, len(stream.data)

        def position(bound: int | None, default: int) -> int:
            if bound is None:
                return default
            return lookback + bound if bound >= 0 or options["neg_index_as_lookback"] else total + bound

        start, stop = position(indices.start, lookback), position(indices.stop, total)
        return (indices.step or 1) != 1 or start >= stop or (start < 0 and stop > total)

    def set(self) -> None:
        name = self.pick(["observations", "actions", "rewards", "extra"])
        stream = self.theirs.extra_model_outputs.get("x") if name == "extra" else getattr(self.theirs, name)
        total = len(stream.data) if stream is not None else 0
        indices = self.index()
        if not total or isinstance(indices, list):
            return
        neg = bool(self.rng.random() < 0.4)
        makes: dict[str, Make] = {"observations": self.obs, "actions": self.act, "rewards": lambda i: i / 8}
        make = makes.get(name, lambda i: np.array([i, 1.5], np.float32))
        self.clock += 20
        if isinstance(indices, int):
            new = make(self.clock)
        else:
            rows, error = caught(lambda: stream.get(indices, neg_index_as_lookback=neg))
            count = (0 if error else len(rows)) + int(self.rng.random() < 0.2)
            if not count or not len(rows):
                return
            new = [make(self.clock + i) for i in range(count)]
        key = {"key": "x"} if name == "extra" else {}
        method = "set_extra_model_outputs" if name == "extra" else f"set_{name}"
        self.both(
            lambda e: getattr(e, method)(
                new_data=list(new) if isinstance(new, list) else new,
                at_indices=indices,
                neg_index_as_lookback=neg,
                **key,
            )
        )

    def cut(self) -> None:
        k = self.pick([0, 1, 2, 9])
        self.ours.custom_data["k"] = self.theirs.custom_data["k"] = [k]
        ours, theirs, error = self.both(lambda e: e.cut(len_lookback_buffer=k))
        if error is not None:
            return
        first = (self.ours, self.theirs)
        self.ours, self.theirs = ours, theirs
        assert ours.custom_data == theirs.custom_data
        self.check()
        if self.rng.random() < 0.5 and len(first[1].rewards.data):
            for _ in range(int(self.rng.integers(0, 4))):
                self.step()
            self.check()
            ours, theirs = self.ours, self.theirs
            self.ours, self.theirs = first
            self.both(lambda e: e.concat_episode(ours if e is self.ours else theirs))

    def concat_refused(self) -> None:
        other = int(self.rng.integers(0, 3))
        options = {"id_": "e" if other else "other", "t_started": self.theirs.t + (5 if other == 1 else 0)}
        newest = leaves(self.theirs.observations.data[-1])
        first = next(i for i in (91, 92) if not np.array_equal(leaves(self.obs(i))[0], newest[0]))
        columns = {"observations": [self.obs(first), self.obs(93)], "actions": [self.act(1)], "rewards": [1.0]}
        spaces = {"observation_space": self.obs_space, "action_space": self.act_space}
        chunks = {kind: kind(**columns, **options, **spaces, len_lookback_buffer=0) for kind in (Ours, Theirs)}
        _, _, error = self.both(lambda e: e.concat_episode(chunks[type(e)]))
        assert error is AssertionError

    def slice(self) -> None:
        n = len(self.theirs)
        start, stop = sorted(int(i) for i in self.rng.integers(0, n + 1, 2))
        key = self.pick([slice(start, stop), slice(start, None), slice(None, stop), slice(start - n or None, stop)])
        lookback = self.pick([None, 0, 1, 9])
        ours, theirs, error = self.both(lambda e: e.slice(key, len_lookback_buffer=lookback))
        assert error is None
        old = (self.ours, self.theirs)
        self.ours, self.theirs = ours, theirs
        self.check()
        if self.rng.random() < 0.7:
            self.ours, self.theirs = old

    def state(self) -> None:
        self.ours = Ours.from_state(self.ours.get_state())
        theirs, error = caught(lambda: Theirs.from_state(self.theirs.get_state()))
        if error is None:  # RLlib cannot restore the model outputs of slices and cuts
            self.theirs = theirs

    def rewrite_newest(self) -> None:
        self.clock += 1
        self.both(lambda e: e.set_observations(new_data=self.obs(self.clock), at_indices=-1))


OPERATIONS = [
    *("step", "step", "step", "step", "get", "get", "get", "get", "get", "set", "set"),
    *("cut", "slice", "state", "rewrite_newest", "reset_again", "concat_refused"),
]


@pytest.mark.parametrize("case", range(CASES))
def test_random_operations(case: int) -> None:
    twins = Twins(case)
    twins.check()
    for _ in range(25):
        operation = twins.pick(OPERATIONS)
        getattr(twins, operation)()
        twins.check()
    if len(twins.theirs.rewards.data):
        twins.theirs.to_numpy()
        assert twins.ours.to_numpy() is twins.ours
        twins.check()


REMOVED = {
    "add_temporary_timestep_data",  # raises in RLlib as well
    "get_temporary_timestep_data",
    "get_sample_batch",  # old API stack
}


def test_every_public_name_is_there() -> None:
    theirs = {name for name in dir(Theirs()) if not name.startswith("_")}
    assert theirs - REMOVED <= set(dir(Ours()))


@pytest.mark.parametrize(
    "name",
    sorted({n for n, _ in inspect.getmembers(Theirs, inspect.isfunction) if n[0] != "_"} - REMOVED | {"__init__"}),
)
def test_every_argument_is_there(name: str) -> None:
    expected = inspect.signature(getattr(Theirs, name)).parameters
    found = inspect.signature(getattr(Ours, name)).parameters
    assert [p for p in expected if p not in found] == []
