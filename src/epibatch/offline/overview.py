"""An overview of recorded episodes: their numbers, columns and spaces, as data, as text, and as a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from epibatch.core.imports import import_extra
from epibatch.core.structs import paths_of

from .episode_dataset import EpisodeDataset
from .multi_agent_dataset import MultiAgentDataset
from .parts import REQUIRED


def overview(data: EpisodeDataset | MultiAgentDataset) -> dict[str, Any]:
    """Return facts of recorded episodes, as data that JSON can have.

    Args:
        data: The episodes.

    Returns:
        `environment`; `episodes` and `steps`; the least, mean and greatest of `lengths` and `returns`; how many
        episodes were `terminated`, `truncated` or `unfinished`; `observation_space` and `action_space`, as text; and
        `columns`, with `type` and `shape` of the rows of each leaf. Of several agents, spaces and columns are those of
        agents with the same columns, and the agents' names come before them.
    """
    terminated, truncated = data.ends
    several = isinstance(data, MultiAgentDataset)
    groups = {_agents_of(rows): rows for rows in data.groups} if isinstance(data, MultiAgentDataset) else {"": data}
    return {
        "environment": data.env,
        "episodes": len(data),
        "steps": data.num_steps,
        "lengths": _spread(data.lengths),
        "returns": _spread(data.returns),
        "terminated": int(terminated.sum()),
        "truncated": int(truncated.sum()),
        "unfinished": int((~terminated & ~truncated).sum()),
        **{name: _space_text(groups, name) for name in ("observation_space", "action_space")},
        "columns": {
            f"{agents} {column}" if several else column: kind
            for agents, rows in groups.items()
            for column, kind in _columns(rows).items()
        },
    }


def _agents_of(rows: EpisodeDataset) -> str:
    return ", ".join(sorted({str(rows.about(number)["agent_id"]) for number in range(len(rows))}))


def _space_text(groups: Mapping[str, EpisodeDataset], name: str) -> str | None:
    spaces = {agents: getattr(rows, name) for agents, rows in groups.items()}
    texts = [f"{agents}: {space}" if agents else str(space) for agents, space in spaces.items() if space is not None]
    return "; ".join(texts) or None


def _spread(values: npt.NDArray[Any]) -> dict[str, float | None]:
    numbers = {"min": values.min(), "mean": values.mean(), "max": values.max()}
    return {name: value.item() if math.isfinite(value) else None for name, value in numbers.items()}


def _columns(data: EpisodeDataset) -> dict[str, dict[str, Any]]:
    (store,) = data.stores
    found = {}
    for name in (*REQUIRED, *store.outputs):
        column = store.stored(name)
        for path, leaf in zip(paths_of(column.form), column.leaves) if column else ():
            found[name + path] = {"type": str(leaf.dtype), "shape": list(leaf.shape[1:])}
    return found


def overview_text(facts: Mapping[str, Any]) -> str:
    """Return what `overview` returned as lines for a terminal."""
    ends = ", ".join(f"{facts[name]:,} {name}" for name in ("terminated", "truncated", "unfinished") if facts[name])
    lines = [
        f"environment:       {facts['environment'] or 'not known'}",
        f"episodes:          {facts['episodes']:,} ({ends})",
        f"steps:             {facts['steps']:,}",
        f"lengths:           {_spread_text(facts['lengths'])}",
        f"returns:           {_spread_text(facts['returns'])}",
        f"observation space: {facts['observation_space'] or 'not known'}",
        f"action space:      {facts['action_space'] or 'not known'}",
        "columns:",
    ]
    width = max(map(len, facts["columns"]))
    for name, kind in facts["columns"].items():
        lines.append(f"  {name:{width}}  {kind['type']}{kind['shape'] or ''}")
    return "\n".join(lines)


def _spread_text(spread: Mapping[str, float | None]) -> str:
    return ", ".join(
        f"{name} {'no number' if value is None else format(value, ',.6g')}" for name, value in spread.items()
    )


def overview_picture(data: EpisodeDataset | MultiAgentDataset, title: str) -> bytes:
    """Draw how many episodes have which return and length.

    Args:
        data: The episodes.
        title: Above the plots.

    Returns:
        A PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    import_extra("matplotlib", "plot", "a picture of recorded data").use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(7.2, 3.2), dpi=144)
    for part, values, name in zip(axes, (data.returns, data.lengths), ("return", "length in steps")):
        part.hist(values, bins=min(50, max(10, len(data) // 10)), color="#08519c")
        part.set(xlabel=name, ylabel="episodes")
        part.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.tight_layout()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    pyplot.close(figure)
    return picture.getvalue()
