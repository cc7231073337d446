"""Pieces that work on whole columns instead of items."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar

from epibatch.core.columns import Columns, nearest_column
from epibatch.core.errors import ColumnError, PipelineError, add_context
from epibatch.core.kept_property import kept_property
from epibatch.core.piece_declarations import refuse_misspelt_names

from ._engine.agent_copies import PerAgentCopies, output_spaces
from ._engine.call import ADDED_LOSS_MASK, PipelineCall, running_call, within
from ._engine.chunks import ChunkGroup
from ._engine.columns import Batch
from ._engine.layouts import is_plain, show, to_columns, to_plain
from .authoring.fields import FieldPiece
from .connector_v2 import ConnectorV2

if TYPE_CHECKING:
    from .tensor_step import TensorStep


class Piece(FieldPiece):
    """A piece that takes and gives `EpisodeColumn`s, and may be handed a `VectorEpisodes`.

    Subclasses write `run`. Called directly, outside a pipeline, such a piece takes and gives the
    plain layouts like any other.

    A subclass may override `__call__` instead. Its pipeline then calls that method, with plain dicts, as for any
    piece that declares nothing; `super().__call__(...)` is the built-in piece's work at this point of the pipeline.

    The annotated attributes of a subclass are keywords of its constructor, as in `dataclasses`; `__post_init__` checks
    them. Those with an underscore are not. A subclass may write `__init__` instead.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        multi_agent: For pieces that take it: True if the spaces are Dicts of several agents' spaces. A pipeline with
            AgentToModuleMapping knows.
        as_learner_connector: For pieces that stand in both pipelines: True if the batch is for training.
    """

    reads: ClassVar[tuple[str, ...] | None] = ()
    uses_spaces: ClassVar[bool] = False
    """True if what the piece does to rows depends on its spaces, so that each agent needs a copy with its own."""
    needs_episodes: ClassVar[bool] = False
    """True if `run` is for calls with episodes: without any, the batch stays as it is."""
    takes_tensors: ClassVar[bool] = False
    """True if the piece works on tensors too: on those of a step, see `run_tensors`, and of a `RolloutStorage`, which
    `run` gets in learner pipelines. A class that writes `run_tensors` need not say it; one that overrides `run` or
    `rewrite` alone says it again."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_misspelt_names(cls)
        nearest = next(base for base in cls.__mro__ if vars(base).keys() & {"reads", "__call__"})
        if "reads" not in vars(nearest):  # it overrides `__call__`, and what that does to the columns is not known
            cls.reads = None
        own = vars(cls).keys()
        if "takes_tensors" not in own and own & {"run", "run_tensors", "rewrite"}:
            cls.takes_tensors = "run_tensors" in own or cls.input_layouts == ("tensors",)

    @property
    def makes_train_batches(self) -> bool:
        """True if the piece is for learner pipelines alone, or was made with `as_learner_connector=True`."""
        return self.pipelines == ("learner",) or bool(self._as_learner_connector)

    @kept_property
    def _as_learner_connector(self) -> Any:
        """The argument by the name of RLlib's attribute, which ported subclasses read."""
        return getattr(self, "as_learner_connector", False)

    def take_side(self, training: bool) -> None:
        """See `ConnectorV2.take_side`; the copies for agents take the side too."""
        super().take_side(training)
        for _, part in self.parts.items():
            part.take_side(training)

    @property
    def parts(self) -> PerAgentCopies:
        """Copies of this piece for agents with spaces or a state of their own."""
        parts: PerAgentCopies | None = self.__dict__.get("_parts")
        if (
            parts is None or parts.agent_template.__dict__ is not self.__dict__
        ):  # a copy of a piece has copies of its own
            parts = self._parts = PerAgentCopies(self)
        return parts

    def _outputs_by_agent(self) -> tuple[Any, Any]:
        return output_spaces(self)

    @abstractmethod
    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Change the batch.

        Args:
            columns: Columns; per-episode ones are `EpisodeColumn`s.
            group: The episodes and everything else the call is about.
        """

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Change the columns of a step of one agent, as `run` does.

        A `TensorEnvRunner` acts with it, and a policy is exported with it, if the piece says `takes_tensors`. By
        default this calls `run`. Pieces that remember something, or work on episodes, write it, with operations that
        `torch.export` can trace.

        Args:
            columns: Tensors `[N, ...]` by column. `obs` is there if an earlier piece has made the column.
            step: The newest observations, and states for what the piece remembers.
        """
        if Columns.OBS in self.writes:
            columns.setdefault(Columns.OBS, step.obs)
        return self.run(columns, step.group)

    def leave_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Leave the columns as they are: `run_tensors` of pieces that have nothing to do for a step in tensors."""
        return columns

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Change the batch of a call; by default each group's part by itself.

        Args:
            batch: Columns by group.
            call: The groups, all episodes and everything else the call is about.
        """
        if self.needs_episodes and not len(call.episodes):
            return batch
        for key, columns in batch.groups.items():
            group = call.groups[key]
            try:
                batch.groups[key] = group.piece_for(self).run(columns, group)
            except Exception as error:
                if key is not None:
                    add_context(error, f"for module {group.module_id!r}:")
                raise
        return batch

    def run_agents(self, batch: Batch, call: PipelineCall) -> Batch:
        """Run each agent's copy of the piece about that agent's chunks; for pieces that write to episodes only."""
        if not call.several:
            return Piece.run_all(self, batch, call)
        for agent_id, group in call.by_agent().items():
            try:
                self.parts.of(agent_id).run({}, group)
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
                call.invalidate(rewritten=self.rewrites_observations)
                return show(self.run_all(to_columns(batch, call), call), call)
        training = self.makes_train_batches
        from_module = not training and ("tensors" in (self.input_layouts or ()) or self.pipelines == ("module_to_env",))
        call = PipelineCall(
            rl_module=rl_module,
            episodes=episodes,
            explore=explore,
            shared_data=shared_data,
            metrics=metrics,
            training=training,
            plus_one=bool(shared_data and shared_data.get(ADDED_LOSS_MASK)),
            kwargs=kwargs,
            from_module=from_module,
            by_hand=True,
            batch=batch,
        )
        if not len(episodes):
            call.take_keys(filter(is_plain, batch.values()))
        with within(call):
            plain = to_plain(self.run_all(to_columns(batch, call), call), call)
        call.groups = {}
        return plain

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


def is_columnar(piece: Any) -> bool:
    """True if a pipeline gives a piece whole columns, False if it calls the piece with plain dicts."""
    return isinstance(piece, Piece) and type(piece).__call__ is Piece.__call__


def _is_about(call: PipelineCall, piece: Piece, rl_module: Any, episodes: Sequence[Any], shared_data: Any) -> bool:
    """True if a running call has called the piece, which has passed its arguments on to `super().__call__`."""
    if call.piece is not piece or (rl_module is not None and rl_module is not call.rl_module):
        return False
    call_episodes = call.plain_episodes()
    is_same = len(episodes) == len(call_episodes) and all(map(is_, episodes, call_episodes))
    return is_same and (shared_data is None or shared_data is call.shared_data)


@contextmanager
def _exploring(call: PipelineCall, explore: bool | None) -> Iterator[None]:
    """Let a call explore, or not, while the context is open."""
    before = call.explore
    call.explore = explore
    try:
        yield
    finally:
        call.explore = before


class TwoSidedPiece(Piece):
    """A piece that takes the newest step of each episode or, with `as_learner_connector`, all steps."""

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    as_learner_connector: bool = False


class LearnerPiece(Piece):
    """A piece of the learner pipeline that works on rows by episode."""

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    needs_episodes: ClassVar[bool] = True


class ObservationRewriter(Piece):
    """Writes observations back into the episodes, so that the learner sees what the module saw.

    Subclasses write `rewrite`, which gets the newest observations of all episodes as one structure
    of arrays, and `recompute_output_observation_space`. Such a piece stands in an env-to-module
    pipeline, before the piece that puts observations into the batch.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    rewrites_observations = True
    uses_spaces: ClassVar[bool] = True
    needs_episodes: ClassVar[bool] = True
    takes_tensors: ClassVar[bool] = False
    """True if `rewrite` works on tensors as it does on arrays."""

    @abstractmethod
    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Return the new values of the newest observations.

        Args:
            observations: Arrays of shape [number of episodes, ...], not to be written to.
            group: The episodes and everything else the call is about.

        Returns:
            Arrays of shape [number of episodes, ...], nested and typed as the output space says.
        """

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Rewrite the newest observations; the batch stays as it is."""
        refuse_observations(self, columns)
        rewritten = self.rewrite(group.reader.newest(Columns.OBS, copy=False)[0], group)
        group.reader.write_newest(rewritten, None if self.input_observation_space is None else self.observation_space)
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Rewrite the newest observations."""
        step.obs = self.rewrite(step.obs, step.group)
        return columns

    def run_agents(self, batch: Batch, call: PipelineCall) -> Batch:
        """Rewrite the newest observations agent by agent, each with a copy of the piece."""
        for columns in batch.groups.values():
            refuse_observations(self, columns)
        return super().run_agents(batch, call)


def refuse_observations(piece: ConnectorV2, batch: dict[str, Any]) -> None:
    """Refuse a batch with observations, which would not show what the piece makes of them."""
    if Columns.OBS in batch:
        name = type(piece).__name__
        raise PipelineError(
            name,
            expected="a batch without observations, which are to be taken after they are rewritten",
            found=f"a column {Columns.OBS!r}, written by an earlier piece",
            do=f"move {name} before that piece",
        )
