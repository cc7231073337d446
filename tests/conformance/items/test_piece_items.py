"""Behaviours C48 to C55: what single built-in pieces do to values."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from items.behaviours import behaviour, listed, plain
from items.lab import ACT, OBS, chunk, joined, learner, module, run

TENSORS = {
    "float64": "float32",
    "float32": "float32",
    "float16": "float16",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "uint8": "uint8",
    "bool": "bool",
}
IMAGE = gym.spaces.Box(0, 255, (2, 2, 1), np.uint8)


def call(piece, batch, episodes=(), **keywords):
    """Call one piece by itself."""
    return piece(batch=batch, episodes=list(episodes), explore=True, shared_data={}, **{"rl_module": None, **keywords})


def with_spaces(piece, obs, act=ACT):
    """The piece as a pipeline prepares it."""
    piece.input_action_space, piece.input_observation_space = act, obs
    return piece


def observing(library, *observations, space=None):
    """An episode that saw these, the last one just now."""
    episode = library.SingleAgentEpisode(id_="a", observation_space=space, action_space=ACT)
    episode.add_env_reset(observations[0])
    for observation in observations[1:]:
        episode.add_env_step(observation, 0, 0.0)
    return episode


@pytest.mark.parametrize(("given", "made"), TENSORS.items())
@behaviour("C48")
def test_types_of_tensors(library, given, made):
    batch = {"x": np.ones((2, 3), given), "nested": {"y": np.ones(2, given)}}
    result = call(library.env_to_module.NumpyToTensor(), batch, rl_module=module(library))
    assert str(result["x"].dtype) == str(result["nested"]["y"].dtype) == f"torch.{made}"
    assert tuple(result["x"].shape) == (2, 3) and plain(result["nested"]["y"]) == [1, 1]


@behaviour("C48")
def test_objects_text_and_infos_are_no_tensors(library):
    objects, text = np.array([{"a": 1}, None], object), np.array(["a", "b"])
    batch = {"objects": objects, "text": text, "infos": [{"t": 0}]}
    result = call(library.env_to_module.NumpyToTensor(), dict(batch), rl_module=module(library))
    assert result["objects"] is objects and plain(result["text"]) == ["a", "b"] and result["infos"] == [{"t": 0}]


@behaviour("C48")
def test_without_a_module_arrays_stay_arrays(library):
    result = call(library.env_to_module.NumpyToTensor(), {"x": np.ones(2)})
    assert isinstance(result["x"], np.ndarray) and result["x"].dtype == np.float64


@pytest.mark.parametrize(
    ("given", "made"),
    [("float64", "float32"), ("float32", "float32"), ("int32", "int32"), ("uint8", "uint8")],
)
@behaviour("C49")
def test_types_of_arrays(library, given, made):
    batch = {"x": torch.ones(2, dtype=getattr(torch, given))}
    result = call(library.module_to_env.TensorToNumpy(), batch, rl_module=module(library))
    assert isinstance(result["x"], np.ndarray) and result["x"].dtype == made


@behaviour("C49")
def test_half_floats(library):
    batch = {"x": torch.ones(2, dtype=torch.float16)}
    result = call(library.module_to_env.TensorToNumpy(), batch, rl_module=module(library))
    assert result["x"].dtype == listed("half-floats", library, rllib="float32", epibatch="float16")


@behaviour("C49")
def test_long_integers_and_single_numbers(library):
    batch = {"x": torch.tensor([3]), "one": torch.tensor(2.5), "nested": {"flag": torch.tensor([True])}}
    result = call(library.module_to_env.TensorToNumpy(), batch, rl_module=module(library))
    assert result["x"].dtype == listed("O42", library, rllib="int32", epibatch="int64") and plain(result["x"]) == [3]
    assert type(result["one"]) is listed("O42", library, rllib=float, epibatch=np.ndarray) and result["one"] == 2.5
    assert plain(result["nested"]) == {"flag": [True]}


@behaviour("C50")
def test_flat_observations(library):
    space = gym.spaces.Dict(
        a=gym.spaces.Discrete(3),
        b=gym.spaces.MultiDiscrete([2, 3]),
        c=gym.spaces.MultiBinary(4),
        d=gym.spaces.Box(-1, 1, (2, 2)),
    )
    piece = with_spaces(library.env_to_module.FlattenObservations(), space)
    assert piece.observation_space == gym.spaces.Box(-np.inf, np.inf, (16,), np.float32)
    seen = {"a": 1, "b": np.array([1, 2]), "c": np.int8([1, 0, 0, 1]), "d": np.float32([[0.25, 0.5], [0.75, 1.0]])}
    episode = observing(library, seen, space=space)
    call(piece, {}, [episode])
    flat = episode.get_observations(-1)
    assert flat.dtype == np.float32 and flat.shape == (16,)
    assert plain(flat[:8]) == [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    assert plain(flat[8:]) == [1.0, 0.0, 0.0, 1.0, 0.25, 0.5, 0.75, 1.0]


def stacking(library, side, space=IMAGE, frames=3):
    """The frame stacking piece of one side."""
    name = "FrameStackingEnvToModule" if side == "env_to_module" else "FrameStackingLearner"
    return with_spaces(getattr(library.module(f"connectors.{side}.frame_stacking"), name)(num_frames=frames), space)


@behaviour("C51")
def test_a_stack_has_the_oldest_frame_first_and_zeros_before_the_start(library):
    space = gym.spaces.Box(-9, 9, (4, 4, 1), np.float32)
    piece = stacking(library, "env_to_module", space)
    assert piece.observation_space.shape == (4, 4, 3)
    frames = [np.full((4, 4, 1), value, np.float32) for value in (5, 6, 7, 8)]
    seen = {1: [0.0, 0.0, 5.0], 2: [0.0, 5.0, 6.0], 4: [6.0, 7.0, 8.0]}
    for count, expected in seen.items():
        episode = observing(library, *frames[:count], space=space)
        (stack,) = call(piece, {}, [episode])["obs"]["a",]
        assert stack.shape == (4, 4, 3) and stack.dtype == np.float32
        assert plain(stack[0, 0]) == plain(stack[3, 3]) == expected
        assert episode.get_observations(-1).shape == (4, 4, 1)


@behaviour("C51")
def test_stacks_in_training_are_those_of_acting(library):
    frames = [np.full((2, 2, 1), value, np.uint8) for value in (5, 6, 7, 8)]
    acted = []
    for count in (1, 2, 3):
        piece = stacking(library, "env_to_module")
        (stack,) = call(piece, {}, [observing(library, *frames[:count], space=IMAGE)])["obs"]["a",]
        acted.append(stack)
    episode = observing(library, *frames, space=IMAGE).to_numpy()
    learned = joined(call(stacking(library, "learner"), {}, [episode])["obs"]["a",])
    assert learned.shape == (3, 2, 2, 3) and learned.dtype == np.uint8
    assert plain(learned) == plain(acted) and plain(learned[2, 0, 0]) == [5, 6, 7]


def filtering(library, size, **settings):
    return with_spaces(library.env_to_module.MeanStdFilter(**settings), gym.spaces.Box(-np.inf, np.inf, (size,)))


def filtered(library, piece, row):
    """What a filter makes of one observation."""
    episode = observing(library, np.float32(row), space=piece.input_observation_space)
    call(piece, {}, [episode])
    return episode.get_observations(-1)


@behaviour("C52")
def test_observations_are_centred_and_scaled_by_what_was_seen(library):
    piece = filtering(library, 2)
    assert piece.observation_space == gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
    first = filtered(library, piece, [3.0, 1.0])
    assert plain(first) == [0.0, 0.0] and first.dtype == np.float32
    rows = [[5.0, 2.0], [-1.0, 0.5], [8.0, 1.5]]
    for count, row in enumerate(rows, 2):
        seen = np.array([[3.0, 1.0], *rows][:count])
        expected = (np.array(row) - seen.mean(0)) / seen.std(0, ddof=1)
        np.testing.assert_allclose(filtered(library, piece, row), expected, rtol=1e-4)


@behaviour("C52")
def test_filtered_values_are_clipped(library):
    piece = filtering(library, 1)
    for number in range(400):
        filtered(library, piece, [number % 2])
    assert plain(filtered(library, piece, [1e6])) == [10.0]
    narrow = filtering(library, 1, clip_by_value=0.5)
    for number in range(10):
        last = filtered(library, narrow, [number])
    assert plain(last) == [0.5]


@behaviour("C52")
def test_a_filter_that_does_not_update_keeps_its_statistics(library):
    piece = filtering(library, 1)
    for row in ([1.0], [2.0], [6.0]):
        filtered(library, piece, row)
    frozen = filtering(library, 1, update_stats=False)
    frozen.set_state(piece.get_state())
    expected = (4.0 - 3.0) / np.std([1, 2, 6], ddof=1)
    for row in ([4.0], [5000.0], [4.0]):
        found = filtered(library, frozen, row)
    assert found[0] == pytest.approx(expected, rel=1e-4)


@behaviour("C52")
def test_statistics_of_two_copies_are_merged_exactly(library):
    copies = [filtering(library, 1) for _ in range(2)]
    for piece, rows in zip(copies, [[1.0, 2.0, 3.0], [10.0, 20.0]]):
        for row in rows:
            filtered(library, piece, [row])
    merger, frozen = filtering(library, 1), filtering(library, 1, update_stats=False)
    merger.set_state(merger.merge_states([piece.get_state() for piece in copies]))
    frozen.set_state(merger.get_state())
    assert filtered(library, frozen, [7.2])[0] == pytest.approx(0.0, abs=1e-5)
    assert filtered(library, frozen, [7.2 + 7.981])[0] == pytest.approx(1.0, rel=1e-3)


def for_env(library, space, actions, **settings):
    """What the environment is given for some actions; None if the batch says nothing of it."""
    piece = with_spaces(library.module_to_env.NormalizeAndClipActions(**settings), OBS, space)
    episodes = [chunk(library, str(i), 0, arrays=False, action_space=space) for i in range(len(actions))]
    result = call(piece, {"actions": {(str(i),): [action] for i, action in enumerate(actions)}}, episodes)
    assert plain([own[0] for own in result["actions"].values()]) == plain(list(actions))
    if "actions_for_env" not in result:
        return None
    return plain([own[0] for own in result["actions_for_env"].values()])


BOUNDED = gym.spaces.Box(np.float32([-2, 0]), np.float32([4, 1]))
ACTIONS = np.float32([[-1, -1], [1, 1], [0, 0.5], [-3, 3]])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"normalize_actions": True, "clip_actions": False}, [[-2.0, 0.0], [4.0, 1.0], [1.0, 0.75], [-2.0, 1.0]]),
        ({"normalize_actions": False, "clip_actions": True}, [[-1.0, 0.0], [1.0, 1.0], [0.0, 0.5], [-2.0, 1.0]]),
        ({"normalize_actions": True, "clip_actions": True}, [[-2.0, 0.0], [4.0, 1.0], [1.0, 0.75], [-2.0, 1.0]]),
    ],
)
@behaviour("C53")
def test_actions_are_scaled_to_the_bounds_or_clipped(library, settings, expected):
    assert for_env(library, BOUNDED, ACTIONS, **settings) == expected


@behaviour("C53")
def test_normalised_actions_of_integer_boxes_count_from_the_lower_bound(library):
    actions = np.array([[0, 4], [1, 2]])
    space = gym.spaces.Box(3, 7, (2,), np.int32)
    assert for_env(library, space, actions, normalize_actions=True, clip_actions=False) == [[3, 7], [4, 5]]
    assert for_env(library, space, actions, normalize_actions=False, clip_actions=True) == [[3, 4], [3, 3]]


@pytest.mark.parametrize("normalize", [True, False])
@behaviour("C53")
def test_discrete_actions_stay(library, normalize):
    settings = {"normalize_actions": normalize, "clip_actions": not normalize}
    assert for_env(library, gym.spaces.Discrete(3), np.array([2, 0]), **settings) == [2, 0]


@behaviour("C53")
def test_neither_scaled_nor_clipped(library):
    found = for_env(library, BOUNDED, ACTIONS, normalize_actions=False, clip_actions=False)
    assert found == listed("actions-for-env", library, rllib=None, epibatch=plain(ACTIONS))


def value_targets(library):
    """The function that both libraries have under this name."""
    home = "utils.postprocessing" if library.name == "RLlib" else "learner.postprocessing"
    return library.module(f"{home}.value_predictions").compute_value_targets


ENDS = pytest.mark.parametrize(("end", "targets"), [("terminated", [3.0, 2.0, 1.0]), ("truncated", [7.0, 6.0, 5.0])])


@ENDS
@behaviour("C54")
def test_value_targets_of_an_ended_episode(library, end, targets):
    flags = {name: np.array([False, False, name.startswith(end), False]) for name in ("terminateds", "truncateds")}
    columns = {"values": np.float32([1, 2, 3, 4]), "rewards": np.float32([1, 1, 1, 0]), **flags}
    assert plain(value_targets(library)(**columns, gamma=1.0, lambda_=1.0)) == [*targets, 0.0]


@ENDS
@behaviour("C54")
def test_value_targets_in_the_learner_pipeline(library, end, targets):
    # the module's value of an observation is a tenth of its entries' sum: 1, 2, 3 and 4 behind the last step
    observations = [np.float32([10 * value, 0]) for value in (1, 2, 3, 4)]
    episode = chunk(library, "a", 3, observations=observations, rewards=[1.0, 1.0, 1.0], end=end)
    batch = run(learner(library, ppo=True), [episode], rl_module=module(library, multi=True))["default_policy"]
    np.testing.assert_allclose(batch["value_targets"][:3], targets, rtol=1e-6)
    raw = np.array(targets) - [1, 2, 3]
    everywhere = np.array([*raw, batch["value_targets"][3] - 4.0])
    theirs, ours = ((raw - rows.mean()) / max(1e-4, rows.std()) for rows in (everywhere, raw))
    expected = listed("O28", library, rllib=theirs, epibatch=ours)
    np.testing.assert_allclose(batch["advantages"][:3], expected, rtol=1e-5, atol=1e-6)


@behaviour("C55")
def test_returns_to_go(library):
    piece = library.learner.ComputeReturnsToGo(gamma=0.5)
    episodes = [
        chunk(library, "a", 3, rewards=[1.0, 1.0, 1.0], end="terminated"),
        chunk(library, "b", 2, t_started=4, lookback=2, rewards=[9.0, 9.0, 2.0, 4.0]),
    ]
    batch = call(piece, {}, episodes)
    assert plain(joined(batch["returns_to_go"]["a",])) == [1.75, 1.5, 1.0]
    assert plain(joined(batch["returns_to_go"]["b",])) == [4.0, 4.0]
