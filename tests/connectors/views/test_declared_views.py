"""Views that are added to pipelines."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import pytest

from epibatch.connectors.common import AddTimeDimToBatchAndZeroPad
from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch, EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.views import TrajectoryViews, View, add_view
from epibatch.connectors.views.declared_views import declare_views
from epibatch.connectors.views.view import as_views
from epibatch.core.errors import ConfigError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import SingleAgentEpisode


def pipelines() -> list[Any]:
    return [
        kind(connectors=[AddObservationsFromEpisodesToBatch(**side), AddTimeDimToBatchAndZeroPad(**side)])
        for kind, side in ((EnvToModulePipeline, {}), (LearnerConnectorPipeline, {"as_learner_connector": True}))
    ]


def test_the_next_batch_has_it() -> None:
    episode = SingleAgentEpisode(
        id_="e", observations=[0, 1, 2], actions=[5, 6], rewards=[0.5, 1.5], len_lookback_buffer=0
    )
    acting, learner = pipelines()
    for pipeline in (acting, learner):
        assert list(pipeline(episodes=[episode])) == ["obs"]
        add_view(pipeline, "prev", View("rewards", -1))
        add_view(pipeline, "next", {"column": "actions", "shift": 1})
    assert acting(episodes=[episode])["prev"]["e",] == [1.5]
    assert list(acting(episodes=[episode])) == ["prev", "obs"]
    found = learner(episodes=[episode])
    assert found["prev"]["e",][0].tolist() == [0, 0.5] and found["next"]["e",][0].tolist() == [6, 0]
    assert learner.names == [
        "trajectory_views",
        "trajectory_views_1",
        "add_observations_from_episodes_to_batch",
        "add_time_dim_to_batch_and_zero_pad",
    ]
    assert acting.lookback_needed == learner.lookback_needed == 1


def test_those_of_sequences_stand_behind_the_time_axis() -> None:
    for pipeline in pipelines():
        add_view(pipeline, "memory", View("state_out", "-3:-1", per_sequence=True))
        add_view(pipeline, "prev", View("rewards", -1))
        names = pipeline.names
        assert names.index("add_time_dim_to_batch_and_zero_pad") == 2 and pipeline[0].views.keys() == {"prev"}
        assert pipeline[3].views.keys() == {"memory"}
        declare_views(pipeline, as_views({"other": View("state_out", -1, per_sequence=True)}, ""), {})
        declare_views(pipeline, as_views({"another": View("state_out", -1, per_sequence=True)}, ""), {})
        assert [piece.views.keys() for piece in pipeline[TrajectoryViews]] == [{"prev"}, {"another"}, {"memory"}]


def test_a_name_that_is_taken_and_a_pipeline_that_stays_as_it_was() -> None:
    for pipeline in pipelines():
        add_view(pipeline, "prev", View("rewards", -1))
        with pytest.raises(ConfigError, match="which the pipeline has already"):
            add_view(pipeline, "prev", View("rewards", -2))
        with pytest.raises(ConfigError, match="a column of its own"):
            add_view(pipeline, "rewards", View("rewards", -2))
        assert pipeline.names.count("trajectory_views") == 1 and list(pipeline[0].views) == ["prev"]


def test_a_piece_is_data() -> None:
    views = {
        "prev": View("rewards", -1),
        "last": View("actions", [-1, -2], mask=True),
        "logits": View("logits", -1, space=gym.spaces.Discrete(2)),
    }
    piece = TrajectoryViews(views=views, per_module={"a": {"x": View("obs", -1)}}, as_learner_connector=True)
    spec = piece_to_dict(piece)
    again = build_piece(json.loads(json.dumps(spec)))
    assert again.views == piece.views and again.per_module == piece.per_module and again.as_learner_connector
    assert piece_to_dict(again) == spec


def test_views_of_modules_are_replaced_in_a_clone_too() -> None:
    _, learner = pipelines()
    declare_views(learner, as_views({"prev": View("rewards", -1)}, "test"), {})
    clone = learner.clone()
    declare_views(clone, as_views({"prev": View("rewards", -2)}, "test"), {})
    assert [piece.views["prev"].shift for piece in clone[TrajectoryViews]] == [-2]
