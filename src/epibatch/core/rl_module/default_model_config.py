"""The options of the default networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epibatch.core.errors import ConfigError, nearest
from epibatch.core.sequence_ends import SEQUENCE_ENDS

__all__ = ["ACTIVATIONS", "DefaultModelConfig"]

ACTIVATIONS = ("elu", "gelu", "leaky_relu", "linear", "relu", "sigmoid", "silu", "softplus", "swish", "tanh")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "sequence_end": tuple(SEQUENCE_ENDS),
    "conv_channels": ("first", "last", None),
}
_WIDEST, _DEEPEST = 2**20, 1000
"""Units of a layer, and layers, at most: what a config may ask for without running out of memory at once."""
_ELSEWHERE = {
    "fusionnet_": "leave it out; a network of that kind needs an RLModule of your own",
    "lstm_use_prev_": "leave it out; the connector piece PrevActionsPrevRewards puts previous actions and rewards "
    "into the observations",
}


@dataclass
class DefaultModelConfig:
    """How large the default networks are and how they are put together; the field names are RLlib's.

    An initializer is the name of a function in `torch.nn.init` (with or without its trailing underscore)
    or a callable that fills a tensor in place. None means orthogonal weights, with a small policy
    output layer, and zero biases.

    Args:
        fcnet_hiddens: sizes of the encoder's hidden layers; images go through the convolutions first.
        fcnet_activation: activation after each of them, one of `ACTIVATIONS`.
        fcnet_kernel_initializer: initializer of the encoder's weights; `_kwargs` are handed to it.
        fcnet_bias_initializer: initializer of the encoder's biases.
        fcnet_use_layernorm: normalise each encoder layer before its activation.
        conv_filters: convolutions for the images among the observations, that is Boxes with three axes
            [height, width, channels]: a list of `[channels, kernel, stride]` with kernel and stride a number or
            (height, width); every layer is padded to `ceil(side / stride)`. None picks them by the image's size
            (`epibatch.core.rl_module.cnn.default_conv_filters`) and flattens images with a side under 8; `[]`
            flattens all. Images of bytes (uint8) are scaled to [0, 1] in front of them.
        conv_channels: "first" for images [channels, height, width], as the piece `to_chw_float` leaves them; "last" for
            [height, width, channels]. None means the last, and refuses images that look like the other.
        conv_activation: activation after each of them.
        conv_kernel_initializer: initializer of the convolutions' weights.
        conv_bias_initializer: initializer of the convolutions' biases.
        head_fcnet_hiddens: sizes of hidden layers in the policy and in the value head.
        head_fcnet_activation: activation after each of them.
        head_fcnet_kernel_initializer: initializer of the heads' weights, output layers included.
        head_fcnet_bias_initializer: initializer of the heads' biases.
        head_fcnet_use_layernorm: normalise each hidden layer of the heads before its activation.
        squash_actions: for float Boxes with finite bounds, draw actions from a SquashedGaussian, within
            [-1, 1], instead of a DiagGaussian whose actions are clipped on the way to the environment. -1 and 1
            stand for the bounds, so leave `normalize_actions` on.
        free_log_std: for Box actions, learn one log standard deviation per action component that does
            not depend on the observation.
        log_std_clip_param: log standard deviations are clipped to plus or minus this value.
        vf_share_layers: let policy and value function share the encoder; recurrent modules always do.
        use_lstm: put an LSTM behind the encoder.
        use_prev_action: with `use_lstm`, show the LSTM the action before each observation too.
        use_prev_reward: with `use_lstm`, show it the reward before each observation.
        max_seq_len: longest sequence in a training batch of a recurrent module, in timesteps.
        sequence_end: what becomes of a chunk's last, short sequence in a training batch: "pad" with zeros, "drop", let
            it "overlap" the one before, "continue" with the next chunk; "truncate" keeps a chunk's first sequence only.
        burn_in: timesteps in front of each training sequence that are run without gradient, for the state alone; they
            count for `max_seq_len`.
        lstm_cell_size: size of the LSTM's state.
        lstm_kernel_initializer: initializer of the LSTM's weights.
        lstm_bias_initializer: initializer of the LSTM's biases.

    Raises:
        ConfigError: a value is out of range; the message lists all of them.

    Example:
        >>> DefaultModelConfig(fcnet_hiddens=[64, 64]).get("max_seq_len")
        20
    """

    fcnet_hiddens: list[int] = field(default_factory=lambda: [256, 256])
    fcnet_activation: str = "tanh"
    fcnet_kernel_initializer: str | Callable[..., Any] | None = None
    fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    fcnet_bias_initializer: str | Callable[..., Any] | None = None
    fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    fcnet_use_layernorm: bool = False
    conv_filters: list[Any] | None = None
    conv_channels: str | None = None
    conv_activation: str = "relu"
    conv_kernel_initializer: str | Callable[..., Any] | None = None
    conv_kernel_initializer_kwargs: dict[str, Any] | None = None
    conv_bias_initializer: str | Callable[..., Any] | None = None
    conv_bias_initializer_kwargs: dict[str, Any] | None = None
    head_fcnet_hiddens: list[int] = field(default_factory=list)
    head_fcnet_activation: str = "relu"
    head_fcnet_kernel_initializer: str | Callable[..., Any] | None = None
    head_fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    head_fcnet_bias_initializer: str | Callable[..., Any] | None = None
    head_fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    head_fcnet_use_layernorm: bool = False
    squash_actions: bool = False
    free_log_std: bool = False
    log_std_clip_param: float = 20.0
    vf_share_layers: bool = False
    use_lstm: bool = False
    use_prev_action: bool = False
    use_prev_reward: bool = False
    max_seq_len: int = 20
    sequence_end: str = "pad"
    burn_in: int = 0
    lstm_cell_size: int = 256
    lstm_kernel_initializer: str | Callable[..., Any] | None = None
    lstm_kernel_initializer_kwargs: dict[str, Any] | None = None
    lstm_bias_initializer: str | Callable[..., Any] | None = None
    lstm_bias_initializer_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ConfigError("DefaultModelConfig: " + "\n".join(problems))
        self.fcnet_hiddens = list(self.fcnet_hiddens)
        self.head_fcnet_hiddens = list(self.head_fcnet_hiddens)
        if self.conv_filters is not None:
            self.conv_filters = [list(layer) for layer in self.conv_filters]

    @classmethod
    def from_dict(cls, options: Mapping[str, Any] | DefaultModelConfig | None) -> DefaultModelConfig:
        """Build the config from a dict; a config is returned as it is, None gives the defaults.

        Raises:
            ConfigError: unknown keys, with the nearest known ones, or values out of range.

        Example:
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
        known = [spec.name for spec in dataclasses.fields(cls)]
        unknown = [key for key in options if key not in known]
        if unknown:
            raise ConfigError("\n".join(str(_unknown(str(key), known)) for key in unknown))
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        """All options as a dict that `from_dict` takes back."""
        return {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}

    def get(self, key: str, default: Any = None) -> Any:
        """One option by its name, as a dict gives it."""
        return getattr(self, key, default)

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise _unknown(key, [spec.name for spec in dataclasses.fields(self)])
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return any(spec.name == key for spec in dataclasses.fields(self))


def _unknown(key: str, known: list[str]) -> ConfigError:
    do = next((advice for start, advice in _ELSEWHERE.items() if key.startswith(start)), nearest(key, known))
    return ConfigError(f"model_config[{key!r}]", expected="an option of DefaultModelConfig", found=repr(key), do=do)


def _is_int(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_width(value: Any) -> bool:
    return _is_int(value, 1) and int(value) <= _WIDEST


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= _DEEPEST and all(map(fits, value))


def _is_convolution(layer: Any) -> bool:
    if not isinstance(layer, (list, tuple)) or len(layer) != 3 or not _is_width(layer[0]):
        return False
    return all(
        _is_width(size) or (isinstance(size, (list, tuple)) and len(size) == 2 and all(map(_is_width, size)))
        for size in layer[1:]
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _problems(config: DefaultModelConfig) -> list[str]:
    """One sentence per option whose value cannot be used."""
    values = config.to_dict()
    problems: list[str] = []

    def check(name: str, fits: bool, expected: str) -> None:
        if not fits:
            problems.append(
                str(ConfigError(name, expected=expected, found=repr(values[name]), do=f"change model_config[{name!r}]"))
            )

    for name, value in values.items():
        if name.endswith("_hiddens"):
            fits = _is_list(value, _is_width)
            check(name, fits, f"a list of positive integers up to {_WIDEST}, at most {_DEEPEST}")
        elif name == "conv_filters":
            fits = value is None or _is_list(value, _is_convolution)
            check(name, fits, f"None or a list of [channels, kernel, stride] up to {_WIDEST}, at most {_DEEPEST}")
        elif name.endswith("_activation"):
            check(name, value in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}")
        elif name.endswith("_initializer"):
            check(name, value is None or isinstance(value, str) or callable(value), "a name, a callable or None")
        elif name.endswith("_initializer_kwargs"):
            check(name, value is None or isinstance(value, Mapping), "a dict or None")
            initializer = name.removesuffix("_kwargs")
            check(name, not value or values[initializer] is not None, f"none, as there is no {initializer}")
        elif name in _CHOICES:
            check(name, value in _CHOICES[name], f"one of {', '.join(map(str, _CHOICES[name]))}")
        elif name == "burn_in":
            longest = config.max_seq_len if _is_int(config.max_seq_len, 1) else 1
            check(name, _is_int(value, 0) and value < longest, f"an integer from 0 to max_seq_len - 1 = {longest - 1}")
            alone = not value or config.sequence_end not in ("truncate", "continue")
            check(name, alone, f"0 with sequence_end {config.sequence_end!r}")
        elif name in ("max_seq_len", "lstm_cell_size"):
            check(name, _is_width(value), f"a positive integer up to {_WIDEST}")
        elif name == "log_std_clip_param":
            check(name, _is_number(value) and value > 0, "a positive number")
        else:
            check(name, isinstance(value, bool), "True or False")
    for name in ("use_prev_action", "use_prev_reward"):
        check(name, values[name] is not True or config.use_lstm is True, "False without use_lstm")
    return problems
