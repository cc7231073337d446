"""Steps N environments of several agents with their modules between two connector pipelines, and records episodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, RunnerError, UnknownNameError, add_context, nearest
from epibatch.core.metrics import WEIGHTS_SEQ_NO
from epibatch.core.runtime import evaluation_mode

from ..connectors.authoring.column_transform import acted_at_random
from ..episodes.flat_columns import episodes_to_columns
from ..episodes.multi_agent_episode import MultiAgentEpisode
from .acting.acting_modules import (
    AgentActions,
    ToAct,
    act_for_agents,
    copied_actions,
    explores,
    name_undeclared_change,
    sample_masked_actions_of_agents,
    spread,
)
from .env_runner import EnvRunner, placed_steps
from .envs.env_checks import gymnasium_mode
from .envs.env_stepper import MultiAgentStepper
from .envs.make_env import make_vector_multi_agent_env, wrappers_of
from .envs.vector_envs import VectorAgentStep, VectorMultiAgentEnv, masks_of_agents
from .metrics import AgentMetrics
from .runner_config import MultiAgentRunnerConfig, check_batch_size, config_or_settings
from .runner_state import Running

__all__ = ["MultiAgentEnvRunner", "MultiAgentRecorder"]


class EndedEpisode(NamedTuple):
    """An episode that has ended.

    Args:
        env: Its environment.
        episode: Its chunk since the last flush.
    """

    env: int
    episode: MultiAgentEpisode


class MultiAgentRecorder:
    """Records the return values of N multi-agent environments as one running episode for each.

    Args:
        num_envs: N.
        new_episode: Makes an episode that was not reset.
        has_limit: True if `__all__` in truncateds may be a limit outside of the environments. An agent that waits for
            an observation then ends with the one before, and its action is dropped.

    Attributes:
        episodes: One for each environment: the running one, or the ended one until the step that resets it.
        observed: Environments in which an agent has a new observation.

    Examples:
        >>> recorder = MultiAgentRecorder(1, MultiAgentEpisode)
        >>> recorder.reset([{"a": 0.5}], [{}])
        >>> recorder.episodes[0].get_observations()
        {'a': array([0.5])}
    """

    def __init__(self, num_envs: int, new_episode: Callable[[], MultiAgentEpisode], *, has_limit: bool = False) -> None:
        self.num_envs, self._has_limit = num_envs, has_limit
        self._new_episode = new_episode
        self.episodes: list[MultiAgentEpisode] = []
        self.observed: list[int] = []
        self._ended: list[MultiAgentEpisode] = []
        self._coming: dict[int, MultiAgentEpisode] = {}
        self._since = [0] * num_envs  # the env step at which each running episode began
        self._splitting: dict[int, str] = {}  # the ids of the episodes between begin_split and split
        self._numbers: dict[str, int] = {}
        self._kept: set[str] = set()

    def name_next_episode(self, env: int, episode: MultiAgentEpisode) -> None:
        """Set the episode that the next reset of an environment will begin."""
        self._coming[env] = episode

    @property
    def waiting(self) -> list[int]:
        """The environments with a next step that only gives their reset observations."""
        return [env for env, episode in enumerate(self.episodes) if episode.is_done]

    def reset(
        self, observations: Sequence[dict[Any, Any]], infos: Sequence[dict[Any, Any]], *, mask: Any = None
    ) -> None:
        """Start an episode in every environment, or in some; running ones are dropped.

        Args:
            observations: Reset observations, by agent for each environment.
            infos: Their infos.
            mask: The environments that were reset: bool [N]; None: all.

        Raises:
            SpaceError: an observation does not fit its agent's space.
        """
        envs = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        episodes = dict(enumerate(self.episodes))
        for env in envs:
            try:
                episodes[env] = self._begun(env, observations[env], infos[env])
            except Exception as error:
                add_context(error, f"environment {env}:")
                raise
        self.episodes = [episodes[env] for env in range(self.num_envs)]
        self.observed = [env for env in envs if observations[env]]

    def begin(self, env: int, observations: dict[Any, Any], infos: dict[Any, Any]) -> None:
        """Begin the next episode of an environment that ended and was reset in the same step.

        Args:
            env: Its number.
            observations: Reset observations, by agent.
            infos: Their infos.
        """
        self.episodes[env] = self._begun(env, observations, infos)
        self.observed = sorted({*self.observed, env} if observations else {*self.observed}.difference([env]))

    def _begun(self, env: int, observations: dict[Any, Any], infos: dict[Any, Any]) -> MultiAgentEpisode:
        episode = self._coming.pop(env) if env in self._coming else self._new_episode()
        episode.add_env_reset(observations=observations, infos=infos)
        self._numbers[episode.id_], self._since[env] = env, 0
        return episode

    def env_of(self, episode: MultiAgentEpisode) -> int:
        """Return the environment of an episode that is running or was returned last.

        Raises:
            UnknownNameError: it is neither.
        """
        if episode.id_ in self._numbers:
            return self._numbers[episode.id_]
        raise UnknownNameError(
            "env_of",
            expected="an episode that runs, or one of the last sample",
            found=f"episode {episode.id_!r}, of an earlier sample or of another runner",
            do="ask before the next sample, and keep the number, in episode.custom_data say",
        )

    def keep(self, episodes: Sequence[MultiAgentEpisode]) -> None:
        """Keep the environments of aborted episodes that are returned later."""
        self._kept = {episode.id_ for episode in episodes}

    def step(
        self,
        actions: Sequence[dict[Any, Any]],
        outputs: Sequence[dict[Any, Any]],
        step: VectorAgentStep,
        idle: Collection[int] = (),
    ) -> tuple[list[EndedEpisode], dict[int, Exception]]:
        """Add a step to every episode, or begin an episode if the environment was reset.

        Args:
            actions: The modules' actions, by agent for each environment.
            outputs: For each environment a dict from agent to the other outputs for its action.
            step: The environments' return values.
            idle: Environments that were not stepped.

        Returns:
            The episodes that ended, and for environments that took no step the error.
        """
        failures: dict[int, Exception] = dict(step.failures)
        ended: list[EndedEpisode] = []
        for env in range(self.num_envs):
            if env in failures or env in idle:
                continue
            try:
                self._add(env, actions[env], outputs[env], step)
            except Exception as error:
                add_context(error, f"environment {env}:")
                failures[env] = error
                continue
            if self.episodes[env].is_done:
                ended.append(EndedEpisode(env, self.episodes[env]))
                self._ended.append(self.episodes[env])
        self.observed = [env for env in range(self.num_envs) if step.observations[env] and env not in failures]
        return ended, failures

    def restart(
        self, env: int, observations: dict[Any, Any], infos: dict[Any, Any], info: dict[str, Any] | None
    ) -> list[EndedEpisode]:
        """Begin the next episode of an environment that failed and was made again.

        Args:
            env: Its number.
            observations: Reset observations, by agent.
            infos: Their infos.
            info: Added to the last infos of its running episode, which is truncated; None: it is dropped.

        Returns:
            The episode that was truncated, if it has steps; those may all be in earlier chunks.
        """
        episode, since = self.episodes[env], self._since[env]
        self.begin(env, observations, infos)
        if info is None or episode.is_done or episode.env_t == since:
            return []
        episode.truncate(info)
        if len(episode):
            self._ended.append(episode)
        return [EndedEpisode(env, episode)]

    def _add(self, env: int, actions: dict[Any, Any], outputs: dict[Any, Any], step: VectorAgentStep) -> None:
        if step.was_reset[env]:
            self.episodes[env] = self._begun(env, step.observations[env], step.infos[env])
            return
        episode, truncateds = self.episodes[env], step.truncateds[env]
        at_limit = self._has_limit and truncateds[_ALL] and not step.terminateds[env][_ALL]
        episode.add_env_step(
            step.observations[env],
            actions,
            step.rewards[env],
            step.infos[env],
            terminateds=step.terminateds[env],
            truncateds={**truncateds, _ALL: False} if at_limit else truncateds,
            extra_model_outputs=outputs,
        )
        if at_limit and not episode.is_done:
            episode.truncate()

    def begin_split(self, steps: int) -> None:
        """Give the running episodes that have so many steps the ids of those that follow, until `split`.

        So pieces that match agents by the id find those that act next.

        Args:
            steps: Env steps of an episode.
        """
        self._splitting = {
            env: _rename(episode, self._new_episode().id_)
            for env, episode in enumerate(self.episodes)
            if not episode.is_done and episode.env_t - self._since[env] >= steps
        }

    def split(self, lookback: int) -> list[EndedEpisode]:
        """End the episodes of `begin_split` without a flag; others begin where they stand.

        The new ones have what waits for an agent's next observation, and the environment's count of steps.

        Args:
            lookback: Number of earlier steps that the new ones keep, as for `flush`.

        Returns:
            The episodes that ended.
        """
        ended = []
        for env, id_ in self._splitting.items():
            episode = self.episodes[env]
            following = self.episodes[env] = episode.cut(lookback, agent_steps=lookback)
            following.custom_data.clear()
            _rename(episode, id_)
            self._numbers[following.id_], self._since[env] = env, episode.env_t
            self._ended.append(episode)
            ended.append(EndedEpisode(env, episode))
        return ended

    def view(self, ended: EndedEpisode) -> MultiAgentEpisode:
        """Return an ended episode."""
        return ended.episode

    def reserve(self, vector_steps: int) -> None:
        """Do nothing: multi-agent episodes allocate memory themselves."""

    @property
    def partial(self) -> set[str]:
        """Return the ids of the running episodes that have steps in earlier chunks."""
        return {episode.id_ for env, episode in enumerate(self.episodes) if episode.env_t_started > self._since[env]}

    @property
    def history(self) -> int:
        """Return the largest number of steps of an agent in a running episode, lookback included."""
        running = (segment for episode in self.episodes if not episode.is_done for segment in episode.segments)
        return max((len(segment.steps) - 1 for segment in running), default=0)

    def flush(self, lookback: int) -> tuple[list[MultiAgentEpisode], list[EndedEpisode]]:
        """Return the recorded episodes; running ones continue in new chunks.

        Args:
            lookback: Number of earlier steps that new chunks keep: for each running agent this many of its own steps,
                if it has them, and at least this many env steps.

        Returns:
            The episodes that ended, in the order of their ends, and the chunks of running ones that have steps.
        """
        ended, running = self.abort(), []
        for env, episode in enumerate(self.episodes):
            if not episode.is_done and len(episode):
                running.append(EndedEpisode(env, episode))
                self.episodes[env] = episode.cut(lookback, agent_steps=lookback)
        return ended, running

    def abort(self) -> list[MultiAgentEpisode]:
        """Return the episodes that ended."""
        ended, self._ended = self._ended, []
        ids = {episode.id_ for episode in (*ended, *self.episodes)} | self._kept
        self._numbers = {id_: env for id_, env in self._numbers.items() if id_ in ids}
        return ended


def _rename(episode: MultiAgentEpisode, id_: str) -> str:
    """Change the id of an episode, and return the one before."""
    before, episode.id_ = episode.id_, id_
    for segment in episode.segments:
        segment.episode.multi_agent_episode_id = id_
    return before


_ALL = "__all__"
_COUNTS = ("env_steps", "agent_steps")
_PATIENCE = 10_000
"""Vector steps without any observation before a call that waits for agents' steps gives up."""


class MultiAgentEnvRunner(EnvRunner[MultiAgentEpisode]):
    """Makes episodes of several agents.

    Each observation goes through the env-to-module pipeline exactly once, terminal ones included. The pipeline gets
    the episodes in which an agent observed in the vector step. `config.policy_mapping_fn(agent_id, episode)` maps an
    agent to its module when the agent first appears in an episode. The runner stores the module's actions; the
    environment gets `actions_for_env`. All other outputs of the module-to-env pipeline are stored as the step's extra
    model outputs.

    With `config.count_steps_by="agent_steps"`, `num_timesteps` of `sample()` counts agents' steps, else those of the
    environments. Chunks of running episodes keep as many earlier steps of each agent as the pieces read.

    Args:
        config: Environment, pipelines and modules, as `AlgorithmConfig` has them; None: they are keywords.
        worker_index: Distinguishes the runners of one algorithm; each has a seed of its own.
        **settings: Without a config: `env`, `module`, `policy_mapping_fn`, `num_envs` and more, see `OwnLoopConfig`.

    Raises:
        ConfigError: an environment that cannot be made, or settings that environments of several agents do not have.
    """

    config: MultiAgentRunnerConfig
    env: VectorMultiAgentEnv
    _recorder: MultiAgentRecorder
    _stepper: MultiAgentStepper
    _several_agents = True

    def __init__(self, *, config: MultiAgentRunnerConfig | None = None, worker_index: int = 0, **settings: Any) -> None:
        config = config_or_settings(config, settings, several_agents=True)
        _check(config)
        self._agents_to_act: list[Collection[Any]] = []
        self._idle = 0
        super().__init__(config=config, worker_index=worker_index)
        self._agents = cast("AgentMetrics", self._metrics.agents)

    # -- the parts -----------------------------------------------------------------------------

    def make_env(self) -> VectorMultiAgentEnv:
        """Make the environments."""
        config = self.config
        check_batch_size(config)
        return make_vector_multi_agent_env(
            config.env,
            config.num_envs_per_env_runner,
            config.gym_env_vectorize_mode,
            self.env_context,
            wrappers_of(config),
            copy=False,  # episodes copy
            per_process=config.num_envs_per_worker,
            timeout=config.sub_environment_timeout_s,
            episode_end=config.episode_end,
        )

    def make_module(self) -> Any:
        """Make the modules."""
        return self.config.get_multi_rl_module_spec(env=self.env, spaces=self.get_spaces()).build()

    def _module_spaces(self) -> dict[str, Any]:
        pipeline = self._env_to_module
        actions = pipeline.action_space
        modules = {module_id: (space, actions[module_id]) for module_id, space in pipeline.observation_space.items()}
        return {"__episodes__": (pipeline.episode_observation_space, pipeline.episode_action_space), **modules}

    def _make_stepper(self) -> MultiAgentStepper:
        return MultiAgentStepper(self.env, restarts=self._restarts)

    def _make_recorder(self) -> MultiAgentRecorder:
        limits = self.config.horizon, self.config.random_first_horizon
        has_limit = limits != (None, None) or self.config.episode_end == "any"
        return MultiAgentRecorder(self.num_envs, self._new_episode, has_limit=has_limit)

    def _new_episode(self, id_: str | None = None) -> MultiAgentEpisode:
        episode = MultiAgentEpisode(
            id_,
            observation_space=self.env.observation_spaces,
            action_space=self.spaces["__episodes__"][1],
            agent_to_module_mapping_fn=self.config.policy_mapping_fn,
        )
        episode.checks_actions = False
        return episode

    # -- sampling ------------------------------------------------------------------------------

    def rollout(
        self,
        max_steps: int,
        *,
        break_when_any_done: bool = False,
        break_when_all_done: bool = False,
        time_major: bool = True,
        explore: bool | str | None = None,
        random_actions: bool = False,
    ) -> dict[Any, dict[str, Any]]:
        """Reset, take some vector steps, and return those of each agent as arrays; the next call resets again.

        Args:
            max_steps: As in `SingleAgentEnvRunner.rollout`, and so are the others.
            break_when_any_done: Stop after the first step in which an environment's episode ends.
            break_when_all_done: Stop when each environment's first episode has ended, and leave out what follows it.
            time_major: True for arrays [T, N, ...], False for [N, T, ...].
            explore: Whether actions explore; default: the config's.
            random_actions: Act at random instead of with the modules.

        Returns:
            For each agent that acted the columns of `SingleAgentEnvRunner.rollout`, all with the same T. An agent's
            step lies in the row of the env step in which it acted, and `mask` is False in the others. Its reward and
            `new_obs` are those until it observed again.

        Raises:
            RunnerArgumentError: `max_steps` is no number of at least 1, or both ways to break are chosen.
        """
        begun: dict[str, tuple[int, int]] = {}  # the id of an episode -> its first row, and its environment

        def first_have_ended(row: int) -> bool:
            for env, episode in enumerate(self._recorder.episodes):
                begun.setdefault(episode.id_, (row, env))
            return all(episode.is_done or begun[episode.id_][0] for episode in self._recorder.episodes)

        breaks = break_when_any_done, break_when_all_done
        self._roll(max_steps, breaks, explore, random_actions, first_have_ended)
        ended, running = self._recorder.flush(0)
        episodes = [*ended, *(item.episode for item in running)]
        if break_when_all_done:
            episodes = [episode for episode in episodes if not begun[episode.id_][0]]
        shape = max((begun[episode.id_][0] + len(episode) for episode in episodes), default=0), self.num_envs
        columns = {}
        for agent, steps in episodes_to_columns(episodes).items():
            places = [(begun[id_][0] + int(t), begun[id_][1]) for id_, t in zip(steps[Columns.EPS_ID], steps["env_t"])]
            columns[agent] = placed_steps(steps, places, shape, time_major)
        return columns

    def reset(self, *, mask: Any = None, explore: bool | str | None = None) -> None:
        """Reset all environments, or some, or single agents in some.

        Args:
            mask: As in `EnvRunner.reset`; or a dict from agent to such a mask. These agents are truncated, and begin
                again with the next step of their episode. Where `__all__` is True, the whole environment is reset.
            explore: As in `EnvRunner.reset`.

        Raises:
            UnknownNameError: a mask of an agent that does not exist.
            NotAvailableError: an environment that has no `reset_agents`.
            RunnerError: As in `EnvRunner.reset`.
        """
        alone: dict[int, list[Any]] = {}
        if isinstance(mask, Mapping):
            agents, where = self.env.possible_agents, f"{type(self).__name__}.reset"
            mask, alone = masks_of_agents(mask, agents, self.num_envs, where)
            self.env.check_resets_of_agents(alone)
        begins = self._running is Running.NONE
        super().reset(mask=mask, explore=explore)
        if alone and not begins:
            with self._only_call("reset"), evaluation_mode(self.module):
                self._reset_agents(alone, explores(explore, self.config.explore))

    def _reset_agents(self, agents: dict[int, list[Any]], explore: Any) -> None:
        """Reset agents of environments that have not ended; actions of the others are chosen before."""
        agents = {env: names for env, names in agents.items() if not self._recorder.episodes[env].is_done}
        masks = {agent: np.zeros(self.num_envs, np.bool_) for agent in self.env.possible_agents}
        try:
            self._note_skips()
            acts = self._choose_actions(explore, self._policy.is_random, kept=range(self.num_envs))
            for env, names in agents.items():
                for agent in names:
                    masks[agent][env] = True
            self.env.reset(mask=masks)
            for env, names in agents.items():
                self._recorder.episodes[env].truncate(agents=names)
                for rows in acts:
                    rows[env] = {agent: value for agent, value in rows[env].items() if agent not in names}
        except BaseException:
            self._rescue()
            raise

    def _steps_counted(self) -> int:
        return self._agents.steps if self.config.count_steps_by == "agent_steps" else self._metrics.steps

    def _harvest(self) -> list[MultiAgentEpisode]:
        ended, running = self._recorder.flush(self.lookback)
        for env, chunk in running:
            self._agents.cut(env, chunk)
        self._callbacks.keep_running(running)
        return [*ended, *(item.episode for item in running)]

    def _harvest_ended(self, count: int) -> tuple[list[MultiAgentEpisode], list[MultiAgentEpisode]]:
        ended = self._recorder.abort()
        return ended[:count], ended[count:] if self.config.keep_running_episodes else []

    def _steps_of(self, episodes: Sequence[MultiAgentEpisode]) -> int:
        if self.config.count_steps_by == "agent_steps":
            return sum(episode.agent_steps() for episode in episodes)
        return super()._steps_of(episodes)

    def env_of(self, episode: MultiAgentEpisode) -> int:
        """Return the number of the environment of an episode of the last `sample()`.

        Raises:
            UnknownNameError: the episode is from an earlier call.
        """
        return self._recorder.env_of(episode)

    def _carry(self, episodes: Sequence[MultiAgentEpisode]) -> None:
        super()._carry(episodes)
        self._recorder.keep(episodes)

    def _run_env_to_module(self, explore: bool, envs: list[int] | None = None) -> None:
        """Run the pipeline on the episodes in which an agent observed; episodes without an agent are left out."""
        pending = self._pending
        envs = pending.envs = self._recorder.observed
        episodes = [self._recorder.episodes[env] for env in envs]
        pending.shared = {}
        pending.batch = self._observe_through_pipeline(episodes, explore, pending.shared) if envs else {}
        self._agents_to_act = [episode.get_agents_to_act() for episode in episodes]

    def _choose_actions(self, explore: bool, random_actions: bool, kept: Sequence[int] = ()) -> AgentActions:
        acts = self._random_actions() if random_actions else self._actions(explore)
        if self.config.keep_actions_for_env:
            acts = acts.with_actions_for_env()
        if self._pending.chosen is not None:
            before, envs = self._pending.chosen
            for env in envs:
                for rows, rows_before in zip(acts, before):
                    rows[env] = rows_before[env]
        self._pending.chosen = (acts, kept) if kept else None
        if kept:
            self._pending.envs, self._pending.batch, self._agents_to_act = [], {}, []
        return acts

    def _take_step(self, explore: bool, random_actions: bool, mask: np.ndarray[Any, np.dtype[np.bool_]] | None) -> int:
        if self.config.gym_env_batch_size is not None:
            acts = self._choose_actions(explore, random_actions, kept=range(self.num_envs))
            mask = self._stepper.exchange(acts.for_env, mask, self.config.gym_env_batch_size)
        idle = [] if mask is None else np.flatnonzero(~mask).tolist()
        acts = self._choose_actions(explore, random_actions, kept=idle)
        step = self._stepper.step(acts.for_env, mask)
        ended, failures = self._recorder.step(acts.stored, acts.outputs, step, idle)
        reset = np.flatnonzero(step.was_reset).tolist()
        cut, left = self._restart(failures) if failures else ([], {})
        self._count(step, [*reset, *failures], ended, idle)
        if self._soft_horizon is not None:
            self._recorder.begin_split(self._soft_horizon)
        if left:
            self._fail(next(iter(left.values())), [*ended, *self._split()], cut, explore)
        if step.resets:
            self._observe_ended(ended, explore)
            for env, reset_values in step.resets.items():
                self._recorder.begin(env, *reset_values)
        self._run_env_to_module(explore)
        split = self._split()  # after the pipeline, as agents that end in this step are not in the next episodes
        restarted = {*failures}.difference(reset)
        self._callbacks.stepped(
            ended, reset, begun=bool(step.resets), idle=idle, cut=cut, restarted=restarted, split=split
        )
        self._see_that_somebody_acts()
        return sum(len(item.episode) > 0 for item in cut) + len(ended) + len(split)

    def _split(self) -> Sequence[EndedEpisode]:
        """End episodes at the soft horizon."""
        split = () if self._soft_horizon is None else self._recorder.split(self.lookback)
        self._count_ends(split)
        return split

    def _restart(self, failures: dict[int, Exception]) -> tuple[list[EndedEpisode], dict[int, Exception]]:
        """Make environments again, as far as the budget reaches; return the cut episodes, and the errors that stay."""
        cut: list[EndedEpisode] = []
        left: dict[int, Exception] = {}
        for env, failure in failures.items():
            try:
                observations, infos = self._stepper.restart(env, failure)
            except Exception as error:
                left[env] = error
                continue
            cut += self._recorder.restart(env, observations, infos, self._restarts.info_of(failure))
        self._count_ends(cut)
        self._agents.forget([*failures])
        return cut, left

    def _see_that_somebody_acts(self) -> None:
        """Raise if no agent has observed for very many steps while the runner counts agents' steps."""
        self._idle = 0 if self._recorder.observed or self.config.count_steps_by == "env_steps" else self._idle + 1
        if self._idle >= _PATIENCE:
            self._idle = 0
            raise RunnerError(
                "sample() with count_steps_by='agent_steps'",
                expected="an environment in which agents act",
                found=f"no observation of any agent in {_PATIENCE} vector steps",
                do="end episodes in which no agent is left, or count env_steps",
            )

    def _observe_ended(self, ended: Sequence[EndedEpisode], explore: bool) -> None:
        observed = [item.episode for item in ended if item.env in self._recorder.observed]
        if observed:
            self._observe_through_pipeline(observed, explore, {})

    def _count(self, step: VectorAgentStep, skipped: list[int], ended: list[EndedEpisode], idle: list[int]) -> None:
        sums = (sum(by_agent.values()) for by_agent in step.rewards)  # of vectors, the sum over all objectives
        rewards = [total.sum() if type(total) is np.ndarray else total for total in sums]
        self._metrics.add(np.array(rewards, np.float64), sorted({*skipped}), idle)
        for env in {*range(self.num_envs)}.difference(skipped, idle):
            self._agents.add(self._recorder.episodes[env], step.observations[env])
        self._count_ends(ended)

    def _count_ends(self, ended: Sequence[EndedEpisode]) -> None:
        for env, episode in ended:
            self._metrics.episodes.end(env)
            self._agents.end(env, episode)

    def _random_actions(self) -> AgentActions:
        """Draw an action from its space for each agent that acts next, without other outputs."""
        pending, envs = self._pending, self._pending.envs or []
        agents = dict(zip(envs, self._agents_to_act))
        drawn = self._stepper.random_actions([agents.get(env, ()) for env in range(self.num_envs)])
        legal = sample_masked_actions_of_agents(
            self._env_to_module, pending.batch, self._module_spaces(), pending.shared, self._stepper.rng
        )
        places = {env: i for i, env in enumerate(envs)}
        actions = [
            {
                agent: legal.get((places[env], agent)) or acted_at_random(self.pipelines, action, agent)
                for agent, action in group.items()
            }
            for env, group in enumerate(drawn)
        ]
        stored, for_env = ([{agent: pair[i] for agent, pair in group.items()} for group in actions] for i in (0, 1))
        return AgentActions(stored, [copied_actions(group) for group in for_env], [{}] * self.num_envs)

    def _actions(self, explore: bool) -> AgentActions:
        """Return the modules' actions, those for the environments, and the other columns of the step."""
        columns: dict[str, Any] = {}
        envs = self._pending.envs or []
        # the newest chunks: running episodes may have been cut since the env-to-module call
        to_act = ToAct(envs, [self._recorder.episodes[env] for env in envs], self._agents_to_act)
        if any(to_act.agents):
            try:
                columns = act_for_agents(
                    self.module,
                    self._module_to_env,
                    self._pending.batch,
                    to_act,
                    explore=explore,
                    t=self._metrics.steps,
                    shared_data=self._pending.shared,
                    metrics=self._metrics.logged,
                )
            except Exception as error:
                name_undeclared_change(error, self._env_to_module, to_act.episodes, self.module)
                raise
        return spread(columns, to_act, self.num_envs, {WEIGHTS_SEQ_NO: self._policy.version})


def _check(config: MultiAgentRunnerConfig) -> None:
    if config.count_steps_by not in _COUNTS:
        found, do = repr(config.count_steps_by), nearest(str(config.count_steps_by), _COUNTS)
        raise ConfigError("count_steps_by", expected=f"one of {_COUNTS}", found=found, do=do)
    mode = config.gym_env_autoreset_mode
    if mode is not None and gymnasium_mode(mode).name != "NEXT_STEP":
        raise ConfigError(
            "gym_env_autoreset_mode",
            expected="'next_step', the one mode of environments of several agents",
            found=repr(mode),
            do="leave it out",
        )
    if config.env_resets_itself or config.missing_final_obs is not None:
        raise ConfigError(
            "env_resets_itself and missing_final_obs",
            expected="none of them for environments of several agents, which wait for reset()",
            found=f"{config.env_resets_itself!r} and {config.missing_final_obs!r}",
            do="leave them out; return the terminal observations, and reset in reset()",
        )
