"""Faults and differences on purpose between a module's outputs and the environment's actions."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from epibatch.core.errors import BatchLayoutError, ColumnError
from oracle.libraries import EPIBATCH, RLLIB
from oracle.makers import ACT, BOX, run, user
from oracle.modules import build_module
from oracle.probes import Raises, plain, probe, rounded, tried


def episodes_of(library: Any, *ids: str) -> list[Any]:
    """Episodes that have been reset."""
    episodes = [library.SingleAgentEpisode(id_=id_) for id_ in ids]
    for episode in episodes:
        episode.add_env_reset(np.zeros(1, np.float32))
    return episodes


def acted_with(library: Any, pieces: Any, batch: Any, actions: gym.Space[Any] = ACT, **keywords: Any) -> Any:
    """What module-to-env pieces make of a batch for two environments."""
    pipeline = library.module_to_env.ModuleToEnvPipeline(BOX, actions, connectors=list(pieces))
    shared = {"memorized_map_structure": ["a", "b"]}
    return run(pipeline, episodes_of(library, "a", "b"), batch=batch, shared_data=shared, **keywords)


def default_pieces(library: Any, *, clip: bool = False, normalize: bool = True) -> list[Any]:
    m = library.module_to_env
    scale = m.NormalizeAndClipActions(normalize_actions=normalize, clip_actions=clip)
    return [m.TensorToNumpy(), m.UnBatchToIndividualItems(), scale, m.ListifyDataForVectorEnv()]


def left(library: Any, items: Any) -> Any:
    """A column that a user's piece leaves, as the environments `a` and `b` get it."""
    pieces = default_pieces(library)
    pieces[2] = user(library, lambda *_: {"actions": items})
    return plain(acted_with(library, pieces, {"actions": torch.tensor([0, 0])})["actions"])


@probe("O38", ours=Raises(BatchLayoutError, "nobody"), theirs=[1, 2])
def test_items_of_an_unknown_episode(library: Any) -> Any:
    return left(library, {("a",): [1], ("nobody",): [2]})


@probe("O38", ours=[1, 2], theirs=[2, 1])
def test_rows_follow_the_episodes(library: Any) -> Any:
    return left(library, {("b",): [2], ("a",): [1]})


@probe("O41", ours=True, theirs=False)
def test_actions_that_stay_the_same_are_not_copied(library: Any) -> Any:
    batch = acted_with(library, default_pieces(library), {"actions": torch.tensor([2, 0])})
    return bool(np.shares_memory(batch["actions"], batch["actions_for_env"]))


@probe("O42", ours=[5_000_000_000, "int64"], theirs=[705_032_704, "int32"])
def test_large_integers_reach_the_environment(library: Any) -> Any:
    ids = library.module_to_env.TensorToNumpy()(
        rl_module=None, batch={"ids": torch.tensor([5_000_000_000])}, episodes=[]
    )["ids"]
    return [int(ids[0]), str(ids.dtype)]


@probe("O43", ours=[-1.0986, -1.0986], theirs=["no logp"])
def test_actions_of_the_module_get_their_log_probability(library: Any) -> Any:
    """Of three actions that are equally likely: log(1/3)."""
    batch = {"actions": torch.tensor([2, 0]), "action_dist_inputs": torch.zeros(2, 3)}
    module = build_module(library, BOX, ACT)
    batch = acted_with(library, [library.module_to_env.GetActions()], batch, rl_module=module, explore=True)
    return [round(float(x), 4) for x in batch["action_logp"]] if "action_logp" in batch else ["no logp"]


@probe("O44", ours=[[0.0, 1.0], [2.0, -2.0]], theirs=[[-3.0, 5.0], [2.0, -2.0]])
def test_half_bounded_boxes_are_clipped(library: Any) -> Any:
    space = gym.spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 1.0]))
    actions = torch.tensor([[-3.0, 5.0], [2.0, -2.0]])
    return plain(acted_with(library, default_pieces(library), {"actions": actions}, space)["actions_for_env"])


def default_module(library: Any, space: gym.Space[Any], observations: gym.Space[Any] = BOX) -> Any:
    """The module that PPO has for spaces."""
    names = ("__env__", "__env_single__", "default_policy")
    return library.PPOConfig().get_rl_module_spec(spaces=dict.fromkeys(names, (observations, space))).build()


def acted(library: Any, space: gym.Space[Any], outputs: Any) -> Any:
    """What the module-to-env pieces make of outputs for two environments, without exploring."""
    pieces = [library.module_to_env.GetActions(), *default_pieces(library, clip=True)]
    module = default_module(library, space) if "action_dist_inputs" in outputs else None
    return acted_with(library, pieces, outputs, space, rl_module=module)


@probe("module-to-env-output", ours="ndarray", theirs="list")
def test_the_form_of_module_to_env_columns(library: Any) -> Any:
    return type(acted(library, ACT, {"actions": torch.tensor([1, 2]), "values": torch.zeros(2)})["values"]).__name__


@probe("action-dtype", ours="int64", theirs="int32")
def test_the_type_of_discrete_actions(library: Any) -> Any:
    return str(acted(library, ACT, {"action_dist_inputs": torch.zeros(2, 3)})["actions"].dtype)


@probe("greedy-logp", ours=[0.0, 0.0], theirs=[[0.0, 0.0], [0.0, 0.0]])
def test_greedy_log_probabilities(library: Any) -> Any:
    batch = acted(library, gym.spaces.Box(-1, 1, (2,)), {"action_dist_inputs": torch.zeros(2, 4)})
    return [plain(row) for row in batch["action_logp"]]


@probe("bad-dist-inputs", ours=Raises(ColumnError, "NaN in rows"), theirs=[0, 0])
def test_distribution_inputs_that_are_no_numbers(library: Any) -> Any:
    return plain(acted(library, ACT, {"action_dist_inputs": torch.full((2, 3), torch.nan)})["actions"])


@probe("discrete-start", ours=[5, 5], theirs=[0, 0])
def test_discrete_actions_with_a_start(library: Any) -> Any:
    logits = torch.tensor([[1.0, 0.0, 0.0]] * 2)
    return plain(acted(library, gym.spaces.Discrete(3, start=5), {"action_dist_inputs": logits})["actions_for_env"])


@probe("env-action-types", ours=["float16", "int8"], theirs=["float32", "int32"])
def test_types_of_the_environments_actions(library: Any) -> Any:
    half, small = gym.spaces.Box(-2, 2, (1,), np.float16), gym.spaces.MultiDiscrete([3], dtype=np.int8)
    actions = torch.tensor([[1], [2]])
    batches = [acted(library, half, {"actions": actions / 2}), acted(library, small, {"actions": actions})]
    return [str(batch["actions_for_env"].dtype) for batch in batches]


@probe("box-shapes", ours=(2,), theirs=(2, 1))
def test_actions_of_a_box_without_axes(library: Any) -> Any:
    """The shape of those for two environments."""
    return acted(library, gym.spaces.Box(-1, 1, ()), {"action_dist_inputs": torch.zeros(2, 2)})["actions_for_env"].shape


def built(library: Any, observations: dict[str, gym.Space[Any]], actions: dict[str, gym.Space[Any]]) -> Any:
    """For each space `built`, or the error that building PPO's module for it raises."""
    outcomes = {}
    for name, space in observations.items():
        outcomes[name] = tried(partial(default_module, library, ACT, space))
    for name, space in actions.items():
        outcomes[name] = tried(partial(default_module, library, space))
    return {name: found if isinstance(found, Exception) else "built" for name, found in outcomes.items()}


@probe(
    "box-shapes",
    ours={"matrix": "built", "binary": "built"},
    theirs={
        "matrix": Raises(RLLIB.module("utils.error").UnsupportedSpaceException, "Action space has multiple dimensions"),
        "binary": Raises(NotImplementedError, "Unsupported action space: `MultiBinary"),
    },
)
def test_boxes_of_several_axes_and_binary_spaces_are_acted_in(library: Any) -> Any:
    return built(library, {}, {"matrix": gym.spaces.Box(-1, 1, (2, 2)), "binary": gym.spaces.MultiBinary(2)})


@probe(
    "integer-box",
    ours={"integer": "built"},
    theirs={"integer": Raises(ValueError, r"Box\(..., `int`\) action spaces are not supported")},
)
def test_integer_boxes_are_acted_in(library: Any) -> Any:
    return built(library, {}, {"integer": gym.spaces.Box(5, 8, (1,), np.int64)})


SEEN = {
    "dict": gym.spaces.Dict({"x": BOX}),
    "choices": gym.spaces.MultiDiscrete([2, 3]),
    "matrix": gym.spaces.Box(-1, 1, (2, 2)),
    "image": gym.spaces.Box(0, 255, (50, 50, 3), np.uint8),
}


@probe(
    "network-inputs",
    ours=dict.fromkeys(SEEN, "built"),
    theirs={
        "dict": Raises(ValueError, "No default encoder config for obs space=Dict"),
        "choices": Raises(ValueError, "No default encoder config for obs space=MultiDiscrete"),
        "matrix": Raises(ValueError, "2D Box spaces are not supported"),
        "image": Raises(ValueError, r"No default CNN configuration for obs shape \[50, 50, 3\]"),
    },
)
def test_observations_that_have_a_network(library: Any) -> Any:
    return built(library, SEEN, {})


@probe("images", ours=1.0, theirs=Raises(RuntimeError, r"Input type \(unsigned char\) and bias type \(float\)"))
def test_bytes_of_images(library: Any) -> Any:
    """What the first convolution sees of 255."""
    module, seen = default_module(library, ACT, gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)), []
    for part in module.modules():
        if isinstance(part, torch.nn.Conv2d):
            part.register_forward_pre_hook(lambda _, inputs: seen.append(float(inputs[0].max())))
    module.forward_inference({"obs": torch.full((1, 64, 64, 3), 255, dtype=torch.uint8)})
    return seen[0]


def squashed(library: Any, bound: float) -> Any:
    """A squashed Gaussian of mean 1 and standard deviation 1 between -bound and bound."""
    path = "core.distributions" if library is EPIBATCH else "core.distribution.torch.torch_distribution"
    made = library.module(path).TorchSquashedGaussian
    return made.from_logits(torch.tensor([[1.0, 0.0]]), low=-bound, high=bound)


@probe(
    "squashed-gaussian",
    ours={"entropy": [0.0926], "divergence": [0.0], "greedy": [[0.7616]], "densities": [-0.7328, -1.426]},
    theirs={
        "entropy": Raises(ValueError, "ENtropy not defined"),
        "divergence": Raises(ValueError, "KL not defined"),
        "greedy": [[1.0]],
        "densities": [-0.7328, -0.7328],
    },
)
def test_what_a_squashed_gaussian_has(library: Any) -> Any:
    """The greedy action is tanh(1); the entropy is 1.4189 of the Gaussian and the mean of log(1 - tanh(x)^2).

    Twice the width is half the density: log(2) less.
    """
    one, densities = squashed(library, 1.0), []
    for bound in (1.0, 2.0):
        densities.append(float(squashed(library, bound).logp(torch.tensor([[bound / 2]]))[0]))
    return {
        "entropy": tried(lambda: rounded(one.entropy())),
        "divergence": tried(lambda: rounded(one.kl(squashed(library, 1.0)))),
        "greedy": rounded(one.to_deterministic().sample()),
        "densities": rounded(densities),
    }
