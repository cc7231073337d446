"""The contract of every connector piece."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import ReferenceType

import gymnasium as gym

from epibatch.core.checkpoints import Checkpointable
from epibatch.core.errors import PieceError, nearest
from epibatch.core.piece_declarations import refuse_retired_names

from ._engine import batch_items
from ._engine.agent_copies import output_spaces

__all__ = ["ConnectorV2", "PipelineReference"]


class PipelineReference(ReferenceType[Any]):
    """A weak reference to a pipeline; None in a pickled or deeply copied piece, which is in no pipeline yet."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class ConnectorV2(Checkpointable, ABC):
    """One step on the way from episodes to batches, or from module outputs to actions.

    A piece is called with keywords only and returns the batch. Undeclared pieces (all class
    attributes left alone) see plain dicts and a plain list of episodes, and are trusted. A piece
    that declares `reads`, an empty tuple too, is checked when its pipeline is built, along with
    the other declarations, and may not write to episodes unless it says so.

    The constructor's arguments are kept as they were given (`get_ctor_args_and_kwargs`).

    Args:
        input_observation_space: Space of the observations that come in.
        input_action_space: Space of the actions that come in.
        **kwargs: Ignored here; ported subclasses pass theirs on. A class without a constructor of its own takes none.

    Examples:
        >>> class Double(ConnectorV2):
        ...     def __call__(self, *, rl_module, batch, episodes, **kwargs):
        ...         for episode in self.single_agent_episode_iterator(episodes):
        ...             self.add_batch_item(batch, "twice", 2 * episode.get_observations(-1), episode)
        ...         return batch
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="e", observations=[3])
        >>> Double()(rl_module=None, batch={}, episodes=[episode])
        {'twice': {('e',): [np.int64(6)]}}
    """

    pipelines: ClassVar[tuple[str, ...]] = ()
    """Pipelines the piece is made for, of "env_to_module", "module_to_env", "learner"; empty: not said."""
    reads: ClassVar[tuple[str, ...] | None] = None
    """Columns that must have been written before; None: the piece's needs are not declared."""
    writes: ClassVar[tuple[str, ...]] = ()
    """Columns that the piece writes."""
    removes: tuple[str, ...] = ()
    """Columns of the batch before the piece that are lost: dropped, or, if it writes them too, made again from the
    episodes. A later piece that reads a dropped one, and an earlier one that makes one in vain, are refused."""
    input_layouts: ClassVar[tuple[str, ...] | None] = None
    """Layouts that the piece can work on: "episodes" (rows by episode), "arrays" (batched), "tensors"; None: any."""
    output_layout: ClassVar[str | None] = None
    """The layout of the batch after the piece, one of these three; None: as before it."""
    mutates_episodes: ClassVar[bool] = False
    """True if a declared learner piece writes to the episodes it is given."""
    rewrites_observations: bool = False
    """True if the piece replaces the episodes' newest observations, which learner pieces then find there."""
    training_only: bool = False
    """True if the piece is meant for training alone, as augmentation is.

    The first-update check leaves it out, or freezes it if it has a `freeze` of its own: then it does what it does for
    acting.
    """
    lookback: int = 0
    """Number of steps before a chunk's start that the piece reads."""
    rows_ahead: int = 0
    """Rows after each drawn chunk's own that a learner piece and those before it have; it takes them out."""

    # State that pipelines, `freeze`, `share` and copies for single agents set.
    frozen: bool = False
    shared: bool = False
    trains: bool | None = None
    in_pipeline: PipelineReference | None = None
    spaces_by_agent: bool = False
    agent_copy_for: Any = None
    agent_template: Any = None

    _ctor: tuple[tuple[Any, ...], dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_retired_names(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        piece = super().__new__(cls)
        _check_arguments(cls, args, kwargs)
        piece._ctor = (args, dict(kwargs))
        piece._input_spaces, piece._output_spaces = (None, None), None  # for classes that skip super().__init__
        return piece

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._input_spaces = (input_observation_space, input_action_space)
        self._output_spaces: tuple[Any, Any] | None = None

    @abstractmethod
    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any],
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Change the batch.

        Args:
            rl_module: The module that the batch is for, or that made it.
            batch: The batch so far.
            episodes: The episodes of this call.
            explore: Whether actions are to explore.
            shared_data: What pieces of several pipelines share.
            metrics: A metrics logger, or None.
            **kwargs: Whatever else the pipeline's caller passed.

        Returns:
            The batch, changed in place or a new one.
        """

    def place(self) -> tuple[Any, int]:
        """Return the pipeline that the piece is in, through which it reaches other pieces, and its position there.

        Raises:
            PieceError: it is in none.
        """
        piece = self if self.agent_template is None else self.agent_template
        pipeline = piece.in_pipeline() if piece.in_pipeline else None
        position = next((i for i, other in enumerate(pipeline or ()) if other is piece), None)
        if position is None:
            do = "ask when the pipeline runs; a clone, or a piece that was removed, is in none"
            raise PieceError(f"{type(self).__name__}.place()", expected="a piece in a pipeline", found="none", do=do)
        return pipeline, position

    # -- hooks, which cost nothing unless a class overrides them -----------------------------------

    def on_environment(self, env: Any) -> None:
        """Called by a runner when its environments are made, and when they are made again.

        Args:
            env: The vector environment.
        """

    def on_reset(self, episodes: Sequence[Any]) -> None:
        """Called before an acting pipeline runs, if episodes have only their reset observation so far.

        A `TensorEnvRunner` has no episodes while it acts. It begins states of pieces anew, see `Piece.run_tensors`.

        Args:
            episodes: Those episodes.
        """

    def on_draw(self, episodes: Sequence[Any]) -> None:
        """Called before a learner pipeline runs on chunks that were drawn from a replay buffer or a data set.

        Args:
            episodes: The chunks, in the order of the draw.
        """

    # -- spaces --------------------------------------------------------------------------------

    @property
    def input_observation_space(self) -> gym.Space[Any] | None:
        """Space of the observations that come in."""
        return self._input_spaces[0]

    @input_observation_space.setter
    def input_observation_space(self, space: gym.Space[Any] | None) -> None:
        self._input_spaces, self._output_spaces = (space, self._input_spaces[1]), None

    @property
    def input_action_space(self) -> gym.Space[Any] | None:
        """Space of the actions that come in."""
        return self._input_spaces[1]

    @input_action_space.setter
    def input_action_space(self, space: gym.Space[Any] | None) -> None:
        self._input_spaces, self._output_spaces = (self._input_spaces[0], space), None

    @property
    def observation_space(self) -> gym.Space[Any] | None:
        """Space of the observations that go out."""
        space: gym.Space[Any] | None = self._outputs()[0]
        return space

    @property
    def action_space(self) -> gym.Space[Any] | None:
        """Space of the actions that go out."""
        space: gym.Space[Any] | None = self._outputs()[1]
        return space

    def _outputs(self) -> tuple[Any, Any]:
        # Computed on demand: a subclass may set the attributes it needs after calling super().__init__.
        if self._output_spaces is None:
            self._output_spaces = self._outputs_by_agent() if self.spaces_by_agent else self._recomputed()
        return self._output_spaces

    def _outputs_by_agent(self) -> tuple[Any, Any]:
        """Output spaces where the input ones are Dicts of the agents': those of the Dicts, or else of each entry."""
        try:
            outputs = self._recomputed()
        except Exception:  # the class knows the space of one agent
            return output_spaces(self)
        kinds = [[isinstance(space, gym.spaces.Dict) for space in spaces] for spaces in (self._input_spaces, outputs)]
        return outputs if all(after or not before for before, after in zip(*kinds)) else output_spaces(self)

    def _recomputed(self) -> tuple[Any, Any]:
        observations, actions = self._input_spaces
        return (
            None if observations is None else self.recompute_output_observation_space(observations, actions),
            None if actions is None else self.recompute_output_action_space(observations, actions),
        )

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of observations after this piece; by default the one before it."""
        return input_observation_space

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of actions after this piece; by default the one before it."""
        return input_action_space

    # -- state ---------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return what the piece has learned, as plain data; {} for a piece as `reset_state` leaves it."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave."""

    def reset_state(self) -> None:
        """Forget what the piece has learned."""

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """One state from those of several copies of this piece."""
        return {}

    def freeze(self) -> None:
        """Stop updating running statistics: the state stays as it is and is still applied.

        Clones of a frozen piece are frozen. By default nothing else happens, which is right for pieces without
        statistics. A piece that keeps some overrides this and calls `super().freeze()`; `set_state` still changes a
        frozen piece, and it stays frozen.
        """
        self.frozen = True

    def take_side(self, training: bool) -> None:
        """Make train batches, or batches to act on, from now on. A pipeline with a known side calls this.

        It sets `as_learner_connector`, and RLlib's `_as_learner_connector`, where the constructor kept them. Override
        it, and call `super().take_side(training)`, if more of the piece depends on the side.

        Args:
            training: True for train batches.
        """
        for name in ("as_learner_connector", "_as_learner_connector"):
            if name in vars(self):
                setattr(self, name, training)

    def share(self) -> Any:
        """This piece, which may from now on stand in several pipelines, with one state for all of them."""
        self.shared = True
        return self

    def clone(self, *, share_state: bool = False) -> Any:
        """Another piece with the same arguments and spaces, which starts with a copy of the state.

        Args:
            share_state: Return this very piece, as `share` does: one state for both places.
        """
        if share_state:
            return self.share()
        args, kwargs = self.get_ctor_args_and_kwargs()
        clone = type(self)(*args, **kwargs)
        clone.spaces_by_agent = self.spaces_by_agent
        clone.input_observation_space = self.input_observation_space
        clone.input_action_space = self.input_action_space
        state = self.get_state()
        if state:
            clone.set_state(state)
        if self.frozen:
            clone.freeze()
        return clone

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The constructor's arguments as they were given."""
        return self._ctor

    # -- helpers for `__call__` ------------------------------------------------------------------

    single_agent_episode_iterator = staticmethod(batch_items.single_agent_episode_iterator)
    add_batch_item = staticmethod(batch_items.add_batch_item)
    add_n_batch_items = staticmethod(batch_items.add_n_batch_items)
    foreach_batch_item_change_in_place = staticmethod(batch_items.foreach_batch_item_change_in_place)
    switch_batch_from_column_to_module_ids = staticmethod(batch_items.switch_batch_from_column_to_module_ids)

    def __repr__(self) -> str:
        args, kwargs = self._ctor
        spelled = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
        return f"{type(self).__name__}({', '.join(spelled)})"


_SPACES = ("input_observation_space", "input_action_space")
_PLAIN = (bool, int, float, str, tuple, list, dict, type(None))
_TAKE = (
    "leave it out, or take it in a constructor of {name}'s own: "
    "def __init__(self, input_observation_space=None, input_action_space=None, *, {unknown}, **kwargs)"
)


def _check_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse keywords that the constructor does not know, naming the nearest that it does."""
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    has_own = cls.__init__ is not ConnectorV2.__init__  # type: ignore[misc]
    if has_own and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    names = [name for name in parameters if name != "self"] if has_own else [*_SPACES, "multi_agent"]
    unknown = [name for name in kwargs if name not in names]
    if unknown:
        raise PieceError(
            f"{cls.__name__}(...)",
            expected=f"arguments among {', '.join(names)}",
            found=", ".join(unknown),
            do=_advice(cls, unknown[0], names, has_own),
        )


def _advice(cls: type, name: str, names: list[str], has_own: bool) -> str:
    """Return the advice for a keyword that the constructor of a class does not take."""
    if not has_own:
        return _TAKE.format(name=cls.__name__, unknown=name)
    value = inspect.getattr_static(cls, name, cls)
    declared = any("ClassVar" in str(inspect.get_annotations(owner).get(name, "")) for owner in cls.__mro__)
    has_fields = "__dataclass_fields__" in vars(cls) and not cls.__module__.startswith("epibatch.")
    if has_fields and isinstance(value, _PLAIN) and not declared:
        kind = "Any" if value is None else type(value).__name__
        return f"annotate it in the class, which makes it a parameter: {name}: {kind} = {value!r}"
    return nearest(name, names)
