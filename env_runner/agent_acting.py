"""From a batch to the actions of several agents: the modules' forward passes and the module-to-env pipeline."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError

from ..episodes._storage.arrays import owned
from ..episodes.multi_agent_episode import MultiAgentEpisode
from .acting import blame_observations, forward, with_members

__all__ = ["AgentActions", "ToAct", "act_for_agents", "own_actions", "spread"]


class ToAct(NamedTuple):
    """Episodes in which agents act next.

    Args:
        envs: Their environments.
        episodes: The episodes.
        agents: The agents that are to act in each of them.
    """

    envs: Sequence[int]
    episodes: list[MultiAgentEpisode]
    agents: Sequence[Collection[Any]]


class AgentActions(NamedTuple):
    """Actions of one vector step: a dict by agent for each environment.

    Args:
        stored: Actions as the modules gave them.
        for_env: Actions for the environments, in arrays of their own.
        outputs: For each agent a dict of the other columns.
    """

    stored: list[dict[Any, Any]]
    for_env: list[dict[Any, Any]]
    outputs: list[dict[Any, dict[str, Any]]]


def act_for_agents(
    module: Any, module_to_env: Any, batch: dict[str, Any], to_act: ToAct, *, explore: bool, t: int, **call: Any
) -> dict[str, Any]:
    """Return the columns of one vector step: `actions` and the modules' other outputs, by agent for each episode.

    Args:
        module: The modules that act.
        module_to_env: The pipeline after them.
        batch: The output of the env-to-module pipeline, by module.
        to_act: The episodes and agents.
        explore: Whether actions explore.
        t: The env steps taken so far, for the modules.
        **call: `shared_data` and `metrics` for the pipeline.

    Raises:
        ColumnError: not one action for each agent; or NaN among a module's outputs. The error names the observations
            instead if they have NaN already.
    """
    outputs = forward(module, batch, explore=explore, t=t)
    for module_id, own in outputs.items():
        if isinstance(own, Mapping) and Columns.ACTIONS in own:
            outputs = {**outputs, module_id: with_members(module[module_id], own)}
    columns: dict[str, Any]
    try:
        columns = module_to_env(rl_module=module, batch=outputs, episodes=to_act.episodes, explore=explore, **call)
    except ColumnError as error:
        blame_observations(error, _newest(to_act), _by_module(batch))
        raise
    for name, column in columns.items():
        _check_column(name, column, to_act)
    if Columns.ACTIONS not in columns:
        raise _without_actions("no such column")
    for name in (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV):
        if name in columns:
            _check_agents(name, columns[name], to_act)
    return columns


def _newest(to_act: ToAct) -> Iterator[tuple[str, Any]]:
    for env, episode in zip(to_act.envs, to_act.episodes):
        for agent, row in episode.get_observations(-1).items():
            yield f"agent {agent!r} in environment {env}", row


def _by_module(batch: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for module_id, columns in batch.items():
        if isinstance(columns, Mapping):
            yield f"module {module_id!r}, row", columns.get(Columns.OBS)


def _check_column(name: str, column: Any, to_act: ToAct) -> None:
    count = len(to_act.episodes)
    if type(column) is list and len(column) == count and all(isinstance(rows, Mapping) for rows in column):
        return
    found = f"{len(column)} of them" if isinstance(column, list) else type(column).__name__
    raise ColumnError(
        f"what the module-to-env pipeline left, column {name!r}",
        expected=f"a list of {count} dicts by agent, one for each episode",
        found=found,
        do="keep the columns in the form that ListifyDataForVectorEnv gives them",
    )


def _check_agents(name: str, column: list[dict[Any, Any]], to_act: ToAct) -> None:
    for env, rows, agents in zip(to_act.envs, column, to_act.agents):
        if rows.keys() != agents:
            missing = [agent for agent in agents if agent not in rows]
            strangers = [agent for agent in rows if agent not in agents]
            found = f"none for {missing}" if missing else f"some for {strangers} too, who do not act"
            raise _without_actions(f"{found} in environment {env}", name, f"for agents {list(agents)}")


def _without_actions(found: str, name: str = Columns.ACTIONS, whose: str = "for each agent to act") -> ColumnError:
    return ColumnError(
        "what the module-to-env pipeline left",
        expected=f"a column {name!r} with one action {whose}",
        found=found,
        do="keep every agent's action in every module-to-env piece",
    )


def spread(columns: dict[str, Any], to_act: ToAct, num_envs: int, every_agent: dict[str, Any]) -> AgentActions:
    """Return the columns of some episodes as actions in all environments.

    Args:
        columns: As `act_for_agents` returns them; none if no agent acts.
        to_act: The episodes that they are about.
        num_envs: How many environments there are.
        every_agent: Further outputs, the same for each agent that acts.
    """
    acts = AgentActions([{}] * num_envs, [{}] * num_envs, [{}] * num_envs)
    if not columns:
        return acts
    stored, for_env = columns[Columns.ACTIONS], columns.get(Columns.ACTIONS_FOR_ENV, columns[Columns.ACTIONS])
    others = [(name, rows) for name, rows in columns.items() if name not in (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)]
    for i, env in enumerate(to_act.envs):
        acts.stored[env] = stored[i]
        acts.for_env[env] = own_actions(for_env[i])
        outputs: dict[Any, dict[str, Any]] = {agent: dict(every_agent) for agent in stored[i]}
        for name, rows in others:
            for agent, value in rows[i].items():
                if agent in outputs:
                    outputs[agent][name] = value
                else:
                    outputs[agent] = {name: value}
        acts.outputs[env] = outputs
    return acts


def own_actions(actions: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return copies of actions, as an environment may change them and stored actions often share their memory."""
    return {agent: action if isinstance(action, np.generic) else owned(action) for agent, action in actions.items()}
