"""An ordered list of pieces that is itself a piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from operator import is_
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpibatchError, PieceError, UnknownNameError, add_context, nearest
from epibatch.core.registry import snake_case
from epibatch.core.restoring import restoring

from ..episodes.indexing import HistoryWatch, watch_history
from ..episodes.vector_episodes import VectorEpisodes
from ._engine.agent_table import AgentMapper
from ._engine.call import PipelineCall, within
from ._engine.checks import are_episodes, check_batch, check_pipeline_arguments, check_state, chunks_of, no_episodes
from ._engine.plan import Plan, built_piece, make_plan, numbered, place
from ._engine.run import run_plan
from ._inspect.dry_run import ColumnSpace, column_spaces_of
from ._inspect.inspection import Inspection, inspect_pipeline
from ._inspect.profile import PipelineProfile, profile_pipelines
from ._inspect.trace import PipelineTrace, trace_pipeline
from .columnar_piece import is_columnar
from .connector_v2 import ConnectorV2, PipelineReference
from .step_watches import MetricsTimers, PartWatch, StepWatch
from .tensor_step import TensorStep

__all__ = ["ConnectorPipelineV2"]


class ConnectorPipelineV2(ConnectorV2):
    """Runs pieces in order, each on what the one before it left.

    The pipeline checks its order when it is built and after every edit. Each piece has a stable
    name: its class in snake_case, with a number from the second piece of the class on. States are
    stored by this name, and pieces are found by it.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        connectors: Pieces, or `(class, args, kwargs)` triples, or piece specs such as
            `{"piece": "frame_stacking", "num_frames": 4}`.

    Raises:
        PieceError: an item is no connector piece.
        PipelineError: the order cannot work.
        SpaceError: an input space is no space.
    """

    start_layout: ClassVar[str] = "episodes"
    start_columns: ClassVar[tuple[str, ...] | None] = ()
    training: ClassVar[bool | None] = None

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        *,
        connectors: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, **kwargs)
        spaces = (input_observation_space, input_action_space)
        check_pipeline_arguments(self, spaces, connectors, kwargs)
        self.connectors = [self._built(item, i) for i, item in enumerate(connectors or ())]
        self._plan: Plan | None = None
        self._planned: list[Any] | None = None
        self._nested = False
        self.num_edits = -1  # building is none
        self.history = HistoryWatch()
        self.watch: StepWatch | None = None
        self.watches: list[StepWatch] = []
        self.plan()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be the pipeline that a copy's pieces are in."""
        vars(self).update(state)
        for piece in self.connectors:
            piece.in_pipeline = PipelineReference(self)

    def _built(self, item: Any, position: int) -> ConnectorV2:
        return built_piece(type(self).__name__, position, item)

    def plan(self) -> Plan:
        """The checked order of pieces, updated when the list has changed."""
        plan, planned = self._plan, self._planned
        if plan is not None and planned is not None and _are_the_same(planned, self.connectors):
            return plan
        if plan is None or not _are_the_same(plan.connectors, self.pieces()):
            pieces, name = self.pieces(), type(self).__name__
            self._check_pieces(pieces)
            plan = make_plan(name, pieces, self.start_layout, self.start_columns, self.training)
            self._check_apart()
            self._wire_spaces()
            self._plan = plan
            self.num_edits += 1
            for piece in self.connectors:
                piece.in_pipeline = PipelineReference(self)
        self._nested = any(isinstance(piece, ConnectorPipelineV2) for piece in self.connectors)
        self._planned = None if self._nested else list(self.connectors)  # nested lists may change
        return plan

    def _check_apart(self) -> None:
        """Refuse pieces that another pipeline has, or that are here twice, unless they are shared."""
        for position, piece in enumerate(self.connectors):
            if piece.shared:
                continue
            other = _owner(piece)
            if any(piece is earlier for earlier in self.connectors[:position]):
                found = "the same piece twice in this pipeline"
            elif other is not None and other is not self:
                found = f"the one that is in another {type(other).__name__} already"
            else:
                continue
            name = type(piece).__name__
            do = f"make a new {name} for each place, or piece.clone(); to use one state in both, piece.share()"
            where = place(type(self).__name__, position, piece)
            raise PieceError(where, expected="a piece of its own", found=found, do=do)

    def _check_pieces(self, pieces: tuple[ConnectorV2, ...]) -> None:
        """Refuse pieces that do not work in a pipeline of this kind."""

    def finished(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Complete what the last piece left."""
        return batch

    def pieces(self) -> tuple[ConnectorV2, ...]:
        """All pieces in the order they run, those of nested pipelines among them."""
        out: list[ConnectorV2] = []
        for piece in self.connectors:
            out.extend(piece.pieces() if isinstance(piece, ConnectorPipelineV2) else (piece,))
        return tuple(out)

    # -- editing and looking up ------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Stable names of the pieces, in order."""
        counter: Counter[str] = Counter()
        return [numbered(snake_case(type(piece).__name__), counter) for piece in self.connectors]

    def _index(self, name_or_class: Any) -> int:
        for i, (name, piece) in enumerate(zip(self.names, self.connectors)):
            if name_or_class in (name, type(piece).__name__, type(piece)) or name_or_class is piece:
                return i
        label = getattr(name_or_class, "__name__", str(name_or_class))
        raise UnknownNameError(
            type(self).__name__,
            expected="the name or class of one of its pieces",
            found=repr(label),
            do=nearest(label, [type(piece).__name__ for piece in self.connectors]),
        )

    def replace_pieces(self, connectors: Sequence[ConnectorV2]) -> None:
        """Take another list of pieces.

        Raises:
            PipelineError: the order cannot work, here or in the pipeline that this one is in; both stay as before.
        """
        before = self._plan, self._planned, self._nested, self.num_edits
        outer, pieces = _owner(self), list(self.connectors)
        self.connectors[:] = connectors
        try:
            self.plan()
            if outer is not None:
                outer.replace_pieces(list(outer.connectors))
        except Exception:
            self.connectors[:] = pieces
            self._plan, self._planned, self._nested, self.num_edits = before
            outermost = self
            while (owner := _owner(outermost)) is not None:
                outermost = owner
            outermost._wire_spaces()
            raise

    def rebuild(self) -> None:
        """Check the pieces again, and pass the spaces on, after one of them has changed.

        Raises:
            PipelineError: the order cannot work any more.
        """
        self._plan = self._planned = None
        self.plan()
        outer = _owner(self)
        if outer is not None:
            outer.rebuild()

    def _insert(self, position: int, connector: Any) -> None:
        piece = self._built(connector, position)
        self.replace_pieces([*self.connectors[:position], piece, *self.connectors[position:]])

    def prepend(self, connector: Any) -> None:
        """Insert a piece at the start."""
        self._insert(0, connector)

    def append(self, connector: Any) -> None:
        """Put a piece at the end."""
        self._insert(len(self.connectors), connector)

    def insert_before(self, name_or_class: Any, connector: Any) -> ConnectorV2:
        """Put a piece before another; returns that other one.

        Raises:
            UnknownNameError: there is no such piece.
        """
        position = self._index(name_or_class)
        neighbour: ConnectorV2 = self.connectors[position]
        self._insert(position, connector)
        return neighbour

    def insert_after(self, name_or_class: Any, connector: Any) -> ConnectorV2:
        """Put a piece after another; returns that other one.

        Raises:
            UnknownNameError: there is no such piece.
        """
        position = self._index(name_or_class)
        neighbour: ConnectorV2 = self.connectors[position]
        self._insert(position + 1, connector)
        return neighbour

    def remove(self, name_or_class: Any) -> None:
        """Take a piece out.

        Raises:
            UnknownNameError: there is no such piece.
            PipelineError: the other pieces cannot work without it. The pipeline stays as before; insert what replaces
                the piece first.
        """
        position = self._index(name_or_class)
        self.replace_pieces([*self.connectors[:position], *self.connectors[position + 1 :]])

    def __len__(self) -> int:
        return len(self.connectors)

    def __iter__(self) -> Iterator[ConnectorV2]:
        return iter(self.connectors)

    def __getitem__(self, key: int | str | type | slice) -> Any:
        """Return a piece by position or name, the list of pieces of a class, or a pipeline of clones of a slice.

        Raises:
            PipelineError: the pieces of a slice cannot work in that order.
        """
        if isinstance(key, slice):
            return self._part(range(len(self))[key])
        if isinstance(key, type):
            return [piece for piece in self.connectors if isinstance(piece, key)]
        if isinstance(key, str):
            return self.connectors[self._index(key)]
        return self.connectors[key]

    def _part(self, positions: range) -> Any:
        """A pipeline of clones of some pieces. Its calls are given a batch as the pieces before them leave it."""
        pieces, before = [self.connectors[i] for i in positions], self.connectors[: positions.start]
        first, (args, kwargs) = pieces[0] if pieces else self, self.get_ctor_args_and_kwargs()
        part = type(self)(*args[:2], **{**kwargs, "connectors": ()})
        part.input_observation_space, part.input_action_space = first.input_observation_space, first.input_action_space
        layouts = [self.start_layout, *(piece.output_layout for piece in before if piece.output_layout)]
        part.start_layout, part.start_columns = layouts[-1], None if before else self.start_columns  # type: ignore[misc]
        part.replace_pieces([piece.clone() for piece in pieces])
        return part

    def until(self, piece: Any) -> Any:
        """The pipeline up to a piece and with it, to call or trace for the values after that piece.

        It consists of clones, with copies of the states, so that its calls leave these pieces as they are. Pieces that
        write to episodes do so.

        Args:
            piece: Position, name, class or the piece itself.

        Raises:
            UnknownNameError: there is no such piece.

        Examples:
            >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
            >>> from epibatch.episodes import SingleAgentEpisode
            >>> rows = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [3.0, -2.0]}
            >>> pieces = ["reward_sign", lambda rewards: 10 * rewards, BatchIndividualItems()]
            >>> pipeline = LearnerConnectorPipeline(connectors=pieces)
            >>> episode = SingleAgentEpisode(**rows, id_="e", len_lookback_buffer=0)
            >>> [array.tolist() for array in pipeline.until("reward_sign")(episodes=[episode])["rewards"]["e",]]
            [[1.0, -1.0]]
        """
        there = isinstance(piece, int) and -len(self) <= piece < len(self)
        position = range(len(self))[piece] if there else self._index(piece)
        return self[: position + 1]

    def clone(self, *, share_state: bool = False) -> Any:
        """A pipeline of clones of these pieces; see `ConnectorV2.clone`."""
        if "start_layout" in vars(self) and not share_state:
            return self[:]  # a slice of a pipeline
        args, kwargs = self.get_ctor_args_and_kwargs()
        pieces = [piece.clone(share_state=share_state) for piece in self.connectors]
        return type(self)(*args[:2], **{**kwargs, "connectors": pieces})

    # -- spaces --------------------------------------------------------------------------------

    def _wire_spaces(self) -> None:
        observations, actions = self.input_observation_space, self.input_action_space
        several = self.spaces_by_agent or any(isinstance(piece, AgentMapper) for piece in self.pieces())
        for position, piece in enumerate(self.connectors):
            piece.spaces_by_agent = several or piece.get_ctor_args_and_kwargs()[1].get("multi_agent") is True
            piece.input_action_space, piece.input_observation_space = actions, observations
            try:
                observations, actions = piece.observation_space, piece.action_space
            except EpibatchError as error:
                add_context(error, f"in {place(type(self).__name__, position, piece)}:")
                raise
        self._output_spaces = (observations, actions)

    def _outputs(self) -> tuple[Any, Any]:
        if self._output_spaces is None:
            self._wire_spaces()
        return self._output_spaces or (None, None)

    @property
    def input_spec(self) -> gym.spaces.Dict:
        """The spaces of everything that comes in, as one Dict: `obs` and `actions`, as far as they are known."""
        spaces = {"obs": self.input_observation_space, "actions": self.input_action_space}
        return gym.spaces.Dict({name: space for name, space in spaces.items() if space is not None})

    @property
    def episode_observation_space(self) -> gym.Space[Any] | None:
        """Space of the observations as episodes keep them: the input's, as changed by pieces that rewrite them."""
        self._outputs()
        rewritten = [piece.observation_space for piece in self.pieces() if piece.rewrites_observations]
        return rewritten[-1] if rewritten else self.input_observation_space

    @property
    def column_spaces(self) -> dict[str, ColumnSpace]:
        """The columns that the pipeline makes: space of one row, leading axes and layout, by column.

        A copy of the pipeline runs twice on short episodes that are drawn from the input spaces; pieces, spaces and
        random numbers are afterwards as they were. With several agents names begin with the module
        (`walker/obs`). Empty if the pipeline was given no spaces, and for several agents on the way to the
        environment.

        For acting, the episodes have only their reset. For training, each is a chunk from the start of an episode with
        rewards of 0.5, no infos, and the model outputs `action_logp` and `action_dist_inputs`; a piece that reads
        another output raises. A module-to-env pipeline starts from drawn actions. A column is missing if its rows have
        no space (complex numbers, bfloat16), or if their shape or type differs between both runs.

        Raises:
            EpibatchError: whatever a piece raises on drawn values, with pipeline and piece named first.
        """
        return self.column_spaces_for(None)

    def column_spaces_for(self, module: Any) -> dict[str, ColumnSpace]:
        """The `column_spaces` of batches for a module: with its states, time axis and values.

        Args:
            module: An RL module, or a MultiRLModule; a copy of it runs.
        """
        return column_spaces_of(self, module)

    @property
    def episode_action_space(self) -> gym.Space[Any] | None:
        """Space of the actions as episodes keep them: as modules give them, by agent where there are several."""
        self._outputs()
        mapping = next((piece for piece in self.pieces() if isinstance(piece, AgentMapper)), None)
        return self.action_space if mapping is None else mapping.input_action_space

    # -- state ---------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """States of the pieces that can have one, by stable name; {} of those that know nothing yet."""
        return {
            name: piece.get_state()
            for name, piece in zip(self.names, self.connectors)
            if type(piece).get_state is not ConnectorV2.get_state and _wanted(name, components, not_components)
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Give each piece its state; if one of them does not fit, all pieces are as they were.

        A piece with state {} is reset, because it had learned nothing when the state was saved. Pieces without an entry
        in the state stay as they are.

        Raises:
            UnknownNameError: a state of a piece that this pipeline does not have.
            CheckpointError: something else than a dict of states.
        """
        check_state(self, state)
        by_name = dict(zip(self.names, self.connectors))
        for name, piece_state in state.items():
            if piece_state and name not in by_name:
                raise UnknownNameError(
                    f"{type(self).__name__}.set_state",
                    expected="states of its own pieces",
                    found=repr(name),
                    do=nearest(name, by_name),
                )
        states = {name: piece_state for name, piece_state in state.items() if name in by_name}
        before = {name: by_name[name].get_state() for name in states}
        try:
            for name, piece_state in states.items():
                with restoring(f"{type(self).__name__}.set_state", name):
                    _give(by_name[name], piece_state)
        except Exception:
            for name, piece_state in before.items():
                _give(by_name[name], piece_state)
            raise

    def reset_state(self) -> None:
        """Reset every piece."""
        for piece in self.connectors:
            piece.reset_state()

    def freeze(self) -> None:
        """Freeze every piece."""
        for piece in self.connectors:
            piece.freeze()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge states piece by piece, matched by name."""
        merged = {}
        for name, piece in zip(self.names, self.connectors):
            piece_states = [state[name] for state in states if state.get(name)]
            result = piece.merge_states(piece_states) if piece_states else {}
            if result:
                merged[name] = result
        return merged

    def on_environment(self, env: Any) -> None:
        """Call the pieces' hooks."""
        for piece in self.connectors:
            piece.on_environment(env)

    def seed(self, seed: Any) -> None:
        """Seed every piece that draws random numbers, each with a seed of its own.

        Args:
            seed: An int, or a numpy SeedSequence.
        """
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        for piece, child in zip(self.connectors, sequence.spawn(len(self.connectors))):
            if hasattr(piece, "seed"):
                piece.seed(child)

    # -- running -------------------------------------------------------------------------------

    @property
    def lookback_needed(self) -> int:
        """Steps before a chunk's start that the pieces read: as declared, or as seen so far."""
        return max(self.history.depth, *(piece.lookback for piece in self.pieces()), 0)

    @property
    def lookback_known(self) -> bool:
        """True if every piece declares what history it reads, or has run and was watched."""
        return not self.plan().trusting or bool(self.history.calls)

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: dict[str, Any] | None = None,
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Run all pieces.

        Args:
            rl_module: The module that the batch is for, or that made it.
            batch: What to start from; default: an empty batch.
            episodes: A list of episodes, a VectorEpisodes, or a RolloutStorage, whose rows stay on their device if all
                pieces before NumpyToTensor say `takes_tensors`.
            explore: Whether actions are to explore.
            shared_data: What pieces of several pipelines share; default: a new dict.
            metrics: A metrics logger, for the pieces; one with `times_pieces` gets the seconds of each too.
            **kwargs: Handed on to every piece.

        Raises:
            PieceOutputError: a piece returned no dict.
            PipelineError: `episodes` are none.
            BatchLayoutError: `batch` is no dict.
            EpibatchError: whatever a piece raises, with pipeline and piece named first.
        """
        plan = self.plan()
        if type(episodes) is not list and not isinstance(episodes, VectorEpisodes):
            episodes = chunks_of(episodes, self._piece_with_arrays)
        if not are_episodes(episodes):
            raise no_episodes(self, episodes)
        from_module = self.start_layout == "tensors"
        call = PipelineCall(
            rl_module=rl_module,
            episodes=episodes,
            explore=explore,
            shared_data=shared_data,
            metrics=metrics,
            training=plan.training,
            plus_one=plan.plus_one,
            kwargs=kwargs,
            from_module=from_module,
            by_hand=self.training is None,
            batch=batch,
        )
        call.casts_to_float32, call.observations_by = plan.casts_to_float32, plan.observations_by
        if plan.rows_ahead:
            call.have_rows_ahead(plan.rows_ahead)
        self.check_episodes(call)
        if plan.hooks and (episodes := call.with_hook()):
            for hook in plan.hooks:
                try:
                    hook(episodes)
                except Exception as error:
                    add_context(error, f"in {type(self).__name__}, {hook.__qualname__}():")
                    raise
        batch = {} if batch is None else batch
        if type(batch) is not dict:
            check_batch(self, batch)
        timed = metrics is not None and getattr(metrics, "times_pieces", True)
        watched = timed or self.watch is not None or self.watches or self._nested
        watches = self._watches(call, timed) if watched else ()
        if plan.watched:
            with within(call), watch_history(self.history):
                batch = run_plan(plan, batch, call, self.history, watches)
            self.history.calls += 1
        else:  # no piece reads the running call
            batch = run_plan(plan, batch, call, self.history, watches)
        return self.finished(batch)

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Run the pieces on a step in tensors; see `Piece.run_tensors`, and `piece_without_tensors`."""
        self.check_episodes(step.group.call)
        is_first = step.is_first
        for piece in self.plan().on_tensors:
            try:
                columns = piece.run_tensors(columns, step)
                if is_first:
                    step.check_tensors(columns)
            except Exception as error:
                add_context(error, f"piece {type(piece).__name__}, on tensors:")
                raise
        return self.finished(columns)

    @property
    def piece_without_tensors(self) -> ConnectorV2 | None:
        """The first piece that does not work on tensors, if there is one."""
        return next((piece for piece in self.pieces() if not _works_on_tensors(piece)), None)

    def _piece_with_arrays(self) -> ConnectorV2 | None:
        """The first piece, of those before the batch is made of tensors, that does not work on them."""
        before = takewhile(lambda piece: getattr(piece, "output_layout", None) != "tensors", self.pieces())
        return next((piece for piece in before if not _works_on_tensors(piece)), None)

    def _watches(self, call: PipelineCall, timed: bool) -> list[StepWatch]:
        """Return the callbacks for this run's steps."""
        watches = self.all_watches()
        if timed:
            watches.append(MetricsTimers(call.metrics, tuple(call.kwargs.get("metrics_prefix_key") or ())))
        return watches

    def all_watches(self) -> list[StepWatch]:
        """All callbacks of this pipeline and of pipelines among its pieces."""
        watches: list[StepWatch] = [*([] if self.watch is None else [self.watch]), *self.watches]
        for piece in self.connectors:
            if isinstance(piece, ConnectorPipelineV2):
                watches += [PartWatch(watch, piece.plan().steps) for watch in piece.all_watches()]
        return watches

    def profile(self) -> PipelineProfile:
        """Measure every piece while the context is open: calls, seconds, rows and bytes.

        Otherwise nothing is measured. See `profile_pipelines`, which takes several pipelines at once.

        Returns:
            A profile to open with `with`; then print it, or read its `rows()`.
        """
        return profile_pipelines({snake_case(type(self).__name__): self})

    def trace(
        self,
        episodes: Sequence[Any],
        module: Any = None,
        *,
        batch: dict[str, Any] | None = None,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        copies: bool = True,
        keep_rows: int = 0,
        origin: bool = False,
        **kwargs: Any,
    ) -> PipelineTrace:
        """Run all pieces once and keep what each does to the columns; an error inside one is kept, and not raised.

        It is run on copies, so pieces, episodes and random numbers are afterwards as if it had not been.

        Args:
            episodes: As for a call.
            module: The RL module, which is not copied.
            batch: What to start from; default: an empty batch.
            explore: Whether actions are to explore.
            shared_data: What pieces of several pipelines share; copied too.
            copies: False: run the pieces themselves on what is given.
            keep_rows: The most rows of each column that the trace keeps after each piece, evenly spaced.
            origin: True: also find the chunk and step of each row of the train batch, of a learner pipeline.
            **kwargs: Handed on to every piece.

        Returns:
            A trace to print, or to read piece by piece.

        Raises:
            PipelineError: `episodes` are none, or `origin` is asked for without copies.
            BatchLayoutError: `batch` is no dict.
        """
        return trace_pipeline(
            self, episodes, module, batch, shared_data, copies, keep_rows, origin, explore=explore, **kwargs
        )

    def inspect(
        self,
        episodes: Sequence[Any],
        module: Any = None,
        *,
        batch: dict[str, Any] | None = None,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Inspection:
        """Run the pipeline on copies, and return the facts of a page that shows how the episodes became a batch.

        They are what `trace` gives with values and, of a train batch, the step that each cell holds, and the steps that
        it sees: one recorded observation or reward is changed at a time, on copies, and the batch is compared.

        Args:
            episodes: As for a call.
            module: The RL module, which is not copied.
            batch: What to start from; default: an empty batch.
            explore: Whether actions are to explore.
            shared_data: What pieces of several pipelines share; copied too.
            **kwargs: Handed on to every piece.

        Returns:
            The facts: `data`, and `to_html(path)`, which writes the page.

        Raises:
            PipelineError: `episodes` are none.
            BatchLayoutError: `batch` is no dict.

        Examples:
            >>> import numpy as np
            >>> from epibatch.connectors.learner import AddObservationsFromEpisodesToBatch, BatchIndividualItems
            >>> from epibatch.connectors.learner import LearnerConnectorPipeline
            >>> from epibatch.episodes import SingleAgentEpisode
            >>> pieces = [AddObservationsFromEpisodesToBatch(), BatchIndividualItems()]
            >>> episode = SingleAgentEpisode(observations=[3.0, 5.0, 7.0], actions=[0, 1], rewards=[0.0, 1.0],
            ...                              len_lookback_buffer=0)
            >>> inspection = LearnerConnectorPipeline(connectors=pieces).inspect([episode])
            >>> grid = inspection.data["grids"]["default_policy"]
            >>> grid["at"], grid["columns"]["obs"]
            ([0, 1], [3.0, 5.0])
        """
        return inspect_pipeline(self, episodes, module, batch=batch, shared_data=shared_data, explore=explore, **kwargs)

    def check_episodes(self, call: PipelineCall) -> None:
        """Refuse episodes that this pipeline cannot work on."""

    def __repr__(self) -> str:
        lines = [f"  {i}: {piece!r}" for i, piece in enumerate(self.connectors)]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])


def _owner(piece: Any) -> Any:
    """The pipeline that has a piece; None if none has it."""
    pipeline = piece.in_pipeline() if piece.in_pipeline else None
    return pipeline if pipeline is not None and any(piece is member for member in pipeline.connectors) else None


def _are_the_same(before: Sequence[Any], now: Sequence[Any]) -> bool:
    """True if these are the same objects. Equal pieces may have other states."""
    return len(before) == len(now) and all(map(is_, before, now))


def _give(piece: Any, state: Mapping[str, Any]) -> None:
    piece.set_state(state) if state else piece.reset_state()


def _wanted(name: str, components: Any, not_components: Any) -> bool:
    def names(value: Any) -> list[str]:
        return [value] if isinstance(value, str) else list(value or ())

    return (components is None or name in names(components)) and name not in names(not_components)


def _works_on_tensors(piece: Any) -> bool:
    return is_columnar(piece) and bool(getattr(piece, "takes_tensors", False))
