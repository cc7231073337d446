"""Faults of the module-to-env pieces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from epibatch.core.errors import BatchLayoutError
from oracle.modules import build_module
from oracle.probes import Raises, plain, probe

BOX = gym.spaces.Box(-99, 99, (1,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


def episodes_of(library: Any, *ids: str) -> list[Any]:
    """Episodes that have been reset."""
    episodes = [library.SingleAgentEpisode(id_=id_) for id_ in ids]
    for episode in episodes:
        episode.add_env_reset(np.zeros(1, np.float32))
    return episodes


def acted(library: Any, pieces: Any, batch: Any, actions: gym.Space[Any] = DISCRETE, **keywords: Any) -> Any:
    """What module-to-env pieces make of a batch for two environments."""
    pipeline = library.module_to_env.ModuleToEnvPipeline(BOX, actions, connectors=list(pieces))
    shared = {"memorized_map_structure": ["a", "b"]}
    keywords.setdefault("rl_module", None)
    return pipeline(batch=batch, episodes=episodes_of(library, "a", "b"), shared_data=shared, **keywords)


def default_pieces(library: Any) -> list[Any]:
    m = library.module_to_env
    scale = m.NormalizeAndClipActions(normalize_actions=True, clip_actions=False)
    return [m.TensorToNumpy(), m.UnBatchToIndividualItems(), scale, m.ListifyDataForVectorEnv()]


def listed(library: Any, items: Any) -> Any:
    """A column that a user's piece leaves, as the environments `a` and `b` get it."""
    m = library.module_to_env

    class Leave(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            return {"actions": items}

    pieces = [m.TensorToNumpy(), m.UnBatchToIndividualItems(), Leave(), m.ListifyDataForVectorEnv()]
    return plain(acted(library, pieces, {"actions": torch.tensor([0, 0])})["actions"])


@probe("O38", ours=Raises(BatchLayoutError, "nobody"), theirs=[1, 2])
def test_items_of_an_unknown_episode(library: Any) -> Any:
    return listed(library, {("a",): [1], ("nobody",): [2]})


@probe("O38", ours=[1, 2], theirs=[2, 1])
def test_rows_follow_the_episodes(library: Any) -> Any:
    return listed(library, {("b",): [2], ("a",): [1]})


@probe("O41", ours=True, theirs=False)
def test_actions_that_stay_the_same_are_not_copied(library: Any) -> Any:
    batch = acted(library, default_pieces(library), {"actions": torch.tensor([2, 0])})
    return bool(np.shares_memory(batch["actions"], batch["actions_for_env"]))


@probe("O42", ours=[5_000_000_000, "int64"], theirs=[705_032_704, "int32"])
def test_large_integers_reach_the_environment(library: Any) -> Any:
    ids = library.module_to_env.TensorToNumpy()(
        rl_module=None, batch={"ids": torch.tensor([5_000_000_000])}, episodes=[]
    )["ids"]
    return [int(ids[0]), str(ids.dtype)]


@probe("O42", ours="ndarray", theirs="float")
def test_tensors_without_axes_become_arrays(library: Any) -> Any:
    batch = acted(library, [library.module_to_env.TensorToNumpy()], {"x": torch.tensor(1.5)})
    return type(batch["x"]).__name__


@probe("O43", ours=[-1.0986, -1.0986], theirs=["no logp"])
def test_actions_of_the_module_get_their_log_probability(library: Any) -> Any:
    """Of three actions that are equally likely: log(1/3)."""
    batch = {"actions": torch.tensor([2, 0]), "action_dist_inputs": torch.zeros(2, 3)}
    module = build_module(library, BOX, DISCRETE)
    batch = acted(library, [library.module_to_env.GetActions()], batch, rl_module=module, explore=True)
    return [round(float(x), 4) for x in batch["action_logp"]] if "action_logp" in batch else ["no logp"]


@probe("O44", ours=[[0.0, 1.0], [2.0, -2.0]], theirs=[[-3.0, 5.0], [2.0, -2.0]])
def test_half_bounded_boxes_are_clipped(library: Any) -> Any:
    space = gym.spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 1.0]))
    actions = torch.tensor([[-3.0, 5.0], [2.0, -2.0]])
    return plain(acted(library, default_pieces(library), {"actions": actions}, space)["actions_for_env"])


@probe("O44", ours=[0.5, 2.0], theirs=[-1.0, -1.0])
def test_half_bounded_boxes_are_not_normalised(library: Any) -> Any:
    helpers = library.module("utils.spaces.space_utils" if library.name == "RLlib" else "core.spaces")
    return plain(helpers.normalize_action(np.array([0.5, 2.0], np.float32), gym.spaces.Box(0, np.inf, (2,))))


@probe("O44", ours=[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], theirs=Raises(AssertionError, r"max. index of `x` \(5\)"))
def test_one_hot_of_a_discrete_space_with_a_start(library: Any) -> Any:
    buffer = library.InfiniteLookbackBuffer(data=[5, 6], space=gym.spaces.Discrete(3, start=5))
    return plain(buffer.get(slice(0, 2), one_hot_discrete=True))
