"""Comparison of modules' outputs in training with those recorded while acting, before the first gradient step."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, FirstUpdateError, FirstUpdateWarning, add_context
from epibatch.core.metrics import WEIGHTS_SEQ_NO, MetricsLogger
from epibatch.core.rl_module.module_facts import model_option
from epibatch.core.runtime import evaluation_mode, preserve_random_state
from epibatch.core.structs import flatten, map_struct

from ..connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ..connectors.connector_v2 import ConnectorV2
from ..connectors.pipeline_copies import copied
from .acting_side import entries_that_differ, pieces_of_one_side
from .minibatches import Minibatches

if TYPE_CHECKING:
    from .module_trainer import ModuleTrainer

CheckMode = Literal["warn", "error", "off"]
"""What a difference between acting and training becomes."""

_MOST_ROWS = 4096
_MASK = "_first_update_mask"
_HALVES = (torch.float16, torch.bfloat16)
_LINE = "\n            "
_OR = f"{_LINE}or "
_LOG = logging.getLogger("epibatch")


class FirstUpdateCheck:
    """Checks, once for each module, that its outputs in training equal those recorded while acting.

    There are two comparisons, on at most 4,096 rows:

    - the `action_dist_inputs` of `forward_train` with the recorded ones;
    - the log-probabilities of the recorded actions under the recorded inputs with the recorded log-probabilities.

    The rows are those that carry loss, in which the module acted with exploration, and that have the newest
    `weights_seq_no`. Without that column only a learner's very first update is checked.

    The check has no side effects: it works on copies, and restores the random generators of the process. If the check
    cannot be made, the reason is logged as a warning; with "error" it is raised.

    Args:
        mode: "warn", "error" or "off".

    Attributes:
        acting: the env-to-module pipeline, if it is known; then the message names its pieces.

    Raises:
        ConfigError: another mode.
    """

    def __init__(self, mode: CheckMode) -> None:
        if mode not in get_args(CheckMode):
            raise ConfigError(
                "check_first_update", expected=f"one of {get_args(CheckMode)}", found=repr(mode), do="choose one"
            )
        self.mode = mode
        self.acting: Any = None
        self._pipeline: Any = None
        self._pieces: Sequence[Any] = ()
        self._checked: dict[str, Any] = {}
        self._updated = False
        self._skips_next = False
        self._episodes: Sequence[Any] = ()
        self._batch: Mapping[str, Any] | None = None

    def repeat(self) -> None:
        """Check all modules again, as after an edit of a pipeline."""
        self._checked = {}

    def skip(self) -> None:
        """Take all modules for checked in the next update, whose steps acted with earlier weights."""
        self._skips_next = True

    def begin(
        self, pipeline: Any, modules: Any, episodes: Sequence[Any], trained: Collection[str] | None = None
    ) -> list[str]:
        """Prepare for an update, before the learner pipeline runs.

        Args:
            pipeline: The learner pipeline. If some of its pieces are only for training, copies of the others make the
                batch to compare. If its pieces have changed, all modules are checked again.
            modules: The modules, by id.
            episodes: The episodes of the update.
            trained: Ids of modules to train; None: all, or those that a function of the batch chooses.

        Returns:
            Ids of modules to check.
        """
        pieces = pipeline.pieces() if hasattr(pipeline, "pieces") else ()
        if len(pieces) != len(self._pieces) or any(left is not right for left, right in zip(pieces, self._pieces)):
            self._pieces = pieces
            self.repeat()
        if self._skips_next:
            self._skips_next, self._checked = False, dict(modules.items())
        self._pipeline, self._episodes, self._batch = pipeline, episodes, None
        pending = [key for key in self._pending(modules) if trained is None or key in trained]
        if not pending or not any(map(_is_for_training_only, pieces)):
            return pending
        try:
            self._episodes = _newest_episodes(episodes)
            part, modules, copies = copied("update", pipeline, modules, self._episodes, do=_COPYABLE)
            with preserve_random_state(), evaluation_mode(modules):
                self._batch = _acting_part(part)(
                    rl_module=modules, batch={}, episodes=copies, shared_data={}, metrics=MetricsLogger()
                )
        except Exception as error:
            self._cannot(error, "no batch without the pieces for training alone")
            self._checked = dict(modules.items())
        return pending

    def begin_batch(self, modules: Any) -> None:
        """Prepare for an update from a batch, for which the learner pipeline does not run.

        Args:
            modules: The modules, by id.
        """
        if self._skips_next:
            self._skips_next, self._checked = False, dict(modules.items())
        self._pipeline, self._episodes, self._batch = None, (), None

    def _pending(self, modules: Any) -> list[str]:
        off = self.mode == "off"
        return [key for key, module in modules.items() if not off and self._checked.get(key) is not module]

    def _cannot(self, error: Exception, why: str) -> None:
        if self.mode == "error":
            add_context(error, "in the first-update check:")
            raise error
        _LOG.warning("no first-update check: %s: %s", why, error)

    def compare(self, trainers: Mapping[str, ModuleTrainer], batch: Mapping[str, Any]) -> None:
        """Compare before the first gradient step of an update.

        Args:
            trainers: Those of the modules that will be updated, by module id.
            batch: The train batch, by module id.

        Raises:
            FirstUpdateError: there is a difference, and the mode is "error".
        """
        batch = batch if self._batch is None else self._batch
        pending = [key for key in self._pending({key: item.module for key, item in trainers.items()}) if key in batch]
        differences = [difference for key in pending for difference in self._differences(key, trainers[key], batch)]
        self._batch, self._episodes = None, ()
        if differences and self.mode == "error":
            self.repeat()
            raise FirstUpdateError("\n".join(map(str, differences)))
        self._updated = True
        for warning in differences:
            warnings.warn(warning, stacklevel=4)

    def _differences(
        self, module_id: str, trainer: ModuleTrainer, batch: Mapping[str, Any]
    ) -> list[FirstUpdateWarning]:
        """Return the warnings about one module, which is checked again only if it had no rows to compare."""
        module, columns = trainer.module, batch[module_id]
        trained = isinstance(module, torch.nn.Module) and any(weight.requires_grad for weight in module.parameters())
        if not trained or not trainer.rule.on_policy or Columns.ACTION_DIST_INPUTS not in columns:
            self._checked[module_id] = module
            return []
        try:
            newest = _newest_number(batch)
            if newest is None and self._updated:
                self._checked[module_id] = module
                return []
            rows = _rows_to_compare(columns, newest, burns_in=bool(model_option(module, "burn_in")))
            if not rows.any():
                return []
            self._checked[module_id] = module
            with torch.no_grad(), preserve_random_state():
                acting = self.acting if hasattr(self._pipeline, "pieces") else None
                sides = None if acting is None else (acting, self._pipeline)
                return _Comparison(trainer, columns, rows).warnings(module_id, self._episodes, sides)
        except Exception as error:
            self._cannot(error, f"module {module_id}")
            self._checked[module_id] = module
            return []


# -- which pieces, episodes and rows -------------------------------------------------------------------


def _is_for_training_only(piece: Any) -> bool:
    return bool(getattr(piece, "training_only", False))


def _acting_part(pipeline: ConnectorPipelineV2) -> ConnectorPipelineV2:
    """Remove the pieces that are only for training; freeze the others, as for acting."""
    for piece in list(pipeline):
        if isinstance(piece, ConnectorPipelineV2):
            _acting_part(piece)
        elif _is_for_training_only(piece) and type(piece).freeze is not ConnectorV2.freeze:
            piece.freeze()
        elif _is_for_training_only(piece):
            pipeline.remove(piece)
    return pipeline


def _newest_episodes(episodes: Sequence[Any]) -> list[Any]:
    """Return the last episodes, in their order, with as many steps as are compared."""
    steps, first = 0, len(episodes)
    while first and steps < _MOST_ROWS:
        first -= 1
        steps += len(episodes[first])
    return [episodes[i] for i in range(first, len(episodes))]


def _newest_number(batch: Mapping[str, Any]) -> int | None:
    numbers = [torch.as_tensor(columns[WEIGHTS_SEQ_NO]) for columns in batch.values() if WEIGHTS_SEQ_NO in columns]
    return max((int(tensor.max()) for tensor in numbers if tensor.numel()), default=None)


def _rows_to_compare(columns: Mapping[str, Any], newest: int | None, *, burns_in: bool) -> torch.Tensor:
    """Return the rows with loss in which the newest weights acted with exploration: bool, [B] or [B, T].

    A step does not count if its sequence has a step of older weights before it, since the state is then different.
    With burn-in no step counts if any has older weights, as it may have been burned in.
    """
    first = torch.as_tensor(flatten(columns[Columns.ACTION_DIST_INPUTS])[0][0])
    steps = torch.ones(first.shape[: 2 if Columns.SEQ_LENS in columns else 1], dtype=torch.bool)
    if Columns.SEQ_LENS in columns:
        steps = torch.arange(steps.shape[1]) < torch.as_tensor(columns[Columns.SEQ_LENS]).cpu()[:, None]
    rows = steps
    if Columns.LOSS_MASK in columns:
        rows = rows & torch.as_tensor(columns[Columns.LOSS_MASK]).cpu().bool()
    if Columns.ACTION_LOGP in columns:  # a greedy action has log-probability 0
        rows = rows & (torch.as_tensor(columns[Columns.ACTION_LOGP]).cpu() != 0)
    if newest is not None and WEIGHTS_SEQ_NO in columns:
        older = steps & (torch.as_tensor(columns[WEIGHTS_SEQ_NO]).cpu() != newest)
        older = older.any() if burns_in else older.cumsum(1).bool() if older.ndim > 1 else older
        rows = rows & ~older
    return rows & (rows.flatten().cumsum(0) <= _MOST_ROWS).reshape(rows.shape)


@contextmanager
def _buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Restore the buffers of a module at the end, such as the statistics of batch norm, for the next minibatch."""
    kept = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for part, name, buffer, value in kept:
            buffer.copy_(value)
            setattr(part, name, buffer)


# -- comparing -------------------------------------------------------------------------------------


class _UsesHalves(TorchFunctionMode):
    """Records if a 16-bit tensor is computed while it is active, as under autocast."""

    found = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        leaves = result if isinstance(result, tuple) else (result,)
        self.found |= any(isinstance(leaf, torch.Tensor) and leaf.dtype in _HALVES for leaf in leaves)
        return result


class _Comparison:
    """One module's rows, compared in parts of a minibatch.

    Args:
        trainer: Of the module.
        columns: The module's batch.
        rows: Mask of the rows to compare: bool, [B] or [B, T].

    Attributes:
        inputs: Difference of the `action_dist_inputs`, for each row; 0 within the tolerance.
        change: The resulting difference of the log-probability of the action.
        actions: Difference of the log-probabilities that follow from the recorded inputs.
    """

    def __init__(self, trainer: ModuleTrainer, columns: Mapping[str, Any], rows: torch.Tensor) -> None:
        self._trainer, self._module = trainer, copy.deepcopy(trainer.module)
        self._columns, self._rows = columns, rows
        self._coarse = False
        self.inputs, self.change, self.actions = self._compared()
        if (self.inputs.any() or self.actions.any()) and self._is_coarse():
            self._coarse = True
            self.inputs, self.change, self.actions = self._compared()

    def _parts(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        """Yield copies of minibatches in the order of the batch, and the mask of the rows to compare."""
        columns = {**self._columns, Columns.LOSS_MASK: self._rows}
        if Columns.LOSS_MASK in self._columns:
            columns[_MASK] = self._columns[Columns.LOSS_MASK]
        size = self._trainer.settings.minibatch_size
        for minibatch in Minibatches(columns, size=size, shuffle=None, remainder="spread"):
            rows = minibatch.pop(Columns.LOSS_MASK)
            if _MASK in minibatch:
                minibatch[Columns.LOSS_MASK] = minibatch.pop(_MASK)
            yield self._trainer.to_device(map_struct(_cloned, minibatch)), rows

    def _forward(self, minibatch: dict[str, Any]) -> Any:
        with _buffers_kept(self._module):
            return self._module.forward_train(dict(minibatch)).get(Columns.ACTION_DIST_INPUTS)

    def _compared(self) -> list[torch.Tensor]:
        gaps = []
        for minibatch, rows in self._parts():
            recorded, logp = minibatch[Columns.ACTION_DIST_INPUTS], minibatch.get(Columns.ACTION_LOGP)
            outputs = self._forward(minibatch)
            outputs = recorded if outputs is None else outputs
            inputs = self._difference(outputs, recorded, rows)
            change = actions = torch.zeros_like(inputs)
            if logp is not None and Columns.ACTIONS in minibatch:
                chosen, module = minibatch[Columns.ACTIONS], self._module
                expected = module.get_exploration_action_dist_cls().from_logits(recorded).logp(chosen)
                actions = self._difference(expected, logp, rows, least=1.0)
                change = (module.get_train_action_dist_cls().from_logits(outputs).logp(chosen) - logp).abs().cpu()[rows]
            gaps.append((inputs, change, actions))
        return [torch.cat(parts) for parts in zip(*gaps)]

    def _difference(self, actual: Any, recorded: Any, rows: torch.Tensor, *, least: float = 0.0) -> torch.Tensor:
        """Return the largest difference in each of the rows; 0 where it is within the tolerance.

        The tolerance follows the size of the recorded values: a network's first outputs may all be below 1e-4.

        Args:
            actual: Nested tensors [B, ...] or [B, T, ...].
            recorded: The same of the recorded values.
            rows: Mask of the rows to compare: bool, [B] or [B, T].
            least: The size of values that are smaller, such as log-probabilities near 0.
        """
        relative, absolute = (2e-2, 2e-2) if self._coarse else (1e-3, 1e-4)
        largest = torch.zeros(int(rows.sum()))
        for left, right in zip(flatten(actual)[0], flatten(recorded)[0], strict=True):
            if left.shape != right.shape:  # the loss raises an error
                raise ValueError(f"shapes {list(left.shape)} and {list(right.shape)}")
            left, right = (side.detach().cpu().float()[rows].reshape(len(largest), -1) for side in (left, right))
            size = (left - right).abs().nan_to_num(torch.inf, torch.inf)
            scale = max(least, float(right.abs().nan_to_num().max())) if right.numel() and not self._coarse else 1.0
            within = min(absolute, relative * scale)
            size[torch.isclose(left, right, rtol=relative, atol=within, equal_nan=True)] = 0.0
            largest = torch.maximum(largest, size.amax(1))
        return largest

    def _is_coarse(self) -> bool:
        """True if the module computes with 16-bit or TF32 numbers."""
        with _UsesHalves() as halves:
            self._forward(next(self._parts())[0])
        try:
            tf32 = torch.get_float32_matmul_precision() != "highest"
            on_gpu = torch.backends.cudnn.allow_tf32 and any(weight.is_cuda for weight in self._module.parameters())
        except RuntimeError:  # newer settings, which exclude these
            return True
        kinds = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.RNNBase)
        return halves.found or tf32 or (on_gpu and any(isinstance(part, kinds) for part in self._module.modules()))

    # -- the messages ------------------------------------------------------------------------------

    def warnings(
        self, module_id: str, episodes: Sequence[Any], sides: tuple[Any, Any] | None
    ) -> list[FirstUpdateWarning]:
        """Return one warning for each of the two comparisons that found a difference.

        Args:
            module_id: The module's id.
            episodes: Those that the batch was made of, to name the first row's.
            sides: The env-to-module and the learner pipeline, if both are known.
        """
        out = []
        for gaps, logp, text in ((self.inputs, self.change, _SAME_INPUTS), (self.actions, self.actions, _SAME_ACTIONS)):
            mask = gaps > 0
            if not mask.any():
                continue
            first = int(torch.nonzero(self._rows.flatten())[mask][0])
            values = f"by up to {float(gaps.max()):.3g}; " if gaps is self.inputs else ""
            facts: list[str] = []
            causes = self._causes() if gaps is self.inputs else _CHANGED_ACTIONS
            place = _place(episodes, module_id, self._columns, first)
            if sides is not None and gaps is self.inputs and causes[-1] not in (_RANDOM, _OTHER_MODE):
                entries = self._entries(sides[0], first, place)
                if entries != "":  # with the same observations no piece is to blame
                    facts = [pieces_of_one_side(*sides), entries or ""]
            out.append(
                FirstUpdateWarning(
                    f"module {module_id!r}, before its first gradient step",
                    expected=text,
                    found=f"other values in {int(mask.sum())} of {len(mask)} rows, {values}log-probabilities of "
                    f"actions differ by up to {float(logp[mask].max()):.3g}; the first is "
                    f"{_described(place, first)}"
                    + "".join(f"{_LINE}{fact}" for fact in "\n".join(filter(None, facts)).split("\n") if fact),
                    do=_OR.join((*causes, _MEANT)),
                )
            )
        return out

    def _entries(self, acting: Any, row: int, place: tuple[Any, int] | None) -> str | None:
        if place is None or place[0].agent_id is not None or Columns.OBS not in self._columns:
            return None
        dims = 2 if Columns.SEQ_LENS in self._columns else 1
        obs = map_struct(lambda leaf: torch.as_tensor(leaf).flatten(0, dims - 1)[row], self._columns[Columns.OBS])
        return entries_that_differ(acting, self._module, *place, obs)

    def _causes(self) -> Sequence[str]:
        """Return possible reasons for the difference, found with more forward passes."""
        minibatch, rows = next(self._parts())
        recorded = minibatch[Columns.ACTION_DIST_INPUTS]
        first, second = self._forward(minibatch), self._forward(minibatch)
        with evaluation_mode(self._module):
            is_right = not self._difference(self._forward(minibatch), recorded, rows).any()
        if self._difference(first, second, rows).any():
            return [_RANDOM] if is_right else [_RANDOM, *_OTHER_OBSERVATIONS]
        if is_right and self._difference(first, recorded, rows).any():
            return [_OTHER_MODE]
        return [*_OTHER_OBSERVATIONS, _OTHER_STATE] if Columns.STATE_IN in minibatch else _OTHER_OBSERVATIONS


_SAME_INPUTS = "the action_dist_inputs that forward_train gives are those recorded while acting with the same weights"
_SAME_ACTIONS = "the recorded actions have the recorded action_logp under the recorded action_dist_inputs"
_RANDOM = "take dropout out of the policy: the module is random in training, two forward passes of the same rows differ"
_OTHER_MODE = (
    "take batch norm, and what else depends on train() and eval(), out of the policy: in evaluation mode, in which it "
    "acted, the module gives the recorded values"
)
_OTHER_OBSERVATIONS = (
    "put a piece that changes observations into both pipelines, .env_runners(env_to_module_connector=...) and "
    ".learners(learner_connector=...), with the same arguments",
    "write training_only = True in the class of a piece that is meant for training alone, such as augmentation",
    "let forward_train compute the same as forward_exploration",
)
_OTHER_STATE = (
    "let the module go on from batch['state_in'] and return 'state_out' in every forward pass; while acting, a state "
    "that was not returned is not stored, and the next step begins with the initial one"
)
_CHANGED_ACTIONS = (
    "let module-to-env pieces leave 'actions' as the module gave them, and write what the environment gets to "
    "'actions_for_env'",
    "take pieces that change 'actions' out of the learner pipeline; put them into the env-to-module pipeline, with "
    "their inverse: the module then acts in that space",
)
_COPYABLE = "write __deepcopy__ for it, or set check_first_update='off'"
_MEANT = "if it is meant, set check_first_update='off': in .debugging(...), or as an argument of Learner"


def _cloned(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


# -- which episode a row is of ---------------------------------------------------------------------


def _place(episodes: Sequence[Any], module_id: str, columns: Mapping[str, Any], row: int) -> tuple[Any, int] | None:
    """Return the episode of a row of the batch and the step in it, which are found by the row's recorded outputs.

    Among equal rows the position among the rows with loss decides.
    """
    names = [name for name in (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP) if name in columns]
    dims = 2 if Columns.SEQ_LENS in columns else 1
    table = _table([columns[name] for name in names], dims)
    same = (table[:row] == table[row]).all(1)
    if Columns.LOSS_MASK in columns:
        same &= np.asarray(torch.as_tensor(columns[Columns.LOSS_MASK]).cpu().bool()).reshape(-1)[:row]
    skipped = int(same.sum())
    for episode in ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
        if episode.module_id not in (None, module_id) or names[0] not in episode.extra_model_outputs:
            continue
        recorded = _table([episode.get_extra_model_outputs(name) for name in names], 1)
        steps = np.flatnonzero((recorded == table[row]).all(1)).tolist()
        if skipped < len(steps):
            return episode, steps[skipped]
        skipped -= len(steps)
    return None


def _described(place: tuple[Any, int] | None, row: int) -> str:
    """Name the step and the episode of a row."""
    if place is None:
        return f"row {row} of the batch"
    episode, step = place
    agent = "" if episode.agent_id is None else f", agent {episode.agent_id!r}"
    episode_id = episode.id_ if episode.agent_id is None else episode.multi_agent_episode_id
    return f"step {episode.t_started + step} of episode {episode_id!r}{agent}"


def _table(columns: Sequence[Any], dims: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Join columns into one float32 array of a line per row; `dims` axes are rows."""
    leaves = [torch.as_tensor(leaf).detach().cpu().float() for column in columns for leaf in flatten(column)[0]]
    lines = [np.asarray(leaf.flatten(0, dims - 1).reshape(leaf.shape[:dims].numel(), -1)) for leaf in leaves]
    return np.concatenate(lines, axis=1)
