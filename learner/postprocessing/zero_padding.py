"""Splitting episodes into zero-padded sequences, and back."""

from __future__ import annotations

from epibatch.core.padding import (
    create_mask_and_seq_lens,
    split_and_zero_pad,
    split_and_zero_pad_n_episodes,
    unpad_data_if_necessary,
)
from epibatch.core.structs import BatchedNdArray

__all__ = [
    "BatchedNdArray",
    "create_mask_and_seq_lens",
    "split_and_zero_pad",
    "split_and_zero_pad_n_episodes",
    "unpad_data_if_necessary",
]
