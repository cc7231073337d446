"""The getters and setters of a multi-agent episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .._storage.indexing import Indices
from .agent_segment import AgentRecord
from .multi_agent_reading import Request, read, write

__all__ = ["MultiAgentGetters"]


class MultiAgentGetters(ABC):
    """Getters and setters of the agents' columns, by env step or by each agent's own steps.

    Every getter takes an int (one row), a slice or a list of ints (stacked rows), or None (the whole chunk), and gives
    a dict from agent to rows. Agents without a row there are not in it. Non-negative indices count from the chunk's
    start, negative ones from the end, or from the chunk's start backwards with `neg_index_as_lookback`. An action, its
    reward and its model outputs are at the env step of the observation they follow; those of an open step come last.

    With `env_steps=False` indices are those of each agent's latest single-agent episode. With `fill`, agents have a
    row of that value where they have none. With `return_list`, there is a dict of single rows for each env step.
    Setters take what the getter with the same indices gives.
    """

    id_: str
    env_t_started: int
    lookback: int
    _agents: dict[Any, AgentRecord]

    @abstractmethod
    def __len__(self) -> int:
        """Number of env steps in this chunk, lookback excluded."""

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Observations by agent; index 0 is the env step at which the chunk starts, -1 the newest one."""
        options = (neg_index_as_lookback, env_steps, fill, one_hot_discrete, return_list)
        return read(self, agent_ids, Request("observations", indices, *options))

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Info dicts by agent, one per observation; several come as a list."""
        options = (neg_index_as_lookback, env_steps, fill, False, return_list)
        return read(self, agent_ids, Request("infos", indices, *options))

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Actions by agent, as the modules gave them."""
        options = (neg_index_as_lookback, env_steps, fill, one_hot_discrete, return_list)
        return read(self, agent_ids, Request("actions", indices, *options))

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Rewards by agent: the sums between an agent's observations."""
        options = (neg_index_as_lookback, env_steps, fill, False, return_list)
        return read(self, agent_ids, Request("rewards", indices, *options))

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """One of the modules' other outputs by agent; without a key a dict of all of them for each agent."""
        options = (neg_index_as_lookback, env_steps, fill, False, return_list)
        return read(self, agent_ids, Request("extra_model_outputs", indices, *options, key))

    def set_observations(
        self,
        *,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite observations of some agents.

        Args:
            new_data: Rows by agent, as `get_observations` gives them for the same indices.
            at_indices: Which rows; None addresses all after the lookback.
            neg_index_as_lookback: Count negative indices backwards from the chunk's start.
            env_steps: Whether indices are env steps; otherwise each agent's own.

        Raises:
            UnknownNameError: an agent without observations in this chunk.
            EpisodeIndexError: rows that do not exist, or another number of them.
        """
        write(self, new_data, Request("observations", at_indices, neg_index_as_lookback, env_steps))

    def set_infos(
        self,
        *,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite info dicts of some agents (arguments as for `set_observations`)."""
        write(self, new_data, Request("infos", at_indices, neg_index_as_lookback, env_steps))

    def set_actions(
        self,
        *,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite actions of some agents, open steps included (arguments as for `set_observations`)."""
        write(self, new_data, Request("actions", at_indices, neg_index_as_lookback, env_steps))

    def set_rewards(
        self,
        *,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite rewards of some agents, open steps included (arguments as for `set_observations`)."""
        write(self, new_data, Request("rewards", at_indices, neg_index_as_lookback, env_steps))

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite one of the other outputs of some agents' modules (other arguments as for `set_observations`)."""
        request = Request("extra_model_outputs", at_indices, neg_index_as_lookback, env_steps, key=key)
        write(self, new_data, request)
