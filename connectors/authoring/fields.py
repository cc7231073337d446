"""Constructors of pieces: the annotated attributes of a class are its keywords."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
from collections.abc import Mapping
from operator import attrgetter
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym

from epibatch.core.errors import ConfigError, PieceError
from epibatch.core.piece_arguments import wrong_values

from ...episodes.arrays import same_value
from ..connector_v2 import ConnectorV2

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


_SPACES = ("input_observation_space", "input_action_space")


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class _TypedPiece(ConnectorV2):
    """Marks classes with constructors made of annotated attributes, for type checkers and editors."""


class FieldPiece(_TypedPiece):
    """A piece with a constructor that takes the two spaces, then the annotated attributes of its class as keywords.

    An attribute's value is its default; without one it must be given. Values are checked against numbers, strings,
    booleans, None, literals and unions of these. A default that can be changed is written
    `dataclasses.field(default_factory=list)`. `__post_init__` is called when all are set, and the spaces are set after
    it. `ClassVar` attributes, those without annotation and those with an underscore are no parameters. The mechanism is
    that of `dataclasses`. A class that writes `__init__` does without it, and so do its subclasses.

    Args:
        input_observation_space: Space of the observations that come in.
        input_action_space: Space of the actions that come in.
        **parameters: The parameters of the class.

    Raises:
        PieceError: a parameter that is not given and has no default, one that is not known, or one without its name.
        ConfigError: a value of another type than its annotation.
    """

    _is_base: ClassVar[bool] = False
    """True for a class whose own annotated attributes are no parameters; its subclasses' are."""
    brings_state: ClassVar[tuple[str, ...]] = ()
    """Parameters that say what the state is: it is not kept when one of them changes in a pipeline."""
    if TYPE_CHECKING:
        input_observation_space: gym.Space[Any] | None = dataclasses.field(default=None, kw_only=False)
        input_action_space: gym.Space[Any] | None = dataclasses.field(default=None, kw_only=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
        if vars(cls).get("_is_base") or not (owner is FieldPiece or is_made_of_fields(owner)):
            return
        _refuse_shared_defaults(cls)
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        **parameters: Any,
    ) -> None:
        cls = type(self)
        fields = fields_of(cls)
        _check_spaces(cls, input_observation_space, input_action_space)
        missing = [name for name, field in fields.items() if name not in parameters and must_be_given(field)]
        if missing:
            raise PieceError(
                f"{cls.__name__}(...)",
                expected=f"the parameter{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
                found=", ".join(parameters) or "no parameters",
                do=f"pass {missing[0]}=..., or give it a default in the class",
            )
        for name in parameters.keys() - fields.keys():  # of a subclass that passes its keywords on
            raise TypeError(f"{cls.__name__}.__init__() got an unexpected keyword argument {name!r}")
        check_values(cls, parameters, f"{cls.__name__}.")
        for field in dataclasses.fields(cls):
            if field.name in parameters:
                setattr(self, field.name, parameters[field.name])
            elif field.name not in vars(self) and not must_be_given(field) and not _is_property(cls, field.name):
                setattr(self, field.name, default_of(field, cls))
        self.__post_init__()
        self._prepare()
        super().__init__(input_observation_space, input_action_space)
        self.spaces_by_agent = self._ctor[1].get("multi_agent") is True

    def __setattr__(self, name: str, value: Any) -> None:
        if self.in_pipeline is None or name[0] == "_":
            object.__setattr__(self, name, value)
        elif name not in (fields := getattr(type(self), "__dataclass_fields__", {})):
            if not hasattr(self, name) and not _is_set_by(self, sys._getframe(1)):
                _refuse_misspelt(self, name, fields)
            object.__setattr__(self, name, value)
        elif name == "as_learner_connector" or not type(self).__module__.startswith("epibatch."):
            object.__setattr__(self, name, value)
        elif name in fields_of(type(self)):
            self._change(name, value)
        else:
            object.__setattr__(self, name, value)

    def _change(self, name: str, value: Any) -> None:
        """Be as if built with another parameter, with the same state, and let the pipeline check itself again."""
        pipeline: Any = self.in_pipeline and self.in_pipeline()
        parameters = {field: getattr(self, field) for field in fields_of(type(self))}
        attributes, before, state = vars(self), dict(vars(self)), self.get_state()
        fresh = vars(type(self)(**{**parameters, name: value}))
        attributes.clear()
        attributes.update(before | fresh | {key: before[key] for key in _OF_PIPELINES if key in before})
        attributes.pop("_parts", None)  # copies for agents, which have the parameters before
        try:
            if self.trains is not None:
                self.take_side(self.trains)
            if state and name not in self.brings_state:
                self.set_state(state)
            _refuse_learned(self, name, fresh[name])
            if pipeline is not None:
                pipeline.rebuild()
        except Exception:
            attributes.clear()
            attributes.update(before)
            if pipeline is not None:
                pipeline.rebuild()
            raise

    def __post_init__(self) -> None:
        """Check the parameters, and make of them what the piece needs; they are set, the spaces are not."""

    def _prepare(self) -> None:
        """Prepare the piece once the parameters are set and checked; for base classes."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        if not is_made_of_fields(type(self)):
            return same_value(self._ctor, other._ctor)
        return all(same_value(getattr(self, name), getattr(other, name)) for name in fields_of(type(self)))

    __hash__ = object.__hash__  # parameters may change


_OF_PIPELINES = ("_input_spaces", "spaces_by_agent", "frozen", "shared", "trains", "in_pipeline")
"""Attributes of a piece that do not follow from its parameters."""


def _is_set_by(piece: FieldPiece, frame: FrameType) -> bool:
    """Return True if a frame is that of one of the piece's own methods, which may keep what they like."""
    names = frame.f_code.co_varnames[:1]
    return bool(names) and frame.f_locals.get(names[0]) is piece


def _refuse_learned(piece: FieldPiece, name: str, value: Any) -> None:
    """Refuse another value of a parameter that the piece has learned, which its state gives back."""
    if not same_value(getattr(piece, name), value):
        raise PieceError(
            f"{type(piece).__name__}.{name}",
            expected="a parameter that is not part of what the piece has learned",
            found=f"{value!r}, in the place of a learned value",
            do="give it another state with set_state, or make a new piece",
        )


def _refuse_misspelt(piece: FieldPiece, name: str, fields: Mapping[str, Any]) -> None:
    """Refuse a new attribute of a piece in a pipeline that is called almost as a parameter."""
    close = difflib.get_close_matches(name, fields, n=1, cutoff=0.8)
    if close:
        where = f"{type(piece).__name__}.{name}"
        expected = f"a parameter, one of {', '.join(fields_of(type(piece)))}"
        raise PieceError(where, expected=expected, found=name, do=f"write {close[0]}")


def check_values(cls: type[FieldPiece], values: Mapping[str, Any], where: str) -> None:
    """Refuse values of another type than the annotations of a class say, or outside of their bounds.

    Raises:
        ConfigError: there is one.
    """
    for name, (expected, found) in wrong_values(cls, values).items():
        raise ConfigError(f"{where}{name}", expected=expected, found=found, do=f"give {name} such a value")


def is_made_of_fields(cls: type) -> bool:
    """True if the constructor of a class takes its annotated attributes; False if it is written."""
    return "__dataclass_fields__" in vars(cls)


def fields_of(cls: type[FieldPiece]) -> dict[str, dataclasses.Field[Any]]:
    """The parameters of a class by name, those that a base class has for all at the end."""
    fields = sorted(dataclasses.fields(cls), key=attrgetter("repr"), reverse=True)
    fields = [field for field in fields if field.init and not _is_property(cls, field.name)]
    return {field.name: field for field in fields if not field.name.startswith("_")}


def _is_property(cls: type[FieldPiece], name: str) -> bool:
    """Return True if a class computes what a base class has as a parameter."""
    return isinstance(getattr(cls, name, None), property)


def must_be_given(field: dataclasses.Field[Any]) -> bool:
    """True if a parameter has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def default_of(field: dataclasses.Field[Any], cls: type[FieldPiece]) -> Any:
    """The default of a parameter that has one: a subclass may set another by an attribute without annotation."""
    factory = field.default_factory
    return getattr(cls, field.name, field.default) if factory is dataclasses.MISSING else factory()


def _refuse_shared_defaults(cls: type[FieldPiece]) -> None:
    """Refuse a default that all pieces of the class would have in common, and change together."""
    for name, annotation in inspect.get_annotations(cls).items():
        value = cls.__dict__.get(name)
        if "ClassVar" not in str(annotation) and getattr(type(value), "__hash__", None) is None:
            is_empty = isinstance(value, (list, dict, set)) and not value
            factory = f"dataclasses.field(default_factory={type(value).__name__ if is_empty else f'lambda: {value!r}'})"
            do = f"write {name} = {factory}" + (f", or a tuple, {tuple(value)!r}" if isinstance(value, list) else "")
            raise PieceError(
                f"{cls.__name__}.{name}",
                expected="a default that cannot be changed, or a function that makes one for each piece",
                found=f"{type(value).__name__} {value!r}, one for all pieces",
                do=do,
            )


def _constructor(cls: type[FieldPiece]) -> Any:
    """The constructor of one class. Its signature lists the parameters."""

    def __init__(
        self: Any, input_observation_space: Any = None, input_action_space: Any = None, **parameters: Any
    ) -> None:
        FieldPiece.__init__(self, input_observation_space, input_action_space, **parameters)

    kind, fields = inspect.Parameter, fields_of(cls)
    spaces = list(inspect.signature(__init__).parameters.values())[:3]
    keywords = [
        kind(name, kind.KEYWORD_ONLY, default=kind.empty if must_be_given(field) else default_of(field, cls))
        for name, field in fields.items()
    ]
    __init__.__signature__ = inspect.Signature([*spaces, *keywords])  # type: ignore[attr-defined]
    __init__.__annotations__ = _hints(cls)
    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    return __init__


def _hints(cls: type[FieldPiece]) -> dict[str, Any]:
    """Parameter -> its type, as far as the annotations can be read where they were written."""
    hints: dict[str, Any] = {}
    fields = fields_of(cls)
    for owner in reversed(cls.__mro__):
        annotations = inspect.get_annotations(owner)
        for name in filter(annotations.__contains__, fields):
            hints[name] = annotations[name]
            if isinstance(hints[name], str):
                try:
                    hints[name] = eval(hints[name], vars(sys.modules[owner.__module__]), dict(vars(owner)))
                except Exception:  # a name that exists only for type checkers
                    hints[name] = Any
    return hints


def _check_spaces(cls: type[FieldPiece], *spaces: Any) -> None:
    """Refuse a parameter that was given without its name, and so landed where a space belongs."""
    for name, space in zip(_SPACES, spaces):
        if space is not None and not isinstance(space, gym.Space):
            fields = fields_of(cls)
            fits = [name for name, at in fields.items() if must_be_given(at) or type(at.default) is type(space)]
            parameter = next(iter([*fits, *fields]), "parameter")
            raise PieceError(
                f"{cls.__name__}(...), {name}",
                expected="a gymnasium space",
                found=f"{type(space).__name__} {space!r}",
                do=f"give parameters by name: {cls.__name__}({parameter}={space!r})",
            )


class ParameterPiece(FieldPiece):
    """A piece with constructor, repr and data form made from the annotated attributes of its class.

    Each annotated attribute is a keyword of the constructor, with the attribute's value as default; without one it must
    be given. Values are checked against numbers, strings, booleans, None, literals and unions of these, and kept as
    they are. A default that can be changed is written `dataclasses.field(default_factory=list)`. `__post_init__` is
    called when all are set, and the spaces are set after it. `ClassVar` attributes and those without annotation are
    no parameters. The mechanism is that of `dataclasses`; a class that writes `__init__` does without it, and so do
    its subclasses: arguments are kept as they were given.

    Args:
        **parameters: The parameters of the class.

    Raises:
        PieceError: a parameter that is not given and has no default, one that is not known, or one without its name.
        ConfigError: a value of another type than its annotation.

    Examples:
        >>> class Above(ParameterPiece):
        ...     threshold: float
        ...     strict: bool = True
        ...     def __call__(self, *, rl_module, batch, episodes, **kwargs):
        ...         return batch
        >>> Above(threshold=0.5)
        Above(threshold=0.5, strict=True)
        >>> Above(threshold=1) == Above(threshold=1.0)
        True
    """

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """No positional arguments, and the parameters that are not what they are by default."""
        if not is_made_of_fields(type(self)):
            return super().get_ctor_args_and_kwargs()
        return (), {
            name: getattr(self, name)
            for name, field in fields_of(type(self)).items()
            if must_be_given(field) or not same_value(getattr(self, name), default_of(field, type(self)))
        }

    def __repr__(self) -> str:
        if not is_made_of_fields(type(self)):
            return super().__repr__()
        changed = self.get_ctor_args_and_kwargs()[1]
        names = [name for name, field in fields_of(type(self)).items() if field.repr or name in changed]
        parameters = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({parameters})"
