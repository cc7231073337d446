"""PPO: its config and its Algorithm."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from epibatch.core.errors import ConfigError, EpibatchWarning

from ..connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from ..connectors.learner.learner_connector_pipeline import add_advantages
from ..learner.ppo_loss import PPOLoss
from ..learner.settings import PPOSettings
from ..learner.update_rule import UpdateRule
from .algorithm import Algorithm
from .algorithm_config import AlgorithmConfig
from .config.settings import PPOTrainingSettings, TrainingSettings
from .registry import register_algorithm

if TYPE_CHECKING:
    from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline

__all__ = ["PPO", "PPOConfig"]


@register_algorithm("ppo")
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

    training_model: ClassVar[type[TrainingSettings]] = PPOTrainingSettings
    rule: ClassVar[Any] = PPOLoss
    algorithm_class: ClassVar[str] = "epibatch.algorithms.ppo:PPO"

    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add a bootstrap step to every chunk after the user's pieces, and advantages at the end.

        Nothing is added when the default pieces are switched off.
        """
        if not self.add_default_connectors_to_learner_pipeline:
            return
        settings = _of_pieces({name: getattr(self, name) for name in _OF_PIECES})
        add_advantages(pipeline, **settings, per_module=self._own_advantages() or None)

    def _own_advantages(self) -> dict[str, dict[str, Any]]:
        """Module id -> its own settings of advantages, of modules that have some."""
        advantages = {module_id: _of_pieces(self.overrides_for(module_id)) for module_id in self.policies}
        return {module_id: values for module_id, values in advantages.items() if values}

    def update_modules(self, pipeline: Any) -> None:
        """Let a pipeline know the modules of this config, and their discounts."""
        default = self.add_default_connectors_to_learner_pipeline
        for place, piece in enumerate(pipeline.connectors):
            if default and type(piece) is GeneralAdvantageEstimation:  # others are the user's
                settings = {name: getattr(piece, name) for name in _OF_PIECES.values()}
                per_module = self._own_advantages() or None
                pipeline.connectors[place] = GeneralAdvantageEstimation(**settings, per_module=per_module)
        super().update_modules(pipeline)

    def build_algo(self) -> PPO:
        """Build environment, pipelines, module and learner.

        Raises:
            ConfigError: the config has no environment, or its settings contradict each other.
        """
        return cast("PPO", super().build_algo())


_OF_PIECES = {
    "gamma": "gamma",
    "lambda_": "lambda_",
    "standardize_advantages": "standardize_advantages",
    "use_clipped_value_loss": "keep_values",
}
"""Settings that are arguments of GeneralAdvantageEstimation -> their names there."""


def _of_pieces(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are arguments of GeneralAdvantageEstimation, which standardizes batches, not minibatches."""
    arguments = {argument: settings[name] for name, argument in _OF_PIECES.items() if name in settings}
    if "standardize_advantages" in arguments:
        arguments["standardize_advantages"] = arguments["standardize_advantages"] in (True, "batch")
    return arguments


def _name_unused_settings(settings: Any, loss: UpdateRule) -> None:
    """Warn about settings of PPO's loss that another loss does not have, or has with other values."""
    values = {name: getattr(settings, name) for name in PPOSettings.names()}
    if values["standardize_advantages"] in (True, False, "batch"):  # the pipeline does it, or nothing does
        del values["standardize_advantages"]
    unused = [
        name
        for name, value in values.items()
        if value != PPOSettings.default_of(name) and getattr(loss.settings, name, None) != value
    ]
    if unused:
        if loss.setting_names():
            which = "with other values"
            do = "give its class, whose __init__ takes `settings` as PPOLoss does; or set them where you make the loss"
        else:
            which, do = "without them", "use them in the loss, or leave them out"
        found = f"a loss of your own, {type(loss).__name__}, {which}"
        warning = EpibatchWarning(
            f"settings {', '.join(unused)}", expected="a loss that takes them", found=found, do=do
        )
        warnings.warn(warning, stacklevel=5)


class PPO(Algorithm):
    """PPO's training loop; built by `PPOConfig.build_algo`."""

    config_class: ClassVar[type[AlgorithmConfig]] = PPOConfig

    @classmethod
    def get_default_config(cls) -> PPOConfig:
        """A new config with PPO's defaults."""
        return PPOConfig()

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
        super().check_module(module, module_id, config)
        rule = config.policies_to_train
        trained = rule is None or (not callable(rule) and module_id in rule)
        if trained and config.add_default_connectors_to_learner_pipeline and not hasattr(module, "compute_values"):
            raise ConfigError(
                f"PPO with the module {type(module).__name__}",
                expected="a module with a value function",
                found="no method compute_values",
                do=f"let it inherit ValueFunctionAPI, class {type(module).__name__}(TorchRLModule, "
                "ValueFunctionAPI), and add compute_values(self, batch, embeddings=None), one value per row",
            )

    def learner_overrides(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """A module's own settings as the learner knows them; those of advantages are the learner pipeline's.

        The loss is told of advantages only if it is to standardize minibatches.
        """
        of_batches = {overrides.get("standardize_advantages"), self.config.standardize_advantages} <= {
            True,
            False,
            "batch",
            None,
        }
        left_out = _OF_PIECES if of_batches else ("gamma", "lambda_")
        return super().learner_overrides({name: value for name, value in overrides.items() if name not in left_out})

    def build_rule(self) -> UpdateRule:
        """Build the clipped-surrogate loss, or the `loss` of the config, which takes its place."""
        rule = super().build_rule()
        _name_unused_settings(self.config.settings.training, rule)
        return rule
