from .learner import Learner as Learner
from .distillation_loss import DistillationLoss as DistillationLoss
from .together.hosted_learner import HostedLearner as HostedLearner
from .learner_group import LearnerGroup as LearnerGroup, even_shares as even_shares
from .together.learners import Learners as Learners
from .loss import Loss as Loss, LossFunction as LossFunction
from .minibatches import Minibatches as Minibatches
from .rollout_storage import ColumnSpec as ColumnSpec, RolloutStorage as RolloutStorage
from .settings import MultiAgentSettings as MultiAgentSettings
from .ppo_loss import PPOLoss as PPOLoss
from .settings import LearnerSettings as LearnerSettings, PPOSettings as PPOSettings
from .symmetric_ppo_loss import SymmetricPPOLoss as SymmetricPPOLoss
from .together.torch_learners import TorchLearners as TorchLearners, free_address as free_address
from .unread_columns import ColumnUse as ColumnUse, trace_columns as trace_columns
from .update_rule import (
    Group as Group,
    Losses as Losses,
    UpdateRule as UpdateRule,
    frozen_copy as frozen_copy,
    polyak as polyak,
)
