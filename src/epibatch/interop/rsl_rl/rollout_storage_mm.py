"""rsl_rl's rollout storage of motion mimic PPO, on top of `RolloutStorage`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeAlias

import torch

from epibatch.core.columns import Columns
from epibatch.core.errors import (
    BatchLayoutError,
    ColumnError,
    ConfigError,
    EpibatchWarning,
    NotStoredError,
    add_context,
)
from epibatch.core.imports import load_object
from epibatch.core.masked_column import MaskedColumn
from epibatch.core.structs import flatten, map_struct, paths_of

from ...learner import ColumnSpec, RolloutStorage

Shape: TypeAlias = Sequence[int | None] | None

_EXTRACTORS = ("amp_obs_extractor", "amp_ref_obs_extractor")
_PREVIOUS = ("previous_obs", "previous_ref")
_NETWORKS = ("actor", "critic")
_NUMBERS = ("rewards", "values", "actions_log_prob")
_FLAGS = ("dones", "reference_observations_mask", "critic_reference_observations_mask")
_RL = "training_type='rl'"
_DISTILLATION = "training_type='distillation'"


def _view_of(column: str, part: str = "", field: str = "", *, needs: str = "", number: bool = False) -> property:
    """Return a property: a view of a column `[T, N, ...]`, into which assigned values are copied.

    Args:
        column: Its name in `RolloutStorage`.
        part: Of a dict in it.
        field: Of a masked pair.
        needs: The configuration that makes the column, if its absence is an error; otherwise it is None.
        number: True: the rows are numbers, which get an axis of 1, and flags, which become bytes.
    """

    def find(self: RolloutStorageMM, *, is_needed: bool) -> Any:
        value: Any = None
        if column in self.storage.columns:
            value = self.storage.rows(column, 0, self.num_transitions_per_env)
        elif column in self.storage:
            value = self.storage[column]
        if part:
            value = value.get(part)
        if field:
            value = getattr(value, field, None)
        if value is None and is_needed:
            raise NotStoredError(
                f"RolloutStorageMM, {source}",
                expected=needs or "arguments that ask for this column",
                found=f"training_type={self.training_type!r}, {self.step} steps, and no such column",
                do="change the arguments of the storage, or use the column later",
            )
        if number and value is not None:
            value = (value.view(torch.uint8) if value.dtype is torch.bool else value).unsqueeze(-1)
        return value

    def read(self: RolloutStorageMM) -> Any:
        return find(self, is_needed=bool(needs))

    def write(self: RolloutStorageMM, values: torch.Tensor) -> None:
        find(self, is_needed=True).copy_(values)

    source = f"storage[{column!r}]" + (f"[{part!r}]" if part else "") + (f".{field}" if field else "")
    return property(read, write, doc=f"View of `{source}`, all T steps.")


class RolloutStorageMM:
    """Rollouts of many environments with reference motions, under the names of rsl_rl's motion mimic PPO.

    The attributes `observations`, `reference_observations`, `reference_observations_mask`, `privileged_observations`,
    `privileged_reference_observations`, `privileged_reference_observations_mask`, `dagger_actions` and `rnd_state` are
    None unless the arguments ask for them. `actions`, `rewards` and `dones` are always there; `privileged_actions` in
    distillation; `values`, `actions_log_prob`, `mu` and `sigma` in reinforcement learning, and `returns` and
    `advantages` there after `compute_returns`. They are views `[T, N, ...]` of the memory of `storage`, numbers
    `[T, N, 1]`, and `dones` bytes.

    Args:
        training_type: "rl" or "distillation".
        num_envs: N.
        num_transitions_per_env: T, the steps of a rollout.
        obs_shape: Of an environment's observation for the actor.
        ref_obs_shape: Of its reference; None or [None]: none.
        privileged_obs_shape: Of the critic's or teacher's observation; None or [None]: it is the actor's.
        privileged_ref_obs_shape: Of its reference, if there is one for the actor too; None or [None]: none.
        actions_shape: Of an action.
        apply_dagger_actions: True: steps have `dagger_actions`.
        rnd_state_shape: Of a state for random network distillation; None or [None]: none.
        amp_cfg: None, or `amp_obs_extractor` and `amp_ref_obs_extractor`, functions or import paths `module:name`, of
            rows `[R, ...]` of observations and of pairs (reference, mask); the second returns a pair. Minibatches then
            have what they return of the step before each row, in the same episode: also across a `clear`. Other
            entries are not read. Distillation does not use it.
        device: Where the tensors are.

    Attributes:
        storage: the `RolloutStorage` that has the data: the columns `obs` (parts `policy`, `ref`, `critic` and
            `critic_ref`), `actions`, `rewards`, `terminateds` (the dones), `vf_preds`, `action_logp`, `action_mean`,
            `action_sigma`, `teacher_actions`, `dagger_actions`, `rnd_state`, `advantages` and `value_targets`.

    Raises:
        ConfigError: an argument is none of the above.
    """

    @dataclass(eq=False)
    class Transition:
        """One step of all environments: tensors `[N, ...]`, of numbers `[N]` or `[N, 1]`.

        `hidden_states` are those of actor and critic before the step: tensors `[layers, N, ...]`, tuples of these,
        or None.
        """

        observations: torch.Tensor | None = None
        reference_observations: torch.Tensor | None = None
        reference_observations_mask: torch.Tensor | None = None
        critic_observations: torch.Tensor | None = None
        critic_reference_observations: torch.Tensor | None = None
        critic_reference_observations_mask: torch.Tensor | None = None
        actions: torch.Tensor | None = None
        privileged_actions: torch.Tensor | None = None
        dagger_actions: torch.Tensor | None = None
        rewards: torch.Tensor | None = None
        dones: torch.Tensor | None = None
        values: torch.Tensor | None = None
        actions_log_prob: torch.Tensor | None = None
        action_mean: torch.Tensor | None = None
        action_sigma: torch.Tensor | None = None
        hidden_states: Any = None
        rnd_state: torch.Tensor | None = None

        def clear(self) -> None:
            """Set all fields to None."""
            for field in fields(self):
                setattr(self, field.name, None)

    observations = _view_of("obs", "policy")
    reference_observations = _view_of("obs", "ref", "value")
    reference_observations_mask = _view_of("obs", "ref", "mask")
    privileged_observations = _view_of("obs", "critic")
    privileged_reference_observations = _view_of("obs", "critic_ref", "value")
    privileged_reference_observations_mask = _view_of("obs", "critic_ref", "mask")
    actions = _view_of("actions")
    privileged_actions = _view_of("teacher_actions", needs=_DISTILLATION)
    dagger_actions = _view_of("dagger_actions")
    rewards = _view_of("rewards", number=True)
    dones = _view_of("terminateds", number=True)
    values = _view_of("vf_preds", needs=_RL, number=True)
    actions_log_prob = _view_of("action_logp", needs=_RL, number=True)
    returns = _view_of("value_targets", needs=f"{_RL}, after compute_returns()", number=True)
    advantages = _view_of("advantages", needs=f"{_RL}, after compute_returns()", number=True)
    mu = _view_of("action_mean", needs=_RL)
    sigma = _view_of("action_sigma", needs=_RL)
    rnd_state = _view_of("rnd_state")

    def __init__(
        self,
        training_type: str,
        num_envs: int,
        num_transitions_per_env: int,
        obs_shape: Shape,
        ref_obs_shape: Shape,
        privileged_obs_shape: Shape,
        privileged_ref_obs_shape: Shape,
        actions_shape: Shape,
        apply_dagger_actions: bool = False,
        rnd_state_shape: Shape = None,
        amp_cfg: Mapping[str, Any] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if training_type not in ("rl", "distillation"):
            do = "choose one of them"
            where = "RolloutStorageMM, training_type"
            raise ConfigError(where, expected="'rl' or 'distillation'", found=repr(training_type), do=do)
        self.training_type, self.device = training_type, device
        self.num_envs, self.num_transitions_per_env = num_envs, num_transitions_per_env
        self.amp_cfg = amp_cfg
        self._extractors = [_extractor(amp_cfg, name) for name in _EXTRACTORS] if amp_cfg else []
        self._has_warned = False
        obs: dict[str, Any] = {"policy": "observations"}
        if _is_given(ref_obs_shape):
            obs["ref"] = MaskedColumn("reference_observations", "reference_observations_mask")
        if _is_given(privileged_obs_shape):
            obs["critic"] = "critic_observations"
        if "ref" in obs and _is_given(privileged_ref_obs_shape):
            obs["critic_ref"] = MaskedColumn("critic_reference_observations", "critic_reference_observations_mask")
        self._fields: dict[str, Any] = {
            Columns.OBS: obs,
            Columns.ACTIONS: "actions",
            Columns.REWARDS: "rewards",
            Columns.TERMINATEDS: "dones",
        }
        """Columns, with fields of transitions as leaves."""
        if training_type == "distillation":
            self._fields["teacher_actions"] = "privileged_actions"
        else:
            self._fields |= {Columns.VF_PREDS: "values", Columns.ACTION_LOGP: "actions_log_prob"}
            self._fields |= {name: name for name in ("action_mean", "action_sigma")}
        if apply_dagger_actions:
            self._fields["dagger_actions"] = "dagger_actions"
        if _is_given(rnd_state_shape):
            self._fields["rnd_state"] = "rnd_state"
        shapes = {
            "observations": obs_shape,
            "reference_observations": ref_obs_shape,
            "critic_observations": privileged_obs_shape,
            "critic_reference_observations": privileged_ref_obs_shape,
            "rnd_state": rnd_state_shape,
        }
        self._columns = map_struct(lambda field: _spec(field, shapes.get(field, actions_shape)), self._fields)
        self.storage = self._new_storage(self._columns)

    def _new_storage(self, columns: Mapping[str, Any]) -> RolloutStorage:
        lookback = int(bool(self._extractors))
        return RolloutStorage(
            self.num_transitions_per_env, self.num_envs, columns, device=self.device, lookback=lookback
        )

    @property
    def step(self) -> int:
        """Transitions since the last `clear`."""
        return len(self.storage)

    def add_transitions(self, transition: Any) -> None:
        """Copy one step of all environments.

        Args:
            transition: A `Transition`, or any object with such attributes. Those that the configuration does not ask
                for are not read. Hidden states are stored if the first one has them; then
                the storage is made again, and attributes that were read before are of the old one.

        Raises:
            ColumnError: a field is None, or has another shape, type or device; the storage is as before.
            RolloutOverflowError: there are `num_transitions_per_env` already.
        """
        step = map_struct(partial(self._value_of, transition), self._fields)
        states = _states_of(getattr(transition, "hidden_states", None), self.step)
        storage = self.storage
        if states:
            step[Columns.STATE_IN] = states
            if not self.step and Columns.STATE_IN not in storage:
                specs = map_struct(lambda leaf: ColumnSpec(tuple(leaf.shape)[1:], leaf.dtype), states)
                storage = self._new_storage({**self._columns, Columns.STATE_IN: specs})
        try:
            storage.add_step(step)
        except ColumnError as error:
            names, form = flatten(self._fields)
            named = dict(zip(paths_of(form), names))
            of_states = "hidden_states" if repr(Columns.STATE_IN) in str(error) else "its fields"
            add_context(error, f"transition, {named.get(str(error.where).rpartition('column ')[2], of_states)}:")
            raise
        self.storage = storage

    add_transition = add_transitions

    def _value_of(self, transition: Any, field: str) -> Any:
        value = getattr(transition, field, None)
        if value is None:
            raise ColumnError(
                f"RolloutStorageMM, step {self.step}, {field}",
                expected="a tensor, as the arguments of the storage ask for it",
                found="None in the transition",
                do=f"set transition.{field} before add_transitions, also after transition.clear()",
            )
        return value

    def clear(self) -> None:
        """Begin the next rollout in the same memory."""
        self.storage.clear()

    def compute_returns(
        self, last_values: torch.Tensor, gamma: float, lam: float, normalize_advantage: bool = True
    ) -> None:
        """Compute `returns` and `advantages`, by generalized advantage estimation in which each done ends an episode.

        Args:
            last_values: float [N] or [N, 1], values of the observations after the newest step.
            gamma: Discount.
            lam: Weight of longer returns.
            normalize_advantage: True: subtract the mean and divide by the standard deviation (unbiased) + 1e-8;
                a single row gets 0.

        Raises:
            BatchLayoutError: there are no steps, or the storage is for distillation.
            ColumnError: the values have another shape.
        """
        self._check_type("rl", "compute_returns")
        self.storage.compute_returns(last_values, gamma=gamma, lambda_=lam, standardize_advantages=False)
        if normalize_advantage:
            advantages = self.storage[Columns.ADVANTAGES]
            deviation = advantages.std(correction=min(1, advantages.numel() - 1))
            advantages.copy_((advantages - advantages.mean()) / (deviation + 1e-8))

    def mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over minibatches of rows, shuffled once; rows that are left over are dropped.

        Args:
            num_mini_batches: Of an epoch.
            num_epochs: Passes through the rollout. Mind the default if the call is in a loop over epochs.

        Returns:
            Of each minibatch: observations, (reference, mask) or None, critic observations (the actor's if there are
            none), their (reference, mask) or None, actions, values, advantages, returns, log-probabilities, means and
            standard deviations of the actions, DAgger actions or None, (None, None) for hidden states, None for masks,
            RND states or None; and with `amp_cfg` and a reference, what the extractors return of the step before:
            observation, reference and its mask, which is False in the first step of an episode, where the states are
            the row's own; otherwise None, None, None.

        Raises:
            BatchLayoutError: no steps, no returns since the newest one, or the storage is for distillation.
        """
        self._check_type("rl", "mini_batch_generator")
        self._add_previous()
        minibatches = self.storage.minibatches(num_mini_batches, epochs=num_epochs, remainder="drop")
        left = self.step * self.num_envs % num_mini_batches
        if left and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                EpibatchWarning(
                    "RolloutStorageMM.mini_batch_generator",
                    expected="a number of minibatches that divides the number of rows",
                    found=f"{self.step * self.num_envs} rows, {num_mini_batches} minibatches: {left} rows are left out",
                    do="take another number, or storage.minibatches(..., remainder='spread')",
                ),
                stacklevel=2,
            )
        return map(self._outputs, minibatches)

    def recurrent_mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over minibatches of trajectories, for recurrent modules.

        Args:
            num_mini_batches: Of an epoch.
            num_epochs: Passes through the rollout.

        Returns:
            As `mini_batch_generator`, with rows `[L, S, ...]`: trajectories from the first step or an end to an end or
            the last step, padded with zeros to the longest. Hidden states are those at their first steps, and masks are
            bool [L, S], False in the padding.

        Raises:
            BatchLayoutError: transitions without hidden states, and as `mini_batch_generator`.
        """
        self._check_type("rl", "recurrent_mini_batch_generator")
        self._add_previous()
        minibatches = self.storage.minibatches(
            num_mini_batches, epochs=num_epochs, unit="sequences", remainder="spread", time_major=True
        )
        return map(self._outputs, minibatches)

    def _add_previous(self) -> None:
        if self._extractors and self.reference_observations is not None:
            of_obs, of_ref = self._extractors
            self.storage.add_previous(_PREVIOUS[0], Columns.OBS, lambda obs: of_obs(obs["policy"]))
            self.storage.add_previous(_PREVIOUS[1], Columns.OBS, lambda obs: _pair(of_ref(obs["ref"])))

    def _outputs(self, minibatch: Mapping[str, Any]) -> tuple[Any, ...]:
        obs = minibatch[Columns.OBS]
        names = (Columns.VF_PREDS, Columns.ADVANTAGES, Columns.VALUE_TARGETS, Columns.ACTION_LOGP)
        states = minibatch.get(Columns.STATE_IN, {})
        before, ref_before = (minibatch.get(name, MaskedColumn(None, None)) for name in _PREVIOUS)
        return (
            obs["policy"],
            obs.get("ref"),
            obs.get("critic", obs["policy"]),
            obs.get("critic_ref"),
            minibatch[Columns.ACTIONS],
            *[minibatch[name].unsqueeze(-1) for name in names],
            minibatch["action_mean"],
            minibatch["action_sigma"],
            minibatch.get("dagger_actions"),
            tuple(map_struct(_layers_first, states[name]) if name in states else None for name in _NETWORKS),
            minibatch.get(Columns.LOSS_MASK),
            minibatch.get("rnd_state"),
            before.value,
            ref_before.value,
            ref_before.mask,
        )

    def generator(self) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over the steps in the order of time, for distillation.

        Returns:
            Of each step: observations, the teacher's observations (the student's if there are none),
            (reference, mask) or None, the teacher's (reference, mask) or None, actions, the teacher's actions, dones.

        Raises:
            BatchLayoutError: there are no steps, or the storage is for reinforcement learning.
        """
        self._check_type("distillation", "generator")
        return map(_distillation_outputs, self.storage.steps())

    def get_statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean length of trajectories and the mean reward of a step, as `RolloutStorage.statistics`."""
        found = self.storage.statistics()
        return found["trajectory_length"], found["reward"]

    def _check_type(self, training_type: str, call: str) -> None:
        if self.training_type != training_type:
            raise BatchLayoutError(
                f"RolloutStorageMM.{call}",
                expected=f"training_type={training_type!r}",
                found=repr(self.training_type),
                do="make the storage with this training_type",
            )


def _distillation_outputs(step: Mapping[str, Any]) -> tuple[Any, ...]:
    obs = step[Columns.OBS]
    dones = step[Columns.TERMINATEDS].view(torch.uint8).unsqueeze(-1)
    critic = obs.get("critic", obs["policy"])
    pairs = obs.get("ref"), obs.get("critic_ref")
    return (obs["policy"], critic, *pairs, step[Columns.ACTIONS], step["teacher_actions"], dones)


def _is_given(shape: Shape) -> bool:
    return shape is not None and (not isinstance(shape, Sequence) or len(shape) == 0 or shape[0] is not None)


def _spec(field: str, shape: Any) -> ColumnSpec:
    if field in _FLAGS:
        return ColumnSpec((), torch.bool)
    if field in _NUMBERS:
        return ColumnSpec()
    try:
        return ColumnSpec(shape)
    except ConfigError:
        raise ConfigError(
            f"RolloutStorageMM, shape of {field}",
            expected="sizes, such as [48]",
            found=repr(shape),
            do="give the shape of one environment's row; only references, the critic's and RND's may be None",
        ) from None


def _states_of(hidden_states: Any, step: int) -> dict[str, Any]:
    """Return the states of a transition with environments first, by network; without those that are None.

    Raises:
        ColumnError: they are no pair.
    """
    if hidden_states is not None and (not isinstance(hidden_states, (tuple, list)) or len(hidden_states) != 2):
        raise ColumnError(
            f"RolloutStorageMM, step {step}, hidden_states",
            expected="a pair of the states of actor and critic: tensors [layers, N, ...], tuples of these, or None",
            found=type(hidden_states).__name__,
            do="set transition.hidden_states = (states, None) if the actor alone is recurrent",
        )
    pairs = zip(_NETWORKS, hidden_states or ())
    return {name: map_struct(_layers_first, states) for name, states in pairs if states is not None}


def _layers_first(states: torch.Tensor) -> torch.Tensor:
    """Exchange the axes of layers and environments."""
    return states.transpose(0, 1)


def _pair(returned: Any) -> MaskedColumn:
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise ColumnError(
            "RolloutStorageMM, amp_ref_obs_extractor",
            expected="a pair (reference, mask)",
            found=type(returned).__name__,
            do="return the mask too: the one that it gets, for example",
        )
    return MaskedColumn(*returned)


def _extractor(amp_cfg: Mapping[str, Any], name: str) -> Callable[[Any], Any]:
    if not isinstance(amp_cfg, Mapping):
        do = "give both extractors: " + " and ".join(_EXTRACTORS)
        raise ConfigError("RolloutStorageMM, amp_cfg", expected="a dict or None", found=repr(amp_cfg), do=do)
    function: Any = amp_cfg.get(name)
    if isinstance(function, str):
        function = load_object(function, f"RolloutStorageMM, amp_cfg[{name!r}]", "function")
    if not callable(function):
        raise ConfigError(
            f"RolloutStorageMM, amp_cfg[{name!r}]",
            expected="a function, or its import path module:name",
            found=repr(function) if name in amp_cfg else f"only {', '.join(map(repr, amp_cfg))}",
            do="give both extractors: " + " and ".join(_EXTRACTORS),
        )
    extractor: Callable[[Any], Any] = function
    return extractor
