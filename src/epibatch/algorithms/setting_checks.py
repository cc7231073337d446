"""What no single setting's type can show: what this release does not have, what contradicts, what needs leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epibatch.core.errors import EpibatchError
from epibatch.core.import_paths import load_object

from .settings import Problems, Section

__all__ = ["note_contradictions", "note_distribution", "note_import_paths"]

DISTRIBUTION = {
    "evaluation_num_env_runners": "this process evaluates; raise num_envs_per_env_runner in evaluation_config",
    "num_env_runners": "this process samples; raise num_envs_per_env_runner to step more environments at once",
    "num_learners": "this process learns; leave num_learners at 0",
}


def note_distribution(section: str, settings: Section, problems: Problems) -> None:
    """Note settings that ask for other processes."""
    for name, advice in DISTRIBUTION.items():
        count = getattr(settings, name, 0)
        if count:
            problems.add_unavailable(f"{section}.{name}", f"not available yet; expected 0, found {count}: {advice}")


def note_contradictions(sections: Mapping[str, Any], problems: Problems) -> None:
    """Note settings that contradict each other."""
    training = sections["training"]
    size, batch = training.minibatch_size, training.train_batch_size
    if size is not None and size > batch:
        problems.add("training.minibatch_size", f"expected at most train_batch_size ({batch}), found {size}")
    goal = sections["stop"].evaluation_return_mean
    if goal is not None and sections["evaluation"].evaluation_interval is None:
        problems.add("stop.evaluation_return_mean", "needs evaluations: set evaluation.evaluation_interval")


def note_import_paths(callbacks: Section, problems: Problems, *, allow_imports: bool) -> None:
    """Note callbacks that are import paths, which run code, without leave, and paths that lead nowhere."""
    for name in type(callbacks).model_fields:
        value = getattr(callbacks, name)
        for path in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(path, str):
                text = _import_problem(path, "class" if name == "callbacks_class" else "function", allow_imports)
                if text:
                    problems.add(f"callbacks.{name}", text)


def _import_problem(path: str, kind: str, allow_imports: bool) -> str | None:
    if not allow_imports:
        return (
            f"{path!r} imports the module before the colon, which runs code; allow it with allow_imports=True "
            "(on the command line: --allow-imports), or give the function itself, in Python"
        )
    try:
        target = load_object(path, repr(path), kind)
    except EpibatchError as error:
        return str(error)
    return None if callable(target) else f"expected a {kind}, found at {path!r}: {type(target).__name__} {target!r}"
