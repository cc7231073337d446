"""Fill values: cast where that changes a number by rounding at most, refused where it becomes another."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import ColumnError
from epibatch.core.spaces import exact_fill_value, fill_row, fill_value


@pytest.mark.parametrize("number", [np.int64, np.float64, np.array])
@pytest.mark.parametrize("fill", [-1, 300, -1.0, 300.0, np.nan])
def test_a_fill_value_that_does_not_fit_is_refused_as_a_number_of_numpy_too(number, fill):
    if number is np.int64 and np.isnan(fill):
        fill = -7
    for value in (fill, number(fill)):
        with pytest.raises(ColumnError, match="column of uint8 can hold"):
            fill_value(np.dtype(np.uint8), value)


@pytest.mark.parametrize("fill", [0.5, np.float32(0.5), np.array([0.5, 2.75])])
def test_a_fill_value_that_fits_is_of_the_columns_type(fill):
    for dtype in (np.uint8, np.float32, np.float64):
        found = fill_value(np.dtype(dtype), fill)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.trunc(fill) if dtype is np.uint8 else fill)


@pytest.mark.parametrize(
    ("space", "fill"), [(gym.spaces.Discrete(3), np.nan), (gym.spaces.Box(0, 9, (2,), np.uint8), -1)]
)
def test_rows_of_a_space_are_filled_with_what_it_can_hold(space, fill):
    with pytest.raises(ColumnError, match="can hold"):
        fill_row(space, fill)


@pytest.mark.parametrize("fill", [1e300, -1e300, np.float64(1e39), np.array([1.0, 1e300])])
def test_numbers_that_are_too_large_for_a_float_are_refused_and_infinity_is_not(fill):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cast in (fill_value, lambda dtype, own: exact_fill_value(dtype, own, "here")):
            with pytest.raises(ColumnError, match="column of float32 can hold"):
                cast(np.dtype(np.float32), fill)
            assert cast(np.dtype(np.float32), -np.inf) == -np.inf
            assert cast(np.dtype(np.float32), 3e38) == np.float32(3e38)
        np.testing.assert_array_equal(fill_value(np.dtype(np.float32), np.array([np.inf, 2.0])), [np.inf, 2.0])
        np.testing.assert_array_equal(fill_value(np.dtype(np.float64), fill), fill)
