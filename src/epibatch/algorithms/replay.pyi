# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from epibatch.core.settings import Count, Fraction, Positive, PositiveNumber

from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from .algorithm_config import AlgorithmConfig
from .config.replay_buffers import BufferConfig
from .config.settings import TrainingSettings

class ReplayTraining(TrainingSettings):
    """Set learning rate, batch sizes and the replay buffer."""

    train_batch_size: Positive
    replay_buffer_config: BufferConfig
    num_steps_sampled_before_learning_starts: Count
    training_intensity: PositiveNumber | None
    n_step: Positive
    tau: Fraction
    store_buffer_in_checkpoints: bool
    def model_post_init(self, context: Any, /) -> None:
        """Make each train batch one update, whatever is given."""
        ...

class ReplaySource:
    """Lets runners fill a replay buffer, and draws train batches from it, or from recorded episodes, or from both.

    Runners in other processes sample while the modules learn, so that their weights may be one update older. Each
    environment of each runner has a lane of its own. A runner that is lost costs the fragment that it was sampling.

    Recorded episodes (`input_`) stay in a buffer of their own. Without runners all is drawn from it; with runners, half
    of each batch is (Ball et al. 2023, arXiv:2302.02948), and recorded steps count for the start of the learning.

    Args:
        config: The algorithm's.
        group: The runners, an `EnvRunnerGroup`.

    Attributes:
        buffer: the steps.
        num_env_steps: environment steps that were sampled for the newest batch; without runners, those drawn.

    Raises:
        ConfigError: recurrent networks of several agents, or runners and recorded episodes of several agents, or
            of other shapes than the environment's.
    """
    def __init__(self, config: Any, group: Any) -> None: ...
    def sample(self) -> Sequence[Any]:
        """Return what is drawn for some of the updates that sampled steps are worth; nothing before the start.

        It samples a fragment first if those before are used up.
        """
        ...
    def learned(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the absolute errors of the newest batch as priorities, if the buffer has priorities.

        Args:
            rows: Module id -> name -> tensor [rows], what the update rule gave for each row.
        """
        ...
    def sample_ahead(self) -> None:
        """Let runners in other processes sample their next fragments, if no updates are owed for those before."""
        ...
    def forget(self) -> None:
        """Forget nothing: what was sampled is in the buffer."""
        ...
    def get_metrics(self) -> dict[str, Any]:
        """Return counts of the buffer, with those since the last call, under RLlib's names."""
        ...
    def get_state(self) -> dict[str, Any]:
        """Return the counts, and the buffer if checkpoints are to hold it."""
        ...
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue as the source did whose state it is.

        Without its buffer it begins with recorded episodes or none, and warms up again, unless it is a state of what
        the buffer holds now.

        Raises:
            CheckpointError: it is something else; nothing was taken over.
        """
        ...

class ReplayConfig(AlgorithmConfig):
    """Settings that algorithms with a replay buffer share."""

    training_model: ClassVar[type[TrainingSettings]]
    min_env_steps_per_iteration: ClassVar[int]
    @property
    def samples(self) -> bool:
        """True if runners sample, beside recorded episodes too, if there is an environment."""
        ...
    def validate(self) -> None:
        """Check what no single setting can show.

        A buffer that is too small for other settings is a warning.

        Raises:
            ConfigError: settings that contradict each other, all of them in one message.
        """
        ...
    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps that each environment of a runner contributes to one `sample()`, at least 1.

        With "auto", all environments of a runner contribute about 16: the updates that these are worth are drawn at
        once, and the modules that act are up to 16 updates older.

        Args:
            worker_index: The runner's number; RLlib's argument.
        """
        ...
    def make_source(self, env_runner_group: Any) -> Any:
        """Return a `ReplaySource`."""
        ...
    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add returns of n steps after the last of the user's pieces that may change rewards or ends."""
        ...
