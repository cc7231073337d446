"""One function of rows: both sides, agents, arrays, tensors and nested columns, and the space of what it gives."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    LearnerConnectorPipeline,
    NumpyToTensor,
    default_pipeline,
)
from epibatch.core.errors import ColumnError, PieceError, PieceOutputError, SpaceError
from epibatch.core.rl_module import MultiRLModule, default_module_spec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import UserPiece, played

BOX = gym.spaces.Box(-2.0, 4.0, (2,), np.float32)


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


def episode(id_="e", rewards=(1.0, 2.0, 3.0), **more):
    steps = len(rewards)
    return SingleAgentEpisode(
        id_=id_,
        observations=[np.float32([t, -t]) for t in range(steps + 1)],
        actions=[t % 2 for t in range(steps)],
        rewards=list(rewards),
        len_lookback_buffer=0,
        **more,
    )


def batch_of(pieces, episodes, **kwargs):
    made = [*pieces, AddObservationsFromEpisodesToBatch(as_learner_connector=True)]
    pipeline = LearnerConnectorPipeline(
        connectors=[*made, AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    )
    return pipeline(rl_module=None, batch={}, episodes=episodes, **kwargs)


def test_several_columns_and_model_outputs():
    one = episode(extra_model_outputs={"bonus": [5.0, 6.0, 7.0]})
    batch = batch_of([Shift(columns=("rewards", "bonus"))], [one])
    assert batch["rewards"].tolist() == [2.0, 3.0, 4.0]
    assert batch["bonus"].tolist() == [6.0, 7.0, 8.0]


def test_bootstrap_rows_of_rewards_are_zero_and_of_observations_are_there():
    config = PPOConfig().learners(learner_connector=lambda o, a: [Shift(), Shift(columns="obs")])
    pipeline = config.build_learner_connector(BOX, gym.spaces.Discrete(2))
    pipeline.insert_before("add_observations_from_episodes_to_batch", AddOneTsToEpisodesAndTruncate())
    batch = pipeline(rl_module=None, batch={}, episodes=[episode(terminated=True)])
    assert batch["rewards"].tolist() == [2.0, 3.0, 4.0, 0.0]
    assert batch["obs"][:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


class Everything(ColumnTransform):
    columns = "loss_mask"

    def transform(self, x):
        return np.ones_like(x)


def test_a_mask_of_ones_leaves_bootstrap_rows_out_all_the_same():
    pieces = [AddOneTsToEpisodesAndTruncate(), Everything(), AddColumnsFromEpisodesToTrainBatch()]
    pipeline = LearnerConnectorPipeline(connectors=[*pieces, BatchIndividualItems()])
    batch = pipeline(rl_module=None, batch={}, episodes=[episode(), episode("f", [5.0])])
    assert batch["loss_mask"].tolist() == [True, True, True, False, True, False]


def test_newest_observations_are_transformed_for_acting():
    pipeline = EnvToModulePipeline(
        BOX,
        gym.spaces.Discrete(2),
        connectors=[Shift(columns="obs"), AddObservationsFromEpisodesToBatch(), BatchIndividualItems()],
    )
    episodes = [episode("a"), episode("b", [0.0])]
    batch = pipeline(rl_module=None, batch={}, episodes=episodes)
    assert batch["obs"].tolist() == [[4.0, -2.0], [2.0, 0.0]]
    assert pipeline.observation_space == gym.spaces.Box(-1.0, 5.0, (2,), np.float32)
    assert episodes[0].get_observations(-1).tolist() == [3.0, -3.0]


def test_acting_row_equals_training_row():
    whole = episode(rewards=[0.0] * 5)
    trained = batch_of([Shift(columns="obs", amount=0.25)], [whole])["obs"]
    pieces = [Shift(columns="obs", amount=0.25), AddObservationsFromEpisodesToBatch(), BatchIndividualItems()]
    acting = EnvToModulePipeline(BOX, gym.spaces.Discrete(2), connectors=pieces)
    running = SingleAgentEpisode(observations=[whole.get_observations(0)])
    for t in range(5):
        row = acting(rl_module=None, batch={}, episodes=[running])["obs"][0]
        assert row.tolist() == trained[t].tolist()
        running.add_env_step(whole.get_observations(t + 1), 0, 0.0)


def test_tensors_behind_numpy_to_tensor_equal_arrays_in_front():
    tail = [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems(), NumpyToTensor(as_learner_connector=True)]

    def run(pieces):
        return LearnerConnectorPipeline(connectors=pieces)(rl_module=None, batch={}, episodes=[episode()])

    before, behind = run([Shift(), *tail]), run([*tail, Shift()])
    assert isinstance(behind["rewards"], torch.Tensor) or not isinstance(before["rewards"], torch.Tensor)
    assert np.asarray(before["rewards"]).tolist() == np.asarray(behind["rewards"]).tolist() == [2.0, 3.0, 4.0]


class Doubles(ColumnTransform):
    """Rows of [2 x]; refuses a time axis by its shape."""

    columns = "obs"
    takes_tensors = True

    def transform(self, x):
        if x.ndim != 2:
            raise ValueError(f"{x.ndim} axes")
        return x * 2


BEHIND = ["add_time_dim_to_batch_and_zero_pad", "batch_individual_items", "numpy_to_tensor"]


@pytest.mark.parametrize("behind", BEHIND)
def test_a_time_axis_is_hidden_from_the_function(behind):
    config = PPOConfig().rl_module(model_config={"use_lstm": True, "max_seq_len": 2, "lstm_cell_size": 4})
    pipeline = config.build_learner_connector(BOX, gym.spaces.Discrete(2))
    module = default_module_spec(BOX, gym.spaces.Discrete(2), {"use_lstm": True, "max_seq_len": 2}).build()
    one = episode(extra_model_outputs={"state_out": [_state(module)] * 3})
    plain = pipeline(rl_module=module, batch={}, episodes=[one])["obs"]
    pipeline.insert_after(behind, Doubles())
    twice = pipeline(rl_module=module, batch={}, episodes=[one])["obs"]
    assert twice.shape == (2, 2, 2)
    assert torch.equal(twice, plain * 2)


MODELS = [{"fcnet_hiddens": [4]}]


MODELS += [{"use_lstm": True, "max_seq_len": 3, "lstm_cell_size": 4, "sequence_end": end} for end in ("pad", "overlap")]


MODELS += [{**MODELS[1], "sequence_end": "continue"}, {**MODELS[1], "burn_in": 1}]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("bootstrapped", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: "-".join(map(str, model.values())))
def test_wherever_rewards_are_shifted_rows_that_are_no_steps_stay_zero(model, bootstrapped, nested):
    """Rewards of steps are never 0 here, so all others are bootstrap rows and padding."""
    spec = default_module_spec(BOX, gym.spaces.Discrete(2), model)
    module = MultiRLModule(rl_module_specs={"default_policy": spec}) if nested else spec.build()
    own = module["default_policy"] if nested else module
    states = [_state(own)] * 4 if own.is_stateful() else [0.0] * 4
    outputs = [{"extra_model_outputs": {"state_out": states[:steps]}} for steps in (4, 1)]
    episodes = [episode("a", [1.0, 2.0, 3.0, 4.0], **outputs[0]), episode("b", [5.0], **outputs[1])]
    pipeline = default_pipeline(advantages=False, burn_in=True)
    if bootstrapped:
        pipeline.prepend(AddOneTsToEpisodesAndTruncate())

    def rewards():
        batch = pipeline(rl_module=module, batch={}, episodes=episodes)
        assert list(batch) == ["default_policy"] if nested else "rewards" in batch
        return (batch["default_policy"] if nested else batch)["rewards"]

    plain, places = rewards(), pipeline.names
    assert bool((plain == 0).any()) is (bootstrapped or own.is_stateful())
    for place in places[places.index("add_columns_from_episodes_to_train_batch") :]:
        pipeline.insert_after(place, Shift(amount=10.0))
        assert torch.equal(rewards(), torch.where(plain == 0, 0.0, plain + 10)), place
        pipeline.remove("shift")


def _state(module):
    return {key: np.zeros(np.shape(value), np.float32) for key, value in module.get_initial_state().items()}


def nested_episode():
    row = {"camera": np.array([0, 255], np.uint8), "pose": (np.float32([1, 2]), np.float32([3, 4]))}
    return played([row, row])


def test_parts_of_tuples_are_counted_and_whole_columns_mapped_leaf_by_leaf():
    batch = batch_of([Shift(columns="obs/pose/1")], [nested_episode()])
    assert batch["obs"]["pose"][0].tolist() == [[1.0, 2.0]]
    assert batch["obs"]["pose"][1].tolist() == [[4.0, 5.0]]
    batch = batch_of([Shift(columns="obs/pose")], [nested_episode()])
    assert [leaf.tolist() for leaf in batch["obs"]["pose"]] == [[[2.0, 3.0]], [[4.0, 5.0]]]


@pytest.mark.parametrize("columns", ["obs/kamera", "obs/pose/2", "rewards/x"])
def test_parts_that_are_not_there_are_named(columns):
    with pytest.raises(ColumnError, match="expected: a part"):
        batch_of([Shift(columns=columns)], [nested_episode()])


class Ending(ColumnTransform):
    columns = "rewards"

    def transform(self, x):
        return x[:-1]


def test_a_function_that_loses_rows_is_named():
    with pytest.raises(PieceOutputError, match=r"Ending.transform[\s\S]*3 rows[\s\S]*shape \(2,\)"):
        batch_of([Ending()], [episode()])


def test_what_is_neither_in_the_batch_nor_in_episodes_is_named():
    with pytest.raises(ColumnError, match="did you mean 'rewards'"):
        batch_of([Shift(columns="rewardss")], [episode()])


def test_rewards_while_acting_are_refused_with_the_way_out():
    pieces = [Shift(), AddObservationsFromEpisodesToBatch(), BatchIndividualItems()]
    pipeline = EnvToModulePipeline(BOX, gym.spaces.Discrete(2), connectors=pieces)
    with pytest.raises(ColumnError, match="put the piece into the learner pipeline"):
        pipeline(rl_module=None, batch={}, episodes=[episode()])


@pytest.mark.parametrize("columns", [(), "", 3, ("rewards", None)])
def test_columns_that_are_none_are_refused_at_once(columns):
    class Wrong(ColumnTransform):
        def transform(self, x):
            return x

    Wrong.columns = columns
    with pytest.raises(PieceError, match=r"Wrong.columns[\s\S]*found: "):
        Wrong()


def test_without_an_inverse_asking_for_it_is_an_error():
    with pytest.raises(PieceError, match=r"write inverse\(self, y\)"):
        Doubles().inverse(np.zeros(2))
    assert Shift().inverse(Shift().transform(np.arange(3.0))).tolist() == [0.0, 1.0, 2.0]


def test_a_space_that_cannot_be_tried_is_named():
    space = gym.spaces.Dict(text=gym.spaces.Text(5))
    with pytest.raises(SpaceError, match="write output_space"):
        Shift(space, columns="obs").observation_space  # noqa: B018


def test_each_agents_rows_are_transformed():
    mapping = {"a": "one", "b": "two"}
    both = MultiAgentEpisode(id_="m", agent_to_module_mapping_fn=lambda agent, episode: mapping[agent])
    both.add_env_reset(observations={"a": np.float32([0, 0]), "b": np.float32([1, 1])})
    for t in range(1, 4):
        both.add_env_step(
            observations={"a": np.float32([t, t]), "b": np.float32([t, t])},
            actions={"a": 0, "b": 1},
            rewards={"a": float(t), "b": 10.0 * t},
        )
    config = (
        PPOConfig()
        .multi_agent(policies=["one", "two"], policy_mapping_fn=mapping)
        .learners(learner_connector=lambda o, a: [Shift(amount=0.5)])
    )
    spaces = [gym.spaces.Dict(a=space, b=space) for space in (BOX, gym.spaces.Discrete(2))]
    batch = config.build_learner_connector(*spaces)(rl_module=None, batch={}, episodes=[both])
    assert np.asarray(batch["one"]["rewards"]).tolist() == [1.5, 2.5, 3.5]
    assert np.asarray(batch["two"]["rewards"]).tolist() == [10.5, 20.5, 30.5]


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), amount=st.floats(-5, 5))
def test_a_list_and_a_loop_give_the_same(lengths, amount):
    episodes = [episode(f"e{i}", [float(i + t) for t in range(length)]) for i, length in enumerate(lengths)]
    batch = batch_of([Shift(amount=amount)], episodes)
    assert batch["rewards"].tolist() == [reward + amount for one in episodes for reward in one.get_rewards().tolist()]


def test_rows_know_their_space():
    seen = []

    class Spaces(ColumnTransform):
        """Notes the space of each part."""

        columns = ("obs", "rewards")

        def transform(self, x):
            seen.append(self.row_space)
            return x

    pixels, poses = gym.spaces.Box(0, 255, (2,), np.uint8), gym.spaces.Tuple([BOX, gym.spaces.Box(-9, 9, (2,))])
    for front in ([], [UserPiece()]):
        piece = Spaces()
        spaces = gym.spaces.Dict(camera=pixels, pose=poses), None
        LearnerConnectorPipeline(*spaces, connectors=[*front, piece])(episodes=[nested_episode()])
        assert seen[-4:] == [pixels, *poses, None] and piece.row_space is None


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (lambda x: x[:, None], r"shape \(3,\), one number for each reward(?s:.*)shape \(3, 1\)"),
        (lambda x: x.astype(str), "numbers, as float64 was given"),
        (lambda x: x.astype(object), "found:    object"),
        (lambda x: list(x), "found:    list"),
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_rewards_that_are_no_numbers_any_more_are_named(answer, match, behind):
    class Answers(ColumnTransform):
        columns = "rewards"

        def transform(self, x):
            return answer(x)

    made = [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    pipeline = LearnerConnectorPipeline(connectors=[*made, Answers()] if behind else [Answers(), *made])
    with pytest.raises(PieceOutputError, match=rf"Answers\.transform(?s:.*){match}"):
        pipeline(rl_module=None, batch={}, episodes=[episode()])


class Never(ColumnTransform):
    """Takes every flag away."""

    columns: str | tuple[str, ...] = "terminateds"

    def transform(self, x):
        return np.zeros_like(x)


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("column", ["terminateds", "truncateds"])
@pytest.mark.parametrize("end", ["terminated", "truncated", None])
def test_flags_are_taken_from_the_episodes_as_later_pieces_would_make_them(column, end, bootstrap):
    """The transform sees what the pipeline without it gives, and its result stays."""
    seen = []

    class Noting(Never):
        def transform(self, x):
            seen.append(np.array(x))
            return super().transform(x)

    def batch(front):
        pieces = [
            *front,
            *([AddOneTsToEpisodesAndTruncate()] if bootstrap else []),
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            BatchIndividualItems(),
        ]
        episodes = [episode("a", **({end: True} if end else {})), episode("b", (1.0,))]
        return LearnerConnectorPipeline(connectors=pieces)(episodes=episodes)

    expected, found = batch([]), batch([Noting(columns=column)])
    assert seen[-1].tolist() == expected[column].tolist()
    assert not found[column].any()
    assert found[column].shape == expected[column].shape
    other = {"terminateds": "truncateds", "truncateds": "terminateds"}[column]
    assert found[other].tolist() == expected[other].tolist()


def test_a_flag_that_is_taken_away_bootstraps_the_value_of_the_last_observation():
    box, choices = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(2)
    module = default_module_spec(box, choices, {}).build()

    def targets(front, **end):
        pipeline = default_pipeline(box, choices, connectors=front, gamma=0.9, lambda_=1.0)
        return pipeline(rl_module=module, episodes=[episode(**end)])["value_targets"]

    running = targets([])
    assert torch.equal(targets([Never()], terminated=True), running)
    assert not torch.equal(targets([], terminated=True), running)


DOUBLE = gym.spaces.Box(np.float64([-1, 0]), np.float64([1, np.inf]), dtype=np.float64)


EYE = np.eye(4, dtype=np.int8)


HALF_OPEN = gym.spaces.Box(np.float32([-1, 0]), np.float32([1, np.inf]))


def probed_space(space, function, monotonic=False):
    """The space of what a transform with this function gives."""

    class Tries(ColumnTransform):
        columns = "obs"

        def transform(self, x):
            return function(x)

    Tries.monotonic = monotonic
    return Tries(space).observation_space


@pytest.mark.parametrize(
    ("space", "function", "monotonic", "expected"),
    [
        (HALF_OPEN, lambda x: x[:, :1] * 2, False, gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)),
        (HALF_OPEN, lambda x: -2 * x, True, gym.spaces.Box(np.float32([-2, -np.inf]), np.float32([2, 0]))),
        (
            HALF_OPEN,
            lambda x: x.astype(np.float64),
            True,
            DOUBLE,
        ),
        (HALF_OPEN, lambda x: 0 * x, True, gym.spaces.Box(np.float32([0, -np.inf]), np.float32([0, np.inf]))),
        (HALF_OPEN, lambda x: x > 0, False, gym.spaces.Box(0, 1, (2,), np.bool_)),
        (
            gym.spaces.Discrete(4),
            lambda x: EYE[x],
            False,
            gym.spaces.Box(-128, 127, (4,), np.int8),
        ),
        (gym.spaces.Discrete(4, start=2), lambda x: -2 * x, True, gym.spaces.Box(-10, -4, (), np.int64)),
        (gym.spaces.MultiBinary(3), lambda x: x * 2 - 1, True, gym.spaces.Box(-1, 1, (3,), np.int8)),
        (gym.spaces.MultiBinary(3), lambda x: x.sum(-1), False, gym.spaces.Box(-(2**63), 2**63 - 1, (), np.int64)),
    ],
)
def test_shape_type_and_bounds(space, function, monotonic, expected):
    assert probed_space(space, function, monotonic=monotonic) == expected


def test_what_comes_out_is_in_the_space():
    space = gym.spaces.Box(-3, 5, (4,), seed=1)
    derived = probed_space(space, lambda x: np.clip(x, -1, 1) * np.float32(7), monotonic=True)
    assert derived == gym.spaces.Box(-7, 7, (4,))
    assert all(derived.contains(np.clip(space.sample(), -1, 1) * np.float32(7)) for _ in range(50))


def test_the_spaces_own_stream_is_left_alone():
    one, other = (gym.spaces.Box(-1, 1, (2,), seed=3) for _ in range(2))
    probed_space(one, lambda x: x)
    assert np.array_equal(one.sample(), other.sample())


def test_a_function_that_fails_is_told_what_it_was_tried_on():
    with pytest.raises(ZeroDivisionError, match=r"tried on 3 samples of Discrete\(2\), shape \(3,\) and type int64"):
        probed_space(gym.spaces.Discrete(2), lambda x: 1 / 0)


@pytest.mark.parametrize("space", [gym.spaces.Text(3), gym.spaces.Sequence(HALF_OPEN)])
def test_spaces_without_arrays_are_named(space):
    with pytest.raises(SpaceError, match="write output_space"):
        probed_space(space, lambda x: x)


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, "U3", "m8[s]", object, np.longdouble])
def test_there_is_no_space_of_results_whose_type_has_no_box(dtype, monotonic):
    assert probed_space(gym.spaces.Discrete(4), lambda x: x.astype(dtype), monotonic) is None


def test_a_transform_that_returns_nothing_is_named_when_its_pipeline_is_built():
    class Forgets(ColumnTransform):
        columns = "obs"

        def transform(self, x):
            x + 1

    with pytest.raises(PieceOutputError, match=r"Forgets\.transform"):
        LearnerConnectorPipeline(gym.spaces.Box(0, 1, (2,)), None, connectors=[Forgets()])
