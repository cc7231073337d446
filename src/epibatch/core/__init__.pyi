from .checkpoints import load_state as load_state, save_state as save_state
from .columns import Columns as Columns
from .masked_column import MaskedColumn as MaskedColumn

__version__: str
DEFAULT_AGENT_ID: str
DEFAULT_MODULE_ID: str
DEFAULT_POLICY_ID: str
ALL_MODULES: str
POLICIES_TO_TRAIN: str
LEARNERS: str
KEPT_BY_RULES: str
ROW_MAP: str
NUM_ENV_STEPS: str
