"""What goes wrong when libraries are mixed up is a named error that says which is which and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    ColumnError,
    EpisodeError,
    EpisodeStateError,
    LookbackError,
    NotAvailableError,
    PieceError,
    PieceOutputError,
    PipelineError,
)
from epibatch.episodes import SingleAgentEpisode
from epibatch.interop.rllib import from_rllib, from_rllib_piece, to_rllib, to_rllib_piece
from oracle.libraries import EPIBATCH, RLLIB

OURS, THEIRS = EPIBATCH.SingleAgentEpisode, RLLIB.SingleAgentEpisode
BATCHING = EPIBATCH.learner.BatchIndividualItems


def several_agents():
    return RLLIB.module("env.multi_agent_episode").MultiAgentEpisode(id_="both")


@pytest.mark.parametrize(
    ("mistake", "cls", "words"),
    [
        (lambda: to_rllib(OURS), EpisodeError, ["the class epibatch.episodes", "an instance of the class"]),
        (lambda: from_rllib(THEIRS), EpisodeError, ["the class ray.rllib.env", "an instance of the class"]),
        (lambda: to_rllib(THEIRS(id_="x")), EpisodeError, ["id_=x), which is RLlib's already", "use it as it is"]),
        (lambda: from_rllib([OURS(id_="x")]), EpisodeError, ["id=x), which is epibatch's already", "use it as it is"]),
        (lambda: from_rllib({"obs": [1]}), EpisodeError, ["dict {'obs': [1]}", "pass an episode"]),
        (lambda: from_rllib(several_agents()), NotAvailableError, ["multi-agent episode, 'both'", "agent_episodes"]),
        (lambda: to_rllib(several_agents()), NotAvailableError, ["single-agent episodes"]),
        (lambda: to_rllib_piece(BATCHING), PieceError, ["the class epibatch.", "call it: BatchIndividualItems(...)"]),
        (lambda: from_rllib_piece(BATCHING()), PieceError, ["epibatch's already", "use it as it is"]),
        (lambda: to_rllib_piece(RLLIB.learner.NumpyToTensor()), PieceError, ["RLlib's already", "use it as it is"]),
        (lambda: from_rllib_piece(len), PieceError, ["builtin_function_or_method", "an instance of a ConnectorV2"]),
        (lambda: to_rllib_piece(BATCHING(), pipeline="lerner"), PieceError, ["'lerner'", "did you mean 'learner'?"]),
    ],
)
def test_named_errors(mistake, cls, words):
    with pytest.raises(cls) as error:
        mistake()
    for word in words:
        assert word in str(error.value), word


@pytest.mark.parametrize("library", [RLLIB, EPIBATCH], ids=str)
def test_episodes_of_the_wrong_library(library):
    class Piece(library.ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            return batch

    if library is RLLIB:
        with pytest.raises(EpisodeError, match="which is RLlib's"):
            from_rllib_piece(Piece())(
                rl_module=None,
                batch={},
                episodes=[THEIRS(observations=[1, 2], actions=[0], rewards=[0.0], len_lookback_buffer=0)],
            )
    else:
        with pytest.raises(EpisodeError, match="which is epibatch's"):
            RLLIB.learner.LearnerConnectorPipeline(connectors=[to_rllib_piece(Piece())])(
                rl_module=None, batch={}, episodes=[OURS(observations=[1])]
            )


def test_episodes_of_several_agents_for_a_piece_of_ours():
    piece = to_rllib_piece(EPIBATCH.env_to_module.MeanStdFilter())
    with pytest.raises(NotAvailableError, match="MeanStdFilter"):
        piece(rl_module=None, batch={}, episodes=[several_agents()])


def columns(**changed):
    return {"observations": [1, 2], "actions": [0], "rewards": [0.0], "len_lookback_buffer": 0, **changed}


def test_an_inconsistent_episode_of_rllib_is_refused():
    """RLlib's takes a model output that appears late, and only fails when the episode is validated."""
    theirs = THEIRS(id_="late", **columns())
    theirs.add_env_step(3, 0, 1.0, extra_model_outputs={"late": 1})
    with pytest.raises(EpisodeError, match="episode late with 2 rewards"):
        from_rllib(theirs)
    nested = THEIRS(**columns(observations=[{"a": 1}, 2], actions=[0]))
    nested.add_env_step(3, 0, 1.0)
    with pytest.raises(ColumnError):
        from_rllib(nested)


@pytest.mark.parametrize("library", [RLLIB, EPIBATCH], ids=str)
def test_a_piece_that_returns_nothing(library):
    class Forgets(library.ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            pass

    piece, other = (from_rllib_piece, OURS) if library is RLLIB else (to_rllib_piece, THEIRS)
    with pytest.raises(PieceOutputError, match="Forgets") as error:
        piece(Forgets())(rl_module=None, batch={}, episodes=[other(**columns())])
    assert "end __call__ with `return batch`" in str(error.value)


def test_a_guest_that_adds_steps():
    class Lengthens(RLLIB.ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            episodes[0].add_env_step(9, 0, 1.0)
            return batch

    with pytest.raises(EpisodeStateError, match="Lengthens of RLlib's, episode 'e'") as error:
        from_rllib_piece(Lengthens())(rl_module=None, batch={}, episodes=[OURS("e", **columns())])
    assert "an episode of 1 steps" in str(error.value) and "found:    2 steps" in str(error.value)


def test_a_guest_that_overwrites_passed_rewards_while_acting():
    class Shapes(RLLIB.ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            episodes[0].set_rewards(new_data=[5.0, 6.0])
            return batch

    pipeline = EPIBATCH.env_to_module.EnvToModulePipeline(connectors=[from_rllib_piece(Shapes())])
    episode = OURS(**columns(observations=[1, 2, 3], actions=[0, 0], rewards=[0.0, 1.0]))
    with pytest.raises(EpisodeStateError, match="the newest step's alone"):
        pipeline(episodes=[episode])
    assert episode.get_rewards().tolist() == [0.0, 1.0]


def test_history_that_a_chunk_does_not_carry():
    stacking = RLLIB.module("connectors.common.frame_stacking").FrameStacking(num_frames=4)
    pipeline = EPIBATCH.env_to_module.EnvToModulePipeline(connectors=[from_rllib_piece(stacking)])
    episode = SingleAgentEpisode(observations=np.zeros((9, 1, 1, 1)), actions=[0] * 8, rewards=[0.0] * 8)
    episode.t_started = 5
    with pytest.raises(LookbackError, match="FrameStacking"):
        pipeline(episodes=[episode.cut(len_lookback_buffer=2)])


def test_keys_that_belong_to_no_episode():
    class Strange(RLLIB.ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            batch["mine"] = {("nobody",): [1], ("none",): [2]}
            return batch

    with pytest.raises(BatchLayoutError, match="'nobody'"):
        from_rllib_piece(Strange())(rl_module=None, batch={}, episodes=[OURS("e", **columns())])


def test_items_of_chunks_that_share_an_id_and_cannot_be_told_apart():
    piece = to_rllib_piece(EPIBATCH.learner.AddColumnsFromEpisodesToTrainBatch(), pipeline="learner")
    episodes = [THEIRS(id_="same_id", **columns()) for _ in range(2)]
    with pytest.raises(BatchLayoutError, match="2 chunks that share a key"):
        piece(rl_module=None, batch={"mine": {("same_id",): [1, 2, 3]}}, episodes=episodes)
    batch = piece(rl_module=None, batch={"mine": {("same_id",): [1, 2]}}, episodes=episodes)
    assert batch["mine"] == {("same_id",): [1, 2]} and len(batch["actions"][("same_id",)]) == 2


COLUMNS = {"observations": [np.zeros(2), np.ones(2)], "actions": [0], "rewards": [1.0], "len_lookback_buffer": 0}


class Theirs(RLLIB.ConnectorV2):
    """A user's piece whose imports were not changed."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


def test_a_piece_in_a_pipeline():
    with pytest.raises(PieceError, match="epibatch port FILE"):
        EPIBATCH.learner.LearnerConnectorPipeline(connectors=[Theirs()])


def test_a_piece_in_a_config():
    config = EPIBATCH.PPOConfig().learners(learner_connector=lambda obs_space, act_space: Theirs())
    with pytest.raises(PieceError, match="epibatch port FILE"):
        config.build_learner_connector()


def test_an_episode_in_a_pipeline():
    pieces = [EPIBATCH.learner.AddObservationsFromEpisodesToBatch(as_learner_connector=True)]
    pipeline = EPIBATCH.learner.LearnerConnectorPipeline(connectors=pieces)
    with pytest.raises(PipelineError, match=r"from_rllib\(episode\)"):
        pipeline(episodes=[RLLIB.SingleAgentEpisode(**COLUMNS)])


def test_a_state_of_an_episode():
    with pytest.raises(CheckpointError, match="from_rllib"):
        EPIBATCH.SingleAgentEpisode.from_state(RLLIB.SingleAgentEpisode(**COLUMNS).get_state())
