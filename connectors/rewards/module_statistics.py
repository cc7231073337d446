"""Pieces that keep statistics of each module's rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from epibatch.core.errors import StateError

from .._engine.chunks import ChunkGroup
from ..authoring.fields import ParameterPiece
from ..columnar_piece import LearnerPiece


class ModuleStatistics(ParameterPiece, LearnerPiece):
    """A learner piece that keeps an object of statistics for each module, all agents of a module together.

    Subclasses say how such an object is made, and made of a state; it has `to_state()`. States are merged module by
    module, and each copy is then given the merged one.

    Args:
        **parameters: The parameters of the class.
    """

    update_stats: bool = True
    """True if calls update the statistics; a parameter of each class."""

    def _prepare(self) -> None:
        self._known: dict[Any, Any] = {}

    @abstractmethod
    def nothing_known(self) -> Any:
        """Statistics of no rows."""

    @abstractmethod
    def from_state(self, state: Any, where: str) -> Any:
        """Statistics out of what `to_state` gave; raises StateError for something else."""

    @abstractmethod
    def merged(self, states: list[Any], where: str) -> dict[str, Any]:
        """One state of those of several copies, each of one module."""

    def statistics(self, group: ChunkGroup) -> Any:
        """Those of the module that a call is about."""
        if group.module_id not in self._known:
            self._known[group.module_id] = self.nothing_known()
        return self._known[group.module_id]

    @property
    def learns(self) -> bool:
        """True if calls update the statistics."""
        return self.update_stats and not self.frozen

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """`modules`: the state of each module's statistics; {} before there are any."""
        return {"modules": {name: stats.to_state() for name, stats in self._known.items()}} if self._known else {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` or `merge_states` gave.

        Raises:
            StateError: something else.
        """
        where = f"{type(self).__name__}.set_state"
        self._known = {name: self.from_state(entry, where) for name, entry in _modules(state, where).items()}

    def reset_state(self) -> None:
        """Forget everything."""
        self._known = {}

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge the states of all copies into one. Set it in each copy before it continues.

        Raises:
            StateError: states of something else, or of copies that were last merged with different states.
        """
        where = f"{type(self).__name__}.merge_states"
        copies = [_modules(state, f"{where}, state {i}") for i, state in enumerate(states)]
        names = dict.fromkeys(name for modules in copies for name in modules)
        merged = {name: self.merged([modules[name] for modules in copies if name in modules], where) for name in names}
        return {"modules": merged} if merged else {}


def _modules(state: Any, where: str) -> Mapping[Any, Any]:
    if state == {}:
        return {}
    if not isinstance(state, Mapping) or not isinstance(state.get("modules"), Mapping):
        raise StateError(
            where,
            expected="{'modules': {module id: statistics}}",
            found=f"keys {sorted(map(str, state))}" if isinstance(state, Mapping) else repr(state),
            do="pass what get_state or merge_states gave",
        )
    modules: Mapping[Any, Any] = state["modules"]
    return modules
