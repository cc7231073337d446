"""One thread for everything that is timed."""

from __future__ import annotations

import os

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def use_one_thread() -> None:
    """Set it for this process and its children. To be called before NumPy is imported; loads torch."""
    for name in VARIABLES:
        os.environ[name] = "1"
    import torch

    torch.set_num_threads(1)
