"""`epibatch check` and `epibatch check-env`: pieces and environments by name, with arguments and spaces as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from epibatch.algorithms.config.config_io import parse_yaml
from epibatch.core.errors import ConfigError, PieceError
from epibatch.core.registry import build_piece, spec_problems
from epibatch.testing.arguments import parse_request
from epibatch.testing.checking import run_checks
from epibatch.testing.contract import CheckReport
from epibatch.testing.env_checking import EnvReport, report_on
from epibatch.testing.space_text import space_from_text


def check_by_name(
    name: str,
    *,
    sides: Iterable[str] = (),
    arguments: Iterable[str] = (),
    spaces: tuple[str | None, str | None] = (None, None),
    model: Iterable[str] = (),
    chosen: tuple[Iterable[str], Iterable[str]] = ((), ()),
    allow_imports: bool = False,
) -> CheckReport:
    """Return the report on a piece given by its name.

    Args:
        name: A registered name, or, if imports are allowed, `pkg.module:Class`.
        sides: The pipelines; default: those that the piece declares.
        arguments: `key=value` each, the constructor's, with values as YAML.
        spaces: Observation and action space as text, or None.
        model: `key=value` each, settings of the default module.
        chosen: Names of the checks to run (none: all), and `check=reason` for those to leave out.
        allow_imports: True if `name` may be an import path, which runs code.

    Raises:
        EpibatchError: no such piece, wrong arguments, invalid spaces, unknown checks.
    """
    spec = {"piece": name, **_pairs(arguments, "--set")}
    _check_arguments(spec, allow_imports)
    only, skip = list(chosen[0]), {key: str(why) for key, why in _split(chosen[1], "--skip")}
    parsed_spaces = tuple(None if text is None else space_from_text(text) for text in spaces)
    request = parse_request(
        lambda: build_piece(spec, allow_imports=allow_imports),
        parsed_spaces,
        list(sides) or None,
        _pairs(model, "--model"),
        only or None,
        skip,
        {},
    )
    return run_checks(request)


def check_env_by_name(name: str, env_config: Iterable[str], *, allow_imports: bool, **settings: Any) -> EnvReport:
    """Return the report on an environment given by its name.

    Args:
        name: As in a config file: an id of Gymnasium, a name of PettingZoo, or, if imports are allowed, an import path.
        env_config: `key=value` each, with values as YAML.
        allow_imports: True if `name` may be an import path, which runs code.
        **settings: `num_steps`, `seed` and `timeout_s` of `check_env`.

    Raises:
        EpibatchError: no such environment, or a wrong config.
    """
    if ":" in name and not allow_imports:
        raise ConfigError(
            f"epibatch check-env {name}",
            expected="a name that needs no import",
            found="an import path, which runs code",
            do="add --allow-imports",
        )
    return report_on(name, env_config=dict(_pairs(env_config, "--env-config")), **settings)


def _check_arguments(spec: Mapping[str, Any], allow_imports: bool) -> None:
    """Raise for arguments that the piece's constructor does not accept, and for missing ones."""
    errors = [(key, what) for key, what in spec_problems(spec, allow_imports=allow_imports) if key not in ("", "piece")]
    if errors:
        raise PieceError(
            f"epibatch check {spec['piece']}",
            expected="the arguments of its constructor",
            found="; ".join(what for _, what in errors),
            do=f"give it by --set {errors[0][0]}=VALUE" if errors[0][0] not in spec else "correct what --set says",
        )


def _pairs(texts: Iterable[str], option: str) -> Mapping[str, Any]:
    return {key: parse_yaml(value, f"the value of {key}") for key, value in _split(texts, option)}


def _split(texts: Iterable[str], option: str) -> Iterable[tuple[str, str]]:
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            expected = "a check and the reason" if option == "--skip" else "a key and its value"
            raise PieceError(option, expected=expected, found=repr(text), do=f"write {option} key=value")
        yield key.strip(), value.strip()
