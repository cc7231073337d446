"""Pieces away from home in the other library's runner and Algorithm, and whole pipelines as pieces."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.interop.rllib import compare_batches, from_rllib, from_rllib_piece, to_rllib, to_rllib_piece
from oracle.compare import mismatches
from oracle.libraries import EPIBATCH, RLLIB
from oracle.modules import PPO, pieces_of

SPACES = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2)


def columns(rng, length):
    return {
        "observations": list(rng.standard_normal((length + 1, 4)).astype(np.float32)),
        "actions": [int(i) for i in rng.integers(0, 2, length)],
        "rewards": [float(x) for x in rng.normal(size=length)],
        "len_lookback_buffer": 0,
    }


@pytest.mark.parametrize("use_lstm", [False, True], ids=["", "lstm"])
def test_our_filter_in_rllibs_runner(use_lstm):
    """It counts each observation once, and RLlib's module is made for what it leaves."""
    piece = to_rllib_piece(EPIBATCH.env_to_module.MeanStdFilter(clip_by_value=1.0))
    config = (
        RLLIB.PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            env_to_module_connector=lambda env, spaces, device: piece, rollout_fragment_length=40, num_env_runners=0
        )
        .rl_module(
            model_config=RLLIB.module("core.rl_module.default_model_config").DefaultModelConfig(use_lstm=use_lstm)
        )
        .debugging(seed=0)
    )
    runner = RLLIB.module("env.single_agent_env_runner").SingleAgentEnvRunner(config=config, worker_index=0)
    episodes = [*runner.sample(), *runner.sample()]
    assert runner.module.observation_space == gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    stored = np.concatenate([episode.get_observations() for episode in episodes])
    assert np.abs(stored).max() <= 1.0 and (np.abs(stored) == 1.0).any()
    started = len({episode.id_ for episode in episodes}) + episodes[-1].is_done
    state = runner._env_to_module.get_state()["MeanStdFilter"]
    assert state["since"]["count"] == sum(map(len, episodes)) + started
    runner.stop()


def test_rllibs_filter_in_our_algorithm(tmp_path):
    """It trains, its state is saved and restored, and the runs go on alike."""

    def build():
        guest = from_rllib_piece(RLLIB.env_to_module.MeanStdFilter(clip_by_value=3.0))
        config = EPIBATCH.PPOConfig().environment("CartPole-v1").debugging(seed=1)
        config.env_runners(num_envs_per_env_runner=2, env_to_module_connector=lambda env, spaces, device: guest)
        config.training(train_batch_size=100, minibatch_size=50, num_epochs=1)
        return config.build_algo()

    algo = build()
    algo.train()
    assert algo.env_runner.module.observation_space == gym.spaces.Box(-3.0, 3.0, (4,), np.float32)
    algo.save_to_path(tmp_path / "checkpoint", end_episodes=True)
    twin = build()
    twin.restore_from_path(tmp_path / "checkpoint")
    states = [one.env_runner._env_to_module.get_state()["mean_std_filter"][None] for one in (algo, twin)]
    assert states[0]["running_stats"][0]["num_pushes"] > 100
    assert mismatches(*states) == []
    results = [one.train()["env_runners"]["episode_return_mean"] for one in (algo, twin)]
    assert results[0] == results[1]
    algo.stop()
    twin.stop()


def learner(library):
    names = (*PPO[:3], "BatchIndividualItems", "NumpyToTensor")
    return library.learner.LearnerConnectorPipeline(*SPACES, connectors=pieces_of(library, "learner", *names))


def test_whole_pipelines_as_pieces():
    rng = np.random.default_rng(0)
    recorded = [EPIBATCH.SingleAgentEpisode(id_=name, **columns(rng, 5)) for name in "ab"]
    expected = learner(EPIBATCH)(episodes=recorded)
    outer = RLLIB.learner.LearnerConnectorPipeline(*SPACES, connectors=[to_rllib_piece(learner(EPIBATCH))])
    found = outer(rl_module=None, batch={}, episodes=to_rllib(recorded), shared_data={})
    assert compare_batches(expected, found) == []
    other = EPIBATCH.learner.LearnerConnectorPipeline(
        *SPACES, connectors=[EPIBATCH.learner.AddOneTsToEpisodesAndTruncate(), from_rllib_piece(without_first(RLLIB))]
    )
    assert compare_batches(expected, other(episodes=recorded)) == []


def without_first(library):
    pipeline = learner(library)
    pipeline.remove("AddOneTsToEpisodesAndTruncate")
    return pipeline


def test_two_chunks_of_one_episode_in_front_of_rllibs_pieces():
    """RLlib's pieces rename chunks on the way; ours in front of them keep their rows apart all the same."""
    rng = np.random.default_rng(1)
    recorded = [RLLIB.SingleAgentEpisode(id_="same", **columns(rng, length)).to_numpy() for length in (3, 5)]
    piece = EPIBATCH.learner.AddColumnsFromEpisodesToTrainBatch()
    pipeline = RLLIB.learner.LearnerConnectorPipeline(
        *SPACES,
        connectors=[
            to_rllib_piece(piece),
            RLLIB.learner.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            RLLIB.learner.BatchIndividualItems(),
        ],
    )
    batch = pipeline(rl_module=None, batch={}, episodes=recorded, shared_data={})
    assert batch["obs"].shape == (8, 4)
    assert batch["rewards"].tolist() == [x for episode in recorded for x in episode.get_rewards()]


def test_batches_share_no_memory_with_episodes():
    rng = np.random.default_rng(2)
    episode = EPIBATCH.SingleAgentEpisode(id_="e", **columns(rng, 4))
    guests = pieces_of(RLLIB, "learner", *PPO[1:3])
    pipeline = EPIBATCH.learner.LearnerConnectorPipeline(
        *SPACES,
        connectors=[
            *map(from_rllib_piece, guests),
            EPIBATCH.learner.BatchIndividualItems(),
            EPIBATCH.learner.NumpyToTensor(),
        ],
    )
    batch = pipeline(episodes=[episode])
    for column, own in (("obs", episode.observations), ("actions", episode.actions), ("rewards", episode.rewards)):
        assert not np.shares_memory(batch[column], own.data)


def test_bootstrap_steps_of_either_library():
    """Ours lengthens and names RLlib's episodes in its pipeline; in ours nothing of RLlib's changes an episode."""
    rng = np.random.default_rng(3)
    given = columns(rng, 4)
    sides = []
    for piece in (RLLIB.learner.AddOneTsToEpisodesAndTruncate(), EPIBATCH.learner.AddOneTsToEpisodesAndTruncate()):
        episode = RLLIB.SingleAgentEpisode(id_="e", **{key: _copied(value) for key, value in given.items()}).to_numpy()
        if isinstance(piece, EPIBATCH.ConnectorV2):
            piece = to_rllib_piece(piece)
        shared = {}
        batch = piece(rl_module=None, batch={}, episodes=[episode], shared_data=shared)
        sides.append(
            (
                episode,
                shared,
                {
                    name: list(np.concatenate([np.atleast_1d(i) for i in column["e_0",]]))
                    for name, column in batch.items()
                },
            )
        )
    (theirs, their_shared, their_batch), (ours, our_shared, our_batch) = sides
    assert ours.id_ == theirs.id_ == "e_0" and their_shared == our_shared
    assert from_rllib(ours).equals(from_rllib(theirs))
    assert mismatches(their_batch, {name: [bool(x) for x in rows] for name, rows in our_batch.items()}) == []
    episode = EPIBATCH.SingleAgentEpisode(id_="e", **given)
    state = episode.get_state()
    guest = from_rllib_piece(RLLIB.learner.AddOneTsToEpisodesAndTruncate())
    EPIBATCH.learner.LearnerConnectorPipeline(*SPACES, connectors=[guest])(episodes=[episode])
    assert mismatches(state["rewards"], episode.get_state()["rewards"]) == [] and len(episode) == 4


def _copied(value):
    return list(value) if isinstance(value, list) else value


def test_a_guest_may_be_frozen():
    guest = from_rllib_piece(RLLIB.env_to_module.MeanStdFilter())
    pipeline = EPIBATCH.env_to_module.EnvToModulePipeline(*SPACES, connectors=[guest])
    rng = np.random.default_rng(4)
    for frozen in (False, True):
        if frozen:
            pipeline.freeze()
        pipeline(episodes=[EPIBATCH.SingleAgentEpisode(id_="e", **columns(rng, 2))])
        assert guest.get_state()[None]["running_stats"][0]["num_pushes"] == 1


def test_rewritten_observations_are_known_to_the_learner():
    cls = RLLIB.env_to_module.MeanStdFilter
    pipeline = EPIBATCH.env_to_module.EnvToModulePipeline(
        *SPACES, connectors=[from_rllib_piece(cls(clip_by_value=1.0))]
    )
    assert pipeline.episode_observation_space == gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    other = from_rllib_piece(cls(clip_by_value=1.0), rewrites_observations=False, lookback=7)
    pipeline = EPIBATCH.env_to_module.EnvToModulePipeline(*SPACES, connectors=[other])
    assert pipeline.episode_observation_space == SPACES[0] and pipeline.lookback_needed == 7
