"""Objects by import path (`module:name`) or from an extra, and advice about objects of RLlib in their place.

Importing runs code, so callers need permission for it.
"""

from __future__ import annotations

import importlib
from typing import Any

from epibatch.core.errors import MissingExtraError, RegistryError, nearest

ALLOW_IMPORTS = (
    "allow_imports=True, as in PPOConfig(allow_imports=True) or PPOConfig.from_yaml(file, allow_imports=True) "
    "(on the command line: --allow-imports)"
)
"""How users allow imports, for messages."""


def load_object(path: str, where: str, kind: str = "class") -> Any:
    """Import what stands at `module:name`.

    Args:
        path: The import path; after the colon there may be several names with dots between them.
        where: The beginning of error messages.
        kind: What is looked for, for messages.

    Raises:
        RegistryError: the path has no such form, the module cannot be imported, or has no such name.

    Examples:
        >>> load_object("math:floor", "an example", "function")(2.5)
        2
    """
    form = f"module:{kind.capitalize() if kind == 'class' else kind}"
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise RegistryError(where, expected=f"an import path {form}", found=repr(path), do=f"write it as {form}")
    try:
        target: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        found = f"{type(error).__name__}: {error}"
        raise RegistryError(
            where, expected=f"the {kind} {path}", found=found, do=_how_to_import(error, module_name, form)
        ) from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            names = _defined_in(target)
            found = f"{getattr(target, '__name__', target)} has no {part!r}"
            do = nearest(part, names) if names else f"check that the path is {form}"
            raise RegistryError(where, expected=f"the {kind} {path}", found=found, do=do)
        target = getattr(target, part)
    return target


def _how_to_import(error: BaseException, module_name: str, form: str) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None:
        return f"mend {module_name}: it raises this when it is imported"
    if module_name == missing or module_name.startswith(f"{missing}."):
        return f"check the spelling of {form}, and that {missing} is installed or in the folder that this runs in"
    return f"install {missing}, which {module_name} imports"


def _defined_in(target: Any) -> list[str]:
    """Public names that a module (or a class) has of its own, rather than imported."""
    module_name = getattr(target, "__name__", None)
    public = [name for name in dir(target) if not name.startswith("_")]
    return [name for name in public if getattr(getattr(target, name), "__module__", None) == module_name] or public


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module that an extra installs.

    Args:
        module: The module.
        extra: The extra that installs it.
        purpose: What it is needed for, for the message.

    Raises:
        MissingExtraError: the module, or one that it needs, is not installed.

    Examples:
        >>> import_extra("no_such_module", "video", "videos")
        Traceback (most recent call last):
            ...
        epibatch.core.errors.MissingExtraError: videos
          expected: the extra 'video'
          found:    No module named 'no_such_module'
          do:       pip install 'epibatch[video]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            purpose, expected=f"the extra {extra!r}", found=error, do=f"pip install 'epibatch[{extra}]'"
        ) from error


def is_rllib_class(kind: type) -> bool:
    """True if a class comes from RLlib, or inherits from such a class.

    Examples:
        >>> is_rllib_class(dict)
        False
    """
    return any(base.__module__.startswith("ray.rllib.") for base in kind.__mro__)


def advice_for_piece(piece: Any) -> str:
    """Return the advice for one of RLlib's pieces; empty for other objects."""
    if not is_rllib_class(piece if isinstance(piece, type) else type(piece)):
        return ""
    return (
        "it inherits RLlib's ConnectorV2: change the imports of its file (`epibatch port FILE --write`), "
        "or wrap it with epibatch.interop.rllib.from_rllib_piece"
    )


def advice_for_episode(kind: type) -> str:
    """Return the advice for one of RLlib's episodes; empty for other classes."""
    return "convert it with epibatch.interop.rllib.from_rllib(episode)" if is_rllib_class(kind) else ""
