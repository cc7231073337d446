"""Other agents' columns at the same env steps, beside a loop over dicts and over uncut episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, LearnerConnectorPipeline
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import BatchLayoutError, EpibatchError, LookbackError, SpaceError, UnknownNameError
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import UserPiece, played
from oracle.agents import _MOVES, Schedule, schedules, scripted
from oracle.cases import random_cases
from oracle.env_steps import by_env_step
from oracle.teams import module_of

AGENTS = ["a", "b", "c", "d"]
SPACES = [
    gym.spaces.Dict(dict.fromkeys(AGENTS, space))
    for space in (gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), gym.spaces.Discrete(4))
]
AT_ONCE = {state: [move for move in own if state != "ready" or "a" in move] for state, own in _MOVES.items()}
"""Agents act on what they see at once, as a runner lets them."""


class World:
    """A schedule's episode, looked at env step by env step."""

    def __init__(self, schedule: Schedule) -> None:
        steps = by_env_step(schedule)
        self.values: dict[str, list[dict[str, Any]]] = {"obs": steps.seen, "actions": steps.done, "rewards": []}
        self.known: dict[tuple[int, str], int] = {}
        whole = schedule.play(MultiAgentEpisode, agent_to_module_mapping_fn=module_of)
        self.values["rewards"] = [{} for _ in steps.seen]
        for segment in (*whole.past_segments, *whole.segments):
            rewards = segment.episode.get_rewards()
            for reward, t, end in zip(rewards, segment.steps, segment.steps[1:]):
                self.values["rewards"][t][segment.agent_id] = reward
                self.known[t, segment.agent_id] = end
        self.taken = steps.taken

    def at(self, view: View, agent: str, t: int, until: int) -> tuple[Any, Any]:
        """The values of a view at an agent's env step t, in a chunk that stops at env step `until`; and the mask."""
        others = [view.agent] if view.agent != "*" else [other for other in AGENTS if other != agent]
        found = [[self._one(view, other, t, shift, until) for shift in view.shifts] for other in others]
        values = np.array([[value for value, _ in own] for own in found])
        mask = np.array([[real for _, real in own] for own in found])
        if view.is_single:
            values, mask = values[:, 0], mask[:, 0]
        return (values, mask) if view.agent == "*" else (values[0], mask[0])

    def _one(self, view: View, other: str, t: int, shift: int, until: int) -> tuple[Any, bool]:
        fill = 0 if view.fill is None else view.fill
        blank = np.full(2, fill, np.float32) if view.base == "obs" else fill
        column = self.values[view.base]
        if not 0 <= t + shift <= min(until, len(column) - 1) or other not in column[t + shift]:
            return blank, False
        known, taken = (own.get((t + shift, other), 0) for own in (self.known, self.taken))
        late = {"rewards": known > (t if shift < 0 else until), "actions": taken > until, "obs": False}
        return (blank, False) if late[view.base] else (column[t + shift][other], True)


VIEWS = st.builds(
    lambda column, shift, fill, agent: View(column, shift, fill=fill, agent=agent),
    st.sampled_from(["obs", "actions", "rewards"]),
    st.one_of(st.integers(-3, 2), st.lists(st.integers(-3, 2), min_size=1, max_size=3), st.just("-2:-1")),
    st.sampled_from([None, 5]),
    st.sampled_from(["*", "a", "c"]),
)


@random_cases(schedule=schedules(agents=4, length=8, moves=AT_ONCE), cuts=st.sets(st.integers(1, 7)), view=VIEWS)
def test_rows_are_those_of_the_loop_on_both_sides(schedule: Schedule, cuts: set[int], view: View) -> None:
    world, plain = World(schedule), len(cuts) % 2 == 0
    first = MultiAgentEpisode(id_="e", observation_space=dict(SPACES[0].spaces), agent_to_module_mapping_fn=module_of)
    first.add_env_reset(**schedule.reset)
    parts, side = [first], {"views": {"seen": view}, "multi_agent": True}
    acting = None
    if view.act:
        pieces = [*[UserPiece()] * plain, TrajectoryViews(**side), UserPiece()]
        acting = EnvToModulePipeline(*SPACES, connectors=pieces)
    for t, step in enumerate([None, *schedule.steps]):
        if step is not None:
            if t - 1 in cuts and t > 1:
                parts.append(parts[-1].cut(agent_steps=view.lookback))
            parts[-1].add_env_step(**step)
        if acting is not None:
            batch = acting(episodes=[parts[-1]])
            for key, rows in batch.get("seen", {}).items():
                values, mask = world.at(view, key[1], t, t)
                np.testing.assert_array_equal(rows[0], values)
                np.testing.assert_array_equal(batch["seen_mask"][key][0], mask)
    parts = [part for part in parts if any(len(segment.episode) for segment in part.segments)]
    if not parts or not view.train:
        return
    pieces = [AddOneTsToEpisodesAndTruncate(), UserPiece()] if plain else []
    views = TrajectoryViews(**side, as_learner_connector=True)
    found = LearnerConnectorPipeline(*SPACES, connectors=[*pieces, views, UserPiece()])(episodes=parts)
    columns = zip(found["seen"].values(), found["seen_mask"].values(), strict=True)
    for part in parts:
        for segment in [one for one in part.segments if len(one.episode)]:
            (values,), (mask,) = next(columns)
            steps = segment.env_steps[segment.episode.lookback :].tolist()
            for i, t in enumerate(steps if pieces else steps[:-1]):
                if pieces and i == len(steps) - 1 and max(view.shifts) >= 0 and view.base != "obs":
                    continue  # the bootstrap row has no future
                expected, real = world.at(view, segment.agent_id, t, part.env_t)
                np.testing.assert_array_equal(values[i], expected)
                np.testing.assert_array_equal(mask[i], real)
    assert next(columns, None) is None


def episode() -> MultiAgentEpisode:
    """Agents a and b that act in turns; b's message is a model output."""
    out = MultiAgentEpisode(id_="e", agent_to_module_mapping_fn=module_of)
    out.add_env_reset(observations={"a": [0.0], "b": [10.0]})
    for t in range(1, 5):
        acts = {"a": t, "b": 10 + t}
        out.add_env_step(
            {"a": [float(t)], "b": [10.0 + t]},
            acts,
            {"a": 0.5, "b": 1.0},
            extra_model_outputs={agent: {"message": np.full(2, act, np.float32)} for agent, act in acts.items()},
        )
    return out


def test_messages_of_the_step_before() -> None:
    space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    views = {"heard": View("message", -1, agent="*", space=space), "b_acts": View("actions", 0, agent="b")}
    piece = TrajectoryViews(views=views, agent_ids=["a", "b"], as_learner_connector=True)
    found = piece(batch={}, episodes=[episode()])
    key = ("e", "a", module_of("a"))
    assert found["heard"][key][0].tolist() == [[[0, 0]], [[11, 11]], [[12, 12]], [[13, 13]]]
    assert found["heard_mask"][key][0].tolist() == [[False], [True], [True], [True]]
    assert found["b_acts"][key][0].tolist() == [11, 12, 13, 14]
    acting = TrajectoryViews(views=views, agent_ids=["a", "b"])
    assert acting(batch={}, episodes=[episode()])["heard"][key][0].tolist() == [[14, 14]]
    fresh = MultiAgentEpisode(id_="e", agent_to_module_mapping_fn=module_of)
    fresh.add_env_reset(observations={"a": [0.0], "b": [10.0]})
    assert acting(batch={}, episodes=[fresh])["heard"][key][0].tolist() == [[0, 0]]


def test_a_chunk_that_lost_env_steps() -> None:
    views = {"seen": View("obs", "-3:-1", agent="b")}
    piece = TrajectoryViews(views=views, agent_ids=["a", "b"])
    chunk = episode().cut(1)
    with pytest.raises(LookbackError, match=r"'e', a row at env step 4[\s\S]*agent_steps=3"):
        piece(batch={}, episodes=[chunk])
    assert piece(batch={}, episodes=[episode().cut(3)])["seen"]["e", "a", module_of("a")][0].tolist() == [
        [11],
        [12],
        [13],
    ]


@pytest.mark.parametrize(
    ("arguments", "episodes", "error", "text"),
    [
        ({"agent_ids": ["a", "b"]}, lambda: [episode()], UnknownNameError, "'c'"),
        ({}, lambda: [episode()], SpaceError, "agent_ids"),
        ({"agent_ids": ["a", "c"]}, lambda: [played([0, 1])], BatchLayoutError, "leave this piece out"),
        ({"agent_ids": ["a", "a"]}, lambda: [], EpibatchError, "each once"),
    ],
)
def test_mistakes(arguments: Any, episodes: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        TrajectoryViews(views={"seen": View("obs", agent="c")}, **arguments)(batch={}, episodes=episodes())


def test_an_agent_that_is_slow_and_one_that_was_born_late_keep_what_they_look_back_at() -> None:
    """What a runner's cut keeps is enough: as many env steps before the newest observation of each agent."""
    moves = [*[{"a": "oar"}] * 3, {"a": "oar", "c": "o"}, {"a": "oar", "c": "a"}, {"a": "oar"}, {"a": "oar", "c": "or"}]
    schedule = scripted(*moves, reset="a")
    chunk = schedule.play(MultiAgentEpisode, until=6, agent_to_module_mapping_fn=module_of).cut(2, agent_steps=2)
    chunk.add_env_step(**schedule.steps[-1])
    view = View("obs", "-2:0", agent="a")
    piece = TrajectoryViews(views={"seen": view}, agent_ids=["a", "c"], as_learner_connector=True)
    (rows,) = piece(batch={}, episodes=[chunk])["seen"]["game", "c", module_of("c")]
    assert rows.tolist() == [World(schedule).at(view, "c", 4, 7)[0].tolist()]


def test_an_agent_born_after_a_cut_at_which_there_was_none() -> None:
    schedule = scripted({}, {}, {}, {"b": "o"}, reset="")
    chunk = schedule.play(MultiAgentEpisode, until=3, agent_to_module_mapping_fn=module_of).cut(agent_steps=2)
    assert (chunk.env_t, chunk.lookback) == (3, 2)
    chunk.add_env_step(**schedule.steps[-1])
    piece = TrajectoryViews(views={"seen": View("obs", -2, agent="b")}, agent_ids=["a", "b"])
    assert piece(batch={}, episodes=[chunk])["seen_mask"]["game", "b", module_of("b")] == [False]
