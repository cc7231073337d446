"""Pieces that work on whole columns instead of items."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym

from epibatch.core.columns import nearest_column
from epibatch.core.errors import ColumnError, add_context

from ._engine.agent_call import call_class
from ._engine.agent_copies import AgentParts
from ._engine.call import ADDED_LOSS_MASK, Call, running_call, within
from ._engine.layouts import hand_out, is_plain, to_columns, to_plain
from ._engine.modules import is_multi
from .connector_v2 import ConnectorV2

if TYPE_CHECKING:
    from ._engine.agent_batch import AgentBatch
    from ._engine.agent_call import AgentCall

__all__ = ["ColumnarPiece"]

_UNDECLARED = {"columnar": False, "reads": None}
"""Attributes of a class that overrides `__call__`: what it does to the columns is not known."""


class ColumnarPiece(ConnectorV2):
    """A piece that takes and gives `EpisodeColumn`s, and may be handed a `VectorEpisodes`.

    Subclasses write `run`. Called directly, outside a pipeline, such a piece takes and gives the
    plain layouts like any other.

    A subclass may override `__call__` instead. Its pipeline then calls that method, with plain dicts, as for any
    piece that declares nothing; `super().__call__(...)` is the built-in piece's work at this point of the pipeline.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
    """

    columnar: ClassVar[bool] = True
    space_by_space: ClassVar[bool] = True
    transforms: tuple[str, ...] = ()
    """Columns, or parts such as `obs/camera`, that other rows are made of, each of one row; declared for `new_obs`,
    which has to go through what `obs` goes through."""
    enters_modules: ClassVar[bool] = True
    """Whether, of a batch of columns by module, the piece is given each module's; otherwise it is given the whole."""
    uses_spaces: ClassVar[bool] = False
    """Whether what the piece does to rows depends on its spaces, so that each agent needs a copy with its own."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.columnar and cls.__call__ is not ColumnarPiece.__call__:
            for name, value in _UNDECLARED.items():
                if name not in vars(cls):
                    setattr(cls, name, value)

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)  # and no other keywords
        self.spaces_by_agent = self.get_ctor_args_and_kwargs()[1].get("multi_agent") is True

    @property
    def makes_train_batches(self) -> bool:
        """True if the piece is for learner pipelines alone, or was made with `as_learner_connector=True`."""
        sides = (getattr(self, name, False) for name in ("_as_learner_connector", "as_learner_connector"))
        return self.pipelines == ("learner",) or any(sides)

    @property
    def parts(self) -> AgentParts:
        """Copies of this piece for agents with spaces or a state of their own."""
        parts: AgentParts | None = self.__dict__.get("_parts")
        if parts is None or parts.whole.__dict__ is not self.__dict__:  # a copy of a piece has copies of its own
            parts = self._parts = AgentParts(self)
        return parts

    @abstractmethod
    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Change the batch.

        Args:
            batch: Columns; per-episode ones are `EpisodeColumn`s.
            call: The episodes and everything else the call is about.
        """

    def run_modules(self, batch: AgentBatch, call: AgentCall) -> AgentBatch:
        """Change the batch of a call about several agents; by default each module's part by itself.

        Args:
            batch: Columns by module.
            call: The episodes of several agents, and each module's own call.
        """
        groups, uses_spaces = batch.groups, self.uses_spaces
        for group, own in call.groups.items():
            if group not in groups:
                continue
            try:
                piece = self.parts.of(call.entry(own)) if uses_spaces else self
                groups[group] = piece.run(groups[group], own)
            except Exception as error:
                add_context(error, f"for module {own.module_id!r}:")
                raise
        return batch

    def run_parts(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Change the batch of a call about episodes of one agent and a MultiRLModule.

        In front of `BatchIndividualItems` these are columns as ever, and behind it columns by module: then each
        module's part is changed by itself.
        """
        if not self.enters_modules or self.takes == ("episodes",) or self.pipelines == ("module_to_env",):
            return self.run(batch, call)
        parts = [name for name, own in batch.items() if isinstance(own, dict) and name in call.rl_module]
        if not parts:
            return self.run(batch, call)
        for module_id in parts:
            try:
                with call.about_module(module_id):
                    batch[module_id] = self.run(batch[module_id], call)
            except Exception as error:
                add_context(error, f"for module {module_id!r}:")
                raise
        return batch

    def run_agents(self, batch: AgentBatch, call: AgentCall) -> AgentBatch:
        """Run each agent's copy of the piece about that agent's chunks; for pieces that write to episodes only."""
        for agent_id, own in call.by_agent().items():
            try:
                self.parts.of(agent_id).run({}, own)
            except Exception as error:
                add_context(error, f"for agent {agent_id!r}:")
                raise
        return batch

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: dict[str, Any],
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Run the piece on plain layouts: by itself, or at its place in the pipeline that is running."""
        call = running_call()
        if call is not None and _is_about(call, self, rl_module, episodes, shared_data):
            with _exploring(call, explore):
                call.look_again(rewritten=self.rewrites_observations)
                return hand_out(self._run_any(to_columns(batch, call), call), call)
        learning = self.makes_train_batches
        from_module = not learning and ("tensors" in (self.takes or ()) or self.pipelines == ("module_to_env",))
        call = call_class(episodes, from_module=from_module, learning=learning, batch=batch)(
            rl_module=rl_module,
            episodes=episodes,
            explore=explore,
            shared_data=shared_data,
            metrics=metrics,
            plus_one=bool(shared_data and shared_data.get(ADDED_LOSS_MASK)),
            kwargs=kwargs,
        )
        if not call.grouped and not len(episodes):
            call.take_keys(filter(is_plain, batch.values()))
        with within(call):
            return to_plain(self._run_any(to_columns(batch, call), call), call)

    def _run_any(self, columns: Any, call: Call | AgentCall) -> Any:
        several = not call.grouped and is_multi(call.rl_module)
        run: Any = self.run_modules if call.grouped else self.run_parts if several else self.run
        return run(columns, call)

    def need(self, batch: dict[str, Any], name: str, do: str) -> Any:
        """The column `name` of the batch.

        Raises:
            ColumnError: the batch has none.
        """
        if name not in batch:
            raise ColumnError(
                type(self).__name__,
                expected=f"a column {name!r}",
                found=f"columns {sorted(map(str, batch))}",
                do=do or nearest_column(name, map(str, batch)),
            )
        return batch[name]


def _is_about(
    call: Call | AgentCall, piece: ColumnarPiece, rl_module: Any, episodes: Sequence[Any], shared_data: Any
) -> bool:
    """True if a running call has called the piece, which has passed its arguments on to `super().__call__`."""
    if call.piece is not piece or (rl_module is not None and rl_module is not call.rl_module):
        return False
    shown = call.plain_episodes()
    same = len(episodes) == len(shown) and all(map(is_, episodes, shown))
    return same and (shared_data is None or shared_data is call.shared_data)


@contextmanager
def _exploring(call: Call | AgentCall, explore: bool | None) -> Iterator[None]:
    """Let a call explore, or not, while the context is open."""
    before = call.explore
    call.set_explore(explore)
    try:
        yield
    finally:
        call.set_explore(before)
