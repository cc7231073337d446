"""Episodes of several agents as groups of chunks: by module and spaces, for acting and for training."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any, NamedTuple

from gymnasium.spaces import Box, Dict, Discrete, Tuple

from ...episodes.infinite_lookback_buffer import lengths_of
from .chunks import numbered

Key = tuple[Any, Any, Any]


class AgentChunk(NamedTuple):
    """One agent's part of an episode.

    Args:
        owner: Position of the episode in its call.
        key: Of the chunk in per-episode columns: episode, agent, module.
        episode: The part, a single-agent episode.
    """

    owner: int
    key: Key
    episode: Any


class AgentRows:
    """Some parts of a call's episodes that have one module, in the order of episodes and agents.

    Parallel lists with one entry per part. An object for every agent of every environment in every step would be
    slow.

    Attributes:
        module_id: The module.
        owners: Positions of the episodes in the call.
        agents: The agents; in training those that came back have a number after them.
        parts: The parts, single-agent episodes.
        places: Positions among all parts of the call.
        acting: Whether the agents are to act; in training all of them.
    """

    __slots__ = ("acting", "agents", "module_id", "owners", "parts", "places")

    def __init__(self, module_id: Any) -> None:
        self.module_id = module_id
        self.owners: list[int] = []
        self.agents: list[Any] = []
        self.parts: list[Any] = []
        self.places: list[int] = []
        self.acting: list[bool] = []

    def __len__(self) -> int:
        return len(self.parts)

    def add(self, owner: int, agent: Any, part: Any, place: int, acts: bool = True) -> None:
        """Add a part."""
        self.owners.append(owner)
        self.agents.append(agent)
        self.parts.append(part)
        self.places.append(place)
        self.acting.append(acts)

    def keys(self, episode_keys: Sequence[Any]) -> list[Key]:
        """The parts' keys.

        Args:
            episode_keys: One per episode of the call.
        """
        module_id = self.module_id
        return [(episode_keys[owner], agent, module_id) for owner, agent in zip(self.owners, self.agents)]

    def subset(self, indices: Sequence[int]) -> AgentRows:
        """Some of the parts."""
        out = AgentRows(self.module_id)
        for name in self.__slots__:
            if name != "module_id":
                values = getattr(self, name)
                setattr(out, name, [values[i] for i in indices])
        return out


def merged_rows(groups: Sequence[AgentRows]) -> AgentRows:
    """The parts of several groups of one module, in the order of the call."""
    out = AgentRows(groups[0].module_id)
    for name in AgentRows.__slots__:
        if name != "module_id":
            setattr(out, name, [value for group in groups for value in getattr(group, name)])
    return out.subset(sorted(range(len(out)), key=out.places.__getitem__))


def training_rows(episodes: Sequence[Any], keys: Collection[Key] = ()) -> dict[Any, AgentRows]:
    """Every agent's part that has steps, in the order in which agents appeared; grouped by module and spaces.

    Args:
        episodes: Multi-agent episodes; an agent that ended and came back has several parts.
        keys: Of parts that count without steps too.
    """
    idle_keys = {key[:2] for key in keys}
    pairs = [(owner, segment.episode) for owner, episode in enumerate(episodes) for segment in episode.segments]
    parts_by_episode: list[list[Any]] = [[] for _ in episodes]
    for (owner, part), length in zip(pairs, lengths_of([part.rewards for _, part in pairs])):
        if length or (idle_keys and (episodes[owner].id_, part.agent_id) in idle_keys):
            parts_by_episode[owner].append(part)
    groups: dict[Any, AgentRows] = {}
    kinds = SpaceKinds()
    place = 0
    for owner, parts in enumerate(parts_by_episode):
        for name, part in zip(numbered([part.agent_id for part in parts]), parts):
            group = part.module_id, kinds.of(part)
            if group not in groups:
                groups[group] = AgentRows(part.module_id)
            groups[group].add(owner, name, part, place)
            place += 1
    return groups


def acting_rows(episodes: Sequence[Any]) -> dict[Any, AgentRows]:
    """The newest part of every agent that has a new observation, those that ended with it included.

    They are grouped by module and by the spaces of what the environment gives, which pieces may make equal only now;
    an agent has the same spaces in all episodes of a call.
    """
    groups = _ActingGroups()
    by_agent = groups.by_agent
    place = 0
    for owner, episode in enumerate(episodes):
        env_t = episode.env_t
        for agent_id, record in episode.records.items():
            live = record.live
            segment = live if live is not None else record.segments[-1] if record.segments else None
            if segment is None or segment.steps[-1] != env_t or segment.repeats:
                continue  # without a new observation, or given its last one again at its end
            part = segment.episode
            adder = by_agent.get(agent_id)
            if adder is None or adder.module_id != part.module_id:
                adder = groups.of(agent_id, part.module_id, episode)
            adder.owner(owner)
            adder.agent(agent_id)
            adder.part(part)
            adder.place(place)
            adder.acts(live is not None)
            place += 1
    return groups.rows


def regrouped(groups: Mapping[Any, AgentRows]) -> dict[Any, AgentRows]:
    """Groups of parts of the same spaces as they are now: a piece may have made those of one group differ.

    Args:
        groups: (module id, number of the spaces) -> the parts; those that are still alike stay as they are.
    """
    kinds = SpaceKinds()
    out: dict[Any, AgentRows] = {}
    for group, rows in groups.items():
        by_kind: dict[int, list[int]] = {}
        for i, part in enumerate(rows.parts):
            by_kind.setdefault(kinds.of(part), []).append(i)
        parts = {group: rows} if len(by_kind) < 2 else {(*group, kind): rows.subset(at) for kind, at in by_kind.items()}
        out.update(parts)
    return out


class _ActingGroups:
    """Groups of rows, and which one an agent was in last.

    Attributes:
        rows: (module id, number of the spaces) -> the group.
        by_agent: agent -> what adds to the group.
    """

    def __init__(self) -> None:
        self.rows: dict[Any, AgentRows] = {}
        self.by_agent: dict[Any, _Adding] = {}
        self._adding: dict[Any, _Adding] = {}
        self._spaces = SpaceKinds()

    def of(self, agent_id: Any, module_id: Any, episode: Any) -> _Adding:
        """Return the function that adds to the group of an agent; make the group if it is missing."""
        spaces = _entry(episode.observation_space, agent_id), _entry(episode.action_space, agent_id)
        group = module_id, self._spaces.of_agent(agent_id, *spaces)
        adder = self._adding.get(group)
        if adder is None:
            rows = self.rows[group] = AgentRows(module_id)
            adder = self._adding[group] = _Adding(rows)
        self.by_agent[agent_id] = adder
        return adder


def _entry(spaces: Any, agent_id: Any) -> Any:
    """Return an agent's space from a dict or a Dict. `Dict.get` is slow: it calls three functions."""
    return getattr(spaces, "spaces", spaces).get(agent_id)


class _Adding:
    """The `append` of each of a group's lists, looked up once and not for every agent in every environment."""

    __slots__ = ("acts", "agent", "module_id", "owner", "part", "place")

    def __init__(self, rows: AgentRows) -> None:
        self.module_id = rows.module_id
        self.owner, self.agent, self.part = rows.owners.append, rows.agents.append, rows.parts.append
        self.place, self.acts = rows.places.append, rows.acting.append


class RowsByModule(Mapping[Any, list[tuple[Any, Any]]]):
    """Module id -> (episode key, agent) of each of its rows, for splitting outputs by agent.

    Args:
        rows: Module id -> the parts of its rows.
        episodes: The call's.
        episode_keys: One per episode.
    """

    def __init__(self, rows: Mapping[Any, AgentRows], episodes: Sequence[Any], episode_keys: Sequence[Any]) -> None:
        self.rows = rows
        self._episodes = list(episodes)
        self._steps = list(map(_ENV_T, episodes))
        self._keys = episode_keys

    def are_about(self, episodes: Sequence[Any]) -> bool:
        """True if these are the same episodes, and no step was added to them since."""
        same = len(episodes) == len(self._episodes) and all(map(is_, episodes, self._episodes))
        return same and list(map(_ENV_T, episodes)) == self._steps

    def __getitem__(self, module_id: Any) -> list[tuple[Any, Any]]:
        rows = self.rows[module_id]
        return [(self._keys[owner], agent) for owner, agent in zip(rows.owners, rows.agents)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return repr(dict(self))


_ENV_T = attrgetter("env_t")


def rows_given_back(
    episodes: Sequence[Any], episode_keys: Sequence[Any], rows: Mapping[Any, Sequence[tuple[Any, Any]]]
) -> tuple[dict[Any, AgentRows], dict[Any, list[bool]]]:
    """Return the agent of each row of the modules' outputs, after steps were added since the modules' batch was made.

    Args:
        episodes: Multi-agent episodes.
        episode_keys: One per episode.
        rows: module id -> (episode key, agent) of each row, as the mapping to modules left them.

    Returns:
        The parts of agents that are still to act by module; and for every module's rows whether they are among them.
    """
    places: dict[tuple[Any, Any], tuple[int, int]] = {}
    for owner, (episode_key, episode) in enumerate(zip(episode_keys, episodes)):
        for agent_id in episode.get_agents_without_action():
            places[episode_key, agent_id] = owner, len(places)
    groups: dict[Any, AgentRows] = {}
    flags: dict[Any, list[bool]] = {}
    for module_id, keys in rows.items():
        group = AgentRows(module_id)
        flags[module_id] = []
        for episode_key, agent_id in keys:
            found = places.get((episode_key, agent_id))
            flags[module_id].append(found is not None)
            if found is not None:
                owner, place = found
                group.add(owner, agent_id, episodes[owner].agent_episodes[agent_id], place)
        if len(group):
            groups[module_id] = group
    return groups, flags


class SpaceKinds:
    """Numbers what episodes have spaces of, equal ones alike; agents without spaces each have a number.

    An episode's observations are of its own space until a piece rewrites them: the newest ones may be of the one that
    it was made with, those before of what the piece left. So both count, and the action space.

    Example:
        >>> import gymnasium as gym
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> kinds = SpaceKinds()
        >>> [kinds.of(SingleAgentEpisode(observation_space=gym.spaces.Discrete(n))) for n in (2, 3, 2)]
        [0, 1, 0]
    """

    def __init__(self) -> None:
        self._by_identity: dict[tuple[int, ...], int] = {}
        self._by_content: dict[tuple[Any, ...], int] = {}
        self._kinds: list[tuple[Any, ...]] = []
        self._seen: list[tuple[Any, ...]] = []  # keeps the spaces alive, because their identities are keys

    def of(self, episode: Any) -> int:
        """The number of a single-agent episode's spaces."""
        spaces = episode.observations.space, episode.actions.space, episode.given_observation_space
        return self.of_agent(episode.agent_id, *spaces)

    def of_agent(self, agent_id: Any, observation_space: Any, action_space: Any, env_space: Any = None) -> int:
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


def by_module(groups: Iterable[AgentRows]) -> dict[Any, AgentRows]:
    """The parts of each module, whatever their spaces."""
    found: dict[Any, list[AgentRows]] = {}
    for rows in groups:
        found.setdefault(rows.module_id, []).append(rows)
    return {module_id: merged_rows(members) for module_id, members in found.items()}
