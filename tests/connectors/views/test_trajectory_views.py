"""Views of trajectories beside a loop over whole episodes, on both sides and wherever they are cut."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, LearnerConnectorPipeline
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import LookbackError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from fixture_pieces import UserPiece, played
from oracle.agents import Schedule, schedules
from oracle.cases import random_cases
from oracle.teams import MODULES, module_of

OBS, ACT = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(9)
BOX = gym.spaces.Box(-9, 9, (3,), np.float64)


class Whole:
    """An episode in lists, to be looked at step by step."""

    def __init__(self, length: int, end: str, rng: np.random.Generator) -> None:
        self.length, self.end = length, end
        self.columns: dict[str, list[Any]] = {
            "obs": list(rng.integers(-9, 9, (length + 1, 2)).astype(np.float32)),
            "actions": list(rng.integers(0, 9, length)),
            "rewards": [float(reward) for reward in rng.integers(1, 9, length)],
            "logits": list(rng.integers(1, 9, (length, 3)).astype(np.float64)),
            "infos": [{"speed": int(speed)} for speed in rng.integers(1, 9, length + 1)],
        }

    def upto(self, stop: int) -> SingleAgentEpisode:
        """The episode after `stop` steps."""
        columns = self.columns
        return SingleAgentEpisode(
            id_="e",
            observations=columns["obs"][: stop + 1],
            actions=columns["actions"][:stop],
            rewards=columns["rewards"][:stop],
            infos=columns["infos"][: stop + 1],
            extra_model_outputs={"logits": columns["logits"][:stop]} if stop else {},
            terminated=stop == self.length and self.end == "terminated",
            truncated=stop == self.length and self.end == "truncated",
            observation_space=OBS,
            action_space=ACT,
            len_lookback_buffer=0,
        )

    def chunk(self, start: int, stop: int, lookback: int) -> SingleAgentEpisode:
        """Steps `start` to `stop`, with `lookback` before them."""
        return self.upto(stop).slice(slice(start, stop), len_lookback_buffer=min(lookback, start))

    def at(self, view: View, t: int, stop: int) -> Any:
        """What a view shows at step t of a chunk that stops at `stop`."""
        values = [self._value(view, t + shift, stop) for shift in view.shifts]
        return values[0] if view.is_single else np.array(values)

    def _value(self, view: View, at: int, stop: int) -> Any:
        column, _, path = str(view.column).partition("/")
        fill = 0 if view.fill is None else view.fill
        last = stop if column in ("obs", "infos", "t") else stop - 1
        if not 0 <= at <= last:
            typed = {"t": np.int64, "terminateds": np.bool_, "truncateds": np.bool_, "infos": np.float64}
            return typed[column](fill) if column in typed else np.full_like(self.columns[column][0], fill)
        if column in ("t", "terminateds", "truncateds"):
            return at if column == "t" else at == self.length - 1 and self.end == column[:-1]
        value = self.columns[column][at]
        return float(value[path]) if column == "infos" else value[int(path)] if path else value

    def real(self, view: View, t: int, stop: int) -> Any:
        """Which of the values are the episode's own."""
        last = stop if view.base in ("obs", "infos", "t") else stop - 1
        found = [0 <= t + shift <= last for shift in view.shifts]
        return found[0] if view.is_single else np.array(found)


SHIFTS = st.one_of(
    st.integers(-4, 3),
    st.lists(st.integers(-4, 3), min_size=1, max_size=4),
    st.tuples(st.integers(-4, 3), st.integers(0, 4)).map(lambda pair: f"{pair[0]}:{sum(pair)}"),
)
VIEWS = st.builds(
    lambda column, shift, fill, mask: View(
        column, shift, fill=fill, mask=mask, space=BOX if column == "logits" else None
    ),
    st.sampled_from(["obs", "actions", "rewards", "logits", "t", "terminateds", "truncateds", "infos/speed"]),
    SHIFTS,
    st.sampled_from([None, None, 1]),
    st.booleans(),
)
EPISODES = st.tuples(st.integers(1, 8), st.sets(st.integers(1, 7)), st.sampled_from(["terminated", "truncated", ""]))


def spans(length: int, cuts: set[int]) -> list[tuple[int, int]]:
    """From where to where the chunks of an episode go."""
    ends = [0, *sorted(cut for cut in cuts if cut < length), length]
    return list(pairwise(ends))


def rows_of(items: Any) -> Any:
    """The rows of a key of a column."""
    return items[0] if len(items) == 1 and isinstance(items[0], np.ndarray) else items


def train(pieces: list[Any], episodes: Any) -> dict[str, Any]:
    """Columns by key, as a plain piece behind the last one sees them."""
    return LearnerConnectorPipeline(OBS, ACT, connectors=[*pieces, UserPiece()])(episodes=episodes)


@pytest.mark.parametrize("order", ["alone", "plain", "bootstrap", "plain bootstrap"])
@random_cases(view=VIEWS, drawn=EPISODES, seed=st.integers(0, 99))
def test_train_rows_are_those_of_the_loop(view: View, drawn: Any, seed: int, order: str) -> None:
    length, cuts, end = drawn
    whole = Whole(length, end, np.random.default_rng(seed))
    chunks = [whole.chunk(start, stop, view.lookback) for start, stop in spans(length, cuts)]
    piece = TrajectoryViews(views={"seen": view}, as_learner_connector=True)
    front = [AddOneTsToEpisodesAndTruncate()] if "bootstrap" in order else []
    found = train([*front, *([UserPiece()] if "plain" in order else []), piece], chunks)
    for (start, stop), key in zip(spans(length, cuts), found["seen"], strict=True):
        steps = range(start, stop + len(front))
        expected = [whole.at(view, t, stop) for t in steps]
        np.testing.assert_array_equal(found["seen"][key][0], np.array(expected), strict=True)
        if view.masked:
            np.testing.assert_array_equal(found["seen_mask"][key][0], [whole.real(view, t, stop) for t in steps])


@random_cases(view=VIEWS, drawn=EPISODES, seed=st.integers(0, 99))
def test_what_is_acted_on_is_what_is_trained_on(view: View, drawn: Any, seed: int) -> None:
    if not view.act:
        return
    length, cuts, end = drawn
    whole = Whole(length, end, np.random.default_rng(seed))
    training = TrajectoryViews(views={"seen": view}, as_learner_connector=True)
    acting = EnvToModulePipeline(OBS, ACT, connectors=[TrajectoryViews(views={"seen": view}), UserPiece()])
    for start, stop in spans(length, cuts):
        trained = train([training], [whole.chunk(start, stop, view.lookback)])["seen"][("e",)][0]
        for t in range(start, stop):
            acted = acting(episodes=[whole.chunk(start, t, view.lookback)])
            np.testing.assert_array_equal(acted["seen"][("e",)][0], trained[t - start])
            if view.masked:
                assert np.array_equal(acted["seen_mask"][("e",)][0], whole.real(view, t, t))


BLOCK_VIEWS = {
    "last": View("rewards", "-3:-1", mask=True),
    "before": View("actions", -1, mask=True),
    "logits": View("logits", [-1, -3], space=gym.spaces.Box(-9, 9, (3,), np.float32), fill=1),
    "frames": View("obs", "-2:0", fill=2, mask=True),
    "old": View("obs", -2),
    "t": View("t", [0, -1]),
    "next": View("obs", 1),
    "ahead": View("actions", "1:3", mask=True),
    "both": View("rewards", "-1:1"),
    "terminateds": View("terminateds"),
}


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("plus_one", [False, True])
def test_episodes_of_a_recorder_give_what_copies_give(mode: str, plus_one: bool) -> None:
    rng = np.random.default_rng(5)
    recorder = VectorRecorder(3, OBS, ACT, autoreset=mode)
    recorder.reset(rng.random((3, 2), "f4"))
    acting = EnvToModulePipeline(OBS, ACT, connectors=[TrajectoryViews(views=BLOCK_VIEWS), UserPiece()])
    learner = TrajectoryViews(views=BLOCK_VIEWS, as_learner_connector=True)
    front = [AddOneTsToEpisodesAndTruncate()] * plus_one
    for step in range(1, 25):
        same(acting(episodes=recorder.episodes), acting(episodes=copy.deepcopy(list(recorder.episodes))))
        ends, final = rng.random(3) < 0.3, rng.random((3, 2), "f4") if mode == "same_step" else None
        ends[recorder.waiting] = False
        columns = rng.integers(0, 9, 3), rng.random(3), ends, np.zeros(3, bool), rng.random((3, 2), "f4")
        recorder.step(*columns, extras={"logits": rng.random((3, 3), "f4")}, final_observations=final)
        recorder.commit()
        if step % 5 == 0:
            episodes = [one for one in recorder.flush(3) if len(one)]
            copies = copy.deepcopy(episodes)
            found = train([*front, learner], episodes)
            same(found, train([*front, learner], copies))
            same(found, train([*front, UserPiece(), learner], copies))


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare plain batches."""
    assert list(found) == list(expected)
    for name, column in expected.items():
        rows, wanted = ([rows_of(own) for own in one.values()] for one in (found[name], column))
        for mine, theirs in zip(rows, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


@random_cases(schedule=schedules(agents=4, length=8), cuts=st.sets(st.integers(1, 7)), view=VIEWS)
def test_each_agent_sees_its_own_steps(schedule: Schedule, cuts: set[int], view: View) -> None:
    """Behind the cut the rows are those of the whole episode, and the acting side agrees with them."""
    if view.base in ("logits", "infos", "terminateds", "truncateds") or max(view.shifts) > -(view.base != "obs"):
        return
    whole = MultiAgentEpisode(id_="e", agent_to_module_mapping_fn=module_of)
    whole.add_env_reset(**schedule.reset)
    spaces = [gym.spaces.Dict(dict.fromkeys("abcd", space)) for space in (OBS, ACT)]
    acting = EnvToModulePipeline(
        *spaces, connectors=[TrajectoryViews(views={"seen": view}, multi_agent=True), UserPiece()]
    )
    parts, seen = [whole], {}
    for t, step in enumerate([None, *schedule.steps]):
        if step is not None:
            if t in cuts:
                parts.append(parts[-1].cut(agent_steps=view.lookback))
            parts[-1].add_env_step(**step)
        batch = acting(episodes=[parts[-1]])
        seen.update({(key[1], t): rows_of(rows) for key, rows in batch.get("seen", {}).items()})
    parts = [part for part in parts if any(len(segment.episode) for segment in part.segments)]
    if not parts:
        return
    piece = TrajectoryViews(views={"seen": view}, as_learner_connector=True)
    pipeline = LearnerConnectorPipeline(connectors=[piece, UserPiece()])
    found = iter(pipeline(episodes=parts)["seen"].values())
    for part in parts:
        for segment in part.segments:
            if not len(segment.episode):
                continue
            rows, steps = next(found)[0], segment.env_steps[segment.episode.lookback :]
            for row, t in zip(rows, steps[:-1].tolist()):
                np.testing.assert_array_equal(row, np.array(seen[segment.agent_id, t]).reshape(row.shape))
    assert next(found, None) is None


def test_names_of_episode_agent_and_module() -> None:
    views = {"eps_id": View(), "agent": View("agent_id"), "module": View("module_id"), "where": View("t")}
    episode = MultiAgentEpisode(id_="e", agent_to_module_mapping_fn=module_of)
    episode.add_env_reset(observations={"a": [1.0]})
    episode.add_env_step({"a": [3.0]}, {"a": 5}, {"a": 0.5})
    episode.add_env_step({"a": [3.0]}, {"a": 5}, {"a": 0.5})
    for pieces in ([], [UserPiece()]):
        piece = TrajectoryViews(views=views, as_learner_connector=True)
        found = train([*pieces, piece], [episode])
        key = ("e", "a", MODULES["a"])
        assert found["eps_id"][key] == ["e", "e"] and found["agent"][key] == ["a", "a"]
        assert found["module"][key] == [MODULES["a"]] * 2 and found["where"][key][0].tolist() == [0, 1]


def test_whole_infos_under_their_own_name() -> None:
    whole = Whole(4, "", np.random.default_rng(0))
    infos = whole.columns["infos"]
    for shift, expected in ((-1, [infos[1], infos[2]]), (1, [infos[3], infos[4]]), (2, [infos[4], {}])):
        piece = TrajectoryViews(views={"infos": View("infos", shift)}, as_learner_connector=True)
        assert train([piece], [whole.chunk(2, 4, 1)])["infos"] == {("e",): expected}
    acting = EnvToModulePipeline(connectors=[TrajectoryViews(views={"infos": View("infos", -1)})])
    assert acting(episodes=[whole.chunk(2, 4, 1)])["infos"] == {("e",): [infos[3]]}


def test_infos_that_a_cut_has_lost_are_not_empty_ones() -> None:
    whole = Whole(6, "", np.random.default_rng(0))
    piece = TrajectoryViews(views={"infos": View("infos", -2)}, as_learner_connector=True)
    with pytest.raises(LookbackError, match=r"view 'infos', episode 'e'[^$]*lookback of 2 steps"):
        train([piece], [whole.chunk(3, 5, 1)])
    assert train([piece], [whole.chunk(1, 3, 1)])["infos"] == {("e",): [{}, whole.columns["infos"][0]]}


def test_a_leaf_of_nested_observations_and_frames_of_all_of_them() -> None:
    rows = [{"a": np.float32([i]), "b": (i, np.float32([i, -i]))} for i in range(4)]
    episode = played(rows, id_="e")
    views = {"leaf": View("obs/b/1", -1), "obs": View("obs", "-1:0")}
    found = train([TrajectoryViews(views=views, as_learner_connector=True)], [episode])
    assert found["leaf"][("e",)][0].tolist() == [[0, 0], [0, 0], [1, -1]]
    stacked = found["obs"][("e",)][0]
    assert stacked["a"].tolist() == [[[0], [0]], [[0], [1]], [[1], [2]]]
    assert stacked["b"][0].tolist() == [[0, 0], [0, 1], [1, 2]]


def test_each_module_has_its_own_views() -> None:
    episode = MultiAgentEpisode(id_="e", agent_to_module_mapping_fn=module_of)
    episode.add_env_reset(observations={"a": [1.0], "d": [2.0]})
    for t in range(3):
        episode.add_env_step({"a": [3.0], "d": [4.0]}, {"a": t, "d": 5 + t}, {"a": 0.5, "d": 1.5})
    per_module = {
        "scout": {"next_actions": View("actions", 1)},
        "thinker": {"next_actions": View("actions", 1, fill=-1)},
    }
    piece = TrajectoryViews(per_module=per_module, as_learner_connector=True)
    assert build_piece(piece_to_dict(piece)).per_module == piece.per_module
    found = train([piece], [episode])
    assert [rows[0].tolist() for rows in found["next_actions"].values()] == [[1, 2, -1], [6, 7, 0]]
