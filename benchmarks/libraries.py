"""epibatch and RLlib under one set of names, so that one function builds a row's side for both."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pickle
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.columns import MODEL_OUTPUTS, TERMINATED, TRUNCATED, Episode
from benchmarks.names import OURS, RLLIB
from benchmarks.row import Options

ACTIONS = gym.spaces.Discrete(2)
MAX_SEQ_LEN = 20
MODULE = "default_policy"

PLACES = {  # name: where RLlib has it below `ray.rllib`, and where epibatch has it
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
    """Whether `ray[rllib]` can be imported."""
    try:
        return importlib.util.find_spec("ray.rllib") is not None
    except ImportError:
        return False


def library_names(options: Options) -> tuple[str, ...]:
    """The libraries to measure."""
    return (OURS, RLLIB) if options.rllib else (OURS,)


@cache
def library(name: str) -> SimpleNamespace:
    """One library's classes; `Stub` is a network without weights, `Identity` a user's piece that does nothing."""
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
    """The value predictions of the stub network."""
    return observations[..., 0] * 0.1


def _identity(base: Any) -> Any:
    class Identity(base):  # type: ignore[misc]
        def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
            return batch

    return Identity


def box(shape: tuple[int, ...], kind: str = "float32") -> gym.spaces.Box:
    """The space of observations of a shape and kind."""
    if kind == "uint8":
        return gym.spaces.Box(0, 255, shape, np.uint8)
    return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)


def spec(lib: SimpleNamespace, space: gym.Space[Any], state: int) -> Any:
    """What builds the stub network."""
    return lib.RLModuleSpec(
        module_class=lib.Stub,
        observation_space=space,
        action_space=ACTIONS,
        model_config={"state": state, "max_seq_len": MAX_SEQ_LEN},
    )


def config(lib: SimpleNamespace, space: gym.Space[Any]) -> Any:
    """A PPO configuration with all defaults, for these spaces."""
    return lib.PPOConfig().environment(observation_space=space, action_space=ACTIONS)


def single_agent_episode(lib: SimpleNamespace, index: int, columns: Episode, space: gym.Space[Any]) -> Any:
    """A finished episode of a library, from its columns, in array form."""
    extras: dict[str, Any] = {name: list(columns.steps[name]) for name in MODEL_OUTPUTS}
    if columns.state:
        rows = zip(*columns.state.values())
        extras["state_out"] = [dict(zip(columns.state, row)) for row in rows]
    return lib.SingleAgentEpisode(
        id_=f"e{index}",
        observations=list(columns.obs),
        actions=list(columns.steps["actions"]),
        rewards=list(columns.steps["rewards"]),
        extra_model_outputs=extras,
        observation_space=space,
        action_space=ACTIONS,
        terminated=columns.end == TERMINATED,
        truncated=columns.end == TRUNCATED,
        len_lookback_buffer=0,
        t_started=0,
    ).to_numpy()


def rebuilt(objects: Sequence[Any]) -> Callable[[], Any]:
    """What makes fresh copies of episodes: RLlib's pieces change the episodes that they are given."""
    blob = pickle.dumps(objects, protocol=5)
    return lambda: pickle.loads(blob)


def sent(objects: Sequence[Any]) -> Callable[[], Any]:
    """What makes fresh copies of episodes as they come from other processes: each by itself, nothing shared."""
    blobs = [pickle.dumps(own, protocol=5) for own in objects]
    return lambda: [pickle.loads(blob) for blob in blobs]
