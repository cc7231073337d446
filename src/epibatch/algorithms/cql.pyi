# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from typing_extensions import Self

from epibatch.core.settings import Coefficient, Count, Number, Positive, PositiveNumber, ScheduledCoefficient, Switch

from ..learner.update_rule import Group, Losses
from .replay import ReplayTraining
from .sac import SACConfig, SACRule, SACTraining

__all__ = ["CQLConfig", "CQLRule"]
__all__ = ["CQLConfig", "CQLRule"]

class CQLTraining(SACTraining):
    """Set learning rates, temperature, targets, and the weight of Q-values of other actions."""

    actor_lr: ScheduledCoefficient | None
    critic_lr: ScheduledCoefficient | None
    alpha_lr: ScheduledCoefficient | None
    deterministic_backup: Switch
    bc_iters: Count
    min_q_weight: Coefficient
    temperature: PositiveNumber
    num_actions: Positive
    lagrangian: Switch
    lagrangian_thresh: Number

class CQLRule(SACRule):
    """SAC's losses, and one that lowers Q-values of actions that the data does not have (Kumar et al. 2020).

    It is CQL(H), arXiv:2006.04779. The soft maximum over actions is an importance-weighted sum over uniform ones and
    those of the policy at the observation and at the next one; of Discrete actions it is over all of them. All are
    valued at the observation itself, as in the authors' code; RLlib values the policy's next ones at the next one.
    """
    def make_own(self, module: Any) -> nn.Module:
        """Return SAC's targets and temperature, the number of updates, and the weight that `lagrangian` learns."""
        ...
    def groups(self, module: Any, own: Any) -> Mapping[str, Group]:
        """Return SAC's groups, and the weight that `lagrangian` learns, with the learning rate of the critics."""
        ...
    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the losses of a minibatch, with SAC's metrics and `cql_loss`."""
        ...
    def policy_value(
        self, batch: Mapping[str, Any], module: Any, own: Any, alpha: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the policy is to raise: at first the likelihood of recorded actions, with its entropy."""
        ...
    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the targets, and count."""
        ...

class CQLConfig(SACConfig):
    """Settings of conservative Q-learning (Kumar et al. 2020), SAC from recorded episodes; names are RLlib's.

    An iteration draws 100,000 steps, of which each train batch is an update.

    Examples:
        >>> config = CQLConfig().training(bc_iters=0, min_q_weight=1.0)
        >>> config.bc_iters, config.num_actions
        (0, 10)
    """

    training_model: ClassVar[type[ReplayTraining]]
    rule: ClassVar[Any]
    offline: ClassVar[bool]
    min_env_steps_per_iteration: ClassVar[int]
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
        actor_lr: float | Sequence[Sequence[float]] | None = 0.0001,
        critic_lr: float | Sequence[Sequence[float]] | None = 0.001,
        alpha_lr: float | Sequence[Sequence[float]] | None = 0.001,
        initial_alpha: float = 1.0,
        deterministic_backup: bool = True,
        target_entropy: float | Literal["auto"] = "auto",
        bc_iters: int = 20000,
        min_q_weight: float = 5.0,
        temperature: float = 1.0,
        num_actions: int = 10,
        lagrangian: bool = False,
        lagrangian_thresh: float = 5.0,
        train_batch_size_per_learner: int = 256,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rates, temperature, targets, and the weight of Q-values of other actions.

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
            bc_iters: Updates at first in which the policy learns to act as the data does, and not yet to have high
                Q-values.
            min_q_weight: Weight of the Q-values of other actions over those of the data, which the critics' loss
                lowers.
            temperature: Temperature of the soft maximum over these actions.
            num_actions: Actions that are drawn for it at each observation, from each of three distributions;
                Discrete ones all count.
            lagrangian: True: a further weight is learned, which keeps what the critics' loss lowers near
                `lagrangian_thresh`.
            lagrangian_thresh: The goal of that weight.
            train_batch_size_per_learner: Steps drawn for one update.
            model: Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a `DefaultModelConfig`.
            learner_connector: Your pieces from episodes to train batches: `lambda obs_space, act_space: ...`, or a
                list of piece specs.
            add_default_connectors_to_learner_pipeline: False: the pipeline has only your pieces, and none of the
                algorithm's.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    bc_iters: int
    min_q_weight: float
    temperature: float
    num_actions: int
    lagrangian: bool
    lagrangian_thresh: float
