"""Steps a vector environment of torch tensors on its device, into a storage or into episodes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from epibatch.core import NUM_ENV_STEPS
from epibatch.core.columns import Columns
from epibatch.core.errors import (
    ColumnError,
    ConfigError,
    EnvironmentContractError,
    EpibatchWarning,
    RolloutOverflowError,
    RunnerArgumentError,
    RunnerError,
    add_context,
)
from epibatch.core.metrics import WEIGHTS_SEQ_NO
from epibatch.core.rl_module.module_facts import is_stateful
from epibatch.core.runtime import evaluation_mode, usable_device, without_gradients
from epibatch.core.spaces import agents_axis_advice, get_base_struct_from_space
from epibatch.core.structs import (
    convert_to_numpy,
    flatten,
    flatten_like,
    map_struct,
    paths_of,
    stack_rows,
    unflatten,
)
from epibatch.core.tensors import convert_to_torch_tensor

from ..connectors.authoring.column_transform import acted_at_random
from ..connectors.tensor_step import TensorStep, group_of_tensors
from ..episodes import VectorEpisodes
from ..episodes.single_agent_episode import SingleAgentEpisode
from ..episodes.vector_checks import check_placeholder
from .acting.acting_modules import explores, forward, is_of_user, sample_masked_actions
from .acting.initial_states import InitialStates, where
from .acting.later_values import LaterValues, has_rows
from .acting.tensor_recorder import TensorRecorder
from .env_runner import EnvRunner, is_amount
from .envs.env_checks import adapter_advice, gymnasium_mode
from .envs.env_stepper import EnvStepper, VectorStep
from .envs.make_env import makes_vector_env
from .envs.tensor_envs import device_of, shapes_of
from .runner_config import RunnerConfig, config_or_settings
from .runner_state import Running

__all__ = ["StepStorage", "TensorEnvRunner"]

_ACTIONS = (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)
_PER_ENV = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
_VALUES = {Columns.VF_PREDS, Columns.VALUES_BOOTSTRAPPED}
_WITH_FINAL = {Columns.OBS, *_PER_ENV[1:]}
_WITHOUT_EFFECT = ("restart_failed_sub_environments", "soft_horizon", "keep_running_episodes")

_FINAL = "infos['final_obs'] of step()"
_DECLARE = "declare takes_tensors: ClassVar[bool] = True in {} if its code works on tensors; or "


class StepStorage(Protocol):
    """Storage of steps of N environments, such as `epibatch.learner.RolloutStorage`."""

    num_steps: int
    num_envs: int
    columns: dict[str, Any]

    def __len__(self) -> int:
        """Return the number of steps since the last `clear`."""

    def __getitem__(self, name: str) -> Any:
        """Return a column of these steps: `[len(self), N, ...]`, which the runner writes to."""

    def add_step(
        self, step: Mapping[str, Any], *, final_obs: Any = None, final_state: Any = None, final_envs: Any = None
    ) -> None:
        """Copy one step, and what came after it in the environments `final_envs` that ended."""

    def finish(self, obs: Any, state_in: Any = None) -> None:
        """Copy the observations after the newest step, and the states."""

    def reset(self) -> None:
        """Begin with new episodes."""


class TensorEnvRunner(EnvRunner[SingleAgentEpisode]):
    """Samples a vector environment of torch tensors without copies to the host in its steps.

    Environments of Isaac Lab, Brax and rsl_rl are such environments; other environments' arrays are copied to tensors.
    A config takes this runner with `env_runners(env_runner_cls=TensorEnvRunner)`, a file by its name. `sample()` then
    returns episodes as `SingleAgentEnvRunner` does: all steps are copied to the host at once, when it ends, unless they
    are asked for `as_tensors`.

    `sample(storage)` fills a storage on the device, for a loop of your own. A step has the columns `obs`, `actions`,
    `rewards`, `terminateds`, `truncateds` and all outputs of the module and of the module-to-env pipeline, such as
    `action_dist_inputs` and `action_logp`. A module with a value function adds `vf_preds` and `values_bootstrapped`, a
    recurrent one `state_in`, the state before the step, and `state_out` if the storage's schema has it. Columns that a
    schema does not have are left out.

    The storage gets observations as the module gets them, after the pieces of the env-to-module pipeline, and other
    columns that these make. Episodes get them as pieces have rewritten them. The pieces must work on tensors, see
    `Piece.run_tensors`: the default ones do, MeanStdFilter, FlattenObservations, FrameStacking, ActionMask,
    PrevActionsPrevRewards, views of earlier steps, and each `ColumnTransform` that declares `takes_tensors`.

    `values_bootstrapped` is the value of the terminal observation where an episode was truncated, else 0. With
    autoreset mode SAME_STEP it needs `infos["final_obs"]` of the environment. Without it the value before the step
    takes its place, and the runner warns once. A storage takes no steps of environments with the mode NEXT_STEP.

    The host waits for the device in each step if the environment returns `final_obs` or has another mode than
    SAME_STEP, with MeanStdFilter, and for Discrete parts of observations. After a failure, which leaves steps without
    values, call `storage.clear()`: new episodes begin.

    Args:
        config: Environment, pipelines and module, as `AlgorithmConfig` has them; None: they are keywords.
        worker_index: Distinguishes the runners of one algorithm; each has a seed of its own.
        **settings: Without a config: `env`, `module`, `num_envs`, `seed` and more, see `OwnLoopConfig`.

    Attributes:
        env: The vector environment.
        module: The module, on the device of the observations.
        device: That device; the CPU until the first reset, if the environment has no attribute `device`.
        spaces: Observation and action spaces by name.

    Raises:
        ConfigError: a piece that cannot work on tensors; a setting that has no effect here.

    Examples:
        >>> from epibatch.learner import RolloutStorage
        >>> runner = TensorEnvRunner(env="CartPole-v1", num_envs=2, seed=0)
        >>> storage = RolloutStorage(num_steps=5, num_envs=2)
        >>> _ = runner.sample(storage)
        >>> storage["obs"].shape, storage["action_logp"].shape
        (torch.Size([5, 2, 4]), torch.Size([5, 2]))
        >>> storage.compute_returns(runner.last_values())
        >>> runner.stop()
    """

    config: RunnerConfig

    def __init__(self, *, config: RunnerConfig | None = None, worker_index: int = 0, **settings: Any) -> None:
        config = config_or_settings(config, settings)
        for name in _WITHOUT_EFFECT:
            if value := getattr(config, name, None):
                raise _without_effect(name, value)
        super().__init__(config=config, worker_index=worker_index)
        for name in self._callbacks.of_episodes:
            raise _without_effect(name, "a callback", "use on_sample_end, which gets the episodes")
        self._check_pieces()
        where, device = f"TensorEnvRunner, environment {config.env!r}", getattr(self.env.unwrapped, "device", None)
        self.device = torch.device("cpu") if device is None else usable_device(device, where)
        self._move()
        self._shapes: dict[str, Any] = {}  # of one environment's observation, by part
        self._types: Any = None  # of the parts
        self._newest: Any = None  # the step of the newest observations, and the module's input
        self._starts: dict[str, torch.Tensor] = {}  # what pieces remember when an episode begins, by name
        self._group: Any = None  # of all steps
        self._edits = 0
        self._state: Any = None
        self._initial: InitialStates | None = None
        self._uncounted: list[tuple[torch.Tensor, ...]] = []  # of each step: returns, which ended, which begin again
        self._values_before = self._values_after = LaterValues(self._values)  # of steps, and of ends
        self._truncated: list[
            tuple[torch.Tensor, Any]
        ] = []  # of each step: flags; environments with terminal observations
        self._returns: Any = None
        self._blank: Any = None  # values that are not known yet
        self._begun = np.zeros(0, np.int32)  # the step before the running episodes, counted from the next one
        self._without_final: Any = 0
        self._resets: torch.Tensor | None = None  # the environments that the next step only resets
        self._gives_tensors = self._warned = self._counts_ends = False
        self._into: Any = self._recorder  # where steps go
        self._as_tensors = False
        self._sequence: torch.Tensor | None = None

    # -- the parts -----------------------------------------------------------------------------

    def make_env(self) -> Any:
        """Make the vector environment."""
        config = self.config
        autoreset, mode = config.gym_env_autoreset_mode or "same_step", config.gym_env_vectorize_mode
        if mode == "vector_entry_point" or (mode == "sync" and makes_vector_env(config.env)):
            env = self._make_vector_env("vector_entry_point", config.gym_env_autoreset_mode)
        else:
            env = self._make_vector_env(mode, autoreset)
        if "autoreset_mode" not in env.metadata:
            warnings.warn(_without_mode(env), stacklevel=2)
            env.metadata = {**env.metadata, "autoreset_mode": gymnasium_mode(autoreset)}
        return env

    def make_module(self) -> Any:
        """Make the module."""
        return self.config.get_rl_module_spec(env=self.env, spaces=self.spaces).build()

    def _check_pieces(self) -> None:
        for pipeline in self.pipelines.values():
            if (piece := pipeline.piece_without_tensors) is not None:
                name = type(piece).__name__
                own = _DECLARE.format(name) if is_of_user(piece) else ""
                raise ConfigError(
                    f"TensorEnvRunner, piece {name}",
                    expected="pieces that work on tensors, with takes_tensors = True",
                    found=f"{name}, which does not say that it does",
                    do=f"{own}sample with SingleAgentEnvRunner, which converts the environment's tensors to arrays",
                )
        self._copies_input = any(map(is_of_user, self._env_to_module.pieces()))

    def _make_stepper(self) -> EnvStepper:
        name, restarts = self.config.env, self._restarts
        return EnvStepper(self.env, name, restarts=restarts, steps_of=lambda _: None, arrays=False)

    def _make_recorder(self) -> TensorRecorder:
        missing = self.config.missing_final_obs
        check_placeholder(missing, self.spaces["__episodes__"][0])
        return TensorRecorder(self.num_envs, missing)

    def _new_episode(self, id_: str | None = None) -> SingleAgentEpisode:
        return SingleAgentEpisode(id_=id_)

    def _move(self) -> None:
        if hasattr(self.module, "to"):
            self.module.to(self.device)

    # -- sampling ------------------------------------------------------------------------------

    def sample(
        self,
        storage: StepStorage | None = None,
        *,
        num_steps: int | None = None,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | str | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
        as_tensors: bool = False,
    ) -> Sequence[SingleAgentEpisode]:
        """Step the environments and return the recorded episodes, or add each step to a storage.

        A call with a storage ends with `storage.finish`. The first one, and one after a failure, resets the
        environments, and the storage with them; so does a change between the two ways.

        Args:
            storage: Of as many environments, on the device of the observations; None: episodes are returned.
            num_steps: The vector steps to take into the storage; None: until it is full.
            num_timesteps: As in `EnvRunner.sample`, without a storage.
            num_episodes: As in `EnvRunner.sample`, without a storage.
            explore: Whether actions explore; default: the config's.
            random_actions: As in `EnvRunner.sample`, without a storage.
            force_reset: As in `EnvRunner.sample`, without a storage.
            as_tensors: True: the rows of the episodes stay where they are, for pipelines, learners and replay buffers
                of tensors. An item, such as `episodes[0]`, is an episode of arrays, for which all are copied. For
                `num_timesteps` only.

        Returns:
            The episodes; none with a storage.

        Raises:
            RunnerArgumentError: a storage of another number of environments, one that is full, or one that has steps
                although the environments have to be reset; no number of at least 1; or an argument of the other way.
            RolloutOverflowError: the storage has no room for `num_steps` more; no step was taken.
            RunnerError: the runner was stopped.
            ColumnError: the storage has other columns than the steps.
        """
        amounts: dict[str, Any] = {"num_timesteps": num_timesteps, "num_episodes": num_episodes}
        others: dict[str, Any] = {"random_actions": random_actions, "force_reset": force_reset}
        if storage is None:
            if num_steps is not None:
                raise _without_storage(f"num_steps={num_steps}", "num_timesteps")
            if as_tensors and num_timesteps is None:
                expected, found = "as_tensors with num_timesteps", f"as_tensors=True, num_episodes={num_episodes}"
                do = "pass num_timesteps, or leave as_tensors out"
                raise RunnerArgumentError("TensorEnvRunner.sample", expected=expected, found=found, do=do)
            self._as_tensors = as_tensors
            try:
                return super().sample(**amounts, explore=explore, **others)
            finally:
                self._as_tensors = False
        others |= {"as_tensors": as_tensors}
        amounts |= {name: value or None for name, value in others.items()}
        if given := [f"{name}={value}" for name, value in amounts.items() if value is not None]:
            raise _without_storage(f"a storage, and {', '.join(given)}", "num_steps")
        with self._only_call("sample"), evaluation_mode(self.module), torch.no_grad():
            kind: Any = explores(explore, self.config.explore)
            self._send_into(storage)
            steps, self._truncated = self._steps_for(storage, num_steps), []
            self._values_before, self._values_after = LaterValues(self._values), LaterValues(self._values)
            if self._running is Running.NONE:
                self._reset(kind)
            if self._running is Running.WHOLE:
                storage.reset()
            self._running = Running.NONE  # until the storage has all of the steps, with their values
            for _ in range(steps):
                self._step(kind, kind == "random")
            if self._values_before:
                self._add_values(storage, steps)
            if Columns.OBS in storage.columns:
                stores_state = Columns.STATE_IN in storage.columns
                obs = self._stored(self._newest[1])[Columns.OBS]
                storage.finish(obs, **({"state_in": self._state} if stores_state else {}))
            self._running = Running.CUT
            self._count_ended()
        return []

    def _send_into(self, target: Any) -> None:
        """Let the steps of a call go into a storage, or into the recorder of episodes."""
        if (target is self._recorder) != (self._into is self._recorder) and self._running is Running.CUT:
            self._running = Running.NONE
        self._into, self._initial = target, None  # the weights may be others than in the call before

    def _sample(self, *arguments: Any, **keywords: Any) -> Sequence[SingleAgentEpisode]:
        self._send_into(self._recorder)
        return super()._sample(*arguments, **keywords)

    def _sample_episodes(
        self, num_episodes: int, explore: bool, random_actions: bool
    ) -> tuple[Sequence[SingleAgentEpisode], Sequence[SingleAgentEpisode]]:
        self._counts_ends = True  # the host waits for the device in each step
        try:
            return super()._sample_episodes(num_episodes, explore, random_actions)
        finally:
            self._counts_ends = False

    def _harvest(self) -> Sequence[SingleAgentEpisode]:
        return self._flushed(self.lookback)  # type: ignore[no-any-return]

    def _harvest_ended(self, count: int) -> tuple[VectorEpisodes, list[SingleAgentEpisode]]:
        return self._flushed(0).first(count), []

    def _flushed(self, lookback: int) -> Any:
        self._count_ended()
        try:
            return self._recorder.flush(lookback, as_tensors=self._as_tensors)
        except BaseException:
            self._rescue()
            raise

    def _rescue(self) -> None:
        super()._rescue()
        self._count_ended()

    def _observe_ended(self, ended: Sequence[Any], explore: bool) -> None:
        """Do nothing: terminal observations pass the pipeline in their step."""

    def _choose_actions(self, explore: bool, random_actions: bool, kept: Sequence[int] = ()) -> Any:
        raise _whole_steps("_choose_actions")

    def _steps_for(self, storage: StepStorage, num_steps: int | None) -> int:
        problem = None
        if self._stepper.mode == "next_step":
            do = "set gym_env_autoreset_mode='same_step' or 'disabled', if it can; or call sample() without a storage"
            problem = "environments of which every row is a step of an episode", "autoreset mode 'next_step'", do
        elif storage.num_envs != self.num_envs:
            problem = f"a storage of {self.num_envs} environments", f"one of {storage.num_envs}", "make another storage"
        elif num_steps is not None and not (is_amount(num_steps) and num_steps):
            problem = "num_steps, a whole number of at least 1", repr(num_steps), "leave it out to fill the storage"
        elif len(storage) == storage.num_steps:
            problem = "a storage with room for steps", f"{len(storage)} of {storage.num_steps}", "call storage.clear()"
        elif self._running is not Running.CUT and len(storage):
            found = f"{len(storage)} steps, and environments that are reset"
            problem = "an empty storage, as new episodes begin", found, "call storage.clear()"
        if problem is not None:
            expected, found, do = problem
            raise RunnerArgumentError("TensorEnvRunner.sample", expected=expected, found=found, do=do)
        room = storage.num_steps - len(storage)
        if num_steps is not None and num_steps > room:
            raise RolloutOverflowError(
                "TensorEnvRunner.sample",
                expected=f"at most {room} steps, for which the storage has room",
                found=f"num_steps={num_steps}",
                do="leave it out to fill the storage, or call storage.clear() before",
            )
        return room if num_steps is None else num_steps

    def last_values(self) -> torch.Tensor:
        """Return the values of the newest observations, float [N], for `storage.compute_returns`.

        Raises:
            RunnerError: `sample` was not called yet or failed, or the module has no value function.
        """
        if self._running is Running.NONE or not self._has_values:
            found = "no observations" if self._running is Running.NONE else "a module without a value function"
            expected, do = "observations, and a module that computes values", "call sample() before"
            raise RunnerError("TensorEnvRunner.last_values", expected=expected, found=found, do=do)
        with evaluation_mode(self.module), torch.no_grad():
            return self._values(self._newest[1])

    @property
    def _has_values(self) -> bool:
        return hasattr(self.module, "compute_values") and not getattr(self.module, "inference_only", False)

    def _values(self, batch: dict[str, Any]) -> torch.Tensor:
        values: torch.Tensor = self.module.compute_values(batch)
        return values.flatten()

    @torch.no_grad()
    def _run_env_to_module(self, explore: bool, envs: list[int] | None = None) -> None:
        """Begin with the observations of a reset."""
        self._count_ended()  # what a call that failed after its steps did not
        observations = self._recorder.observations
        device = device_of(observations)
        if device is not None and device != self.device:
            self.device = device
            self._move()
        self._gives_tensors = device is not None
        zeros = partial(torch.zeros, self.num_envs, device=self.device)
        self._returns, self._begun, self._without_final = zeros(), np.full(self.num_envs, -1, np.int32), 0
        self._blank = zeros()
        self._check_pieces()
        self._resets = zeros(dtype=torch.bool) if self._stepper.mode == "next_step" else None
        self._state = None
        if is_stateful(self.module):
            self._initial = InitialStates(self.module, self.device)
            self._state = self._initial.rows(self.num_envs)
        self._shapes = shapes_of(get_base_struct_from_space(self.env.single_observation_space))
        self._types = None
        self._observe(observations, "reset()", zeros(), None, explore)
        self._shapes = {part: shape[1:] for part, shape in shapes_of(observations).items()}

    def _tensors(self, observations: Any, count: int, call: str) -> Any:
        """Return observations as tensors on the device, in the types of the first ones.

        Raises:
            EnvironmentContractError: a part is missing, or has another shape, or a type that would lose values.
        """
        is_as_known = type(observations) is torch.Tensor and observations.dtype is self._types
        if is_as_known and (observations.shape, observations.device) == ((count, *self._shapes[""]), self.device):
            return observations
        where = f"environment {self.config.env!r}, {call} of the vector environment"
        found = shapes_of(observations)
        for part, shape in self._shapes.items():
            if found.get(part) != (count, *shape):
                raise EnvironmentContractError(
                    where,
                    expected=f"observations with shape {[count, *shape]}" + (part and f" in part {part}"),
                    found=f"shape {list(found[part])}" if part in found else f"only {', '.join(found) or 'one part'}",
                    do="return the parts and shapes of single_observation_space, with a row for each environment"
                    + adapter_advice(self.env)
                    + agents_axis_advice(found.get(part, ())[1:], shape),
                )
        obs = convert_to_torch_tensor(observations, self.device)
        self._types = self._types or map_struct(lambda leaf: leaf.dtype, obs)
        leaves, form = flatten(obs)
        types = flatten_like(form, self._types)
        for i, (leaf, dtype) in enumerate(zip(leaves, types)):
            if not torch.can_cast(leaf.dtype, dtype):
                part = paths_of(form)[i]
                raise EnvironmentContractError(
                    where,
                    expected=f"observations of type {dtype}" + (part and f" in part {part}") + ", as reset() gave",
                    found=str(leaf.dtype),
                    do="return one type from reset() and step(), that of single_observation_space",
                )
        return unflatten(form, [leaf.to(dtype) for leaf, dtype in zip(leaves, types)])

    def _observe(self, observations: Any, call: str, rewards: torch.Tensor, states: Any, explore: bool) -> None:
        """Run the env-to-module pipeline on observations, which are copied: environments may reuse their memory."""
        obs = map_struct(torch.clone, self._tensors(observations, self.num_envs, call))
        step = self._step_of(obs, rewards, states, self._state, explore)
        self._edits, self._pending.edits = self._num_edits, self._env_to_module.num_edits
        self._newest = step, self._input_of(step)
        self._recorder.newest = step.obs

    def _input_of(self, step: TensorStep) -> dict[str, Any]:
        """Return the module's input, copied if a piece of the user may write to its memory in a later step."""
        columns: dict[str, Any] = self._env_to_module.run_tensors({}, step)
        return map_struct(torch.clone, columns) if self._copies_input else columns

    def _step_of(self, obs: Any, reward: torch.Tensor, states: Any, state_in: Any, explore: bool) -> TensorStep:
        if self._group is None or self._group.call.rl_module is not self.module:
            self._group = group_of_tensors(self.module, explore)
        group, group.call.explore = self._group, explore
        group.shared_data = group.call.shared_data = {}
        return TensorStep(obs, group, reward=reward, states=states, state_in=state_in)

    @property
    def _num_edits(self) -> int:
        count: int = self._env_to_module.num_edits + self._module_to_env.num_edits
        return count

    def _stored(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of a module's input without their time axis, and without its states."""
        columns = {name: column for name, column in batch.items() if name != Columns.STATE_IN}
        return columns if self._state is None else map_struct(lambda leaf: leaf[:, 0], columns)

    def _take_step(self, explore: bool, random_actions: bool, mask: Any) -> int:
        if mask is not None:
            raise _whole_steps("step(mask=...)")
        with without_gradients():
            return self._take_whole_step(explore, random_actions)

    def _take_whole_step(self, explore: bool, random_actions: bool) -> int:
        """Act, step the environments, and store the step; return how many episodes ended, if that is counted."""
        step, batch = self._newest
        step.group.call.explore = explore
        edited = self._edits != self._num_edits  # other pieces remember other things
        if edited:
            self._check_pieces()
            step = step.as_first()
            self._newest = step, batch
        columns, actions, for_env = self._act(batch, step, explore, random_actions)
        states = None if edited else step.states_after(actions)
        if step.is_first:
            self._starts = step.initial
        state = columns.pop(Columns.STATE_OUT, self._state)
        direct = self._into is not self._recorder
        bootstraps = direct and self._ask_values(batch, columns)
        result = self._stepper.step(for_env if self._gives_tensors else convert_to_numpy(for_env))
        if result.failures:
            raise next(iter(result.failures.values()))
        rewards = self._per_env(result.rewards, _PER_ENV[0], self._stepper.reward_shape).float()
        terminateds, truncateds = (self._per_env(getattr(result, name), name) for name in _PER_ENV[1:])
        is_truncated = _true(truncateds)
        ended = is_truncated | _true(terminateds)
        resets = self._resets
        begun = ended if resets is None else resets
        rows, terminal = self._terminal(result, ended, rewards, states, state, explore)
        if resets is None and (bootstraps or not direct) and not _has_all_terminal(result):
            missing = is_truncated if rows is None else is_truncated.index_fill(0, rows, False)
            self._without_final = self._without_final + missing.sum()
        columns |= {"rewards": rewards, "terminateds": terminateds, "truncateds": truncateds}
        if self._state is not None and not random_actions:
            columns[Columns.STATE_IN] = self._state
        if direct:
            if bootstraps:
                columns[Columns.VALUES_BOOTSTRAPPED] = self._blank
                self._truncated.append((is_truncated.clone(), rows))
                if terminal is not None:  # of terminated ones too: to choose, the host would wait for the device
                    self._values_after.add(terminal[1], rows.shape[0], has_rows(batch, self.num_envs))
            self._store(columns, batch, state, rows, terminal)
        else:
            self._record(columns, step, state, rows, terminal)
        self._metrics.steps += self.num_envs - (0 if resets is None else int(resets.sum()))
        returns = self._returns + (rewards if rewards.ndim == 1 else rewards.flatten(1).sum(1))
        cuts = ended if resets is None else ended | resets
        self._returns = returns.masked_fill(cuts, 0.0)
        self._uncounted.append((returns, ended, cuts))
        if result.failure is not None:  # the step itself is valid
            self._recorder.newest = self._tensors(result.observations, self.num_envs, "step()")
            raise result.failure
        if self._state is not None:
            self._initial = self._initial or InitialStates(self.module, self.device)
            self._state = self._initial.begun(state, begun)
        self._resets = None if resets is None else ended
        states = states and {name: where(begun, self._starts[name], rows) for name, rows in states.items()}
        if direct:  # the next observations take the memory of these, which is in the caches
            self._newest = self._recorder.newest = None
            del step, batch, columns
        self._observe(result.observations, "step()", rewards, states, explore)
        return int(ended.sum()) if self._counts_ends else 0

    def _ask_values(self, batch: dict[str, Any], columns: dict[str, Any]) -> bool:
        """Let `_add_values` add values if the storage has them; return True if it has bootstrapped ones."""
        schema = self._into.columns
        if not self._has_values or (schema and not schema.keys() & _VALUES):
            return False
        bootstraps = _has(schema, Columns.VALUES_BOOTSTRAPPED)
        given = columns.setdefault(Columns.VF_PREDS, self._blank)
        if given is self._blank:
            self._values_before.add(batch, self.num_envs, has_rows(batch, self.num_envs))
        elif bootstraps or given.numel() == self.num_envs:
            self._values_before.add_known(given.reshape(self.num_envs))
        return bootstraps

    def _store(self, columns: dict[str, Any], batch: dict[str, Any], state: Any, rows: Any, terminal: Any) -> None:
        """Add a step to the storage, with what the module saw of it."""
        schema = self._into.columns
        columns |= self._stored(batch)
        if Columns.STATE_OUT in schema and self._state is not None:
            columns[Columns.STATE_OUT] = state
        if schema:
            columns = {name: columns[name] for name in schema if name in columns}
        final: dict[str, Any] = {}
        if terminal is not None and columns.keys() >= _WITH_FINAL:
            final = {"final_obs": self._stored(terminal[1])[Columns.OBS], "final_envs": rows}
            if Columns.STATE_IN in columns:
                final["final_state"] = terminal[0].state_in
        self._into.add_step(columns, **final)

    def _record(self, columns: dict[str, Any], step: TensorStep, state: Any, rows: Any, terminal: Any) -> None:
        """Add a step to the recorder, as episodes have it."""
        version = self._policy.version
        if self._sequence is None or int(self._sequence[0]) != version:
            self._sequence = torch.full((self.num_envs,), version)
        columns |= {Columns.OBS: step.obs, WEIGHTS_SEQ_NO: self._sequence}
        columns |= {name: columns[name].clone() for name in _PER_ENV}  # environments may reuse their memory
        if Columns.STATE_IN in columns:
            columns[Columns.STATE_OUT] = state
        self._recorder.add_step(columns, None if terminal is None else (rows, terminal[0].obs), self._resets)

    def _act(
        self, batch: dict[str, Any], step: TensorStep, explore: bool, random_actions: bool
    ) -> tuple[dict[str, Any], Any, Any]:
        """Return the module's outputs with `actions`, without a time axis; its actions; and the environment's.

        Raises:
            ColumnError: no actions, or outputs of another width than the action distribution takes.
        """
        if random_actions:
            actions, for_env = (convert_to_torch_tensor(part, self.device) for part in self._random_actions(batch))
            columns = {Columns.ACTIONS: actions, **self._kept(for_env)}
            return columns, actions, map_struct(torch.clone, for_env)
        step.group.shared_data[NUM_ENV_STEPS] = self._metrics.steps
        outputs = forward(self.module, batch, explore=explore, t=self._metrics.steps)
        columns = self._module_to_env.run_tensors(convert_to_torch_tensor(outputs, self.device), step)
        if Columns.ACTIONS not in columns:
            raise ColumnError(
                "outputs of the module",
                expected=f"{Columns.ACTION_DIST_INPUTS!r} or {Columns.ACTIONS!r}",
                found=str(sorted(map(str, columns))),
                do="return one of them from the module's _forward",
            )
        actions = columns[Columns.ACTIONS]
        for_env = columns.pop(Columns.ACTIONS_FOR_ENV, actions)
        columns |= self._kept(for_env)
        stored = {id(leaf) for name in _ACTIONS if name in columns for leaf in flatten(columns[name])[0]}
        return columns, actions, map_struct(lambda leaf: leaf.clone() if id(leaf) in stored else leaf, for_env)

    def _kept(self, for_env: Any) -> dict[str, Any]:
        """Return the column of the environment's actions, if episodes have it."""
        kept = self._into is self._recorder and self.config.keep_actions_for_env
        return {Columns.ACTIONS_FOR_ENV: for_env} if kept else {}

    def _random_actions(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        """Return the module's actions that would give draws from the action space, and these, as arrays."""
        arrays, draws = convert_to_numpy(batch), self.env.action_space
        pipeline = self._env_to_module
        legal = sample_masked_actions(pipeline, arrays, pipeline.action_space, draws.np_random)
        return legal or acted_at_random(self.pipelines, draws.sample())

    def _per_env(self, given: Any, name: str, row: tuple[int, ...] = ()) -> torch.Tensor:
        """Return rewards or flags, as given, with a row for each environment; the storage checks flags.

        Raises:
            EnvironmentContractError: there are more or fewer rows.
        """
        shape = (self.num_envs, *row)
        value: torch.Tensor | None = None if given is None else convert_to_torch_tensor(given, self.device)
        if value is not None and value.shape == shape:
            return value
        if value is None or value.shape[:1] != (self.num_envs,) or value.numel() != math.prod(shape):
            raise EnvironmentContractError(
                f"environment {self.config.env!r}, step() of the vector environment",
                expected=f"{name} of shape {list(shape)}, one for each environment",
                found="None" if value is None else f"shape {list(value.shape)}",
                do="return what gymnasium.vector.VectorEnv says",
            )
        return value.reshape(shape)

    def _terminal(
        self, result: VectorStep, ended: torch.Tensor, rewards: Any, states: Any, state: Any, explore: bool
    ) -> Any:
        """Return the environments whose terminal observations came, int64 [n], and their step with the module's input.

        Two Nones without any.
        """
        final, mask = result.final_observations, (result.infos or {}).get("_final_obs")
        if final is None:
            return None, None
        rows = (
            (ended if mask is None else ended & convert_to_torch_tensor(mask, self.device).bool()).nonzero().flatten()
        )
        if isinstance(final, np.ndarray) and final.dtype.kind == "O":
            given = [row for row in rows.tolist() if final[row] is not None]
            rows = torch.tensor(given, dtype=torch.int64, device=self.device)
            obs = self._tensors(stack_rows([final[row] for row in given]), len(given), _FINAL) if given else None
        else:
            obs = _rows_of(self._tensors(final, self.num_envs, _FINAL), rows)
        if not rows.shape[0]:
            return None, None
        try:
            reward = rewards if self._newest[0].reads_rewards else None
            states, state, reward = (_rows_of(value, rows) for value in (states, state, reward))
            step = self._step_of(obs, reward, states, state, explore)
            return rows, (step, self._input_of(step))
        except Exception as error:
            add_context(error, f"terminal observations of environments {rows[:10].tolist()} ...:")
            raise

    def _add_values(self, storage: StepStorage, steps: int) -> None:
        """Give the newest steps in a storage their values.

        The bootstrapped one of a truncated step is that of its terminal observation. If none came, it is the one
        before the step.
        """
        values = self._values_before.all()
        if Columns.VF_PREDS in storage.columns:
            column = storage[Columns.VF_PREDS][-steps:]
            column.copy_(values.view(column.shape))
        if Columns.VALUES_BOOTSTRAPPED in storage.columns:
            truncateds, envs = zip(*self._truncated)
            if came := [(t * self.num_envs, rows) for t, rows in enumerate(envs) if rows is not None]:
                starts = np.repeat([start for start, _ in came], [rows.shape[0] for _, rows in came])
                places = torch.cat([rows for _, rows in came]) + torch.from_numpy(starts).to(self.device)
                values.index_copy_(0, places, self._values_after.all().to(values.dtype))
            values.masked_fill_(torch.cat(truncateds).logical_not_(), 0.0)
            storage[Columns.VALUES_BOOTSTRAPPED][-steps:].copy_(values.view(steps, -1))

    # -- metrics and state ---------------------------------------------------------------------

    def _count_ended(self) -> None:
        """Count the episodes that ended since the last time; rewards and flags are transferred at once."""
        if not self._uncounted:
            return
        returns, ended, cuts = map(torch.stack, zip(*self._uncounted))
        self._uncounted, steps = [], np.arange(len(ended), dtype=np.int32)[:, None]
        befores = np.maximum.accumulate(np.where(cuts.cpu().numpy(), steps, self._begun))  # the newest begin by step
        lengths = steps - np.concatenate([self._begun[None], befores[:-1]])
        self._begun = befores[-1] - len(steps)
        self._metrics.episodes.add_from([*zip(returns[ended].tolist(), lengths[ended.cpu().numpy()].tolist())])
        missing = int(self._without_final)
        if missing and not self._warned and self.config.missing_final_obs is None:
            self._warned = True
            warning = EpibatchWarning(
                f"TensorEnvRunner, environment {self.config.env!r}",
                expected="infos['final_obs'], the terminal observations, where episodes are truncated",
                found=f"none at {missing} ends: the value of the observation before takes their place",
                do="let the environment return them, if it can",
            )
            warnings.warn(warning, stacklevel=3)


def _without_mode(env: Any) -> EpibatchWarning:
    return EpibatchWarning(
        f"TensorEnvRunner, vector environment {type(env.unwrapped).__name__}",
        expected="metadata['autoreset_mode'], which says when it resets",
        found="none: it counts as SAME_STEP here, and as NEXT_STEP in Gymnasium's wrappers",
        do='write metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}, or its mode, in the class',
    )


def _without_effect(name: str, value: Any, do: str = "leave it out") -> ConfigError:
    return ConfigError(
        f"TensorEnvRunner, {name}",
        expected="its default: episodes are made at the end of sample(), and environments fail together",
        found=repr(value),
        do=f"{do}; or sample with SingleAgentEnvRunner",
    )


def _without_storage(found: str, name: str) -> RunnerArgumentError:
    expected = "a storage with num_steps; or num_timesteps, num_episodes and the like, for episodes"
    return RunnerArgumentError(
        "TensorEnvRunner.sample", expected=expected, found=found, do=f"pass {name}, or a storage"
    )


def _whole_steps(found: str) -> RunnerError:
    return RunnerError(
        "TensorEnvRunner",
        expected="steps and resets of all environments",
        found=found,
        do="sample with SingleAgentEnvRunner, which steps and resets some of them",
    )


def _rows_of(struct: Any, rows: torch.Tensor) -> Any:
    """Return some rows of a structure of tensors; None of None."""
    return None if struct is None else map_struct(lambda leaf: leaf.index_select(0, rows), struct)


def _true(flags: torch.Tensor) -> torch.Tensor:
    """Return flags as bools."""
    return flags if flags.dtype is torch.bool else flags != 0


def _has_all_terminal(result: VectorStep) -> bool:
    """True if a step has a terminal observation for each environment that ended, known without a look at values."""
    final, has_mask = result.final_observations, "_final_obs" in (result.infos or {})
    return final is not None and not has_mask and not (isinstance(final, np.ndarray) and final.dtype.hasobject)


def _has(schema: Mapping[str, Any], name: str) -> bool:
    """True if a storage has a column, or has no schema yet."""
    return not schema or name in schema
