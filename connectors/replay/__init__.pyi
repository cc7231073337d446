# `make generated` writes the pieces that this package defines; other names are kept.

from .n_step_returns import NStepReturns as NStepReturns
