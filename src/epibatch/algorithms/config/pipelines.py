"""A config's three pipelines: the user's pieces, from hooks or from data, among the default ones."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from epibatch.core.errors import EpibatchWarning, PieceError, PipelineError
from epibatch.core.imports import advice_for_piece
from epibatch.core.registry import build_piece, spec_problems
from epibatch.core.settings import Place

from ...connectors.authoring.functions import piece_of_function
from ...connectors.connector_v2 import ConnectorV2
from ...connectors.sequences.burn_in import BurnIn
from ...episodes.arrays import same_value

if TYPE_CHECKING:
    from ...connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline


@dataclass(frozen=True)
class PipelineHook:
    """Source of the user's pieces of one pipeline in a config.

    Attributes:
        name: the pipeline's name in a file.
        setting: the keyword in the config's methods.
        arguments: what a function given there is called with; one with a single parameter gets the environment.
        section: the first part of the setting's path.
    """

    name: str
    setting: str
    arguments: tuple[str, ...]
    section: str


PIPELINES: dict[str, PipelineHook] = {
    hook.name: hook
    for hook in (
        PipelineHook("env_to_module", "env_to_module_connector", ("env", "spaces", "device"), "env_runners"),
        PipelineHook("module_to_env", "module_to_env_connector", ("env", "spaces"), "env_runners"),
        PipelineHook("learner", "learner_connector", ("obs_space", "act_space"), "learners"),
    )
}


# --------------------------------------------------------------------------------------------- hooks


def _arity(function: Callable[..., Any], hook: PipelineHook) -> int | None:
    """Return the number of positional arguments of a hook; None if it accepts neither form."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    for count in (len(hook.arguments), 1):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count
    return None


def hook_problems(hook: PipelineHook, value: Any, *, allow_imports: bool) -> Iterator[tuple[Place, str]]:
    """Yield what is wrong with the value of a pipeline setting, before any pipeline is built: place in it, text.

    Args:
        hook: The pipeline it is for.
        value: None, a function, or a list of piece specs.
        allow_imports: Whether specs may name pieces by import path.
    """
    form = f"lambda {', '.join(hook.arguments)}: [MyPiece()]"
    if value is None:
        return
    if isinstance(value, Sequence) and not isinstance(value, str):
        for index, spec in enumerate(value):
            if not isinstance(spec, (str, Mapping)):
                found = _code_name(spec)
                advice = f"a function makes new pieces for every pipeline: {form}"
                yield (index,), f"expected a piece's name or {{piece: name}}, found {found}; {advice}"
                continue
            for key, text in spec_problems(spec, pipeline=hook.name, allow_imports=allow_imports):
                yield (index, key) if key else (index,), text
    elif isinstance(value, type) or hasattr(value, "recompute_output_observation_space"):
        found = _code_name(value)
        yield (), f"expected a function, so that every pipeline gets its own piece; found {found}. Use {form}"
    elif not callable(value):
        yield (), f"expected a function or a list of piece specs, found {type(value).__name__}. Use {form}"
    elif _arity(value, hook) is None:
        yield (), f"expected a function of ({', '.join(hook.arguments)}) or of (env). Use {form}"


def _code_name(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__} object"


def user_pieces(
    name: str, value: Any, arguments: Sequence[Any], env: Any, *, allow_imports: bool = False
) -> list[ConnectorV2]:
    """The user's pieces of one pipeline, newly made.

    Args:
        name: The pipeline.
        value: The config's setting: None, a function, or a list of piece specs.
        arguments: What a function is called with.
        env: What a function with a single parameter is called with.
        allow_imports: Whether specs may name pieces by import path.

    Raises:
        PieceError: the function returned something other than pieces and their specs.
    """
    hook = PIPELINES[name]
    if value is None:
        return []

    def built(item: Any) -> Any:
        if isinstance(item, str) or (isinstance(item, Mapping) and "piece" in item):
            return build_piece(item, allow_imports=allow_imports)
        return (inspect.isfunction(item) and piece_of_function(item)) or item

    if not callable(value):
        return [build_piece(spec, allow_imports=allow_imports) for spec in value]
    result = value(*arguments) if _arity(value, hook) == len(hook.arguments) else value(env)
    pieces = [built(item) for item in (result if isinstance(result, (list, tuple)) else [result])]
    for piece in pieces:
        if not isinstance(piece, ConnectorV2):
            is_class = isinstance(piece, type) and issubclass(piece, ConnectorV2)
            found = f"the class {piece.__name__}" if is_class else f"{type(piece).__name__} {piece!r}"
            do = f"call it: {piece.__name__}(...)" if is_class else _RETURN
            raise PieceError(
                f"{hook.setting}, the function {getattr(value, '__qualname__', type(value).__name__)}",
                expected="one connector piece or a list of them",
                found=found + ("" if result is piece else " in a list"),
                do=advice_for_piece(piece) or do,
            )
    return pieces


_RETURN = (
    "return the pieces. A function without a return statement returns None; one that is to be a piece names its first "
    "parameter as the column that it changes: rewards, obs"
)


def add_burn_in(pipeline: LearnerConnectorPipeline) -> None:
    """Put BurnIn after NumpyToTensor, unless the pipeline has one."""
    if "burn_in" not in pipeline.names:
        pipeline.insert_after("NumpyToTensor", BurnIn())


def single_spaces(spaces: Mapping[str, Any] | None, env: Any, given: tuple[Any, Any]) -> tuple[Any, Any]:
    """The observation and action space of one environment, as a pipeline's input.

    Args:
        spaces: `{"__env__": (obs, act), "__env_single__": (obs, act)}`, or None.
        env: A (vector) environment to ask if there are no `spaces`, or None.
        given: The config's own observation and action space; each wins over what is missing.

    Raises:
        PipelineError: `spaces` has no entry for one environment.
    """
    if spaces is not None:
        if "__env_single__" in spaces:
            return spaces["__env_single__"][0], spaces["__env_single__"][1]
        raise PipelineError(
            "spaces of a pipeline",
            expected="an entry '__env_single__': (observation space, action space)",
            found=f"the keys {', '.join(map(str, spaces)) or 'none'}",
            do='pass spaces={"__env__": (obs, act), "__env_single__": (obs, act)}',
        )
    if hasattr(env, "get_observation_space"):  # a MultiAgentEnv
        return _by_agent(env)
    observation = getattr(env, "single_observation_space", getattr(env, "observation_space", None))
    action = getattr(env, "single_action_space", getattr(env, "action_space", None))
    return (
        given[0] if observation is None else observation,
        given[1] if action is None else action,
    )


def _by_agent(env: Any) -> tuple[Any, Any]:
    agents = env.possible_agents
    return (
        gym.spaces.Dict({agent: env.get_observation_space(agent) for agent in agents}),
        gym.spaces.Dict({agent: env.get_action_space(agent) for agent in agents}),
    )


def check_same_pieces(found: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> None:
    """Check that pipelines that a config builds have the pieces of those that train.

    Args:
        found: Pipelines by name.
        expected: Those that train.
        where: For the message.

    Raises:
        PipelineError: they have not, because the training pipelines were edited.
    """
    for name, pipeline in expected.items():
        names, other = ([*given_pieces(side)] for side in (pipeline, found[name]))
        if names != other:
            raise PipelineError(
                f"{where}, {name}",
                expected=f"the pieces of the pipeline that trains: {', '.join(names)}",
                found=", ".join(other),
                do="give the config all pieces, rather than adding some to a pipeline that was built",
            )


def given_pieces(pipeline: Any) -> dict[str, Any]:
    """A pipeline's pieces by name, but for those that follow from what modules declare."""
    pieces = zip(pipeline.names, pipeline)
    return {name: piece for name, piece in pieces if not getattr(piece, "declared", False)}


def is_edited(pipeline: Any, built: Mapping[str, Any]) -> bool:
    """True if a pipeline has other pieces than `given_pieces` gave when it was built."""
    pieces = given_pieces(pipeline)
    return [*pieces] != [*built] or any(piece is not built[name] for name, piece in pieces.items())


# -------------------------------------------------------------------------------------------- frozen


class FrozenStates:
    """A check that calls of frozen pipelines leave the states of their pieces as they are.

    Only the first two blocks are checked, as it takes copies of the states. Pieces that have a method `seed` are passed
    over: their generators go on.

    Args:
        pipelines: The frozen pipelines.
    """

    def __init__(self, *pipelines: Any) -> None:
        pieces = [piece for pipeline in pipelines for piece in pipeline.pieces()]
        self._pieces = [
            piece
            for piece in pieces
            if type(piece).get_state is not ConnectorV2.get_state and not hasattr(piece, "seed")
        ]
        self._blocks_left = 2

    @contextmanager
    def checked(self, where: str) -> Iterator[None]:
        """Warn after the block if it changed the state of a piece.

        Args:
            where: What the pipelines are frozen for, for the warning.
        """
        if not self._pieces:
            yield
            return
        before = [piece.get_state() for piece in self._pieces]
        yield
        moved = [piece for piece, state in zip(self._pieces, before) if not same_value(state, piece.get_state())]
        self._blocks_left -= 1
        if moved or not self._blocks_left:
            self._pieces = []
        if moved:
            names = ", ".join(type(piece).__name__ for piece in moved)
            warning = EpibatchWarning(
                where,
                expected="pieces whose state stays as it is, since the pipeline is frozen",
                found=f"another state of {names} after a call, so what it gives depends on earlier calls",
                do="let the piece learn nothing while its attribute `frozen` is True; ConnectorV2.freeze sets it",
            )
            warnings.warn(warning, stacklevel=4)
