# `make generated` writes the pieces that this package defines; other names are kept.

from .burn_in import BurnIn as BurnIn
from .jagged_sequences import JaggedSequences as JaggedSequences
from .pack_sequences import PackSequences as PackSequences
from .random_subsequences import RandomSubsequences as RandomSubsequences
