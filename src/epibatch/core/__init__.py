"""Columns, errors, registry, checkpoints and networks: the base that every other part uses."""

from epibatch.core.lazy import lazy_exports

__version__ = "0.1.0"

DEFAULT_AGENT_ID = "default_agent"
DEFAULT_MODULE_ID = "default_policy"
DEFAULT_POLICY_ID = "default_policy"
ALL_MODULES = "__all_modules__"
POLICIES_TO_TRAIN = "policies_to_train"  # in shared_data: a frozenset of the ids of the modules to update
ROW_MAP = "memorized_map_structure"  # in shared_data while acting: the agent, or the episode, of each row
LEARNERS = "learners"  # in shared_data, if several learners update together: an object with `gather(value) -> list`
KEPT_BY_RULES = "kept_by_rules"  # in shared_data of a learner: module id -> what its update rule keeps
NUM_ENV_STEPS = "num_env_steps"  # in shared_data while acting: env steps sampled so far, by all runners

__getattr__, __dir__ = lazy_exports(__name__)
