# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from typing_extensions import Self

from epibatch.core.settings import Coefficient, Fraction, Positive, PositiveNumber, Switch

from .config.settings import TrainingSettings
from .fragment_queue import QueueSettings
from .fragments import FragmentConfig, FragmentTraining
from .impala import IMPALARule

__all__ = ["APPOConfig", "APPORule"]
__all__ = ["APPOConfig", "APPORule"]

class APPOTraining(FragmentTraining):
    """Set learning rate, batch sizes, V-trace, the queue, the target and the weights of the losses."""

    clip_param: PositiveNumber
    use_kl_loss: Switch
    kl_coeff: Coefficient
    kl_target: PositiveNumber
    target_worker_clipping: PositiveNumber
    target_network_update_freq: PositiveNumber
    tau: Fraction
    use_circular_buffer: Switch
    circular_buffer_num_batches: Positive
    circular_buffer_iterations_per_batch: Positive
    simple_queue_size: Positive

class APPORule(IMPALARule):
    """PPO's clipped surrogate for older data (Luo et al. 2020, arXiv:1912.00167), with IMPALA's value loss and entropy.

    The ratio is that of the policy to a target network's, as far as the policy that acted is not too far from both.
    V-trace's advantages are those of the target network's policy.
    """
    def make_own(self, module: Any) -> nn.Module:
        """Return the target network, which acts as runners do: without dropout, and with batch norm as it is."""
        ...
    def initial_coefficients(self) -> dict[str, float]:
        """Return the weight of the KL term, if there is one."""
        ...
    def policy_loss(
        self,
        batch: Mapping[str, Any],
        policy: Any,
        own: Any,
        coefficients: Mapping[str, float],
        real: Callable[[Any], Any],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the clipped surrogate, with the KL term, and `mean_is_ratio` and `mean_kl`; see IMPALARule."""
        ...
    def adapt(self, coefficients: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
        """Grow or shrink the weight of the KL term around the divergence that is aimed at."""
        ...
    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the target network."""
        ...

class APPOConfig(FragmentConfig):
    """Settings of APPO (Luo et al. 2020), PPO whose runners never wait; names are RLlib's.

    Examples:
        >>> config = APPOConfig().environment("CartPole-v1").training(clip_param=0.2, use_kl_loss=True)
        >>> config.clip_param, config.circular_buffer_num_batches
        (0.2, 8)
    """

    training_model: ClassVar[type[TrainingSettings]]
    rule: ClassVar[Any]
    target: ClassVar[str]
    @property
    def queue(self) -> QueueSettings:
        """The circular buffer, or the queue, of train batches."""
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
        clip_param: float = 0.4,
        use_kl_loss: bool = False,
        kl_coeff: float = 1.0,
        kl_target: float = 0.01,
        target_worker_clipping: float = 2.0,
        target_network_update_freq: float = 2,
        tau: float = 1.0,
        use_circular_buffer: bool = True,
        circular_buffer_num_batches: int = 8,
        circular_buffer_iterations_per_batch: int = 2,
        simple_queue_size: int = 32,
        train_batch_size_per_learner: int = 500,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rate, batch sizes, V-trace, the queue, the target and the weights of the losses.

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
            clip_param: The probability ratio is clipped to `1 +- clip_param`.
            use_kl_loss: True if the KL divergence from the target network's policy is part of the loss.
            kl_coeff: First weight of the KL term; the learner adapts it.
            kl_target: KL divergence that the adaptation aims at.
            target_worker_clipping: Highest ratio of probabilities, when it acted to the target network's, that
                weights the policy's ratio.
            target_network_update_freq: Times that the circular buffer's batches are all used up, from one change of
                the target network to the next.
            tau: Share of the way that the target network then moves: 1 copies the network.
            use_circular_buffer: False: each train batch is used once, the oldest first.
            circular_buffer_num_batches: Train batches in the circular buffer; the oldest is dropped for one more.
            circular_buffer_iterations_per_batch: Updates from each of them; batches are drawn at random.
            simple_queue_size: Train batches that wait for the learner without the circular buffer.
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
    clip_param: float
    use_kl_loss: bool
    kl_coeff: float
    kl_target: float
    target_worker_clipping: float
    target_network_update_freq: float
    tau: float
    use_circular_buffer: bool
    circular_buffer_num_batches: int
    circular_buffer_iterations_per_batch: int
    simple_queue_size: int
