"""One function of rows: both sides, agents, arrays, tensors and nested columns, and the space of what it gives."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary

from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import AgentToModuleMapping
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    LearnerConnectorPipeline,
    default_pipeline,
)
from epibatch.core.errors import ColumnError, PieceError, PieceOutputError, SpaceError
from epibatch.core.rl_module import MultiRLModule, default_module_spec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import UserPiece, played

BOX, CHOICE = Box(-2.0, 4.0, (2,), np.float32), Discrete(2)


class Shift(ColumnTransform):
    """Adds an amount."""

    columns: str | tuple[str, ...] = "rewards"
    takes_tensors = True
    monotonic = True
    amount: float = 1.0

    def transform(self, x):
        return x + self.amount

    def inverse(self, y):
        return y - self.amount


class Applies(ColumnTransform):
    """Applies a function."""

    columns: Any = "rewards"
    takes_tensors = True
    function: Any

    def transform(self, x):
        return self.function(x)


def applies(function: Any, columns: Any = "rewards", space: Any = None, monotonic: bool = False) -> Any:
    cls = type("Monotonic", (Applies,), {"monotonic": True}) if monotonic else Applies
    return cls(space, columns=columns, function=function)


def episode(id_="e", rewards=(1.0, 2.0, 3.0), **more):
    rows = [np.float32([t, -t]) for t in range(len(rewards) + 1)]
    return played(rows, list(rewards), id_=id_, actions=[t % 2 for t in range(len(rewards))], **more)


def nested_episode():
    row = {"camera": np.array([0, 255], np.uint8), "pose": (np.float32([1, 2]), np.float32([3, 4]))}
    return played([row, row])


MAKERS = [AddObservationsFromEpisodesToBatch, AddColumnsFromEpisodesToTrainBatch, BatchIndividualItems]


def batch_of(pieces, *episodes, after=()):
    """A train batch with pieces before the first default piece, or after the last one."""
    pipeline = LearnerConnectorPipeline(connectors=[*pieces, *(make() for make in MAKERS), *after])
    return pipeline(episodes=list(episodes) or [episode()])


def acts(*pieces):
    made = [*pieces, AddObservationsFromEpisodesToBatch(), BatchIndividualItems()]
    return EnvToModulePipeline(BOX, CHOICE, connectors=made)


def test_several_columns_and_model_outputs():
    one = episode(extra_model_outputs={"bonus": [5.0, 6.0, 7.0]})
    batch = batch_of([Shift(columns=("rewards", "bonus"))], one)
    assert batch["rewards"].tolist() == [2.0, 3.0, 4.0]
    assert batch["bonus"].tolist() == [6.0, 7.0, 8.0]


def test_bootstrap_rows_of_observations_are_there_and_a_mask_of_ones_leaves_them_out_all_the_same():
    pieces = [AddOneTsToEpisodesAndTruncate(), Shift(columns="obs"), applies(np.ones_like, "loss_mask")]
    batch = batch_of(pieces, episode(terminated=True), episode("f", [5.0]))
    assert batch["loss_mask"].tolist() == [True, True, True, False, True, False]
    assert batch["obs"][:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 1.0, 2.0]


def test_acting_row_equals_training_row():
    whole = episode(rewards=[0.0] * 5)
    trained = batch_of([Shift(columns="obs", amount=0.25)], whole)["obs"]
    acting = acts(Shift(columns="obs", amount=0.25))
    assert acting.observation_space == Box(-1.75, 4.25, (2,), np.float32)
    running = SingleAgentEpisode(observations=[whole.get_observations(0)])
    for t in range(5):
        assert acting(episodes=[running])["obs"].tolist() == [trained[t].tolist()] == [[t + 0.25, 0.25 - t]]
        assert running.get_observations(-1).tolist() == [t, -t]
        running.add_env_step(whole.get_observations(t + 1), 0, 0.0)


def _state(module):
    return {key: np.zeros(np.shape(value), np.float32) for key, value in module.get_initial_state().items()}


BEHIND = ["add_time_dim_to_batch_and_zero_pad", "batch_individual_items", "numpy_to_tensor"]


@pytest.mark.parametrize("behind", BEHIND)
def test_a_time_axis_is_hidden_from_the_function(behind):
    def doubles(x):
        assert x.ndim == 2
        return x * 2

    module = default_module_spec(BOX, CHOICE, {"use_lstm": True, "max_seq_len": 2, "lstm_cell_size": 4}).build()
    pipeline = default_pipeline(advantages=False)
    one = episode(extra_model_outputs={"state_out": [_state(module)] * 3})
    plain = pipeline(rl_module=module, episodes=[one])["obs"]
    pipeline.insert_after(behind, applies(doubles, "obs"))
    twice = pipeline(rl_module=module, episodes=[one])["obs"]
    assert twice.shape == (2, 2, 2) and torch.equal(twice, plain * 2)


LSTM = {"use_lstm": True, "max_seq_len": 3, "lstm_cell_size": 4}
MODELS = [{"fcnet_hiddens": [4]}, *({**LSTM, "sequence_end": end} for end in ("pad", "overlap", "continue"))]
MODELS += [{**LSTM, "sequence_end": "pad", "burn_in": 1}]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("bootstrapped", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: "-".join(map(str, model.values())))
def test_wherever_rewards_are_shifted_rows_that_are_no_steps_stay_zero(model, bootstrapped, nested):
    """Rewards of steps are never 0 here, so all others are bootstrap rows and padding."""
    spec = default_module_spec(BOX, CHOICE, model)
    module = MultiRLModule(rl_module_specs={"default_policy": spec}) if nested else spec.build()
    own = module["default_policy"] if nested else module
    states = [_state(own)] * 4 if own.is_stateful() else [0.0] * 4
    outputs = [{"extra_model_outputs": {"state_out": states[:steps]}} for steps in (4, 1)]
    episodes = [episode("a", [1.0, 2.0, 3.0, 4.0], **outputs[0]), episode("b", [5.0], **outputs[1])]
    pipeline = default_pipeline(advantages=False, burn_in=True)
    if bootstrapped:
        pipeline.prepend(AddOneTsToEpisodesAndTruncate())

    def rewards():
        batch = pipeline(rl_module=module, episodes=episodes)
        return (batch["default_policy"] if nested else batch)["rewards"]

    plain, places = rewards(), pipeline.names
    assert bool((plain == 0).any()) is (bootstrapped or own.is_stateful())
    for place in places[places.index("add_columns_from_episodes_to_train_batch") :]:
        pipeline.insert_after(place, Shift(amount=10.0))
        assert torch.equal(rewards(), torch.where(plain == 0, 0.0, plain + 10)), place
        pipeline.remove("shift")


def test_parts_of_tuples_are_counted_and_whole_columns_mapped_leaf_by_leaf():
    for part, first in (("obs/pose/1", [1.0, 2.0]), ("obs/pose", [2.0, 3.0])):
        pose = batch_of([Shift(columns=part)], nested_episode())["obs"]["pose"]
        assert [leaf.tolist() for leaf in pose] == [[first], [[4.0, 5.0]]]


def test_each_agents_rows_are_transformed():
    mapping = {"a": "one", "b": "two"}
    both = MultiAgentEpisode(id_="m", agent_to_module_mapping_fn=lambda agent, *_, **__: mapping[agent])
    both.add_env_reset(observations=dict.fromkeys("ab", np.float32([0, 0])))
    for t in range(1, 4):
        both.add_env_step(dict.fromkeys("ab", np.float32([t, t])), dict.fromkeys("ab", 0), {"a": t, "b": 10.0 * t})
    pieces = [Shift(amount=0.5), AddColumnsFromEpisodesToTrainBatch()]
    pieces += [AgentToModuleMapping(as_learner_connector=True), BatchIndividualItems()]
    batch = LearnerConnectorPipeline(connectors=pieces)(episodes=[both])
    assert batch["one"]["rewards"].tolist() == [1.5, 2.5, 3.5]
    assert batch["two"]["rewards"].tolist() == [10.5, 20.5, 30.5]


def test_rows_know_their_space():
    seen = []

    class Spaces(Applies):
        def transform(self, x):
            seen.append(self.row_space)
            return x

    pixels, poses = Box(0, 255, (2,), np.uint8), gym.spaces.Tuple([BOX, Box(-9, 9, (2,))])
    for front in ([], [UserPiece()]):
        piece = Spaces(columns=("obs", "rewards"), function=None)
        spaces = gym.spaces.Dict(camera=pixels, pose=poses), None
        LearnerConnectorPipeline(*spaces, connectors=[*front, piece])(episodes=[nested_episode()])
        assert seen[-4:] == [pixels, *poses, None] and piece.row_space is None


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("column", ["terminateds", "truncateds"])
@pytest.mark.parametrize("end", ["terminated", "truncated", None])
def test_flags_are_taken_from_the_episodes_as_later_pieces_would_make_them(column, end, bootstrap):
    """The transform sees what the pipeline without it gives, and its result stays."""
    seen = []

    def batch(*before):
        pieces = [*before, *([AddOneTsToEpisodesAndTruncate()] if bootstrap else [])]
        return batch_of(pieces, episode("a", **({end: True} if end else {})), episode("b", (1.0,)))

    expected, found = batch(), batch(applies(lambda x: seen.append(np.array(x)) or np.zeros_like(x), column))
    assert seen[-1].tolist() == expected[column].tolist()
    assert not found[column].any() and found[column].shape == expected[column].shape
    other = {"terminateds": "truncateds", "truncateds": "terminateds"}[column]
    assert found[other].tolist() == expected[other].tolist()


def test_a_flag_that_is_taken_away_bootstraps_the_value_of_the_last_observation():
    module = default_module_spec(Box(-9, 9, (2,), np.float32), CHOICE, {}).build()

    def targets(*before, **end):
        pipeline = default_pipeline(connectors=list(before), gamma=0.9, lambda_=1.0)
        return pipeline(rl_module=module, episodes=[episode(**end)])["value_targets"]

    running = targets()
    assert torch.equal(targets(applies(np.zeros_like, "terminateds"), terminated=True), running)
    assert not torch.equal(targets(terminated=True), running)


def same(x):
    return x


ERRORS = {
    "part of a key": (lambda: batch_of([Shift(columns="obs/kamera")], nested_episode()), ColumnError, "a part"),
    "part of a tuple": (lambda: batch_of([Shift(columns="obs/pose/2")], nested_episode()), ColumnError, "a part"),
    "part of a number": (lambda: batch_of([Shift(columns="rewards/x")], nested_episode()), ColumnError, "a part"),
    "no such column": (lambda: batch_of([Shift(columns="rewardss")]), ColumnError, "did you mean 'rewards'"),
    "rewards while acting": (
        lambda: acts(Shift())(episodes=[episode()]),
        ColumnError,
        "put the piece into the learner pipeline",
    ),
    "rows lost": (
        lambda: batch_of([applies(lambda x: x[:-1])]),
        PieceOutputError,
        r"Applies.transform[\s\S]*3 rows[\s\S]*shape \(2,\)",
    ),
    "empty tuple": (lambda: applies(same, ()), PieceError, r"Applies.columns[\s\S]*found: "),
    "empty text": (lambda: applies(same, ""), PieceError, r"Applies.columns[\s\S]*found: "),
    "a number": (lambda: applies(same, 3), PieceError, r"Applies.columns[\s\S]*found: "),
    "None": (lambda: applies(same, ("rewards", None)), PieceError, r"Applies.columns[\s\S]*found: "),
    "no inverse": (lambda: applies(same).inverse(np.zeros(2)), PieceError, r"write inverse\(self, y\)"),
    "text": (lambda: applies(same, "obs", gym.spaces.Text(3)).observation_space, SpaceError, "write output_space"),
    "sequence": (
        lambda: applies(same, "obs", gym.spaces.Sequence(BOX)).observation_space,
        SpaceError,
        "write output_space",
    ),
    "failing": (
        lambda: applies(lambda x: 1 / 0, "obs", CHOICE).observation_space,
        ZeroDivisionError,
        r"Applies, tried on 3 samples of Discrete\(2\), shape \(3,\) and type int64",
    ),
    "nothing returned": (
        lambda: LearnerConnectorPipeline(BOX, None, connectors=[applies(lambda x: None, "obs")]),
        PieceOutputError,
        r"Applies\.transform",
    ),
}


@pytest.mark.parametrize(("call", "error", "match"), ERRORS.values(), ids=ERRORS)
def test_what_a_transform_cannot_do_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (lambda x: x[:, None], r"shape \(3,\), one number for each reward(?s:.*)shape \(3, 1\)"),
        (lambda x: x.astype(str), "numbers, as float64 was given"),
        (lambda x: x.astype(object), "found:    object"),
        (lambda x: list(x), "found:    list"),
    ],
)
def test_rewards_that_are_no_numbers_any_more_are_named(answer, match):
    for where in ({"pieces": [applies(answer)]}, {"pieces": [], "after": [applies(answer)]}):
        with pytest.raises(PieceOutputError, match=rf"Applies\.transform(?s:.*){match}"):
            batch_of(**where)


# -- the space of what it gives --------------------------------------------------------------------------

HALF_OPEN = Box(np.float32([-1, 0]), np.float32([1, np.inf]))
EYE = np.eye(4, dtype=np.int8)


@pytest.mark.parametrize(
    ("space", "function", "monotonic", "expected"),
    [
        (HALF_OPEN, lambda x: x[:, :1] * 2, False, Box(-np.inf, np.inf, (1,), np.float32)),
        (HALF_OPEN, lambda x: -2 * x, True, Box(np.float32([-2, -np.inf]), np.float32([2, 0]))),
        (HALF_OPEN, np.float64, True, Box(np.float64([-1, 0]), np.float64([1, np.inf]), dtype=np.float64)),
        (HALF_OPEN, lambda x: 0 * x, True, Box(np.float32([0, -np.inf]), np.float32([0, np.inf]))),
        (HALF_OPEN, lambda x: x > 0, False, Box(0, 1, (2,), np.bool_)),
        (Box(-3, 5, (4,)), lambda x: np.clip(x, -1, 1) * np.float32(7), True, Box(-7, 7, (4,))),
        (Discrete(4), lambda x: EYE[x], False, Box(-128, 127, (4,), np.int8)),
        (Discrete(4, start=2), lambda x: -2 * x, True, Box(-10, -4, (), np.int64)),
        (MultiBinary(3), lambda x: x * 2 - 1, True, Box(-1, 1, (3,), np.int8)),
        (MultiBinary(3), lambda x: x.sum(-1), False, Box(-(2**63), 2**63 - 1, (), np.int64)),
    ],
)
def test_shape_type_and_bounds(space, function, monotonic, expected):
    assert applies(function, "obs", space, monotonic).observation_space == expected


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, "U3", "m8[s]", object, np.longdouble])
def test_there_is_no_space_of_results_whose_type_has_no_box(dtype):
    for monotonic in (False, True):
        assert applies(lambda x: x.astype(dtype), "obs", Discrete(4), monotonic).observation_space is None


def test_the_spaces_own_stream_is_left_alone():
    one, other = (Box(-1, 1, (2,), seed=3) for _ in range(2))
    assert applies(same, "obs", one).observation_space.shape == (2,)
    assert np.array_equal(one.sample(), other.sample())
