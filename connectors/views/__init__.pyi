# `make generated` writes the pieces that this package defines; other names are kept.

from .declared_views import add_view as add_view
from .trajectory_views import TrajectoryViews as TrajectoryViews
from .view import View as View
