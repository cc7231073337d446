"""Faults of RLlib's env-to-module and learner pieces, and differences that are there on purpose."""

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
from oracle.makers import ACT, BOX, filtered, run, user, wired
from oracle.modules import LEARNER, PPO, build_module, pieces_of
from oracle.probes import Raises, plain, probe, rounded


def synchronised(library: Any, space: gym.Space[Any], rounds: Any) -> Any:
    """A filter that has been merged from two others after each round of observations."""
    main, *workers = (wired(library.env_to_module.MeanStdFilter(), space) for _ in range(3))
    for observations in rounds:
        for worker, rows in zip(workers, observations):
            filtered(library, worker, rows)
        state = main.merge_states([worker.get_state() for worker in workers])
        for piece in (main, *workers):
            piece.set_state(state)
    return main


# Two workers' observations in three rounds. Together their mean is 5 and their standard deviation 2.
ROUNDS = [[[2.0, 3.0], [4.0, 5.0]], [[8.0], [6.0]], [[7.0], [5.0]]]


@probe("O1", ours=[1.1619, 0.1543, 0.0], theirs=[1.1619, 0.8978, 0.9677])
def test_filters_that_were_synchronised_again_and_again(library: Any) -> Any:
    """What becomes of an observation of 5 after one, two and three rounds."""
    rounds = [[[np.array([x], np.float32) for x in own] for own in both] for both in ROUNDS]
    shown = []
    for n in (1, 2, 3):
        frozen = wired(library.env_to_module.MeanStdFilter(update_stats=False), BOX)
        frozen.set_state(synchronised(library, BOX, rounds[:n]).get_state())
        shown.append(filtered(library, frozen, [np.array([5], np.float32)])[0][0])
    return rounded(shown)


@probe("O61", ours=[[[0.0, 0.0]]], theirs=Raises(ValueError, "truth value of an array", "merge_states"))
def test_filters_of_images_are_merged(library: Any) -> Any:
    space = gym.spaces.Box(-9, 9, (1, 2), np.float32)
    rounds = [[[np.array([[1, 2]], np.float32)], [np.array([[3, 6]], np.float32)]]]
    frozen = wired(library.env_to_module.MeanStdFilter(update_stats=False), space)
    frozen.set_state(synchronised(library, space, rounds).get_state())
    return rounded(filtered(library, frozen, [np.array([[2, 4]], np.float32)]))


@probe("O50", ours=[[3.0], [-0.5]], theirs=[[10.0], [-10.0]])
def test_a_filter_without_statistics(library: Any) -> Any:
    piece = wired(library.env_to_module.MeanStdFilter(update_stats=False), BOX)
    return plain(filtered(library, piece, [np.array([3.0], np.float32), np.array([-0.5], np.float32)]))


@probe("O50", ours=None, theirs=Raises(ValueError, "only be changed when `update_stats` was set to False"))
def test_a_filter_that_does_not_update_is_reset(library: Any) -> Any:
    return wired(library.env_to_module.MeanStdFilter(update_stats=False), BOX).reset_state()


def with_history(library: Any, actions: gym.Space[Any], taken: list[Any], **settings: Any) -> Any:
    piece = wired(library.env_to_module.PrevActionsPrevRewards(**settings), BOX, actions)
    episode = library.SingleAgentEpisode(id_="e", observation_space=BOX, action_space=actions)
    episode.add_env_reset(np.zeros(1, np.float32))
    for action in taken:
        episode.add_env_step(np.zeros(1, np.float32), action, 1.5)
    run(piece, [episode])
    return piece, episode.get_observations(-1)


@probe(
    "O26",
    ours={
        "prev_n_actions": [(6,), (6,), "float32", "float32"],
        "prev_n_rewards": [(2,), (2,), "float32", "float32"],
    },
    theirs={
        "prev_n_actions": [(6,), (2, 3), "float32", "float32"],
        "prev_n_rewards": [(2,), (2,), "float32", "float64"],
    },
)
def test_two_previous_actions_and_rewards_are_as_declared(library: Any) -> Any:
    piece, observation = with_history(library, ACT, [1, 2], n_prev_actions=2, n_prev_rewards=2)
    space = piece.observation_space
    return {
        key: [space[key].shape, observation[key].shape, str(space[key].dtype), str(observation[key].dtype)]
        for key in ("prev_n_actions", "prev_n_rewards")
    }


NESTED = gym.spaces.Dict({"b": ACT, "a": BOX})


@probe(
    "O27",
    ours=[[0.5, 0.0, 1.0, 0.0], [1.5, 0.0, 0.0, 1.0]],
    theirs=Raises(ValueError, r"could not convert string to float: np.str_\('a'\)", "flatten_inputs_to_1d_tensor"),
)
def test_dicts_are_flattened_in_a_learner_pipeline(library: Any) -> Any:
    """The rows that the learner piece makes of two observations with two keys."""
    piece = wired(library.env_to_module.FlattenObservations(as_learner_connector=True), NESTED)
    rows = [{"a": np.array([t + 0.5], np.float32), "b": b} for t, b in enumerate((1, 2, 0))]
    data = {"observations": rows[:2] + [rows[1]], "actions": [0, 0], "rewards": [0.0, 0.0], "len_lookback_buffer": 0}
    episode = library.SingleAgentEpisode(id_="e", observation_space=NESTED, **data).to_numpy()
    return plain(np.concatenate(run(piece, [episode])["obs"]["e",]))


@probe("O27", ours=(3,), theirs=Raises(AssertionError, "When using `keys_to_remove` the observation space must be"))
def test_keys_are_left_out_where_the_pipeline_gives_the_space(library: Any) -> Any:
    piece = library.env_to_module.FlattenObservations(keys_to_remove=["a"])
    return library.env_to_module.EnvToModulePipeline(NESTED, ACT, connectors=[piece]).observation_space.shape


def chunk(library: Any, id_: str, start: int, stop: int) -> Any:
    """Steps `start` to `stop` of an episode: observation [t], action t % 3, reward t + 0.5."""
    times = range(start, stop)
    return library.SingleAgentEpisode(
        id_=id_,
        observations=[np.array([t], np.float32) for t in (*times, stop)],
        actions=[t % 3 for t in times],
        rewards=[t + 0.5 for t in times],
        observation_space=BOX,
        action_space=ACT,
        t_started=start,
        len_lookback_buffer=0,
    ).to_numpy()


def learner_pipeline(library: Any, *, bootstrap: bool = True, advantages: bool = False) -> Any:
    names = PPO[not bootstrap : len(PPO) - (not advantages)]
    settings = {"GeneralAdvantageEstimation": {"gamma": 1.0, "lambda_": 1.0}}
    pieces = pieces_of(library, "learner", *names, NumpyToTensor={"as_learner_connector": True}, **settings)
    return library.learner.LearnerConnectorPipeline(BOX, ACT, connectors=pieces)


def batch_of(library: Any, episodes: Any, pipeline: Any, **settings: Any) -> Any:
    module = build_module(library, BOX, ACT, multi=True, **settings)
    return run(pipeline, episodes, rl_module=module)["default_policy"]


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
    modules = build_module(library, BOX, ACT, multi=True)
    own = {"obs": np.zeros((1, 1), np.float32), "infos": [{"name": "x"}]}
    piece = library.learner.NumpyToTensor(as_learner_connector=True)
    return piece(rl_module=modules, batch={"default_policy": own, "mine": np.zeros(1)}, episodes=[])["default_policy"][
        "infos"
    ]


def learner_pieces(library: Any) -> list[Any]:
    return pieces_of(library, "learner", *LEARNER[:2], "BatchIndividualItems")


def learned(library: Any, pieces: list[Any], episodes: list[Any]) -> Any:
    """What a learner pipeline of these pieces makes of episodes."""
    pipeline = library.learner.LearnerConnectorPipeline(BOX, ACT, connectors=pieces)
    return run(pipeline, episodes)


@probe("batch-keys", ours=[("e",), ("f",)], theirs=[("e_0",), ("f_1",)])
def test_batch_keys(library: Any) -> Any:
    batch = learned(library, learner_pieces(library)[:1], [chunk(library, "e", 0, 3), chunk(library, "f", 0, 3)])
    return list(batch["obs"])


@probe("order-checked", ours=Raises(PipelineError, "BatchIndividualItems"), theirs=2)
def test_a_wrong_order(library: Any) -> Any:
    lrn = library.learner
    pieces = [lrn.NumpyToTensor(as_learner_connector=True), lrn.BatchIndividualItems()]
    return len(lrn.LearnerConnectorPipeline(BOX, ACT, connectors=pieces))


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
    run(piece, episodes)
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

    pipeline = library.env_to_module.EnvToModulePipeline(BOX, ACT, connectors=[user(library, double)])
    episode = library.SingleAgentEpisode(id_="e")
    episode.add_env_reset(np.zeros(1, np.float32))
    for _ in range(2):
        episode.add_env_step(np.zeros(1, np.float32), 0, 1.0)
        pipeline(rl_module=None, batch={}, episodes=[episode], explore=True)
    return plain(episode.get_rewards())


@probe("not-a-piece", ours=Raises(PieceError, "an instance of ConnectorV2"), theirs=0)
def test_something_else_in_a_pipeline(library: Any) -> Any:
    return len(library.ConnectorPipelineV2(BOX, ACT, connectors=[3]))


@probe("remove-missing", ours=Raises(UnknownNameError, "NoSuch"), theirs=None)
def test_removing_what_is_not_there(library: Any) -> Any:
    return library.ConnectorPipelineV2(BOX, ACT, connectors=learner_pieces(library)).remove("NoSuch")


@probe("row-count", ours=Raises(ColumnError, "3 rows, one per step"), theirs=[3, 1])
def test_a_column_with_one_row_per_episode(library: Any) -> Any:
    def add(piece: Any, batch: Any, episodes: Any) -> None:
        for episode in piece.single_agent_episode_iterator(episodes):
            piece.add_n_batch_items(batch, "steps", np.array([len(episode)]), 1, episode)

    batch = learned(library, [user(library, add), *learner_pieces(library)], [chunk(library, "e", 0, 3)])
    return [len(batch["obs"]), len(batch["steps"])]


@probe("no-steps", ours=Raises(EpisodeError, "at least one episode"), theirs=[])
def test_no_episodes(library: Any) -> Any:
    return list(learned(library, learner_pieces(library), []))


@probe(
    "own-loss-mask",
    ours=[[False, True, True, False]],
    theirs=[[False, True, True, False], [True, True, True, False]],
)
def test_a_loss_mask_of_ones_own_in_sequences(library: Any) -> Any:
    def add(piece: Any, batch: Any, episodes: Any) -> None:
        for episode in piece.single_agent_episode_iterator(episodes):
            piece.add_n_batch_items(batch, "loss_mask", np.array([False, True, True]), 3, episode)

    module = build_module(library, BOX, ACT, state=2, multi=True)
    pieces = [user(library, add), learner_pieces(library)[0]]
    pieces.append(library.learner.AddTimeDimToBatchAndZeroPad(as_learner_connector=True))
    pipeline = library.learner.LearnerConnectorPipeline(BOX, ACT, connectors=pieces)
    batch = run(pipeline, [chunk(library, "e", 0, 3)], rl_module=module)
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
    pipeline = library.learner.LearnerConnectorPipeline(space, ACT, connectors=[piece])
    batch = run(pipeline, [episode])
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
    keep = user(library, lambda piece, batch, episodes: kept.extend(*batch["rewards"].values()))
    *before, batching = learner_pieces(library)
    batch = learned(library, [*before, keep, batching], [chunk(library, "e", 0, 3)])
    return bool(np.shares_memory(kept[0], batch["rewards"]))


@probe("preprocessed-space", ours=Raises(SpaceError, "recompute_output_observation_space"), theirs=(1,))
def test_a_preprocessed_row_of_another_shape(library: Any) -> Any:
    base = library.module("connectors.env_to_module.observation_preprocessor").SingleAgentObservationPreprocessor
    first = type("First", (base,), {"preprocess": lambda self, observation, episode: observation[:1]})
    episode = library.SingleAgentEpisode(observations=[np.zeros(2, np.float32)])
    first(gym.spaces.Box(-1, 1, (2,)), ACT)(rl_module=None, batch={}, episodes=[episode], shared_data={})
    return episode.get_observations(-1).shape
