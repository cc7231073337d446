"""A piece gives in a pipeline of the other library what it gives in one of its own, bit by bit."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from epibatch.core import load_state, save_state
from epibatch.core.structs import map_struct
from epibatch.interop.rllib import from_rllib_piece, to_rllib_piece
from oracle.cases import random_cases
from oracle.compare import mismatches
from oracle.episodes import seeds
from oracle.libraries import BOTH, EPIBATCH, RLLIB
from oracle.modules import PPO, pieces_of
from oracle.spaces import rows

FLAT = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
FRAMES = gym.spaces.Box(-np.inf, np.inf, (2, 2, 1), np.float32)
NESTED = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(-1, 1, (2, 2), np.float32)})
TWO = gym.spaces.Discrete(2)


libraries = st.sampled_from(BOTH)


class Shape:
    """Pieces that a user might write for either library: made for `base`, its ConnectorV2."""

    def __init__(self, name, base):
        self.make = type(name, (base,), {"__call__": getattr(self, name), "__module__": __name__})

    @staticmethod
    def rewrites(self, *, rl_module, batch, episodes, **kwargs):
        """The newest observation becomes a dict with the action before it."""
        for episode in self.single_agent_episode_iterator(episodes):
            seen = {"obs": episode.get_observations(-1), "before": episode.get_actions(-1, fill=0)}
            episode.set_observations(new_data=seen, at_indices=-1)
            episode.observation_space = gym.spaces.Dict(obs=FLAT, before=TWO)
            episode.custom_data["seen"] = episode.custom_data.get("seen", 0) + 1
        return batch

    @staticmethod
    def adds(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        """Columns of rows, of stacked rows and of nested rows; and a note for the other pieces."""
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            steps = len(episode)
            self.add_n_batch_items(batch, "t", list(range(steps)), steps, episode)
            self.add_n_batch_items(batch, "twice", 2.0 * np.asarray(episode.get_rewards()), steps, episode)
            nested = {"x": np.arange(steps), "y": (np.zeros((steps, 2)),)}
            self.add_n_batch_items(batch, "nested", nested, steps, episode)
        shared_data["noted"] = len(episodes)
        return batch

    @staticmethod
    def shapes(self, *, rl_module, batch, episodes, **kwargs):
        """Rewards are written in every way there is; one step is relabelled; an info is replaced."""
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            rewards = np.asarray(episode.get_rewards())
            episode.set_rewards(new_data=rewards * 2 + 1)
            episode.set_rewards(new_data=float(rewards[0]) - 3.0, at_indices=0)
            episode.get_rewards()[-1] += 0.5
            episode.set_actions(new_data=1, at_indices=len(episode) // 2)
            episode.set_extra_model_outputs(key="vf_preds", new_data=np.float32(7), at_indices=-1)
            episode.infos.data[-1] = {"relabelled": True}
        return batch


def built_in(name, **settings):
    return lambda library: getattr(library.env_to_module, name)(**settings)


def framed(library):
    return library.module("connectors.common.frame_stacking").FrameStacking(num_frames=3)


ACTING = {
    "MeanStdFilter": (built_in("MeanStdFilter", clip_by_value=2.0), FLAT),
    "PrevActionsPrevRewards": (built_in("PrevActionsPrevRewards", n_prev_rewards=2), FLAT),
    "FlattenObservations": (built_in("FlattenObservations"), NESTED),
    "FrameStacking": (framed, FRAMES),
    "rewrites": (lambda library: Shape("rewrites", library.ConnectorV2).make(), FLAT),
}


def abroad(library, piece, pipeline):
    """The other library, and the piece as one of its."""
    if library is RLLIB:
        return EPIBATCH, from_rllib_piece(piece)
    return RLLIB, to_rllib_piece(piece, pipeline=pipeline)


def acting(library, piece, space):
    names = ("AddObservationsFromEpisodesToBatch", "BatchIndividualItems")
    defaults = [getattr(library.env_to_module, name)() for name in names]
    return library.env_to_module.EnvToModulePipeline(space, TWO, connectors=[piece, *defaults])


def play(library, pipeline, space, seed):
    """What a pipeline makes of the observations of an environment that goes through several episodes and cuts."""
    rng = np.random.default_rng(seed)
    observations, seen = iter(rows(space, rng, 60)), []
    for _ in range(2):
        episode = library.SingleAgentEpisode(id_="walk", observation_space=space, action_space=TWO)
        episode.add_env_reset(next(observations))
        for step in range(int(rng.integers(1, 12))):
            seen.append(pipeline(rl_module=None, batch={}, episodes=[episode], explore=False, shared_data={}))
            if step == 6:
                episode = episode.cut(len_lookback_buffer=3)
            episode.add_env_step(next(observations), int(rng.integers(2)), float(rng.normal()), {"step": step})
        stored = [episode.get_observations(i) for i in range(-1, len(episode))]
        seen.append([map_struct(np.float64, row) for row in stored])  # a column has one type for all of its rows here
        seen += [[episode.get_actions(i) for i in range(len(episode))], dict(episode.custom_data)]
    return seen


@random_cases(library=libraries, name=st.sampled_from(list(ACTING)), seed=seeds)
def test_acting(library, name, seed):
    make, space = ACTING[name]
    piece, traveller = make(library), make(library)
    home = acting(library, piece, space)
    other, wrapped = abroad(library, traveller, "env_to_module")
    away = acting(other, wrapped, space)
    expected, found = play(library, home, space, seed), play(other, away, space, seed)
    assert mismatches(as_arrays(expected), as_arrays(found)) == []
    assert away.observation_space == home.observation_space
    assert mismatches(plain(piece.get_state()), plain(wrapped.get_state())) == []
    state = copy.deepcopy(wrapped.get_state())
    wrapped.reset_state()
    wrapped.set_state(state)
    assert mismatches(plain(piece.get_state()), plain(traveller.get_state())) == []
    assert play(other, away, space, seed)[0].keys() == expected[0].keys()


def as_arrays(value):
    """The rows in a list of columns, and numbers of either library as arrays."""
    if isinstance(value, dict):
        return {key: as_arrays(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_arrays(own) for own in value]
    return np.asarray(value)


def plain(state):
    """RLlib's states hold None as a key."""
    return {str(key): plain(own) for key, own in state.items()} if isinstance(state, dict) else state


def chunks_of(library, seed):
    """Chunks of several episodes, two of one, for the learner."""
    rng = np.random.default_rng(seed)
    made = []
    for name, length in zip("abc", rng.integers(1, 9, 3)):
        total = int(length)
        made.append(
            library.SingleAgentEpisode(
                id_=name,
                observation_space=FRAMES,
                observations=rows(FRAMES, rng, total + 1),
                actions=[int(i) for i in rng.integers(0, 2, total)],
                rewards=[float(x) for x in rng.normal(size=total)],
                infos=[{"step": i} for i in range(total + 1)],
                extra_model_outputs={"vf_preds": list(rng.standard_normal(total).astype(np.float32))},
                len_lookback_buffer=0,
                truncated=bool(rng.integers(2)),
            )
        )
    return [episode.to_numpy() for episode in made]


LEARNING = {
    "FrameStacking": lambda library: library.module("connectors.common.frame_stacking").FrameStacking(
        num_frames=3, as_learner_connector=True
    ),
    "ComputeReturnsToGo": lambda library: library.module("connectors.learner.compute_returns_to_go").ComputeReturnsToGo(
        gamma=0.5
    ),
    "adds": lambda library: Shape("adds", library.ConnectorV2).make(),
    "shapes": lambda library: Shape("shapes", library.ConnectorV2).make(),
    "AddNextObservationsFromEpisodesToTrainBatch": lambda library: (
        library.learner.AddNextObservationsFromEpisodesToTrainBatch()
    ),
    "AddInfosFromEpisodesToTrainBatch": lambda library: library.module(
        "connectors.learner.add_infos_from_episodes_to_train_batch"
    ).AddInfosFromEpisodesToTrainBatch(),
}


def learning(library, piece, at, *, bootstraps):
    names = (*PPO[not bootstraps : 3], "BatchIndividualItems", "NumpyToTensor")
    pieces = pieces_of(library, "learner", *names)
    pieces.insert(at + bootstraps, piece)
    return library.learner.LearnerConnectorPipeline(FRAMES, TWO, connectors=pieces)


@random_cases(library=libraries, name=st.sampled_from(list(LEARNING)), seed=seeds, bootstraps=st.booleans())
def test_learning(library, name, seed, bootstraps):
    at = {"ComputeReturnsToGo": 2, "AddInfosFromEpisodesToTrainBatch": 2}.get(name, 0)
    piece = LEARNING[name](library)
    other, wrapped = abroad(library, LEARNING[name](library), "learner")
    batches, shared = [], [{}, {}]
    for i, (where, what) in enumerate(((library, piece), (other, wrapped))):
        episodes = chunks_of(where, seed)
        pipeline = learning(where, what, at, bootstraps=bootstraps)
        batches.append(pipeline(rl_module=None, batch={}, episodes=episodes, shared_data=shared[i]))
    assert mismatches(*batches) == []
    assert shared[0].get("noted") == shared[1].get("noted")


@random_cases(library=libraries, seed=seeds)
def test_what_a_piece_writes_is_in_the_episodes_it_was_shown(library, seed):
    other, wrapped = abroad(library, Shape("shapes", library.ConnectorV2).make(), "learner")
    home = Shape("shapes", library.ConnectorV2).make()
    sides = []
    for where, piece in ((library, home), (other, wrapped)):
        episodes = chunks_of(where, seed)
        piece(rl_module=None, batch={}, episodes=episodes, shared_data={})
        sides.append(
            [
                [ep.get_rewards(), ep.get_actions(), ep.get_infos(), ep.get_extra_model_outputs("vf_preds")]
                for ep in episodes
            ]
        )
    assert mismatches(*sides) == []


@pytest.mark.parametrize("library", BOTH, ids=str)
def test_a_piece_and_its_state_survive_pickling(library):
    make, space = ACTING["MeanStdFilter"]
    other, wrapped = abroad(library, make(library), "env_to_module")
    play(other, acting(other, wrapped, space), space, 0)
    for twin in (pickle.loads(pickle.dumps(wrapped)), copy.deepcopy(wrapped)):
        assert type(twin) is type(wrapped) and twin.observation_space == wrapped.observation_space
        assert mismatches(plain(twin.get_state()), plain(wrapped.get_state())) == []


def test_the_state_of_a_guest_is_in_our_checkpoints(tmp_path):
    guest = from_rllib_piece(ACTING["MeanStdFilter"][0](RLLIB))
    pipeline = acting(EPIBATCH, guest, FLAT)
    play(EPIBATCH, pipeline, FLAT, 0)
    loaded = load_state(save_state(tmp_path / "state", pipeline.get_state()))
    twin = acting(EPIBATCH, from_rllib_piece(ACTING["MeanStdFilter"][0](RLLIB)), FLAT)
    twin.set_state(loaded)
    assert mismatches(play(EPIBATCH, pipeline, FLAT, 1), play(EPIBATCH, twin, FLAT, 1)) == []


@pytest.mark.parametrize("library", BOTH, ids=str)
def test_states_are_merged_by_the_piece_inside(library):
    make, space = ACTING["MeanStdFilter"]
    states = []
    for seed in range(2):
        own = acting(library, make(library), space)
        play(library, own, space, seed)
        states.append(own[0].get_state())
    merger = acting(library, make(library), space)[0]
    expected = merger.merge_states(copy.deepcopy(states))
    other, wrapped = abroad(library, make(library), "env_to_module")
    acting(other, wrapped, space)
    assert mismatches(plain(expected), plain(wrapped.merge_states(states))) == []


def test_pieces_that_come_home_are_themselves():
    ours, theirs = ACTING["MeanStdFilter"][0](EPIBATCH), ACTING["MeanStdFilter"][0](RLLIB)
    assert from_rllib_piece(to_rllib_piece(ours)) is ours
    assert to_rllib_piece(from_rllib_piece(theirs)) is theirs
