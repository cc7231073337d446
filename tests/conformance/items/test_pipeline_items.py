"""Behaviours C38, C39 and C41: the pieces of the pipelines, where a user's come, and what they can replace."""

from __future__ import annotations

import numpy as np
import pytest

from items.behaviours import behaviour, listed, plain
from items.lab import ACT, OBS, SPACES, acting, chunk, config, joined, learner, names, piece_class, run, user

ENV_TO_MODULE = [
    "AddObservationsFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
]
MODULE_TO_ENV = [
    "GetActions",
    "TensorToNumpy",
    "UnBatchToIndividualItems",
    "RemoveSingleTsTimeRankFromBatch",
    "NormalizeAndClipActions",
    "ListifyDataForVectorEnv",
]
LEARNER = [
    "AddObservationsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
]


def of_a_learner(library, settings):
    """The names in the pipeline that a PPO learner runs."""
    if library.name == "RLlib":
        return names(settings.build_learner(spaces={**SPACES, "default_policy": (OBS, ACT)})._learner_connector)
    pipeline = settings.build_learner_connector(OBS, ACT, device=None)
    settings.extend_learner_connector(pipeline)
    return names(pipeline)


@behaviour("C38")
def test_default_orders(library):
    to_module, to_env = acting(library)
    assert names(to_module) == ENV_TO_MODULE and names(to_env) == MODULE_TO_ENV
    assert names(learner(library)) == LEARNER


@behaviour("C38")
def test_ppo_adds_a_piece_on_each_side(library):
    expected = ["AddOneTsToEpisodesAndTruncate", *LEARNER, "GeneralAdvantageEstimation"]
    assert of_a_learner(library, config(library)) == expected


@behaviour("C39")
def test_where_a_users_pieces_come(library):
    def two(*arguments):
        return [user(library), user(library)]

    settings = config(library).env_runners(env_to_module_connector=two, module_to_env_connector=two)
    settings = settings.learners(learner_connector=two)
    own = ["UserPiece", "UserPiece"]
    to_module = settings.build_env_to_module_connector(env=None, spaces=SPACES, device=None)
    assert names(to_module) == [*own, *ENV_TO_MODULE]
    to_env = settings.build_module_to_env_connector(env=None, spaces=SPACES)
    assert names(to_env) == [*MODULE_TO_ENV[:4], *own, *MODULE_TO_ENV[4:]]
    assert names(settings.build_learner_connector(OBS, ACT, device=None)) == [*own, *LEARNER]


@behaviour("C39")
def test_where_a_users_pieces_come_beside_those_of_ppo(library):
    found = of_a_learner(library, config(library).learners(learner_connector=lambda *arguments: user(library)))
    bootstrap = "AddOneTsToEpisodesAndTruncate"
    first = listed("ppo-order", library, rllib=[bootstrap, "UserPiece"], epibatch=["UserPiece", bootstrap])
    assert found == [*first, *LEARNER, "GeneralAdvantageEstimation"]


@pytest.mark.parametrize("which", ["env_to_module", "module_to_env", "learner"])
@behaviour("C39")
def test_without_the_default_pieces_there_are_only_the_users(library, which):
    own = {f"{which}_connector": lambda *arguments: user(library)}
    off = {f"add_default_connectors_to_{which}_pipeline": False}
    section = "learners" if which == "learner" else "env_runners"
    settings = getattr(config(library), section)(**own, **off)
    arguments = {
        "env_to_module": {"env": None, "spaces": SPACES, "device": None},
        "module_to_env": {"env": None, "spaces": SPACES},
        "learner": {"input_observation_space": OBS, "input_action_space": ACT, "device": None},
    }
    built = getattr(settings, f"build_{which}_connector")(**arguments[which])
    assert names(built) == ["UserPiece"] and isinstance(built[0], piece_class(library))


@pytest.mark.parametrize("arrays", [False, True], ids=["acting", "learning"])
@behaviour("C41")
def test_observations_that_a_piece_added_stay(library, arrays):
    episode = chunk(library, "a", 2, arrays=arrays)
    own = [np.float32([7, 7]), np.float32([8, 8])] if arrays else [np.float32([7, 7])]

    def add(batch, episodes):
        for item in own:
            library.ConnectorV2.add_batch_item(batch, "obs", item, episodes[0])

    pipeline = learner(library) if arrays else acting(library)[0]
    pipeline.prepend(user(library, add))
    batch = run(pipeline, [episode])
    assert plain(batch["obs"]) == plain(own)


@pytest.mark.parametrize("column", ["actions", "rewards", "terminateds", "truncateds", "action_logp"])
@behaviour("C41")
def test_columns_that_a_piece_added_stay(library, column):
    own = [7.0, 8.0]

    def add(batch, episodes):
        library.ConnectorV2.add_n_batch_items(batch, column, list(own), 2, episodes[0])

    # the bare id is the key in both libraries as long as nothing gives the chunk another one
    pieces = [user(library, add), library.learner.AddColumnsFromEpisodesToTrainBatch(), watch := user(library)]
    run(library.learner.LearnerConnectorPipeline(OBS, ACT, connectors=pieces), [chunk(library, "a", 2)])
    assert set(watch.batch) == {"actions", "rewards", "terminateds", "truncateds", "action_logp"}
    assert plain(joined(watch.batch[column]["a",])) == own
    if column != "rewards":
        assert plain(joined(watch.batch["rewards"]["a",])) == [0.5, 1.5]
