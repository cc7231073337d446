"""PettingZoo's environments by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from epibatch.core.errors import ConfigError, MissingExtraError, UnknownNameError, nearest
from epibatch.core.extras import import_extra

__all__ = ["KINDS", "PREFIX", "make_by_name", "pettingzoo_creator"]

PREFIX = "pettingzoo/"
KINDS = {"aec": "an AEC", "parallel": "a Parallel"}


def pettingzoo_creator(name: str) -> Callable[..., Any]:
    """What makes the multi-agent environment of a name such as "pettingzoo/classic/tictactoe_v3", given its keywords.

    Args:
        name: PettingZoo's own behind the prefix. Of an environment of both kinds the parallel one is made.

    Example:
        >>> make = pettingzoo_creator("pettingzoo/classic/rps_v2")
        >>> make(max_cycles=3).possible_agents
        ['player_0', 'player_1']
    """

    def make(**kwargs: Any) -> Any:
        from .pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv  # they need this module

        own = name.removeprefix(PREFIX)
        return (PettingZooEnv if _maker(own, "parallel") is None else ParallelPettingZooEnv)(own, **kwargs)

    make.__name__ = name
    return make


def make_by_name(name: str, kind: str, kwargs: dict[str, Any]) -> Any:
    """Make a PettingZoo environment.

    Args:
        name: PettingZoo's, such as "classic/tictactoe_v3".
        kind: "aec" or "parallel".
        kwargs: Keywords for the environment.

    Raises:
        MissingExtraError: PettingZoo (1.27 or newer), or what this environment needs, is not installed.
        UnknownNameError: PettingZoo has no such environment.
        ConfigError: it has it as another kind only, or the environment does not take the keywords.

    Example:
        >>> make_by_name("classic/tictactoe_v3", "aec", {}).possible_agents
        ['player_1', 'player_2']
    """
    maker = _maker(name, kind)
    where = f"PettingZoo environment {name!r}"
    if maker is None:
        do = f"take {'ParallelPettingZooEnv' if kind == 'aec' else 'PettingZooEnv'}, or the name {PREFIX + name!r}"
        raise ConfigError(where, expected=f"{KINDS[kind]} environment", found="the other kind only", do=do)
    try:
        return maker(**kwargs)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        expected, do = f"keywords that {name!r} takes", "correct env_config"
        raise ConfigError("environment.env_config", expected=expected, found=str(error), do=do) from error
    except Exception as error:
        missing = error if isinstance(error, ImportError) else error.__cause__
        if not isinstance(missing, ImportError):
            raise
        raise _missing(name, missing) from error


def _maker(name: str, kind: str) -> Callable[..., Any] | None:
    """What makes the environment of a name; None if PettingZoo has it as another kind only."""
    pettingzoo = import_extra("pettingzoo", "pettingzoo", f"PettingZoo environment {name!r}")
    if not hasattr(pettingzoo, "aec_registry"):
        raise _too_old(name, pettingzoo)
    id_ = re.sub(r"_v(?=\d+$)", "-v", name)
    known = {"aec": pettingzoo.aec_registry, "parallel": pettingzoo.parallel_registry}
    if not any(id_ in names for names in known.values()):
        raise _unknown(name, {*known["aec"], *known["parallel"]})
    return (lambda **kwargs: pettingzoo.make(kind, id_, **kwargs)) if id_ in known[kind] else None


def _too_old(name: str, pettingzoo: Any) -> MissingExtraError:
    """PettingZoo has a registry, which names come from, since 1.27."""
    found, do = f"PettingZoo {getattr(pettingzoo, '__version__', '')}", "pip install 'epibatch[pettingzoo]'"
    where = f"PettingZoo environment {name!r}"
    return MissingExtraError(where, expected="PettingZoo 1.27 or newer", found=found, do=do)


def _unknown(name: str, known: Iterable[str]) -> UnknownNameError:
    where, do = f"PettingZoo environment {name!r}", nearest(name, known)
    return UnknownNameError(where, expected="a name of PettingZoo's", found="no such environment", do=do)


def _missing(name: str, error: ImportError) -> MissingExtraError:
    family = name.partition("/")[0]
    where, do = f"PettingZoo environment {name!r}", f"pip install 'pettingzoo[{family}]'"
    return MissingExtraError(where, expected="the packages that it needs", found=str(error), do=do)
