# `make generated` writes the pieces that this package defines; other names are kept.

from .affine import Affine as Affine
from .clip import Clip as Clip
from .flatten_axes import FlattenAxes as FlattenAxes
from .frozen_module import FrozenModule as FrozenModule
from .goal_distance_rewards import GoalDistanceRewards as GoalDistanceRewards
from .pad_ragged_rows import PadRaggedRows as PadRaggedRows
from .step_columns import CountSteps as CountSteps, MarkFirstSteps as MarkFirstSteps
from .time_max_pool import TimeMaxPool as TimeMaxPool
