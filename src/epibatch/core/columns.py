"""Names of the columns that episodes and batches hold, and a batch that records which are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from epibatch.core.errors import ColumnError, NotedKey, add_note, nearest

__all__ = [
    "ALWAYS_KEPT",
    "COLUMNS_LEFT_OUT",
    "COLUMNS_READ",
    "Columns",
    "TrackedBatch",
    "canonical_column",
    "nearest_column",
    "add_column_hint",
]


class Columns:
    """The column names that pieces, modules and losses agree on (the strings are RLlib's).

    Examples:
        >>> Columns.OBS, Columns.ACTION_LOGP
        ('obs', 'action_logp')
    """

    OBS = "obs"
    INFOS = "infos"
    ACTIONS = "actions"
    ACTIONS_FOR_ENV = "actions_for_env"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    NEXT_OBS = "new_obs"
    EPS_ID = "eps_id"
    AGENT_ID = "agent_id"
    MODULE_ID = "module_id"
    SEQ_LENS = "seq_lens"
    SEQ_OFFSETS = "seq_offsets"
    RESETS = "resets"
    RESET_STATES = "reset_states"
    T = "t"
    STATE_IN = "state_in"
    NEXT_STATE_IN = "next_state_in"
    NEXT_RESET_STATES = "next_reset_states"
    STATE_OUT = "state_out"
    NEXT_STATE_OUT = "next_state_out"
    EMBEDDINGS = "embeddings"
    ACTION_MASK = "action_mask"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTION_PROB = "action_prob"
    ACTION_LOGP = "action_logp"
    VF_PREDS = "vf_preds"
    VALUES_BOOTSTRAPPED = "values_bootstrapped"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    INTRINSIC_REWARDS = "intrinsic_rewards"
    RETURNS_TO_GO = "returns_to_go"
    LOSS_MASK = "loss_mask"
    MIRRORED = "mirrored"


_ALSO_CALLED = {
    Columns.OBS: ("observation", "observations", "state", "states"),
    Columns.NEXT_OBS: ("next_obs", "next_observation", "next_observations", "next_state"),
    Columns.ACTIONS: ("action", "act", "acts"),
    Columns.REWARDS: ("reward", "rew", "rews"),
    Columns.TERMINATEDS: ("terminated", "done", "dones", "terminations", "terminals"),
    Columns.TRUNCATEDS: ("truncated", "truncations", "timeouts"),
    Columns.INFOS: ("info",),
    Columns.VF_PREDS: ("values", "state_value", "value"),
}
_MEANT = {other: name for name, others in _ALSO_CALLED.items() for other in others}


def canonical_column(name: str) -> str:
    """The column that is called so elsewhere; the name itself if none is.

    Examples:
        >>> canonical_column("observations"), canonical_column("obs"), canonical_column("my_column")
        ('obs', 'obs', 'my_column')
    """
    return _MEANT.get(name, name)


def nearest_column(name: str, known: Iterable[str]) -> str:
    """As `nearest`, for a column that is not there, by its names elsewhere too.

    Examples:
        >>> nearest_column("observations", ["actions", "obs"])
        "did you mean 'obs'? Known: actions, obs"
    """
    known = list(known)
    alike = (canonical_column(name), *_ALSO_CALLED.get(name, ()))
    return nearest(next((other for other in alike if other in known), name), known)


def add_column_hint(
    error: BaseException, batch: Mapping[Any, Any], advice: str = "", *, meant: str = "the batch"
) -> None:
    """Say which columns a batch has in a KeyError for a name that is not in it.

    Args:
        error: The error of a piece, module or loss that was given the batch.
        batch: Column -> values, or module id -> column -> values.
        advice: A sentence to add, as a note.
        meant: What the columns are of, for the note.

    Examples:
        >>> error = KeyError("reward")
        >>> add_column_hint(error, {"obs": 1, "rewards": 2})
        >>> str(error)
        "'reward'. If the batch was meant: it has no column 'reward' at this place. Its columns: obs, rewards."
    """
    name = error.args[0] if type(error) is KeyError and len(error.args) == 1 else None
    if not isinstance(name, str) or name in batch:
        return
    columns: list[str] = []
    for key, value in batch.items():
        inner = list(value) if isinstance(value, Mapping) else []
        nested = inner and all(isinstance(part, str) for part in inner)
        columns += [f"{key}/{part}" for part in inner] if nested else [str(key)]
    shown, earlier = str.__repr__(name), getattr(name, "hint", "")
    key = NotedKey(name)
    key.hint = (
        f"{earlier.rstrip('.')}. If {meant} was meant: it has no column {shown} at this place. "
        f"Its columns: {', '.join(columns) or 'none'}."
    )
    key.notes = getattr(name, "notes", ())
    error.args = (key,)
    if advice:
        add_note(error, advice)


COLUMNS_LEFT_OUT = "columns_left_out"
"""In shared_data: module id -> names of columns that the learner pipeline is not to make."""
COLUMNS_READ = "columns_read"
"""In shared_data: a defaultdict, module id -> names of columns that were read; None: read by a piece of all modules."""
ALWAYS_KEPT = frozenset(
    {
        *(Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK, Columns.SEQ_LENS),
        *(Columns.SEQ_OFFSETS, Columns.RESETS, Columns.RESET_STATES, Columns.STATE_IN),
    }
)
"""Columns that are never left out."""


class TrackedBatch(dict[str, Any]):
    """A batch that records which columns are read: by name, by asking for them, or all by iteration or copying.

    Reading a column that was left out is an error and no silent `None`, unless it was written in the meantime.

    Args:
        columns: The batch.
        read: The set to which names of columns are added.
        left_out: Names of columns that the batch lacks because nothing read them before.

    Attributes:
        of_loss: The same columns for a loss, which records its reads apart from those of the module; or None.

    Examples:
        >>> read = set()
        >>> batch = TrackedBatch({"obs": 1, "rewards": 2, "t": 3}, read)
        >>> batch["obs"], batch.get("rewards"), sorted(read)
        (1, 2, ['obs', 'rewards'])
    """

    def __init__(self, columns: Mapping[str, Any], read: set[str], left_out: Set[str] = frozenset()) -> None:
        super().__init__(columns)
        self.read = read
        self.left_out = left_out
        self.of_loss: TrackedBatch | None = None

    def record_access(self, names: Iterable[str]) -> None:
        """Record that columns are read.

        Raises:
            ColumnError: one of them was left out.
        """
        names = set(names)
        self.read |= names
        missing = (names & self.left_out) - dict.keys(self)
        if missing:
            raise ColumnError(
                f"train batch, {', '.join(map(repr, sorted(missing)))}",
                expected="columns that were read in the first update, as the setting columns='auto' requires",
                found="left out, because nothing read all columns, or these, in the first update",
                do="read it in every update, or .learners(columns='all')",
            )


def _tracked(name: str, reads_all: bool) -> Callable[..., Any]:
    method = getattr(dict, name)

    def tracked(batch: TrackedBatch, *args: Any) -> Any:
        batch.record_access([*dict.keys(batch), *batch.left_out] if reads_all else args[:1])
        return method(batch, *args)

    return tracked


for _name in ("__contains__", "__delitem__", "__getitem__", "get", "pop", "setdefault"):
    setattr(TrackedBatch, _name, _tracked(_name, reads_all=False))
for _name in ("__iter__", "__reversed__", "copy", "items", "keys", "popitem", "values"):
    setattr(TrackedBatch, _name, _tracked(_name, reads_all=True))
