# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from typing_extensions import Self

from epibatch.core.settings import Positive

from ..learner.update_rule import Losses, UpdateRule
from .config.settings import TrainingSettings
from .fragment_queue import QueueSettings
from .fragments import FragmentConfig, FragmentTraining

__all__ = ["IMPALAConfig", "IMPALARule"]
__all__ = ["IMPALAConfig", "IMPALARule"]

class IMPALATraining(FragmentTraining):
    """Set learning rate, batch sizes, V-trace, the queue and the weights of the losses."""

    learner_queue_size: Positive

class IMPALARule(UpdateRule):
    """The policy gradient, a value loss and the entropy, with V-trace's advantages (Espeholt et al. 2018)."""
    def scheduled_coefficients(self, num_env_steps: int) -> dict[str, float]:
        """Return the weight of the entropy."""
        ...
    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of a minibatch, with `policy_loss`, `vf_loss`, `entropy` and those of the policy's loss."""
        ...
    def policy_loss(
        self,
        batch: Mapping[str, Any],
        policy: Any,
        own: Any,
        coefficients: Mapping[str, float],
        real: Callable[[Any], Any],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return what the policy is to lower, a scalar with gradients, and metrics.

        Args:
            batch: The minibatch.
            policy: The distribution of actions in the rows with loss.
            own: What the rule keeps for the module.
            coefficients: As for `losses`.
            real: Makes a column of the rows with loss of one of the batch.
        """
        ...

class IMPALAConfig(FragmentConfig):
    """Settings of IMPALA (Espeholt et al. 2018, arXiv:1802.01561), whose runners never wait; names are RLlib's.

    Examples:
        >>> config = IMPALAConfig().environment("CartPole-v1").training(lr=1e-3, learner_queue_size=4)
        >>> config.train_batch_size, config.learner_queue_size
        (500, 4)
    """

    training_model: ClassVar[type[TrainingSettings]]
    rule: ClassVar[Any]
    @property
    def queue(self) -> QueueSettings:
        """The queue of train batches."""
        ...
    def training(
        self,
        *,
        lr: float | Sequence[Sequence[float]] = 0.0005,
        gamma: float = 0.99,
        train_batch_size: int = 500,
        minibatch_size: int | None = None,
        num_epochs: int = 1,
        shuffle_batch_per_epoch: bool = True,
        optimizer: str | Mapping[str, Any] | Callable[..., Any] = "adam",
        grad_clip: float | None = 40.0,
        grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm",
        loss: Callable[..., Any] | str | None = None,
        vtrace_clip_rho_threshold: float = 1.0,
        vtrace_clip_pg_rho_threshold: float = 1.0,
        vf_loss_coeff: float = 0.5,
        entropy_coeff: float | Sequence[Sequence[float]] = 0.01,
        broadcast_interval: int = 1,
        learner_queue_size: int = 3,
        train_batch_size_per_learner: int = 500,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rate, batch sizes, V-trace, the queue and the weights of the losses.

        Args:
            lr: Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps that were
                sampled.
            gamma: Discount.
            train_batch_size: Environment steps of a train batch, at least.
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
            vtrace_clip_rho_threshold: Highest ratio of probabilities, now to when it acted, that weights a step in
                the value targets.
            vtrace_clip_pg_rho_threshold: Highest such ratio that weights an advantage.
            vf_loss_coeff: Weight of the value loss.
            entropy_coeff: Weight of the entropy bonus; a number, or a schedule as for `lr`.
            broadcast_interval: Updates from one sending of weights to runners in other processes to the next.
            learner_queue_size: Train batches that wait for the learner; the oldest is dropped for one more.
            train_batch_size_per_learner: Environment steps of a train batch, at least.
            model: Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a `DefaultModelConfig`.
            learner_connector: Your pieces from episodes to train batches: `lambda obs_space, act_space: ...`, or a
                list of piece specs.
            add_default_connectors_to_learner_pipeline: False: the pipeline has only your pieces, and none of the
                algorithm's.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    vtrace_clip_rho_threshold: float
    vtrace_clip_pg_rho_threshold: float
    vf_loss_coeff: float
    entropy_coeff: float | Sequence[Sequence[float]]
    broadcast_interval: int
    learner_queue_size: int
