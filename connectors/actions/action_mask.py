"""Keeps a module to actions that are legal."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, SpaceError, nearest
from epibatch.core.spaces import choice_counts, get_base_struct_from_space, has_legal_choices

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..authoring.column_paths import ColumnPath
from ..columnar_piece import ObservationRewriter
from ..tensor_step import TensorStep


class ActionMask(ObservationRewriter):
    """Adds column `action_mask`, the legal actions, from a part of the observation or of the infos.

    The default modules give illegal actions the lowest logits, so that these are neither drawn nor the most likely.
    They also return the mask. The mask is recorded with the step, and training masks the same actions without another
    piece. A user's module does it in two lines, with `epibatch.core.distributions.mask_logits`. Random actions of a
    runner are drawn from the legal ones, too.

    The mask has an entry for each value of a Discrete space, or for all choices of a MultiDiscrete or MultiBinary one,
    entry after entry; not 0 is legal. Put the piece after those that change the action space.

    Counterparts: TorchRL's `ActionMask`.

    Args:
        input_action_space: Space of one action: Discrete, MultiDiscrete or MultiBinary.
        source: Place of the mask: a part of the observation as `obs/action_mask`, or a key of the infos as
            `infos/action_mask`.
        keep: Whether the mask stays in the observation as well. Otherwise it is removed, for the learner too. If
            the observation has two parts, the other part becomes the observation.

    Raises:
        ConfigError: the source is neither.
        SpaceError: the action space is none of these, or the mask is missing or has another length.
        ColumnError: no legal action while the episode goes on, or infos without the key.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), board=gym.spaces.Discrete(9))
        >>> observation = {"action_mask": np.int8([0, 1, 1]), "board": 4}
        >>> episode = SingleAgentEpisode(id_="e", observations=[observation], observation_space=space)
        >>> ActionMask(space, gym.spaces.Discrete(3), keep=False)(batch={}, episodes=[episode])
        {'action_mask': {('e',): [array([False,  True,  True])]}}
        >>> episode.get_observations(-1)
        np.int64(4)
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.ACTION_MASK,)
    source: str = "obs/action_mask"
    keep: bool = True

    def __post_init__(self) -> None:
        """Check the source; observations change if the mask is taken out."""
        column, *keys = self.source.split("/") if isinstance(self.source, str) else [""]
        if column not in (Columns.OBS, Columns.INFOS) or not keys or (column == Columns.INFOS and not self.keep):
            expected = "'obs/...', or 'infos/...'" if self.keep else "'obs/...': keep=False takes the mask out of there"
            do = "pass source='obs/action_mask', or source='infos/action_mask'"
            raise ConfigError("ActionMask.source", expected=expected, found=repr(self.source), do=do)
        self._path = ColumnPath(column, tuple(keys))
        self.rewrites_observations = not self.keep

    # -- spaces --------------------------------------------------------------------------------

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The observation without the mask, if that is taken out."""
        if self._path.column == Columns.OBS:
            part = self._found(get_base_struct_from_space(input_observation_space), "space")
            if not isinstance(part, gym.Space) or part.shape != (self._size(),):
                raise self._unlike(str(part))
        return input_observation_space if self.keep else self._without(input_observation_space)

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The same; it has to be one that masks are for."""
        choice_counts(input_action_space)
        return input_action_space

    def _size(self) -> int:
        return sum(choice_counts(self.input_action_space))

    def _without(self, space: Any) -> Any:
        if not isinstance(space, gym.spaces.Dict) or len(self._path.keys) > 1:
            raise SpaceError(
                "ActionMask(keep=False)",
                expected="a mask that is an entry of the observation itself, as in 'obs/action_mask'",
                found=f"{self._path} of {space}",
                do="leave keep out, and take the mask out with DropColumns",
            )
        return _rest({key: part for key, part in space.spaces.items() if key != self._path.keys[0]}, gym.spaces.Dict)

    # -- rows ----------------------------------------------------------------------------------

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column, and take the mask out of the observations if it is not to stay."""
        mask = self._of_infos(group) if self._path.column == Columns.INFOS else self._of_observations(columns, group)
        self._refuse_without(mask, group)
        if not self.keep:
            super().run(columns, group)
        columns[Columns.ACTION_MASK] = EpisodeColumn(mask)
        return columns

    @property
    def takes_tensors(self) -> bool:  # type: ignore[override]
        """True if the mask is a part of observations; infos are no tensors."""
        return self._path.column != Columns.INFOS

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Add the column, which is not checked."""
        mask = self._found(columns.get(Columns.OBS, step.obs), "part") != 0
        if not self.keep:
            step.obs = self.rewrite(step.obs, step.group)
        return {**columns, Columns.ACTION_MASK: mask}

    def _of_observations(self, batch: dict[str, Any], group: ChunkGroup) -> Any:
        column = batch.get(Columns.OBS)
        found = self._found(group.reader.newest(Columns.OBS)[0] if column is None else column.data, "part")
        if not isinstance(found, np.ndarray) or found.shape[1:] != (self._size(),):
            raise self._unlike(f"shape {found.shape[1:]}" if isinstance(found, np.ndarray) else str(found))
        return found != 0

    def _of_infos(self, group: ChunkGroup) -> Any:
        key, size = self._path.keys[0], self._size()
        mask, ended = np.zeros((len(group.episodes), size), np.bool_), np.asarray(group.reader.ends.any(0))
        for i, episode in enumerate(group.plain_episodes()):
            info = episode.get_infos(-1)
            row = info.get(key)
            if row is None and not ended[i]:
                raise ColumnError(
                    f"ActionMask, infos of {group.describe(i)}",
                    expected=f"an entry {key!r} with every observation, that of the reset included",
                    found=f"keys {sorted(map(str, info))}",
                    do=f"let the environment return it, or {nearest(key, map(str, info))}",
                )
            if row is not None:
                if np.shape(row) != (size,):
                    raise self._unlike(f"shape {np.shape(row)} in {group.describe(i)}")
                mask[i] = np.asarray(row) != 0
        return mask

    def _found(self, struct: Any, kind: str) -> Any:
        for key in self._path.keys:
            if not isinstance(struct, dict) or key not in struct:
                names = list(map(str, struct)) if isinstance(struct, dict) else []
                raise SpaceError(
                    f"ActionMask, source {str(self._path)!r}",
                    expected=f"a {kind} {key!r} of the observation",
                    found=f"parts {', '.join(names)}" if names else "an observation without parts",
                    do=nearest(key, names) if names else "let the environment give Dict observations, or use infos",
                )
            struct = struct[key]
        return struct

    def _refuse_without(self, mask: Any, group: ChunkGroup) -> None:
        counts = choice_counts(self.input_action_space)
        stuck = ~has_legal_choices(mask, counts)
        if stuck.any():
            stuck &= ~group.reader.ends.any(0)
            for i in np.flatnonzero(stuck)[:1]:
                raise ColumnError(
                    f"ActionMask, {self._path} of {group.describe(int(i))}",
                    expected="a legal action" + (" in every entry" if len(counts) > 1 else ""),
                    found=f"{mask[i].astype(int).tolist()}, in an episode that goes on",
                    do="end the episode where nothing is legal, or let the environment offer an action to pass",
                )

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """The observations without the mask."""
        return _rest({key: part for key, part in observations.items() if key != self._path.keys[0]}, dict)

    def _unlike(self, found: str) -> SpaceError:
        return SpaceError(
            f"ActionMask, {self._path}",
            expected=f"a vector with one entry for each of {self._size()} choices of {self.input_action_space}",
            found=found,
            do="let the environment give a mask of that length; put ActionMask after pieces that change the space",
        )


def _rest(parts: dict[Any, Any], make: Any) -> Any:
    """Return a Dict without the mask, or its only other part."""
    return next(iter(parts.values())) if len(parts) == 1 else make(parts)
