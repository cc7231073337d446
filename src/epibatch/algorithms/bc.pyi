# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from typing_extensions import Self

from epibatch.core.settings import Coefficient, Positive

from ..learner.update_rule import Losses, UpdateRule
from .algorithm import Algorithm
from .algorithm_config import AlgorithmConfig
from .config.settings import TrainingSettings

__all__ = ["BC", "BCConfig", "BCRule"]
__all__ = ["BC", "BCConfig", "BCRule"]

class BCTraining(TrainingSettings):
    """Set learning rate, batch sizes and the weight of the entropy."""

    minibatch_size: Positive | None
    entropy_coeff: Coefficient

class BCRule(UpdateRule):
    """The negative log-likelihood of the recorded actions, over the steps with loss."""
    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of a minibatch, with `policy_loss` and `entropy`."""
        ...

class BCConfig(AlgorithmConfig):
    """Settings of behaviour cloning (Pomerleau 1991): the policy learns to act as recorded episodes do.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(
        ...     observations=[[0.0], [1.0], [2.0]], actions=[0, 1], rewards=[0.0, 0.0], len_lookback_buffer=0
        ... )
        >>> algo = BCConfig().offline_data(input_=[episode]).training(train_batch_size=20).build_algo()
        >>> algo.train()["num_env_steps_sampled_lifetime"]
        20
        >>> algo.stop()
    """

    training_model: ClassVar[type[TrainingSettings]]
    rule: ClassVar[Any]
    offline: ClassVar[bool]
    algorithm_class: ClassVar[str]
    def training(
        self,
        *,
        lr: float | Sequence[Sequence[float]] = 0.001,
        gamma: float = 0.99,
        train_batch_size: int = 4000,
        minibatch_size: int | None = 128,
        num_epochs: int = 1,
        shuffle_batch_per_epoch: bool = True,
        optimizer: str | Mapping[str, Any] | Callable[..., Any] = "adam",
        grad_clip: float | None = None,
        grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm",
        loss: Callable[..., Any] | str | None = None,
        entropy_coeff: float = 0.0,
        train_batch_size_per_learner: int = 4000,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rate, batch sizes and the weight of the entropy.

        Args:
            lr: Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps learned
                from.
            gamma: Discount.
            train_batch_size: Environment steps of an iteration, at least.
            minibatch_size: Timesteps of a minibatch; None: the whole batch; left out: no more than the batch has.
            num_epochs: Passes through each batch.
            shuffle_batch_per_epoch: False: the batch is shuffled once.
            optimizer: A name such as "adamw", a class, or its import path; with keywords: `{"optimizer": "adamw",
                "eps": 1e-5}`.
            grad_clip: Bound of the gradients; None for none.
            grad_clip_by: "global_norm" scales all gradients of a module by one factor, "norm" each parameter's
                gradient by its own, "value" clips every entry.
            loss: A function `(batch, outputs, distribution_class) -> (loss, metrics)`, a `Loss`, a class of one, or
                the import path of these; None: the algorithm's.
            entropy_coeff: Weight of the policy's entropy, which makes the clone less certain.
            train_batch_size_per_learner: Environment steps of an iteration, at least.
            model: Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a `DefaultModelConfig`.
            learner_connector: Your pieces from episodes to train batches: `lambda obs_space, act_space: ...`, or a
                list of piece specs.
            add_default_connectors_to_learner_pipeline: False: the pipeline has only your pieces, and none of the
                algorithm's.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    entropy_coeff: float

class BC(Algorithm):
    """Behaviour cloning's training loop; built by `BCConfig.build_algo`."""

    config_class: ClassVar[type[AlgorithmConfig]]
