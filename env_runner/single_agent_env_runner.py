"""Steps N environments with a module between two connector pipelines, and records episodes."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError
from epibatch.core.metrics import WEIGHTS_SEQ_NO
from epibatch.core.structs import flatten, flatten_like, map_struct, unflatten

from ..connectors.authoring.column_transform import acted_at_random, actions_for_env
from ..episodes.flat_columns import episodes_to_columns
from ..episodes.single_agent_episode import SingleAgentEpisode
from ..episodes.vector_episodes import VectorEpisodes
from ..episodes.vector_recorder import VectorRecorder
from .acting.acting_modules import act, name_undeclared_change, sample_masked_actions
from .env_runner import EnvRunner, placed_steps
from .envs.env_checks import has_objects
from .envs.env_stepper import EnvStepper, VectorStep
from .runner_config import RunnerConfig, check_batch_size, config_or_settings

__all__ = ["SingleAgentEnvRunner"]


class SingleAgentEnvRunner(EnvRunner[SingleAgentEpisode]):
    """Makes episodes of one agent.

    Each observation goes through the env-to-module pipeline exactly once, terminal ones included. Placeholders of
    terminal observations that the environment does not give are none.
    The runner stores the module's actions; the environment gets `actions_for_env`, which are stored only with
    `config.keep_actions_for_env`. All other outputs of the module-to-env pipeline are stored as the step's extra model
    outputs.

    Args:
        config: Environment, pipelines and module, as `AlgorithmConfig` has them; None: they are keywords.
        worker_index: Distinguishes the runners of one algorithm; each has a seed of its own.
        **settings: Without a config: `env`, `module`, `num_envs`, `seed` and more, see `OwnLoopConfig`.

    Raises:
        ConfigError: an environment that cannot be made.
        RunnerArgumentError: neither a config nor an environment, or a setting that does not exist.

    Examples:
        >>> runner = SingleAgentEnvRunner(env="CartPole-v1", num_envs=2, seed=0)
        >>> sum(len(episode) for episode in runner.sample(num_timesteps=20))
        20
        >>> runner.stop()
    """

    config: RunnerConfig
    _recorder: VectorRecorder
    _stepper: EnvStepper

    def __init__(self, *, config: RunnerConfig | None = None, worker_index: int = 0, **settings: Any) -> None:
        super().__init__(config=config_or_settings(config, settings), worker_index=worker_index)
        for name in ("observation_space", "action_space"):
            expected, actual = getattr(config, name, None), getattr(self.env, f"single_{name}")
            if expected is not None and expected != actual:
                warnings.warn(
                    f"environment.{name} is {expected}, and the environment has {actual}, which is used. Leave the "
                    "setting out, or correct it.",
                    stacklevel=2,
                )
        self._sequence = np.zeros(self.num_envs, np.int64)

    # -- the parts -----------------------------------------------------------------------------

    def make_env(self) -> Any:
        """Make the vector environment."""
        config = self.config
        if config.env_resets_itself and config.missing_final_obs is None:
            raise ConfigError(
                "env_resets_itself",
                expected="missing_final_obs: what takes the place of terminal observations, which never come",
                found="none",
                do="set missing_final_obs='keep' for the observation before, or 'nan', 'zero' or a number",
            )
        mode, autoreset = config.gym_env_vectorize_mode, config.gym_env_autoreset_mode
        check_batch_size(config)
        return self._make_vector_env(mode, autoreset)

    def make_module(self) -> Any:
        """Make the module."""
        return self.config.get_rl_module_spec(env=self.env, spaces=self.get_spaces()).build()

    def _make_stepper(self) -> EnvStepper:
        return EnvStepper(self.env, self.config.env, restarts=self._restarts, steps_of=self._steps_of_env)

    def _steps_of_env(self, env: int) -> int | None:
        return None if env in self._recorder.waiting else self._recorder.episodes[env].t

    def _make_recorder(self) -> VectorRecorder:
        return VectorRecorder(
            self.num_envs,
            self.env.single_observation_space,
            self.spaces["__episodes__"][1],
            autoreset="next_step" if self._stepper.mode == "next_step" else "same_step",
            stored_observation_space=self.spaces["__episodes__"][0],
            missing_final_obs=self.config.missing_final_obs,
            reward_shape=self._stepper.reward_shape,
        )

    def _new_episode(self, id_: str | None = None) -> SingleAgentEpisode:
        observation_space, action_space = self.env.single_observation_space, self.spaces["__episodes__"][1]
        return SingleAgentEpisode(id_=id_, observation_space=observation_space, action_space=action_space)

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
    ) -> dict[str, Any]:
        """Reset, take some vector steps, and return them as arrays; the next call resets again.

        Args:
            max_steps: Vector steps, at most.
            break_when_any_done: Stop after the first step in which an episode ends.
            break_when_all_done: Stop when each environment's first episode has ended, and leave out what follows it.
                Without either, environments that end begin their next episodes.
            time_major: True for arrays [T, N, ...], False for [N, T, ...].
            explore: Whether actions explore; default: the config's.
            random_actions: Act at random instead of with the module; there are no model outputs then.

        Returns:
            `obs`, `new_obs` (the observations after the steps, at ends the terminal ones, or those before if these are
            missing), `actions`, `rewards`,
            `terminateds`, `truncateds`, the model outputs, and `mask`: bool, False where an environment took no step,
            because it had ended before or was only reset. There all other columns are zeros. If a piece asks to skip
            steps, an environment's row t is its own step t. `mask` is then False at its end.

        Raises:
            RunnerArgumentError: `max_steps` is no number of at least 1, or both ways to break are chosen.
        """

        def first_have_ended(_: int) -> bool:
            return all(chunk.stop is not None or chunk.start for chunk in self._recorder.episodes.chunks)

        breaks = break_when_any_done, break_when_all_done
        self._roll(max_steps, breaks, explore, random_actions, first_have_ended)
        episodes = self._recorder.flush(0)
        spans = [(chunk.start, chunk.env) for chunk in episodes.chunks]
        parts = [part for part in zip(spans, episodes) if len(part[1]) and not (break_when_all_done and part[0][0])]
        rows = [(start + t, env) for (start, env), episode in parts for t in range(len(episode))]
        shape = max((row + 1 for row, _ in rows), default=0), self.num_envs
        return placed_steps(episodes_to_columns([episode for _, episode in parts]), rows, shape, time_major)

    def _harvest(self) -> VectorEpisodes:
        samples = self._recorder.flush(self.lookback)
        following = self._recorder.episodes.chunks
        running = (
            (chunk.env, samples[position])
            for position, chunk in enumerate(samples.chunks)
            if chunk is not following[chunk.env] and chunk.id_ == following[chunk.env].id_
        )
        self._callbacks.keep_running(running)
        return samples

    def _harvest_ended(self, count: int) -> tuple[VectorEpisodes, list[SingleAgentEpisode]]:
        ended = self._recorder.flush(0, cut=not self.config.keep_running_episodes)
        return ended.first(count), ended[count:] if self.config.keep_running_episodes else []

    def _reset_some(self, mask: np.ndarray[Any, np.dtype[np.bool_]], envs: list[int], explore: bool) -> None:
        super()._reset_some(mask, envs, explore)
        self._recorder.flush(0, cut=False)  # so the next fragment writes rows of all environments together

    def _run_env_to_module(self, explore: bool, envs: list[int] | None = None) -> None:
        pending = self._pending
        pending.envs, pending.shared = envs, {}
        episodes = self._recorder.episodes if envs is None else self._observing(envs)
        pending.batch = self._observe_through_pipeline(episodes, explore, pending.shared)
        self._recorder.commit()

    def _observing(self, envs: list[int]) -> list[SingleAgentEpisode]:
        """Return the running episodes of some environments."""
        return [self._recorder.episodes[env] for env in envs]

    def _take_step(self, explore: bool, random_actions: bool, mask: np.ndarray[Any, np.dtype[np.bool_]] | None) -> int:
        if self.config.gym_env_batch_size is not None:
            _, for_env, _ = self._choose_actions(explore, random_actions, kept=range(self.num_envs))
            mask = self._stepper.exchange(for_env, mask, self.config.gym_env_batch_size)
        idle = [] if mask is None else np.flatnonzero(~mask).tolist()
        actions, for_env, extras = self._choose_actions(explore, random_actions, kept=idle)
        try:
            step = self._stepper.step(for_env, mask)
        except Exception as error:
            step = self._all_restarted(error)
            mask, idle = None, []
        skipped = self._recorder.waiting if mask is None else [env for env in self._recorder.waiting if mask[env]]
        failure = next(iter(step.failures.values())) if step.failures else step.failure
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
            step.restarted,
            mask,
        )
        cut: list[Any] = []
        num_cut = 0
        if step.failures or step.restarted:
            cut = [chunk for chunk in ended if chunk.env in step.restarted]
            num_cut = sum(len(chunk) > 0 for chunk in cut)
            for chunk in cut:
                self._metrics.episodes.end(chunk.env)  # before this step, which is none of theirs
            ended = [chunk for chunk in ended if chunk.env not in step.restarted]
            skipped = sorted({*skipped, *step.restarted, *step.failures}.difference(chunk.env for chunk in ended))
        rewards = step.rewards
        if self._stepper.reward_shape:
            rewards = np.reshape(rewards, (self.num_envs, -1)).sum(1)
        self._metrics.add(rewards, skipped, idle)
        for chunk in ended:
            self._metrics.episodes.end(chunk.env)
        split = [] if self._soft_horizon is None else self._split(self._soft_horizon, step.failures)
        if failure is not None:
            self._fail(failure, [*ended, *split], cut, explore)
        at_once = self._stepper.mode != "next_step"
        if ended and at_once:  # no action follows these, as none does when resets come a step later
            self._observe_terminal(ended, explore)
        self._run_env_to_module(explore, None if mask is None else np.flatnonzero(mask).tolist())
        self._callbacks.stepped(
            ended, skipped, begun=at_once, idle=idle, cut=cut, restarted=step.restarted, split=split
        )
        return num_cut + len(ended) + len(split)

    def _split(self, steps: int, failed: Collection[int]) -> list[Any]:
        """End episodes at the soft horizon, before the pipeline processes the first observations of the next ones."""
        ended = self._recorder.split(steps, self.lookback, failed)
        for chunk in ended:
            self._metrics.episodes.end(chunk.env)
        return ended

    def _observe_terminal(self, ended: Sequence[Any], explore: bool) -> None:
        """Run the env-to-module pipeline on terminal observations; placeholders of missing ones are none."""
        episodes = [self._recorder.view(chunk) for chunk in ended if not chunk.lacks_final_obs]
        if episodes:
            self._observe_through_pipeline(episodes, explore, {})

    def _all_restarted(self, error: Exception) -> VectorStep:
        """Make a vector environment again that failed as a whole; return a step that cuts all episodes."""
        observations, infos = self._restart_all(error)
        none = np.zeros(self.num_envs, np.bool_)
        running = [env for env in range(self.num_envs) if self._steps_of_env(env) is not None]
        restarted = dict.fromkeys(running, self._restarts.info_of(error))
        rewards = np.zeros((self.num_envs, *self._stepper.reward_shape))
        return VectorStep(observations, rewards, none, none, infos, restarted=restarted)

    def _observe_ended(self, ended: Sequence[Any], explore: bool) -> None:
        if ended:
            self._observe_terminal(ended, explore)
            self._recorder.commit()

    def _choose_actions(
        self, explore: bool, random_actions: bool, kept: Sequence[int] = ()
    ) -> tuple[Any, Any, dict[str, Any]]:
        pending = self._pending
        envs = pending.envs
        chosen: tuple[Any, Any, dict[str, Any]] = pending.chosen
        if envs is None or envs:
            new = self._random_actions() if random_actions else self._actions(explore)
            version = self._policy.version
            if self._sequence[0] != version:
                self._sequence = np.full(self.num_envs, version)
            new[2][WEIGHTS_SEQ_NO] = self._sequence if envs is None else self._sequence[: len(envs)]
            if self.config.keep_actions_for_env:
                new[2][Columns.ACTIONS_FOR_ENV] = map_struct(np.copy, new[1])
            chosen = new if envs is None else self._with_earlier(new, envs)
        if kept:
            pending.chosen, pending.envs = chosen, []
        return chosen

    def _with_earlier(self, new: tuple[Any, Any, dict[str, Any]], envs: list[int]) -> tuple[Any, Any, dict[str, Any]]:
        """Return actions and outputs of all environments: new ones of some, and those chosen before of the others."""
        join = partial(_joined, envs=envs, num_envs=self.num_envs)
        before: tuple[Any, Any, dict[str, Any]] = self._pending.chosen or (None, None, {})
        outputs = {key: join(before[2].get(key), rows) for key, rows in new[2].items()}
        return join(before[0], new[0]), join(before[1], new[1]), outputs

    def _random_actions(self) -> tuple[Any, Any, dict[str, Any]]:
        legal = sample_masked_actions(
            self._env_to_module, self._pending.batch, self._env_to_module.action_space, self.env.action_space.np_random
        )
        envs = self._pending.envs
        if has_objects(self.env.single_action_space):  # text: one of what the module can say
            space = batch_space(self._env_to_module.action_space, self.num_envs if envs is None else len(envs))
            space.seed(int(self.env.action_space.np_random.integers(2**31)))
            actions = space.sample()
            return actions, actions_for_env(self._env_to_module, actions), {}
        drawn = self.env.action_space.sample()
        if envs is not None:
            drawn = map_struct(lambda leaf: leaf[envs], drawn)
        actions, for_env = legal or acted_at_random(self.pipelines, drawn)
        return actions, map_struct(np.copy, for_env), {}

    def _actions(self, explore: bool) -> tuple[Any, Any, dict[str, Any]]:
        """Return the module's actions, those for the environment, and the other columns of the step."""
        pending = self._pending
        episodes = self._recorder.episodes if pending.envs is None else self._observing(pending.envs)
        try:
            columns = act(
                self.module,
                self._module_to_env,
                pending.batch,
                episodes,
                explore=explore,
                t=self._metrics.steps,
                envs=pending.envs,
                shared_data=pending.shared,
                metrics=self._metrics.logged,
            )
        except Exception as error:
            name_undeclared_change(error, self._env_to_module, episodes, self.module)
            raise
        actions = columns.pop(Columns.ACTIONS)
        for_env = columns.pop(Columns.ACTIONS_FOR_ENV, actions)
        if for_env is actions:  # an environment may change the action it is given
            for_env = actions.copy() if type(actions) is np.ndarray else map_struct(np.copy, actions)
        return actions, for_env, columns


def _joined(before: Any, rows: Any, envs: list[int], num_envs: int) -> Any:
    """Return rows of all environments: new ones of some, and of the others those before, or zeros."""
    values, form = flatten(rows)
    if before is None:
        olds = [np.zeros((num_envs, *np.shape(value)[1:]), np.asarray(value).dtype) for value in values]
    else:
        olds = flatten_like(form, before)
    joined = [np.array(old, np.result_type(old, value)) for old, value in zip(olds, values)]
    for leaf, value in zip(joined, values):
        leaf[envs] = value
    return unflatten(form, joined)
