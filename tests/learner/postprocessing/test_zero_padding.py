from __future__ import annotations

import epibatch.core.advantages as advantages
import epibatch.core.padding as padding
from epibatch.core.spaces import BatchedNdArray
from epibatch.learner import postprocessing
from epibatch.learner.postprocessing import zero_padding
from epibatch.learner.postprocessing.value_predictions import compute_value_targets
from epibatch.learner.postprocessing.zero_padding import (
    create_mask_and_seq_lens,
    split_and_zero_pad,
    split_and_zero_pad_n_episodes,
    unpad_data_if_necessary,
)


def test_the_names_are_the_kernels():
    assert create_mask_and_seq_lens is padding.create_mask_and_seq_lens
    assert split_and_zero_pad is padding.split_and_zero_pad
    assert split_and_zero_pad_n_episodes is padding.split_and_zero_pad_n_episodes
    assert unpad_data_if_necessary is padding.unpad_data_if_necessary
    assert zero_padding.BatchedNdArray is BatchedNdArray
    assert compute_value_targets is advantages.compute_value_targets


def test_the_package_names_its_modules():
    assert postprocessing.zero_padding.__name__.endswith("postprocessing.zero_padding")
    assert set(postprocessing.__all__) <= set(dir(postprocessing))
