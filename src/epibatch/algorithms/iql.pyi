# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import nn
from typing_extensions import Self

from epibatch.core.rl_module.rl_module import Heads
from epibatch.core.settings import Coefficient, Fraction, ScheduledCoefficient

from ..learner.update_rule import Group, Losses, UpdateRule
from .replay import ReplayConfig, ReplayTraining

__all__ = ["IQLConfig", "IQLRule"]
__all__ = ["IQLConfig", "IQLRule"]

class IQLTraining(ReplayTraining):
    """Set learning rates, targets, and how much better actions count."""

    lr: ScheduledCoefficient
    actor_lr: ScheduledCoefficient | None
    critic_lr: ScheduledCoefficient | None
    tau: Fraction
    expectile: Fraction
    beta: Coefficient

class IQLRule(UpdateRule):
    """The losses of critics, value function and policy, all at recorded actions (Kostrikov et al. 2021).

    The value function learns an expectile of the Q-values, the critics learn from the value after a step, and the
    policy imitates actions by their advantages (arXiv:2110.06169).
    """
    def make_own(self, module: Any) -> nn.Module:
        """Return the targets of the critics."""
        ...
    def groups(self, module: Any, own: Any) -> Mapping[str, Group]:
        """Return the critics, and all else, with their learning rates."""
        ...
    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the losses of a minibatch, with `policy_loss`, `vf_loss`, `vf_mean` and `td_error_mean`."""
        ...
    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the targets."""
        ...

class IQLConfig(ReplayConfig):
    """Settings of implicit Q-learning (Kostrikov et al. 2021), from recorded episodes; defaults are the paper's.

    An iteration draws 100,000 steps, of which each train batch is an update.

    Examples:
        >>> config = IQLConfig().training(expectile=0.9, beta=10.0)
        >>> config.expectile, config.train_batch_size
        (0.9, 256)
    """

    training_model: ClassVar[type[ReplayTraining]]
    rule: ClassVar[Any]
    heads: ClassVar[Heads]
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
        num_steps_sampled_before_learning_starts: int = 1000,
        training_intensity: float | None = None,
        n_step: int = 1,
        tau: float = 0.005,
        store_buffer_in_checkpoints: bool = False,
        actor_lr: float | Sequence[Sequence[float]] | None = None,
        critic_lr: float | Sequence[Sequence[float]] | None = None,
        expectile: float = 0.7,
        beta: float = 3.0,
        train_batch_size_per_learner: int = 256,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rates, targets, and how much better actions count.

        Args:
            lr: Learning rate of what has none of its own, or a schedule of it by environment steps learned from.
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
            num_steps_sampled_before_learning_starts: Environment steps before the first update: with random
                actions; with those of the module if it is recurrent, or if the buffer keeps outputs of it.
            training_intensity: Steps drawn for each one sampled: less than `train_batch_size` for fewer updates
                than steps, more for more; None: one update for each step of the environments, however many there
                are.
            n_step: Steps of which a row has the rewards, and after which it has the next observation.
            tau: Share of the way that targets move towards the critics after each step: 1 copies them.
            store_buffer_in_checkpoints: True: checkpoints hold the buffer too.
            actor_lr: Learning rate of the policy and the value function; None: `lr`.
            critic_lr: Learning rate of the critics; None: `lr`.
            expectile: Expectile of the Q-values of recorded actions that the value function learns: 0.5 for their
                mean, more for better ones.
            beta: Exponent of the advantages that weight the actions; 0: all count the same, which is behaviour
                cloning.
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
    expectile: float
    beta: float
