"""Costs of each piece of a pipeline: calls, seconds, and the rows and bytes of its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from epibatch.core.errors import PipelineError
from epibatch.core.structs import BatchedNdArray, flatten

from .._engine.columns import Batch, EpisodeColumn
from .._engine.layouts import is_plain
from .._engine.plan import Step
from ..step_watches import StepWatch

if TYPE_CHECKING:
    from ..connector_pipeline_v2 import ConnectorPipelineV2


class PieceCost(NamedTuple):
    """The cost of one piece, summed over all calls.

    Args:
        pipeline: Name of the pipeline.
        piece: Stable name of the piece in it.
        calls: Number of completed calls.
        seconds: Time of these calls. It includes converting the batch to the layout of the piece.
        share: Part of the seconds of all pieces of the profile, from 0 to 1.
        rows: Rows of the batches that it returned: those of each batch's longest column.
        bytes: Bytes of the arrays and tensors in those batches, column by column.
    """

    pipeline: str
    piece: str
    calls: int
    seconds: float
    share: float
    rows: int
    bytes: int


class PipelineProfile:
    """The costs of pieces, added up while it is open (`with`); it can be printed and read at any time from then on.

    Opened again, it goes on adding.

    Args:
        pipelines: What is profiled, by the name under which it stands in the table.

    Raises:
        PipelineError: something else than a dict of pipelines.

    Examples:
        >>> import numpy as np
        >>> from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch, EnvToModulePipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> pipeline = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])
        >>> episodes = [SingleAgentEpisode(observations=[np.zeros(4, np.float32)]) for _ in range(3)]
        >>> with pipeline.profile() as profile:
        ...     for _ in range(10):
        ...         batch = pipeline(episodes=episodes)
        >>> cost = profile.rows()[0]
        >>> cost.piece, cost.calls, cost.share, cost.rows, cost.bytes  # 3 rows of 16 bytes, 10 times
        ('add_observations_from_episodes_to_batch', 10, 1.0, 30, 480)
    """

    def __init__(self, pipelines: Mapping[str, ConnectorPipelineV2]) -> None:
        if not isinstance(pipelines, Mapping) or not all(hasattr(value, "watches") for value in pipelines.values()):
            raise PipelineError(
                "profile_pipelines(...)",
                expected="a dict of pipelines",
                found=type(pipelines).__name__ if not isinstance(pipelines, Mapping) else repr(dict(pipelines)),
                do="pass algo.pipelines or {'learner': pipeline}; one alone has pipeline.profile()",
            )
        self._watches = [(pipeline, _Watch(self, name)) for name, pipeline in pipelines.items()]
        self._sums: dict[tuple[str, str], list[Any]] = {}
        self._opened = False

    def __enter__(self) -> PipelineProfile:
        self._opened = True
        for pipeline, watch in self._watches:
            pipeline.watches.append(watch)
        return self

    def __exit__(self, *_: object) -> None:
        for pipeline, watch in self._watches:
            pipeline.watches.remove(watch)

    def note(self, pipeline: str, piece: str, seconds: float, batch: Batch | Mapping[str, Any]) -> None:
        """Add one run of a piece."""
        sums = self._sums.setdefault((pipeline, piece), [0, 0.0, 0, 0])
        for i, amount in enumerate((1, seconds, *rows_and_bytes(batch))):
            sums[i] += amount

    def rows(self) -> list[PieceCost]:
        """One entry per piece, in the order in which they ran first.

        Raises:
            PipelineError: it was never opened, so that nothing was measured.
        """
        if not self._opened:
            raise PipelineError(
                "PipelineProfile",
                expected="a profile that was open while the pipelines ran",
                found="profile() without `with`",
                do="write `with pipeline.profile() as profile:` around the calls",
            )
        total = sum(seconds for _, seconds, _, _ in self._sums.values())
        return [
            PieceCost(pipeline, piece, calls, seconds, seconds / total if total else 0.0, rows, bytes_)
            for (pipeline, piece), (calls, seconds, rows, bytes_) in self._sums.items()
        ]

    def __repr__(self) -> str:
        return f"PipelineProfile({len(self._sums)} pieces)" if self._opened else "PipelineProfile(never opened)"

    def __str__(self) -> str:
        """A table with means per call."""
        if not self._sums:
            return "no piece ran while the profile was open" if self._opened else repr(self)
        several = len({pipeline for pipeline, _ in self._sums}) > 1
        head = ("piece", "calls", "seconds", "us/call", "share", "rows/call", "bytes/call")
        lines = [("pipeline", *head) if several else head]
        for cost in self.rows():
            line = (
                cost.piece,
                str(cost.calls),
                f"{cost.seconds:.4f}",
                f"{1e6 * cost.seconds / cost.calls:.1f}",
                f"{cost.share:.1%}",
                f"{cost.rows / cost.calls:.0f}",
                f"{cost.bytes / cost.calls:.0f}",
            )
            lines.append((cost.pipeline, *line) if several else line)
        widths = [max(map(len, column)) for column in zip(*lines)]
        names = 1 + several
        return "\n".join(
            "  ".join(cell.ljust(width) if i < names else cell.rjust(width) for i, (cell, width) in enumerate(cells))
            for cells in (list(zip(line, widths)) for line in lines)
        )


class _Watch(StepWatch):
    """Tells a profile about the steps of one pipeline."""

    def __init__(self, profile: PipelineProfile, name: str) -> None:
        self._profile, self._name = profile, name

    def stepped(self, step: Step, seconds: float, batch: Batch | Mapping[str, Any]) -> None:
        self._profile.note(self._name, step.name, seconds, batch)


def profile_pipelines(pipelines: Mapping[str, ConnectorPipelineV2]) -> PipelineProfile:
    """Profile every piece of several pipelines while the context is open.

    Outside of it nothing is measured and no clock is read. Contexts may overlap. A run of a piece that raises is
    not counted.

    Args:
        pipelines: By the name under which they stand in the table.

    Returns:
        One profile of them all, to be opened with `with`.

    Raises:
        PipelineError: something else than a dict of pipelines.

    Examples:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> config = PPOConfig().environment("CartPole-v1").training(train_batch_size=32, minibatch_size=32)
        >>> algo = config.build_algo()
        >>> with profile_pipelines(algo.pipelines) as profile:
        ...     results = algo.train()
        >>> sorted({cost.pipeline for cost in profile.rows()})
        ['env_to_module', 'learner', 'module_to_env']
        >>> algo.stop()
    """
    return PipelineProfile(pipelines)


def rows_and_bytes(batch: Batch | Mapping[str, Any]) -> tuple[int, int]:
    """Rows of a batch's longest column, and the bytes of all its arrays and tensors.

    Args:
        batch: In any layout. Things that are neither arrays, tensors nor NumPy numbers count as rows without bytes.

    Examples:
        >>> import numpy as np
        >>> rows_and_bytes({"obs": np.zeros((5, 2)), "state_in": {"h": np.zeros((3, 1))}})
        (5, 104)
    """
    if isinstance(batch, Batch):
        parts = [_longest_and_all(columns) for columns in (*batch.groups.values(), batch.loose)]
        return sum(rows for rows, _ in parts), sum(size for _, size in parts)
    return _longest_and_all(batch)


def _longest_and_all(columns: Mapping[str, Any]) -> tuple[int, int]:
    """Rows of the longest column, and the bytes of all."""
    rows = bytes_ = 0
    for column in columns.values():
        count, size = _of_items(column) if is_plain(column) else _of_column(column)
        rows, bytes_ = max(rows, count), bytes_ + size
    return rows, bytes_


def _of_column(column: Any) -> tuple[int, int]:
    """Rows and bytes of anything but a plain per-episode column."""
    if isinstance(column, EpisodeColumn):  # not joined for this: that is the work of the piece that will need it
        return _of_column(column.data) if column.parts is None else column.parts.rows_and_bytes()
    if isinstance(column, list):
        return len(column), sum(map(_nbytes, column))
    if isinstance(column, (dict, tuple)):
        parts = [_of_column(part) for part in (column.values() if isinstance(column, dict) else column)]
        return max((rows for rows, _ in parts), default=0), sum(size for _, size in parts)
    shape = getattr(column, "shape", ())
    return int(shape[0]) if shape else 0, _nbytes(column)


def _of_items(column: dict[tuple[Any, ...], list[Any]]) -> tuple[int, int]:
    """Return rows and bytes of a plain per-episode column. Its items are single rows, or tagged as many rows."""
    items = [item for chunk_items in column.values() for item in chunk_items]
    return sum(map(_rows_of_item, items)), sum(map(_nbytes, items))


def _rows_of_item(item: Any) -> int:
    first = next(iter(flatten(item)[0]), None)
    return len(first) if isinstance(first, BatchedNdArray) else 1


def _nbytes(struct: Any) -> int:
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in flatten(struct)[0])
