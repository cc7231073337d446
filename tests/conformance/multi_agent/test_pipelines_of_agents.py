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

from batches.stages import overriding, stages_of
from oracle.cases import random_cases
from oracle.compare import listed, mismatches
from oracle.libraries import BOTH, EPIBATCH, Library
from oracle.makers import run, user
from oracle.modules import PPO, TO_ENV, TO_MODULE, module_class, pieces_of
from oracle.probes import holds
from oracle.teams import ACTIONS, SPACES, STATE, Team, keywords, module_of, teams

WAYS = ("pipeline", "plain pipeline", "overriding", "alone")
"""How our pieces run: in the pipeline of their side or in a plain one, as subclasses that override `__call__`, or
called one after the other without a pipeline. RLlib's run in the pipeline of their side."""
AGENT_OF = {module_of(agent): agent for agent in SPACES}


@cache
def specs(library: Library) -> dict[str, Any]:
    class Module(module_class(library)):  # type: ignore[misc]
        def get_initial_state(self) -> Any:
            size = self.model_config["state"]
            return {"h": np.full(size, -1, np.float32)} if size else {}

    return {
        name: library.RLModuleSpec(
            module_class=Module,
            observation_space=SPACES[AGENT_OF[name]],
            action_space=ACTIONS,
            model_config={"state": state, "max_seq_len": 3},
        )
        for name, state in STATE.items()
    }


@cache
def modules(library: Library) -> Any:
    return library.MultiRLModule(rl_module_specs=specs(library))


class Runs:
    """Pieces that run in a way of ours, or in RLlib's; they tell which rows each agent had before the mapping."""

    def __init__(self, library: Library, way: str, side: str, cls: str, names: Any, **settings: Any) -> None:
        self.seen: dict[Any, Any] = {}
        self.ran: set[str] = set()
        way = way if library is EPIBATCH else "pipeline"
        mapping = {"rl_module_specs": specs(library), "agent_to_module_mapping_fn": module_of}
        several = {"AgentToModuleMapping": mapping, "BatchIndividualItems": {"multi_agent": True}}
        if side == "learner":
            several["AgentToModuleMapping"] = {**mapping, "as_learner_connector": True}
            several["NumpyToTensor"] = {"as_learner_connector": True}
        pieces = pieces_of(library, side, *names, **several, **settings)
        if "AgentToModuleMapping" in names:
            pieces.insert(names.index("AgentToModuleMapping"), user(library, self._note))
        if way == "overriding":
            pieces = overriding(pieces, lambda stage, *_: self.ran.add(stage))
        self.pieces, home = pieces, library.ConnectorPipelineV2
        if way != "plain pipeline":
            home = getattr(getattr(library, side), cls)
        both = keywords()["observation_space"], keywords()["action_space"]
        self.pipeline = None if way == "alone" else home(*both, connectors=pieces)

    def _note(self, piece: Any, batch: Any, episodes: Any) -> None:
        self.seen = {key: list(items) for key, items in batch.get("obs", {}).items()}

    def __call__(self, batch: Any, episodes: list[Any], **call: Any) -> Any:
        call.setdefault("shared_data", {})
        for piece in self.pieces if self.pipeline is None else [self.pipeline]:
            batch = run(piece, episodes, batch=batch, **call)
        assert self.ran >= stages_of(self.pieces)
        return batch


def rows_by_agent(final: Any, seen: dict[Any, Any]) -> dict[Any, Any]:
    """Each agent's rows of the batch of its module: `{(episode, agent, module): {column: rows}}`."""
    out: dict[Any, Any] = {}
    for module_id, columns in final.items():
        keys = [key for key in seen if key[2] == module_id]
        ends = np.cumsum([sum(_rows(item) for item in seen[key]) for key in keys]).tolist()
        for name, column in columns.items():
            for key, start, stop in zip(keys, [0, *ends], ends):
                out.setdefault(key, {})[name] = _part(column, start, stop)
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


def whole(team: Team) -> Team:
    """The team with episodes of different names that are not cut."""
    count = len(team.schedules)
    return Team(team.schedules, [None] * count, 1, ["e0", "e1", "e2"][:count])


@cache
def learner(library: Library, ppo: bool, way: str) -> Runs:
    names = (*PPO[not ppo : 5], "AgentToModuleMapping", "BatchIndividualItems", "NumpyToTensor")
    return Runs(library, way, "learner", "LearnerConnectorPipeline", names)


@holds("C47")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ppo", [False, True])
@random_cases(team=teams(mild=True))
def test_train_batches_of_several_modules(team: Team, ppo: bool, way: str) -> None:
    found = []
    for library in BOTH:
        episodes = [episode.to_numpy() for episode in whole(team).chunks(library.MultiAgentEpisode)]
        steps = [len(part) for episode in episodes for part in episode.agent_episodes.values()]
        if not any(steps):
            return  # nothing to learn from: an error here, an empty batch there
        pieces, idle = learner(library, ppo, way), not all(steps)
        try:
            final = pieces({}, episodes, rl_module=modules(library))
        except IndexError:
            assert library.name == "RLlib" and idle and listed("idle-agents")
            return
        rows = rows_by_agent(final, pieces.seen)
        if library.name == "RLlib" and idle and listed("idle-agents"):
            rows = {key: own for key, own in rows.items() if len(own["obs"])}
        found.append(rows)
    equal(*found, ppo)


@cache
def acting(library: Library, way: str) -> tuple[Runs, Runs]:
    names = (*TO_MODULE[:3], "AgentToModuleMapping", *TO_MODULE[3:])
    to_module = Runs(library, way, "env_to_module", "EnvToModulePipeline", names)
    scaling = {"NormalizeAndClipActions": {"normalize_actions": True, "clip_actions": False}}
    way = "overriding" if way == "overriding" else "pipeline"
    names = (*TO_ENV[:3], "ModuleToAgentUnmapping", *TO_ENV[3:])
    return to_module, Runs(library, way, "module_to_env", "ModuleToEnvPipeline", names, **scaling)


@holds("C47")
@pytest.mark.parametrize("way", WAYS)
@random_cases(team=teams(mild=True))
def test_a_step_of_several_agents(team: Team, way: str) -> None:
    batches, actions = [], []
    for library in BOTH:
        episodes = whole(team).chunks(library.MultiAgentEpisode)
        acting_agents = {(episode.id_, agent) for episode in episodes for agent in episode.get_agents_to_act()}
        if not acting_agents:
            return
        call: dict[str, Any] = {"rl_module": modules(library), "shared_data": {}}
        to_module, to_env = acting(library, way)
        final = to_module({}, episodes, **call)
        seen = {key: items for key, items in to_module.seen.items() if key[:2] in acting_agents}
        batches.append(rows_by_agent(final, seen))
        outputs = {}
        for name, columns in final.items():
            first = columns["obs"][..., :1]
            outputs[name] = {"action_dist_inputs": torch.cat([first, -first, 2 * first, first * 0], -1)}
            if STATE[name]:
                outputs[name]["state_out"] = {"h": columns["obs"][:, 0]}
        given = to_env(outputs, episodes, **call)
        names = ("actions", "actions_for_env", "action_logp", "state_out")
        actions.append({name: given[name] for name in names if name in given})
    equal(*batches, False)
    theirs, ours = actions
    assert theirs.keys() == ours.keys()
    for name, lists in ours.items():
        assert [own.keys() for own in theirs[name]] == [own.keys() for own in lists]
        if name == "action_logp" and listed("greedy-logp"):
            continue
        for expected, own in zip(theirs[name], lists):
            for agent_id, value in own.items():
                found = mismatches(expected[agent_id], value)
                if found and all(one.kind == "dtype" for one in found) and listed("env-action-types"):
                    found = mismatches(expected[agent_id].astype(value.dtype), value)
                assert not found, (name, agent_id)
