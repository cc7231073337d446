"""The options of the default networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.dataclasses import dataclass

from epibatch.core.errors import ConfigError, nearest
from epibatch.core.sequence_ends import SEQUENCE_ENDS, SequenceEnd
from epibatch.core.settings import PLAIN, Expected, expect, reported

_WIDEST, _DEEPEST = 2**20, 1000
"""Units of a layer, and layers, at most: what a config may ask for without running out of memory at once."""


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else list(value) if isinstance(value, tuple) else value


def _channels_first(layer: list[Any]) -> list[Any]:
    if not isinstance(layer[0], int):
        raise ValueError("the first of a layer's numbers must be its channels")
    return layer


def _with_initializer(value: Any, info: ValidationInfo) -> Any:
    initializer = str(info.field_name).removesuffix("_kwargs")
    expect(not value or info.data.get(initializer, "wrong") is not None, f"none, as there is no {initializer}")
    return value


def _with_lstm(value: bool, info: ValidationInfo) -> bool:
    recurrent = info.data.get("use_lstm") is True or info.data.get("use_gru") is True
    expect(not value or recurrent, "False without use_lstm or use_gru")
    return value


def _without_lstm(value: bool, info: ValidationInfo) -> bool:
    expect(not value or info.data.get("use_lstm") is not True, "False with use_lstm")
    return value


def _burn_in(value: int, info: ValidationInfo) -> int:
    longest, end = info.data.get("max_seq_len", 1), info.data.get("sequence_end")
    expect(0 <= value < longest, f"an integer from 0 to max_seq_len - 1 = {longest - 1}")
    expect(not value or end not in ("truncate", "continue"), f"0 with sequence_end {end!r}")
    return value


def _above_v_min(value: float, info: ValidationInfo) -> float:
    expect(value > info.data.get("v_min", -float("inf")), "a number above v_min")
    return value


_ACTOR = "actor", "policy", "student"


def _networks(groups: dict[str, list[str]] | None) -> dict[str, list[str]] | None:
    """The groups with `actor` for `policy` and `student`."""
    if groups is None:
        return None
    expected = "lists for the networks actor (or policy, student) and critic, and for teacher and rnd_state"
    expect(groups.keys() <= {*_ACTOR, "critic", "teacher", "rnd_state"}, expected)
    actors = [names for network, names in groups.items() if network in _ACTOR]
    expect(actors[1:] == actors[:-1], "one list for actor, policy and student, which are names of one network")
    return {"actor" if network in _ACTOR else network: names for network, names in groups.items()}


_Activation = Literal["elu", "gelu", "leaky_relu", "linear", "relu", "sigmoid", "silu", "softplus", "swish", "tanh"]
ACTIVATIONS: tuple[str, ...] = get_args(_Activation)

_Width = Annotated[int, Field(ge=1, le=_WIDEST), PLAIN]
_Side = _Width | Annotated[list[_Width], Field(min_length=2, max_length=2), BeforeValidator(_listed)]
_Layer = Annotated[
    list[_Side], Field(min_length=3, max_length=3), BeforeValidator(_listed), AfterValidator(_channels_first)
]

Activation = Annotated[_Activation, Expected(f"one of {', '.join(ACTIVATIONS)}")]
Switch = Annotated[bool, PLAIN, Expected("True or False")]
SwitchOfLSTM = Annotated[Switch, AfterValidator(_with_lstm)]
Size = Annotated[_Width, Expected(f"a positive integer up to {_WIDEST}")]
Sizes = Annotated[
    list[_Width],
    Field(max_length=_DEEPEST),
    BeforeValidator(_listed),
    Expected(f"a list of positive integers up to {_WIDEST}, at most {_DEEPEST}"),
]
Filters = Annotated[
    Annotated[list[_Layer], Field(max_length=_DEEPEST), BeforeValidator(_listed)] | None,
    Expected(f"None or a list of [channels, kernel, stride] up to {_WIDEST}, at most {_DEEPEST}"),
]
Groups = Annotated[
    dict[str, Annotated[list[str], Field(min_length=1), BeforeValidator(_listed)]] | None,
    AfterValidator(_networks),
    Expected('None or lists of names, {"actor": [...], "critic": [...]}'),
]
Initializer = Annotated[str | Callable[..., Any] | None, Expected("a name, a callable or None")]
Keywords = Annotated[dict[str, Any] | None, AfterValidator(_with_initializer), Expected("a dict or None")]

_ELSEWHERE = {
    "fusionnet_": "leave it out; a network of that kind needs an RLModule of your own",
    "lstm_use_prev_": "leave it out; the connector piece PrevActionsPrevRewards puts previous actions and rewards "
    "into the observations",
}


def _error(name: str, expected: str, value: Any) -> ConfigError:
    if not expected:
        return _unknown(name)
    return ConfigError(name, expected=expected, found=repr(value), do=f"change model_config[{name!r}]")


@reported(_error, "DefaultModelConfig: ")
@dataclass(config=ConfigDict(strict=True, extra="forbid"))
class DefaultModelConfig:
    """Size and structure of the default networks; the field names are RLlib's.

    An initializer is the name of a function in `torch.nn.init` (with or without its trailing underscore)
    or a callable that fills a tensor in place. None means orthogonal weights, with a small policy
    output layer, and zero biases.

    Args:
        fcnet_hiddens: Sizes of the encoder's hidden layers; images go through the convolutions first.
        fcnet_activation: Activation after each of them, one of `ACTIVATIONS`.
        fcnet_kernel_initializer: Initializer of the encoder's weights; `_kwargs` are passed to it.
        fcnet_bias_initializer: Initializer of the encoder's biases.
        fcnet_use_layernorm: Normalise each encoder layer before its activation.
        conv_filters: Convolutions for the images among the observations, that is Boxes with three axes
            [height, width, channels]: a list of `[channels, kernel, stride]` with kernel and stride a number or
            (height, width); every layer is padded to `ceil(side / stride)`. None picks them by the image's size
            (`epibatch.core.rl_module.networks.default_conv_filters`) and flattens images with a side under 8; `[]`
            flattens all. Images of bytes (uint8) are scaled to [0, 1] before them.
        conv_channels: "first" for images [channels, height, width], as the piece `to_chw_float` leaves them; "last" for
            [height, width, channels]. None means the last, and refuses images that look like the other.
        conv_activation: Activation after each of them.
        conv_kernel_initializer: Initializer of the convolutions' weights.
        conv_bias_initializer: Initializer of the convolutions' biases.
        head_fcnet_hiddens: Sizes of hidden layers in the policy and in the value head.
        head_fcnet_activation: Activation after each of them.
        head_fcnet_kernel_initializer: Initializer of the heads' weights, output layers included.
        head_fcnet_bias_initializer: Initializer of the heads' biases.
        head_fcnet_use_layernorm: Normalise each hidden layer of the heads before its activation.
        squash_actions: For float Boxes with finite bounds, draw actions from a SquashedGaussian, within
            [-1, 1], instead of a DiagGaussian whose actions are clipped on the way to the environment. -1 and 1
            stand for the bounds, so leave `normalize_actions` on.
        free_log_std: For Box actions, learn one log standard deviation per action component that does
            not depend on the observation.
        log_std_clip_param: Log standard deviations are clipped to plus or minus this value.
        dueling: Of a network with the value of each action, add up the value of the observation and the advantage of
            the action (Wang et al. 2016).
        num_atoms: Of such a network, learn the distribution of each action's return over so many values, as C51 does;
            1 learns its mean only.
        v_min: The lowest of these values.
        v_max: The highest.
        noisy: Of such a network, add learned noise to the weights of the heads while exploring and learning, in the
            place of random actions (Fortunato et al. 2018).
        sigma0: Scale of that noise at first.
        num_critics: Critics beside the policy of SAC.
        vf_share_layers: Let policy and value function share the encoder; recurrent modules always do.
        obs_groups: The parts of a Dict observation that each network gets, joined in this order, as in rsl_rl:
            `{"actor": ["policy"], "critic": ["policy", "critic"]}`. "policy" and "student" are other names of "actor";
            parts of "teacher" and "rnd_state" are checked, and read by no default network. Without "actor" the actor
            gets the part `actor`, else `policy`. Without "critic" the critic gets the actor's parts; so it does, with a
            warning, if it asks for a part `critic` that observations do not have. A recurrent module joins the critic's
            encoded parts to the output of the recurrent layer, which sees the actor's. None: both get all parts, by
            sorted key.
        use_lstm: Put an LSTM after the encoder.
        use_gru: Put a GRU there instead, with the options that begin with `lstm_`.
        use_prev_action: With `use_lstm` or `use_gru`, the action before each observation is an input of that layer.
        use_prev_reward: With one of them, the reward before each observation is an input of that layer.
        max_seq_len: Longest sequence in a training batch of a recurrent module, in timesteps.
        sequence_end: Handling of a chunk's last, short sequence in a training batch: "pad" with zeros, "drop",
            "overlap" the one before, "continue" with the next chunk; "truncate" keeps a chunk's first sequence only.
        burn_in: Timesteps before each training sequence that are run without gradient, only to compute the state;
            they count for `max_seq_len`.
        lstm_cell_size: Size of the LSTM's state.
        lstm_kernel_initializer: Initializer of the LSTM's weights.
        lstm_bias_initializer: Initializer of the LSTM's biases.

    Raises:
        ConfigError: a value is out of range; the message lists all of them.

    Examples:
        >>> DefaultModelConfig(fcnet_hiddens=[64, 64]).get("max_seq_len")
        20
    """

    fcnet_hiddens: Sizes = field(default_factory=lambda: [256, 256])
    fcnet_activation: Activation = "tanh"
    fcnet_kernel_initializer: Initializer = None
    fcnet_kernel_initializer_kwargs: Keywords = None
    fcnet_bias_initializer: Initializer = None
    fcnet_bias_initializer_kwargs: Keywords = None
    fcnet_use_layernorm: Switch = False
    conv_filters: Filters = None
    conv_channels: Annotated[Literal["first", "last"] | None, Expected("one of first, last, None")] = None
    conv_activation: Activation = "relu"
    conv_kernel_initializer: Initializer = None
    conv_kernel_initializer_kwargs: Keywords = None
    conv_bias_initializer: Initializer = None
    conv_bias_initializer_kwargs: Keywords = None
    head_fcnet_hiddens: Sizes = field(default_factory=list)
    head_fcnet_activation: Activation = "relu"
    head_fcnet_kernel_initializer: Initializer = None
    head_fcnet_kernel_initializer_kwargs: Keywords = None
    head_fcnet_bias_initializer: Initializer = None
    head_fcnet_bias_initializer_kwargs: Keywords = None
    head_fcnet_use_layernorm: Switch = False
    squash_actions: Switch = False
    free_log_std: Switch = False
    log_std_clip_param: Annotated[float, Field(gt=0), PLAIN, Expected("a positive number")] = 20.0
    dueling: Switch = False
    num_atoms: Size = 1
    v_min: Annotated[float, PLAIN, Expected("a number")] = -10.0
    v_max: Annotated[float, PLAIN, AfterValidator(_above_v_min), Expected("a number above v_min")] = 10.0
    noisy: Switch = False
    sigma0: Annotated[float, Field(gt=0), PLAIN, Expected("a positive number")] = 0.5
    num_critics: Size = 2
    vf_share_layers: Switch = False
    obs_groups: Groups = None
    use_lstm: Switch = False
    use_gru: Annotated[Switch, AfterValidator(_without_lstm)] = False
    use_prev_action: SwitchOfLSTM = False
    use_prev_reward: SwitchOfLSTM = False
    max_seq_len: Size = 20
    sequence_end: Annotated[SequenceEnd, Expected("one of " + ", ".join(SEQUENCE_ENDS))] = "pad"
    burn_in: Annotated[int, PLAIN, AfterValidator(_burn_in), Expected("an integer from 0 to max_seq_len - 1")] = 0
    lstm_cell_size: Size = 256
    lstm_kernel_initializer: Initializer = None
    lstm_kernel_initializer_kwargs: Keywords = None
    lstm_bias_initializer: Initializer = None
    lstm_bias_initializer_kwargs: Keywords = None

    @classmethod
    def from_dict(cls, options: Mapping[str, Any] | DefaultModelConfig | None) -> DefaultModelConfig:
        """Build the config from a dict; a config is returned as it is, None gives the defaults.

        Raises:
            ConfigError: unknown keys, with the nearest known ones, or values out of range.

        Examples:
            >>> DefaultModelConfig.from_dict({"use_lstm": True}).lstm_cell_size
            256
        """
        if isinstance(options, cls):
            return options
        options = options or {}
        if not isinstance(options, Mapping):
            raise ConfigError(
                "model_config",
                expected="a dict or a DefaultModelConfig",
                found=type(options).__name__,
                do="pass model_config={'fcnet_hiddens': [64, 64]}, for example",
            )
        return cls(**{str(key): value for key, value in options.items()})

    def to_dict(self) -> dict[str, Any]:
        """All options as a dict that `from_dict` takes back."""
        return {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}

    def get(self, key: str, default: Any = None) -> Any:
        """One option by its name, as a dict gives it."""
        return getattr(self, key, default)

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise _unknown(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return any(spec.name == key for spec in dataclasses.fields(self))


def _unknown(key: str) -> ConfigError:
    options = [spec.name for spec in dataclasses.fields(DefaultModelConfig)]
    do = next((advice for start, advice in _ELSEWHERE.items() if key.startswith(start)), nearest(key, options))
    return ConfigError(f"model_config[{key!r}]", expected="an option of DefaultModelConfig", found=repr(key), do=do)
