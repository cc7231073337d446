"""Draws from several replay buffers in given shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from epibatch.core.errors import CheckpointError, ReplayError
from epibatch.core.restoring import check_count, restore_on_error, restoring
from epibatch.core.state_codec import require_mapping

from .episode_replay_buffer import EpisodeReplayBuffer
from .mixed_episodes import MixedEpisodes
from .prioritized_episode_replay_buffer import PrioritizedEpisodeReplayBuffer, checked_priorities
from .saved_buffer import SavedBuffer
from .step_draws import check_least

_GOLDEN = (5**0.5 - 1) / 2
"""The fractions of its multiples are spread evenly over [0, 1), however many they are (Weyl 1916)."""


class MixedReplay(SavedBuffer):
    """Draws from several buffers as from one, such as demonstrations beside what a policy collects.

    Each draw has as many items of a buffer as its share says, rounded so that the shares of all draws together come
    ever nearer. Items of all buffers are spread over the draw. Add to the buffers themselves.

    Counterparts: flashbax's mixer, and the symmetric sampling of Ball et al. 2023 (arXiv:2302.02948).

    Args:
        shares: Name -> share of the items, a positive number; they are divided by their sum.
        buffers: Name -> buffer, of the same names.

    Attributes:
        num_sampled: Items that were ever drawn; the next draws depend on it and on the buffers alone.

    Raises:
        ReplayError: other names, a share that is not positive and finite, or buffers of arrays and of tensors.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> buffers = {name: EpisodeReplayBuffer(100, seed=0) for name in ("demo", "online")}
        >>> for reward, buffer in enumerate(buffers.values()):
        ...     columns = {"observations": [0, 1], "actions": [0], "rewards": [reward]}
        ...     buffer.add(SingleAgentEpisode(**columns, len_lookback_buffer=0))
        >>> replay = MixedReplay({"demo": 0.25, "online": 0.75}, buffers)
        >>> from_online = sum(episode.get_rewards(0) for episode in replay.sample(800))
        >>> bool(598 <= from_online <= 602)
        True
    """

    def __init__(self, shares: Mapping[str, float], buffers: Mapping[str, EpisodeReplayBuffer]) -> None:
        values = np.array(list(shares.values()), np.float64)
        if not shares or shares.keys() != buffers.keys() or not (np.isfinite(values) & (values > 0)).all():
            raise ReplayError(
                "MixedReplay",
                expected="a positive share for each buffer",
                found=f"shares {dict(shares)} and buffers {list(buffers)}",
                do='give both the same names: MixedReplay({"demo": 1, "online": 3}, {"demo": ..., "online": ...})',
            )
        devices = {buffer.lanes.device for buffer in buffers.values()}
        if len(devices) > 1:
            found = ", ".join(sorted("arrays" if device is None else f"tensors on {device}" for device in devices))
            do = "make all buffers with the same device"
            raise ReplayError("MixedReplay", expected="buffers of one kind", found=found, do=do)
        self.buffers = {name: buffers[name] for name in shares}
        self.num_sampled = 0
        self._bounds = np.cumsum(values / values.sum())[:-1]
        self._drawn: MixedEpisodes | None = None

    def __len__(self) -> int:
        """Return the number of steps that the buffers hold."""
        return sum(map(len, self.buffers.values()))

    def sample(self, num_items: int, **options: Any) -> MixedEpisodes:
        """Draw from all buffers.

        Args:
            num_items: How many items in all.
            **options: Further arguments of the buffers' `sample`, except `only_new`.

        Raises:
            ReplayError: a buffer cannot draw its part, or `only_new`. All buffers are as they were then.
        """
        check_least("MixedReplay.sample", 1, num_items=num_items)
        if options.get("only_new"):
            where, do = "MixedReplay.sample, only_new", "draw the new steps of each buffer by itself"
            raise ReplayError(where, expected="False: new steps come as they come, in no shares", found="True", do=do)
        numbers = np.arange(self.num_sampled, self.num_sampled + num_items)
        owners = np.searchsorted(self._bounds, numbers * _GOLDEN % 1, side="right")
        used, owners = np.unique(owners, return_inverse=True)
        buffers = [list(self.buffers.values())[number] for number in used]
        counts = np.bincount(owners).tolist()
        undos = [buffer.undo() for buffer in buffers]
        with restore_on_error(lambda: [undo() for undo in undos]):
            parts = [buffer.sample(count, **options) for buffer, count in zip(buffers, counts)]
        self.num_sampled += num_items
        self._drawn = MixedEpisodes(parts, owners, buffers)
        return self._drawn

    def update_priorities(self, priorities: Any, drawn: MixedEpisodes | None = None) -> None:
        """Set the priorities of a draw's parts in the buffers that have priorities.

        Args:
            priorities: One for each part, not negative: float [C].
            drawn: The draw; default: the newest.

        Raises:
            ReplayError: another number of priorities, one that is negative or not finite, or no draw before.
        """
        drawn = self._drawn if drawn is None else drawn
        values, drawn = checked_priorities("MixedReplay.update_priorities", priorities, drawn)
        for number, (buffer, part) in enumerate(zip(drawn.sources, drawn.parts)):
            if isinstance(buffer, PrioritizedEpisodeReplayBuffer):
                buffer.update_priorities(values[drawn.owners == number], part)

    def get_state(self) -> dict[str, Any]:
        """Return the states of all buffers, and the number of items that were drawn."""
        buffers = {name: buffer.get_state() for name, buffer in self.buffers.items()}
        return {"buffers": buffers, "num_sampled": self.num_sampled}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave, with the states of all buffers; draws before it get no priorities any more.

        Raises:
            CheckpointError: it is something else, or of buffers of other names; all buffers are as they were.
        """
        where, undos = "state of MixedReplay", [buffer.undo() for buffer in self.buffers.values()]
        with restoring(where, "buffers"), restore_on_error(lambda: [undo() for undo in undos]):
            parts = require_mapping(where, require_mapping(where, state)["buffers"])
            sampled = check_count(where, state["num_sampled"])
            if parts.keys() != self.buffers.keys():
                names = [", ".join(map(repr, part)) for part in (self.buffers, parts)]
                do = "restore it into a MixedReplay with buffers of these names"
                raise CheckpointError(where, expected=f"buffers {names[0]}", found=names[1], do=do)
            for name, buffer in self.buffers.items():
                buffer.set_state(parts[name])
        self.num_sampled, self._drawn = sampled, None
