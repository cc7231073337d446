"""Facts of a module: whether it is recurrent, its first state, and the sequences that it wants."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, PipelineError, UnknownNameError, nearest
from epibatch.core.plain import python_scalar
from epibatch.core.sequence_ends import check_burn_in, check_sequence_end
from epibatch.core.structs import Form, flatten, map_struct


class StateLayout(NamedTuple):
    """The nesting of a module's state, and the shapes of its leaves.

    Args:
        form: The nesting.
        shapes: One per leaf, without batch axis.
        random: Whether `get_initial_state` gives another state each time.
    """

    form: Form
    shapes: tuple[tuple[int, ...], ...]
    random: bool


_LAYOUTS: WeakKeyDictionary[Any, StateLayout] = WeakKeyDictionary()


def is_multi(rl_module: Any) -> bool:
    """True if this is a module of modules."""
    kind: Any = type(rl_module)
    return _has_method(kind, "foreach_module")


def acting_module(rl_module: Any) -> Any:
    """The module itself, or the default one of a MultiRLModule.

    Raises:
        UnknownNameError: a MultiRLModule without default module.
    """
    if not is_multi(rl_module):
        return rl_module
    if DEFAULT_MODULE_ID not in rl_module:
        raise UnknownNameError(
            "single-agent episodes",
            expected=f"a module {DEFAULT_MODULE_ID!r}",
            found=f"modules {sorted(rl_module.keys())}",
            do=nearest(DEFAULT_MODULE_ID, rl_module.keys()),
        )
    return rl_module[DEFAULT_MODULE_ID]


def check_given(rl_module: Any, piece: str, use: str) -> None:
    """Refuse a call without a module, for a piece that cannot do without one.

    Args:
        rl_module: What the call was given.
        piece: Name of the piece.
        use: What it needs the module for.

    Raises:
        PipelineError: it was given none.
    """
    if rl_module is None:
        raise PipelineError(
            piece,
            expected=f"a module, {use}",
            found="none",
            do="give it to the call, pipeline(rl_module=module, ...), or to the trace, "
            "pipeline.trace(episodes, module)",
        )


def describe_batch(batch: Mapping[str, Any], error: Exception) -> str:
    """The columns of a batch and their shapes, for the message of an error that a module raised with it."""
    shapes = {name: map_struct(lambda leaf: list(getattr(leaf, "shape", ())), column) for name, column in batch.items()}
    text = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "an empty batch"
    states = flatten(batch.get(Columns.STATE_IN, {}))[0]
    of_sizes = isinstance(error, RuntimeError) and any(word in str(error) for word in ("size", "shape", "-D"))
    if of_sizes and any(np.ndim(leaf) > 2 and np.shape(leaf)[1] == 1 for leaf in states):
        text += " (if the 1 in state_in is a batch axis: leave it out of get_initial_state)"
    if of_sizes and states and ("hx" in str(error) or "hidden" in str(error)):
        text += " (torch's recurrent layers take [layers, B, H], such as state[None] of a state [B, H])"
    return text


def has_method(module: Any, name: str) -> bool:
    """True if a module's class, the module itself, or the module that it wraps has a method.

    Classes are asked once: `hasattr` is slow on a torch module that lacks the name.
    """
    kind: Any = type(module)
    if _has_method(kind, name) or name in getattr(module, "__dict__", ()):
        return True
    return _delegates(kind) and hasattr(module, name)


@cache
def _has_method(kind: type, name: str) -> bool:
    return hasattr(kind, name)


@cache
def _delegates(kind: type) -> bool:
    """Return True if modules of a class pass names on to another module, as compiled ones do."""
    method = getattr(kind, "__getattr__", None)
    return method is not None and method.__module__ != "torch.nn.modules.module"


def method_of(module: Any, name: str, piece: str, use: str) -> Any:
    """Return a method of a module that a piece needs.

    Args:
        module: The module.
        name: The method's name.
        piece: Name of the piece.
        use: What the piece needs it for.

    Raises:
        PipelineError: the module does not have it.
    """
    method = getattr(module, name, None)
    if method is None:
        found = f"{type(module).__name__}, which has none"
        raise PipelineError(piece, expected=f"a module with {name}, {use}", found=found, do=_ADD[name])
    return method


_ADD = {
    "compute_values": "add compute_values(self, batch, embeddings=None), which returns one value per row of "
    "batch['obs']; or build the pipeline without advantages, default_pipeline(advantages=False)",
    "forward_train": "add forward_train(self, batch), which returns a dict of columns with 'state_out'",
    "get_train_action_dist_cls": "derive the module from epibatch.core.TorchRLModule, or add "
    "get_train_action_dist_cls(self), which returns a class with from_logits(outputs).logp(actions)",
    "get_initial_state": "add get_initial_state(self), which returns one environment's state at a reset: "
    'a dict of tensors such as {"h": torch.zeros(64)}',
}


def is_stateful(rl_module: Any) -> bool:
    """True if the batch's module is recurrent: it says so in `is_stateful`, or else its initial state has parts."""
    if rl_module is None:
        return False
    module = acting_module(rl_module) if is_multi(rl_module) else rl_module
    if not has_method(module, "is_stateful"):
        return has_method(module, "get_initial_state") and bool(state_layout(module).shapes)
    stateful = module.is_stateful
    return bool(stateful() if callable(stateful) else stateful)


def initial_state(module: Any) -> Any:
    """Return the initial state of a recurrent module, as the module gives it; None is a state without parts.

    Raises:
        PipelineError: the module has none, or its method wants arguments.
    """
    name = type(module).__name__
    method = method_of(module, "get_initial_state", name, "since it says that it is recurrent")
    try:
        state = method()
    except TypeError:
        signature = inspect.signature(method)
        try:
            signature.bind()
        except TypeError as error:
            found, do = f"get_initial_state{signature}: {error}", _ADD["get_initial_state"].replace("add", "write", 1)
            raise PipelineError(name, expected="a method without arguments", found=found, do=do) from None
        raise
    return {} if state is None else state


def state_layout(module: Any, *, anew: bool = False) -> StateLayout:
    """The layout of a module's state; the module is asked for its initial state only the first time.

    The values of that state may change, as those of learned ones do, and are asked for where they are needed.

    Args:
        module: A recurrent module, and no module of modules.
        anew: Whether to ask again, because the state does not match the cached layout.
    """
    try:
        layout = _LAYOUTS.get(module)
    except TypeError:  # a module that cannot be a key
        return _layout_of(module)
    if layout is None or anew:
        layout = _LAYOUTS[module] = _layout_of(module)
    return layout


def _layout_of(module: Any) -> StateLayout:
    leaves, form = flatten(initial_state(module))
    other_leaves, _ = flatten(initial_state(module))
    random = any(not np.array_equal(to_array(left), to_array(right)) for left, right in zip(leaves, other_leaves))
    return StateLayout(form, tuple(tuple(np.shape(leaf)) for leaf in leaves), random)


def to_array(leaf: Any) -> Any:
    """A leaf of a state, a tensor or an array, as an array."""
    return leaf.detach().cpu().numpy() if hasattr(leaf, "detach") else np.asarray(leaf)


def model_option(module: Any, name: str) -> Any:
    """One option of a module's `model_config`, whether that is a mapping or an object; None if it has none."""
    config = getattr(module, "model_config", None)
    return python_scalar(config.get(name) if isinstance(config, Mapping) else getattr(config, name, None))


def max_seq_len(module: Any) -> int:
    """Rows per sequence in a train batch of a recurrent module: its model_config's, else its `default_max_seq_len`.

    Raises:
        ConfigError: neither says, or it is no length.
    """
    found = model_option(module, "max_seq_len")
    if found is None:
        found = getattr(module, "default_max_seq_len", None)
    if not isinstance(found, int) or found < 1:
        raise ConfigError(
            f"model_config of {type(module).__name__}",
            expected="max_seq_len, an int of at least 1 (the module is recurrent)",
            found=repr(found),
            do='add model_config={"max_seq_len": 20}, to a plain torch module as an attribute; in a file or with '
            "--set it is rl_module.model_config.max_seq_len: 20",
        )
    return found


class SequenceSettings(NamedTuple):
    """The settings of a recurrent module's train batches.

    Args:
        max_seq_len: T, rows per sequence.
        end: The way sequences end, one of `epibatch.core.sequence_ends.SEQUENCE_ENDS`.
        burn_in: Rows before each sequence that are there for the state alone.
    """

    max_seq_len: int
    end: str
    burn_in: int


def sequence_settings(module: Any, steps: int | None = None) -> SequenceSettings:
    """The settings in a recurrent module's `model_config`: `max_seq_len`, `sequence_end` and `burn_in`.

    Args:
        module: A recurrent module, and no module of modules.
        steps: Rows per sequence, where they are known already.

    Raises:
        ConfigError: one is no such setting, they do not fit together, or the module cannot start again within a
            sequence, as it has to with `sequence_end` "continue".
    """
    steps = max_seq_len(module) if steps is None else steps
    end, burn_in = model_option(module, "sequence_end"), model_option(module, "burn_in")
    if end is None and not burn_in:
        return SequenceSettings(steps, "pad", 0)
    where = f"model_config of {type(module).__name__}, "
    end = check_sequence_end("pad" if end is None else end, f"{where}sequence_end")
    burn_in = check_burn_in(0 if burn_in is None else burn_in, steps, end, f"{where}burn_in")
    if end == "continue" and not getattr(module, "handles_resets", False):
        raise ConfigError(
            f"{where}sequence_end",
            expected="one of pad, drop, truncate, overlap",
            found="'continue', and a module that does not say that it starts again where column 'resets' is True",
            do="go on from `reset_states` at `resets` in forward_train and set the class attribute "
            "handles_resets = True, as the default LSTM does; or use sequence_end 'overlap'",
        )
    return SequenceSettings(steps, end, burn_in)
