"""Adding a step to all columns of an episode: as it is where it fits, checked and planned where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ColumnError, EpisodeError, EpisodeStateError, SpaceError, add_context
from epibatch.core.structs import form_of, spell_form

from ..infinite_lookback_buffer import NOTHING, InfiniteLookbackBuffer, RowPlan, put_rows
from .episode_arguments import as_reward

if TYPE_CHECKING:
    from ..single_agent_episode import SingleAgentEpisode

__all__ = ["add_step", "check_first_observation", "check_observation", "not_steppable", "put_step", "take_back_step"]


def put_step(episode: SingleAgentEpisode, observation: Any, action: Any, reward: Any, extras: dict[str, Any]) -> bool:
    """Add a step if the array of every column takes its row as it is.

    Returns:
        Whether it was added; if not, the episode is as it was and `add_step` will say what is wrong, if anything is.
    """
    observations, space = episode.observations, episode._given_observation_space
    if observations.checked_for is not space:
        return False
    if space is not None and type(observation) is not np.ndarray:
        try:
            check_observation(episode, observation)
        except SpaceError:
            return False
    return put_rows(
        observations,
        episode.actions,
        episode.rewards,
        episode.extra_model_outputs,
        observation,
        action,
        reward,
        extras,
    )


def add_step(episode: SingleAgentEpisode, observation: Any, action: Any, reward: Any, extras: dict[str, Any]) -> None:
    """Add a step whose rows may be anything (see `SingleAgentEpisode.add_env_step`, also for what it raises)."""
    observations, outputs = episode.observations, episode.extra_model_outputs
    if not observations.provisional and not episode.is_reset:
        raise not_steppable(episode)
    if extras.keys() != outputs.keys():
        outputs = _set_extra_keys(episode, extras)
    check_observation(episode, observation)
    rows: list[tuple[InfiniteLookbackBuffer, Any]] = [(episode.actions, action), (episode.rewards, as_reward(reward))]
    rows += [(outputs[key], row) for key, row in extras.items()]
    late = [(column, row) for column, row in rows if not column.put(row)]
    if late or not observations.put(observation):
        _add_rest(episode, observation, late)
    observations.provisional = True
    leaf = observations._flat
    if leaf is not None and leaf.shape[1:] == np.shape(observation):
        observations.checked_for = episode._given_observation_space


def _add_rest(episode: SingleAgentEpisode, observation: Any, late: list[tuple[InfiniteLookbackBuffer, Any]]) -> None:
    """Add the observation and the rows that change their column; if one is refused, take back the others."""
    try:
        plans = [(column, _plan(episode, column, item)) for column, item in late]
        _stage_observation(episode, observation)
    except Exception:
        changed = [column for column, _ in late]
        for column in (episode.actions, episode.rewards, *episode.extra_model_outputs.values()):
            if not any(column is one for one in changed):
                column.drop_last()
        raise
    for planned, plan in plans:
        planned.add(plan)


def _plan(episode: SingleAgentEpisode, column: InfiniteLookbackBuffer, item: Any) -> RowPlan:
    try:
        return column.plan(item)
    except ColumnError as error:
        named = {"actions": episode.actions, "rewards": episode.rewards, **episode.extra_model_outputs}
        name = next(key for key, own in named.items() if own is column)
        add_context(error, f"{_at(episode, name)}:")
        raise


def _stage_observation(episode: SingleAgentEpisode, observation: Any) -> None:
    """Add the newest observation; the check of its nesting is for those alone that the column cannot take as it is.

    Pieces can make observations alike that are longer or shorter than others, or have more keys; when the next one
    comes, they have to be alike. Pieces may rewrite observations, so the nesting to compare with is that of the reset
    observation, not the column's.
    """
    column, provisional = episode.observations, episode.observations.provisional
    try:
        column.stage(observation)
    except ColumnError as error:  # the observation before this one, which no piece has rewritten
        add_context(error, f"{_at(episode, 'obs', before=1)}:")
        raise
    expected, space = episode._given_form, episode._given_observation_space
    if column.raw_row() is NOTHING or expected is NOTHING or column.leaves_of(observation) is not None:
        return
    found = form_of(observation)
    whole_step = expected is None and isinstance(observation, tuple)
    if not (whole_step or _lacks_keys(expected, found)) or (space is not None and space.contains(observation)):
        return
    column.drop_last()
    column.provisional = provisional
    raise ColumnError(
        _at(episode, "obs"),
        expected=f"an observation nested as the reset observation: {spell_form(expected)}",
        found=spell_form(found),
        do="return observations with the same keys from reset() and every step()",
    )


def _lacks_keys(expected: Any, found: Any) -> bool:
    """Return True if a dict of the first form, at any depth, has keys that the second lacks."""
    if expected is None or expected[0] != "dict":
        return False
    forms = dict(zip(found[1], found[2])) if found is not None else {}
    return any(key not in forms or _lacks_keys(form, forms[key]) for key, form in zip(expected[1], expected[2]))


def _at(episode: SingleAgentEpisode, column: str, before: int = 0) -> str:
    """The place of a row that is to be added, or so many rows before it."""
    t = episode.t_started + len(episode.observations) - (column != "obs") - before
    return f"episode {episode.id_}, column {column!r} at t={t}"


def take_back_step(episode: SingleAgentEpisode) -> None:
    """Take the newest step out of a running episode that owns its columns."""
    first = episode.rewards.len_incl_lookback() == 1
    episode.infos.pop()
    episode.observations.drop_last()
    episode.observations.provisional = True
    episode.is_terminated = episode.is_truncated = False
    if first:
        episode.actions = InfiniteLookbackBuffer(None, 0, episode.action_space)
        episode.rewards, episode.extra_model_outputs = InfiniteLookbackBuffer(), {}
        episode.t_started = episode.t_started
        return
    for column in (episode.actions, episode.rewards, *episode.extra_model_outputs.values()):
        column.drop_last()


def not_steppable(episode: SingleAgentEpisode) -> EpisodeStateError:
    """The error of a step that is added before the reset or after the end."""
    if not episode.is_reset:
        expected, found, do = "add_env_reset first", "an episode without observation", "add the reset observation"
    else:
        expected, found = "a running episode", f"one that ended at t={episode.t}"
        do = "start a new SingleAgentEpisode"
    return EpisodeStateError(f"episode {episode.id_}, add_env_step", expected=expected, found=found, do=do)


def check_observation(episode: SingleAgentEpisode, observation: Any) -> None:
    """Check an observation that is to be added against the space that the episode was given.

    Raises:
        SpaceError: it does not fit.
    """
    space = episode._given_observation_space
    if space is None or (type(observation) is np.ndarray and observation.shape == space.shape):
        return
    from epibatch.core.space_checks import check_row

    check_row(space, observation, _at(episode, "obs"))


def check_first_observation(episode: SingleAgentEpisode, observation: Any) -> None:
    """Check a reset observation; what `env.reset()` returns, observation and infos together, is none.

    A tuple of something and a dict may be an observation all the same: the space says so, or an environment of several
    agents, whose resets have another form.

    Raises:
        SpaceError: it does not fit the space that the episode was given.
        EpisodeError: the episode has no space, and it looks like observation and infos together.
    """
    space = episode._given_observation_space
    pair = type(observation) is tuple and len(observation) == 2 and isinstance(observation[1], dict)
    if (
        not pair
        or isinstance(space, gym.spaces.Tuple)
        or (space is None and episode.multi_agent_episode_id is not None)
    ):
        check_observation(episode, observation)
        return
    do = "" if space is not None else "; an episode whose observations are such tuples needs its observation_space="
    kind = SpaceError if space is not None else EpisodeError
    raise kind(
        f"episode {episode.id_}, add_env_reset",
        expected=f"an observation of {space}" if space is not None else "the reset observation",
        found="a tuple of two whose second part is a dict, as env.reset() returns it",
        do=f"pass the observation and the infos apart: add_env_reset(*env.reset()){do}",
    )


def _set_extra_keys(episode: SingleAgentEpisode, extras: dict[str, Any]) -> dict[str, InfiniteLookbackBuffer]:
    if episode.rewards.len_incl_lookback():
        late = sorted(set(extras) - set(episode.extra_model_outputs))
        gone = sorted(set(episode.extra_model_outputs) - set(extras))
        raise EpisodeError(
            f"episode {episode.id_}, extra model outputs at t={episode.t}",
            expected=f"the keys of its first step: {sorted(episode.extra_model_outputs)}",
            found=", ".join([f"late key {key!r}" for key in late] + [f"no {key!r}" for key in gone]),
            do="give every step of an episode the same extra_model_outputs",
        )
    episode.extra_model_outputs = {key: InfiniteLookbackBuffer() for key in extras}
    episode.t_started = episode.t_started
    return episode.extra_model_outputs
