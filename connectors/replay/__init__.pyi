# `make generated` writes the pieces that this package defines; other names are kept.

from .hindsight_goals import HindsightGoals as HindsightGoals
from .n_step_returns import NStepReturns as NStepReturns
