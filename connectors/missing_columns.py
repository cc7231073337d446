"""Columns that a module, or a loss, looks up in a batch that does not have them."""

from __future__ import annotations

from traceback import walk_tb
from typing import Any

from epibatch.core.errors import UnknownNameError, nearest

from .views.view import as_views

__all__ = ["blame_missing_column"]

_DECLARED = (
    "declare views on the class, `view_requirements = {...}` or get_view_requirements(cls, model_config): pipelines "
    "are made before the module, and views that it gets later are not in them. While an algorithm runs: "
    "algo.add_view(name, view). In an own loop: TrajectoryViews(views=...) in both pipelines"
)
_DO = {
    False: "read what is known in training alone, as views of this step or later ones are, in _forward_train only; let "
    "an env-to-module piece or a view of earlier steps add other columns",
    True: "let a learner piece or a view add it; columns that pieces for acting add are not stored, and a view with "
    "train=False is for acting alone",
}


def blame_missing_column(error: KeyError, module: Any, batch: dict[str, Any], *, training: bool) -> None:
    """Raise an error about a column if it was looked up in the batch, or in a module's part of it.

    Args:
        error: What the module raised; if it looked something up elsewhere, nothing happens.
        module: The module, or a module of modules.
        batch: What it was given.
        training: Whether it was trained, rather than asked for actions.

    Raises:
        UnknownNameError: it was.
    """
    *_, (frame, _) = walk_tb(error.__traceback__)
    name = error.args[0] if len(error.args) == 1 else None
    if not isinstance(name, str):
        return
    looked_up = [own.keys() for own in frame.f_locals.values() if isinstance(own, dict) and name not in own]
    for module_id, own in [(None, batch), *batch.items()]:
        if isinstance(own, dict) and any(keys == own.keys() for keys in looked_up):
            reader = module if module_id is None else module[module_id]
            raise _message(reader, name, list(map(str, own)), training) from error


def _message(reader: Any, name: str, columns: list[str], training: bool) -> UnknownNameError:
    view = as_views(getattr(reader, "view_requirements", {}), type(reader).__name__).get(name)
    declared = "" if view is None else f", its view of {view.column!r} with shift={view.shift!r},"
    lost = view is not None and (view.train if training else view.act)
    close = "" if lost else nearest(name, columns).partition("Known: ")[0]
    where = "the update" if training else "the forward pass, acting,"
    return UnknownNameError(
        f"{where} of {type(reader).__name__}",
        expected=f"columns of the {'train batch' if training else 'batch to act on'}, which are "
        f"{', '.join(columns) or 'none'}",
        found=f"{name!r}{declared} is not among them",
        do=_DECLARED if lost else f"{close}{_DO[training]}",
    )
