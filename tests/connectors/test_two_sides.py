"""Pipelines by which a module would learn from something else than it acts on are refused."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors import ConnectorV2, check_two_sides
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columns import RenameColumns
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    FrameStacking,
)
from epibatch.connectors.common.flatten_observations import FlattenObservations
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter, WriteObservationsToEpisodes
from epibatch.connectors.images import RandomCrop
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.connectors.observations import Affine, Clip, FrozenModule, TimeMaxPool
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import PipelineError
from epibatch.episodes import SingleAgentEpisode

BOX = gym.spaces.Box(-9.0, 9.0, (3, 1))
IMAGES = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Squash(ColumnTransform):
    columns = "obs"
    monotonic = True
    factor: float = 1.0

    def transform(self, x):
        return np.tanh(self.factor * x)


class Jitter(Squash):
    one_sided = True


class Turned(ColumnTransform):
    columns = "actions"

    def transform(self, x):
        return -x

    def inverse(self, y):
        return -y


def sides(acting=(), training=(), space=BOX, actions=None):
    """Both pipelines as configs build them: the learner's for the observations that episodes have."""
    first = EnvToModulePipeline(space, actions, connectors=[*acting, AddObservationsFromEpisodesToBatch()])
    learner = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    second = LearnerConnectorPipeline(
        first.episode_observation_space, first.episode_action_space, connectors=[*training, *learner]
    )
    return first, second


def stack(learner=False, **keywords):
    return FrameStacking(num_frames=2, as_learner_connector=learner, **keywords)


@pytest.mark.parametrize(
    ("acting", "training", "found"),
    [
        ([Squash()], [], "Squash(factor=1.0) in env_to_module only"),
        ([], [Squash()], "Squash(factor=1.0) in learner only"),
        ([Squash(factor=2.0)], [Squash()], "Squash(factor=2.0) in env_to_module, Squash(factor=1.0) in learner"),
        ([Squash(), Clip(low=-0.5, high=0.5)], [Clip(low=-0.5, high=0.5), Squash()], "Squash(factor=1.0), Clip("),
        ([stack()], [stack(True, padding="same")], "padding='same'"),
        ([TimeMaxPool(num_frames=2)], [], "TimeMaxPool(num_frames=2) in env_to_module only"),
        ([MeanStdFilter(), Squash()], [], "Squash(factor=1.0) in env_to_module only"),
        ([], [Affine(scale=2.0)], "in learner only"),
    ],
)
def test_changes_of_observations_on_one_side_or_other_ones_are_refused(acting, training, found):
    with pytest.raises(PipelineError) as caught:
        check_two_sides(*sides(acting, training))
    message = str(caught.value)
    assert found in message
    assert ".env_runners(env_to_module_connector=...) and .learners(learner_connector=...)" in message
    assert "one_sided = True" in message


@pytest.mark.parametrize(
    ("acting", "training", "space"),
    [
        ([], [], BOX),
        ([Squash(factor=2)], [Squash(factor=2.0)], BOX),
        ([Affine(loc=np.ones((3, 1)))], [Affine(loc=np.ones((3, 1)), columns=("obs", "new_obs"))], BOX),
        ([stack()], [stack(True)], BOX),
        ([stack()], [stack(True, axis=None)], BOX),
        ([MeanStdFilter(), stack()], [stack(True)], BOX),
        ([Squash(), WriteObservationsToEpisodes()], [], BOX),
        ([Squash(), WriteObservationsToEpisodes(), Clip(low=0.0)], [Clip(low=0.0)], BOX),
        ([FlattenObservations()], [FlattenObservations(as_learner_connector=True)], BOX),
        ([], [Jitter()], BOX),
        ([Squash()], [Squash(), Jitter(factor=0.5)], BOX),
        ([], [RandomCrop(pad=2)], IMAGES),
        ([RandomCrop(height=5, width=5)], [RandomCrop(height=5, width=5)], IMAGES),
        (
            [RenameColumns(names={"obs/a": "obs/b"})],
            [RenameColumns(names={"obs/a": "obs/b"})],
            gym.spaces.Dict(a=BOX),
        ),
    ],
)
def test_the_same_on_both_sides_is_fine_and_so_is_what_is_stored_or_meant(acting, training, space):
    check_two_sides(*sides(acting, training, space))


def test_augmentation_that_changes_the_shape_is_needed_on_both_sides():
    with pytest.raises(PipelineError, match=r"\(8, 8, 3\), uint8\), as the module acts on") as caught:
        check_two_sides(*sides([], [RandomCrop(height=5, width=5)], IMAGES))
    assert "(5, 5, 3), uint8), as it would be trained on" in str(caught.value)


def test_a_view_of_observations_for_training_only_says_that_it_is_meant():
    views = {"obs": View("obs", 0, act=False)}
    check_two_sides(*sides([], [TrajectoryViews(views=views, as_learner_connector=True)]))
    with pytest.raises(PipelineError, match=r"TrajectoryViews.* in learner only"):
        check_two_sides(*sides([], [TrajectoryViews(views={"obs": View("obs", -1)}, as_learner_connector=True)]))


class MeantForOneSide(TrajectoryViews):
    one_sided = True


@pytest.mark.parametrize(
    ("acting", "training"),
    [(None, View("obs", 1)), (View("obs", -1, train=False), None), (None, View("obs", -1, act=False))],
)
def test_a_view_that_replaces_the_observations_on_one_side_only_is_refused(acting, training):
    def pieces(cls):
        one, other = ({"views": {"obs": view}} for view in (acting, training))
        return [cls(**one)] if acting else [], [cls(**other, as_learner_connector=True)] if training else []

    with pytest.raises(PipelineError, match="let the view named 'obs' be seen on both sides") as caught:
        check_two_sides(*sides(*pieces(TrajectoryViews)))
    assert f"in {'env_to_module' if acting else 'learner'} only" in str(caught.value)
    assert 'such as "next_obs"' in str(caught.value)
    check_two_sides(*sides(*pieces(MeantForOneSide)))


def test_views_of_the_observations_for_each_side_are_compared_by_what_they_show():
    def pair(one, other):
        check_two_sides(
            *sides(
                [TrajectoryViews(views={"obs": one})],
                [TrajectoryViews(views={"obs": other}, as_learner_connector=True)],
            )
        )

    pair(View("obs", -1, train=False), View("obs", -1, act=False))
    pair(View("obs", "-1:0"), View("obs", [-1, 0], fill=0))
    with pytest.raises(PipelineError, match="the same changes of observations"):
        pair(View("obs", -1, train=False), View("obs", -2, act=False))


def test_frozen_networks_are_told_apart_by_their_weights():
    torch.manual_seed(0)
    one, other = torch.nn.Linear(1, 2), torch.nn.Linear(1, 2)
    copied = torch.nn.Linear(1, 2)
    copied.load_state_dict(one.state_dict())
    check_two_sides(*sides([FrozenModule(module=one)], [FrozenModule(module=copied)]))
    with pytest.raises(PipelineError, match="FrozenModule"):
        check_two_sides(*sides([FrozenModule(module=one)], [FrozenModule(module=other)]))


class Holds(ColumnTransform):
    columns = "obs"
    function: object

    def transform(self, x):
        return self.function(x)


class Scaler:
    def __call__(self, x):
        return 2 * x


def test_objects_that_equal_only_themselves_are_taken_for_equal_if_they_are_of_one_class():
    check_two_sides(*sides([Holds(function=Scaler())], [Holds(function=Scaler())]))
    with pytest.raises(PipelineError, match="Holds"):
        check_two_sides(*sides([Holds(function=Scaler())], [Holds(function=lambda x: x)]))


def times(factor):
    return lambda x: x * factor


def test_functions_are_told_apart_by_what_they_compute():
    check_two_sides(*sides([Holds(function=lambda x: x + 1)], [Holds(function=lambda x: x + 1)]))
    check_two_sides(*sides([Holds(function=times(2))], [Holds(function=times(2))]))
    for pair in [(times(2), times(3)), (lambda x: x + 1, lambda x: x + 2), (np.tanh, np.sinh)]:
        with pytest.raises(PipelineError, match="Holds"):
            check_two_sides(*sides(*[[Holds(function=one)] for one in pair]))


class Knows(ColumnTransform):
    columns = "obs"
    what: object

    def transform(self, x):
        return x


def test_networks_and_tensors_as_parameters_are_told_apart_by_value():
    torch.manual_seed(0)
    one, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    check_two_sides(*sides([Knows(what=one)], [Knows(what=copy.deepcopy(one))]))
    check_two_sides(*sides([Knows(what=torch.arange(3))], [Knows(what=torch.arange(3))]))
    for pair in [(one, other), (torch.arange(3), torch.ones(3)), (one, None)]:
        with pytest.raises(PipelineError, match="Knows"):
            check_two_sides(*sides(*[[Knows(what=value)] for value in pair]))


class Raised(ColumnTransform):
    columns = "obs"

    def __init__(self, input_observation_space=None, input_action_space=None, *, power=2, **kwargs):
        self.power = power
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def transform(self, x):
        return x**self.power


def test_arguments_that_are_left_out_are_those_by_default():
    check_two_sides(*sides([Raised()], [Raised(power=2)]))
    check_two_sides(*sides([Raised(power=3)], [Raised(None, None, power=3)]))
    with pytest.raises(PipelineError, match="Raised"):
        check_two_sides(*sides([Raised()], [Raised(power=3)]))


class Plain(ConnectorV2):
    """Declares nothing: whether it writes to the episodes is not known."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-1.0, 1.0, (3, 1))

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


def test_undeclared_pieces_are_trusted_and_declared_ones_beside_them_are_not():
    check_two_sides(*sides([Plain()], []))
    check_two_sides(*sides([Plain()], [Plain()]))
    with pytest.raises(PipelineError, match="Squash"):
        check_two_sides(*sides([Plain(), Squash()], [Plain()]))


def test_transforms_of_actions_belong_into_the_env_to_module_pipeline():
    actions = gym.spaces.Box(-1.0, 1.0, (2,))
    check_two_sides(*sides([Turned()], [], actions=actions))
    with pytest.raises(PipelineError, match="into the env-to-module pipeline instead"):
        check_two_sides(*sides([], [Turned()], actions=actions))
    with pytest.raises(PipelineError, match="leave Turned out of the learner pipeline"):
        check_two_sides(*sides([Turned()], [Turned()], actions=actions))


class OtherActions(Plain):
    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return input_observation_space

    def recompute_output_action_space(self, input_observation_space, input_action_space):
        return gym.spaces.Discrete(3)


def test_the_learner_s_action_space_is_that_of_the_module():
    with pytest.raises(PipelineError, match=r"Discrete\(2\), in which the module acts") as caught:
        check_two_sides(*sides([], [OtherActions()], actions=gym.spaces.Discrete(2)))
    assert "found:    Discrete(3)" in str(caught.value)


def test_of_several_modules_each_one_s_space_is_compared():
    spaces = gym.spaces.Dict(a=IMAGES, b=IMAGES), gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Discrete(2))

    def mapping(learner):
        each = {"agent_to_module_mapping_fn": lambda agent, _: f"m_{agent}"}
        return AgentToModuleMapping(**each, as_learner_connector=learner)

    def pipelines(*training):
        first = EnvToModulePipeline(*spaces, connectors=[AddObservationsFromEpisodesToBatch(), mapping(False)])
        inputs = first.episode_observation_space, first.episode_action_space
        obs = AddObservationsFromEpisodesToBatch(as_learner_connector=True)
        return first, LearnerConnectorPipeline(*inputs, connectors=[*training, obs, mapping(True)])

    check_two_sides(*pipelines(RandomCrop(pad=1)))
    with pytest.raises(PipelineError, match="observation space for module 'm_a'"):
        check_two_sides(*pipelines(RandomCrop(height=4, width=4)))


# -- what passes trains on what was acted on ---------------------------------------------------------

POOL = [
    lambda learner: Squash(),
    lambda learner: Squash(factor=0.5),
    lambda learner: Clip(low=-0.3, high=0.3),
    stack,
    lambda learner: stack(learner, padding="same"),
    lambda learner: TimeMaxPool(num_frames=2, as_learner_connector=learner),
]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_passes_is_trained_on_what_was_acted_on(data):
    windows = st.sampled_from([None, 3, 4, 5])
    rows = st.lists(st.integers(0, 2), max_size=2)

    def chosen():
        window = data.draw(windows)
        return ([] if window is None else [window]) + data.draw(rows)

    numbers = chosen()
    others = numbers if data.draw(st.booleans()) else chosen()
    first, second = sides([POOL[i](False) for i in numbers], [POOL[i](True) for i in others])
    try:
        check_two_sides(first, second)
    except PipelineError:
        assert numbers != others
        return
    drawn = np.random.default_rng(data.draw(st.integers(0, 99)))
    episode, seen = SingleAgentEpisode(), []
    episode.add_env_reset(drawn.normal(size=(3, 1)).astype(np.float32))
    for step in range(4):
        seen.append(first(episodes=[episode])["obs"][episode.id_,][0])
        if step < 3:
            episode.add_env_step(drawn.normal(size=(3, 1)).astype(np.float32), action=0, reward=0.0)
    trained = np.asarray(second(episodes=[episode])["obs"][episode.id_,][0])
    np.testing.assert_array_equal(trained, np.stack(seen)[:3])
