"""Rows of all agents of an env step, and the other agents' beside one's own: against loops over dicts."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from epibatch.connectors import Piece
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddOtherAgentsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    NumpyToTensor,
    StackAgents,
)
from epibatch.connectors.env_to_module import AgentIndicator, EnvToModulePipeline, PadObservations
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    GeneralAdvantageEstimation,
    LearnerConnectorPipeline,
)
from epibatch.connectors.rewards import RewardScaling
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, PipelineError, SpaceError, UnknownNameError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec, TorchRLModule
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import UserPiece, played
from oracle.agents import Schedule, schedules, scripted
from oracle.cases import random_cases
from oracle.env_steps import EnvSteps, by_env_step
from oracle.teams import MODULES, module_of

AGENTS = ["d", "a", "c", "b"]
VECTOR = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
PLAYS = {"schedule": schedules(agents=4, length=8), "cuts": st.sets(st.integers(1, 7))}
LEARNING = {"as_learner_connector": True}


def chunks(schedule: Schedule, cuts: Any = (), lookback: int = 0, seen: Any = None) -> list[MultiAgentEpisode]:
    """The episode, cut after each of some env steps; `seen` is called with it after each env step."""
    spaces = dict.fromkeys(AGENTS, VECTOR)
    out = [MultiAgentEpisode(id_="e", observation_space=spaces, agent_to_module_mapping_fn=module_of)]
    for t, step in enumerate([schedule.reset, *schedule.steps]):
        if t and t - 1 in cuts:
            out.append(out[-1].cut(lookback))
        out[-1].add_env_step(**step) if t else out[-1].add_env_reset(**step)
        if seen:
            seen(out[-1])
    return out


def lives(episode: MultiAgentEpisode, module_id: str | None = None) -> list[tuple[Any, list[int]]]:
    """Episodes of agents with steps, and env steps of their observations from the chunk's start on."""
    parts = [part for part in episode.segments if len(part.episode)]
    parts = [part for part in parts if module_id in (None, part.episode.module_id)]
    return [(part.episode, part.env_steps[part.episode.lookback :].tolist()) for part in parts]


def played_chunks(schedule: Schedule, cuts: set[int], lookback: int = 0) -> list[MultiAgentEpisode]:
    """Those chunks in which an agent has a step."""
    return [part for part in chunks(schedule, cuts, lookback) if lives(part)]


def to_learn(*more: Any, bootstrap: bool = True) -> LearnerConnectorPipeline:
    """The default pieces up to the batches of modules, then others."""
    pieces = [
        AddObservationsFromEpisodesToBatch(**LEARNING),
        AddColumnsFromEpisodesToTrainBatch(),
        AgentToModuleMapping(**LEARNING),
        BatchIndividualItems(),
        *more,
    ]
    return LearnerConnectorPipeline(connectors=[AddOneTsToEpisodesAndTruncate()] * bootstrap + pieces)


def to_act(*more: Any, before: Any = (), spaces: Any = (None, None)) -> EnvToModulePipeline:
    mapping = AgentToModuleMapping(rl_module_specs=set(MODULES.values()), agent_to_module_mapping_fn=module_of)
    pieces = [*before, AddObservationsFromEpisodesToBatch(), mapping, BatchIndividualItems(), *more]
    return EnvToModulePipeline(*spaces, connectors=pieces)


# -- the others' columns ---------------------------------------------------------------------------

NAMES = ("other_obs", "other_obs_mask", "other_actions", "other_actions_mask")
SORTED = sorted(AGENTS)


def row(world: EnvSteps, agent: str, t: int, until: int | None = None) -> tuple[list[Any], list[bool]]:
    """The others' observations at an env step, or their actions there that were taken `until` then, and who has one."""
    found = world.seen[t]
    if until is not None:
        found = {other: action for other, action in world.done[t].items() if world.taken[t, other] <= until}
    others = [other for other in SORTED if other != agent]
    empty = np.zeros(2, np.float32) if until is None else 0
    return [np.asarray(found.get(other, empty)).tolist() for other in others], [other in found for other in others]


@pytest.mark.parametrize("order", ["plain", "front", "behind", "no bootstrap"])
@random_cases(**PLAYS, lookback=st.integers(0, 2))
def test_others_in_train_batches(schedule: Schedule, cuts: set[int], lookback: int, order: str) -> None:
    world, parts = by_env_step(schedule), played_chunks(schedule, cuts, lookback)
    if not parts:
        return
    others = AddOtherAgentsFromEpisodesToBatch(agent_ids=SORTED, actions=True, **LEARNING)
    longer = AddOneTsToEpisodesAndTruncate()
    pieces = {
        "plain": [longer, UserPiece(), others],
        "front": [others, UserPiece(), longer],
        "behind": [longer, others],
    }
    found = LearnerConnectorPipeline(connectors=pieces.get(order, [others]))(rl_module=None, episodes=parts)
    columns = iter(zip(*[[own[0] for own in found[name].values()] for name in NAMES]))
    for chunk, (episode, steps) in [(part, own) for part in parts for own in lives(part)]:
        obs, mask, acts, acted = next(columns)
        assert len(obs) == len(steps) - (order == "no bootstrap")
        for i, t in enumerate(steps[: len(obs)]):
            assert (obs[i].tolist(), mask[i].tolist()) == row(world, episode.agent_id, t)
            if t < steps[-1]:
                assert (acts[i].tolist(), acted[i].tolist()) == row(world, episode.agent_id, t, chunk.env_t)
    assert next(columns, None) is None


@random_cases(**PLAYS)
def test_others_while_acting_are_those_of_training(schedule: Schedule, cuts: set[int]) -> None:
    """With a piece that rewrites observations before, and the batch by module after it."""
    spaces = gym.spaces.Dict(dict.fromkeys(SORTED, VECTOR)), None
    acting = to_act(before=[AgentIndicator(), AddOtherAgentsFromEpisodesToBatch()], spaces=spaces)
    acted: dict[tuple[str, int], Any] = {}

    def act(episode: MultiAgentEpisode) -> None:
        shared: dict[str, Any] = {}
        batch = acting(rl_module=None, episodes=[episode], shared_data=shared)
        for module_id, rows in shared.get("memorized_map_structure", {}).items():
            for i, (_, agent) in enumerate(rows):
                own = {name: column[i] for name, column in batch[module_id].items()}
                assert own["obs"][2:].tolist() == [float(agent == other) for other in SORTED]
                acted[agent, episode.env_t] = own

    parts = [part for part in chunks(schedule, cuts, seen=act) if lives(part)]
    if not parts:
        return
    learning = to_learn(bootstrap=False)
    learning.insert_before(
        "AgentToModuleMapping", AddOtherAgentsFromEpisodesToBatch(agent_ids=SORTED, as_learner_connector=True)
    )
    found = learning(rl_module=None, episodes=parts)
    at = dict.fromkeys(found, 0)
    for episode, t in [(episode, t) for part in parts for episode, steps in lives(part) for t in steps[:-1]]:
        i, columns = at[episode.module_id], found[episode.module_id]
        at[episode.module_id] += 1
        for name in ("obs", "other_obs", "other_obs_mask"):
            assert np.array_equal(columns[name][i], acted[episode.agent_id, t][name]), (name, t)
    assert at == {name: len(columns["obs"]) for name, columns in found.items()}


def test_an_agent_that_ended_at_the_cut_is_seen_after_it() -> None:
    schedule = scripted({"a": "oar", "b": "oart"}, {"a": "oar"})
    first, second = chunks(schedule, {1})
    last = schedule.steps[0]["observations"]["b"]
    piece = AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b"], **LEARNING)
    assert "b" not in second.agent_ids
    restored = MultiAgentEpisode.from_state(second.get_state())
    for chunk in (second, restored, chunks(schedule)[0].slice(slice(1, 2))):
        ((rows,),) = piece(batch={}, episodes=[chunk])["other_obs"].values()
        assert rows.tolist() == [[last.tolist()]]
    assert [segment.agent_id for segment in second.past_segments] == ["b"] and not first.past_segments
    second.add_env_step({"a": last}, {"a": 0}, {"a": 0.0}, extra_model_outputs=schedule.steps[1]["extra_model_outputs"])
    assert not second.cut().past_segments


def reset(**observations: Any) -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_="e", agent_to_module_mapping_fn=module_of)
    episode.add_env_reset(observations=observations)
    return episode


def test_nested_observations_and_types_of_others() -> None:
    rows = [{"v": np.full(3, i, np.uint8), "n": i} for i in range(4)]
    episode = reset(a=rows[0], b=rows[1])
    episode.add_env_step({"a": rows[2], "b": rows[3]}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    piece = AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b", "z"], **LEARNING)
    ((seen,), _) = piece(batch={}, episodes=[episode])["other_obs"].values()
    assert seen["v"].dtype == np.uint8 and seen["v"].tolist() == [[[1, 1, 1], [0, 0, 0]]]
    assert seen["n"].tolist() == [[1, 0]]


def test_others_of_different_shapes_are_refused_until_they_are_padded() -> None:
    spaces = gym.spaces.Dict(a=gym.spaces.Box(-9, 9, (1,)), b=gym.spaces.Box(-9, 9, (3,)))
    episode = MultiAgentEpisode(id_="e", observation_space=spaces)
    episode.add_env_reset(observations={"a": np.float32([1]), "b": np.float32([2, 3, 4])})
    piece = AddOtherAgentsFromEpisodesToBatch(spaces)
    with pytest.raises(ColumnError, match=r"shape \(3,\) in episode 'e', agent 'b'"):
        piece(batch={}, episodes=[episode])
    pipeline = EnvToModulePipeline(spaces, connectors=[PadObservations(multi_agent=True), piece])
    found = pipeline(episodes=[episode])["other_obs"]
    assert [items[0].tolist() for items in found.values()] == [[[2.0, 3.0, 4.0]], [[1.0, 0.0, 0.0]]]


class ReadsOtherActions(Piece):
    """Needs what the others did."""

    reads: ClassVar[tuple[str, ...]] = ("other_actions",)

    def run(self, batch: dict[str, Any], call: Any) -> dict[str, Any]:
        return batch


def test_columns_that_are_not_asked_for_cannot_be_read() -> None:
    """What a piece does not write is said when the pipeline is built."""
    pieces = [AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b"], actions=own, **LEARNING) for own in (False, True)]
    acting = AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b"])
    assert acting.writes == pieces[0].writes == pieces[0].clone().writes == NAMES[:2]
    assert pieces[1].writes == pieces[1].clone().writes == NAMES
    for kind, piece in ((EnvToModulePipeline, acting), (LearnerConnectorPipeline, pieces[0])):
        with pytest.raises(PipelineError, match="other_actions"):
            kind(connectors=[piece, ReadsOtherActions()])
    LearnerConnectorPipeline(connectors=[pieces[1], ReadsOtherActions()])


# -- stacked agents --------------------------------------------------------------------------------


class Values(TorchRLModule):
    """The value of an observation is the sum of its weighted entries, in any shape of batch."""

    def setup(self) -> None:
        self.weights = torch.tensor([0.5, 0.125])

    def get_initial_state(self) -> Any:
        return {"h": np.zeros(1, np.float32)} if self.model_config.get("memory") else {}

    def _forward(self, batch: Any, **_: Any) -> Any:
        return {"action_dist_inputs": batch["obs"] * 1.0}

    def compute_values(self, batch: Any, embeddings: Any = None) -> torch.Tensor:
        return (batch["obs"] * self.weights).sum(-1)


def modules(**config: Any) -> MultiRLModule:
    spec = RLModuleSpec(
        module_class=Values, observation_space=VECTOR, action_space=gym.spaces.Discrete(2), model_config=config
    )
    return MultiRLModule(rl_module_specs=dict.fromkeys(set(MODULES.values()), spec))


def stacks(agents: Any = AGENTS, **settings: Any) -> StackAgents:
    return StackAgents(agent_ids=agents, **LEARNING, **settings)


@random_cases(**PLAYS)
def test_stacks_of_train_batches(schedule: Schedule, cuts: set[int]) -> None:
    """Every cell of every column, the order of rows, and rewards of 0 where no step is, also when they are shifted."""
    world, parts = by_env_step(schedule), played_chunks(schedule, cuts)
    if not parts:
        return
    shifted = to_learn(stacks(), RewardScaling(loc=10.0))(rl_module=None, episodes=parts)
    for module_id, columns in to_learn(stacks())(rl_module=None, episodes=parts).items():
        expected = []
        for part in parts:
            cells: dict[int, dict[str, Any]] = {}
            for single, steps in lives(part, module_id):
                for i, t in enumerate(steps):
                    cells.setdefault(t, {})[single.agent_id] = (single, i, i < len(steps) - 1)
            expected += [(t, cells[t]) for t in sorted(cells)]
        assert columns["obs"].shape == (len(expected), 4, 2)
        for cell in np.ndindex(len(expected), 4):
            (t, own), agent = expected[cell[0]], AGENTS[cell[1]]
            assert columns["agent_mask"][cell] == (agent in world.seen[t])
            assert columns["obs"][cell].tolist() == list(world.seen[t].get(agent, [0.0, 0.0]))
            single, i, step = own.get(agent, (None, 0, False))
            assert columns["loss_mask"][cell] == step
            assert columns["rewards"][cell] == np.float32(single.get_rewards(i) if step else 0.0)
            assert shifted[module_id]["rewards"][cell] == columns["rewards"][cell] + 10 * step
            if step:
                assert columns["actions"][cell] == single.get_actions(i)
                assert columns["logp"][cell] == single.get_extra_model_outputs("logp", i)


@random_cases(**PLAYS)
def test_stacks_are_those_that_were_acted_on(schedule: Schedule, cuts: set[int]) -> None:
    acting, acted = to_act(StackAgents(agent_ids=AGENTS)), {}

    def act(episode: MultiAgentEpisode) -> None:
        for module_id, columns in acting(rl_module=None, episodes=[episode]).items():
            assert columns["obs"].shape == (1, 4, 2)
            acted[module_id, episode.env_t] = columns["obs"][0], columns["agent_mask"][0]

    parts = [part for part in chunks(schedule, cuts, seen=act) if lives(part)]
    if not parts:
        return
    for module_id, columns in to_learn(stacks())(rl_module=None, episodes=parts).items():
        steps = [sorted({t for _, own in lives(part, module_id) for t in own}) for part in parts]
        for i, t in enumerate(t for own in steps for t in own):
            if columns["loss_mask"][i].any():
                obs, mask = acted[module_id, t]
                assert np.array_equal(columns["obs"][i], obs) and np.array_equal(columns["agent_mask"][i], mask)


@random_cases(**PLAYS)
def test_advantages_are_those_of_rows_by_agent(schedule: Schedule, cuts: set[int]) -> None:
    parts = played_chunks(schedule, cuts)
    if not parts:
        return
    module, pieces = modules(), [NumpyToTensor(), GeneralAdvantageEstimation(gamma=0.9, lambda_=0.5)]
    single = to_learn(*pieces)(rl_module=module, episodes=parts)
    joint = to_learn(stacks(), *pieces)(rl_module=module, episodes=parts)
    for module_id, columns in single.items():
        own = joint[module_id]
        rows = [(i, t) for i, p in enumerate(parts) for t in sorted({t for _, s in lives(p, module_id) for t in s})]
        cells = [
            (rows.index((i, t)), AGENTS.index(episode.agent_id))
            for i, part in enumerate(parts)
            for episode, steps in lives(part, module_id)
            for t in steps
        ]
        assert len(cells) == len(columns["obs"]) and own["loss_mask"].sum() == columns["loss_mask"].sum()
        for name in ("advantages", "value_targets", "loss_mask", "obs"):
            assert torch.equal(torch.stack([own[name][cell] for cell in cells]), columns[name]), name


def two(*moves: Any) -> list[MultiAgentEpisode]:
    """An episode in which a and b observe and act."""
    return chunks(scripted(*(moves or [{"a": "oar", "b": "oar"}])))


def test_without_a_loss_mask_rows_of_agents_carry_loss() -> None:
    episodes = two({"a": "oar", "b": "oar"}, {"a": "oar"})
    batch = to_learn(stacks(["a", "b"]), bootstrap=False)(rl_module=None, episodes=episodes)
    assert batch["thinker"]["loss_mask"].tolist() == [[True, False], [True, False]]
    assert batch["walker"]["loss_mask"].tolist() == [[False, True]]
    assert batch["thinker"]["agent_mask"].tolist() == [[True, True], [True, True]]


def test_only_some_modules_are_stacked_and_other_agents_need_no_place() -> None:
    piece = stacks(["b", "c"], module_ids=["walker"])
    found = to_learn(piece)(rl_module=None, episodes=two(*[{"a": "oar", "b": "oar"}] * 2))
    assert found["walker"]["obs"].shape == (3, 2, 2) and found["thinker"]["obs"].shape == (3, 2)
    spaces = [
        gym.spaces.Dict(dict.fromkeys(AGENTS, own)) for own in (gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3))
    ]
    for names, thinker in ((None, (4, 2)), (["walker"], (2,))):
        pipeline = to_act(StackAgents(agent_ids=AGENTS, module_ids=names), spaces=spaces)
        found = pipeline.observation_space
        assert (found["walker"].shape, found["thinker"].shape) == ((4, 2), thinker)
        assert all(own == gym.spaces.Discrete(3) for own in pipeline.action_space.values())


class Longer(AddObservationsFromEpisodesToBatch):
    """Changes observations in the batch alone."""

    def run(self, batch: Any, call: Any) -> Any:
        batch = super().run(batch, call)
        batch["obs"].data = np.concatenate([batch["obs"].data] * 2, -1)
        return batch


def test_observations_that_were_changed_in_the_batch_only_are_refused_where_one_is_missing() -> None:
    """b observed at 1 and has no row there, as its step ends later; a's rows in the batch are longer."""
    pieces = [Longer(), AgentToModuleMapping(), BatchIndividualItems(), StackAgents(agent_ids=["a", "b"])]
    with pytest.raises(ColumnError, match=r"of shape \(2,\)[\s\S]*\(4,\)"):
        EnvToModulePipeline(connectors=pieces)(rl_module=None, episodes=two({"a": "oar", "b": "oart"}))


def with_column(column: Any) -> Any:
    """Stacks behind a piece that adds a column."""
    adds = UserPiece(lambda batch, _: {name: {**own, "x": column(own["obs"])} for name, own in batch.items()})
    return to_act(adds, StackAgents(agent_ids=["b", "a"]))(rl_module=None, episodes=two())


@pytest.mark.parametrize("column", [np.zeros(9), [{}] * 9])
def test_other_numbers_of_rows_are_named(column: Any) -> None:
    with pytest.raises(ColumnError, match=r"column 'x'[\s\S]*1 rows[\s\S]*9 rows"):
        with_column(lambda obs: column)


def test_lists_have_none_where_there_is_no_row() -> None:
    found = with_column(lambda obs: [{"obs": row.tolist()} for row in obs])
    none = {name: [[item is None for item in row] for row in own["x"]] for name, own in found.items()}
    assert none == {"thinker": [[True, False]], "walker": [[False, True]]}


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (
            gym.spaces.Box(np.float32([1, -3]), np.float32([2, -1])),
            gym.spaces.Box(*np.float32([2 * [[0, -3]], 2 * [[2, 0]]])),
        ),
        (gym.spaces.Discrete(3, start=2), gym.spaces.MultiDiscrete([5, 5])),
        (gym.spaces.Discrete(3, start=-5), gym.spaces.MultiDiscrete([6, 6], start=[-5, -5])),
        (gym.spaces.MultiDiscrete([2, 4], start=[0, 1]), gym.spaces.MultiDiscrete([[2, 5], [2, 5]])),
        (gym.spaces.MultiBinary([3, 1]), gym.spaces.MultiBinary([2, 3, 1])),
        (gym.spaces.Text(3), gym.spaces.Tuple([gym.spaces.Text(3)] * 2)),
    ],
)
def test_the_space_of_a_row_of_all_agents(space: gym.Space, expected: gym.Space) -> None:
    """It has room for the zeros of agents that are not there."""
    piece = StackAgents(agent_ids=["a", "b"])
    assert piece.recompute_output_observation_space(space, None) == expected
    nested, both = (gym.spaces.Dict(a=own, b=gym.spaces.Tuple([own])) for own in (space, expected))
    assert piece.recompute_output_observation_space(nested, None) == both


# -- mistakes --------------------------------------------------------------------------------------


def others(*agents: str, episodes: Any = None) -> Any:
    piece = AddOtherAgentsFromEpisodesToBatch(agent_ids=[*agents] or None)
    return piece(batch={}, episodes=two() if episodes is None else episodes)


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        (lambda: others("a", "x"), UnknownNameError, r"the agents 'a', 'x'[\s\S]*'b'"),
        (lambda: others(), SpaceError, "pass agent_ids"),
        (lambda: others("a", "b", episodes=[reset(a="hello", b="you")]), ColumnError, "numbers, of one shape"),
        (lambda: others("a", episodes=[played([0, 1])]), BatchLayoutError, "multi-agent episodes"),
        *(
            (lambda wrong=wrong: AddOtherAgentsFromEpisodesToBatch(agent_ids=wrong), ConfigError, "agent_ids")
            for wrong in ("ab", [], ["a", "a"])
        ),
        (lambda: to_act(before=[AddOtherAgentsFromEpisodesToBatch(actions=True)]), ConfigError, "actions"),
        (lambda: StackAgents(), ConfigError, r"StackAgents.agent_ids"),
        (lambda: to_learn(stacks(["a"]))(episodes=two()), UnknownNameError, r"the agents 'a'[\s\S]*'b'"),
        (lambda: to_learn(stacks())(episodes=two() * 2), BatchLayoutError, "twice"),
        (lambda: to_learn(stacks())(episodes=[played([0, 1])]), BatchLayoutError, "multi-agent episodes"),
        (lambda: to_learn(stacks())(rl_module=modules(memory=1), episodes=two()), BatchLayoutError, "recurrent"),
    ],
)
def test_mistakes_are_named(mistake: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_an_env_step_without_observations_has_no_rows() -> None:
    assert others("a", episodes=[reset()]) == {}
