"""Adding an env step to a multi-agent episode: what each agent was given, by the rules of open steps."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import EpibatchError, EpisodeError, EpisodeStateError, SpaceError, add_context

from .._storage.arrays import owned
from .._storage.buffer_source import NOTHING
from .._storage.infos_buffer import EMPTY
from ..single_agent_episode import SingleAgentEpisode
from .agent_segment import AgentRecord, AgentSegment
from .episode_arguments import as_flag, as_info, as_reward
from .episode_steps import put_step, take_back_step

if TYPE_CHECKING:
    from ..multi_agent_episode import MultiAgentEpisode

__all__ = ["EnvStep", "add_first_observations", "add_step", "end_agents"]

_NO_OUTPUTS: dict[str, Any] = {}
_NAMES = ("observations", "actions", "rewards", "infos", "terminateds", "truncateds", "outputs")
_DICTS = {dict}
_ALL = "__all__"
_COMMON = "__common__"  # an env's info that belongs to no agent


@dataclass(slots=True)
class EnvStep:
    """What came with one env step, by agent.

    Attributes:
        observations: Newest observations.
        actions: Actions the agents took.
        rewards: Rewards.
        infos: Info dicts.
        terminateds: Flags, and one for all under `__all__`.
        truncateds: The same.
        outputs: The modules' other outputs for the actions.
    """

    observations: Mapping[Any, Any]
    actions: Mapping[Any, Any]
    rewards: Mapping[Any, Any]
    infos: Mapping[Any, Any]
    terminateds: Mapping[Any, Any]
    truncateds: Mapping[Any, Any]
    outputs: Mapping[Any, Any]
    ends: dict[Any, tuple[bool, bool]] = field(default_factory=dict)

    def check(self, where: str) -> None:
        """Refuse columns that are not by agent.

        Raises:
            EpisodeError: one is something else than a dict.
        """
        taken, flags = (self.observations, self.actions, self.rewards, self.infos), (self.terminateds, self.truncateds)
        given = (*taken, *flags, self.outputs)
        if set(map(type, given)) == _DICTS:
            return
        for name, found in zip(_NAMES, given):
            if not isinstance(found, Mapping):
                do = "pass what the multi-agent environment gave, {agent: value}"
                if name == "observations" and isinstance(found, tuple) and len(found) == 2:
                    do = "pass observations and infos apart, as `observations, infos = env.reset()` gives them"
                raise EpisodeError(
                    f"{where}, {name}",
                    expected="a dict by agent",
                    found=f"{type(found).__name__} {found!r}",
                    do=do,
                )

    def others(self) -> list[Any]:
        """Agents that were given something, but no observation."""
        observed, out = self.observations, {}
        for given in (self.actions, self.rewards, self.outputs, self.infos):
            if not given.keys() <= observed.keys():
                out.update(dict.fromkeys(agent for agent in given if agent not in observed))
        out.pop(_COMMON, None)
        return list(out)


def add_step(episode: MultiAgentEpisode, step: EnvStep) -> None:
    """Add an env step (see `MultiAgentEpisode.add_env_step`); if it is refused, the episode is as it was."""
    flagged = any(step.terminateds.values()) or any(step.truncateds.values())
    put: list[AgentSegment] = []
    before: list[tuple[AgentRecord, tuple[Any, ...]]] = []
    try:
        rest = _put_steps(episode, step, put) if not flagged else list(step.observations)
        if rest or flagged or len(put) != len(step.actions) or len(put) != len(step.rewards):
            others: Iterable[Any] = step.others()
        else:
            others = step.others() if step.infos or not step.outputs.keys() <= step.observations.keys() else ()
        if flagged:
            _note_ends(episode, step)
            others = dict.fromkeys([*others, *(agent for agent in step.ends if agent not in step.observations)])
        for agent in [*rest, *others]:
            record = _record(episode, agent)
            before.append((record, record.snapshot()))
            _add_agent(episode, agent, record, step)
    except Exception:
        for record, snapshot in reversed(before):
            record.restore(snapshot)
        for segment in put:
            segment.steps.pop()
            take_back_step(segment.episode)
        raise
    episode.env_t += 1
    if flagged:
        _note_end(episode, step)
    now = perf_counter()
    for segment in put:
        segment.episode._last_step_time = now
    episode._last_step_time = now


def _put_steps(episode: MultiAgentEpisode, step: EnvStep, put: list[AgentSegment]) -> list[Any]:
    """Add the steps of agents that acted and observed and for which nothing waits; returns the other agents."""
    agents, actions, rewards, outputs, infos = episode._agents, step.actions, step.rewards, step.outputs, step.infos
    rest, env_t = [], episode.env_t + 1
    for agent, observation in step.observations.items():
        record = agents.get(agent)
        segment = None if record is None else record.ready
        if segment is None or observation is None or (infos and infos.get(agent)):
            rest.append(agent)
            continue
        action, reward, single = actions.get(agent), rewards.get(agent), segment.episode
        if action is None or reward is None:
            rest.append(agent)
            continue
        try:
            if not put_step(single, observation, action, reward, outputs.get(agent) or _NO_OUTPUTS):
                rest.append(agent)
                continue
        except SpaceError as error:
            add_context(error, _where(episode, agent))
            raise
        single.infos._data.append(EMPTY)
        segment.steps.append(env_t)
        put.append(segment)
    return rest


def _record(episode: MultiAgentEpisode, agent: Any) -> AgentRecord:
    record = episode._agents.get(agent)
    if record is None:
        record = episode._agents[agent] = AgentRecord()
    return record


def _note_ends(episode: MultiAgentEpisode, step: EnvStep) -> None:
    """Find out which agents end in this step, and how: each by its own flags and those for all."""
    terminateds, truncateds = step.terminateds, step.truncateds
    every = (
        as_flag(terminateds.get(_ALL, False), _ALL, episode.id_),
        as_flag(truncateds.get(_ALL, False), _ALL, episode.id_),
    )
    agents = {**dict.fromkeys(terminateds), **dict.fromkeys(truncateds)}
    if any(every):
        living = [agent for agent, record in episode._agents.items() if record.live]
        agents = {**dict.fromkeys(living), **dict.fromkeys(step.observations), **agents}
    agents.pop(_ALL, None)
    for agent in agents:
        terminated = as_flag(terminateds.get(agent, False), f"terminateds[{agent!r}]", episode.id_) or every[0]
        truncated = as_flag(truncateds.get(agent, False), f"truncateds[{agent!r}]", episode.id_) or every[1]
        if terminated or truncated:
            step.ends[agent] = terminated, truncated


def _note_end(episode: MultiAgentEpisode, step: EnvStep) -> None:
    """The episode ends with the flags for all, or when every agent there ever was has ended."""
    episode.is_terminated = bool(step.terminateds.get(_ALL, False))
    episode.is_truncated = bool(step.truncateds.get(_ALL, False))
    if episode.is_done:
        return
    ends = [record.end for record in episode._agents.values() if record.born]
    known = [end for end in ends if end is not None]
    if ends and len(known) == len(ends):
        episode.is_terminated = any(terminated for terminated, _ in known)
        episode.is_truncated = not episode.is_terminated


def _add_agent(episode: MultiAgentEpisode, agent: Any, record: AgentRecord, step: EnvStep) -> None:
    """Add what one agent was given."""
    env_t, end = episode.env_t + 1, step.ends.get(agent)
    observation, action, reward = step.observations.get(agent), step.actions.get(agent), step.rewards.get(agent)
    info, outputs = step.infos.get(agent), step.outputs.get(agent)
    info = None if info is None else as_info(info, f"{episode.id_}, agent {agent!r}")
    given = {"observation": observation, "action": action, "reward": reward, "info": info, "outputs": outputs}
    fault = _fault(record, given)
    if fault is not None:
        expected, found, do = fault
        raise EpisodeStateError(_where(episode, agent), expected=expected, found=found, do=do)
    if record.end is not None and observation is None:
        return  # no more than its flags again
    try:
        if reward is not None:
            record.add_reward(as_reward(reward))
        if action is not None:
            record.action, record.extras = owned(action), dict(outputs or {})
        if observation is None and info:
            record.add_info(info)
        if observation is not None:
            _observe(episode, agent, record, observation, info)
        if end is not None:
            _end(episode, agent, record, end, env_t)
        record.settle()
    except EpibatchError as error:
        add_context(error, f"{_where(episode, agent)}:")
        raise


def _where(episode: MultiAgentEpisode, agent: Any) -> str:
    return f"episode {episode.id_}, agent {agent!r} at env step {episode.env_t + 1}"


def _fault(record: AgentRecord, given: dict[str, Any]) -> tuple[str, str, str] | None:
    """What one agent must not be given as things are: what was expected, what was found, what to do."""
    observed, acted = given["observation"] is not None, given["action"] is not None
    if record.end is not None and not observed:
        late = [name for name, value in given.items() if value is not None]
        if late:
            return (
                "nothing for an agent that has ended, unless a new observation lets it return",
                ", ".join(late),
                "leave it out of what the environment returns after its end",
            )
        return None
    if acted and record.live is None:
        return "an observation to act on", "an action without one", "let agents act that have an observation"
    if acted and record.action is not NOTHING:
        return (
            "an observation after the action before",
            "a second action",
            "let only agents act that get_agents_to_act() names",
        )
    if acted and observed and given["reward"] is None:
        return "a reward for an agent that acted and observed", "none", "return one, 0.0 for nothing"
    if given["outputs"] and not acted:
        return "model outputs with the action they belong to", "outputs without an action", "pass them with it"
    if observed and not acted and record.live is not None and record.action is NOTHING:
        return (
            "an action after each observation",
            "a second observation for an agent that has not acted on the one before",
            "return observations for the agents that act next",
        )
    return None


def _observe(
    episode: MultiAgentEpisode, agent: Any, record: AgentRecord, observation: Any, info: dict[str, Any] | None
) -> None:
    """End the agent's open step with an observation, or let its life begin with it."""
    env_t = episode.env_t + 1
    info = record.take_info(info)
    segment = record.live
    if segment is None:
        _begin(episode, agent, record, observation, info, env_t)
        return
    action, extras, reward = record.take_open()
    segment.episode.add_env_step(observation, action, reward, info, extra_model_outputs=extras)
    segment.steps.append(env_t)


def _begin(
    episode: MultiAgentEpisode,
    agent: Any,
    record: AgentRecord,
    observation: Any,
    info: dict[str, Any] | None,
    env_t: int,
) -> None:
    single = SingleAgentEpisode(
        episode._given_ids.pop(agent, None),
        agent_id=agent,
        module_id=episode.module_for(agent),
        multi_agent_episode_id=episode.id_,
        observation_space=episode.observation_space.get(agent),
        action_space=episode.action_space.get(agent),
    )
    single.add_env_reset(observation, info)
    if not record.born:  # rewards that came earlier made the record: agents are in the order of their appearance
        episode._agents[agent] = episode._agents.pop(agent)
    record.begin(AgentSegment(single, array("q", [env_t])))


def _end(episode: MultiAgentEpisode, agent: Any, record: AgentRecord, end: tuple[bool, bool], env_t: int) -> None:
    """End the agent; an action that waits for its observation gets the last one again if the agent terminated."""
    segment = record.live
    if segment is None:
        return  # it was never there
    if record.action is not NOTHING:
        if not end[0]:
            raise EpisodeStateError(
                "truncated",
                expected="its last observation, from which the value of what would follow is estimated",
                found="none since its action",
                do="return an observation together with the truncated flag (terminated agents need none)",
            )
        single, info = segment.episode, record.info
        if info is None and single.infos._data[-1] is not EMPTY:
            info = single.infos.get(-1)
        given, single._given_observation_space = single._given_observation_space, None  # pieces may have rewritten it
        try:
            _observe(episode, agent, record, owned(single.observations.last()), info)
        finally:
            single._given_observation_space = given
        segment.repeats = True
    record.finish(*end, env_t)


def add_first_observations(episode: MultiAgentEpisode, observations: Any, infos: Any) -> None:
    """Begin the agents that are there at env step `env_t` (see `MultiAgentEpisode.add_env_reset`)."""
    step = EnvStep(observations, {}, {}, infos or {}, {}, {}, {})
    step.check(f"episode {episode.id_}, add_env_reset")
    made: list[Any] = []
    try:
        for agent, observation in observations.items():
            info = as_info(step.infos.get(agent), f"{episode.id_}, agent {agent!r}")
            record = _record(episode, agent)
            made.append(agent)
            _begin(episode, agent, record, observation, info, episode.env_t)
            record.settle()
    except Exception:
        for agent in made:
            del episode._agents[agent]
        raise
    for agent in step.others():
        record = _record(episode, agent)
        record.add_info(as_info(step.infos[agent], f"{episode.id_}, agent {agent!r}"))
        record.settle()


def end_agents(episode: MultiAgentEpisode, terminateds: Mapping[Any, Any], truncateds: Mapping[Any, Any]) -> None:
    """Let agents end with what they were given last, as flags of the constructor say."""
    step = EnvStep({}, {}, {}, {}, terminateds, truncateds, {})
    step.check(f"episode {episode.id_}")
    _note_ends(episode, step)
    episode.env_t -= 1
    for agent, end in step.ends.items():
        record = _record(episode, agent)
        segment = record.live
        if segment is not None:
            _end(episode, agent, record, end, episode.env_t + 1)
            segment.ended_at = segment.steps[-1]
        record.settle()
    episode.env_t += 1
    _note_end(episode, step)
