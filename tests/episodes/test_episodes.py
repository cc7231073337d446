"""Properties of episodes: random programs against a plain-list model, round trips, pickling, promotion."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.episodes.single_agent_episode import SingleAgentEpisode

FAST = settings(deadline=None, derandomize=True, max_examples=60)


def box_row(i: int) -> Any:
    return np.array([i, -i, 0.5], np.float32)


def nested_row(i: int) -> Any:
    return {"a": box_row(i), "b": (i % 50, {"c": np.full((2, 2), i % 256, np.uint8)})}


FLOATS = gym.spaces.Box(-1e6, 1e6, (3,), np.float32)
BYTES = gym.spaces.Box(0, 255, (2, 2), np.uint8)
KINDS: dict[str, tuple[gym.Space[Any], Callable[[int], Any]]] = {
    "box": (FLOATS, box_row),
    "discrete": (gym.spaces.Discrete(50), lambda i: i % 50),
    "dict": (
        gym.spaces.Dict({"a": FLOATS, "b": gym.spaces.Tuple((gym.spaces.Discrete(50), gym.spaces.Dict({"c": BYTES})))}),
        nested_row,
    ),
    "tuple": (gym.spaces.Tuple((gym.spaces.Discrete(50), FLOATS)), lambda i: (i % 50, box_row(i))),
}


def leaves(struct: Any) -> list[Any]:
    if isinstance(struct, dict):
        return [leaf for key in sorted(struct) for leaf in leaves(struct[key])]
    if isinstance(struct, tuple):
        return [leaf for value in struct for leaf in leaves(value)]
    return [struct]


def stack(rows: list[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {key: stack([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(stack([row[i] for row in rows]) for i in range(len(rows[0])))
    return np.stack([np.asarray(row) for row in rows])


def assert_column(found: Any, rows: list[Any]) -> None:
    """`found` is the stack of `rows`, leaf by leaf; of no rows only the length is known."""
    if not rows:
        assert all(len(leaf) == 0 for leaf in leaves(found))
        return
    for leaf, values in zip(leaves(found), zip(*(leaves(row) for row in rows)), strict=True):
        expected = np.stack([np.asarray(value) for value in values])
        assert leaf.dtype == expected.dtype
        np.testing.assert_array_equal(leaf, expected)


def assert_row(found: Any, row: Any) -> None:
    for item, value in zip(leaves(found), leaves(row), strict=True):
        np.testing.assert_array_equal(item, value)


# ---------------------------------------------------------------- the plain-list model
@dataclass
class PlainEpisode:
    """An episode as lists; every method is the slow, obvious way."""

    obs: list[Any]
    infos: list[Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    extra: list[Any] = field(default_factory=list)
    lookback: int = 0
    t_started: int = 0
    done: tuple[bool, bool] = (False, False)

    def __len__(self) -> int:
        return len(self.rewards) - self.lookback

    def step(self, i: int, row: Any, done: tuple[bool, bool]) -> None:
        self.obs.append(row)
        self.infos.append({"i": i})
        self.actions.append(i % 3)
        self.rewards.append(i / 4)
        self.extra.append(np.array([i, i + 1], np.float32))
        self.done = done

    def between(self, first: int, last: int, lookback: int, done: tuple[bool, bool]) -> PlainEpisode:
        """Main-part steps `first` to `last` with as much as there is of `lookback` earlier steps."""
        begin = self.lookback + first
        end = self.lookback + last
        kept = min(lookback, begin)
        low = begin - kept
        return PlainEpisode(
            self.obs[low : end + 1],
            self.infos[low : end + 1],
            self.actions[low:end],
            self.rewards[low:end],
            self.extra[low:end],
            kept,
            self.t_started + first,
            done,
        )


def assert_same(episode: SingleAgentEpisode, model: PlainEpisode) -> None:
    assert_column(episode.observations.data, model.obs)
    assert_column(episode.get_observations(), model.obs[model.lookback :])
    assert_column(episode.get_actions(), model.actions[model.lookback :])
    assert_column(episode.get_rewards(), model.rewards[model.lookback :])
    assert_column(episode.actions.data, model.actions)
    assert_column(episode.rewards.data, model.rewards)
    if model.extra:
        assert_column(episode.extra_model_outputs["x"].data, model.extra)
    assert list(episode.infos.data) == model.infos
    assert episode.observations.lookback == episode.rewards.lookback == model.lookback
    assert (len(episode), episode.t_started, episode.t) == (len(model), model.t_started, model.t_started + len(model))
    assert (episode.is_terminated, episode.is_truncated) == model.done
    assert episode.get_return() == sum(model.rewards[model.lookback :])
    episode.validate()


class Pair:
    """One episode and its model, driven together by random operations."""

    def __init__(self, data: st.DataObject, kind: str) -> None:
        self.draw = data.draw
        self.space, self.row = KINDS[kind]
        self.clock = 0
        n = self.draw(st.integers(0, 5))
        model = PlainEpisode([self.row(0)], [{"i": 0}])
        for _ in range(n):
            model.step(self.tick(), self.row(self.clock), (False, False))
        space = self.draw(st.sampled_from([self.space, None]))
        actions = gym.spaces.Discrete(3)
        if n == 0:
            episode = SingleAgentEpisode(id_="e", observation_space=space, action_space=actions)
            episode.add_env_reset(model.obs[0], model.infos[0])
        else:
            model.lookback = self.draw(st.integers(0, n))
            episode = SingleAgentEpisode(
                id_="e", observations=list(model.obs), infos=list(model.infos), actions=list(model.actions),
                rewards=list(model.rewards), extra_model_outputs={"x": list(model.extra)}, t_started=0,
                len_lookback_buffer=model.lookback, observation_space=space, action_space=actions,
            )  # fmt: skip
        self.episode, self.model = episode, model

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def step(self, done: tuple[bool, bool] = (False, False)) -> None:
        if any(self.model.done):
            return
        i = self.tick()
        row = self.row(i)
        self.model.step(i, row, done)
        last = {"terminated": done[0], "truncated": done[1], "extra_model_outputs": {"x": np.float32([i, i + 1])}}
        self.episode.add_env_step(copy.deepcopy(row), i % 3, i / 4, {"i": i}, **last)

    def finish(self) -> None:
        self.step(self.draw(st.sampled_from([(True, False), (False, True), (True, True)])))

    def cut(self) -> None:
        if any(self.model.done):
            return
        k = self.draw(st.integers(0, 6))
        before, frozen = self.episode, copy.deepcopy(self.model)
        self.episode = before.cut(len_lookback_buffer=k)
        n = len(self.model)
        self.model = self.model.between(n, n, k, (False, False))
        if self.draw(st.booleans()):  # go on, and put the two chunks together again
            for _ in range(self.draw(st.integers(1, 3))):
                self.step()
            assert_same(self.episode, self.model)
            added = len(self.model)
            for name in ("actions", "rewards", "extra"):
                getattr(frozen, name).extend(getattr(self.model, name)[-added:])
            frozen.obs.extend(self.model.obs[-added:])
            frozen.infos.extend(self.model.infos[-added:])
            before.concat_episode(self.episode)
            self.episode, self.model = before, frozen
        else:
            assert_same(before, frozen)

    def slice(self) -> None:
        n = len(self.model)
        first = self.draw(st.integers(0, n))
        last = self.draw(st.integers(first, n))
        lookback = self.draw(st.sampled_from([None, 0, 1, 4]))
        negative = n and self.draw(st.booleans()) and first < n
        key = slice(first - n if negative else first, last)
        part = self.episode.slice(key, len_lookback_buffer=lookback)
        kept = self.model.lookback if lookback is None else lookback
        done = self.model.done if last == n else (False, False)
        expected = self.model.between(first, last, kept, done)
        assert_same(part, expected)
        if self.draw(st.booleans()):
            self.episode, self.model = part, expected

    def write(self) -> None:
        total = len(self.model.rewards)
        if not total:
            return
        position = self.draw(st.integers(0, total - 1))
        i = self.tick()
        column = self.draw(st.sampled_from(["obs", "actions", "rewards", "extra"]))
        index = position - self.model.lookback
        as_lookback = index < 0 and self.draw(st.booleans())
        if index < 0 and not as_lookback:
            index = position - (total + 1 if column == "obs" else total)
        place = {"at_indices": index, "neg_index_as_lookback": as_lookback}
        if column == "obs":
            self.model.obs[position] = self.row(i)
            self.episode.set_observations(new_data=self.row(i), **place)
        elif column == "actions":
            self.model.actions[position] = i % 3
            self.episode.set_actions(new_data=i % 3, **place)
        elif column == "rewards":
            self.model.rewards[position] = i / 8
            self.episode.set_rewards(new_data=i / 8, **place)
        else:
            self.model.extra[position] = np.float32([i, 0.5])
            self.episode.set_extra_model_outputs(key="x", new_data=np.float32([i, 0.5]), **place)

    def rewrite_newest(self) -> None:
        row = self.row(self.tick())
        self.model.obs[-1] = row
        self.episode.set_observations(new_data=copy.deepcopy(row), at_indices=-1)

    def write_through(self) -> None:
        if len(self.model):
            rewards = self.episode.get_rewards()
            rewards += 5
            self.model.rewards[self.model.lookback :] = [r + 5 for r in self.model.rewards[self.model.lookback :]]

    def copy(self) -> None:
        how = self.draw(st.sampled_from(["state", "pickle", "deepcopy"]))
        if how == "state":
            self.episode = SingleAgentEpisode.from_state(self.episode.get_state())
        elif how == "pickle":
            self.episode = pickle.loads(pickle.dumps(self.episode, protocol=5))
        elif how == "deepcopy":
            self.episode = copy.deepcopy(self.episode)

    def read(self) -> None:
        episode, rows, lookback = self.episode, self.model.obs, self.model.lookback
        total, main = len(rows), len(rows) - lookback
        index = self.draw(st.integers(-total, main - 1))
        position = index + lookback if index >= 0 else index
        assert_row(episode.get_observations(index), rows[position])
        assert_row(episode.get_observations([index, -1]), stack([rows[position], rows[-1]]))
        assert episode.get_infos(index) == self.model.infos[position]
        bounds = st.one_of(st.none(), st.integers(0, main + 2))
        window = slice(self.draw(bounds), self.draw(bounds), self.draw(st.sampled_from([None, 1, 2, -1, -2])))
        assert_column(episode.get_observations(window), rows[lookback:][window])
        assert episode.get_infos(window) == self.model.infos[lookback:][window]
        filled = episode.get_observations(slice(-total - 2, main + 1), fill=0)
        for leaf, expected in zip(leaves(filled), leaves(stack(rows)), strict=True):
            np.testing.assert_array_equal(leaf[2:-1], expected)
            assert len(leaf) == total + 3 and not leaf[:2].any() and not leaf[-1].any()
            assert leaf.dtype == expected.dtype


OPERATIONS = [
    *("step", "step", "step", "cut", "slice", "write", "write"),
    *("rewrite_newest", "write_through", "copy", "read", "read", "finish"),
]


@pytest.mark.parametrize("kind", KINDS)
@FAST
@given(data=st.data(), program=st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=14))
def test_random_programs_match_the_plain_list_model(kind: str, data: st.DataObject, program: list[str]) -> None:
    pair = Pair(data, kind)
    assert_same(pair.episode, pair.model)
    for operation in program:
        getattr(pair, operation)()
        if data.draw(st.booleans()):
            assert_same(pair.episode, pair.model)
    assert_same(pair.episode, pair.model)


# ---------------------------------------------------------------- round trips
def long_episode(n: int, kind: str = "box", **options: Any) -> SingleAgentEpisode:
    space, row = KINDS[kind]
    episode = SingleAgentEpisode(observation_space=space, **options)
    episode.add_env_reset(row(0))
    for i in range(1, n + 1):
        episode.add_env_step(row(i), i % 3, i / 4, {"i": i}, terminated=False, truncated=False)
    return episode


def assert_equal(one: SingleAgentEpisode, two: SingleAgentEpisode) -> None:
    for name in ("observations", "actions", "rewards"):
        a, b = leaves(getattr(one, name).data), leaves(getattr(two, name).data)
        for x, y in zip(a, b, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        assert getattr(one, name).lookback == getattr(two, name).lookback
    assert one.infos.data == two.infos.data
    for name in ("id_", "agent_id", "t", "t_started", "is_terminated", "is_truncated", "custom_data"):
        assert getattr(one, name) == getattr(two, name)


@pytest.mark.parametrize("kind", KINDS)
@FAST
@given(n=st.integers(1, 40), data=st.data())
def test_consecutive_chunks_concatenate_to_the_whole(kind: str, n: int, data: st.DataObject) -> None:
    whole = long_episode(n, kind)
    bounds = sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=4))})
    lookbacks = st.integers(0, 3)
    chunks = [whole.slice(slice(*ends), len_lookback_buffer=data.draw(lookbacks)) for ends in pairwise(bounds)]
    first = chunks[0]
    for chunk in chunks[1:]:
        first.concat_episode(chunk)
    assert_equal(first, whole)


@FAST
@given(n=st.integers(0, 40), kind=st.sampled_from(sorted(KINDS)))
def test_state_and_pickle_round_trips(n: int, kind: str) -> None:
    episode = long_episode(n, kind, agent_id="a")
    episode.custom_data["k"] = [n]
    for twin in (SingleAgentEpisode.from_state(episode.get_state()), pickle.loads(pickle.dumps(episode))):
        assert_equal(episode, twin)
        assert twin.observation_space == episode.observation_space
        twin.add_env_step(KINDS[kind][1](99), 0, 9.0, terminated=False, truncated=True)
        assert len(twin) == n + 1 and len(episode) == n and twin.is_truncated


# ---------------------------------------------------------------- promotion
VALUES = st.one_of(
    st.integers(-1000, 1000),
    st.integers(-4000, 4000).map(lambda i: i / 4),
    st.booleans(),
    st.integers(-100, 100).map(np.int8),
    st.integers(-30000, 30000).map(np.int16),
    st.integers(-4000, 4000).map(lambda i: np.float32(i / 4)),
    st.integers(-400, 400).map(lambda i: np.float16(i / 4)),
)


@FAST
@given(
    values=st.lists(VALUES, min_size=1, max_size=8),
    writes=st.lists(st.tuples(st.integers(0, 7), VALUES), max_size=4),
)
def test_no_value_is_ever_cast_down(values: list[Any], writes: list[tuple[int, Any]]) -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    for value in values:
        episode.add_env_step(0, 0, value, terminated=False, truncated=False)
    expected = [float(value) for value in values]
    written = [*values, *(value for index, value in writes if index < len(values))]
    for index, value in writes:
        if index < len(values):
            episode.set_rewards(new_data=value, at_indices=index)
            expected[index] = float(value)
    found = episode.get_rewards()
    np.testing.assert_array_equal(found.astype(np.float64), expected)
    whole_numbers = all(np.asarray(value).dtype.kind in "ib" for value in written)
    assert found.dtype.kind in ("ib" if whole_numbers else "f")


@FAST
@given(n=st.integers(1, 20), lookback=st.integers(0, 20))
def test_one_clean_column_of_what_a_piece_writes_back(n: int, lookback: int) -> None:
    """Observations flattened as they come leave one column of the new shape, through cuts as well."""
    episode = SingleAgentEpisode()
    episode.add_env_reset(nested_row(0))
    chunks = []
    for i in range(n + 1):
        assert_row(episode.get_observations(-1), nested_row(i))
        flat = np.full(5, i, np.float32)
        episode.set_observations(new_data=flat, at_indices=-1)
        if i == n:
            break
        if i == n // 2:
            chunks.append(episode)
            episode = episode.cut(len_lookback_buffer=lookback)
        episode.add_env_step(nested_row(i + 1), 0, 1.0, terminated=False, truncated=False)
    first = chunks[0]
    first.concat_episode(episode)
    found = first.get_observations()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[i] * 5 for i in range(n + 1)])
