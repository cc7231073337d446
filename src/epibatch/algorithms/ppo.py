"""PPO: its config and its Algorithm."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from epibatch.core.errors import ConfigError, explain

from .algorithm import Algorithm
from .algorithm_config import AlgorithmConfig
from .settings import PPOTrainingSettings, Section

if TYPE_CHECKING:
    from ..connectors.learner import LearnerConnectorPipeline
    from ..learner import Learner

__all__ = ["PPO", "PPOConfig"]


class PPOConfig(AlgorithmConfig):
    """Settings of Proximal Policy Optimization (Schulman et al. 2017); defaults and methods are RLlib's.

    Example:
        >>> config = (
        ...     PPOConfig()
        ...     .environment("CartPole-v1")
        ...     .env_runners(num_envs_per_env_runner=8)
        ...     .training(lr=3e-4, lambda_=0.95, entropy_coeff=0.01)
        ... )
        >>> config.clip_param, config.lambda_
        (0.3, 0.95)
    """

    algorithm: ClassVar[str] = "ppo"
    sections: ClassVar[dict[str, type[Section]]] = {**AlgorithmConfig.sections, "training": PPOTrainingSettings}

    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add a bootstrap step to every chunk after the user's pieces, and advantages at the end.

        Nothing is added when the default pieces are switched off.
        """
        if not self.add_default_connectors_to_learner_pipeline:
            return
        from ..connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
        from ..connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation

        pipeline.insert_before("AddObservationsFromEpisodesToBatch", AddOneTsToEpisodesAndTruncate())
        pipeline.append(GeneralAdvantageEstimation(gamma=self.gamma, lambda_=self.lambda_))

    def build_algo(self) -> PPO:
        """Build environment, pipelines, module and learner.

        Raises:
            ConfigError: the config has no environment, or its settings contradict each other.
        """
        return PPO(self)


class PPO(Algorithm):
    """PPO's training loop; built by `PPOConfig.build_algo`."""

    @classmethod
    def get_default_config(cls) -> PPOConfig:
        """A new config with PPO's defaults."""
        return PPOConfig()

    def check_module(self, module: Any) -> None:
        """Check that the module is complete, and that it has a value function unless the default pieces are off.

        Raises:
            ConfigError: it has none, or it is recurrent without `max_seq_len`.
        """
        super().check_module(module)
        if self.config.add_default_connectors_to_learner_pipeline and not hasattr(module, "compute_values"):
            raise ConfigError(
                explain(
                    f"PPO with the module {type(module).__name__}",
                    expected="a module with a value function",
                    found="no method compute_values",
                    do=f"let it inherit ValueFunctionAPI, class {type(module).__name__}(TorchRLModule, "
                    "ValueFunctionAPI), and add compute_values(self, batch, embeddings=None), one value per row",
                )
            )

    def build_learner(self, module: Any, connector: LearnerConnectorPipeline) -> Learner:
        """Build the learner with the clipped-surrogate loss."""
        from ..learner import Learner, LearnerSettings, PPOLoss, PPOSettings

        config = self.config
        names = [field.name for field in dataclasses.fields(PPOSettings)]
        settings = LearnerSettings(
            lr=config.lr,
            minibatch_size=config.minibatch_size,
            num_epochs=config.num_epochs,
            grad_clip=config.grad_clip,
            grad_clip_by=config.grad_clip_by,
            shuffle="epoch" if config.shuffle_batch_per_epoch else "once",
            seed=config.seed,
        )
        loss = PPOLoss(PPOSettings(**{name: getattr(config, name) for name in names}))
        return Learner(module=module, connector=connector, settings=settings, loss=loss, device=config.other_device)
