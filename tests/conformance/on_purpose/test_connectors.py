"""Differences of pieces and pipelines that are there on purpose."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import (
    ColumnError,
    EpisodeError,
    EpisodeStateError,
    LookbackError,
    PieceError,
    PipelineError,
    SpaceError,
    UnknownNameError,
)
from faults.pieces import DISCRETE, filtered, rounded, user_piece, wired
from oracle.modules import build_module
from oracle.probes import Raises, plain, probe

BOX = gym.spaces.Box(-99, 99, (1,), np.float32)


def chunk(library: Any, id_: str = "e", steps: int = 3) -> Any:
    """An episode of that many steps, as arrays."""
    return library.SingleAgentEpisode(
        id_=id_,
        observations=[np.array([t], np.float32) for t in range(steps + 1)],
        actions=[0] * steps,
        rewards=[t + 0.5 for t in range(steps)],
        len_lookback_buffer=0,
    ).to_numpy()


def learner_pieces(library: Any) -> list[Any]:
    lrn = library.learner
    return [
        lrn.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        lrn.AddColumnsFromEpisodesToTrainBatch(),
        lrn.BatchIndividualItems(),
    ]


def learned(library: Any, pieces: list[Any], episodes: list[Any]) -> Any:
    """What a learner pipeline of these pieces makes of episodes."""
    pipeline = library.learner.LearnerConnectorPipeline(BOX, DISCRETE, connectors=pieces)
    return pipeline(rl_module=None, batch={}, episodes=episodes)


@probe("batch-keys", ours=[("e",), ("f",)], theirs=[("e_0",), ("f_1",)])
def test_batch_keys(library: Any) -> Any:
    batch = learned(library, learner_pieces(library)[:1], [chunk(library, "e"), chunk(library, "f")])
    return list(batch["obs"])


@probe("order-checked", ours=Raises(PipelineError, "BatchIndividualItems"), theirs=2)
def test_a_wrong_order(library: Any) -> Any:
    lrn = library.learner
    pieces = [lrn.NumpyToTensor(as_learner_connector=True), lrn.BatchIndividualItems()]
    return len(lrn.LearnerConnectorPipeline(BOX, DISCRETE, connectors=pieces))


@probe("unknown-keywords", ours=Raises(PieceError, "did you mean 'num_frames'"), theirs=1)
def test_a_misspelt_keyword(library: Any) -> Any:
    piece = library.module("connectors.common.frame_stacking").FrameStacking
    return piece(num_frame=4).num_frames


@probe("filter-vector", ours=[[-0.7071], [0.7071]], theirs=[[0.0], [0.7071]])
def test_filtered_observations_of_two_environments(library: Any) -> Any:
    piece = wired(library.env_to_module.MeanStdFilter(), BOX)
    episodes = [library.SingleAgentEpisode(id_=id_) for id_ in "ab"]
    for episode, value in zip(episodes, (1, 3)):
        episode.add_env_reset(np.array([value], np.float32))
    piece(rl_module=None, batch={}, episodes=episodes)
    return rounded([episode.get_observations(-1) for episode in episodes])


@probe("filter-merge", ours=True, theirs=False)
def test_merging_a_filters_state_twice(library: Any) -> Any:
    main, worker = (wired(library.env_to_module.MeanStdFilter(), BOX) for _ in range(2))
    filtered(library, worker, [np.array([x], np.float32) for x in (1, 3)])
    states = [worker.get_state()]
    return str(main.merge_states(states)) == str(main.merge_states(states))


@probe("filter-non-finite", ours=Raises(ColumnError, "finite numbers"), theirs=[["nan"], ["nan"], ["nan"]])
def test_an_observation_that_is_no_number(library: Any) -> Any:
    piece = wired(library.env_to_module.MeanStdFilter(), BOX)
    shown = filtered(library, piece, [np.array([x], np.float32) for x in (np.nan, 1.0, 2.0)])
    return [[str(float(x)) for x in row] for row in shown]


@probe("filter-no-limit", ours=[[0.0], [0.7071]], theirs=Raises(TypeError, "bad operand type for unary -"))
def test_a_filter_without_a_limit(library: Any) -> Any:
    piece = wired(library.env_to_module.MeanStdFilter(clip_by_value=None), BOX)
    return rounded(filtered(library, piece, [np.array([x], np.float32) for x in (1.0, 2.0)]))


@probe("acting-rewards", ours=Raises(EpisodeStateError, "overwriting rewards while acting"), theirs=[4.0, 2.0])
def test_shaping_rewards_while_acting(library: Any) -> Any:
    def double(piece: Any, batch: Any, episodes: Any) -> None:
        for episode in episodes:
            episode.set_rewards(new_data=[2 * reward for reward in episode.get_rewards()])

    pipeline = library.env_to_module.EnvToModulePipeline(BOX, DISCRETE, connectors=[user_piece(library, double)])
    episode = library.SingleAgentEpisode(id_="e")
    episode.add_env_reset(np.zeros(1, np.float32))
    for _ in range(2):
        episode.add_env_step(np.zeros(1, np.float32), 0, 1.0)
        pipeline(rl_module=None, batch={}, episodes=[episode], explore=True)
    return plain(episode.get_rewards())


@probe("not-a-piece", ours=Raises(PieceError, "an instance of ConnectorV2"), theirs=0)
def test_something_else_in_a_pipeline(library: Any) -> Any:
    return len(library.ConnectorPipelineV2(BOX, DISCRETE, connectors=[3]))


@probe("remove-missing", ours=Raises(UnknownNameError, "NoSuch"), theirs=None)
def test_removing_what_is_not_there(library: Any) -> Any:
    return library.ConnectorPipelineV2(BOX, DISCRETE, connectors=learner_pieces(library)).remove("NoSuch")


@probe("row-count", ours=Raises(ColumnError, "3 rows, one per step"), theirs=[3, 1])
def test_a_column_with_one_row_per_episode(library: Any) -> Any:
    def add(piece: Any, batch: Any, episodes: Any) -> None:
        for episode in piece.single_agent_episode_iterator(episodes):
            piece.add_n_batch_items(batch, "steps", np.array([len(episode)]), 1, episode)

    batch = learned(library, [user_piece(library, add), *learner_pieces(library)], [chunk(library)])
    return [len(batch["obs"]), len(batch["steps"])]


@probe("no-steps", ours=Raises(EpisodeError, "at least one episode"), theirs=[])
def test_no_episodes(library: Any) -> Any:
    return list(learned(library, learner_pieces(library), []))


@probe("no-steps", ours={("e",): []}, theirs=Raises(ValueError, r"Mismatch between `num_items` \(0\)"))
def test_a_chunk_without_steps_where_a_piece_is_called_by_itself(library: Any) -> Any:
    module = build_module(library, BOX, DISCRETE, state=2, multi=True)
    piece = library.learner.AddStatesFromEpisodesToBatch(as_learner_connector=True)
    batch = piece(rl_module=module, batch={}, episodes=[chunk(library, steps=0)], shared_data={})
    return plain(batch["state_in"])


@probe(
    "own-loss-mask",
    ours=[[False, True, True, False]],
    theirs=[[False, True, True, False], [True, True, True, False]],
)
def test_a_loss_mask_of_ones_own_in_sequences(library: Any) -> Any:
    def add(piece: Any, batch: Any, episodes: Any) -> None:
        for episode in piece.single_agent_episode_iterator(episodes):
            piece.add_n_batch_items(batch, "loss_mask", np.array([False, True, True]), 3, episode)

    module = build_module(library, BOX, DISCRETE, state=2, multi=True)
    pieces = [user_piece(library, add), learner_pieces(library)[0]]
    pieces.append(library.learner.AddTimeDimToBatchAndZeroPad(as_learner_connector=True))
    pipeline = library.learner.LearnerConnectorPipeline(BOX, DISCRETE, connectors=pieces)
    batch = pipeline(rl_module=module, batch={}, episodes=[chunk(library)])
    return [row[:4] for items in plain(batch["loss_mask"]).values() for row in items]


@probe("missing-history", ours=Raises(LookbackError, "a lookback of 1 steps"), theirs=[[[[[0.0, 1.0]]]]])
def test_frames_of_a_chunk_without_lookback(library: Any) -> Any:
    space = gym.spaces.Box(-99, 99, (1, 1, 1), np.float32)
    episode = library.SingleAgentEpisode(
        id_="e",
        t_started=5,
        observations=[np.ones((1, 1, 1), np.float32)] * 2,
        actions=[0],
        rewards=[0.0],
        observation_space=space,
        len_lookback_buffer=0,
    ).to_numpy()
    piece = library.module("connectors.common.frame_stacking").FrameStacking(num_frames=2, as_learner_connector=True)
    pipeline = library.learner.LearnerConnectorPipeline(space, DISCRETE, connectors=[piece])
    batch = pipeline(rl_module=None, batch={}, episodes=[episode])
    return plain(next(iter(batch["obs"].values())))


@probe("frame-stack-bounds", ours=[0.0, 2.0], theirs=[1.0, 2.0])
def test_bounds_of_stacked_frames(library: Any) -> Any:
    piece = library.module("connectors.common.frame_stacking").FrameStacking(num_frames=2)
    space = wired(piece, gym.spaces.Box(1, 2, (4, 4, 1), np.float32)).observation_space
    return [float(space.low.min()), float(space.high.max())]


@probe(
    "piece-states",
    ours=["COMPLETE", "arrays.npz", "state.json"],
    theirs=["class_and_ctor_args.pkl", "metadata.json", "state.pkl"],
)
def test_saved_pieces(library: Any, tmp_path: Any) -> Any:
    wired(library.env_to_module.MeanStdFilter(), BOX).save_to_path(tmp_path)
    return sorted(path.name for path in tmp_path.rglob("*"))


@probe("kept-items", ours=True, theirs=False)
def test_what_a_piece_keeps_of_a_column(library: Any) -> Any:
    """Whether it shares memory with the batch."""
    kept: list[Any] = []
    keep = user_piece(library, lambda piece, batch, episodes: kept.extend(*batch["rewards"].values()))
    *before, batching = learner_pieces(library)
    batch = learned(library, [*before, keep, batching], [chunk(library)])
    return bool(np.shares_memory(kept[0], batch["rewards"]))


@probe("preprocessed-space", ours=Raises(SpaceError, "recompute_output_observation_space"), theirs=(1,))
def test_a_preprocessed_row_of_another_shape(library: Any) -> Any:
    base = library.module("connectors.env_to_module.observation_preprocessor").SingleAgentObservationPreprocessor
    first = type("First", (base,), {"preprocess": lambda self, observation, episode: observation[:1]})
    episode = library.SingleAgentEpisode(observations=[np.zeros(2, np.float32)])
    first(gym.spaces.Box(-1, 1, (2,)), DISCRETE)(rl_module=None, batch={}, episodes=[episode], shared_data={})
    return episode.get_observations(-1).shape
