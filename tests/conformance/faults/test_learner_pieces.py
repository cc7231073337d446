"""Faults of the learner pieces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from oracle.modules import build_module
from oracle.probes import Raises, plain, probe

BOX = gym.spaces.Box(-99, 99, (1,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


def chunk(library: Any, id_: str, start: int, stop: int) -> Any:
    """Steps `start` to `stop` of an episode: observation [t], action t % 3, reward t + 0.5."""
    times = range(start, stop)
    return library.SingleAgentEpisode(
        id_=id_,
        observations=[np.array([t], np.float32) for t in (*times, stop)],
        actions=[t % 3 for t in times],
        rewards=[t + 0.5 for t in times],
        observation_space=BOX,
        action_space=DISCRETE,
        t_started=start,
        len_lookback_buffer=0,
    ).to_numpy()


def learner_pipeline(library: Any, *, bootstrap: bool = True, advantages: bool = False) -> Any:
    lrn = library.learner
    pieces = [
        *([lrn.AddOneTsToEpisodesAndTruncate()] if bootstrap else []),
        lrn.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        lrn.AddColumnsFromEpisodesToTrainBatch(),
        lrn.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        lrn.AddStatesFromEpisodesToBatch(as_learner_connector=True),
        lrn.BatchIndividualItems(),
        lrn.NumpyToTensor(as_learner_connector=True),
        *([lrn.GeneralAdvantageEstimation(gamma=1.0, lambda_=1.0)] if advantages else []),
    ]
    return lrn.LearnerConnectorPipeline(BOX, DISCRETE, connectors=pieces)


def batch_of(library: Any, episodes: Any, pipeline: Any, **settings: Any) -> Any:
    module = build_module(library, BOX, DISCRETE, multi=True, **settings)
    return pipeline(rl_module=module, batch={}, episodes=episodes)["default_policy"]


@probe(
    "O11",
    ours={"id": "x", "length": 3, "truncated": False, "rows": [4, 4]},
    theirs={"id": "x_0_0", "length": 5, "truncated": True, "rows": [4, 5]},
)
def test_learner_pipelines_leave_episodes_alone(library: Any) -> Any:
    episode, pipeline = chunk(library, "x", 0, 3), learner_pipeline(library)
    rows = [len(batch_of(library, [episode], pipeline)["obs"]) for _ in range(2)]
    return {"id": episode.id_, "length": len(episode), "truncated": episode.is_truncated, "rows": rows}


@probe("O12", ours=[0.0, 1.0, 50.0, 2.0], theirs=[0.0, 1.0, 2.0, 50.0])
def test_chunks_of_an_episode_with_an_underscore_stay_apart(library: Any) -> Any:
    episodes = [chunk(library, "my_x", 0, 2), chunk(library, "other_x", 50, 51), chunk(library, "my_x", 2, 3)]
    batch = batch_of(library, episodes, learner_pipeline(library, bootstrap=False))
    return plain(batch["obs"][:, 0])


@probe("O12", ours=[[0.0, 1.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]], theirs=[[0.0, 1.0, 2.0, 0.0]])
def test_chunks_of_an_episode_with_an_underscore_are_padded_apart(library: Any) -> Any:
    episodes = [chunk(library, "my_x", 0, 2), chunk(library, "my_x", 2, 3)]
    batch = batch_of(library, episodes, learner_pipeline(library, bootstrap=False), state=2, max_seq_len=4)
    return plain(batch["obs"][..., 0])


@probe("O28", ours=[1.005, 0.359, -1.364, 0.0], theirs=[1.0, 0.696, -0.114, -1.582])
def test_advantages_are_standardised_over_the_rows_with_loss(library: Any) -> Any:
    """Rewards 0.5, 1.5, 2.5, values 0, 0.1, 0.2, then 0.3 of the bootstrap row: advantages 4.8, 4.2, 2.6.

    RLlib counts the bootstrap row's -0.3 as a fourth.
    """
    batch = batch_of(library, [chunk(library, "x", 0, 3)], learner_pipeline(library, advantages=True))
    return [round(x, 3) for x in plain(batch["advantages"])]


@probe("O29", ours=[3], theirs=[4])
def test_sequence_lengths_count_real_steps(library: Any) -> Any:
    batch = batch_of(library, [chunk(library, "x", 0, 3)], learner_pipeline(library), state=2, max_seq_len=4)
    return plain(batch["seq_lens"])


@probe("O46", ours=[{"name": "x"}], theirs=Raises(TypeError, "can't convert np.ndarray of type numpy.str_"))
def test_a_column_of_a_name_of_its_own_leaves_infos_alone(library: Any) -> Any:
    """With it RLlib takes `default_policy` for a column too, and makes tensors of what is in there."""
    modules = build_module(library, BOX, DISCRETE, multi=True)
    own = {"obs": np.zeros((1, 1), np.float32), "infos": [{"name": "x"}]}
    piece = library.learner.NumpyToTensor(as_learner_connector=True)
    return piece(rl_module=modules, batch={"default_policy": own, "mine": np.zeros(1)}, episodes=[])["default_policy"][
        "infos"
    ]
