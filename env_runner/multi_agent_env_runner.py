"""Steps N environments of several agents with their modules between two connector pipelines, and records episodes."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError, RunnerError, nearest
from epibatch.core.metrics import WEIGHTS_SEQ_NO

from ..connectors.authoring.column_transform import acted_at_random
from ..episodes.multi_agent_episode import MultiAgentEpisode
from .agent_acting import AgentActions, ToAct, act_for_agents, own_actions, spread
from .agent_metrics import AgentMetrics
from .autoreset import gymnasium_mode
from .env_runner import EnvRunner
from .legal_draws import legal_actions_of_agents
from .multi_agent_makers import make_vector_multi_agent_env
from .multi_agent_recorder import EndedEpisode, MultiAgentRecorder
from .runner_config import MultiAgentRunnerConfig
from .sampling_metrics import SamplingMetrics
from .vector_multi_agent_env import VectorAgentStep, VectorMultiAgentEnv

__all__ = ["MultiAgentEnvRunner", "MultiAgentStepper"]

_COUNTS = ("env_steps", "agent_steps")
_PATIENCE = 10_000
"""Vector steps without any observation before a call that waits for agents' steps gives up."""


class MultiAgentStepper:
    """Steps multi-agent environments for a runner.

    Args:
        env: The environments.
        seconds: Spent in steps of environments that these replace.

    Attributes:
        seconds: Spent in steps so far.

    Example:
        >>> from epibatch.env_runner import make_multi_agent
        >>> stepper = MultiAgentStepper(VectorMultiAgentEnv([make_multi_agent("CartPole-v1")] * 2))
        >>> observations, infos = stepper.reset(seed=0)
        >>> actions = stepper.random_actions(observations)
        >>> stepper.step(actions).rewards
        [{0: 1.0}, {0: 1.0}]
        >>> stepper.close()
    """

    def __init__(self, env: VectorMultiAgentEnv, *, seconds: float = 0.0) -> None:
        self.env = env
        self.seconds = seconds
        spaces = {agent: copy.deepcopy(space) for agent, space in env.action_spaces.items()}
        self._action_space = gym.spaces.Dict(spaces)

    @property
    def rng(self) -> np.random.Generator:
        """The random generator of random actions."""
        return self._action_space.np_random

    @property
    def broken(self) -> bool:
        """True if the environments must be made again before the next reset."""
        return self.env.closed or self.env.broken

    def reset(self, seed: int | None) -> tuple[list[dict[Any, Any]], list[dict[Any, Any]]]:
        """Reset all environments.

        Args:
            seed: For the first environment; the others get the following numbers. It also seeds the random
                actions. None leaves the random streams as they are.
        """
        if seed is not None:
            self._action_space.seed(seed)
        return self.env.reset(seed=seed)

    def step(self, actions: Sequence[dict[Any, Any]]) -> VectorAgentStep:
        """Step all environments, and reset those that have ended."""
        started = time.perf_counter()
        step = self.env.try_step(actions)
        self.seconds += time.perf_counter() - started
        return step

    def random_actions(self, agents: Sequence[Collection[Any]]) -> list[dict[Any, Any]]:
        """Draw an action from its space for each agent that acts next.

        Args:
            agents: The agents that act next, for each environment.
        """
        spaces = self._action_space.spaces
        return [{agent: spaces[agent].sample() for agent in own} for own in agents]

    def interrupted(self) -> None:
        """Do nothing: the environments themselves note an interrupted call."""

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


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
        config: Environment, pipelines and modules; see `MultiAgentRunnerConfig`.
        worker_index: Distinguishes the runners of one algorithm; each has a seed of its own.

    Raises:
        ConfigError: an environment that cannot be made, or settings that environments of several agents do not have.
    """

    env: VectorMultiAgentEnv
    _recorder: MultiAgentRecorder
    _stepper: MultiAgentStepper

    def __init__(self, *, config: MultiAgentRunnerConfig, worker_index: int = 0, **kwargs: Any) -> None:
        _check(config)
        self._agents = AgentMetrics(config.num_envs_per_env_runner, config.metrics_num_episodes_for_smoothing)
        self._to_act = ToAct([], [], [])
        self._idle = 0
        super().__init__(config=config, worker_index=worker_index, **kwargs)

    # -- the parts -----------------------------------------------------------------------------

    def make_env(self) -> VectorMultiAgentEnv:
        """Make the environments."""
        config = self.config
        return make_vector_multi_agent_env(
            config.env,
            config.num_envs_per_env_runner,
            config.gym_env_vectorize_mode,
            config.env_config,
            config.wrappers,
            copy=False,  # episodes copy
        )

    def make_module(self) -> Any:
        """Make the modules."""
        return self.config.get_multi_rl_module_spec(env=self.env, spaces=self.get_spaces()).build()

    def _env_spaces(self) -> dict[str, Any]:
        env = self.env
        return {
            "__env__": (env.observation_space, env.action_space),
            "__env_single__": (env.single_observation_space, env.single_action_space),
        }

    def _module_spaces(self) -> dict[str, Any]:
        pipeline = self._env_to_module
        actions = pipeline.action_space
        modules = {module_id: (own, actions[module_id]) for module_id, own in pipeline.observation_space.items()}
        return {"__episodes__": (pipeline.episode_observation_space, pipeline.episode_action_space), **modules}

    def _make_stepper(self, seconds: float = 0.0) -> MultiAgentStepper:
        return MultiAgentStepper(self.env, seconds=seconds)

    def _make_recorder(self) -> MultiAgentRecorder:
        return MultiAgentRecorder(self.num_envs, self._new_episode)

    def _new_episode(self) -> MultiAgentEpisode:
        return MultiAgentEpisode(
            observation_space=self.env.observation_spaces,
            action_space=self.spaces["__episodes__"][1],
            agent_to_module_mapping_fn=self.config.policy_mapping_fn,
        )

    def _make_metrics(self) -> SamplingMetrics:
        return SamplingMetrics(self.num_envs, self.config.metrics_num_episodes_for_smoothing, self._agents)

    # -- sampling ------------------------------------------------------------------------------

    def _counted(self) -> int:
        return self._agents.steps if self.config.count_steps_by == "agent_steps" else self._metrics.steps

    def _harvest(self) -> list[MultiAgentEpisode]:
        ended, running = self._recorder.harvest(self.lookback)
        for env, chunk in running:
            self._agents.cut(env, chunk)
        self._callbacks.keep_running(running)
        return [*ended, *(each.episode for each in running)]

    def _harvest_ended(self, count: int) -> list[MultiAgentEpisode]:
        return self._recorder.give_up()[:count]

    def _steps_of(self, episodes: Sequence[MultiAgentEpisode]) -> int:
        if self.config.count_steps_by == "agent_steps":
            return sum(episode.agent_steps() for episode in episodes)
        return super()._steps_of(episodes)

    def _is_whole(self, episode: MultiAgentEpisode) -> bool:
        return episode.env_t_started == 0

    def env_of(self, episode: MultiAgentEpisode) -> int:
        """Return the number of the environment of an episode of the last `sample()`.

        Raises:
            UnknownNameError: the episode is from an earlier call.
        """
        return self._recorder.env_of(episode)

    def _keep(self, episodes: Sequence[MultiAgentEpisode]) -> None:
        self._recorder.keep(episodes)

    def _run_env_to_module(self, explore: bool) -> None:
        """Run the pipeline on the episodes in which an agent observed; episodes without an agent are left out."""
        envs = self._recorder.observed
        episodes = [self._recorder.episodes[env] for env in envs]
        self._shared = {}
        self._to_module = self._show(episodes, explore, self._shared) if envs else {}
        self._to_act = ToAct(envs, episodes, [episode.get_agents_to_act() for episode in episodes])

    def _take_step(self, explore: bool, random_actions: bool) -> int:
        acts = self._random_actions() if random_actions else self._actions(explore)
        step = self._stepper.step(acts.for_env)
        ended, failures = self._recorder.step(acts.stored, acts.outputs, step)
        reset = np.flatnonzero(step.was_reset).tolist()
        self._count(step, [*reset, *failures], ended)
        if failures:
            self._fail(failures, ended, explore)
        self._run_env_to_module(explore)
        self._callbacks.stepped(ended, reset, begun=False)
        self._see_that_somebody_acts()
        return len(ended)

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

    def _fail(self, failures: dict[int, Exception], ended: list[EndedEpisode], explore: bool) -> NoReturn:
        """Report finished episodes, then re-raise the environment's error."""
        others = {*range(self.num_envs)}.difference(each.env for each in ended)  # the next call resets them
        try:
            if ended:
                self._show([each.episode for each in ended], explore, {})
            self._callbacks.stepped(ended, (), begun=False, failed=others)
        finally:
            raise next(iter(failures.values()))

    def _count(self, step: VectorAgentStep, skipped: list[int], ended: list[EndedEpisode]) -> None:
        self._metrics.add(np.array([sum(own.values()) for own in step.rewards], np.float64), sorted({*skipped}))
        for env in {*range(self.num_envs)}.difference(skipped):
            self._agents.add(self._recorder.episodes[env], step.observations[env])
        for env, episode in ended:
            self._metrics.episodes.end(env)
            self._agents.end(env, episode)

    def _random_actions(self) -> AgentActions:
        """Draw an action from its space for each agent that acts next, without other outputs."""
        agents = dict(zip(self._to_act.envs, self._to_act.agents))
        drawn = self._stepper.random_actions([agents.get(env, ()) for env in range(self.num_envs)])
        legal = legal_actions_of_agents(
            self._env_to_module, self._to_module, self._module_spaces(), self._shared, self._stepper.rng
        )
        places = {env: i for i, env in enumerate(self._to_act.envs)}
        actions = [
            {
                agent: legal.get((places[env], agent)) or acted_at_random(self._env_to_module, own, agent)
                for agent, own in each.items()
            }
            for env, each in enumerate(drawn)
        ]
        stored, for_env = ([{agent: own[i] for agent, own in each.items()} for each in actions] for i in (0, 1))
        return AgentActions(stored, [own_actions(each) for each in for_env], [{}] * self.num_envs)

    def _actions(self, explore: bool) -> AgentActions:
        """Return the modules' actions, those for the environments, and the other columns of the step."""
        columns: dict[str, Any] = {}
        # the newest chunks: running episodes may have been cut since the env-to-module call
        to_act = self._to_act._replace(episodes=[self._recorder.episodes[env] for env in self._to_act.envs])
        if any(to_act.agents):
            columns = act_for_agents(
                self.module,
                self._module_to_env,
                self._to_module,
                to_act,
                explore=explore,
                t=self._metrics.steps,
                shared_data=self._shared,
                metrics=self._metrics.logged,
            )
        return spread(columns, to_act, self.num_envs, {WEIGHTS_SEQ_NO: self._acts_as})

    # -- callbacks -----------------------------------------------------------------------------

    def _announced(self, env: int, *, begun: bool) -> MultiAgentEpisode:
        return self._recorder.announced(env)

    def _announce(self, env: int, episode: MultiAgentEpisode, *, begun: bool) -> None:
        pass  # it is the one that will begin


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
