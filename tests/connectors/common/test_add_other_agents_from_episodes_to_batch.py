"""The other agents' observations and actions at the same env step, beside a loop over dicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from epibatch.connectors import ColumnarPiece
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddOtherAgentsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
)
from epibatch.connectors.env_to_module import AgentIndicator, EnvToModulePipeline, PadObservations
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, PipelineError, SpaceError, UnknownNameError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import UserPiece
from oracle.agents import Schedule, schedules, scripted
from oracle.cases import random_cases
from oracle.env_steps import EnvSteps, by_env_step
from oracle.teams import MODULES

AGENTS = ["a", "b", "c", "d"]
VECTOR = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


def module_of(agent_id: Any, *_: Any, **__: Any) -> str:
    return MODULES[agent_id]


def chunks(schedule: Schedule, cuts: set[int], name: str = "e", lookback: int = 0) -> list[MultiAgentEpisode]:
    """The episode, cut after each of some env steps."""
    episode = MultiAgentEpisode(
        id_=name, observation_space=dict.fromkeys(AGENTS, VECTOR), agent_to_module_mapping_fn=module_of
    )
    episode.add_env_reset(**schedule.reset)
    out = [episode]
    for t, step in enumerate(schedule.steps):
        if t in cuts:
            out.append(out[-1].cut(lookback))
        out[-1].add_env_step(**step)
    return out


def row(world: EnvSteps, agent: str, t: int, until: int | None = None) -> tuple[list[Any], list[bool]]:
    """The others' observations at an env step, or their actions there that were taken `until` then, and who has one."""
    found = world.seen[t]
    if until is not None:
        found = {other: action for other, action in world.done[t].items() if world.taken[t, other] <= until}
    others = [other for other in AGENTS if other != agent]
    empty = np.zeros(2, np.float32) if until is None else 0
    return [np.asarray(found.get(other, empty)).tolist() for other in others], [other in found for other in others]


def check(columns: Any, part: MultiAgentEpisode, world: EnvSteps, bootstraps: bool) -> None:
    """Compare columns of a chunk's agents with the loop."""
    until = part.env_t
    for (agent, steps), (obs, mask, acts, acted) in zip(lives(part), columns):
        rows = steps if bootstraps else steps[:-1]
        assert len(obs) == len(rows)
        for i, t in enumerate(rows):
            assert (obs[i].tolist(), mask[i].tolist()) == row(world, agent, t)
            if t < steps[-1]:
                assert (acts[i].tolist(), acted[i].tolist()) == row(world, agent, t, until)


def lives(episode: MultiAgentEpisode) -> list[tuple[str, list[int]]]:
    """Agents with steps, and env steps of their observations from the chunk's start on."""
    parts = [segment for segment in episode.segments if len(segment.episode)]
    return [(part.agent_id, part.env_steps[part.episode.lookback :].tolist()) for part in parts]


NAMES = ("other_obs", "other_obs_mask", "other_actions", "other_actions_mask")


@pytest.mark.parametrize("order", ["plain", "front", "behind", "no bootstrap"])
@random_cases(schedule=schedules(agents=4, length=8), cuts=st.sets(st.integers(1, 7)), lookback=st.integers(0, 2))
def test_rows_of_train_batches(schedule: Schedule, cuts: set[int], lookback: int, order: str) -> None:
    world = by_env_step(schedule)
    parts = [part for part in chunks(schedule, cuts, lookback=lookback) if lives(part)]
    if not parts:
        return
    others = AddOtherAgentsFromEpisodesToBatch(agent_ids=AGENTS, actions=True, as_learner_connector=True)
    longer = AddOneTsToEpisodesAndTruncate()
    pieces = {
        "plain": [longer, UserPiece(), others],
        "front": [others, UserPiece(), longer],
        "behind": [longer, others],
    }
    found = LearnerConnectorPipeline(connectors=pieces.get(order, [others]))(rl_module=None, episodes=parts)
    items = iter(zip(*[[own[0] for own in found[name].values()] for name in NAMES]))
    for part in parts:
        check([next(items) for _ in lives(part)], part, world, order != "no bootstrap")
    assert next(items, None) is None


@random_cases(schedule=schedules(agents=4, length=8), cuts=st.sets(st.integers(1, 7)))
def test_acting_and_training_see_the_same(schedule: Schedule, cuts: set[int]) -> None:
    """With a piece that rewrites observations in front, and the batch by module behind it."""
    acting = EnvToModulePipeline(
        gym.spaces.Dict(dict.fromkeys(AGENTS, VECTOR)),
        connectors=[
            AgentIndicator(),
            AddOtherAgentsFromEpisodesToBatch(),
            AddObservationsFromEpisodesToBatch(),
            AgentToModuleMapping(rl_module_specs=set(MODULES.values()), agent_to_module_mapping_fn=module_of),
            BatchIndividualItems(),
        ],
    )
    acted: dict[tuple[str, int], Any] = {}

    def act(episode: MultiAgentEpisode) -> None:
        shared: dict[str, Any] = {}
        batch = acting(rl_module=None, episodes=[episode], shared_data=shared)
        for module_id, rows in shared.get("memorized_map_structure", {}).items():
            for i, (_, agent) in enumerate(rows):
                own = {name: column[i] for name, column in batch[module_id].items()}
                assert own["obs"][2:].tolist() == [float(agent == other) for other in AGENTS]
                acted[agent, episode.env_t] = own

    episode = chunks(replace(schedule, steps=[]), set())[0]
    parts = [episode]
    act(episode)
    for t, step in enumerate(schedule.steps):
        if t in cuts:
            parts.append(parts[-1].cut())
        parts[-1].add_env_step(**step)
        act(parts[-1])
    parts = [part for part in parts if lives(part)]
    if not parts:
        return
    learner = LearnerConnectorPipeline(
        connectors=[
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            AddOtherAgentsFromEpisodesToBatch(agent_ids=AGENTS, as_learner_connector=True),
            AgentToModuleMapping(as_learner_connector=True),
            BatchIndividualItems(),
        ]
    )
    found = learner(rl_module=None, episodes=parts)
    at = dict.fromkeys(found, 0)
    for part in parts:
        for agent, steps in lives(part):
            columns = found[MODULES[agent]]
            for t in steps[:-1]:
                i = at[MODULES[agent]]
                at[MODULES[agent]] += 1
                for name in ("obs", "other_obs", "other_obs_mask"):
                    assert np.array_equal(columns[name][i], acted[agent, t][name]), (name, agent, t)
    assert at == {name: len(columns["obs"]) for name, columns in found.items()}


def test_an_agent_that_ended_at_the_cut_is_seen_behind_it() -> None:
    schedule = scripted({"a": "oar", "b": "oart"}, {"a": "oar"})
    first, second = chunks(schedule, {1})
    last = schedule.steps[0]["observations"]["b"]
    piece = AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b"], as_learner_connector=True)
    assert "b" not in second.agent_ids
    for chunk in (
        second,
        MultiAgentEpisode.from_state(second.get_state()),
        chunks(schedule, set())[0].slice(slice(1, 2)),
    ):
        found = piece(batch={}, episodes=[chunk])
        ((rows,),) = found["other_obs"].values()
        assert rows.tolist() == [[last.tolist()]]
    assert [segment.agent_id for segment in second.past_segments] == ["b"] and not first.past_segments
    second.add_env_step({"a": last}, {"a": 0}, {"a": 0.0}, extra_model_outputs=schedule.steps[1]["extra_model_outputs"])
    assert not second.cut().past_segments


def test_nested_observations_and_types() -> None:
    episode = MultiAgentEpisode(id_="e")
    rows = [{"v": np.full(3, i, np.uint8), "n": i} for i in range(4)]
    episode.add_env_reset(observations={"a": rows[0], "b": rows[1]})
    episode.add_env_step({"a": rows[2], "b": rows[3]}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    piece = AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b", "z"], as_learner_connector=True)
    ((seen,), _) = piece(batch={}, episodes=[episode])["other_obs"].values()
    assert seen["v"].dtype == np.uint8 and seen["v"].tolist() == [[[1, 1, 1], [0, 0, 0]]]
    assert seen["n"].tolist() == [[1, 0]]


def test_observations_of_different_shapes_are_refused_until_they_are_padded() -> None:
    spaces = gym.spaces.Dict(a=gym.spaces.Box(-9, 9, (1,)), b=gym.spaces.Box(-9, 9, (3,)))
    episode = MultiAgentEpisode(id_="e", observation_space=spaces)
    episode.add_env_reset(observations={"a": np.float32([1]), "b": np.float32([2, 3, 4])})
    piece = AddOtherAgentsFromEpisodesToBatch(spaces)
    with pytest.raises(ColumnError, match=r"shape \(3,\) in episode 'e', agent 'b'"):
        piece(batch={}, episodes=[episode])
    pipeline = EnvToModulePipeline(spaces, connectors=[PadObservations(multi_agent=True), piece])
    found = pipeline(episodes=[episode])["other_obs"]
    assert [items[0].tolist() for items in found.values()] == [[[2.0, 3.0, 4.0]], [[1.0, 0.0, 0.0]]]
    words = MultiAgentEpisode(id_="e")
    words.add_env_reset(observations={"a": "hello", "b": "you"})
    with pytest.raises(ColumnError, match="numbers, of one shape"):
        AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b"])(batch={}, episodes=[words])


def test_mistakes_are_named() -> None:
    (episode,) = chunks(scripted({"a": "oar", "b": "oar"}), set())
    with pytest.raises(UnknownNameError, match=r"the agents 'a', 'x'[\s\S]*'b'"):
        AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "x"])(batch={}, episodes=[episode])
    with pytest.raises(SpaceError, match="pass agent_ids"):
        AddOtherAgentsFromEpisodesToBatch()(batch={}, episodes=[episode])
    for wrong in ("ab", [], ["a", "a"]):
        with pytest.raises(ConfigError, match="agent_ids"):
            AddOtherAgentsFromEpisodesToBatch(agent_ids=wrong)
    with pytest.raises(ConfigError, match="actions"):
        EnvToModulePipeline(connectors=[AddOtherAgentsFromEpisodesToBatch(actions=True)])
    with pytest.raises(BatchLayoutError, match="multi-agent episodes"):
        AddOtherAgentsFromEpisodesToBatch(agent_ids=["a"])(batch={}, episodes=[SingleAgentEpisode(observations=[0])])
    nobody = MultiAgentEpisode()
    nobody.add_env_reset(observations={})
    assert AddOtherAgentsFromEpisodesToBatch(agent_ids=["a"])(batch={}, episodes=[nobody]) == {}


class ReadsOtherActions(ColumnarPiece):
    """Needs what the others did."""

    reads: ClassVar[tuple[str, ...]] = ("other_actions",)

    def run(self, batch: dict[str, Any], call: Any) -> dict[str, Any]:
        return batch


def test_columns_that_are_not_asked_for_cannot_be_read() -> None:
    """What a piece does not write is said when the pipeline is built."""
    acting = AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b"])
    learning = [
        AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b"], actions=own, as_learner_connector=True)
        for own in (False, True)
    ]
    assert acting.writes == learning[0].writes == NAMES[:2] and learning[1].writes == NAMES
    assert learning[1].clone().writes == NAMES and learning[0].clone().writes == NAMES[:2]
    for kind, piece in ((EnvToModulePipeline, acting), (LearnerConnectorPipeline, learning[0])):
        with pytest.raises(PipelineError, match="other_actions"):
            kind(connectors=[piece, ReadsOtherActions()])
    LearnerConnectorPipeline(connectors=[learning[1], ReadsOtherActions()])
