# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import nn
from typing_extensions import Self

from epibatch.core.rl_module.rl_module import Heads, RLModuleSpec
from epibatch.core.settings import Coefficient, Count, Number, Positive, PositiveNumber, ScheduledCoefficient, Switch

from ..learner.update_rule import Losses, UpdateRule
from .replay import ReplayConfig, ReplayTraining

__all__ = ["DQNConfig", "DQNRule"]
__all__ = ["DQNConfig", "DQNRule"]

class DQNTraining(ReplayTraining):
    """Set learning rate, exploration, network, targets and the replay buffer."""

    lr: ScheduledCoefficient
    train_batch_size: Positive
    epsilon: ScheduledCoefficient
    double_q: Switch
    dueling: Switch
    num_atoms: Positive
    v_min: Number
    v_max: Number
    noisy: Switch
    sigma0: PositiveNumber
    burn_in_len: Count
    value_rescaling: Switch
    td_error_loss_fn: Literal["huber", "mse"]
    min_q_weight: Coefficient
    target_network_update_freq: Positive

class DQNRule(UpdateRule):
    """The loss of Q-values (Mnih et al. 2015), with double Q-learning (van Hasselt et al. 2016).

    Of distributions it is C51's (Bellemare et al. 2017, arXiv:1707.06887). Of sequences it is R2D2's (Kapturowski et
    al. 2019): network and target are run from the same state over each sequence, and on to the observations after its
    last steps.
    """
    def make_own(self, module: Any) -> nn.Module:
        """Return the target.

        Raises:
            ConfigError: the module reads columns of other steps, which next observations do not have.
        """
        ...
    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of a minibatch, with `qf_mean` and `td_error_mean`."""
        ...
    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the target."""
        ...

class DQNConfig(ReplayConfig):
    """Settings of deep Q-networks (Mnih et al. 2015); names are RLlib's.

    With `use_lstm` or `use_gru` in `model_config` it is R2D2 (Kapturowski et al. 2019): it learns from sequences of
    `max_seq_len` steps, from the states that were recorded before them.

    Examples:
        >>> config = DQNConfig().environment("CartPole-v1").training(epsilon=[[0, 1.0], [5000, 0.04]], n_step=3)
        >>> config.n_step, config.replay_buffer_config["capacity"]
        (3, 100000)
    """

    training_model: ClassVar[type[ReplayTraining]]
    rule: ClassVar[Any]
    heads: ClassVar[Heads]
    def validate(self) -> None:
        """Check what no single setting can show; options of the network that are settings here have their names.

        Raises:
            ConfigError: settings that contradict each other, all of them in one message.
        """
        ...
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return a spec with the settings that are about the network."""
        ...
    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        """Build the pipeline, with random actions now and then."""
        ...
    def training(
        self,
        *,
        lr: float | Sequence[Sequence[float]] = 0.0005,
        gamma: float = 0.99,
        train_batch_size: int = 32,
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
        tau: float = 1.0,
        store_buffer_in_checkpoints: bool = False,
        epsilon: float | Sequence[Sequence[float]] = [[0, 1.0], [10000, 0.05]],
        double_q: bool = True,
        dueling: bool = True,
        num_atoms: int = 1,
        v_min: float = -10.0,
        v_max: float = 10.0,
        noisy: bool = False,
        sigma0: float = 0.5,
        burn_in_len: int = 0,
        value_rescaling: bool = False,
        td_error_loss_fn: Literal["huber", "mse"] = "huber",
        min_q_weight: float = 0.0,
        target_network_update_freq: int = 500,
        train_batch_size_per_learner: int = 32,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rate, exploration, network, targets and the replay buffer.

        Args:
            lr: Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps.
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
            tau: Share of the way that targets move towards the networks: 1 copies them.
            store_buffer_in_checkpoints: True: checkpoints hold the buffer too.
            epsilon: Probability of a random action, or a schedule of it by environment steps that were sampled.
            double_q: True: the network says which next action is the best, and the target what it is worth.
            dueling: True: the network adds up a value of the observation and an advantage of each action.
            num_atoms: Above 1: the network learns a distribution over so many returns, from `v_min` to `v_max`.
            v_min: The lowest of these returns.
            v_max: The highest.
            noisy: True: learned noise on the weights of the heads explores; then set `epsilon` to 0.
            sigma0: Scale of that noise at first.
            burn_in_len: Steps at the start of each sequence of a recurrent network that only compute its state;
                they count for `max_seq_len`.
            value_rescaling: True: the network learns h(return), with h(x) = sign(x)(sqrt(|x| + 1) - 1) + x / 1000,
                so returns of any size.
            td_error_loss_fn: The loss of errors; with `num_atoms` above 1 it is the cross-entropy.
            min_q_weight: Weight of the soft maximum over the Q-values of all actions less that of the recorded one,
                which the loss lowers: conservative Q-learning (Kumar et al. 2020), for recorded episodes.
            target_network_update_freq: Gradient steps from one change of the target to the next.
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
    epsilon: float | Sequence[Sequence[float]]
    double_q: bool
    dueling: bool
    num_atoms: int
    v_min: float
    v_max: float
    noisy: bool
    sigma0: float
    burn_in_len: int
    value_rescaling: bool
    td_error_loss_fn: Literal["huber", "mse"]
    min_q_weight: float
    target_network_update_freq: int
