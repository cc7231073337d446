# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from typing_extensions import Self

from epibatch.core.rl_module.rl_module import Heads
from epibatch.core.settings import Count, Fraction, Number, Positive, PositiveNumber, ScheduledCoefficient, Switch

from ..learner.update_rule import Group, Losses, UpdateRule
from .replay import ReplayConfig, ReplayTraining

__all__ = ["SACConfig", "SACRule"]
__all__ = ["SACConfig", "SACRule"]

class SACTraining(ReplayTraining):
    """Set learning rates, temperature, targets and the replay buffer."""

    lr: ScheduledCoefficient
    actor_lr: ScheduledCoefficient | None
    critic_lr: ScheduledCoefficient | None
    alpha_lr: ScheduledCoefficient | None
    train_batch_size: Positive
    num_steps_sampled_before_learning_starts: Count
    tau: Fraction
    initial_alpha: PositiveNumber
    deterministic_backup: Switch
    target_entropy: Number | Literal["auto"]

class SACRule(UpdateRule):
    """The losses of critics, policy and temperature (Haarnoja et al. 2018, arXiv:1812.05905).

    Of Discrete actions the expectations are sums over all of them (Christodoulou 2019, arXiv:1910.07207).
    """
    def make_own(self, module: Any) -> nn.Module:
        """Return the targets of the critics, and the temperature."""
        ...
    def groups(self, module: Any, own: Any) -> Mapping[str, Group]:
        """Return the critics, the policy and the temperature, with their learning rates."""
        ...
    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the losses of a minibatch, with `alpha`, `entropy`, `qf_mean` and `td_error_mean`."""
        ...
    def policy_value(
        self, batch: Mapping[str, Any], module: Any, own: Any, alpha: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the policy is to raise, with its gradients, and its entropy.

        Args:
            batch: The minibatch.
            module: The module.
            own: What the rule keeps for it.
            alpha: The weight of the entropy, a scalar without gradient.

        Returns:
            The soft value of each row, and the entropy, both `[B]`.
        """
        ...
    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the targets."""
        ...

class SACConfig(ReplayConfig):
    """Settings of soft actor-critic (Haarnoja et al. 2018); names are RLlib's.

    Examples:
        >>> config = SACConfig().environment("Pendulum-v1").training(initial_alpha=0.2, tau=0.01)
        >>> config.initial_alpha, config.train_batch_size
        (0.2, 256)
    """

    training_model: ClassVar[type[ReplayTraining]]
    rule: ClassVar[Any]
    heads: ClassVar[Heads]
    def training(
        self,
        *,
        lr: float | Sequence[Sequence[float]] = 0.0003,
        gamma: float = 0.99,
        train_batch_size: int = 256,
        minibatch_size: int | None = None,
        num_epochs: int = 1,
        shuffle_batch_per_epoch: bool = True,
        optimizer: str | Mapping[str, Any] | Callable[..., Any] = "adam",
        grad_clip: float | None = None,
        grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm",
        loss: Callable[..., Any] | str | None = None,
        replay_buffer_config: dict[str, Any] = {"type": "EpisodeReplayBuffer", "capacity": 100000},
        num_steps_sampled_before_learning_starts: int = 1500,
        training_intensity: float | None = None,
        n_step: int = 1,
        tau: float = 0.005,
        store_buffer_in_checkpoints: bool = False,
        actor_lr: float | Sequence[Sequence[float]] | None = None,
        critic_lr: float | Sequence[Sequence[float]] | None = None,
        alpha_lr: float | Sequence[Sequence[float]] | None = None,
        initial_alpha: float = 1.0,
        deterministic_backup: bool = False,
        target_entropy: float | Literal["auto"] = "auto",
        train_batch_size_per_learner: int = 256,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rates, temperature, targets and the replay buffer.

        Args:
            lr: Learning rate of what has none of its own, or a schedule of it by environment steps.
            gamma: Discount.
            train_batch_size: Steps drawn for one update.
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
            replay_buffer_config: The buffer: `type` (EpisodeReplayBuffer or PrioritizedEpisodeReplayBuffer; with
                several agents that of MultiAgent...), `capacity` in steps, of each module, or `capacity_bytes` in
                its place, `folder` (where the rows lie, if not in memory), `device` (such as cuda) or `pin_memory`
                for rows in tensors, `kept_outputs` (names of model outputs that train batches are to have, such as
                weights_seq_no), `keep_infos` (True for pieces that read infos), and, of a prioritised one, `alpha`
                (exponent of the priorities), `beta` (how far the weights of losses undo them, or a schedule of it)
                and `eta` (share of the highest error in the priority of a sequence).
            num_steps_sampled_before_learning_starts: Environment steps with random actions before the first update.
            training_intensity: Steps drawn for each one sampled: less than `train_batch_size` for fewer updates
                than steps, more for more; None: one update for each step of the environments, however many there
                are.
            n_step: Steps of which a row has the rewards, and after which it has the next observation.
            tau: Share of the way that targets move towards the critics after each step: 1 copies them.
            store_buffer_in_checkpoints: True: checkpoints hold the buffer too.
            actor_lr: Learning rate of the policy; None: `lr`.
            critic_lr: Learning rate of the critics; None: `lr`.
            alpha_lr: Learning rate of the temperature; None: `lr`.
            initial_alpha: Weight of the entropy at first; it is learned.
            deterministic_backup: True: what a step leads to is worth its Q-value, without the entropy of the policy
                there.
            target_entropy: Entropy that the weight is learned for; "auto": minus the number of actions, of Discrete
                ones 98 % of most.
            train_batch_size_per_learner: Steps drawn for one update.
            model: Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a `DefaultModelConfig`.
            learner_connector: Your pieces from episodes to train batches: `lambda obs_space, act_space: ...`, or a
                list of piece specs.
            add_default_connectors_to_learner_pipeline: False: the pipeline has only your pieces, and none of the
                algorithm's.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    replay_buffer_config: dict[str, Any]
    num_steps_sampled_before_learning_starts: int
    training_intensity: float | None
    n_step: int
    tau: float
    store_buffer_in_checkpoints: bool
    actor_lr: float | Sequence[Sequence[float]] | None
    critic_lr: float | Sequence[Sequence[float]] | None
    alpha_lr: float | Sequence[Sequence[float]] | None
    initial_alpha: float
    deterministic_backup: bool
    target_entropy: float | Literal["auto"]
