# `make generated` writes the pieces that this package defines; other names are kept.

from .action_mask import ActionMask as ActionMask
from .box_actions import ClipActions as ClipActions, RescaleActions as RescaleActions
from .discretize_actions import DiscretizeActions as DiscretizeActions
from .episode_noise import EpisodeNoise as EpisodeNoise
from .epsilon_greedy import EpsilonGreedy as EpsilonGreedy
from .project_discrete_actions import ProjectDiscreteActions as ProjectDiscreteActions
