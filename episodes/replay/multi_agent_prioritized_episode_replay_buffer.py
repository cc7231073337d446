"""A replay buffer of episodes of several agents, of which each module's steps are drawn by their priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from epibatch.core.errors import ReplayError

from ..chunks_by_module import ChunksByModule
from .episode_replay_buffer import EpisodeReplayBuffer
from .multi_agent_episode_replay_buffer import MultiAgentEpisodeReplayBuffer
from .prioritized_episode_replay_buffer import PrioritizedEpisodeReplayBuffer, checked_priorities


class MultiAgentPrioritizedEpisodeReplayBuffer(MultiAgentEpisodeReplayBuffer):
    """A `MultiAgentEpisodeReplayBuffer` that draws each module's steps in proportion to priority^alpha.

    Any number of draws may wait for their priorities, as in a `PrioritizedEpisodeReplayBuffer`. "synchronized" draws
    are uniform, and their steps may get priorities too.

    Counterparts: RLlib's `MultiAgentPrioritizedEpisodeReplayBuffer`.

    Args:
        capacity: As for `MultiAgentEpisodeReplayBuffer`.
        alpha: Exponent of priorities: 0 draws uniformly, 1 in proportion.
        **options: Further arguments of `MultiAgentEpisodeReplayBuffer`.

    Raises:
        ReplayError: a capacity below 2, or a negative alpha.

    Examples:
        >>> from epibatch.episodes import MultiAgentEpisode
        >>> buffer = MultiAgentPrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=0)
        >>> buffer.add(MultiAgentEpisode(observations=[{"a": 0}, {"a": 1}, {"a": 2}], actions=[{"a": 4}, {"a": 5}],
        ...                              rewards=[{"a": 1.0}, {"a": 2.0}], len_lookback_buffer=0))
        >>> drawn = buffer.sample(50, beta=0.4)
        >>> buffer.update_priorities({"default_policy": drawn.by_module["default_policy"].starts == 1}, drawn=drawn)
        >>> {int(episode.get_observations(0)) for episode in buffer.sample(50)}  # from now on only step 1
        {1}
    """

    buffer_class: ClassVar[type[EpisodeReplayBuffer]] = PrioritizedEpisodeReplayBuffer

    def __init__(self, capacity: int = 10_000, *, alpha: float = 1.0, **options: Any) -> None:
        super().__init__(capacity, alpha=alpha, **options)
        self._drawn: ChunksByModule | None = None

    def sample(self, num_items: int | None = None, **options: Any) -> ChunksByModule:
        """Draw parts of agents' episodes by their priorities.

        Args:
            num_items: As for `MultiAgentEpisodeReplayBuffer.sample`, with the further arguments.
            **options: These, and `beta`, as for `PrioritizedEpisodeReplayBuffer.sample`.

        Raises:
            UnknownNameError: as for `MultiAgentEpisodeReplayBuffer.sample`.
            ReplayError: likewise.
        """
        self._drawn = super().sample(num_items, **options)
        return self._drawn

    def update_priorities(self, priorities: Any, module_id: Any = None, drawn: ChunksByModule | None = None) -> None:
        """Set the priorities of the steps with which the parts of a draw begin.

        Args:
            priorities: By module, one for each of its parts, not negative: float [C]. With `module_id`, those of it.
            module_id: The module, if they are of one.
            drawn: The draw; default: the newest.

        Raises:
            ReplayError: a module that was not drawn, another number of priorities, one that is negative or not finite,
                or no draw before. No priority was changed then.
        """
        drawn = self._drawn if drawn is None else drawn
        by_module = {module_id: priorities} if module_id is not None else priorities
        names = [] if drawn is None else list(drawn.by_module)
        if drawn is None or not isinstance(by_module, Mapping) or not by_module.keys() <= set(names):
            raise ReplayError(
                "MultiAgentPrioritizedEpisodeReplayBuffer.update_priorities",
                expected=f"priorities by module, of a draw: {', '.join(map(repr, names))}",
                found=", ".join(map(repr, by_module)) if isinstance(by_module, Mapping) else type(by_module).__name__,
                do="pass {module id: errors of its parts in their order}",
            )
        parts: Mapping[Any, Any] = drawn.by_module
        for name, rows in by_module.items():
            checked_priorities(f"{type(self).__name__}.update_priorities", rows, parts[name])
        for name, rows in by_module.items():
            self.buffers[name].update_priorities(rows, parts[name])

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave; draws before it get no priorities any more.

        Raises:
            CheckpointError: it is something else; the buffer is as it was.
        """
        super().set_state(state)
        self._drawn = None
