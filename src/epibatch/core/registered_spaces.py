"""Users' own classes of spaces: how their values become arrays, and arrays their values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym

from epibatch.core.errors import RegistryError, SpaceError
from epibatch.core.space_dicts import EncodedBox
from epibatch.core.spaces import get_base_struct_from_space, infer_spaces, map_space
from epibatch.core.structs import flatten

__all__ = ["SpaceCodec", "register_space", "registered_spaces"]


class SpaceCodec(NamedTuple):
    """The functions that `register_space` got for a class of spaces."""

    encode: Callable[[Any, Any], Any]
    decode: Callable[[Any, Any], Any] | None = None
    as_space: Callable[[Any], gym.Space[Any]] | None = None
    network: Callable[[Any], Any] | None = None


_codecs: dict[type, SpaceCodec] = {}


def register_space(
    kind: type,
    encode: Callable[[Any, Any], Any],
    decode: Callable[[Any, Any], Any] | None = None,
    network: Callable[[Any], Any] | None = None,
    *,
    as_space: Callable[[Any], gym.Space[Any]] | None = None,
) -> None:
    """Let environments have spaces of a user's own class: `encode` makes arrays of their values.

    Environments of runners then observe and take arrays. Episodes, pieces, networks and checkpoints see the arrays and
    a space of Gymnasium. Subclasses of the class are registered with it.

    Args:
        kind: The class, a subclass of `gymnasium.Space`. One that is registered already is replaced.
        encode: Called with the space and a value. Returns an array or a number, or dicts and tuples of these, of the
            same shapes for all values.
        decode: Called with the space and what `encode` returns. Returns the value, which the space's `contains` accepts
            if its class has one. Needed for actions.
        network: Called with the Box of the arrays. Returns the `torch.nn.Module` by which the default networks encode
            them: from [B, ...] to [B, size]. None: as they encode any Box.
        as_space: Called with the space. Returns the space of the arrays, with the bounds that they have. None: a Box
            without bounds, of the shape and type of an encoded sample.

    Raises:
        RegistryError: `kind` is a class of Gymnasium or no class of spaces, or a function cannot be called.

    Examples:
        >>> class Words(gym.Space):
        ...     words = ("yes", "no")
        ...     def sample(self):
        ...         return "no"
        >>> register_space(Words, lambda space, word: space.words.index(word), lambda space, i: space.words[int(i)],
        ...                as_space=lambda space: gym.spaces.Discrete(2))
        >>> encoded_space(gym.spaces.Dict(word=Words()))
        Dict('word': Discrete(2))
    """
    codec = SpaceCodec(encode, decode, as_space, network)
    is_own = isinstance(kind, type) and issubclass(kind, gym.Space) and not kind.__module__.startswith("gymnasium.")
    wrong = next((name for name, item in codec._asdict().items() if not (callable(item) or item is None)), None)
    if not is_own or wrong or encode is None:
        raise RegistryError(
            "register_space",
            expected="a class of spaces of your own, and functions",
            found=repr(kind) if not is_own else f"{wrong or 'encode'}={codec._asdict()[wrong or 'encode']!r}",
            do="call register_space(MySpace, lambda space, value: np.asarray(value)), say",
        )
    _codecs[kind] = codec


def registered_spaces() -> dict[type, SpaceCodec]:
    """Return the classes given to `register_space`, with their functions."""
    return dict(_codecs)


def register_missing(codecs: Mapping[type, SpaceCodec]) -> None:
    """Register classes that another process registered, unless they are registered here."""
    for kind, codec in codecs.items():
        _codecs.setdefault(kind, codec)


def codec_of(space: Any) -> SpaceCodec | None:
    """Return the functions of a space's class, or of the nearest class that it derives from; None if there are none."""
    kind = _registered_kind(space)
    return None if kind is None else _codecs[kind]


def _registered_kind(space: Any) -> type | None:
    return next((kind for kind in type(space).__mro__ if kind in _codecs), None) if _codecs else None


def has_registered_parts(space: Any) -> bool:
    """True if a space is of a registered class, or has such a part."""
    return bool(_codecs) and any(codec_of(leaf) is not None for leaf in flatten(get_base_struct_from_space(space))[0])


def encoded_space(space: Any) -> Any:
    """Return a space in which those of registered classes are the spaces of their arrays.

    Raises:
        SpaceError: `as_space` returns no space, or no Box though there is a `network`.
    """
    return map_space(_encoded_leaf, space) if has_registered_parts(space) else space


def _encoded_leaf(space: Any) -> Any:
    kind = _registered_kind(space)
    if kind is None:
        return space
    codec = _codecs[kind]
    if codec.as_space is not None:
        made = codec.as_space(space)
    else:
        made = infer_spaces([encoded(space, copy.deepcopy(space).sample())])
    if isinstance(made, gym.spaces.Box) and codec.network is not None:
        return EncodedBox(made, _name(kind))
    if not isinstance(made, gym.Space) or codec.network is not None:
        raise SpaceError(
            f"space {type(space).__name__}, register_space(..., as_space=)",
            expected="a gymnasium Space" if codec.network is None else "a Box, for its network",
            found=repr(made),
            do="return the space of the arrays that encode makes",
        )
    return made


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def network_of(space: EncodedBox) -> Callable[[Any], Any]:
    """Return the function that makes a network for the arrays of a registered space.

    Raises:
        SpaceError: its class is not registered in this process, or without a network.
    """
    codec = next((codec for kind, codec in _codecs.items() if space.encoded_from == _name(kind)), None)
    if codec is None or codec.network is None:
        raise SpaceError(
            "observation space of a default module",
            expected=f"a network for the arrays of {space.encoded_from}",
            found="none that this process registered",
            do="call epibatch.core.registry.register_space(..., network=...) first, as where the module was trained",
        )
    return codec.network


def encoded(space: Any, value: Any) -> Any:
    """Return the arrays of a value of a space, which is the value itself unless its class is registered.

    Raises:
        SpaceError: `encode` failed.
    """
    codec = codec_of(space)
    return value if codec is None else _called("encode", codec.encode, space, value)


def _called(name: str, function: Callable[[Any, Any], Any], space: Any, value: Any) -> Any:
    try:
        return function(space, value)
    except Exception as error:
        raise SpaceError(
            f"{name} of register_space({type(space).__name__}, ...)",
            expected=f"a function of the space and {'a value' if name == 'encode' else 'an array'}",
            found=f"{type(error).__name__}: {error}; for {value!r} and the space {space!r}",
            do=f"correct {name}, or what the environment returns" if name == "encode" else f"correct {name}",
        ) from error


def decoded(space: Any, action: Any) -> Any:
    """Return an action of an environment whose space has parts of registered classes.

    Args:
        space: The environment's action space.
        action: An action in the `encoded_space`.

    Raises:
        SpaceError: a class was registered without `decode`, or `decode` failed or returned no value of the space.
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: decoded(part, action[key]) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(decoded(part, item) for part, item in zip(space.spaces, action))
    codec = codec_of(space)
    if codec is not None and codec.decode is None:
        raise SpaceError(
            f"action space {type(space).__name__}",
            expected="a function that makes its values of arrays",
            found="register_space(...) without decode",
            do="give decode: called with the space and an array, it returns the environment's action",
        )
    if codec is None or codec.decode is None:
        return action
    value = _called("decode", codec.decode, space, action)
    if type(space).contains is not gym.Space.contains and not space.contains(value):
        raise SpaceError(
            f"decode of register_space({type(space).__name__}, ...)",
            expected=f"a value of {space!r}, by its contains",
            found=f"{value!r}, for {action!r}",
            do="correct decode, or contains",
        )
    return value
