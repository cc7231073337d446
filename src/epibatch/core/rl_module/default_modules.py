"""The default networks: for policies without memory, and with an LSTM or a GRU."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.distributions.choosing import distribution_for
from epibatch.core.distributions.distribution import Distribution
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import (
    MLP,
    PolicyHead,
    fc_layers,
    masked_outputs,
    needs_training,
    run,
)
from epibatch.core.rl_module.observation_input import group_inputs, observations_of
from epibatch.core.rl_module.recurrent_module import GRU, LSTM, DefaultRecurrentModule
from epibatch.core.rl_module.rl_module import TorchRLModule, ValueFunctionAPI


@final
class DefaultActorCritic(TorchRLModule, ValueFunctionAPI):
    """An MLP policy and an MLP value function, with encoders of their own or a shared one.

    Observations are `[B, ...]` of any space that `ObservationInput` encodes (images through convolutions of
    each encoder's own), actions those of any space that `distribution_for` knows. Acting computes the policy only.
    Where the batch has a column `action_mask`, illegal actions have no probability.
    Weights start orthogonal, the policy's output layer small, as Andrychowicz et al. (2021), "What
    matters for on-policy deep actor-critic methods?", recommend.

    Args:
        **kwargs: The keywords of `RLModule`; `model_config` is a `DefaultModelConfig` or a dict of its fields.

    Raises:
        ConfigError: unknown or wrong options in `model_config`.
        SpaceError: a space that these networks do not take.

    Examples:
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
        self._input, self._vf_input = group_inputs(self.observation_space, config, with_critic=not self.inference_only)
        if config.vf_share_layers and self._vf_input is not self._input:
            raise ConfigError(
                "model_config",
                expected="the same obs_groups for actor and critic, as they share the encoder (vf_share_layers)",
                found=repr(config.obs_groups),
                do="set vf_share_layers to False, or leave the critic's groups out",
            )
        size, hiddens = self._input.size, config.fcnet_hiddens
        features = hiddens[-1] if hiddens else size
        self.images = self._input.cnns()
        self.encoder = MLP(*fc_layers(config, "fcnet", size)) if config.vf_share_layers else None
        layers = [] if config.vf_share_layers else fc_layers(config, "fcnet", size)
        self.pi = PolicyHead(layers, features, self.action_space, config)
        self.vf: MLP | None = None
        self.vf_images: nn.ModuleList | None = None
        if not self.inference_only:
            size = self._vf_input.size
            layers = [] if config.vf_share_layers else fc_layers(config, "fcnet", size)
            self.vf = MLP(*layers, *fc_layers(config, "head_fcnet", hiddens[-1] if hiddens else size, 1))
            self.vf_images = None if config.vf_share_layers else self._vf_input.cnns()

    def _make_dist_cls(self) -> type[Distribution]:
        return distribution_for(self.action_space, squash=self._squash)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features = self._input(observations_of(batch), self.images)
        if self.encoder is not None:
            features = run(self.encoder, features)
        return masked_outputs(run(self._modules["pi"], features), batch)  # type: ignore[arg-type]

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if self.encoder is None:
            return self._forward(batch)
        features = self.encoder(self._input(observations_of(batch), self.images))
        return {**masked_outputs(self.pi(features), batch), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        if self.vf is None:
            raise needs_training(self, "compute_values")
        if embeddings is None:
            if self.encoder is None:
                embeddings = self._vf_input(observations_of(batch), self.vf_images)
            else:
                embeddings = self.encoder(self._input(observations_of(batch), self.images))
        return run(self.vf, embeddings).squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return ["vf", "vf_images"]


class DefaultRecurrentActorCritic(DefaultRecurrentModule, ValueFunctionAPI):
    """An MLP (after convolutions for images) and a recurrent layer that policy and value function share, and a head
    for each; `DefaultLSTMActorCritic` and `DefaultGRUActorCritic` choose the layer.

    A batch holds `obs` `[B, T, ...]` and `state_in`, a dict of `[B, H]`; each row is one sequence that starts from its
    state. Outputs are `action_dist_inputs` `[B, T, n]` and `state_out`, the state after the last timestep of the row
    (padding included). Where a column `resets` `[B, T]` is True the layer goes on from the next state in
    `reset_states`, a dict of `[B, most resets of a row, H]`. Spaces and masks of actions are those of
    `DefaultActorCritic`.

    Args:
        **kwargs: The keywords of `RLModule`; `model_config` is a `DefaultModelConfig` or a dict of its fields.

    Raises:
        ConfigError: unknown or wrong options in `model_config`.
        SpaceError: a space that these networks do not take.
        ColumnError: a batch without `state_in`.
    """

    def setup(self) -> None:
        """Build the networks."""
        config = DefaultModelConfig.from_dict(self.model_config)
        self._squash = config.squash_actions
        encode, self._vf_input = group_inputs(self.observation_space, config, with_critic=not self.inference_only)
        self.build_encoder(config, encode)
        self.pi = PolicyHead([], self._cell_size, self.action_space, config)
        self.vf: MLP | None = None
        self.vf_encoder: MLP | None = None
        self.vf_images: nn.ModuleList | None = None
        size, hiddens = self._vf_input.size, config.fcnet_hiddens
        if self._vf_input is not self._input:
            self.vf_images, self.vf_encoder = self._vf_input.cnns(), MLP(*fc_layers(config, "fcnet", size))
        if not self.inference_only:
            extra = 0 if self.vf_encoder is None else hiddens[-1] if hiddens else size
            self.vf = MLP(*fc_layers(config, "head_fcnet", self._cell_size + extra, 1))

    def _make_dist_cls(self) -> type[Distribution]:
        return distribution_for(self.action_space, squash=self._squash)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features, state = self.encode(batch)
        return {**masked_outputs(self.pi(features), batch), Columns.STATE_OUT: state}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features, state = self.encode(batch)
        return {**masked_outputs(self.pi(features), batch), Columns.STATE_OUT: state, Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        if self.vf is None:
            raise needs_training(self, "compute_values")
        if embeddings is None:
            embeddings, _ = self.encode(batch)
        if self.vf_encoder is not None:
            extra = self.vf_encoder(self._vf_input(observations_of(batch), self.vf_images))
            embeddings = torch.cat([embeddings, extra], -1)
        values: torch.Tensor = self.vf(embeddings)
        return values.squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return ["vf", "vf_encoder", "vf_images"]


@final
class DefaultLSTMActorCritic(DefaultRecurrentActorCritic):
    """A `DefaultRecurrentActorCritic` with an LSTM; its state is `{"h": [B, H], "c": [B, H]}`.

    Examples:
        >>> import gymnasium as gym
        >>> module = DefaultLSTMActorCritic(
        ...     observation_space=gym.spaces.Box(-1, 1, (4,)), action_space=gym.spaces.Discrete(2),
        ...     model_config={"lstm_cell_size": 8},
        ... )
        >>> state = {name: leaf.expand(3, -1) for name, leaf in module.get_initial_state().items()}
        >>> out = module.forward_exploration({"obs": torch.zeros(3, 5, 4), "state_in": state})
        >>> out["action_dist_inputs"].shape, out["state_out"]["h"].shape
        (torch.Size([3, 5, 2]), torch.Size([3, 8]))
    """

    layer = LSTM


@final
class DefaultGRUActorCritic(DefaultRecurrentActorCritic):
    """A `DefaultRecurrentActorCritic` with a GRU (Cho et al. 2014, arXiv:1406.1078); its state is `{"h": [B, H]}`.

    Examples:
        >>> import gymnasium as gym
        >>> module = DefaultGRUActorCritic(
        ...     observation_space=gym.spaces.Box(-1, 1, (4,)), action_space=gym.spaces.Discrete(2),
        ...     model_config={"lstm_cell_size": 8},
        ... )
        >>> state = {name: leaf.expand(3, -1) for name, leaf in module.get_initial_state().items()}
        >>> out = module.forward_exploration({"obs": torch.zeros(3, 5, 4), "state_in": state})
        >>> out["action_dist_inputs"].shape, out["state_out"]["h"].shape
        (torch.Size([3, 5, 2]), torch.Size([3, 8]))
    """

    layer = GRU
