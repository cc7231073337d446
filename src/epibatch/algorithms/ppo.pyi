# Written by `make generated`: the source without bodies, with the settings of the models.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from typing_extensions import Self

from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from ..learner.update_rule import UpdateRule
from .algorithm import Algorithm
from .algorithm_config import AlgorithmConfig
from .config.settings import TrainingSettings

__all__ = ["PPO", "PPOConfig"]
__all__ = ["PPO", "PPOConfig"]

class PPOConfig(AlgorithmConfig):
    """Settings of Proximal Policy Optimization (Schulman et al. 2017); defaults and methods are RLlib's.

    Examples:
        >>> config = (
        ...     PPOConfig()
        ...     .environment("CartPole-v1")
        ...     .env_runners(num_envs_per_env_runner=8)
        ...     .training(lr=3e-4, lambda_=0.95, entropy_coeff=0.01)
        ... )
        >>> config.clip_param, config.lambda_
        (0.3, 0.95)
    """

    training_model: ClassVar[type[TrainingSettings]]
    rule: ClassVar[Any]
    algorithm_class: ClassVar[str]
    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add a bootstrap step to every chunk after the user's pieces, and advantages at the end.

        Nothing is added when the default pieces are switched off.
        """
        ...
    def update_modules(self, pipeline: Any) -> None:
        """Let a pipeline know the modules of this config, and their discounts."""
        ...
    def build_algo(self) -> PPO:
        """Build environment, pipelines, module and learner.

        Raises:
            ConfigError: the config has no environment, or its settings contradict each other.
        """
        ...
    def training(
        self,
        *,
        lr: float | Sequence[Sequence[float]] = 5e-05,
        gamma: float = 0.99,
        train_batch_size: int = 4000,
        minibatch_size: int | None = 128,
        num_epochs: int = 30,
        shuffle_batch_per_epoch: bool = True,
        grad_clip: float | None = None,
        grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm",
        lambda_: float = 1.0,
        standardize_advantages: Literal[True, False, "batch", "minibatch"] = True,
        optimizer: str | Mapping[str, Any] | Callable[..., Any] = "adam",
        loss: Callable[..., Any] | str | None = None,
        clip_param: float | Sequence[Sequence[float]] = 0.3,
        vf_clip_param: float = 10.0,
        use_clipped_value_loss: bool = False,
        vf_loss_coeff: float = 1.0,
        entropy_coeff: float | Sequence[Sequence[float]] = 0.0,
        use_kl_loss: bool = True,
        kl_coeff: float = 0.2,
        kl_target: float = 0.01,
        target_kl: float | None = None,
        desired_kl: float | None = None,
        train_batch_size_per_learner: int = 4000,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rate, batch sizes and the coefficients of PPO's loss; the defaults are RLlib 2.60's.

        Args:
            lr: Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps learned
                from.
            gamma: Discount.
            train_batch_size: Environment steps of an iteration, at least.
            minibatch_size: Timesteps of a minibatch; None: the whole batch; left out: no more than the batch has.
            num_epochs: Passes through each batch.
            shuffle_batch_per_epoch: False: the batch is shuffled once.
            grad_clip: Bound of the gradients; None for none.
            grad_clip_by: "global_norm" scales all gradients of a module by one factor, "norm" each parameter's
                gradient by its own, "value" clips every entry.
            lambda_: Trace decay of generalised advantage estimation.
            standardize_advantages: Where advantages get mean 0 and standard deviation 1: in each train batch
                ("batch" or True), in each minibatch, or nowhere (False).
            optimizer: A name such as "adamw", a class, or its import path; with keywords: `{"optimizer": "adamw",
                "eps": 1e-5}`.
            loss: A function `(batch, outputs, distribution_class) -> (loss, metrics)`, a `Loss`, a class of one, or
                the import path of these; None: the algorithm's.
            clip_param: The probability ratio is clipped to `1 +- clip_param`; a number, or a schedule as for `lr`.
            vf_clip_param: Upper bound of a row's squared value error; `inf` for none.
            use_clipped_value_loss: True: a row's value loss is the larger of two squared errors: with the new
                value, and with the new value limited to `clip_param` around `vf_preds`, the one recorded while
                acting or else before the update. `vf_clip_param` is then unused.
            vf_loss_coeff: Weight of the value loss.
            entropy_coeff: Weight of the entropy bonus; a number, or a schedule as for `lr`.
            use_kl_loss: True if the KL divergence from the acting policy is part of the loss.
            kl_coeff: First weight of the KL term; the learner adapts it.
            kl_target: KL divergence that the adaptation aims at.
            target_kl: An update ends early when the approximate KL divergence of a minibatch exceeds 1.5 times
                this; None: never.
            desired_kl: Divergence at which the learning rate is kept, which begins at `lr`: before each step it
                shrinks by a third, at least to 1e-5, if the minibatch's exceeds twice this, and grows by half, at
                most to 1e-2, if it is under half of this. None: no adaptation.
            train_batch_size_per_learner: Environment steps of an iteration, at least.
            model: Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a `DefaultModelConfig`.
            learner_connector: Your pieces from episodes to train batches: `lambda obs_space, act_space: ...`, or a
                list of piece specs.
            add_default_connectors_to_learner_pipeline: False: the pipeline has only your pieces, and none of the
                algorithm's.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    lambda_: float
    standardize_advantages: Literal[True, False, "batch", "minibatch"]
    clip_param: float | Sequence[Sequence[float]]
    vf_clip_param: float
    use_clipped_value_loss: bool
    vf_loss_coeff: float
    entropy_coeff: float | Sequence[Sequence[float]]
    use_kl_loss: bool
    kl_coeff: float
    kl_target: float
    target_kl: float | None
    desired_kl: float | None

class PPO(Algorithm):
    """PPO's training loop; built by `PPOConfig.build_algo`."""

    config_class: ClassVar[type[AlgorithmConfig]]
    @classmethod
    def get_default_config(cls) -> PPOConfig:
        """A new config with PPO's defaults."""
        ...
    def check_module(self, module: Any, module_id: str, config: AlgorithmConfig) -> None:
        """Check that a module is complete, and that it has a value function.

        Modules that are not trained need none, nor do any if the default pieces are off.

        Args:
            module: The module.
            module_id: Its id.
            config: What it is used with.

        Raises:
            ConfigError: it has none, or it is recurrent without `max_seq_len`.
        """
        ...
    def learner_overrides(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """A module's own settings as the learner knows them; those of advantages are the learner pipeline's.

        The loss is told of advantages only if it is to standardize minibatches.
        """
        ...
    def build_rule(self) -> UpdateRule:
        """Build the clipped-surrogate loss, or the `loss` of the config, which takes its place."""
        ...
