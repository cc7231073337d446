"""What a multi-agent episode is made from: columns given as lists of dicts, one dict per env step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import EpisodeError, SpaceError

from .episode_arguments import check_space, check_steps
from .multi_agent_steps import EnvStep, add_first_observations, add_step, end_agents

if TYPE_CHECKING:
    from ..multi_agent_episode import MultiAgentEpisode

__all__ = ["add_given_steps", "check_spaces", "flags_by_agent"]


def check_spaces(spaces: Any, name: str, id_: Any) -> Mapping[Any, Any]:
    """Spaces by agent; {} for None.

    Raises:
        SpaceError: something else than a dict of spaces.
    """
    if spaces is None:
        return {}
    if not isinstance(spaces, Mapping):
        raise SpaceError(
            f"episode {id_}, {name}",
            expected="a dict, or a Dict space, with a space for each agent",
            found=f"{type(spaces).__name__} {spaces!r}",
            do="pass {agent: space}",
        )
    for agent, space in spaces.items():
        check_space(space, f"{name}[{agent!r}]", id_)
    return spaces


def flags_by_agent(flags: Any) -> Mapping[Any, Any]:
    """Done flags as a dict: one flag alone is for all agents."""
    if isinstance(flags, Mapping):
        return flags
    return {"__all__": flags} if flags else {}


def add_given_steps(
    episode: MultiAgentEpisode,
    columns: dict[str, Sequence[Any] | None],
    flags: tuple[Mapping[Any, Any], Mapping[Any, Any]],
    lookback: Any,
    agent_t_started: Mapping[Any, int],
) -> None:
    """Add the steps that the constructor was given, the first `lookback` of them before the chunk's start.

    Args:
        episode: A new one, whose `env_t_started` is set.
        columns: By name, one dict per env step, or None.
        flags: Terminated and truncated, by agent.
        lookback: How many env steps, or "auto" for all.
        agent_t_started: For each agent the step of its own at which the chunk starts.

    Raises:
        EpisodeError: columns whose lengths do not fit one another.
    """
    given = {name: list(rows or ()) for name, rows in columns.items()}
    steps = len(given["rewards"])
    _check_lengths(episode, given)
    if lookback == "auto":
        lookback = steps
    started = episode.env_t_started
    episode.lookback = min(check_steps(lookback, "len_lookback_buffer", episode.id_), steps)
    episode.env_t = started - episode.lookback
    if columns["observations"] is not None:
        observations, infos = given["observations"], given["infos"] or [{}] * len(given["observations"])
        add_first_observations(episode, observations[0], infos[0])
        episode._was_reset = True
        for t in range(steps):
            behind = t + 1 < len(observations)
            observed, info = (observations[t + 1], infos[t + 1]) if behind else ({}, {})
            outputs = given["extra_model_outputs"][t] if given["extra_model_outputs"] else {}
            add_step(episode, EnvStep(observed, given["actions"][t], given["rewards"][t], info or {}, {}, {}, outputs))
    for segment in episode.segments:
        keep = max(segment.row_at(started), 0)
        single = segment.episode
        for column in single._columns():
            column.lookback = keep
        if segment.steps[0] <= started:
            single.t_started = check_steps(agent_t_started.get(segment.agent_id, 0), "agent_t_started", episode.id_)
    if any(flags):
        end_agents(episode, *flags)


def _check_lengths(episode: MultiAgentEpisode, given: dict[str, list[Any]]) -> None:
    count, steps = len(given["observations"]), len(given["rewards"])
    found = {name: len(rows) for name, rows in given.items()}
    fits = (
        (count in (steps + 1, steps) if steps else count <= 1)
        and found["actions"] == steps
        and found["extra_model_outputs"] in (0, steps)
        and found["infos"] in (0, count)
    )
    if not fits:
        raise EpisodeError(
            f"episode {episode.id_} with {steps} rewards",
            expected=f"{steps} dicts of actions (and model outputs), {steps + 1} of observations (and infos)",
            found=", ".join(f"{rows} of {name}" for name, rows in found.items()),
            do="give lists with a dict by agent for each env step",
        )
