"""The recurrent encoder of the default modules: an MLP, and an LSTM or a GRU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import MLP, fc_layers, initialize, run
from epibatch.core.rl_module.observation_input import (
    ObservationInput,
    PreviousSteps,
    observations_of,
    previous_step_views,
)
from epibatch.core.rl_module.resets import resetting
from epibatch.core.rl_module.rl_module import TorchRLModule
from epibatch.core.structs import map_struct

States: TypeAlias = tuple[torch.Tensor, ...]
"""The parts of a recurrent layer's state."""


class RecurrentLayer(NamedTuple):
    """A kind of recurrent layer.

    Args:
        name: The attribute of a module that holds the layer, which its parameters are saved under.
        layer_class: Its class in torch.
        state_names: Names of the parts of its state, in torch's order.
        step: One timestep, `(x [B, width], states [B, H] each, weights) -> states`. The layer itself would prepare its
            weights for whole sequences first, at many times the cost.
    """

    name: str
    layer_class: type[nn.LSTM] | type[nn.GRU]
    state_names: tuple[str, ...]
    step: Callable[[torch.Tensor, States, list[torch.Tensor]], States]


def _lstm_step(x: torch.Tensor, states: States, weights: list[torch.Tensor]) -> States:
    return torch.lstm_cell(x, states, *weights)


def _gru_step(x: torch.Tensor, states: States, weights: list[torch.Tensor]) -> States:
    return (torch.gru_cell(x, states[0], *weights),)


LSTM = RecurrentLayer("lstm", nn.LSTM, ("h", "c"), _lstm_step)
GRU = RecurrentLayer("gru", nn.GRU, ("h",), _gru_step)


class DefaultRecurrentModule(TorchRLModule):
    """An MLP (after convolutions for images) and a recurrent layer if there is one, to which subclasses add heads.

    With such a layer a batch holds `obs` `[B, T, ...]` and `state_in`, a dict of `[B, H]`; each row is one sequence
    that starts from its state. Where a column `resets` `[B, T]` is True the layer goes on from the next state in
    `reset_states`, a dict of `[B, most resets of a row, H]`.

    Args:
        **kwargs: The keywords of `RLModule`; `model_config` is a `DefaultModelConfig` or a dict of its fields.

    Raises:
        ConfigError: unknown or wrong options in `model_config`.
        SpaceError: a space that these networks do not take.
        ColumnError: a batch without the `state_in` that it needs.
    """

    layer: ClassVar[RecurrentLayer | None] = None
    """The kind of its recurrent layer; None: as `use_lstm` and `use_gru` of `model_config` say."""

    default_max_seq_len: ClassVar[int | None] = DefaultModelConfig.max_seq_len
    handles_resets: ClassVar[bool] = True

    @classmethod
    def get_view_requirements(cls, model_config: Any) -> dict[str, Any]:
        """`prev_actions` and `prev_rewards`, if `use_prev_action` and `use_prev_reward` say so."""
        return previous_step_views(DefaultModelConfig.from_dict(model_config))

    def build_encoder(self, config: DefaultModelConfig, encode: ObservationInput) -> int:
        """Build the layers up to the recurrent one, or all that `fcnet_` says, and return the number of outputs.

        Args:
            config: The options.
            encode: Makes vectors of observations.
        """
        kind = self._kind = self.layer or (LSTM if config.use_lstm else GRU if config.use_gru else None)
        self._input = encode
        self.images = encode.cnns()
        self._cell_size = config.lstm_cell_size
        self.encoder = MLP(*fc_layers(config, "fcnet", encode.size))
        size = config.fcnet_hiddens[-1] if config.fcnet_hiddens else encode.size
        if kind is None:
            return size
        self._previous = PreviousSteps(self.action_space, config)
        width = size + self._previous.size
        layer = kind.layer_class(width, self._cell_size, batch_first=True)
        setattr(self, kind.name, layer)
        weights = layer.all_weights[0]
        initialize(config, "lstm", weights[:2], weights[2:])
        return self._cell_size

    def get_initial_state(self) -> dict[str, torch.Tensor]:
        """Zeros `[H]` for each part; without a recurrent layer there are none."""
        names = () if self._kind is None else self._kind.state_names
        return {name: torch.zeros(self._cell_size) for name in names}

    def encode(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Features `[B, T, H]` of every timestep and the state after the last one; without a layer `[B, H]` and none.

        Raises:
            ColumnError: the batch does not consist of sequences, or has no `state_in` of this shape.
        """
        kind = self._kind
        if kind is None:
            return run(self.encoder, self._input(observations_of(batch), self.images)), {}
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
        layer, names = getattr(self, kind.name), kind.state_names
        states = tuple([state[name] for name in names])
        if states[0].dim() != 2:
            shapes = ", ".join(f"{name!r}: {list(state[name].shape)}" for name in names)
            do = "give each sequence one state without an axis of layers, as get_initial_state() has it"
            raise self._not_sequences(f"state_in {{{shapes}}}", do)
        if features.shape[1] == 1 and not torch.is_grad_enabled():
            states = kind.step(features[:, 0], states, layer.all_weights[0])
            return states[0].unsqueeze(1), dict(zip(names, states))
        resets = batch.get(Columns.RESETS)
        if resets is not None and bool(resets.any()):
            reset_states = tuple([batch[Columns.RESET_STATES][name] for name in names])
            outputs, last = resetting(layer, features, resets, _packed(states), _packed(reset_states))
            return outputs, dict(zip(names, _unpacked(last)))
        outputs, last = layer(features, _packed(tuple([tensor.unsqueeze(0).contiguous() for tensor in states])))
        return outputs, {name: tensor[0] for name, tensor in zip(names, _unpacked(last))}

    def _not_sequences(self, found: str, do: str) -> ColumnError:
        parts = ", ".join(f"{name!r}: [batch, H]" for name in self.get_initial_state())
        expected = f"obs [batch, time, ...] and state_in {{{parts}}}"
        return ColumnError(type(self).__name__, expected=expected, found=found, do=do)


def _packed(states: States) -> Any:
    """States as torch's layers take them: a layer with one takes no tuple."""
    return states if len(states) > 1 else states[0]


def _unpacked(states: Any) -> States:
    return states if isinstance(states, tuple) else (states,)
