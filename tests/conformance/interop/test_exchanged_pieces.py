"""A piece gives in a pipeline of the other library what it gives in one of its own, bit by bit."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from epibatch.core import load_state, save_state
from epibatch.interop.rllib import compare_batches, from_rllib, from_rllib_piece, to_rllib, to_rllib_piece
from oracle.cases import random_cases
from oracle.compare import Mismatch, Outcome, difference, each, mismatches, outcome, settle, stack
from oracle.episodes import rows, seeds, several_chunks
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
from oracle.makers import run, user
from oracle.modules import LEARNER, PPO, TO_ENV, TO_MODULE, build_module, pieces_of

FLAT = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
FRAMES = gym.spaces.Box(-np.inf, np.inf, (2, 2, 1), np.float32)
NESTED = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(-1, 1, (2, 2), np.float32)})
TWO = gym.spaces.Discrete(2)
PIPELINES = {"learner": "LearnerConnectorPipeline", "env_to_module": "EnvToModulePipeline"}
libraries = st.sampled_from(BOTH)


def other_of(library):
    return EPIBATCH if library is RLLIB else RLLIB


def away(library, piece, pipeline="env_to_module"):
    """A library's piece as one of the other's."""
    return from_rllib_piece(piece) if library is RLLIB else to_rllib_piece(piece, pipeline=pipeline)


def pipeline_of(library, package, pieces, *spaces):
    cls = getattr(getattr(library, package), PIPELINES.get(package, "ModuleToEnvPipeline"))
    return cls(*spaces, connectors=pieces)


# -- users' pieces and built-in ones --------------------------------------------------------------


def rewrites(piece, batch, episodes):
    """The newest observation becomes a dict with the action before it."""
    for episode in piece.single_agent_episode_iterator(episodes):
        seen = {"obs": episode.get_observations(-1), "before": episode.get_actions(-1, fill=0)}
        episode.set_observations(new_data=seen, at_indices=-1)
        episode.observation_space = gym.spaces.Dict(obs=FLAT, before=TWO)
        episode.custom_data["seen"] = episode.custom_data.get("seen", 0) + 1


def adds(piece, batch, episodes):
    """Columns of rows, of stacked rows and of nested rows; and a note for the other pieces."""
    for episode in piece.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
        steps = len(episode)
        piece.add_n_batch_items(batch, "t", list(range(steps)), steps, episode)
        piece.add_n_batch_items(batch, "twice", 2.0 * np.asarray(episode.get_rewards()), steps, episode)
        nested = {"x": np.arange(steps), "y": (np.zeros((steps, 2)),)}
        piece.add_n_batch_items(batch, "nested", nested, steps, episode)
    piece.keywords["shared_data"]["noted"] = len(episodes)


def shapes(piece, batch, episodes):
    """Rewards are written in every way there is; one step is relabelled; an info is replaced."""
    for episode in piece.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
        rewards = np.asarray(episode.get_rewards())
        episode.set_rewards(new_data=rewards * 2 + 1)
        episode.set_rewards(new_data=float(rewards[0]) - 3.0, at_indices=0)
        episode.get_rewards()[-1] += 0.5
        episode.set_actions(new_data=1, at_indices=len(episode) // 2)
        episode.set_extra_model_outputs(key="vf_preds", new_data=np.float32(7), at_indices=-1)
        episode.infos.data[-1] = {"relabelled": True}


def framed(library, **settings):
    return library.module("connectors.common.frame_stacking").FrameStacking(num_frames=3, **settings)


ACTING = {
    "MeanStdFilter": (lambda library: library.env_to_module.MeanStdFilter(clip_by_value=2.0), FLAT),
    "PrevActionsPrevRewards": (lambda library: library.env_to_module.PrevActionsPrevRewards(n_prev_rewards=2), FLAT),
    "FlattenObservations": (lambda library: library.env_to_module.FlattenObservations(), NESTED),
    "FrameStacking": (framed, FRAMES),
    "rewrites": (lambda library: user(library, rewrites), FLAT),
}


def acting(library, piece, space):
    names = ("AddObservationsFromEpisodesToBatch", "BatchIndividualItems")
    return pipeline_of(library, "env_to_module", [piece, *pieces_of(library, "env_to_module", *names)], space, TWO)


def play(library, pipeline, space, seed):
    """What a pipeline makes of the observations of an environment that goes through several episodes and cuts."""
    rng = np.random.default_rng(seed)
    observations, seen = iter(rows(space, rng, 60)), []
    for _ in range(2):
        episode = library.SingleAgentEpisode(id_="walk", observation_space=space, action_space=TWO)
        episode.add_env_reset(next(observations))
        for step in range(int(rng.integers(1, 12))):
            seen.append(run(pipeline, [episode]))
            if step == 6:
                episode = episode.cut(len_lookback_buffer=3)
            episode.add_env_step(next(observations), int(rng.integers(2)), float(rng.normal()), {"step": step})
        stored = [episode.get_observations(i) for i in range(-1, len(episode))]
        seen.append([each(np.float64, row) for row in stored])  # a column has one type for all of its rows here
        seen += [[episode.get_actions(i) for i in range(len(episode))], dict(episode.custom_data)]
    return seen


def as_arrays(value):
    """The rows in a list of columns, and numbers of either library as arrays; None as a key is text."""
    if isinstance(value, dict):
        return {str(key): as_arrays(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_arrays(own) for own in value]
    return np.asarray(value)


def same_states(*pieces):
    first, *others = (as_arrays(piece.get_state()) for piece in pieces)
    return all(mismatches(first, other) == [] for other in others)


@random_cases(library=libraries, name=st.sampled_from(list(ACTING)), seed=seeds)
def test_acting(library, name, seed):
    make, space = ACTING[name]
    piece, traveller, other = make(library), make(library), other_of(library)
    wrapped = away(library, traveller)
    home, abroad = acting(library, piece, space), acting(other, wrapped, space)
    expected = play(library, home, space, seed)
    assert mismatches(as_arrays(expected), as_arrays(play(other, abroad, space, seed))) == []
    assert abroad.observation_space == home.observation_space
    assert same_states(piece, wrapped, traveller)
    state = copy.deepcopy(wrapped.get_state())
    wrapped.reset_state()
    wrapped.set_state(state)
    assert same_states(piece, traveller)
    assert play(other, abroad, space, seed)[0].keys() == expected[0].keys()


def chunks_of(library, seed):
    """Chunks of several episodes, two of one, for the learner."""
    rng, made = np.random.default_rng(seed), []
    for name, total in zip("abc", rng.integers(1, 9, 3).tolist()):
        data = {
            "observations": rows(FRAMES, rng, total + 1),
            "actions": [int(i) for i in rng.integers(0, 2, total)],
            "rewards": [float(x) for x in rng.normal(size=total)],
            "infos": [{"step": i} for i in range(total + 1)],
            "extra_model_outputs": {"vf_preds": list(rng.standard_normal(total).astype(np.float32))},
        }
        settings = {"len_lookback_buffer": 0, "truncated": bool(rng.integers(2)), "observation_space": FRAMES}
        made.append(library.SingleAgentEpisode(id_=name, **data, **settings).to_numpy())
    return made


LEARNING = {
    "FrameStacking": lambda library: framed(library, as_learner_connector=True),
    "ComputeReturnsToGo": lambda library: library.learner.ComputeReturnsToGo(gamma=0.5),
    "adds": lambda library: user(library, adds),
    "shapes": lambda library: user(library, shapes),
    "AddNextObservations": lambda library: library.learner.AddNextObservationsFromEpisodesToTrainBatch(),
    "AddInfos": lambda library: library.learner.AddInfosFromEpisodesToTrainBatch(),
}


@random_cases(library=libraries, name=st.sampled_from(list(LEARNING)), seed=seeds, bootstraps=st.booleans())
def test_learning(library, name, seed, bootstraps):
    """Also what the piece writes is in the episodes that it was shown."""
    at, sides = 2 if name in ("ComputeReturnsToGo", "AddInfos") else 0, []
    names = (*PPO[not bootstraps : 3], "BatchIndividualItems", "NumpyToTensor")
    for where in (library, other_of(library)):
        piece, shared = LEARNING[name](library), {}
        pieces, episodes = pieces_of(where, "learner", *names), chunks_of(where, seed)
        pieces.insert(at + bootstraps, piece if where is library else away(library, piece, "learner"))
        batch = run(pipeline_of(where, "learner", pieces, FRAMES, TWO), episodes, shared_data=shared)
        sides.append([batch, shared.get("noted")])
        if name == "shapes":
            episodes = chunks_of(where, seed)
            piece = user(library, shapes)
            run(piece if where is library else away(library, piece, "learner"), episodes)
            parts = ("rewards", "actions", "infos")
            seen = [[getattr(one, f"get_{part}")() for part in parts] for one in episodes]
            sides[-1] += [seen, [one.get_extra_model_outputs("vf_preds") for one in episodes]]
    assert mismatches(*sides) == []


@pytest.mark.parametrize("library", BOTH, ids=str)
def test_states_away_from_home(library, tmp_path):
    """They survive pickling and copying, are in our checkpoints, and are merged by the piece inside."""
    make, space = ACTING["MeanStdFilter"]
    other, wrapped = other_of(library), away(library, make(library))
    pipeline = acting(other, wrapped, space)
    play(other, pipeline, space, 0)
    for twin in (pickle.loads(pickle.dumps(wrapped)), copy.deepcopy(wrapped)):
        assert type(twin) is type(wrapped) and twin.observation_space == wrapped.observation_space
        assert same_states(twin, wrapped)
    if other is EPIBATCH:
        twin = acting(EPIBATCH, away(RLLIB, make(RLLIB)), space)
        twin.set_state(load_state(save_state(tmp_path / "state", pipeline.get_state())))
        assert mismatches(play(EPIBATCH, pipeline, space, 1), play(EPIBATCH, twin, space, 1)) == []
    states = []
    for seed in range(2):
        own = acting(library, make(library), space)
        play(library, own, space, seed)
        states.append(own[0].get_state())
    merger, wrapped = acting(library, make(library), space)[0], away(library, make(library))
    acting(other, wrapped, space)
    expected = merger.merge_states(copy.deepcopy(states))
    assert mismatches(as_arrays(expected), as_arrays(wrapped.merge_states(states))) == []
    piece = make(library)
    assert (from_rllib_piece if other is RLLIB else to_rllib_piece)(away(library, piece)) is piece


# -- default pipelines with one stage of the other library ----------------------------------------


@dataclass(frozen=True)
class Swapped:
    """One run of a pipeline with a stage of the other library; RLlib's side of a mismatch is the run without it.

    Attributes:
        library: whose pipeline it is.
        stage: the piece that is the other library's.
        other: what the other library's own pipeline gave.
        steps: of each chunk.
    """

    library: Library
    stage: str
    other: Outcome = field(repr=False)
    steps: tuple[int, ...]

    def is_the_others(self, mismatch: Mismatch) -> bool:
        """Whether what differs is what the other library's pipeline has in that place."""
        found = self.other.value
        if mismatch.kind == "error" or found is None:
            return False
        for part in mismatch.path:
            found = found[part]
        return not mismatches(found, mismatch.ours)


OTHERS = {
    "O29": ("AddTimeDimToBatchAndZeroPad", "seq_lens"),
    "O28": ("GeneralAdvantageEstimation", "advantages"),
    "bootstrap-targets": ("GeneralAdvantageEstimation", "value_targets"),
    "env-action-types": ("NormalizeAndClipActions", "actions_for_env"),
}
"""Where a stage differs on purpose the batch has in this column what the pipeline of the stage's library has there."""


def others_column(stage, column):
    def explains(situation: Swapped, mismatch: Mismatch) -> bool:
        return situation.stage == stage and mismatch.path[-1:] == (column,) and situation.is_the_others(mismatch)

    return explains


for _identity, _place in OTHERS.items():
    difference(_identity, Swapped)(others_column(*_place))


@difference("O42", Swapped)
def integers_on_the_way_to_the_environment(situation: Swapped, mismatch: Mismatch) -> bool:
    """RLlib's `TensorToNumpy` makes 64-bit integers 32-bit ones."""
    if situation.stage != "TensorToNumpy" or mismatch.kind != "dtype" or mismatch.path[0] != "outputs":
        return False
    pair = mismatch.theirs, mismatch.ours
    narrow, wide = reversed(pair) if situation.library is EPIBATCH else pair
    return narrow.dtype == np.int32 and wide.dtype == np.int64 and np.array_equal(narrow, wide)


@difference("no-steps", Swapped)
def chunks_without_steps(situation: Swapped, mismatch: Mismatch) -> bool:
    """A stage of ours has no rows of a chunk without steps, RLlib's has some: one of the runs ends in an error."""
    return mismatch.kind == "error" and situation.library is RLLIB and not all(situation.steps)


SETTINGS = {
    "GeneralAdvantageEstimation": {"gamma": 0.9, "lambda_": 0.8},
    "NormalizeAndClipActions": {"normalize_actions": True, "clip_actions": False},
}


def with_guest(library, package, names, spaces, swapped):
    """A pipeline of a library, with one stage of the other's."""
    pieces = pieces_of(library, package, *names, **SETTINGS)
    if swapped in names:
        (guest,) = pieces_of(other_of(library), package, swapped, **SETTINGS)
        pieces[names.index(swapped)] = away(other_of(library), guest, package)
    return pipeline_of(library, package, pieces, *spaces)


def hold(case, swapped, call):
    """Run the pipelines of both libraries with a stage of the other, and hold each beside the same without it."""
    pure = {library: outcome(lambda library=library: call(library, None)) for library in BOTH}
    steps = tuple(chunk.length for chunk in case)
    for library in BOTH:
        mixed = outcome(lambda library=library: call(library, swapped))
        settle(pure[library], mixed, Swapped(library, swapped, pure[other_of(library)], steps))


BOUNDS = np.array([-2.0, 0.0], np.float32), np.array([4.0, 1.0], np.float32)
ACTIONS = st.sampled_from([gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Box(*BOUNDS)])
many = several_chunks(st.integers(1, 4), action_spaces=ACTIONS, common=("extras", "state"), reward="float")


@random_cases(case=many, steps=st.integers(1, 7), bootstraps=st.booleans(), at=st.integers(0, 7))
def test_a_swapped_stage_of_learning(case, steps, bootstraps, at):
    names = PPO if bootstraps else LEARNER
    spaces = case[0].observation_space, case[0].action_space

    def call(library, swapped):
        module = build_module(library, *spaces, state=case[0].state, max_seq_len=steps, multi=True)
        pipeline = with_guest(library, "learner", names, spaces, swapped)
        return run(pipeline, [chunk.build(library) for chunk in case], rl_module=module)["default_policy"]

    hold(case, names[at % len(names)], call)


def outputs_of(case, seed):
    """What a module might give for the newest observations of these chunks."""
    rng, count = np.random.default_rng(seed), len(case)
    width = {"Discrete": 3, "MultiDiscrete": 5, "Box": 4}[type(case[0].action_space).__name__]
    floats = {"action_dist_inputs": (count, width), "vf_preds": (count,)}
    outputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in floats.items()}
    outputs["tags"] = rng.integers(0, 99, count)
    if case[0].state:
        outputs = {name: value[:, None] for name, value in outputs.items()}
        states = rng.standard_normal((2, count, case[0].state)).astype(np.float32)
        outputs["state_out"] = {"h": states[0], "c": states[1]}
    return each(torch.from_numpy, outputs)


@random_cases(case=many, seed=seeds, at=st.integers(0, len(TO_MODULE + TO_ENV) - 1))
def test_a_swapped_stage_of_acting(case, seed, at):
    name, there = (TO_MODULE + TO_ENV)[at], at < len(TO_MODULE)
    spaces = case[0].observation_space, case[0].action_space

    def call(library, swapped):
        to_module = with_guest(library, "env_to_module", TO_MODULE, spaces, swapped if there else None)
        to_env = with_guest(library, "module_to_env", TO_ENV, spaces, None if there else swapped)
        settings = {"rl_module": build_module(library, *spaces, state=case[0].state), "shared_data": {}}
        episodes = [chunk.build(library, numpy=False) for chunk in case]
        batch = run(to_module, episodes, **settings)
        outputs = run(to_env, episodes, batch=outputs_of(case, seed), **settings)
        stacked = {key: stack(column) if isinstance(column, list) else column for key, column in outputs.items()}
        return {"batch": batch, "outputs": stacked}

    hold(case, name, call)


# -- in runners and as whole pipelines -------------------------------------------------------------

SPACES = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), TWO


def columns(seed, length):
    rng = np.random.default_rng(seed)
    observations = list(rng.standard_normal((length + 1, 4)).astype(np.float32))
    actions, rewards = rng.integers(0, 2, length).tolist(), rng.normal(size=length).tolist()
    return {"observations": observations, "actions": actions, "rewards": rewards, "len_lookback_buffer": 0}


@pytest.mark.parametrize("use_lstm", [False, True], ids=["", "lstm"])
def test_our_filter_in_rllibs_runner(use_lstm):
    """It counts each observation once, and RLlib's module is made for what it leaves."""
    piece = to_rllib_piece(EPIBATCH.env_to_module.MeanStdFilter(clip_by_value=1.0))
    config = RLLIB.PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.env_runners(env_to_module_connector=lambda *_: piece, rollout_fragment_length=40, num_env_runners=0)
    config.rl_module(model_config=RLLIB.DefaultModelConfig(use_lstm=use_lstm))
    runner = RLLIB.SingleAgentEnvRunner(config=config, worker_index=0)
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
        return config.training(train_batch_size=100, minibatch_size=50, num_epochs=1).build_algo()

    algo, twin = build(), build()
    algo.train()
    assert algo.env_runner.module.observation_space == gym.spaces.Box(-3.0, 3.0, (4,), np.float32)
    algo.save_to_path(tmp_path / "checkpoint", end_episodes=True)
    twin.restore_from_path(tmp_path / "checkpoint")
    states = [one.env_runner._env_to_module.get_state()["mean_std_filter"][None] for one in (algo, twin)]
    assert states[0]["running_stats"][0]["num_pushes"] > 100 and mismatches(*states) == []
    results = [one.train()["env_runners"]["episode_return_mean"] for one in (algo, twin)]
    assert results[0] == results[1]
    algo.stop()
    twin.stop()


def learner(library, first=0):
    names = (*PPO[first:3], "BatchIndividualItems", "NumpyToTensor")
    return pipeline_of(library, "learner", pieces_of(library, "learner", *names), *SPACES)


def test_whole_pipelines_as_pieces():
    recorded = [EPIBATCH.SingleAgentEpisode(id_=name, **columns(i, 5)) for i, name in enumerate("ab")]
    expected = learner(EPIBATCH)(episodes=recorded)
    outer = pipeline_of(RLLIB, "learner", [to_rllib_piece(learner(EPIBATCH))], *SPACES)
    assert compare_batches(expected, run(outer, to_rllib(recorded))) == []
    pieces = [EPIBATCH.learner.AddOneTsToEpisodesAndTruncate(), from_rllib_piece(learner(RLLIB, 1))]
    assert compare_batches(expected, pipeline_of(EPIBATCH, "learner", pieces, *SPACES)(episodes=recorded)) == []


def test_two_chunks_of_one_episode_in_front_of_rllibs_pieces():
    """RLlib's pieces rename chunks on the way; ours in front of them keep their rows apart all the same."""
    recorded = [RLLIB.SingleAgentEpisode(id_="same", **columns(length, length)).to_numpy() for length in (3, 5)]
    names = ("AddObservationsFromEpisodesToBatch", "BatchIndividualItems")
    ours = to_rllib_piece(EPIBATCH.learner.AddColumnsFromEpisodesToTrainBatch())
    batch = run(pipeline_of(RLLIB, "learner", [ours, *pieces_of(RLLIB, "learner", *names)], *SPACES), recorded)
    assert batch["obs"].shape == (8, 4)
    assert batch["rewards"].tolist() == [x for episode in recorded for x in episode.get_rewards()]


def test_batches_share_no_memory_with_episodes():
    episode = EPIBATCH.SingleAgentEpisode(id_="e", **columns(2, 4))
    own = pieces_of(EPIBATCH, "learner", "BatchIndividualItems", "NumpyToTensor")
    pieces = [*map(from_rllib_piece, pieces_of(RLLIB, "learner", *PPO[1:3])), *own]
    batch = pipeline_of(EPIBATCH, "learner", pieces, *SPACES)(episodes=[episode])
    for column, buffer in (("obs", episode.observations), ("actions", episode.actions), ("rewards", episode.rewards)):
        assert not np.shares_memory(batch[column], buffer.data)


def test_bootstrap_steps_of_either_library():
    """Ours lengthens and names RLlib's episodes in its pipeline; in ours nothing of RLlib's changes an episode."""
    sides = []
    make = [library.learner.AddOneTsToEpisodesAndTruncate for library in BOTH]
    for piece in (make[0](), to_rllib_piece(make[1]())):
        episode, shared = RLLIB.SingleAgentEpisode(id_="e", **columns(3, 4)).to_numpy(), {}
        batch = run(piece, [episode], shared_data=shared)
        flat = {name: [bool(x) for item in column["e_0",] for x in np.ravel(item)] for name, column in batch.items()}
        sides.append((episode.id_, shared, flat, from_rllib(episode)))
    theirs, ours = sides
    assert theirs[:3] == ours[:3] and ours[0] == "e_0" and ours[3].equals(theirs[3])
    episode = EPIBATCH.SingleAgentEpisode(id_="e", **columns(3, 4))
    before = episode.get_state()
    pipeline_of(EPIBATCH, "learner", [from_rllib_piece(make[0]())], *SPACES)(episodes=[episode])
    assert mismatches(before["rewards"], episode.get_state()["rewards"]) == [] and len(episode) == 4


def test_a_guest_may_be_frozen_and_its_spaces_are_known_to_the_learner():
    cls = RLLIB.env_to_module.MeanStdFilter
    guest = from_rllib_piece(cls(clip_by_value=1.0))
    pipeline = pipeline_of(EPIBATCH, "env_to_module", [guest], *SPACES)
    assert pipeline.episode_observation_space == gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    for frozen in (False, True):
        if frozen:
            pipeline.freeze()
        pipeline(episodes=[EPIBATCH.SingleAgentEpisode(id_="e", **columns(4, 2))])
        assert guest.get_state()[None]["running_stats"][0]["num_pushes"] == 1
    other = from_rllib_piece(cls(clip_by_value=1.0), rewrites_observations=False, lookback=7)
    pipeline = pipeline_of(EPIBATCH, "env_to_module", [other], *SPACES)
    assert pipeline.episode_observation_space == SPACES[0] and pipeline.lookback_needed == 7
