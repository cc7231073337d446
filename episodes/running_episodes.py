"""The episodes that run in environments whose steps are recorded together, from one fragment to the next."""

from __future__ import annotations

from uuid import uuid4

from epibatch.core.arrays_or_tensors import Rows, beside, where, zeros_like


class RunningEpisodes:
    """Numbers, steps and returns of the episodes that run in N environments, as arrays or as tensors of a device.

    Args:
        numbers: int64 [N], zeros.
        steps: int64 [N], zeros.
        returns: float [N], zeros.

    Attributes:
        name: The beginning of their ids.
        numbers: Episodes of each environment that ended before.
        steps: Steps of the running one so far.
        returns: The sum of its rewards.
    """

    def __init__(self, numbers: Rows, steps: Rows, returns: Rows) -> None:
        self.name = uuid4().hex
        self.numbers, self.steps, self.returns = numbers, steps, returns

    def begin(self) -> None:
        """Begin with new episodes."""
        self.numbers += 1
        self.steps[:] = 0
        self.returns = zeros_like(self.returns, self.returns.shape)

    def follow(self, ended: Rows, rewards: Rows | None, between: Rows | None = None) -> None:
        """Go on by the steps of a fragment.

        Args:
            ended: True where a step ended an episode: bool [T, N].
            rewards: Of the steps, [T, N, ...]; None: there are none.
            between: True where a step only reset an environment: bool [T, N]; None: nowhere.
        """
        cuts = ended if between is None else ended | between
        number = cuts.sum(0)
        of_running, goes_on = (cuts.cumsum(0) == number) & ~cuts, number == 0
        self.numbers += number if between is None else ended.sum(0)
        self.steps *= goes_on
        self.steps += of_running.sum(0)
        if rewards is not None:
            rewards = rewards if rewards.ndim == 2 else rewards.reshape(*ended.shape, -1).sum(2)
            sums = where(beside(of_running, rewards), rewards, 0.0).sum(0)
            self.returns = where(beside(goes_on, sums), self.returns, 0.0) + sums
