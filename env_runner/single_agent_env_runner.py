"""Steps N environments with a module between two connector pipelines, and records episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import RunnerError, explain
from epibatch.core.metrics import MetricsLogger
from epibatch.core.state_codec import state_parts
from epibatch.core.structs import map_struct

from ..episodes import SingleAgentEpisode, VectorEpisodes, VectorRecorder
from .acting import act
from .chosen_parts import chosen_parts
from .env_stepper import EnvStepper, VectorStep
from .episode_callbacks import EpisodeCallbacks
from .reset_seeds import ResetSeeds
from .runner_config import RunnerConfig
from .sample_amounts import explores, sample_amounts
from .sampling_metrics import SamplingMetrics
from .vector_env import make_vector_env

__all__ = ["SingleAgentEnvRunner"]

WEIGHTS_SEQ_NO = "weights_seq_no"


class SingleAgentEnvRunner:
    """Makes episodes of one agent.

    Each observation goes through the env-to-module pipeline exactly once, terminal ones included.
    What is stored as action is the module's; the environment gets `actions_for_env`. All other
    outputs of the module-to-env pipeline are kept as the step's extra model outputs.

    Args:
        config: Environment, pipelines and module; see `RunnerConfig`.
        worker_index: Distinguishes the runners of one algorithm; added to the seed.

    Raises:
        ConfigError: an environment that cannot be made.

    Example:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2)
        >>> runner = SingleAgentEnvRunner(config=config.debugging(seed=0))
        >>> sum(len(episode) for episode in runner.sample(num_timesteps=20))
        20
        >>> runner.stop()
    """

    def __init__(self, *, config: RunnerConfig, worker_index: int = 0, **kwargs: Any) -> None:
        self.config = config
        self.worker_index = worker_index
        self.env = self.make_env()
        self.num_envs: int = self.env.num_envs
        own = (self.env.single_observation_space, self.env.single_action_space)
        self.spaces: dict[str, Any] = {
            "__env__": (self.env.observation_space, self.env.action_space),
            "__env_single__": own,
        }
        self._env_to_module = config.build_env_to_module_connector(env=self.env, spaces=self.spaces)
        self.spaces["__episodes__"] = (self._env_to_module.episode_observation_space, own[1])
        self.spaces[DEFAULT_MODULE_ID] = (self._env_to_module.observation_space, own[1])
        self._module_to_env = config.build_module_to_env_connector(env=self.env, spaces=self.spaces)
        self.pipelines: dict[str, Any] = {"env_to_module": self._env_to_module, "module_to_env": self._module_to_env}
        self.module = self.make_module()
        self._stepper = EnvStepper(self.env, config.env)
        later = self._stepper.mode == "next_step"
        self._recorder = VectorRecorder(
            self.num_envs,
            *own,
            autoreset="next_step" if later else "same_step",
            stored_observation_space=self.spaces["__episodes__"][0],
        )
        self._metrics = SamplingMetrics(self.num_envs, config.metrics_num_episodes_for_smoothing)
        seed = None if config.seed is None else config.seed + worker_index
        self._reset_seeds = ResetSeeds(seed)
        if seed is not None:
            for pipeline, stream in zip(self.pipelines.values(), np.random.SeedSequence(seed).spawn(2)):
                pipeline.seed(stream)
        self._reset_wanted = True
        self._acted_randomly = False
        self._required_lookback: int | None = 0
        self._rescued: Sequence[SingleAgentEpisode] = []
        self._to_module: dict[str, Any] = {}
        self._shared: dict[str, Any] = {}
        self._weights_seq_no = 0
        self._sequence = np.zeros(self.num_envs, np.int64)
        self._callbacks = EpisodeCallbacks(self)
        self._callbacks.environment_created()

    def make_env(self) -> Any:
        """Make the vector environment."""
        config = self.config
        return make_vector_env(
            config.env,
            config.num_envs_per_env_runner,
            config.gym_env_vectorize_mode,
            config.env_config,
            autoreset=config.gym_env_autoreset_mode,
            wrappers=config.wrappers,
        )

    def make_module(self) -> Any:
        """Make the module."""
        return self.config.get_rl_module_spec(env=self.env, spaces=self.get_spaces()).build()

    def get_spaces(self) -> dict[str, Any]:
        """Observation and action space by name.

        Returns:
            `__env__` (vector), `__env_single__`, `__episodes__` (as pieces write observations back), `default_policy`.
        """
        return self.spaces

    @property
    def metrics(self) -> MetricsLogger:
        """What is logged here, by pieces and callbacks, stands in `get_metrics()`."""
        return self._metrics.logged

    @property
    def num_env_steps_sampled_lifetime(self) -> int:
        """Environment steps taken so far, those before a restore included."""
        return self._metrics.steps

    # -- sampling ------------------------------------------------------------------------------

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> Sequence[SingleAgentEpisode]:
        """Step the environments and hand over what was recorded.

        Args:
            num_timesteps: Take at least so many steps over all environments, in whole vector
                steps. Running episodes are cut and go on at the next call.
            num_episodes: Reset, then return exactly so many whole episodes; the next call resets
                again. Without either number the config's `batch_mode` decides.
            explore: Whether actions explore; default: the config's.
            random_actions: Act at random instead of through the module. Such steps have no model outputs, so
                changing between the two resets the environments; their actions are the environment's.
            force_reset: Drop running episodes and reset first.

        Returns:
            Ended episodes in the order of their ends, then the chunks of running ones.

        Raises:
            RunnerArgumentError: both numbers, or a negative one.
            RunnerError: the runner was stopped, or its environment cannot reset single environments.
        """
        started = time.perf_counter()
        self.assert_healthy()
        num_timesteps, num_episodes = sample_amounts(
            self.config, self.num_envs, self.worker_index, num_timesteps, num_episodes
        )
        explore = explores(explore, self.config.explore)
        if num_timesteps == 0 or num_episodes == 0:
            return []
        if num_episodes is not None or force_reset or random_actions != self._acted_randomly:
            self._reset_wanted = True
        self._acted_randomly = random_actions
        if self._reset_wanted:
            self._reset(explore)
        if num_episodes is None:
            episodes: Sequence[SingleAgentEpisode] = self._sample_steps(num_timesteps or 0, explore, random_actions)
        else:
            episodes = self._sample_episodes(num_episodes, explore, random_actions)
        self._metrics.seconds += time.perf_counter() - started
        if self._rescued:
            episodes = [*self._rescued, *episodes]
        self._rescued = episodes  # until callbacks have had them
        self._callbacks.sample_end(episodes)
        self._rescued = []
        return episodes

    def _sample_steps(self, num_timesteps: int, explore: bool, random_actions: bool) -> VectorEpisodes:
        goal = self._metrics.steps + num_timesteps
        self._recorder.expect(-(-num_timesteps // self.num_envs) + 8)
        while self._metrics.steps < goal:
            self._step(explore, random_actions)
        return self._callbacks.keep_running(self._recorder.harvest(self._lookback()))

    def _sample_episodes(self, num_episodes: int, explore: bool, random_actions: bool) -> VectorEpisodes:
        ended = 0
        while ended < num_episodes:
            ended += self._step(explore, random_actions)
        self._reset_wanted = True
        return self._recorder.harvest(0).first(num_episodes)

    def _lookback(self) -> int:
        """Steps that chunks keep from before their start."""
        if self._required_lookback is None:
            return self._recorder.history
        read = (pipeline.lookback_needed for pipeline in self.pipelines.values())
        return int(max(self.config.episode_lookback_horizon, self._required_lookback, *read))

    def require_lookback(self, steps: int | None) -> None:
        """Keep at least so many earlier steps in chunks from now on.

        Args:
            steps: What the learner pipeline reads; None: not known yet, so keep all there is.
        """
        self._required_lookback = steps

    def _reset(self, explore: bool) -> None:
        if self._stepper.broken:
            self._remake_env()
        self._callbacks.before_reset()
        self._recorder.reset(*self._stepper.reset(self._reset_seeds.next))
        self._reset_seeds.used()
        self._metrics.episodes.forget()
        self._run_env_to_module(explore)
        self._callbacks.after_reset()
        self._reset_wanted = False

    def _remake_env(self) -> None:
        """Replace worker processes that stopped half way; those of a seeded runner are seeded again."""
        self._stepper.close()
        self.env = self.make_env()
        self._stepper = EnvStepper(self.env, self.config.env, seconds=self._stepper.seconds)
        self._reset_seeds.draw_if_seeded()
        self._callbacks.environment_created()

    def _run_env_to_module(self, explore: bool) -> None:
        self._shared = {}
        self._to_module = self._show(self._recorder.episodes, explore, self._shared)
        self._recorder.commit()

    def _show(self, episodes: Sequence[SingleAgentEpisode], explore: bool, shared: dict[str, Any]) -> dict[str, Any]:
        """What the env-to-module pipeline makes of the episodes' newest observations."""
        batch: dict[str, Any] = self._env_to_module(
            rl_module=self.module,
            batch={},
            episodes=episodes,
            explore=explore,
            shared_data=shared,
            metrics=self._metrics.logged,
        )
        return batch

    def _step(self, explore: bool, random_actions: bool) -> int:
        """Take one vector step; returns how many episodes ended."""
        try:
            return self._take_step(explore, random_actions)
        except BaseException:  # Ctrl-C too: what was half done must not become a step
            self._rescue()
            raise

    def _take_step(self, explore: bool, random_actions: bool) -> int:
        actions, for_env, extras = self._random_actions() if random_actions else self._actions(explore)
        if self._sequence[0] != self._weights_seq_no:
            self._sequence = np.full(self.num_envs, self._weights_seq_no)
        extras[WEIGHTS_SEQ_NO] = self._sequence
        step = self._try_env_step(for_env)
        skipped = self._recorder.waiting
        ended = self._recorder.step(
            actions,
            step.rewards,
            step.terminateds,
            step.truncateds,
            step.observations,
            step.infos,
            extras,
            step.final_observations,
            step.reset_infos,
        )
        self._metrics.add(step.rewards, skipped)
        for chunk in ended:
            self._metrics.episodes.end(chunk.env)
        at_once = self._stepper.mode != "next_step"
        if ended and at_once:  # no action follows these, as none does when resets come a step later
            self._show([self._recorder.view(chunk) for chunk in ended], explore, {})
        if step.failure is None:
            self._run_env_to_module(explore)
        self._callbacks.stepped(ended, skipped, begun=at_once and step.failure is None)
        if step.failure is not None:
            raise step.failure
        return len(ended)

    def _try_env_step(self, actions: Any) -> VectorStep:
        return self._stepper.step(actions)

    def _make_on_episode_callback(self, which: str, idx: int, episodes: Any) -> None:
        """Call what listens to an event of the episode that stands at `idx`; RLlib's name."""
        self._callbacks.make(which, idx, episodes)

    def _random_actions(self) -> tuple[Any, Any, dict[str, Any]]:
        actions = self.env.action_space.sample()
        return actions, map_struct(np.copy, actions), {}

    def _actions(self, explore: bool) -> tuple[Any, Any, dict[str, Any]]:
        """The module's actions, those for the environment, and the other columns of the step."""
        columns = act(
            self.module,
            self._module_to_env,
            self._to_module,
            self._recorder.episodes,
            explore=explore,
            t=self._metrics.steps,
            shared_data=self._shared,
            metrics=self._metrics.logged,
        )
        actions = columns.pop(Columns.ACTIONS)
        for_env = columns.pop(Columns.ACTIONS_FOR_ENV, actions)
        if for_env is actions:  # an environment may change the action it is given
            for_env = actions.copy() if type(actions) is np.ndarray else map_struct(np.copy, actions)
        return actions, for_env, columns

    def _rescue(self) -> None:
        """Keep ended episodes for the next call, which will reset."""
        self._reset_wanted = True
        self._stepper.interrupted()
        self._rescued = [*self._rescued, *self._recorder.give_up()]

    # -- metrics and state ---------------------------------------------------------------------

    def get_metrics(self) -> dict[str, Any]:
        """What was sampled: counts since the last call and over the lifetime, returns, seconds."""
        seconds, self._stepper.seconds = self._stepper.seconds, 0.0
        return {**self._metrics.report(), WEIGHTS_SEQ_NO: self._weights_seq_no, "env_step_timer": seconds}

    def checkpoint_reset(self) -> None:
        """Start fresh episodes at the next call, from a seed of this runner's own stream.

        An environment's inner state cannot be saved in general. A run that calls this when it
        saves therefore goes on exactly like one that is restored from what was saved.
        """
        self._reset_seeds.draw()
        self._reset_wanted = True

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Module weights, pipeline states, counters and random streams; not the environments' inner state.

        Args:
            components: Names of the parts to give; default: all.
            not_components: Names of parts to leave out.
        """
        parts: dict[str, Callable[[], Any]] = {
            "rl_module": self.module.get_state,
            **{f"{name}_connector": pipeline.get_state for name, pipeline in self.pipelines.items()},
            WEIGHTS_SEQ_NO: lambda: self._weights_seq_no,
            "required_lookback": lambda: self._required_lookback,
        }
        for counts in (self._metrics.get_state(), self._reset_seeds.get_state()):
            parts.update({name: partial(counts.get, name) for name in counts})
        return chosen_parts(parts, components, not_components)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave, or a part of it; the next call resets the environments.

        Of a part, weights are taken unless their sequence number says that these here are newer.
        """
        whole = "reset_seeds" in state_parts("SingleAgentEnvRunner.set_state", state)
        sequence = int(state.get(WEIGHTS_SEQ_NO, 0))
        if "rl_module" in state and (whole or sequence == 0 or sequence >= self._weights_seq_no):
            self.module.set_state(state["rl_module"])
            self._weights_seq_no = sequence or self._weights_seq_no
        if whole:
            self._weights_seq_no = int(state.get(WEIGHTS_SEQ_NO, self._weights_seq_no))
            self._reset_seeds.set_state(state)
            self._reset_wanted = True
        for name, pipeline in self.pipelines.items():
            if f"{name}_connector" in state:
                pipeline.set_state(state[f"{name}_connector"])
        self._metrics.set_state(state)
        if "required_lookback" in state:
            self._required_lookback = state["required_lookback"]

    def weights_updated(self) -> None:
        """Count that the module's weights changed."""
        self._weights_seq_no += 1

    def assert_healthy(self) -> None:
        """Check that the runner has an environment.

        Raises:
            RunnerError: it was stopped.
        """
        if self.env is None:
            raise RunnerError(
                explain("SingleAgentEnvRunner", expected="an environment", found="none", do="make a new runner")
            )

    def stop(self) -> None:
        """Close the environments."""
        if self.env is not None:
            self._stepper.close()
            self.env = None
