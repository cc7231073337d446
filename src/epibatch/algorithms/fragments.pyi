# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from epibatch.core.settings import Coefficient, Positive, PositiveNumber, PositiveOrInfinite, ScheduledCoefficient

from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from .algorithm_config import AlgorithmConfig
from .config.settings import TrainingSettings

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

class QueueSettings(NamedTuple):
    """The queue of train batches.

    Args:
        size: batches that it holds; the oldest is dropped for one more.
        uses: updates from each batch.
        at_random: True if batches are drawn at random, False if the oldest comes first.
        name: the setting of its size.
    """

    size: int
    uses: int
    at_random: bool
    name: str

class _Batch:
    """A train batch: the version of the weights that acted, steps, and episodes of each fragment; and uses left."""

    parts: list[tuple[int, int, Sequence[Any]]]
    has_agent_steps: bool
    uses: int
    @property
    def steps(self) -> int: ...

class FragmentQueue:
    """A source that takes fragments of runners as they come, and gives the train batches that they fill.

    Runners in other processes have the next request before they have answered the last one, so that they never wait
    for the learner, and the learner waits only if the queue is empty. What a lost runner was sampling is lost.

    Args:
        config: the algorithm's, a `FragmentConfig`.
        group: the runners, an `EnvRunnerGroup`.

    Attributes:
        is_late: True if steps of the newest batch acted with weights of before the last update.
        num_env_steps: environment steps that came since the batch before.
    """
    def __init__(self, config: Any, group: Any) -> None: ...
    def sample(self) -> Sequence[Any]:
        """Return the episodes of the next train batch; with several uses of each, also of one that was there before.

        Raises:
            RunnerError: runners return fragments without a step all the time, or all were lost and not replaced.
        """
        ...
    def learned(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Take no values of rows."""
        ...
    def sample_ahead(self) -> None:
        """Do nothing: runners have their requests."""
        ...
    def forget(self) -> None:
        """Drop what is in the queue."""
        ...
    def get_metrics(self) -> dict[str, Any]:
        """Return the length of the queue, what was dropped, and the age of the rows that were learned from."""
        ...
    def get_state(self) -> dict[str, Any]:
        """Return the counts; the queue itself is not saved."""
        ...
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over the counts."""
        ...

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
