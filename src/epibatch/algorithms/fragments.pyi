# Written by `make generated`: the source without bodies, with the settings of the models.

from typing import Any, ClassVar

from epibatch.core.settings import Coefficient, Positive, PositiveNumber, PositiveOrInfinite, ScheduledCoefficient

from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from .algorithm_config import AlgorithmConfig
from .config.settings import TrainingSettings
from .fragment_queue import QueueSettings

class FragmentTraining(TrainingSettings):
    """Set learning rate, batch sizes, V-trace and the weights of the losses."""

    lr: ScheduledCoefficient
    train_batch_size: Positive
    grad_clip: PositiveNumber | None
    vtrace_clip_rho_threshold: PositiveOrInfinite
    vtrace_clip_pg_rho_threshold: PositiveOrInfinite
    vf_loss_coeff: Coefficient
    entropy_coeff: ScheduledCoefficient
    broadcast_interval: Positive

class FragmentConfig(AlgorithmConfig):
    """Settings that algorithms share whose runners never wait."""

    training_model: ClassVar[type[TrainingSettings]]
    min_env_steps_per_iteration: ClassVar[int]
    target: ClassVar[str]
    @property
    def queue(self) -> QueueSettings:
        """The queue of train batches; by default the newest one."""
        ...
    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps that each environment of a runner contributes to one `sample()`; 50 with "auto".

        Args:
            worker_index: The runner's number; RLlib's argument.
        """
        ...
    def make_source(self, env_runner_group: Any) -> Any:
        """Return a `FragmentQueue`, or the recorded episodes."""
        ...
    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add a bootstrap step to every chunk after the user's pieces, and V-trace at the end.

        Pieces that change episodes are warned of, if each train batch is used several times.
        """
        ...
    def update_modules(self, pipeline: Any) -> None:
        """Let a pipeline know the modules of this config, and their discounts."""
        ...
