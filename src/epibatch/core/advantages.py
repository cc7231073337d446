"""Advantages, value targets and returns over ragged segments that lie one after the other in flat arrays.

A segment is one chunk of an episode: the recursion stops at its end. Sums run in float64, and a
segment's result is bit for bit the same whatever other segments are in the call. Tensors give tensors on their device.
The recursion itself, `add_discounted`, is over rows [T, ...] by time, such as those of a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.arrays_or_tensors import Rows, as_bools, as_float64, beside, copied, is_tensor, zeros_like
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.padding import check_counts
from epibatch.core.structs import convert_to_numpy

# Rows per block of the recursion. The value is part of the result: sums are associated block by block.
_BLOCK = 32


def discounted_sums(x: Rows, counts: npt.ArrayLike, discount: float | Rows) -> Rows:
    """The reverse discounted sum `y[t] = x[t] + discount[t] * y[t + 1]` of every segment.

    The segments are cut into blocks of 32 rows; the recursion runs over all blocks at once, the
    carries between blocks are the same problem on the blocks' first rows with `discount ** 32`.

    Args:
        x: Number [R], the segments one after the other.
        counts: int [S], rows per segment; their sum is R.
        discount: In [0, 1]; of each row, float64 [R], or of all.

    Raises:
        ColumnError: the counts do not add up to the rows.
        ConfigError: the one discount is not in [0, 1].

    Examples:
        >>> discounted_sums([1.0, 1.0, 1.0, 5.0], counts=[3, 1], discount=0.5)
        array([1.75, 1.5 , 1.  , 5.  ])
    """
    rows, varying = as_float64(x), {"discounts": discount}
    if not isinstance(discount, np.ndarray) and not is_tensor(discount):
        discount, varying = _check_discount(discount, "discount"), {}
    segments = _check_segments(counts, rows=rows, **varying)
    return _reverse_sums(rows, segments[segments > 0], discount)


def _reverse_sums(rows: Rows, counts: npt.NDArray[np.int64], discount: float | Rows) -> Rows:
    longest = int(counts.max(initial=0))
    if longest <= 1:
        return copied(rows)
    width = min(_BLOCK, longest)
    per_segment = -(-counts // width)
    last = np.cumsum(per_segment) - 1
    num_blocks = int(last[-1]) + 1
    lengths = np.full(num_blocks, width)
    lengths[last] = counts - (per_segment - 1) * width
    mask = beside(np.arange(width) < lengths[:, None], rows)
    sums = zeros_like(rows, (width, num_blocks))  # time first: each step of the recursion is one contiguous row
    sums.T[mask] = rows
    factors: Rows = [discount] * width
    if not isinstance(discount, float):
        factors = zeros_like(sums, sums.shape)
        factors.T[mask] = discount
    add_discounted(sums, factors)
    if num_blocks > len(counts):
        if isinstance(discount, float):
            powers, of_block = beside((discount ** np.arange(width, 0, -1.0))[:, None], rows), discount**width
        else:
            powers = factors
            for step in range(width - 2, -1, -1):
                powers[step] *= powers[step + 1]
            of_block = powers[0]
        carries = zeros_like(rows, (num_blocks,))
        carries[:-1] = _reverse_sums(sums[0], per_segment, of_block)[1:]
        carries[last] = 0.0
        sums += powers * carries
    return sums.T[mask]


def add_discounted(sums: Rows, factors: Sequence[Any] | Rows) -> None:
    """Add to each row the sum of the next one, times its factor: `sums[t] += factors[t] * sums[t + 1]`, from the end.

    Args:
        sums: float [T, ...], an array or a tensor, which becomes the sums.
        factors: Of each row, [...] or a number; 0 where a segment ends. The last one is not read.
    """
    for step in range(len(sums) - 2, -1, -1):
        row = sums[step]
        row += sums[step + 1] * factors[step]


def add_errors(following: Rows, rewards: Rows, values: Rows, terminateds: Rows, gamma: float) -> None:
    """Make one-step temporal-difference errors of the values of the states that follow; arrays or tensors.

    Args:
        following: float, which becomes the errors.
        rewards: Of the same shape.
        values: Of the states before.
        terminateds: bool; a true row has no next state.
        gamma: Discount.
    """
    following[terminateds] = 0.0
    following *= gamma
    following += rewards
    following -= values


def td_errors(
    rewards: Rows,
    values: Rows,
    terminateds: Rows,
    counts: npt.ArrayLike,
    gamma: float,
    bootstrap_values: Rows | None = None,
) -> Rows:
    """The one-step temporal-difference error `r[t] + gamma * V(s[t + 1]) * (1 - terminated[t]) - V(s[t])`.

    Two forms. Without `bootstrap_values` the last row of every segment is its bootstrap row: it only
    lends its value to the row before it, and its own error is 0. With `bootstrap_values` all rows
    are real, and entry s is the value of the state that follows segment s.

    Args:
        rewards: Number [R].
        values: Number [R], the value predictions V(s[t]).
        terminateds: bool or number [R]; a true row has no next state.
        counts: int [S], rows per segment (bootstrap rows included in the first form).
        gamma: Discount in [0, 1].
        bootstrap_values: Number [S] or None.

    Raises:
        ColumnError: the arrays differ in length, or the counts do not add up to them.

    Examples:
        >>> td_errors([1.0, 1.0, 0.0], [1.0, 2.0, 4.0], [False, False, False], counts=[3], gamma=0.5)
        array([1., 1., 0.])
        >>> td_errors([1.0, 1.0], [1.0, 2.0], [False, False], counts=[2], gamma=0.5, bootstrap_values=[4.0])
        array([1., 1.])
    """
    predictions, gains, ended = as_float64(values), as_float64(rewards), as_bools(terminateds)
    segments = _check_segments(counts, rewards=gains, values=predictions, terminateds=ended)
    discount = _check_discount(gamma, "gamma")
    filled = segments > 0
    ends = np.cumsum(segments)[filled] - 1
    following = copied(predictions)
    following[:-1] = predictions[1:]
    if bootstrap_values is None:
        following[ends] = 0.0
    else:
        bootstraps = as_float64(bootstrap_values)
        if bootstraps.shape != segments.shape:
            raise _length_error("bootstrap_values", f"[{len(segments)}], one value per segment", bootstraps.shape)
        following[ends] = bootstraps[filled]
    add_errors(following, gains, predictions, ended, discount)
    if bootstrap_values is None:
        following[ends] = 0.0
    return following


def cut_at_ends(counts: npt.NDArray[np.int64], terminateds: Rows, *, bootstraps: bool = True) -> npt.NDArray[np.int64]:
    """Return the rows of segments that end at terminated rows, too, unless nothing but a bootstrap row may follow.

    Args:
        counts: int64 [S], rows per segment.
        terminateds: bool [R].
        bootstraps: Whether the last row of each segment is a bootstrap row.
    """
    stops, inner = np.cumsum(counts), copied(as_bools(terminateds))
    inner[beside(stops[counts > bootstraps] - 1 - bootstraps, inner)] = False
    if not inner.any():  # a single number of a device
        return counts
    places = convert_to_numpy(beside(np.arange(len(inner)), inner)[inner])
    cuts: npt.NDArray[np.int64] = np.union1d(stops, places + 1)
    cuts[1:] -= cuts[:-1].copy()
    return cuts


def generalized_advantages(errors: Rows, counts: npt.ArrayLike, gamma: float, lambda_: float) -> Rows:
    """Generalized advantage estimates from one-step errors (Schulman et al. 2015, arXiv:1506.02438).

    Value targets are these advantages plus the value predictions.

    Args:
        errors: Number [R], as `td_errors` gives them.
        counts: int [S], rows per segment, the same as for `td_errors`.
        gamma: Discount in [0, 1].
        lambda_: Trace decay in [0, 1].

    Examples:
        >>> values = np.array([1.0, 2.0, 4.0])
        >>> errors = td_errors([1.0, 1.0, 0.0], values, [False] * 3, counts=[3], gamma=0.5)
        >>> generalized_advantages(errors, counts=[3], gamma=0.5, lambda_=1.0)
        array([1.5, 1. , 0. ])
    """
    decay = _check_discount(gamma, "gamma") * _check_discount(lambda_, "lambda_")
    return discounted_sums(errors, counts, decay)


def vtrace(
    errors: Rows,
    log_ratios: Rows,
    terminateds: Rows,
    counts: npt.ArrayLike,
    gamma: float,
    clip_rho: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> tuple[Rows, Rows]:
    """The V-trace corrections of values and the advantages of a policy (Espeholt et al. 2018, arXiv:1802.01561).

    Value targets are the value predictions plus their corrections. The weight of a later error is the product of the
    ratios up to it, each at most 1.

    Args:
        errors: Number [R], as `td_errors` gives them for segments that end in a bootstrap row.
        log_ratios: Number [R], log-probability of each action under the policy less that under the one that acted;
            those of bootstrap rows have no effect if they are numbers.
        terminateds: bool or number [R]; a true row has no next state.
        counts: int [S], rows per segment, the same as for `td_errors`.
        gamma: Discount in [0, 1].
        clip_rho: Highest ratio that weights a row's error in the value targets.
        clip_pg_rho: Highest ratio that weights a row's advantage.

    Returns:
        Corrections and advantages, [R] each; 0 in bootstrap rows.

    Examples:
        >>> values = np.array([1.0, 2.0, 4.0])
        >>> errors = td_errors([1.0, 1.0, 0.0], values, [False] * 3, counts=[3], gamma=0.5)
        >>> vtrace(errors, np.log([0.5, 2.0, 1.0]), [False] * 3, counts=[3], gamma=0.5)
        (array([0.75, 1.  , 0.  ]), array([0.75, 1.  , 0.  ]))
    """
    gaps, logs, alive = as_float64(errors), as_float64(log_ratios), ~as_bools(terminateds)
    segments = _check_segments(counts, errors=gaps, log_ratios=logs, terminateds=alive)
    with np.errstate(over="ignore"):
        ratios = logs.exp() if is_tensor(logs) else np.exp(logs)
    traces = as_float64(alive) * _check_discount(gamma, "gamma")
    corrections = discounted_sums(ratios.clip(max=clip_rho) * gaps, counts, traces * ratios.clip(max=1.0))
    following = copied(corrections)
    following[:-1] = corrections[1:]
    following[np.cumsum(segments)[segments > 0] - 1] = 0.0
    return corrections, ratios.clip(max=clip_pg_rho) * (gaps + traces * following)


def compute_value_targets(
    values: npt.ArrayLike,
    rewards: npt.ArrayLike,
    terminateds: npt.ArrayLike,
    truncateds: npt.ArrayLike,
    gamma: float,
    lambda_: float,
) -> npt.NDArray[np.float32]:
    """Return the GAE value targets of rows; a segment ends at each row with a flag.

    A row's next value is that of the row after it (0 after the last row); `terminateds` removes it,
    `truncateds` keeps it but stops the trace, so a truncated chunk is followed by its bootstrap row.

    Args:
        values: Number [R].
        rewards: Number [R].
        terminateds: bool or number [R].
        truncateds: bool or number [R].
        gamma: Discount in [0, 1].
        lambda_: Trace decay in [0, 1].

    Returns:
        float32 [R].

    Examples:
        >>> compute_value_targets([1, 2, 3, 4], [1, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0], 1.0, 1.0)
        array([3., 2., 1., 0.], dtype=float32)
    """
    predictions = np.asarray(values, np.float64)
    ended = np.asarray(terminateds, np.bool_)
    stopped = np.asarray(truncateds, np.bool_)
    gains = np.asarray(rewards, np.float64)
    _check_segments([gains.size], rewards=gains, values=predictions, terminateds=ended, truncateds=stopped)
    cuts = np.flatnonzero(ended | stopped) + 1
    counts = np.diff(cuts, prepend=0, append=gains.size)
    edges = np.cumsum(counts)
    bootstraps = np.append(predictions, 0.0)[edges]
    errors = td_errors(gains, predictions, ended, counts, gamma, bootstraps)
    targets: npt.NDArray[np.float32] = (generalized_advantages(errors, counts, gamma, lambda_) + predictions).astype(
        np.float32
    )
    return targets


def _check_segments(counts: npt.ArrayLike, **columns: Rows) -> npt.NDArray[np.int64]:
    segments = check_counts(counts)
    expected = (int(segments.sum()),)
    for name, column in columns.items():
        if column.shape != expected:
            raise _length_error(name, f"shape {expected}, the sum of the segments' counts", column.shape)
    return segments


def _check_discount(value: float, name: str) -> float:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(name, expected="a number in [0, 1]", found=repr(value), do=f"set {name} in [0, 1]")
    return float(value)


def _length_error(name: str, expected: str, found: object) -> ColumnError:
    return ColumnError(
        f"column {name!r}",
        expected=expected,
        found=f"shape {found}",
        do="give one entry per row, and counts that cover every row once",
    )
