"""Names that modules here export, read from their source without running it or loading torch."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path
from typing import NamedTuple

from epibatch.core.lazy import public_names

from .module_table import MOVED_NAMES, module_here

__all__ = ["Home", "home_of", "offered_names"]


class Home(NamedTuple):
    """The place of one of RLlib's names here.

    Attributes:
        module: the module to import it from.
        name: its name there.
        is_module: True if it is a module itself.
    """

    module: str
    name: str
    is_module: bool = False


@cache
def offered_names(module: str) -> frozenset[str] | None:
    """Return the names in a package's stub or a module's `__all__`; None if there is no such module.

    Example:
        >>> sorted(offered_names("epibatch.learner.postprocessing.value_predictions"))
        ['compute_value_targets']
        >>> print(offered_names("epibatch.no_such_module"))
        None
    """
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of a parent
        return None
    if spec is None or not spec.origin:
        return None
    if spec.submodule_search_locations is not None and Path(f"{spec.origin}i").exists():
        return frozenset(public_names(module))
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def home_of(module: str, name: str) -> Home | None:
    """Return the place here of a name in RLlib's `module`: a class, a function, a constant or a module.

    Example:
        >>> home_of("ray.rllib.connectors.connector_v2", "ConnectorV2")
        Home(module='epibatch.connectors.connector_v2', name='ConnectorV2', is_module=False)
        >>> home_of("ray.rllib.utils", "numpy")
        Home(module='epibatch.core', name='spaces', is_module=True)
    """
    if (module, name) in MOVED_NAMES:
        return Home(*MOVED_NAMES[module, name])
    here = module_here(module)
    if here is not None and name in (offered_names(here) or ()):
        return Home(here, name)
    below = module_here(f"{module}.{name}")
    if below is not None and below != here and offered_names(below) is not None:
        parent, _, leaf = below.rpartition(".")
        return Home(parent, leaf, is_module=True)
    return None
