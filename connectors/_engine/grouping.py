"""The chunks of all agents of a call, and the groups that they are in: by module and spaces, or by module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from ...episodes.chunks_by_module import ChunksByModule
from ...episodes.infinite_lookback_buffer import lengths_of
from .chunks import numbered

if TYPE_CHECKING:
    from .chunks import ChunkGroup

Key = tuple[Any, Any, Any]
Ints: TypeAlias = npt.NDArray[np.int64]


class AgentChunks(NamedTuple):
    """The chunks of all agents of a call, in the order of episodes and agents.

    A group of them is an array of positions, int64; a subset of a group, or several groups as one, is another array.

    Args:
        parts: The chunks, single-agent episodes: a list, or a ChunksByModule.
        owners: Positions of their episodes in the call.
        agents: Their agents; in training those that came back have a number after them. None: what the chunks have.
        acting: Whether each is to act; in training there are none, which means all.
    """

    parts: Any
    owners: Sequence[int]
    agents: Sequence[Any]
    acting: Sequence[bool] = ()

    def keys(self, at: Ints, module_id: Any, episode_keys: Sequence[Any]) -> list[Key]:
        """The keys of chunks in per-episode columns: episode, agent, module.

        Args:
            at: Positions of chunks of one module.
            module_id: The module.
            episode_keys: One per episode of the call.
        """
        owners, agents = self.owners, self.agents or self.parts.agents
        return [(episode_keys[owners[i]], agents[i], module_id) for i in at.tolist()]

    def of(self, at: Ints, module_id: Any) -> Sequence[Any]:
        """The chunks at some positions, of one module; a table of them if there is one, and these are all."""
        if isinstance(self.parts, ChunksByModule) and np.array_equal(self.parts.at[module_id], at):
            return self.parts.by_module[module_id]
        return [self.parts[i] for i in at.tolist()]


def order_of(groups: Iterable[ChunkGroup]) -> Ints:
    """Return how to take the chunks of some groups, one group after the other, in the order of episodes and agents."""
    at = [group.at for group in groups]
    return np.concatenate(at).argsort(kind="stable") if at else np.empty(0, np.int64)


def by_module(groups: Mapping[tuple[Any, ...], Ints]) -> dict[Any, Ints]:
    """The chunks of each module, whatever their spaces.

    Args:
        groups: (module id, ...) -> positions.
    """
    found: dict[Any, list[Ints]] = {}
    for (module_id, *_), at in groups.items():
        found.setdefault(module_id, []).append(at)
    return {module_id: np.sort(np.concatenate(members)) for module_id, members in found.items()}


def chunks_of_modules(chunks: ChunksByModule) -> tuple[AgentChunks, dict[tuple[Any, ...], Ints]]:
    """Chunks that are grouped by module, whose agents have the same spaces; each is as an episode by itself."""
    groups = {(module_id, 0): at for module_id, at in chunks.at.items()}
    return AgentChunks(chunks, range(len(chunks)), ()), groups


def training_chunks(
    episodes: Sequence[Any], keys: Collection[Key] = ()
) -> tuple[AgentChunks, dict[tuple[Any, ...], Ints]]:
    """Every agent's part that has steps, in the order in which agents appeared; grouped by module and spaces.

    Args:
        episodes: Multi-agent episodes; an agent that ended and came back has several parts.
        keys: Of parts that count without steps too.
    """
    idle_keys = {key[:2] for key in keys}
    pairs = [(owner, segment.episode) for owner, episode in enumerate(episodes) for segment in episode.segments]
    lengths = lengths_of([part.rewards for _, part in pairs])
    pairs = [
        (owner, part)
        for (owner, part), length in zip(pairs, lengths)
        if length or (idle_keys and (episodes[owner].id_, part.agent_id) in idle_keys)
    ]
    owners, parts = [owner for owner, _ in pairs], [part for _, part in pairs]
    agents: Sequence[Any] = [part.agent_id for part in parts]
    if len(set(zip(owners, agents))) < len(parts):  # some came back
        by_episode = ([part.agent_id for _, part in members] for _, members in groupby(pairs, itemgetter(0)))
        agents = [name for names in by_episode for name in numbered(names)]
    groups = by_spaces([part.module_id for part in parts], parts)
    return AgentChunks(parts, owners, agents), groups


def by_spaces(before: Sequence[Any], parts: Sequence[Any]) -> dict[tuple[Any, ...], Ints]:
    """Group chunks by what they were grouped by before, and by the spaces that they have now.

    Args:
        before: The group of each chunk.
        parts: The chunks.

    Returns:
        (group before, number of the spaces) -> positions.
    """
    kinds = SpaceKinds()
    groups: dict[tuple[Any, ...], list[int]] = {}
    members: dict[tuple[Any, ...], list[int]] = {}
    for place, (group, part) in enumerate(zip(before, parts)):
        spaces = part.observations.space, part.actions.space, part.given_observation_space
        identity = group, part.agent_id, *map(id, spaces)
        at = members.get(identity)
        if at is None:
            at = members[identity] = groups.setdefault((group, kinds.of(part.agent_id, *spaces)), [])
        at.append(place)
    return _as_arrays(groups)


def _as_arrays(groups: Mapping[Any, list[int]]) -> dict[Any, Ints]:
    return {key: np.array(at, np.int64) for key, at in groups.items()}


def acting_chunks(episodes: Sequence[Any]) -> tuple[AgentChunks, dict[tuple[Any, ...], Ints]]:
    """The newest part of every agent that has a new observation, those that ended with it included.

    They are grouped by module and by the spaces of what the environment gives, which pieces may make equal only now;
    an agent has the same spaces in all episodes of a call.
    """
    kinds = SpaceKinds()
    groups: dict[tuple[Any, ...], list[int]] = {}
    members: dict[tuple[Any, Any], list[int]] = {}
    parts: list[Any] = []
    owners, agents, acting = [], [], []
    for owner, episode in enumerate(episodes):
        env_t = episode.env_t
        for agent_id, record in episode.records.items():
            live = record.live
            segment = live if live is not None else record.segments[-1] if record.segments else None
            if segment is None or segment.steps[-1] != env_t or segment.repeats:
                continue  # without a new observation, or given its last one again at its end
            part = segment.episode
            at = members.get((agent_id, part.module_id))
            if at is None:
                spaces = _entry(episode.observation_space, agent_id), _entry(episode.action_space, agent_id)
                kind = part.module_id, kinds.of(agent_id, *spaces)
                at = members[agent_id, part.module_id] = groups.setdefault(kind, [])
            at.append(len(parts))
            parts.append(part)
            owners.append(owner)
            agents.append(agent_id)
            acting.append(live is not None)
    return AgentChunks(parts, owners, agents, acting), _as_arrays(groups)


def _entry(spaces: Any, agent_id: Any) -> Any:
    """Return an agent's space from a dict or a Dict. `Dict.get` is slow: it calls three functions."""
    return getattr(spaces, "spaces", spaces).get(agent_id)


class RowsByModule(Mapping[Any, list[tuple[Any, Any]]]):
    """Module id -> (episode key, agent) of each of its rows, for splitting outputs by agent.

    Args:
        chunks: Those of the call.
        groups: Module id -> the positions of its rows' chunks.
        episodes: The call's.
        episode_keys: One per episode.
    """

    def __init__(
        self, chunks: AgentChunks, groups: Mapping[Any, Ints], episodes: Sequence[Any], episode_keys: Sequence[Any]
    ) -> None:
        self.chunks, self.groups = chunks, groups
        self._episodes = list(episodes)
        self._steps = list(map(_ENV_T, episodes))
        self._keys = episode_keys

    def are_about(self, episodes: Sequence[Any]) -> bool:
        """True if these are the same episodes, and no step was added to them since."""
        same = len(episodes) == len(self._episodes) and all(map(is_, episodes, self._episodes))
        return same and list(map(_ENV_T, episodes)) == self._steps

    def owners(self, module_id: Any) -> list[tuple[int, Any]]:
        """(position of the episode in the call, agent) of each of a module's rows."""
        return [key[:2] for key in self.chunks.keys(self.groups[module_id], module_id, range(len(self._episodes)))]

    def __getitem__(self, module_id: Any) -> list[tuple[Any, Any]]:
        return [key[:2] for key in self.chunks.keys(self.groups[module_id], module_id, self._keys)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __repr__(self) -> str:
        return repr(dict(self))


_ENV_T = attrgetter("env_t")


def chunks_given_back(
    episodes: Sequence[Any], episode_keys: Sequence[Any], rows: Mapping[Any, Sequence[tuple[Any, Any]]]
) -> tuple[AgentChunks, dict[Any, Ints]]:
    """Return the chunk of each row of the modules' outputs, after steps were added since the modules' batch was made.

    Args:
        episodes: Multi-agent episodes.
        episode_keys: One per episode.
        rows: Module id -> (episode key, agent) of each row, as the mapping to modules left them.

    Returns:
        The chunks of all agents that are to act; and the position of each row's chunk among them by module, -1 for
        agents that are not to act any more.
    """
    waiting = [(owner, agent) for owner, item in enumerate(episodes) for agent in item.get_agents_without_action()]
    parts = [episodes[owner].agent_episodes[agent] for owner, agent in waiting]
    places = {(episode_keys[owner], agent): place for place, (owner, agent) in enumerate(waiting)}
    groups = {
        module_id: np.array([places.get((key, agent), -1) for key, agent in keys], np.int64)
        for module_id, keys in rows.items()
    }
    return AgentChunks(parts, [owner for owner, _ in waiting], [agent for _, agent in waiting]), groups


class SpaceKinds:
    """Numbers what episodes have spaces of, equal ones alike; agents without spaces each have a number.

    An episode's observations are of its own space until a piece rewrites them: the newest ones may be of the one that
    it was made with, those before of what the piece left. So both count, and the action space.

    Examples:
        >>> import gymnasium as gym
        >>> kinds = SpaceKinds()
        >>> [kinds.of("left", gym.spaces.Discrete(n), None) for n in (2, 3, 2)]
        [0, 1, 0]
    """

    def __init__(self) -> None:
        self._by_identity: dict[tuple[int, ...], int] = {}
        self._by_content: dict[tuple[Any, ...], int] = {}
        self._kinds: list[tuple[Any, ...]] = []
        self._seen: list[tuple[Any, ...]] = []  # keeps the spaces alive, because their identities are keys

    def of(self, agent_id: Any, observation_space: Any, action_space: Any, env_space: Any = None) -> int:
        """The number of an agent's spaces.

        Args:
            agent_id: The agent.
            observation_space: Of its observations as the episode keeps them; None: not known.
            action_space: Of its actions.
            env_space: Of its observations as the environment gives them, where a piece rewrites them.
        """
        # without a space nothing says that two agents see the same
        spaces = agent_id if observation_space is None else observation_space, action_space, env_space
        identity = tuple(map(id, spaces))
        kind = self._by_identity.get(identity)
        if kind is None:
            self._seen.append(spaces)
            content = tuple(map(_content, spaces))
            kind = self._by_content.get(content)
            if kind is None:
                kind = self._by_content[content] = self._equal_kind(spaces)
            self._by_identity[identity] = kind
        return kind

    def _equal_kind(self, spaces: tuple[Any, ...]) -> int:
        """The number of spaces that nothing but a comparison can tell from others; a new one if none are equal."""
        kind = next((i for i, other in enumerate(self._kinds) if other == spaces), len(self._kinds))
        if kind == len(self._kinds):
            self._kinds.append(spaces)
        return kind


def _content(space: Any) -> Any:
    """Return a hashable key that is the same only for equal spaces. Comparing two Boxes takes ten times as long.

    Episodes that come from another process have spaces that are equal and not the same.
    """
    kind = type(space)
    if kind is Box:
        return kind, space.dtype, space.low.shape, space.low.tobytes(), space.high.tobytes()
    if kind is Discrete:
        return kind, space.dtype, int(space.n), int(space.start)
    if kind is Dict:
        return kind, *((name, _content(subspace)) for name, subspace in space.spaces.items())
    if kind is Tuple:
        return kind, *map(_content, space.spaces)
    return id(space)
