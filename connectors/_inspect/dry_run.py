"""The columns that a pipeline makes, read off two batches of drawn episodes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpibatchWarning, SpaceError, add_context
from epibatch.core.rl_module.module_facts import acting_module, is_multi, is_stateful, model_option
from epibatch.core.runtime import preserve_random_state
from epibatch.core.spaces import get_base_struct_from_space, space_like, space_of_struct
from epibatch.core.structs import BatchedNdArray, Form, flatten, flatten_like, map_struct, stack_rows, unflatten

from ...episodes.multi_agent_episode import MultiAgentEpisode
from ...episodes.single_agent_episode import SingleAgentEpisode
from .._engine.agent_table import AgentMapper
from .._engine.chunks import PER_SEQUENCE
from .._engine.layouts import is_plain
from ..pipeline_copies import copied

if TYPE_CHECKING:
    from ..connector_pipeline_v2 import ConnectorPipelineV2

_AXES = ("batch", "time")


class ColumnSpace(NamedTuple):
    """The space and axes of a column.

    Args:
        space: Space of one row, without the leading axes.
        axes: The leading axes: ("batch",), or ("batch", "time") in padded sequences of a recurrent module.
        layout: "episodes" (rows of each episode by themselves), "arrays" or "tensors".
    """

    space: gym.Space[Any]
    axes: tuple[str, ...]
    layout: str

    def __str__(self) -> str:
        return f"[{', '.join(self.axes)}] of {self.space}, {self.layout}"


class _Column(NamedTuple):
    """A column of one run: shape and type of each leaf (-1 rows in lists), and the length of its time axis."""

    layout: str
    form: Form
    leaves: tuple[tuple[tuple[int, ...], str], ...]
    steps: int | None = None


_ANY_MODULE = SimpleNamespace(compute_values=lambda batch, embeddings=None: 0 * batch[Columns.REWARDS])
"""Takes the place of a module where none is given: without state, with values of 0."""


class _AnyModules:
    """Takes the place of a MultiRLModule where none is given: it has a module of every id."""

    foreach_module = None

    def __contains__(self, module_id: Any) -> bool:
        return True

    def __getitem__(self, module_id: Any) -> Any:
        return _ANY_MODULE


def column_spaces_of(pipeline: ConnectorPipelineV2, module: Any = None) -> dict[str, ColumnSpace]:
    """Run a copy of a pipeline twice, on different numbers of drawn episodes; see `ConnectorPipelineV2.column_spaces`.

    Args:
        pipeline: The pipeline.
        module: The module that the batches are for, of which a copy runs; None: any one without state.
    """
    do = "leave out of pieces and module what cannot be copied, such as open files, or write __deepcopy__"
    pipeline, module = copied("column_spaces", pipeline, module, do=do)
    several = pipeline.spaces_by_agent or any(isinstance(piece, AgentMapper) for piece in pipeline.pieces())
    acts, observations = pipeline.start_layout == "tensors", pipeline.input_observation_space
    if several and (acts or not isinstance(observations, gym.spaces.Dict)):
        return {}
    actions = pipeline.input_action_space
    if acts:
        actions = getattr(acting_module(module), "action_space", None) or actions
    if (actions if acts else observations) is None or (actions is None and pipeline.training is not False):
        return {}
    first_lengths, other_lengths = _lengths(pipeline, module)
    if module is None:
        module = _AnyModules() if several else _ANY_MODULE
    try:
        with preserve_random_state():
            first = _run(pipeline, module, _drawn(pipeline, observations, actions, first_lengths, several), actions)
            other = _run(pipeline, module, _drawn(pipeline, observations, actions, other_lengths, several), actions)
    except Exception as error:
        add_context(error, f"in the dry run of {type(pipeline).__name__}, on episodes drawn from its spaces:")
        raise
    spaces = {
        Columns.OBS: pipeline.observation_space,
        Columns.NEXT_OBS: pipeline.observation_space,
        Columns.ACTIONS: actions if acts else pipeline.action_space,
        Columns.ACTIONS_FOR_ENV: pipeline.input_action_space,
    }
    found = {}
    for (module_id, name), column in first.items():
        space = spaces.get(name)
        if several and isinstance(space, gym.spaces.Dict):
            space = space.spaces.get(module_id)
        label = name if module_id is None else f"{module_id}/{name}"
        found[label] = _described(column, other.get((module_id, name)), space)
    return {label: column for label, column in found.items() if column is not None}


def _lengths(pipeline: Any, module: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the steps of each episode of both runs: enough to fill a sequence; for acting none."""
    if pipeline.training is False:
        return (0, 0), (0, 0, 0)
    modules = [member for _, member in module.items()] if is_multi(module) else [module]
    steps = max((model_option(member, "max_seq_len") or 1 for member in modules if is_stateful(member)), default=1)
    return (steps, steps + 2), (steps, steps + 1, steps + 3)


def _drawn(pipeline: Any, observations: Any, actions: Any, lengths: Sequence[int], several: bool) -> list[Any]:
    """Draw episodes of these lengths; every second one is terminated."""
    for seed, space in enumerate((observations, actions)):
        if space is not None:
            space.seed(seed)
    mapping = next((piece for piece in pipeline.pieces() if isinstance(piece, AgentMapper)), None)
    mapping_fn = getattr(mapping, "agent_to_module_mapping_fn", None)
    episodes: list[Any] = []
    outputs: dict[Any, Any] = {}
    if any(lengths):
        outputs = {agent_id: _outputs(space) for agent_id, space in actions.items()} if several else _outputs(actions)
    for number, steps in enumerate(lengths):
        rows = [0 if observations is None else observations.sample() for _ in range(steps + 1)]
        action_rows, ends = [actions.sample() for _ in range(steps)], steps > 0 and number % 2 == 0
        facts: dict[str, Any] = {"observations": rows, "actions": action_rows, "len_lookback_buffer": 0}
        facts |= {"observation_space": observations, "action_space": actions}
        if several:
            facts |= {"terminateds": ends, "agent_to_module_mapping_fn": mapping_fn}
            facts["extra_model_outputs"] = [{agent_id: outputs[agent_id] for agent_id in row} for row in action_rows]
            episodes.append(MultiAgentEpisode(**facts, rewards=[dict.fromkeys(row, 0.5) for row in action_rows]))
        else:
            facts["extra_model_outputs"] = {name: [value] * steps for name, value in outputs.items()}
            episodes.append(SingleAgentEpisode(**facts, rewards=[0.5] * steps, terminated=ends))
    return episodes


def _outputs(actions: Any) -> dict[str, Any]:
    """Return what GetActions and a module record in a step: a log-probability, and zeros for the distribution."""
    from epibatch.core.distributions.choosing import distribution_for

    try:
        inputs = np.zeros(distribution_for(actions).required_input_dim(actions), np.float32)
    except SpaceError:  # the module has a distribution of its own
        return {Columns.ACTION_LOGP: np.float32(0)}
    return {Columns.ACTION_LOGP: np.float32(0), Columns.ACTION_DIST_INPUTS: inputs}


def _run(pipeline: Any, module: Any, episodes: list[Any], actions: Any) -> dict[tuple[Any, str], _Column]:
    """Run the pipeline: from drawn actions, if it starts from what a module gave.

    Returns:
        The columns by module (None: without modules) and name.
    """
    batch: dict[str, Any] = {}
    if pipeline.start_layout == "tensors":
        import torch

        batch[Columns.ACTIONS] = map_struct(torch.as_tensor, stack_rows([actions.sample() for _ in episodes]))
    shared: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EpibatchWarning)  # about the drawn values
        batch = pipeline(rl_module=module, batch=batch, episodes=episodes, shared_data=shared)
    columns = dict(_columns(batch, module, isinstance(episodes[0], MultiAgentEpisode)))
    has_time_axis = shared.get("_added_single_ts_time_rank")
    for module_id, name in columns:
        steps = _steps({key: column for (owner, key), column in columns.items() if owner == module_id}, has_time_axis)
        if name not in PER_SEQUENCE:
            columns[module_id, name] = columns[module_id, name]._replace(steps=steps)
    return columns


def _steps(columns: dict[str, _Column], has_time_axis: Any) -> int | None:
    """The length of the time axis that columns of a module have; None if they have none."""
    mask = columns.get(Columns.LOSS_MASK)
    if Columns.SEQ_LENS in columns and mask is not None and len(mask.leaves[0][0]) > 1:
        return mask.leaves[0][0][1]
    return 1 if has_time_axis and Columns.STATE_IN in columns else None


def _columns(batch: dict[Any, Any], module: Any, several: bool) -> Iterator[tuple[tuple[Any, str], _Column]]:
    """Each column by module and name."""
    for key, column in batch.items():
        if is_plain(column) and several:
            for module_id in dict.fromkeys(owner[2] for owner in column):
                items = [item for owner, rows in column.items() if owner[2] == module_id for item in rows]
                yield (module_id, key), _seen(items)
        elif isinstance(column, dict) and not is_plain(column) and (several or (is_multi(module) and key in module)):
            yield from (((key, name), _seen(part)) for name, part in column.items())
        else:
            yield (None, key), _seen([row for rows in column.values() for row in rows] if is_plain(column) else column)


def _seen(column: Any) -> _Column:
    """Describe a list of rows, of which the last one counts, or arrays."""
    rows = isinstance(column, list)
    leaves, form = flatten((column or ({},))[-1] if rows else column)
    layout = "episodes" if rows else "tensors" if any(hasattr(leaf, "detach") for leaf in leaves) else "arrays"
    found = []
    for leaf in leaves:
        shape, dtype = tuple(np.shape(leaf)), getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        if rows:
            shape = (-1, *(shape[1:] if isinstance(leaf, BatchedNdArray) else shape))
        found.append((shape, str(dtype).removeprefix("torch.")))
    return _Column(layout, form, tuple(found))


def _described(first: _Column, other: _Column | None, space: Any) -> ColumnSpace | None:
    """Return the common properties of a column of both runs. Bounds are those of a known space, if it fits.

    Returns:
        None if the rows differ in nesting, shape or type, or have a type without a space.
    """
    if other is None or first.form != other.form or not first.leaves:
        return None
    try:
        parts = flatten_like(first.form, get_base_struct_from_space(space))
    except ColumnError:
        parts = [None] * len(first.leaves)
    spaces, leading = [], set()
    for (shape, dtype), (other_shape, other_dtype), part in zip(first.leaves, other.leaves, parts):
        axes = [axis for axis, sizes in enumerate(zip(shape, other_shape)) if len({*sizes}) > 1 or -1 in sizes]
        count = max([axis + 1 for axis in axes] + [2] * (shape[1:2] == (first.steps,)), default=0)
        comparable = dtype == other_dtype and len(shape) == len(other_shape)
        spaces.append(_space(shape[count:], dtype, part) if comparable else None)
        leading.add(count)
    if None in spaces or len(leading) > 1 or max(leading) > len(_AXES):
        return None
    return ColumnSpace(space_of_struct(unflatten(first.form, spaces)), _AXES[: leading.pop()], first.layout)


def _space(shape: tuple[int, ...], name: str, expected: Any) -> gym.Space[Any] | None:
    """The space of rows of a shape and type; None if there is none."""
    if expected is not None and expected.shape is None:  # text, say
        space: gym.Space[Any] = expected
        return space
    try:
        dtype = np.dtype(name)
    except TypeError:  # bfloat16, which NumPy has not
        return None
    fits = expected is not None and expected.shape == shape
    if fits and expected.dtype != dtype:
        fits = isinstance(expected, gym.spaces.Box) and np.dtype(expected.dtype).kind == dtype.kind == "f"
        if fits:
            with np.errstate(over="ignore"):  # bounds that float32 has not are infinite
                expected = gym.spaces.Box(expected.low.astype(dtype), expected.high.astype(dtype), dtype=dtype.type)
    return expected if fits else space_like(shape, dtype)
