"""Objects by import path, `module:name`; importing runs code, so whoever calls this has to have leave."""

from __future__ import annotations

import importlib
from typing import Any

from epibatch.core.errors import RegistryError, explain

__all__ = ["load_object"]


def load_object(path: str, where: str, kind: str = "class") -> Any:
    """Import what stands at `module:name`.

    Args:
        path: the import path; behind the colon there may be several names with dots between them.
        where: the beginning of error messages.
        kind: what is looked for, for messages.

    Raises:
        RegistryError: the path has no such form, the module cannot be imported, or has no such name.

    Example:
        >>> load_object("math:floor", "an example", "function")(2.5)
        2
    """
    form = f"module:{kind.capitalize() if kind == 'class' else kind}"
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise RegistryError(
            explain(where, expected=f"an import path {form}", found=repr(path), do=f"write it as {form}")
        )
    try:
        target: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (Exception, SystemExit) as error:
        raise RegistryError(
            explain(
                where,
                expected=f"the {kind} {path}",
                found=f"{type(error).__name__}: {error}",
                do=f"check that the package and what it needs are installed, and that the path is {form}",
            )
        ) from error
    return target
