"""Default pipelines about several agents beside RLlib's: the same rows for each agent, in every module's batch.

Each library gets episodes that it made itself, of schedules that RLlib's hold. Advantages are left to one agent's
tests: each module's are what its agents' episodes alone give (tests/connectors/test_several_agents.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from oracle.behaviours import holds
from oracle.cases import random_cases
from oracle.compare import mismatches
from oracle.differences import listed
from oracle.libraries import BOTH, EPIBATCH, Library
from oracle.modules import PPO, TO_ENV, TO_MODULE, module_class, pieces_of
from oracle.teams import ACTIONS, SPACES, STATE, Team, keywords, module_of, teams

SINGLE = ("e0", "e1", "e2")
WAYS = ("pipeline", "plain pipeline", "overriding", "alone")
"""How our pieces run: in the pipeline of their side or in a plain one, as subclasses that override `__call__`, or
called one after the other without a pipeline. RLlib's run in the pipeline of their side."""


@cache
def _class(library: Library) -> Any:
    class Module(module_class(library)):  # type: ignore[misc]
        def get_initial_state(self) -> Any:
            size = self.model_config["state"]
            return {"h": np.full(size, -1, np.float32)} if size else {}

    return Module


@cache
def modules(library: Library) -> Any:
    agent_of = {module_of(agent): agent for agent in SPACES}
    return library.MultiRLModule(
        rl_module_specs={
            name: library.RLModuleSpec(
                module_class=_class(library),
                observation_space=SPACES[agent_of[name]],
                action_space=ACTIONS,
                model_config={"state": state, "max_seq_len": 3},
            )
            for name, state in STATE.items()
        }
    )


def spy(library: Library) -> Any:
    """A user's piece that notes which rows each agent has."""

    class Spy(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
            self.seen = {key: list(items) for key, items in batch.get("obs", {}).items()}
            return batch

    return Spy()


def overriding(pieces: list[Any]) -> list[Any]:
    """The pieces, each of a subclass that overrides `__call__` and notes that it ran."""

    def subclass(cls: Any) -> Any:
        def __call__(self: Any, **call: Any) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            return super(sub, self).__call__(**call)

        sub = type(cls.__name__, (cls,), {"__call__": __call__})
        return sub

    out = []
    for piece in pieces:
        arguments, keywords = piece.get_ctor_args_and_kwargs()
        out.append(subclass(type(piece))(*arguments, **keywords))
    return out


def all_called(pipeline: Any, library: Library, way: str) -> bool:
    """True if all pieces ran that note it."""
    return way != "overriding" or library is not EPIBATCH or all(piece.calls for piece in pipeline.connectors)


class Alone:
    """Pieces that are called one after the other without a pipeline."""

    def __init__(self, connectors: list[Any]) -> None:
        self.connectors = connectors

    def __call__(self, *, batch: Any, **call: Any) -> Any:
        for piece in self.connectors:
            batch = piece(batch=batch, **call)
        return batch


def in_a_way(library: Library, way: str, cls: Any, pieces: list[Any]) -> Any:
    """What runs the pieces."""
    both = keywords()["observation_space"], keywords()["action_space"]
    if way == "alone" and library is EPIBATCH:
        return Alone(pieces)
    if way == "overriding" and library is EPIBATCH:
        pieces = overriding(pieces)
    if way == "plain pipeline" and library is EPIBATCH:
        cls = library.ConnectorPipelineV2
    return cls(*both, connectors=pieces)


@cache
def learner(library: Library, ppo: bool, way: str) -> Any:
    home = library.learner
    pieces = [
        *pieces_of(library, "learner", *PPO[not ppo : 5]),
        spy(library),
        _mapping(library, as_learner_connector=True),
        home.BatchIndividualItems(multi_agent=True),
        home.NumpyToTensor(as_learner_connector=True),
    ]
    return in_a_way(library, way, home.LearnerConnectorPipeline, pieces)


def _mapping(library: Library, **settings: Any) -> Any:
    agent_of = {module_of(agent): agent for agent in SPACES}
    specs = {
        name: library.RLModuleSpec(observation_space=SPACES[agent], action_space=ACTIONS)
        for name, agent in agent_of.items()
    }
    return library.learner.AgentToModuleMapping(rl_module_specs=specs, agent_to_module_mapping_fn=module_of, **settings)


def seen_by(pipeline: Any) -> dict[Any, Any]:
    """Items of each agent in front of the mapping."""
    return next(piece.seen for piece in pipeline.connectors if type(piece).__name__ == "Spy")


def rows_by_agent(final: Any, seen: dict[Any, Any]) -> dict[Any, Any]:
    """Each agent's rows of the batch of its module: `{(episode, agent, module): {column: rows}}`."""
    out: dict[Any, Any] = {}
    for module_id, columns in final.items():
        keys = [key for key in seen if key[2] == module_id]
        counts = [sum(_rows(item) for item in seen[key]) for key in keys]
        for name, column in columns.items():
            at = 0
            for key, count in zip(keys, counts):
                out.setdefault(key, {})[name] = _part(column, at, at + count)
                at += count
    return out


def _rows(item: Any) -> int:
    return len(item) if type(item).__name__ == "BatchedNdArray" else 1


def _part(column: Any, start: int, stop: int) -> Any:
    if isinstance(column, dict):
        return {key: _part(own, start, stop) for key, own in column.items()}
    return np.asarray(column[start:stop]) if isinstance(column, torch.Tensor) else column[start:stop]


def equal(theirs: dict[Any, Any], ours: dict[Any, Any], ppo: bool) -> None:
    if ppo and listed("batch-keys"):  # e0_0 for e0
        theirs = {(key[0].partition("_")[0], *key[1:]): rows for key, rows in theirs.items()}
    assert theirs.keys() == ours.keys()
    for key, columns in ours.items():
        assert theirs[key].keys() == columns.keys(), key
        for name, rows in columns.items():
            expected = theirs[key][name]
            if name == "seq_lens" and ppo and listed("O29"):
                assert int(expected.sum()) == int(rows.sum()) + 1, "one bootstrap step per agent"
            else:
                assert not mismatches(expected, rows), (key, name, expected, rows)


@holds("C47")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ppo", [False, True])
@random_cases(team=teams(mild=True))
def test_train_batches_of_several_modules(team: Team, ppo: bool, way: str) -> None:
    team = Team(team.schedules, [None] * len(team.schedules), 1, list(SINGLE[: len(team.schedules)]))
    found = []
    for library in BOTH:
        episodes = [episode.to_numpy() for episode in team.chunks(library.MultiAgentEpisode)]
        if not any(len(part) for episode in episodes for part in episode.agent_episodes.values()):
            return  # nothing to learn from: an error here, an empty batch there
        idle = any(not len(part) for episode in episodes for part in episode.agent_episodes.values())
        pipeline = learner(library, ppo, way)
        try:
            final = pipeline(rl_module=modules(library), batch={}, episodes=episodes, shared_data={}, explore=False)
            assert all_called(pipeline, library, way)
        except IndexError:
            assert library.name == "RLlib"
            assert idle
            assert listed("idle-agents")
            return
        rows = rows_by_agent(final, seen_by(pipeline))
        if library.name == "RLlib" and idle and listed("idle-agents"):
            rows = {key: own for key, own in rows.items() if len(own["obs"])}
        found.append(rows)
    equal(*found, ppo)


@cache
def acting(library: Library, way: str) -> tuple[Any, Any]:
    several = {"BatchIndividualItems": {"multi_agent": True}}
    scaling = {"NormalizeAndClipActions": {"normalize_actions": True, "clip_actions": False}}
    pieces = pieces_of(library, "env_to_module", *TO_MODULE, **several)
    pieces[3:3] = [spy(library), _mapping(library)]
    to_module = in_a_way(library, way, library.env_to_module.EnvToModulePipeline, pieces)
    names = (*TO_ENV[:3], "ModuleToAgentUnmapping", *TO_ENV[3:])
    pieces = pieces_of(library, "module_to_env", *names, **scaling)
    way = "overriding" if way == "overriding" else "pipeline"
    to_env = in_a_way(library, way, library.module_to_env.ModuleToEnvPipeline, pieces)
    return to_module, to_env


@holds("C47")
@pytest.mark.parametrize("way", WAYS)
@random_cases(team=teams(mild=True))
def test_a_step_of_several_agents(team: Team, way: str) -> None:
    team = Team(team.schedules, [None] * len(team.schedules), 1, list(SINGLE[: len(team.schedules)]))
    batches, actions = [], []
    for library in BOTH:
        episodes = team.chunks(library.MultiAgentEpisode)
        if not any(episode.get_agents_to_act() for episode in episodes):
            return
        shared: dict[str, Any] = {}
        call = {"rl_module": modules(library), "episodes": episodes, "explore": False, "shared_data": shared}
        to_module, to_env = acting(library, way)
        final = to_module(batch={}, **call)
        assert all_called(to_module, library, way)
        seen = {key: items for key, items in seen_by(to_module).items() if _acts(episodes, key)}
        batches.append(rows_by_agent(final, seen))
        outputs = {}
        for name, columns in final.items():
            first = columns["obs"][..., :1]
            outputs[name] = {"action_dist_inputs": torch.cat([first, -first, 2 * first, first * 0], -1)}
            if STATE[name]:
                outputs[name]["state_out"] = {"h": columns["obs"][:, 0]}
        given = to_env(batch=outputs, **call)
        assert all_called(to_env, library, way)
        actions.append(
            {name: given[name] for name in ("actions", "actions_for_env", "action_logp", "state_out") if name in given}
        )
    equal(*batches, False)
    theirs, ours = actions
    assert theirs.keys() == ours.keys()
    for name, lists in ours.items():
        assert len(theirs[name]) == len(lists)
        for expected, own in zip(theirs[name], lists):
            assert expected.keys() == own.keys()
            for agent_id, value in own.items():
                if name == "action_logp" and listed("greedy-logp"):
                    continue
                found = mismatches(expected[agent_id], value)
                if found and all(one.kind == "dtype" for one in found) and listed("env-action-types"):
                    found = mismatches(expected[agent_id].astype(value.dtype), value)
                assert not found, (name, agent_id)


def _acts(episodes: list[Any], key: Any) -> bool:
    return any(episode.id_ == key[0] and key[1] in episode.get_agents_to_act() for episode in episodes)
