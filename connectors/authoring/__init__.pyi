# `make generated` writes the pieces that this package defines; other names are kept.

from .column_transform import ColumnTransform as ColumnTransform, Undo as Undo, undo_actions as undo_actions
from .episode_transform import EpisodeTransform as EpisodeTransform
from .fields import ParameterPiece as ParameterPiece
from .functions import column_function as column_function, episode_function as episode_function
