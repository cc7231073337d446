from .environments import as_vector_env as as_vector_env
from .rollout_storage_mm import RolloutStorageMM as RolloutStorageMM
