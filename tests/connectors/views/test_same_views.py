"""Views of one name show the same while acting and in training."""

from __future__ import annotations

import gymnasium as gym
import pytest

from epibatch.connectors import check_two_sides
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.connectors.views.same_views import check_same_views
from epibatch.core.errors import PipelineError


def sides(acting, training):
    """Pipelines with a piece of views each; arguments of the pieces."""
    return (
        EnvToModulePipeline(connectors=[TrajectoryViews(**acting)]),
        LearnerConnectorPipeline(connectors=[TrajectoryViews(**training, as_learner_connector=True)]),
    )


SEEN = View("rewards", -1)


@pytest.mark.parametrize(
    "other",
    [
        View("rewards", -3),
        View("rewards", [-1]),
        View("actions", -1),
        View("rewards", -1, fill=2),
        View("rewards", -1, agent="b"),
        View("rewards", -1, mask=True),
        View("rewards", 1),
    ],
    ids=repr,
)
def test_views_of_one_name_that_differ_are_refused(other):
    with pytest.raises(PipelineError, match=r"view 'seen'[\s\S]*View\(column='rewards', shift=-1\)") as caught:
        check_two_sides(*sides({"views": {"seen": SEEN}}, {"views": {"seen": other}}))
    assert "or give one of the two another name" in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        View("rewards", -1, act=False),
        View("rewards", -1, fill=0.0),
        View("rewards", -1, mask=False),
        View("rewards", -1, space=gym.spaces.Box(-9, 9, ())),
    ],
    ids=repr,
)
def test_sides_and_spaces_do_not_count(other):
    check_two_sides(*sides({"views": {"seen": SEEN}}, {"views": {"seen": other}}))


def test_only_what_batches_of_each_side_have_is_compared():
    acting = {"views": {"seen": SEEN, "a": View("rewards", -1, train=False)}}
    training = {"views": {"seen": SEEN, "b": View("actions", 1)}}
    check_same_views(*sides(acting, training))
    unseen = {"views": {"seen": View("rewards", -2, train=False), "b": View("actions", 1)}}
    check_same_views(*sides(acting, unseen))


def test_views_of_single_modules_are_compared_with_those_that_the_module_has():
    acting, per_module = {"views": {"seen": SEEN}}, {"per_module": {"m": {"seen": View("rewards", -2)}}}
    with pytest.raises(PipelineError, match=r"view 'seen' for module 'm'[\s\S]*shift=-2"):
        check_same_views(*sides(acting, per_module))
    check_same_views(*sides(acting, {"per_module": {"m": {"seen": SEEN}}}))
    check_same_views(*sides({"per_module": {"n": {"seen": SEEN}}}, per_module))


def test_a_piece_that_is_meant_for_one_side_is_left_out():
    acting, training = sides({"views": {"seen": SEEN}}, {"views": {"seen": View("rewards", -3)}})
    training[0].one_sided = True
    check_same_views(acting, training)
