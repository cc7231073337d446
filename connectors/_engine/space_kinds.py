"""Which episodes have observations and actions of the same spaces."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Box, Dict, Discrete, Tuple

__all__ = ["SpaceKinds"]


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
        self._seen: list[tuple[Any, ...]] = []  # keeps spaces alive, whose identities are kept

    def of(self, episode: Any) -> int:
        """The number of a single-agent episode's spaces."""
        spaces = episode.observation_space, episode.action_space, episode._given_observation_space
        return self.of_agent(episode.agent_id, *spaces)

    def of_agent(self, agent_id: Any, observation_space: Any, action_space: Any, given: Any = None) -> int:
        """The number of an agent's spaces.

        Args:
            agent_id: The agent.
            observation_space: Of its observations as the episode keeps them; None: not known.
            action_space: Of its actions.
            given: Of its observations as the environment gives them, where a piece rewrites them.
        """
        # without a space nothing says that two agents see the same
        spaces = agent_id if observation_space is None else observation_space, action_space, given
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
        kind = next((i for i, known in enumerate(self._kinds) if known == spaces), len(self._kinds))
        if kind == len(self._kinds):
            self._kinds.append(spaces)
        return kind


def _content(space: Any) -> Any:
    """What spaces have in common only if they are equal, cheap to look up: comparing two Boxes takes ten times as long.

    Episodes that come from another process have spaces that are equal and not the same.
    """
    kind = type(space)
    if kind is Box:
        return kind, space.dtype, space.low.shape, space.low.tobytes(), space.high.tobytes()
    if kind is Discrete:
        return kind, space.dtype, int(space.n), int(space.start)
    if kind is Dict:
        return kind, *((name, _content(own)) for name, own in space.spaces.items())
    if kind is Tuple:
        return kind, *map(_content, space.spaces)
    return id(space)
