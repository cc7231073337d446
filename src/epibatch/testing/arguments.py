"""Validation and defaults of the arguments of `check_connector`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from epibatch.connectors.authoring.column_transform import ColumnTransform
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.core.columns import Columns
from epibatch.core.errors import PieceError, UnknownNameError, nearest
from epibatch.core.piece_declarations import PIPELINE_NAMES
from epibatch.testing.contract import contract_checks
from epibatch.testing.harness import Factory, rebuilt

_SIDE = "as_learner_connector"
_KEYWORDS = ("sides", "spaces", "model_config", "only", "skip")
_RETIRED = {
    "pipeline": "sides={!r}",
    "observation_space": "spaces={!r}",
    "action_space": "spaces=(observation space, {!r})",
}


class AgentSpaces(gym.spaces.Dict):
    """The spaces of several agents, by agent; any other Dict is one agent's."""


@dataclass(frozen=True)
class CheckRequest:
    """The validated arguments of a check.

    Args:
        name: The piece's class.
        factory: Makes a new piece.
        spaces: Observation and action space of one environment.
        sides: The pipelines.
        model_config: Settings of the default module.
        checks: Names of the checks to run or to report as skipped.
        skip: Names of those to leave out, with the reasons.
    """

    name: str
    factory: Factory
    spaces: tuple[Any, Any]
    sides: tuple[str, ...]
    model_config: dict[str, Any]
    checks: tuple[str, ...]
    skip: dict[str, str]


def parse_request(
    piece: Any, spaces: Any, sides: Any, model_config: Any, only: Any, skip: Any, retired: Mapping[str, Any]
) -> CheckRequest:
    """Check the arguments of `check_connector`, and complete them.

    Raises:
        PieceError: `piece` makes no piece, or an argument is invalid.
        UnknownNameError: a check that does not exist.
    """
    for name, value in retired.items():
        do = f"write {_RETIRED[name].format(value)}" if name in _RETIRED else nearest(name, _KEYWORDS)
        raise _error(f"keywords among {', '.join(_KEYWORDS)}", f"{name}={value!r}", do, name)
    factory, instance = _factory_of(piece)
    skipped = _skipped(skip)
    chosen = contract_checks() if only is None else {*_known(only, "only"), *skipped}
    return CheckRequest(
        type(instance).__name__,
        factory,
        _spaces(spaces),
        _sides(instance, sides),
        dict(model_config or {}),
        tuple(name for name in contract_checks() if name in chosen),
        skipped,
    )


def _error(expected: str, found: str, do: str, argument: str = "") -> PieceError:
    where = f"check_connector, {argument}" if argument else "check_connector"
    return PieceError(where, expected=expected, found=found, do=do)


def _factory_of(piece: Any) -> tuple[Factory, Any]:
    if isinstance(piece, ConnectorV2):
        return lambda: rebuilt(piece), piece
    found = f"{type(piece).__name__} {piece!r}"
    if callable(piece):
        first, second = piece(), piece()
        if isinstance(first, ConnectorV2) and first is not second:
            return piece, first
        found = "the same piece twice" if first is second else f"a function that returns a {type(first).__name__}"
    expected = "a piece, its class, or a function that makes a new piece each time"
    raise _error(expected, found, "check_connector(MyPiece), or check_connector(MyPiece(x=1))")


def _sides(piece: Any, argument: Any) -> tuple[str, ...]:
    chosen = piece.get_ctor_args_and_kwargs()[1].get(_SIDE)
    if argument is None:
        declared = piece.pipelines if isinstance(piece.pipelines, (tuple, list)) else ()
        declared = ("learner",) if _is_for_training(piece) else declared
        sides = [name for name in declared if name in PIPELINE_NAMES and chosen in (None, name == "learner")]
    else:
        sides = [argument] if isinstance(argument, str) else list(argument)
    unknown = [name for name in sides if name not in PIPELINE_NAMES]
    if sides and not unknown:
        return tuple(dict.fromkeys(sides))
    found, do = (
        "none, and the piece does not say one either",
        'check_connector(MyPiece, sides="learner"), or on the command line --side learner; or ',
    )
    do += 'pipelines = ("learner",) on the class'
    if unknown:
        found, do = repr(unknown[0]), nearest(str(unknown[0]), PIPELINE_NAMES)
    raise _error(f"some of {', '.join(PIPELINE_NAMES)}", found, do, "sides")


def _is_for_training(piece: Any) -> bool:
    """True if a piece that declares no pipelines uses columns that exist only in training."""
    if not isinstance(piece, ColumnTransform) or type(piece).pipelines is not ColumnTransform.pipelines:
        return False
    return not {path.column for path in piece.paths} <= {Columns.OBS, Columns.ACTIONS}


def _spaces(argument: Any) -> tuple[Any, Any]:
    default: tuple[Any, Any] = (gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(2))
    if argument is None or isinstance(argument, gym.Space):
        return default if argument is None else (argument, default[1])
    pair = tuple(argument) if isinstance(argument, (tuple, list)) and len(argument) == 2 else (0, 0)
    if all(space is None or isinstance(space, gym.Space) for space in pair):
        return pair[0] or default[0], pair[1] or default[1]
    if all(isinstance(spaces, dict) for spaces in pair) and len(pair[0]) > 1 and set(pair[0]) == set(pair[1]):
        return AgentSpaces(pair[0]), AgentSpaces(pair[1])
    raise _error(
        "(observation space, action space) of one environment, or two dicts with those of several agents",
        f"{type(argument).__name__} {argument!r}",
        "spaces=(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))",
        "spaces",
    )


def _skipped(skip: Any) -> dict[str, str]:
    if skip is None:
        return {}
    if not isinstance(skip, Mapping) or not all(isinstance(why, str) and why.strip() for why in skip.values()):
        do = 'skip={"chunks": "returns need the whole episode"}, say'
        raise _error("names of checks, each with the reason", repr(skip), do, "skip")
    _known(skip, "skip")
    return dict(skip)


def _known(names: Iterable[str], argument: str) -> list[str]:
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in contract_checks():
            do = nearest(str(name), contract_checks())
            where = f"check_connector, {argument}"
            raise UnknownNameError(where, expected="the name of a check", found=repr(name), do=do)
    return names
