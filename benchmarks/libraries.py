"""epibatch and RLlib under one set of names, so that one function builds a row's side for both."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pickle
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.row import OURS, RLLIB, Options
from benchmarks.workloads import (
    AGENTS,
    MODEL_OUTPUTS,
    MODULES,
    TERMINATED,
    TRUNCATED,
    Block,
    ByAgent,
    Episode,
    module_of,
)

ACTIONS = gym.spaces.Discrete(2)
MAX_SEQ_LEN = 20
MODULE = "default_policy"

PLACES = {  # name: where RLlib has it below `ray.rllib`, and where epibatch has it
    "DQNConfig": ("algorithms.dqn", "algorithms.dqn"),
    "PPOConfig": ("algorithms.ppo", "algorithms.ppo"),
    "ConnectorV2": ("connectors.connector_v2", "connectors.connector_v2"),
    "FrameStacking": ("connectors.common.frame_stacking", "connectors.common.frame_stacking"),
    "AddOneTsToEpisodesAndTruncate": ("connectors.learner", "connectors.learner"),
    "GeneralAdvantageEstimation": ("connectors.learner", "connectors.learner"),
    "SingleAgentEnvRunner": ("env.single_agent_env_runner", "env_runner.single_agent_env_runner"),
    "MultiAgentEnv": ("env.multi_agent_env", "env_runner.multi_agent_env"),
    "MultiAgentEnvRunner": ("env.multi_agent_env_runner", "env_runner.multi_agent_env_runner"),
    "MultiAgentEpisode": ("env.multi_agent_episode", "episodes.multi_agent_episode"),
    "SingleAgentEpisode": ("env.single_agent_episode", "episodes.single_agent_episode"),
    "TorchRLModule": ("core.rl_module.torch.torch_rl_module", "core.rl_module"),
    "ValueFunctionAPI": ("core.rl_module.apis.value_function_api", "core.rl_module"),
    "RLModuleSpec": ("core.rl_module.rl_module", "core.rl_module"),
    "MultiRLModule": ("core.rl_module.multi_rl_module", "core.rl_module"),
    "TorchCategorical": ("core.distribution.torch.torch_distribution", "core.distributions"),
}


def rllib_is_there() -> bool:
    """Return True if `ray[rllib]` can be imported."""
    try:
        return importlib.util.find_spec("ray.rllib") is not None
    except ImportError:
        return False


def library_names(options: Options) -> tuple[str, ...]:
    """Return the libraries to measure."""
    return (OURS, RLLIB) if options.rllib else (OURS,)


@cache
def library(name: str) -> SimpleNamespace:
    """Return one library's classes, a network without weights (`Stub`) and a piece that does nothing (`Identity`)."""
    root, column = ("ray.rllib", 0) if name == RLLIB else ("epibatch", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = SimpleNamespace(
            **{own: getattr(importlib.import_module(f"{root}.{places[column]}"), own) for own, places in PLACES.items()}
        )
    logging.getLogger("ray").setLevel(logging.ERROR)  # its own modules use what it calls deprecated
    found.Stub = _stub(found)
    found.Identity = _identity(found.ConnectorV2)
    return found


def _stub(lib: SimpleNamespace) -> Any:
    import torch

    class Stub(lib.TorchRLModule, lib.ValueFunctionAPI):  # type: ignore[misc, name-defined]
        def setup(self) -> None:
            pass

        def get_initial_state(self) -> Any:
            size = self.model_config["state"]
            return {"h": torch.zeros(size), "c": torch.zeros(size)} if size else {}

        def _forward(self, batch: Any, **kwargs: Any) -> Any:
            return {}

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            return values(batch["obs"])

        def get_exploration_action_dist_cls(self) -> Any:
            return lib.TorchCategorical

        get_inference_action_dist_cls = get_exploration_action_dist_cls
        get_train_action_dist_cls = get_exploration_action_dist_cls

    return Stub


def values(observations: Any) -> Any:
    """Return the value predictions of the stub network."""
    return observations[..., 0] * 0.1


def _identity(base: Any) -> Any:
    class Identity(base):  # type: ignore[misc]
        def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
            return batch

    return Identity


def box(shape: tuple[int, ...], kind: str = "float32") -> gym.spaces.Box:
    """Return the space of observations of a shape and kind."""
    return gym.spaces.Box(0, 255, shape, np.uint8) if kind == "uint8" else gym.spaces.Box(-np.inf, np.inf, shape)


@dataclass(frozen=True)
class Setup:
    """Spaces, configuration, network and episodes of one agent, or of eight agents with three modules.

    Args:
        space: Of an observation.
        state: Size of the two recurrent states; 0: none.
        agents: True for eight agents.
        max_seq_len: Steps of a sequence.
    """

    space: gym.spaces.Box = field(default_factory=lambda: box((4,)))
    state: int = 0
    agents: bool = False
    max_seq_len: int = MAX_SEQ_LEN

    def spaces(self, shared: bool = True) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Return the spaces of observations and actions; agents have the same objects, or copies."""
        if not self.agents:
            return self.space, ACTIONS
        return (
            gym.spaces.Dict({agent: self.space if shared else deepcopy(self.space) for agent in AGENTS}),
            gym.spaces.Dict({agent: ACTIONS if shared else deepcopy(ACTIONS) for agent in AGENTS}),
        )

    def config(self, lib: SimpleNamespace) -> Any:
        """Return a PPO configuration with all defaults."""
        observation_space, action_space = self.spaces()
        config = lib.PPOConfig().environment(observation_space=observation_space, action_space=action_space)
        return config.multi_agent(policies=set(MODULES), policy_mapping_fn=module_of) if self.agents else config

    def spec(self, lib: SimpleNamespace) -> Any:
        """Return what builds the stub network."""
        return lib.RLModuleSpec(
            module_class=lib.Stub,
            observation_space=self.space,
            action_space=ACTIONS,
            model_config={"state": self.state, "max_seq_len": self.max_seq_len},
        )

    def modules(self, lib: SimpleNamespace) -> Any:
        """Return the stub network of each module."""
        names = MODULES if self.agents else (MODULE,)
        return lib.MultiRLModule(rl_module_specs={name: self.spec(lib) for name in names})

    def empty(self, lib: SimpleNamespace, shared: bool = True) -> Any:
        """Return an episode of a library without a step."""
        spaces = dict(zip(("observation_space", "action_space"), self.spaces(shared)))
        if self.agents:
            return lib.MultiAgentEpisode(**spaces, agent_to_module_mapping_fn=module_of)
        return lib.SingleAgentEpisode(**spaces)

    def episode(self, lib: SimpleNamespace, columns: Episode | ByAgent, shared: bool = True) -> Any:
        """Return an episode of a library with these columns."""
        return grown(self.empty(lib, shared), *as_calls(columns))


Call = dict[str, Any]


def as_calls(columns: Episode | ByAgent) -> tuple[Call, list[Call]]:
    """Return the arguments of `add_env_reset`, and those of `add_env_step` for each step."""
    if isinstance(columns, Episode):
        return {"observation": columns.obs[0]}, list(map(partial(_step, columns), range(len(columns))))
    agents = {agent: as_calls(episode) for agent, episode in columns.items()}
    steps = []
    for t in range(len(columns[AGENTS[0]])):
        rows = {agent: calls[t] for agent, (_, calls) in agents.items()}
        names = ("observation", "action", "reward")
        step = {f"{name}s": {agent: row[name] for agent, row in rows.items()} for name in names}
        step["extra_model_outputs"] = {agent: row["extra_model_outputs"] for agent, row in rows.items()}
        steps.append(step | {f"{name}s": {"__all__": rows[AGENTS[0]][name]} for name in ("terminated", "truncated")})
    return {"observations": {agent: reset["observation"] for agent, (reset, _) in agents.items()}}, steps


def _step(columns: Episode, t: int) -> Call:
    extras: Call = {name: columns.steps[name][t] for name in MODEL_OUTPUTS}
    if columns.state:
        extras["state_out"] = {name: column[t] for name, column in columns.state.items()}
    ends = t == len(columns) - 1
    return {
        "observation": columns.obs[t + 1],
        "action": columns.steps["actions"][t],
        "reward": float(columns.steps["rewards"][t]),
        "extra_model_outputs": extras,
        "terminated": ends and columns.end == TERMINATED,
        "truncated": ends and columns.end == TRUNCATED,
    }


def grown(episode: Any, reset: Call, steps: Sequence[Call]) -> Any:
    """Return an empty episode after these calls."""
    episode.add_env_reset(**reset)
    for step in steps:
        episode.add_env_step(**step)
    return episode


def recorder_of(columns: Block, space: gym.Space[Any]) -> Any:
    """Return epibatch's recorder of vector steps, as the runner fills it."""
    from epibatch.episodes import VectorRecorder

    rows, num_envs = columns.terminateds.shape
    recorder = VectorRecorder(num_envs, space, ACTIONS, autoreset="next_step", capacity=rows)
    recorder.reset(columns.obs[0])
    for row in range(rows):
        recorder.commit()
        extras = {
            name: _row(column, row) for name, column in columns.steps.items() if name not in ("actions", "rewards")
        }
        recorder.step(
            columns.steps["actions"][row],
            columns.steps["rewards"][row],
            columns.terminateds[row],
            columns.truncateds[row],
            columns.obs[row + 1],
            extras=extras,
        )
    return recorder


def _row(column: Any, row: int) -> Any:
    return {name: leaf[row] for name, leaf in column.items()} if isinstance(column, dict) else column[row]


def rebuilt(objects: Sequence[Any]) -> Callable[[], Any]:
    """Return what makes new copies of episodes: RLlib's pieces change the episodes that they are given."""
    blob = pickle.dumps(objects, protocol=5)
    return lambda: pickle.loads(blob)


def sent(objects: Sequence[Any]) -> Callable[[], Any]:
    """Return what makes new copies of episodes as they come from other processes: each by itself, nothing shared."""
    blobs = [pickle.dumps(own, protocol=5) for own in objects]
    return lambda: [pickle.loads(blob) for blob in blobs]
