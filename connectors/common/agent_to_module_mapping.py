"""Maps agents to the modules that decide for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core import POLICIES_TO_TRAIN, ROW_MAP
from epibatch.core.errors import SpaceError

from .._engine.agent_table import AgentMapper, check_several
from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch, EpisodeColumn
from .._engine.layouts import plain_column

__all__ = ["AgentToModuleMapping"]


class AgentToModuleMapping(AgentMapper):
    """Turns columns by agent into columns by module, each module's rows in the order of episodes and agents.

    The episode calls its mapping function once per agent and stores the agent's module. For acting, agents that
    ended with their newest observation are left out, because they do not act. For training, agents of modules that
    are not trained are left out, if the learner lists the trained ones in `shared_data["policies_to_train"]`.

    Counterparts: RLlib's `AgentToModuleMapping`.

    Args:
        input_observation_space: Dict of the agents' observation spaces.
        input_action_space: Dict of the agents' action spaces.
        rl_module_specs: Module id -> its RLModuleSpec, with the spaces of the output. Spaces of other modules follow
            from the agents'. A set of ids names modules without specs.
        agent_to_module_mapping_fn: The mapping, for the spaces of modules without spec; called as `fn(agent_id, None)`.

    Raises:
        BatchLayoutError: episodes of one agent each.
        SpaceError: agents of one module have different spaces.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    rl_module_specs: Mapping[Any, Any] | Collection[Any] | None = None
    agent_to_module_mapping_fn: Callable[..., Any] | None = None
    as_learner_connector: bool = False

    def __post_init__(self) -> None:
        """Take module ids without specs, too."""
        specs = self.rl_module_specs or {}
        self._specs = dict(specs) if isinstance(specs, Mapping) else dict.fromkeys(specs)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Refuse episodes of one agent; without episodes go by the keys of the batch."""
        if not len(group.episodes) and all(len(key) == 3 for key in group.keys):
            return _by_key(columns, group)
        check_several(self, group, "leave this piece out: they are all for the default module")
        return columns

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """From now on show the batch by module."""
        if not call.several:
            return super().run_all(batch, call)
        call.map_to_modules(batch)
        to_train = call.shared_data.get(POLICIES_TO_TRAIN)
        if not call.training:
            call.keep_acting(batch)
        elif to_train is not None:
            call.keep_modules(batch, to_train)
        if not call.drawn:
            call.shared_data[ROW_MAP] = call.rows_by_module()
        return batch

    # -- spaces --------------------------------------------------------------------------------

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Dict of the modules' observation spaces."""
        return self._by_module(input_observation_space, "observation_space")

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Dict of the modules' action spaces."""
        return self._by_module(input_action_space, "action_space")

    def _by_module(self, agents: Any, kind: str) -> Any:
        if not isinstance(agents, gym.spaces.Dict):
            return agents
        spaces: dict[Any, Any] = {module_id: getattr(spec, kind, None) for module_id, spec in self._specs.items()}
        missing = [module_id for module_id, space in spaces.items() if space is None]
        if missing or not spaces:
            found = self._of_agents(agents, kind)
            unknown = [module_id for module_id in missing if module_id not in found]
            if unknown:
                raise SpaceError(
                    f"AgentToModuleMapping, {kind} of module {unknown[0]!r}",
                    expected="one that its RLModuleSpec gives, or an agent that is mapped to it",
                    found=f"agents {list(agents.spaces)}, mapped to {sorted(map(str, found))}",
                    do=f"give the module's RLModuleSpec its {kind}; if no agent is for it, leave the module out",
                )
            spaces.update({module_id: found[module_id] for module_id in missing or found})
        return gym.spaces.Dict(spaces)

    def _of_agents(self, agents: gym.spaces.Dict, kind: str) -> dict[Any, Any]:
        """Module id -> the space of its agents."""
        all_spaces = list(agents.spaces.values())
        if all_spaces and all(space == all_spaces[0] for space in all_spaces):
            modules = set(self._specs) or set(self._modules(list(agents.spaces)).values())
            return dict.fromkeys(modules, all_spaces[0])
        spaces: dict[Any, Any] = {}
        for agent_id, module_id in self._modules(list(agents.spaces)).items():
            agent_space = agents.spaces[agent_id]
            if getattr(self._specs.get(module_id), kind, None) is not None:
                continue
            if spaces.setdefault(module_id, agent_space) != agent_space:
                raise SpaceError(
                    f"AgentToModuleMapping, {kind} of module {module_id!r}",
                    expected=f"one space for all its agents, such as {spaces[module_id]}",
                    found=f"{agent_space} of agent {agent_id!r}",
                    do=f"give the module's RLModuleSpec its {kind}; bring the agents' to it with an earlier piece",
                )
        return spaces

    def _modules(self, agent_ids: Sequence[Any]) -> dict[Any, Any]:
        """Agent -> module, as the mapping function says without an episode; nothing if it cannot say."""
        if self.agent_to_module_mapping_fn is None:
            return {}
        modules = {}
        for agent_id in agent_ids:
            try:
                modules[agent_id] = self.agent_to_module_mapping_fn(agent_id, None)
            except Exception as error:
                raise SpaceError(
                    "AgentToModuleMapping",
                    expected="a mapping function that answers without an episode, to know the modules' spaces",
                    found=f"{type(error).__name__}: {error}, for agent {agent_id!r} and episode None",
                    do="let it answer; or, if it needs the episode, give each RLModuleSpec its "
                    "observation_space and action_space",
                ) from error
        return modules


def _by_key(batch: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
    """Items by module, as the keys of the batch say."""
    out: dict[Any, dict[str, list[Any]]] = {}
    for name, column in batch.items():
        for key, items in plain_column(column, group).items() if isinstance(column, EpisodeColumn) else ():
            if items:
                out.setdefault(key[2], {}).setdefault(name, []).extend(items)
    return {**out, **{name: column for name, column in batch.items() if not isinstance(column, EpisodeColumn)}}
