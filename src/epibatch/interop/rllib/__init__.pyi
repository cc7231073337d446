from .compare import compare_batches as compare_batches
from .episodes import from_rllib as from_rllib, to_rllib as to_rllib
from .pieces import from_rllib_piece as from_rllib_piece, to_rllib_piece as to_rllib_piece
