"""Pieces that are one function of a whole episode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from epibatch.core.errors import PieceOutputError, add_context

from .fields import ParameterPiece


class EpisodeTransform(ParameterPiece):
    """A function of each single-agent episode, which may write to it: reward shaping, relabelling.

    Put it into the learner pipeline before the pieces that make columns. It gets one chunk after the other. With
    several agents it gets each agent's own chunks, with `agent_id` and `module_id`. Chunks without steps are skipped.
    Changes stay in the episodes, so each episode is transformed once and not again when it comes back.

    Annotated attributes are parameters, as `ParameterPiece` says.

    Args:
        **parameters: The parameters of the class.

    Raises:
        PieceOutputError: `transform_episode` returned a value.

    Examples:
        >>> class StepPenalty(EpisodeTransform):
        ...     penalty: float = 0.5
        ...     def transform_episode(self, episode):
        ...         episode.set_rewards(new_data=episode.get_rewards() - self.penalty)
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [1.0, 2.0]}
        >>> episode = SingleAgentEpisode(**rows, len_lookback_buffer=0)
        >>> batch = StepPenalty()(rl_module=None, batch={}, episodes=[episode])
        >>> episode.get_rewards().tolist()
        [0.5, 1.5]
    """

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = ()
    mutates_episodes: ClassVar[bool] = True

    @abstractmethod
    def transform_episode(self, episode: Any) -> None:
        """Change an episode.

        Args:
            episode: A SingleAgentEpisode, whole or a chunk, of one step at least.
        """

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Transform each episode; the batch stays as it is."""
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            if not len(episode):
                continue
            try:
                out: Any = self.transform_episode(episode)
            except Exception as error:
                where = f"episode {episode.id_!r}"
                if not str(error).startswith(where):  # as the episode's setters begin
                    add_context(error, f"{where}:")
                raise
            if out is not None:
                raise PieceOutputError(
                    f"{type(self).__name__}.transform_episode",
                    expected="None: the episode is changed in place",
                    found=f"{type(out).__name__}: {out!r}",
                    do="write to the episode, as in episode.set_rewards(new_data=...), and return nothing",
                )
        return batch
