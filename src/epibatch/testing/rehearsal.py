"""Runs of one piece in one pipeline: new copies of it in pipelines, and their outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from epibatch.connectors._engine.agent_table import AgentMapper
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from epibatch.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from epibatch.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline, has_the_last_word
from epibatch.core.errors import PipelineError
from epibatch.core.piece_arguments import constructor_keywords
from epibatch.core.structs import convert_to_numpy
from epibatch.testing.stage import growing, recorded_in

__all__ = ["Factory", "Rehearsal", "made_again", "plain_neighbour", "same_numbers"]

Factory: TypeAlias = "Callable[[], Any]"
_SMALL = {"fcnet_hiddens": [4], "max_seq_len": 4}
_SIDE = "as_learner_connector"


class Rehearsal:
    """A piece in one pipeline, and the methods that checks use to run it.

    Args:
        factory: makes a new piece.
        side: "env_to_module", "module_to_env" or "learner".
        spaces: observation and action space of one environment.
        model_config: settings of the default module; without settings a piece that accepts no tensors runs without a
            module.

    Attributes:
        piece: one unused piece, to examine.
        acting: True if the pipeline is called at every step, for the newest row of each episode.
        recording: the source of episodes.
        several: True for multi-agent episodes.
    """

    several = False

    def __init__(self, factory: Factory, side: str, spaces: tuple[Any, Any], model_config: dict[str, Any]) -> None:
        self.side, self.spaces, self.acting = side, spaces, side != "learner"
        self._factory = factory
        self.model_config = {**_SMALL, **model_config}
        self._own_module = bool(model_config)
        self.piece = self.make()
        self.recording: Any = self._recorded()
        self._place: tuple[int, int] | None = None
        self._modules: dict[str, Any] = {}
        self._first: Any = None
        self._outputs: list[Any] | None = None
        self._has_state = False

    def _recorded(self) -> Any:
        return recorded_in(self.spaces, self.model_config)

    @property
    def name(self) -> str:
        """The piece's class."""
        return type(self.piece).__name__

    @property
    def declared(self) -> bool:
        """True if the piece declares the columns that it reads."""
        return self.piece.reads is not None

    @property
    def draws(self) -> bool:
        """True if the piece draws random numbers."""
        return hasattr(self.piece, "seed")

    def overrides(self, method: str) -> bool:
        """True if the piece overrides a method of `ConnectorV2`."""
        return getattr(type(self.piece), method) is not getattr(ConnectorV2, method)

    # -- pieces and pipelines --------------------------------------------------------------------

    def make(self) -> Any:
        """Return a new piece; if its side is an argument, for this side."""
        piece = self._factory()
        if self.side != "learner" or _SIDE not in constructor_keywords(type(piece)):
            return piece
        given = piece.get_ctor_args_and_kwargs()[1]
        return piece if _SIDE in given else made_again(piece, **{_SIDE: True})

    def pipeline(self, piece: Any, before: Iterable[Any] = (), after: Iterable[Any] = ()) -> Any:
        """Return a seeded pipeline with the piece at its position.

        Args:
            piece: the piece.
            before: further pieces directly before it.
            after: further pieces directly after it.
        """
        default = self._default()
        at, instead = self._placed(default)
        pipeline = self._built([*default[:at], *before, piece, *after, *default[at + instead :]])
        pipeline.seed(0)
        return pipeline

    def pipeline_of_agents(self, piece: Any, agent_ids: Sequence[str], mapping: Callable[[Any, Any], Any]) -> Any:
        """Return a pipeline for agents of these spaces, each with a module of its name, and the piece at its position.

        Args:
            piece: the piece.
            agent_ids: the agents.
            mapping: returns the module of an agent.
        """
        agents = {"rl_module_specs": list(agent_ids), "agent_to_module_mapping_fn": mapping}
        default = self._default(agents)
        at, instead = self._placed(self._default())
        mapped = next(i for i, one in enumerate(default) if isinstance(one, AgentMapper))
        at += at > mapped or (at == mapped and bool(instead))
        spaces = [gym.spaces.Dict(dict.fromkeys(agent_ids, space)) for space in self.spaces]
        pieces = [*default[:at], piece, *default[at + instead :]]
        return _PIPELINES[self.side](input_observation_space=spaces[0], input_action_space=spaces[1], connectors=pieces)

    def _built(self, pieces: list[Any]) -> Any:
        return _PIPELINES[self.side](
            input_observation_space=self.spaces[0], input_action_space=self.spaces[1], connectors=pieces
        )

    def _default(self, agents: Any = None, side: str = "") -> list[Any]:
        from epibatch.connectors import env_to_module, learner, module_to_env

        side = side or self.side
        if side == "learner":
            pipeline: Any = learner.default_pipeline(**agents or {})
            return list(pipeline)[:-1]  # without advantages, which not every module can estimate
        return list((env_to_module if side == "env_to_module" else module_to_env).default_pipeline(**agents or {}))

    def _placed(self, default: list[Any]) -> tuple[int, int]:
        """Return the piece's position (a config's, or the next valid one), and the number of pieces it replaces."""
        if self._place is not None:
            return self._place
        own = [i for i, one in enumerate(default) if type(one) is type(self.piece)]
        if own:
            self._place = own[0], 1
            return self._place
        start, refused = self._user_place(), None
        for at in [*range(start, len(default) + 1), *range(start)]:
            pieces = self._default()
            try:
                self._built([*pieces[:at], self.make(), *pieces[at:]])
            except PipelineError as error:
                refused = refused or error
                continue
            self._place = at, 0
            return self._place
        raise refused or PipelineError(self.name)

    def _user_place(self) -> int:
        """Return the number of default pieces before a user's."""
        return 4 + has_the_last_word(self.piece) if self.side == "module_to_env" else 0

    @property
    def at_start(self) -> bool:
        """True if the piece is at the position of a config's user pieces."""
        return self._placed(self._default()) == (self._user_place(), 0)

    # -- running -----------------------------------------------------------------------------------

    @property
    def with_module(self) -> bool:
        """True if pipelines get a module, and make tensors for it."""
        first = (self.piece.input_layouts or ("episodes",))[0]
        return self._own_module or self.side == "module_to_env" or "tensors" in (first, self.piece.output_layout)

    def module(self, observation_space: Any) -> Any:
        """Return the default module for a pipeline's output, with the same weights every time."""
        key = repr(observation_space)
        if key not in self._modules:
            import torch

            with torch.random.fork_rng():
                torch.manual_seed(0)
                self._modules[key] = self._module_of(observation_space)
        return self._modules[key]

    def _module_of(self, observation_space: Any) -> Any:
        from epibatch.core.rl_module.rl_module import default_module_spec

        return default_module_spec(observation_space, self.spaces[1], self.model_config).build()

    def call(self, pipeline: Any, episodes: Any, *, module: bool = False) -> Any:
        """Return the output of one pipeline call on these episodes, as arrays.

        Args:
            pipeline: one of this side.
            episodes: whole ones for the learner pipeline, growing ones for an acting step.
            module: True to pass a module even if the piece can run without one.
        """
        how: dict[str, Any] = {"episodes": episodes, "explore": False, "shared_data": {}}
        first = self._to_module() if self.side == "module_to_env" else pipeline
        how["rl_module"] = self.module(first.observation_space) if self.with_module or module else None
        batch = first(batch={}, **how)
        if first is not pipeline:
            batch = dict(pipeline(batch=how["rl_module"].forward_inference(batch), **how))
        return convert_to_numpy(batch)

    def _to_module(self) -> Any:
        if self._first is None:
            self._first = _PIPELINES["env_to_module"](
                input_observation_space=self.spaces[0],
                input_action_space=self.spaces[1],
                connectors=self._default(side="env_to_module"),
            )
        return self._first

    def outputs(self, pipeline: Any, episodes: Any = None) -> list[Any]:
        """Return the outputs of the pipeline: one train batch, or one output for each of several acting steps.

        Args:
            pipeline: one of this side.
            episodes: episodes for the learner pipeline; for others an iterable of episodes by step; default: those of
                the first recorded call.
        """
        if not self.acting:
            return [self.call(pipeline, self.recording.episodes() if episodes is None else episodes)]
        steps = growing(self.recording.played()) if episodes is None else episodes
        return [self.call(pipeline, shown) for shown in steps]

    def outputs_in(self, layout: str) -> list[Any]:
        """Return the outputs of a new piece after the pieces that make a layout, with a module to make tensors for.

        Args:
            layout: "episodes", "arrays" or "tensors".
        """
        pieces = self._default()
        makers = [i for i, one in enumerate(pieces) if one.output_layout == layout]
        at = makers[0] + 1 if makers else self._user_place()
        pipeline = self._built([*pieces[:at], self.make(), *pieces[at:]])
        shown = growing(self.recording.played()) if self.acting else [self.recording.episodes()]
        return [self.call(pipeline, episodes, module=True) for episodes in shown]

    def base(self) -> list[Any]:
        """The outputs of a new piece for the first recorded call; cached, so do not change them."""
        if self._outputs is None:
            piece = self.make()
            self._outputs = self.outputs(self.pipeline(piece))
            self._has_state = bool(piece.get_state())
        return self._outputs

    def has_state(self) -> bool:
        """True if the piece has a state after it ran."""
        self.base()
        return self._has_state

    def later(self) -> Any:
        """Return other episodes than the first call's, in the form of `outputs`."""
        return growing(self.recording.played(first=1)) if self.acting else self.recording.episodes(1)

    def counts(self, episodes: Sequence[Any]) -> list[int]:
        """Return the rows of each episode in a batch: one when acting, otherwise one per step and one bootstrap row."""
        return [1 if self.acting else len(episode) + 1 for episode in episodes]


def made_again(piece: Any, **changes: Any) -> Any:
    """Return a new piece with the constructor arguments of another.

    Args:
        piece: the other one.
        **changes: arguments to replace.
    """
    args, kwargs = piece.get_ctor_args_and_kwargs()
    return type(piece)(*args, **{**kwargs, **changes})


@contextmanager
def same_numbers() -> Iterator[None]:
    """Seed the random generators of the process equally in each of these contexts, and restore them afterwards."""
    known = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(known[0])
        np.random.set_state(known[1])


def plain_neighbour() -> Any:
    """Return a piece that does nothing and declares nothing, so that its neighbours get plain dicts."""

    class Plain(ConnectorV2):
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            return batch

    return Plain()


_PIPELINES: dict[str, Any] = {
    "env_to_module": EnvToModulePipeline,
    "module_to_env": ModuleToEnvPipeline,
    "learner": LearnerConnectorPipeline,
}
