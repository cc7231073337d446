"""The default networks for policies without memory."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.distributions.choosing import distribution_for
from epibatch.core.distributions.distribution import Distribution
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import MLP, encoder_style, head_style, no_value_function, run
from epibatch.core.rl_module.observation_input import ObservationInput, observations_of
from epibatch.core.rl_module.policy_head import PolicyHead, masked
from epibatch.core.rl_module.rl_module import TorchRLModule
from epibatch.core.rl_module.value_function_api import ValueFunctionAPI

__all__ = ["DefaultActorCritic"]


@final
class DefaultActorCritic(TorchRLModule, ValueFunctionAPI):
    """An MLP policy and an MLP value function, with encoders of their own or a shared one.

    Observations are `[B, ...]` of any space that `ObservationInput` encodes (images through convolutions of
    each encoder's own), actions those of any space that `distribution_for` knows. Acting computes the policy only.
    Where the batch has a column `action_mask`, illegal actions have no probability.
    Weights start orthogonal, the policy's output layer small, as Andrychowicz et al. (2021), "What
    matters for on-policy deep actor-critic methods?", recommend.

    Args:
        **kwargs: the keywords of `RLModule`; `model_config` is a `DefaultModelConfig` or a dict of its fields.

    Raises:
        ConfigError: unknown or wrong options in `model_config`.
        SpaceError: a space that these networks do not take.

    Example:
        >>> import gymnasium as gym
        >>> module = DefaultActorCritic(
        ...     observation_space=gym.spaces.Box(-1, 1, (4,)), action_space=gym.spaces.Discrete(2)
        ... )
        >>> batch = {"obs": torch.zeros(3, 4)}
        >>> module.forward_exploration(batch)["action_dist_inputs"].shape, module.compute_values(batch).shape
        (torch.Size([3, 2]), torch.Size([3]))
    """

    def setup(self) -> None:
        """Build the networks."""
        config = DefaultModelConfig.from_dict(self.model_config)
        self._squash = config.squash_actions
        self._input = ObservationInput(self.observation_space, config)
        size, hiddens, style = self._input.size, config.fcnet_hiddens, encoder_style(config)
        features = hiddens[-1] if hiddens else size
        self.images = self._input.cnns()
        self.encoder = MLP(*style.layers(size, hiddens)) if config.vf_share_layers else None
        own = [] if config.vf_share_layers else style.layers(size, hiddens)
        self.pi = PolicyHead(own, features, self.action_space, config)
        self.vf: MLP | None = None
        self.vf_images: nn.ModuleList | None = None
        if not self.inference_only:
            own = [] if config.vf_share_layers else style.layers(size, hiddens)
            self.vf = MLP(*own, *head_style(config).layers(features, config.head_fcnet_hiddens, 1))
            self.vf_images = None if config.vf_share_layers else self._input.cnns()

    def _make_dist_cls(self) -> type[Distribution]:
        return distribution_for(self.action_space, squash=self._squash)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features = self._input(observations_of(batch), self.images)
        if self.encoder is not None:
            features = run(self.encoder, features)
        return masked(run(self._modules["pi"], features), batch)  # type: ignore[arg-type]

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if self.encoder is None:
            return self._forward(batch)
        features = self.encoder(self._input(observations_of(batch), self.images))
        return {**masked(self.pi(features), batch), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        if self.vf is None:
            raise no_value_function(self)
        if embeddings is None:
            if self.encoder is None:
                embeddings = self._input(observations_of(batch), self.vf_images)
            else:
                embeddings = self.encoder(self._input(observations_of(batch), self.images))
        return run(self.vf, embeddings).squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return ["vf", "vf_images"]
