"""Faults of the env-to-module pieces."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from faults.pieces import DISCRETE, filtered, rounded, wired
from oracle.probes import Raises, plain, probe, tried

BOX = gym.spaces.Box(-99, 99, (1,), np.float32)


def synchronised(library: Any, space: gym.Space[Any], rounds: Any) -> Any:
    """A filter that has been merged from two others after each round of observations."""
    main, *workers = (wired(library.env_to_module.MeanStdFilter(), space) for _ in range(3))
    for observations in rounds:
        for worker, rows in zip(workers, observations):
            filtered(library, worker, rows)
        state = main.merge_states([worker.get_state() for worker in workers])
        for piece in (main, *workers):
            piece.set_state(state)
    return main


# Two workers' observations in three rounds. Together their mean is 5 and their standard deviation 2.
ROUNDS = [[[2.0, 3.0], [4.0, 5.0]], [[8.0], [6.0]], [[7.0], [5.0]]]


@probe("O1", ours=[1.1619, 0.1543, 0.0], theirs=[1.1619, 0.8978, 0.9677])
def test_filters_that_were_synchronised_again_and_again(library: Any) -> Any:
    """What becomes of an observation of 5 after one, two and three rounds."""
    rounds = [[[np.array([x], np.float32) for x in own] for own in both] for both in ROUNDS]
    shown = []
    for n in (1, 2, 3):
        frozen = wired(library.env_to_module.MeanStdFilter(update_stats=False), BOX)
        frozen.set_state(synchronised(library, BOX, rounds[:n]).get_state())
        shown.append(filtered(library, frozen, [np.array([5], np.float32)])[0][0])
    return rounded(shown)


@probe("O61", ours=[[[0.0, 0.0]]], theirs=Raises(ValueError, "truth value of an array", "merge_states"))
def test_filters_of_images_are_merged(library: Any) -> Any:
    space = gym.spaces.Box(-9, 9, (1, 2), np.float32)
    rounds = [[[np.array([[1, 2]], np.float32)], [np.array([[3, 6]], np.float32)]]]
    frozen = wired(library.env_to_module.MeanStdFilter(update_stats=False), space)
    frozen.set_state(synchronised(library, space, rounds).get_state())
    return rounded(filtered(library, frozen, [np.array([[2, 4]], np.float32)]))


OTHERS = {
    "Discrete": (gym.spaces.Discrete(3), [1, 2]),
    "Dict": (gym.spaces.Dict({"x": BOX}), [{"x": np.array([1], np.float32)}, {"x": np.array([2], np.float32)}]),
    "Tuple": (gym.spaces.Tuple([BOX]), [(np.array([1], np.float32),), (np.array([2], np.float32),)]),
    "uint8": (gym.spaces.Box(0, 255, (1,), np.uint8), [np.array([1], np.uint8), np.array([2], np.uint8)]),
    "int8": (gym.spaces.Box(-9, 9, (1,), np.int8), [np.array([1], np.int8), np.array([2], np.int8)]),
    "MultiBinary": (gym.spaces.MultiBinary(1), [np.array([0], np.int8), np.array([1], np.int8)]),
}


@probe(
    "O61",
    ours={
        "Discrete": [1, 2],
        "Dict": [{"x": [0.0]}, {"x": [0.7071]}],
        "Tuple": [([0.0],), ([0.7071],)],
        "uint8": [[0.0], [0.7071]],
        "int8": [[0.0], [0.7071]],
        "MultiBinary": [[0], [1]],
    },
    theirs={
        "Discrete": Raises(TypeError, "Use \\(\\) not None as shape arguments"),
        "Dict": Raises(TypeError, "expected a sequence of integers or a single integer"),
        "Tuple": Raises(TypeError, "only integer scalar arrays can be converted"),
        "uint8": Raises(ValueError, "Box low is out of bounds of the dtype range, low=-10.0"),
        "int8": [[0], [0]],
        "MultiBinary": [[0], [0]],
    },
)
def test_filters_take_every_space(library: Any) -> Any:
    """The second observation is 1 / sqrt(2) standard deviations above the mean of both."""
    outcomes = {}
    for name, (space, rows) in OTHERS.items():
        make = partial(wired, library.env_to_module.MeanStdFilter(), space)
        outcomes[name] = tried(lambda make=make, rows=rows: rounded(filtered(library, make(), rows)))
    return outcomes


@probe("O50", ours=[[3.0], [-0.5]], theirs=[[10.0], [-10.0]])
def test_a_filter_without_statistics(library: Any) -> Any:
    piece = wired(library.env_to_module.MeanStdFilter(update_stats=False), BOX)
    return plain(filtered(library, piece, [np.array([3.0], np.float32), np.array([-0.5], np.float32)]))


@probe("O50", ours=[[3.0]], theirs=[[10.0]])
def test_a_filter_that_only_divides(library: Any) -> Any:
    piece = wired(library.env_to_module.MeanStdFilter(de_mean_to_zero=False), BOX)
    return plain(filtered(library, piece, [np.array([3.0], np.float32)]))


@probe("O50", ours=None, theirs=Raises(ValueError, "only be changed when `update_stats` was set to False"))
def test_a_filter_that_does_not_update_is_reset(library: Any) -> Any:
    return wired(library.env_to_module.MeanStdFilter(update_stats=False), BOX).reset_state()


def with_history(library: Any, actions: gym.Space[Any], taken: list[Any], **settings: Any) -> Any:
    piece = wired(library.env_to_module.PrevActionsPrevRewards(**settings), BOX, actions)
    episode = library.SingleAgentEpisode(id_="e", observation_space=BOX, action_space=actions)
    episode.add_env_reset(np.zeros(1, np.float32))
    for action in taken:
        episode.add_env_step(np.zeros(1, np.float32), action, 1.5)
    piece(rl_module=None, batch={}, episodes=[episode])
    return piece, episode.get_observations(-1)


@probe("O26", ours=[0.5, -0.5], theirs=Raises(AttributeError, "'Box' object has no attribute 'n'"))
def test_previous_actions_of_a_box(library: Any) -> Any:
    _, observation = with_history(library, gym.spaces.Box(-1, 1, (2,)), [np.array([0.5, -0.5], np.float32)])
    return plain(observation["prev_n_actions"])


@probe("O44", ours=[1.0, 0.0, 0.0, 0.0], theirs=[[0.0, 0.0, 0.0, 1.0]])
def test_a_previous_action_of_a_discrete_space_with_a_start(library: Any) -> Any:
    _, observation = with_history(library, gym.spaces.Discrete(4, start=3), [3])
    return plain(observation["prev_n_actions"])


@probe("O26", ours=["_orig_obs", "prev_n_rewards"], theirs=["_orig_obs", "prev_n_actions", "prev_n_rewards"])
def test_the_space_of_no_previous_actions(library: Any) -> Any:
    piece, observation = with_history(library, DISCRETE, [1], n_prev_actions=0)
    assert sorted(observation) == ["_orig_obs", "prev_n_rewards"]
    return sorted(piece.observation_space)


@probe(
    "O26",
    ours={
        "prev_n_actions": [(6,), (6,), "float32", "float32"],
        "prev_n_rewards": [(2,), (2,), "float32", "float32"],
    },
    theirs={
        "prev_n_actions": [(6,), (2, 3), "float32", "float32"],
        "prev_n_rewards": [(2,), (2,), "float32", "float64"],
    },
)
def test_two_previous_actions_and_rewards_are_as_declared(library: Any) -> Any:
    piece, observation = with_history(library, DISCRETE, [1, 2], n_prev_actions=2, n_prev_rewards=2)
    space = piece.observation_space
    return {
        key: [space[key].shape, observation[key].shape, str(space[key].dtype), str(observation[key].dtype)]
        for key in ("prev_n_actions", "prev_n_rewards")
    }


NESTED = gym.spaces.Dict({"b": DISCRETE, "a": BOX})


def flattened_in_learner(library: Any, *, arrays: bool) -> Any:
    """The rows that the learner piece makes of two observations with two keys."""
    piece = wired(library.env_to_module.FlattenObservations(as_learner_connector=True), NESTED)
    episode = library.SingleAgentEpisode(id_="e", observation_space=NESTED)
    episode.add_env_reset({"a": np.array([0.5], np.float32), "b": 1})
    for b in (2, 0):
        episode.add_env_step({"a": np.array([1.5], np.float32), "b": b}, 0, 0.0)
    batch = piece(rl_module=None, batch={}, episodes=[episode.to_numpy() if arrays else episode])
    return plain(np.concatenate(batch["obs"]["e",]))


@probe(
    "O27",
    ours=[[0.5, 0.0, 1.0, 0.0], [1.5, 0.0, 0.0, 1.0]],
    theirs=Raises(ValueError, r"could not convert string to float: np.str_\('a'\)", "flatten_inputs_to_1d_tensor"),
)
def test_dicts_are_flattened_in_a_learner_pipeline(library: Any) -> Any:
    return flattened_in_learner(library, arrays=True)


@probe("O27", ours=[[0.5, 0.0, 1.0, 0.0], [1.5, 0.0, 0.0, 1.0]], theirs=[[0.5, 0.0], [1.0, 0.0]])
def test_lists_of_dicts_are_flattened_in_a_learner_pipeline(library: Any) -> Any:
    """RLlib takes the first observation for all, and half of it."""
    return flattened_in_learner(library, arrays=False)


@probe("O27", ours=(3,), theirs=Raises(AssertionError, "When using `keys_to_remove` the observation space must be"))
def test_keys_are_left_out_where_the_pipeline_gives_the_space(library: Any) -> Any:
    piece = library.env_to_module.FlattenObservations(keys_to_remove=["a"])
    return library.env_to_module.EnvToModulePipeline(NESTED, DISCRETE, connectors=[piece]).observation_space.shape
