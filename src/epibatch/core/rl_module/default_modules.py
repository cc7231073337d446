"""The default networks: for policies without memory, and with an LSTM or a GRU."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, TypeAlias, final

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from epibatch.core.columns import Columns
from epibatch.core.distributions.choosing import distribution_for
from epibatch.core.distributions.distribution import Distribution
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import (
    MLP,
    PolicyHead,
    fc_layers,
    initialize,
    masked_outputs,
    no_value_function,
    run,
)
from epibatch.core.rl_module.observation_input import (
    PreviousSteps,
    group_inputs,
    observations_of,
    previous_step_views,
)
from epibatch.core.rl_module.resets import resetting
from epibatch.core.rl_module.rl_module import TorchRLModule, ValueFunctionAPI
from epibatch.core.structs import map_struct


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
            raise no_value_function(self)
        if embeddings is None:
            if self.encoder is None:
                embeddings = self._vf_input(observations_of(batch), self.vf_images)
            else:
                embeddings = self.encoder(self._input(observations_of(batch), self.images))
        return run(self.vf, embeddings).squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return ["vf", "vf_images"]


States: TypeAlias = tuple[torch.Tensor, ...]
"""The parts of a recurrent layer's state."""


class DefaultRecurrentActorCritic(TorchRLModule, ValueFunctionAPI):
    """An MLP (after convolutions for images) and a recurrent layer that policy and value function share, and a head
    for each; `DefaultLSTMActorCritic` and `DefaultGRUActorCritic` choose the layer.

    A batch holds `obs` `[B, T, ...]` and `state_in`, a dict of `[B, H]`; each row is one sequence that starts from its
    state. Outputs are `action_dist_inputs` `[B, T, n]` and `state_out`, the state after the last timestep of the row
    (padding included). Where a column `resets` `[B, T]` is True the layer goes on from the next state in
    `reset_states`, a dict of `[B, most resets of a row, H]`. Spaces and masks of actions are those of
    `DefaultActorCritic`.

    Args:
        **kwargs: the keywords of `RLModule`; `model_config` is a `DefaultModelConfig` or a dict of its fields.

    Raises:
        ConfigError: unknown or wrong options in `model_config`.
        SpaceError: a space that these networks do not take.
        ColumnError: a batch without `state_in`.
    """

    layer_class: ClassVar[type[nn.LSTM] | type[nn.GRU]]
    layer_name: ClassVar[str]
    """The attribute that holds the layer, which its parameters are saved under."""
    state_names: ClassVar[tuple[str, ...]]
    """Names of the parts of the state, in torch's order."""

    default_max_seq_len: ClassVar[int | None] = DefaultModelConfig.max_seq_len
    handles_resets: ClassVar[bool] = True

    @classmethod
    def get_view_requirements(cls, model_config: Any) -> dict[str, Any]:
        """`prev_actions` and `prev_rewards`, if `use_prev_action` and `use_prev_reward` say so."""
        return previous_step_views(DefaultModelConfig.from_dict(model_config))

    def setup(self) -> None:
        """Build the networks."""
        config = DefaultModelConfig.from_dict(self.model_config)
        self._squash = config.squash_actions
        self._input, self._vf_input = group_inputs(self.observation_space, config, with_critic=not self.inference_only)
        self.images = self._input.cnns()
        size, hiddens = self._input.size, config.fcnet_hiddens
        self._cell_size = config.lstm_cell_size
        self.encoder = MLP(*fc_layers(config, "fcnet", size))
        self._previous = PreviousSteps(self.action_space, config)
        width = (hiddens[-1] if hiddens else size) + self._previous.size
        layer = self.layer_class(width, self._cell_size, batch_first=True)
        setattr(self, self.layer_name, layer)
        weights = layer.all_weights[0]
        initialize(config, "lstm", weights[:2], weights[2:])
        self.pi = PolicyHead([], self._cell_size, self.action_space, config)
        self.vf: MLP | None = None
        self.vf_encoder: MLP | None = None
        self.vf_images: nn.ModuleList | None = None
        if self._vf_input is not self._input:
            size = self._vf_input.size
            self.vf_images, self.vf_encoder = self._vf_input.cnns(), MLP(*fc_layers(config, "fcnet", size))
        if not self.inference_only:
            extra = 0 if self.vf_encoder is None else hiddens[-1] if hiddens else size
            self.vf = MLP(*fc_layers(config, "head_fcnet", self._cell_size + extra, 1))

    def _make_dist_cls(self) -> type[Distribution]:
        return distribution_for(self.action_space, squash=self._squash)

    def get_initial_state(self) -> dict[str, torch.Tensor]:
        """Zeros `[H]` for each part."""
        return {name: torch.zeros(self._cell_size) for name in self.state_names}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features, state = self._encode(batch)
        return {**masked_outputs(self.pi(features), batch), Columns.STATE_OUT: state}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features, state = self._encode(batch)
        return {**masked_outputs(self.pi(features), batch), Columns.STATE_OUT: state, Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        if self.vf is None:
            raise no_value_function(self)
        if embeddings is None:
            embeddings, _ = self._encode(batch)
        if self.vf_encoder is not None:
            extra = self.vf_encoder(self._vf_input(observations_of(batch), self.vf_images))
            embeddings = torch.cat([embeddings, extra], -1)
        values: torch.Tensor = self.vf(embeddings)
        return values.squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return ["vf", "vf_encoder", "vf_images"]

    def _encode(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Features `[B, T, H]` of every timestep and the state after the last one."""
        if isinstance(batch.get(Columns.OBS), PackedSequence):
            raise self._not_sequences("a PackedSequence", "take PackSequences out of the learner pipeline")
        features = self.encoder(self._input(observations_of(batch), self.images))
        state = batch.get(Columns.STATE_IN)
        if state is None or features.dim() != 3:
            obs = map_struct(lambda leaf: tuple(leaf.shape), batch[Columns.OBS])
            raise self._not_sequences(
                f"obs {obs} and columns {', '.join(map(str, batch))}",
                "let AddTimeDimToBatchAndZeroPad and AddStatesFromEpisodesToBatch run before the module, as the "
                "default pipelines do, and no JaggedSequences; or take sequences() of a RolloutStorage, not batch(), "
                "and give single steps a time axis: obs[:, None]",
            )
        if self._previous.size:
            features = torch.cat([features, self._previous(batch)], -1)
        layer, names = getattr(self, self.layer_name), self.state_names
        states = tuple([state[name] for name in names])
        if features.shape[1] == 1 and not torch.is_grad_enabled():
            states = self._step(features[:, 0], states, layer.all_weights[0])
            return states[0].unsqueeze(1), dict(zip(names, states))
        resets = batch.get(Columns.RESETS)
        if resets is not None and bool(resets.any()):
            reset_states = tuple([batch[Columns.RESET_STATES][name] for name in names])
            outputs, last = resetting(layer, features, resets, _packed(states), _packed(reset_states))
            return outputs, dict(zip(names, _unpacked(last)))
        outputs, last = layer(features, _packed(tuple([tensor.unsqueeze(0).contiguous() for tensor in states])))
        return outputs, {name: tensor[0] for name, tensor in zip(names, _unpacked(last))}

    @abstractmethod
    def _step(self, x: torch.Tensor, states: States, weights: list[torch.Tensor]) -> States:
        """One timestep; the layer would prepare its weights for whole sequences first, at many times the cost.

        Args:
            x: [B, width].
            states: [B, H] each, as `state_names` has them.
            weights: the layer's.
        """

    def _not_sequences(self, found: str, do: str) -> ColumnError:
        parts = ", ".join(f"{name!r}: [batch, H]" for name in self.state_names)
        expected = f"obs [batch, time, ...] and state_in {{{parts}}}"
        return ColumnError(type(self).__name__, expected=expected, found=found, do=do)


def _packed(states: States) -> Any:
    """States as torch's layers take them: a layer with one takes no tuple."""
    return states if len(states) > 1 else states[0]


def _unpacked(states: Any) -> States:
    return states if isinstance(states, tuple) else (states,)


@final
class DefaultLSTMActorCritic(DefaultRecurrentActorCritic):
    """A `DefaultRecurrentActorCritic` with an LSTM; its state is `{"h": [B, H], "c": [B, H]}`.

    Example:
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

    layer_class = nn.LSTM
    layer_name = "lstm"
    state_names = ("h", "c")

    def _step(self, x: torch.Tensor, states: States, weights: list[torch.Tensor]) -> States:
        return torch.lstm_cell(x, states, *weights)


@final
class DefaultGRUActorCritic(DefaultRecurrentActorCritic):
    """A `DefaultRecurrentActorCritic` with a GRU (Cho et al. 2014, arXiv:1406.1078); its state is `{"h": [B, H]}`.

    Example:
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

    layer_class = nn.GRU
    layer_name = "gru"
    state_names = ("h",)

    def _step(self, x: torch.Tensor, states: States, weights: list[torch.Tensor]) -> States:
        return (torch.gru_cell(x, states[0], *weights),)
