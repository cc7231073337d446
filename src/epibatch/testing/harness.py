"""Harness that runs one piece in one pipeline, on single-agent or multi-agent episodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from epibatch.connectors import AgentToModuleMapping, ModuleToAgentUnmapping
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from epibatch.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from epibatch.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline, transforms_actions_for_env
from epibatch.core.errors import PipelineError
from epibatch.core.piece_arguments import constructor_keywords
from epibatch.core.structs import convert_to_numpy
from epibatch.testing.recorded_episodes import MultiAgentRecording, growing_episodes, recorded_episodes

Factory: TypeAlias = "Callable[[], Any]"
_SMALL = {"fcnet_hiddens": [4], "max_seq_len": 4}
_SIDE = "as_learner_connector"
_PIPELINES: dict[str, Any] = {
    "env_to_module": EnvToModulePipeline,
    "module_to_env": ModuleToEnvPipeline,
    "learner": LearnerConnectorPipeline,
}


class PieceHarness:
    """A piece in one pipeline, and the methods that checks use to run it.

    Args:
        factory: Makes a new piece.
        side: "env_to_module", "module_to_env" or "learner".
        spaces: Observation and action space of one environment.
        model_config: Settings of the default module; without settings a piece that accepts no tensors runs without a
            module.

    Attributes:
        piece: one unused piece, to examine.
        acting: True if the pipeline is called at every step, for the newest row of each episode.
        recording: the source of episodes.
        multi_agent: True for multi-agent episodes.
    """

    multi_agent = False

    def __init__(self, factory: Factory, side: str, spaces: tuple[Any, Any], model_config: dict[str, Any]) -> None:
        self.side, self.spaces, self.acting = side, spaces, side != "learner"
        self.model_config = {**_SMALL, **model_config}
        self._factory = factory
        self._asks_for_module = bool(model_config)
        self._modules: dict[str, Any] = {}
        self.piece = self.make()
        self.recording: Any = self._record()

    def _record(self) -> Any:
        return recorded_episodes(self.spaces, self.model_config)

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
        kwargs = piece.get_ctor_args_and_kwargs()[1]
        return piece if _SIDE in kwargs else rebuilt(piece, **{_SIDE: True})

    def pipeline(self, piece: Any = None, before: Iterable[Any] = (), after: Iterable[Any] = ()) -> Any:
        """Return a seeded pipeline with the piece at its position.

        Args:
            piece: The piece; default: a new one.
            before: Further pieces directly before it.
            after: Further pieces directly after it.
        """
        default, (at, replaced) = self._default(), self._position
        piece = self.make() if piece is None else piece
        pipeline = self._built([*default[:at], *before, piece, *after, *default[at + replaced :]])
        pipeline.seed(0)
        return pipeline

    def pipeline_of_agents(self, agent_ids: Sequence[str], mapping: Callable[[Any, Any], Any]) -> Any:
        """Return a pipeline for agents of these spaces, each with a module of its name, and a new piece.

        Args:
            agent_ids: The agents.
            mapping: Returns the module of an agent.
        """
        default = self._default({"rl_module_specs": list(agent_ids), "agent_to_module_mapping_fn": mapping})
        at, replaced = self._position
        mapper = next(
            i for i, piece in enumerate(default) if isinstance(piece, (AgentToModuleMapping, ModuleToAgentUnmapping))
        )
        at += at > mapper or (at == mapper and bool(replaced))
        spaces = [gym.spaces.Dict(dict.fromkeys(agent_ids, space)) for space in self.spaces]
        return self._built([*default[:at], self.make(), *default[at + replaced :]], spaces)

    def _built(self, pieces: list[Any], spaces: Sequence[Any] = (), side: str = "") -> Any:
        observations, actions = spaces or self.spaces
        return _PIPELINES[side or self.side](
            input_observation_space=observations, input_action_space=actions, connectors=pieces
        )

    def _default(self, agents: Any = None, side: str = "") -> list[Any]:
        from epibatch.connectors import env_to_module, learner, module_to_env

        packages: dict[str, Any] = {"env_to_module": env_to_module, "module_to_env": module_to_env, "learner": learner}
        side = side or self.side
        pieces = list(packages[side].default_pipeline(**agents or {}))
        return pieces[:-1] if side == "learner" else pieces  # without advantages, which not every module can estimate

    @cached_property
    def _position(self) -> tuple[int, int]:
        """The piece's position (a config's, or the next valid one), and the number of pieces it replaces."""
        default = self._default()
        same = [i for i, piece in enumerate(default) if type(piece) is type(self.piece)]
        if same:
            return same[0], 1
        start, first_error = self._user_position(), None
        for at in [*range(start, len(default) + 1), *range(start)]:
            pieces = self._default()
            try:
                self._built([*pieces[:at], self.make(), *pieces[at:]])
            except PipelineError as error:
                first_error = first_error or error
                continue
            return at, 0
        raise first_error or PipelineError(self.name)

    def _user_position(self) -> int:
        """Return the number of default pieces before a user's."""
        return 4 + transforms_actions_for_env(self.piece) if self.side == "module_to_env" else 0

    @property
    def at_start(self) -> bool:
        """True if the piece is at the position of a config's user pieces."""
        return self._position == (self._user_position(), 0)

    # -- running -----------------------------------------------------------------------------------

    @property
    def with_module(self) -> bool:
        """True if pipelines get a module, and make tensors for it."""
        first = (self.piece.input_layouts or ("episodes",))[0]
        return self._asks_for_module or self.side == "module_to_env" or "tensors" in (first, self.piece.output_layout)

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
            pipeline: One of this side.
            episodes: Whole ones for the learner pipeline, growing ones for an acting step.
            module: True to pass a module even if the piece can run without one.
        """
        how: dict[str, Any] = {"episodes": episodes, "explore": False, "shared_data": {}}
        first = self._to_module if self.side == "module_to_env" else pipeline
        how["rl_module"] = self.module(first.observation_space) if self.with_module or module else None
        batch = first(batch={}, **how)
        if first is not pipeline:
            batch = dict(pipeline(batch=how["rl_module"].forward_inference(batch), **how))
        return convert_to_numpy(batch)

    @cached_property
    def _to_module(self) -> Any:
        return self._built(self._default(side="env_to_module"), side="env_to_module")

    def outputs(self, pipeline: Any = None, episodes: Any = None) -> list[Any]:
        """Return the outputs of the pipeline: one train batch, or one output for each of several acting steps.

        Args:
            pipeline: One of this side; default: one with a new piece.
            episodes: Episodes for the learner pipeline; for others an iterable of episodes by step; default: those of
                the first recorded call.
        """
        pipeline = self.pipeline() if pipeline is None else pipeline
        if episodes is None:
            episodes = self.first()
        return [self.call(pipeline, chunks) for chunks in (episodes if self.acting else [episodes])]

    def outputs_in(self, layout: str) -> list[Any]:
        """Return the outputs of a new piece after the pieces that make a layout, with a module to make tensors for.

        Args:
            layout: "episodes", "arrays" or "tensors".
        """
        pieces = self._default()
        makers = [i for i, piece in enumerate(pieces) if piece.output_layout == layout]
        at = makers[0] + 1 if makers else self._user_position()
        pipeline = self._built([*pieces[:at], self.make(), *pieces[at:]])
        calls = self.first() if self.acting else [self.first()]
        return [self.call(pipeline, episodes, module=True) for episodes in calls]

    def first(self) -> Any:
        """Return the episodes of the first recorded call: a list, or for acting an iterator over steps."""
        return growing_episodes(self.recording.for_acting()) if self.acting else self.recording.episodes()

    def later(self) -> Any:
        """Return other episodes than `first`, in the same form."""
        return growing_episodes(self.recording.for_acting(first=1)) if self.acting else self.recording.episodes(1)

    def base(self) -> list[Any]:
        """The outputs of a new piece for the first recorded call; cached, so do not change them."""
        return self._base[0]

    def has_state(self) -> bool:
        """True if the piece has a state after it ran."""
        return self._base[1]

    @cached_property
    def _base(self) -> tuple[list[Any], bool]:
        piece = self.make()
        outputs = self.outputs(self.pipeline(piece))
        return outputs, bool(piece.get_state())

    def after_first_call(self) -> tuple[Any, Any]:
        """Return a new piece that has processed the first recorded call, and its pipeline."""
        piece = self.make()
        pipeline = self.pipeline(piece)
        self.outputs(pipeline)
        return piece, pipeline

    def counts(self, episodes: Sequence[Any]) -> list[int]:
        """Return the rows of each episode in a batch: one when acting, otherwise one per step and one bootstrap row."""
        return [1 if self.acting else len(episode) + 1 for episode in episodes]


class MultiAgentHarness(PieceHarness):
    """A piece in pipelines for several agents with one module.

    Args:
        factory: Makes a new piece.
        side: "env_to_module", "module_to_env" or "learner".
        spaces: Dicts of the agents' observation and action spaces.
        model_config: Settings of the default module.
    """

    multi_agent = True

    def _record(self) -> Any:
        agents = {agent: (space, self.spaces[1][agent]) for agent, space in self.spaces[0].items()}
        recordings = {agent: recorded_episodes(pair, self.model_config) for agent, pair in agents.items()}
        return MultiAgentRecording(recordings, _one_module)

    def _default(self, agents: Any = None, side: str = "") -> list[Any]:
        only = {"rl_module_specs": ["default_policy"], "agent_to_module_mapping_fn": _one_module}
        return super()._default(agents or only, side)

    def _user_position(self) -> int:
        return super()._user_position() + (self.side == "module_to_env")

    def _module_of(self, observation_space: Any) -> Any:
        from epibatch.core.rl_module.rl_module import MultiRLModuleSpec, default_module_spec

        first = self._to_module if self.side == "module_to_env" else None
        actions = next(iter(self.spaces[1].values())) if first is None else first.action_space["default_policy"]
        spec = default_module_spec(observation_space["default_policy"], actions, self.model_config)
        return MultiRLModuleSpec(rl_module_specs={"default_policy": spec}).build()


def _one_module(agent_id: Any, episode: Any) -> str:
    """Return the id of the one module of all agents."""
    return "default_policy"


def rebuilt(piece: Any, **changes: Any) -> Any:
    """Return a new piece with the constructor arguments of another.

    Args:
        piece: The other one.
        **changes: Arguments to replace.
    """
    args, kwargs = piece.get_ctor_args_and_kwargs()
    return type(piece)(*args, **{**kwargs, **changes})


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Seed the random generators of the process equally in each of these contexts, and restore them afterwards."""
    before = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
