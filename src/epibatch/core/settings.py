"""Models of settings: named values with types and bounds, which are checked together and reported together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from itertools import pairwise
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from epibatch.core.errors import ConfigError, EpibatchError, NotAvailableError, nearest
from epibatch.core.imports import ALLOW_IMPORTS
from epibatch.core.plain import python_scalar
from epibatch.core.schedules import Schedule

ClassT = TypeVar("ClassT")
SettingsT = TypeVar("SettingsT", bound="SettingsModel")

Place: TypeAlias = "tuple[str | int, ...]"
"""Where a value stands in nested data: the keys that lead to it."""


PLAIN = BeforeValidator(python_scalar)
_LARGEST = 2**63

Positive = Annotated[int, Field(ge=1, lt=_LARGEST), PLAIN]
Count = Annotated[int, Field(ge=0, lt=_LARGEST), PLAIN]
Number = Annotated[float, Field(allow_inf_nan=False), PLAIN]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False), PLAIN]
PositiveOrInfinite = Annotated[float, Field(gt=0), PLAIN]
Coefficient = Annotated[float, Field(ge=0, allow_inf_nan=False), PLAIN]
Fraction = Annotated[float, Field(ge=0, le=1), PLAIN]
Switch = Annotated[bool, PLAIN]


def _step(value: Any) -> float:
    """Return a whole number of steps as an int, and NaN for anything else; NaN is never in order."""
    is_int = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) and value % 1 == 0
    return int(value) if is_int else float("nan")


def _scheduled(number: Any, **bounds: Any) -> Any:
    """Return the type of a number that may be a schedule, with values from 0.

    Args:
        number: The type of the number.
        **bounds: Of the number, as JSON schemas name them.
    """
    check, check_point = (
        TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python for kind in (number, Coefficient)
    )

    def checked(value: Any) -> Any:
        if callable(value) or isinstance(value, Mapping):
            raise ValueError("expected a number, or a schedule [[0, value], [step, value], ...]")
        value = python_scalar(value)
        if not isinstance(value, (list, tuple)):
            return check(value)
        pairs = [list(point) if isinstance(point, (list, tuple)) else [] for point in value]
        steps = [_step(pair[0]) for pair in pairs if len(pair) == 2]
        if len(steps) < len(pairs) or steps[:1] != [0] or not all(left < right for left, right in pairwise(steps)):
            raise ValueError("expected [[0, value], [step, value], ...] with whole numbers of steps that increase")
        return [[step, check_point(pair[1])] for step, pair in zip(steps, pairs)]

    constant, value = {"type": "number", **bounds}, {"type": "number", "minimum": 0}
    point = {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0}, value], "minItems": 2, "maxItems": 2}
    schema = {"anyOf": [constant, {"type": "array", "items": point, "minItems": 1}]}
    return Annotated[Schedule, PlainValidator(checked), WithJsonSchema(schema)]


ScheduledPositive = _scheduled(PositiveNumber, exclusiveMinimum=0)
ScheduledCoefficient = _scheduled(Coefficient, minimum=0)


class SettingsModel(BaseModel):
    """A group of settings; wrong names and values are errors, and nothing is converted in silence.

    Raises:
        ConfigError: unknown names or values that do not fit, all of them in one message.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, arbitrary_types_allowed=True, frozen=True, use_attribute_docstrings=True
    )

    first_names: ClassVar[tuple[str, ...]] = ()
    """Names that come before the others in files and pages; for fields of several base classes."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            errors = ErrorList()
            errors.add_details(error, self._unknown)
            errors.raise_if_any(type(self).__name__)

    # Validation of nested data calls the class itself only where its constructor is not pydantic's.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def check(cls: type[SettingsT], **values: Any) -> SettingsT:
        """Build the settings from values of any type; errors are those of the class."""
        return cls(**values)

    @classmethod
    def _unknown(cls, detail: ErrorDetails) -> str | None:
        is_known = detail["type"] != "extra_forbidden"
        return None if is_known else f"unknown setting; {nearest(str(detail['loc'][-1]), cls.names())}"

    @classmethod
    @cache
    def spellings(cls) -> dict[str, str]:
        """Every name that users can write -> the attribute."""
        spellings: dict[str, str] = {}
        for attribute, field in cls.model_fields.items():
            alias = field.validation_alias
            names = alias.choices if isinstance(alias, AliasChoices) else [alias or attribute]
            spellings.update(dict.fromkeys(map(str, names), attribute))
        return spellings

    @classmethod
    @cache
    def names(cls) -> list[str]:
        """The names that users write, in order, without second spellings."""
        first: dict[str, str] = {}
        for name, attribute in cls.spellings().items():
            first.setdefault(attribute, name)
        return list(dict.fromkeys((*cls.first_names, *first.values())))

    @classmethod
    def first_spelling(cls, name: str) -> str:
        """The first name of the setting with this name; the name itself if no setting has it."""
        spellings = cls.spellings()
        return next((first for first, attribute in spellings.items() if attribute == spellings.get(name)), name)

    @classmethod
    def default_of(cls, name: str) -> Any:
        """The default of a setting, by one of its names."""
        return cls.model_fields[cls.spellings()[name]].get_default(call_default_factory=True)

    def values(self) -> dict[str, Any]:
        """Every setting under its name."""
        return {name: getattr(self, self.spellings()[name]) for name in self.names()}

    def with_changes(self: SettingsT, **changes: Any) -> SettingsT:
        """These settings with some of them changed, and checked.

        Raises:
            ConfigError: unknown names or values that do not fit.
        """
        return type(self)(**{**self.given(), **changes})

    def given(self) -> dict[str, Any]:
        """The settings that were given, under their names."""
        spellings = self.spellings()
        return {name: value for name, value in self.values().items() if spellings[name] in self.model_fields_set}


# ------------------------------------------------------------------------------- checked dataclasses


@dataclass(frozen=True)
class Expected:
    """Annotation of a field: what it can be, for messages."""

    text: str


def expect(fits: bool, text: str) -> None:
    """Raise, from a validator, unless a value fits.

    Args:
        fits: Whether it does.
        text: What the value can be.
    """
    if not fits:
        raise PydanticCustomError("expected", "{text}", {"text": text})


def reported(
    explain: Callable[[str, str, Any], ConfigError], title: str = ""
) -> Callable[[type[ClassT]], type[ClassT]]:
    """Let the constructor of a pydantic dataclass raise one ConfigError with all that is wrong.

    Args:
        explain: Makes the error about a field of its name, what was expected ("" if there is no such field), and its
            value.
        title: The beginning of the message.
    """

    def decorate(cls: Any) -> Any:
        plain = cls.__init__

        @wraps(plain)
        def checked(self: Any, *args: Any, **keywords: Any) -> None:
            try:
                plain(self, *args, **keywords)
            except ValidationError as error:
                names = list(cls.__pydantic_fields__)
                values = {**dict(zip(names, args)), **keywords}
                found: dict[str, ConfigError] = {}
                for detail in error.errors(include_url=False):
                    place, *inner = detail["loc"]
                    if isinstance(place, int) and place >= len(names):
                        raise TypeError(f"{cls.__name__} takes {', '.join(names)}; {len(args)} were given") from None
                    name = names[place] if isinstance(place, int) else place
                    has_text = detail["type"] == "expected" and not inner
                    expected = detail["msg"] if has_text else _expected(cls.__pydantic_fields__.get(name))
                    found.setdefault(name, explain(name, expected, values.get(name)))
                first = next(iter(found.values()))
                raise (first if len(found) == 1 and not title else _joined_errors(title, found.values())) from None

        cls.__init__ = checked
        return cls

    return decorate


def _expected(field: FieldInfo | None) -> str:
    annotations = [] if field is None else field.metadata
    return next((annotation.text for annotation in annotations if isinstance(annotation, Expected)), "")


def _joined_errors(title: str, errors: Iterable[ConfigError]) -> ConfigError:
    return ConfigError(title + "\n".join(map(str, errors)))


# ------------------------------------------------------------------------------------------- errors


def raise_problems(problems: Iterable[tuple[Place, str]]) -> None:
    """Raise what is wrong inside a value, from a validator: (place in the value, text) each."""
    details = [
        InitErrorDetails(type=PydanticCustomError("problem", "{text}", {"text": text}), loc=place, input=None)
        for place, text in problems
    ]
    if details:
        raise ValidationError.from_exception_data("value", details)


def import_problem(path: str) -> str:
    """Say that an import path needs leave."""
    return f"{path!r} imports the module before the colon, which runs code; allow it with {ALLOW_IMPORTS}"


def check_import(value: Any, info: ValidationInfo) -> None:
    """Refuse an import path in a config that is not allowed to import; without a context, code gives the settings."""
    if isinstance(value, str) and ":" in value and info.context is not None and not info.context.get("imports"):
        raise_problems([((), f"{import_problem(value)}, or give the object itself, in Python")])


def not_available(text: str) -> PydanticCustomError:
    """Raised by a validator: a value asks for something that this release does not have."""
    return PydanticCustomError("not_available", "{text}", {"text": text})


class ErrorList:
    """Collects what is wrong with settings, to report all of it in one error.

    Examples:
        >>> errors = ErrorList()
        >>> errors.add("training.lr", "must be above 0, found -1")
        >>> len(errors)
        1
    """

    def __init__(self) -> None:
        self.found: list[tuple[Place, str]] = []
        self._wrong = False

    def add(self, place: str | Place, text: str, *, available: bool = True) -> None:
        """Add what is wrong at a place.

        Args:
            place: Keys, or names joined by dots.
            text: What is wrong.
            available: False if it is a right setting that this release does not have.
        """
        self.found.append((tuple(place.split(".")) if isinstance(place, str) else place, text))
        self._wrong = self._wrong or available

    def add_details(self, error: ValidationError, explain: Callable[[ErrorDetails], str | None]) -> list[Place]:
        """Add everything in pydantic's error.

        Args:
            error: The error.
            explain: What is said of a detail in place of pydantic's message; None for that.

        Returns:
            The places.
        """
        details = error.errors(include_url=False)
        for detail in details:
            text = explain(detail) or _text(detail)
            self.add(detail["loc"], text, available=detail["type"] != "not_available")
        return [detail["loc"] for detail in details]

    def __len__(self) -> int:
        return len(self.found)

    def raise_if_any(self, where: str, shown: Callable[[Place], str] | None = None) -> None:
        """Raise one error that lists everything that was added.

        Args:
            where: What the settings are, or come from.
            shown: Gives the text for a place; default: `path_text`.

        Raises:
            ConfigError: something is wrong.
            NotAvailableError: nothing is wrong, but something is not available.
        """
        if not self.found:
            return
        lines = [f"{(shown or path_text)(place)}: {text}".replace("\n", "\n      ") for place, text in self.found]
        form = re.search(r": input should (.*), found ", lines[0]) if len(lines) == 1 else None
        kind = ConfigError if self._wrong else NotAvailableError
        raise kind(
            where,
            expected="known settings with fitting values",
            found="".join(f"\n    - {line}" for line in lines),
            do=f"correct {'this setting' if len(lines) == 1 else f'these {len(lines)} settings'}"
            + (f": it has to {form[1]}" if form else ""),
        ) from None


def path_text(place: Place) -> str:
    """A place as text, such as `env_to_module[0].num_frames`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")


def _text(detail: ErrorDetails) -> str:
    if detail["type"] in ("problem", "not_available"):
        return detail["msg"]
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, EpibatchError) and error.expected is not None:
        return f"expected {error.expected}; found {error.found}; {error.do}"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}, found {brief(detail['input'])}"


def brief(value: Any) -> str:
    """A value's type and its beginning."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
