"""What goes wrong when libraries are mixed up is a named error that says which is which and what to do."""

from __future__ import annotations

import re

import numpy as np
import pytest

from epibatch.core import errors
from epibatch.interop.rllib import from_rllib, from_rllib_piece, to_rllib, to_rllib_piece
from oracle.libraries import EPIBATCH, RLLIB
from oracle.makers import run, user

OURS, THEIRS = EPIBATCH.SingleAgentEpisode, RLLIB.SingleAgentEpisode
BATCHING = EPIBATCH.learner.BatchIndividualItems


def columns(**changed):
    return {"observations": [1, 2], "actions": [0], "rewards": [0.0], "len_lookback_buffer": 0, **changed}


def several_agents():
    return RLLIB.MultiAgentEpisode(id_="both")


def late():
    """RLlib's takes a model output that appears late, and only fails when the episode is validated."""
    episode = THEIRS(id_="late", **columns())
    episode.add_env_step(3, 0, 1.0, extra_model_outputs={"late": 1})
    return episode


def nested_differently():
    episode = THEIRS(**columns(observations=[{"a": 1}, 2]))
    episode.add_env_step(3, 0, 1.0)
    return episode


def guest(function):
    """RLlib's piece around a function, in our place, called with an episode of ours."""
    run(from_rllib_piece(user(RLLIB, function)), [OURS("e", **columns())])


def adds_steps(piece, batch, episodes):
    episodes[0].add_env_step(9, 0, 1.0)


def adds_keys(piece, batch, episodes):
    batch["mine"] = {("nobody",): [1], ("none",): [2]}


def stacking_without_history():
    stacking = RLLIB.module("connectors.common.frame_stacking").FrameStacking(num_frames=4)
    pipeline = EPIBATCH.env_to_module.EnvToModulePipeline(connectors=[from_rllib_piece(stacking)])
    episode = OURS(observations=np.zeros((9, 1, 1, 1)), actions=[0] * 8, rewards=[0.0] * 8)
    episode.t_started = 5
    pipeline(episodes=[episode.cut(len_lookback_buffer=2)])


def in_a_pipeline(*pieces):
    return EPIBATCH.learner.LearnerConnectorPipeline(connectors=[*pieces])


def in_a_config():
    config = EPIBATCH.PPOConfig().learners(learner_connector=lambda obs_space, act_space: user(RLLIB))
    config.build_learner_connector()


FIRST = EPIBATCH.learner.AddObservationsFromEpisodesToBatch
MISTAKES = [
    (lambda: to_rllib(OURS), "Episode", ["the class epibatch.episodes", "an instance of the class"]),
    (lambda: from_rllib(THEIRS), "Episode", ["the class ray.rllib.env", "an instance of the class"]),
    (lambda: to_rllib(THEIRS(id_="x")), "Episode", ["id_=x), which is RLlib's already", "use it as it is"]),
    (lambda: from_rllib([OURS(id_="x")]), "Episode", ["id=x), which is epibatch's already", "use it as it is"]),
    (lambda: from_rllib({"obs": [1]}), "Episode", ["dict {'obs': [1]}", "pass an episode"]),
    (lambda: from_rllib(several_agents()), "NotAvailable", ["multi-agent episode, 'both'", "agent_episodes"]),
    (lambda: to_rllib(several_agents()), "NotAvailable", ["single-agent episodes"]),
    (lambda: to_rllib_piece(BATCHING), "Piece", ["the class epibatch.", "call it: BatchIndividualItems(...)"]),
    (lambda: from_rllib_piece(BATCHING()), "Piece", ["epibatch's already", "use it as it is"]),
    (lambda: to_rllib_piece(RLLIB.learner.NumpyToTensor()), "Piece", ["RLlib's already", "use it as it is"]),
    (lambda: from_rllib_piece(len), "Piece", ["builtin_function_or_method", "an instance of a ConnectorV2"]),
    (lambda: to_rllib_piece(BATCHING(), pipeline="lerner"), "Piece", ["'lerner'", "did you mean 'learner'?"]),
    (lambda: from_rllib(late()), "Episode", ["episode late with 2 rewards"]),
    (lambda: from_rllib(nested_differently()), "Column", []),
    (lambda: run(from_rllib_piece(user(RLLIB)), [THEIRS(**columns())]), "Episode", ["which is RLlib's"]),
    (lambda: run(to_rllib_piece(user(EPIBATCH)), [OURS(observations=[1])]), "Episode", ["which is epibatch's"]),
    (lambda: run(to_rllib_piece(BATCHING()), [several_agents()]), "NotAvailable", ["BatchIndividualItems"]),
    (lambda: guest(adds_steps), "EpisodeState", ["UserPiece of RLlib's, episode 'e'", "of 1 steps", "2 steps"]),
    (lambda: guest(adds_keys), "BatchLayout", ["'nobody'"]),
    (stacking_without_history, "Lookback", ["FrameStacking"]),
    (lambda: in_a_pipeline(user(RLLIB)), "Piece", ["epibatch port FILE"]),
    (in_a_config, "Piece", ["epibatch port FILE"]),
    (
        lambda: in_a_pipeline(FIRST(as_learner_connector=True))(episodes=[THEIRS(**columns())]),
        "Pipeline",
        ["from_rllib(episode)"],
    ),
    (lambda: OURS.from_state(THEIRS(**columns()).get_state()), "Checkpoint", ["from_rllib"]),
]


@pytest.mark.parametrize(("mistake", "name", "words"), MISTAKES)
def test_named_errors(mistake, name, words):
    with pytest.raises(getattr(errors, f"{name}Error")) as error:
        mistake()
    for word in words:
        assert word in str(error.value), word


@pytest.mark.parametrize("library", [RLLIB, EPIBATCH], ids=str)
def test_a_piece_that_returns_nothing(library):
    class Forgets(library.ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            pass

    piece, other = (from_rllib_piece, OURS) if library is RLLIB else (to_rllib_piece, THEIRS)
    with pytest.raises(errors.PieceOutputError, match=re.compile("Forgets.*end __call__ with `return batch`", re.S)):
        run(piece(Forgets()), [other(**columns())])


def test_a_guest_that_overwrites_passed_rewards_while_acting():
    shapes = user(RLLIB, lambda piece, batch, episodes: episodes[0].set_rewards(new_data=[5.0, 6.0]))
    pipeline = EPIBATCH.env_to_module.EnvToModulePipeline(connectors=[from_rllib_piece(shapes)])
    episode = OURS(**columns(observations=[1, 2, 3], actions=[0, 0], rewards=[0.0, 1.0]))
    with pytest.raises(errors.EpisodeStateError, match="the newest step's alone"):
        pipeline(episodes=[episode])
    assert episode.get_rewards().tolist() == [0.0, 1.0]


def test_items_of_chunks_that_share_an_id_and_cannot_be_told_apart():
    piece = to_rllib_piece(EPIBATCH.learner.AddColumnsFromEpisodesToTrainBatch(), pipeline="learner")
    episodes = [THEIRS(id_="same_id", **columns()) for _ in range(2)]
    with pytest.raises(errors.BatchLayoutError, match="2 chunks that share a key"):
        run(piece, episodes, batch={"mine": {("same_id",): [1, 2, 3]}})
    batch = run(piece, episodes, batch={"mine": {("same_id",): [1, 2]}})
    assert batch["mine"] == {("same_id",): [1, 2]} and len(batch["actions"][("same_id",)]) == 2
