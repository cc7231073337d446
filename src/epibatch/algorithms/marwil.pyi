# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from typing_extensions import Self

from epibatch.core.settings import Coefficient, Fraction, Positive, PositiveNumber, ScheduledCoefficient

from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from ..learner.update_rule import Losses, UpdateRule
from .algorithm_config import AlgorithmConfig
from .config.settings import TrainingSettings

__all__ = ["MARWILConfig", "MARWILRule"]
__all__ = ["MARWILConfig", "MARWILRule"]

class MARWILTraining(TrainingSettings):
    """Set learning rate, batch sizes, and how much advantages count."""

    lr: ScheduledCoefficient
    train_batch_size: Positive
    lambda_: Fraction
    beta: Coefficient
    vf_coeff: Coefficient
    moving_average_sqd_adv_norm_start: PositiveNumber
    moving_average_sqd_adv_norm_update_rate: Fraction

class MARWILRule(UpdateRule):
    """The likelihood of recorded actions, weighted by their advantages, with a value function (Wang et al. 2018)."""
    def initial_coefficients(self) -> dict[str, float]:
        """Return the first moving average of squared advantages."""
        ...
    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of a minibatch, with `policy_loss` and `vf_loss`."""
        ...
    def adapt(self, coefficients: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the moving average after this update."""
        ...

class MARWILConfig(AlgorithmConfig):
    """Settings of MARWIL (Wang et al. 2018), behaviour cloning in which better actions count more; names are RLlib's.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(
        ...     observations=[[0.0], [1.0], [2.0]], actions=[0, 1], rewards=[0.0, 1.0], terminated=True,
        ...     len_lookback_buffer=0,
        ... )
        >>> algo = MARWILConfig().offline_data(input_=[episode]).training(train_batch_size=20, beta=2.0).build_algo()
        >>> algo.train()["num_env_steps_sampled_lifetime"]
        20
        >>> algo.stop()
    """

    training_model: ClassVar[type[TrainingSettings]]
    rule: ClassVar[Any]
    offline: ClassVar[bool]
    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add a bootstrap step to every chunk after the user's pieces, and returns at the end."""
        ...
    def training(
        self,
        *,
        lr: float | Sequence[Sequence[float]] = 0.0001,
        gamma: float = 0.99,
        train_batch_size: int = 2000,
        minibatch_size: int | None = None,
        num_epochs: int = 1,
        shuffle_batch_per_epoch: bool = True,
        optimizer: str | Mapping[str, Any] | Callable[..., Any] = "adam",
        grad_clip: float | None = None,
        grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm",
        loss: Callable[..., Any] | str | None = None,
        lambda_: float = 1.0,
        beta: float = 1.0,
        vf_coeff: float = 1.0,
        moving_average_sqd_adv_norm_start: float = 100.0,
        moving_average_sqd_adv_norm_update_rate: float = 1e-08,
        train_batch_size_per_learner: int = 2000,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rate, batch sizes, and how much advantages count.

        Args:
            lr: Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps learned
                from.
            gamma: Discount.
            train_batch_size: Environment steps of an iteration, at least; whole episodes.
            minibatch_size: Timesteps of a minibatch; None: the whole batch.
            num_epochs: Passes through each batch.
            shuffle_batch_per_epoch: False: the batch is shuffled once.
            optimizer: A name such as "adamw", a class, or its import path; with keywords: `{"optimizer": "adamw",
                "eps": 1e-5}`.
            grad_clip: Bound of the gradients; None for none.
            grad_clip_by: "global_norm" scales all gradients of a module by one factor, "norm" each parameter's
                gradient by its own, "value" clips every entry.
            loss: A function `(batch, outputs, distribution_class) -> (loss, metrics)`, a `Loss`, a class of one, or
                the import path of these; None: the algorithm's.
            lambda_: Trace decay of the returns: 1 for those of whole episodes, less to trust the value function
                more.
            beta: Exponent of the advantages that weight the actions; 0: all count the same, which is behaviour
                cloning.
            vf_coeff: Weight of the value loss.
            moving_average_sqd_adv_norm_start: First value of the moving average of squared advantages, by whose
                root advantages are divided.
            moving_average_sqd_adv_norm_update_rate: Share of the way that this average moves with each train batch;
                the default keeps it nearly where it starts.
            train_batch_size_per_learner: Environment steps of an iteration, at least; whole episodes.
            model: Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a `DefaultModelConfig`.
            learner_connector: Your pieces from episodes to train batches: `lambda obs_space, act_space: ...`, or a
                list of piece specs.
            add_default_connectors_to_learner_pipeline: False: the pipeline has only your pieces, and none of the
                algorithm's.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    lambda_: float
    beta: float
    vf_coeff: float
    moving_average_sqd_adv_norm_start: float
    moving_average_sqd_adv_norm_update_rate: float
