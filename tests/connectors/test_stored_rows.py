"""Pipelines over recorded blocks and lists of several deliveries give what they give over episodes built one by one."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorV2
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    FrameStacking,
)
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    LearnerConnectorPipeline,
)
from epibatch.episodes import InfiniteLookbackBuffer, VectorRecorder
from epibatch.episodes.single_agent_episode import SingleAgentEpisode

LOOKBACK = 3


class OneByOne:
    """The plain way to record N environments: one add_env_step per environment and step."""

    def __init__(self, num_envs, spaces, autoreset):
        self.num_envs, self.spaces, self.autoreset = num_envs, spaces, autoreset

    def _new(self, observation):
        episode = SingleAgentEpisode(observation_space=self.spaces[0], action_space=self.spaces[1])
        episode.add_env_reset(observation)
        return episode

    def reset(self, observations):
        self.done = []
        self.running = [self._new(observations[env]) for env in range(self.num_envs)]

    def step(self, data):
        for env in range(self.num_envs):
            if self.running[env].is_done:
                self.running[env] = self._new(data.observations[env])
                continue
            ended = bool(data.terminateds[env] or data.truncateds[env])
            last = data.finals[env] if ended and self.autoreset == "same_step" else data.observations[env]
            extras = {
                "action_logp": data.extras["action_logp"][env],
                "state_out": {"h": data.extras["state_out"]["h"][env]},
            }
            self.running[env].add_env_step(
                last,
                data.actions[env],
                data.rewards[env],
                terminated=bool(data.terminateds[env]),
                truncated=bool(data.truncateds[env]),
                extra_model_outputs=extras,
            )
            if ended:
                self.done.append(self.running[env])
                if self.autoreset == "same_step":
                    self.running[env] = self._new(data.observations[env])

    def flush(self, lookback):
        going = [episode for episode in self.running if len(episode) and not episode.is_done]
        result, self.done = self.done + going, []
        self.running = [e if e.is_done else (e.cut(lookback) if len(e) else e) for e in self.running]
        return result


def random_step(rng, num_envs, shape):
    def draw(*size):
        return rng.standard_normal(size).astype(np.float32)

    return SimpleNamespace(
        observations=draw(num_envs, *shape),
        finals=draw(num_envs, *shape),
        actions=rng.integers(0, 2, num_envs),
        rewards=rng.standard_normal(num_envs),
        terminateds=rng.random(num_envs) < 0.15,
        truncateds=rng.random(num_envs) < 0.1,
        extras={"action_logp": draw(num_envs), "state_out": {"h": draw(num_envs, 2)}},
    )


def record(seed, autoreset, shape=(2,), space=None):
    """Both recorders, fed with the same steps; yields after each step, with harvests in between."""
    rng = np.random.default_rng(seed)
    num_envs = int(rng.integers(1, 5))
    spaces = (space or gym.spaces.Box(-np.inf, np.inf, shape, np.float32), gym.spaces.Discrete(2))
    recorder = VectorRecorder(num_envs, *spaces, autoreset=autoreset, capacity=4)
    plain = OneByOne(num_envs, spaces, autoreset)
    first = random_step(rng, num_envs, shape).observations
    recorder.reset(first)
    plain.reset(first)
    for _ in range(3):
        for _ in range(int(rng.integers(1, 9))):
            data = random_step(rng, num_envs, shape)
            waiting = [episode.is_done for episode in plain.running]
            data.terminateds[waiting] = data.truncateds[waiting] = False
            finals = data.finals if autoreset == "same_step" else None
            recorder.step(
                data.actions,
                data.rewards,
                data.terminateds,
                data.truncateds,
                data.observations,
                extras=data.extras,
                final_observations=finals,
            )
            plain.step(data)
            yield "step", recorder.episodes, plain.running
        yield "flush", recorder.flush(LOOKBACK), plain.flush(LOOKBACK)


def same(first, second, where=""):
    assert type(first) is type(second), where
    if isinstance(first, dict):
        assert set(first) == set(second), where
        for key in first:
            same(first[key], second[key], f"{where}/{key}")
    else:
        assert first.dtype == second.dtype, where
        assert torch.equal(first, second), where


def ways(episodes):
    """A block, a list of the views into it, and episodes that own their rows."""
    return episodes, list(episodes), pickle.loads(pickle.dumps(list(episodes)))


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize(("state", "ppo"), [(0, False), (0, True), (2, False), (2, True)])
@pytest.mark.parametrize("seed", range(3))
def test_train_batches(lab, seed, state, ppo, autoreset):
    module = lab.module(state=state, max_seq_len=3, multi=True)
    for what, block, plain in record(seed, autoreset):
        if what == "flush" and plain:
            expected = lab.run("learner", lab.defaults("learner", ppo), plain, rl_module=module)
            for episodes in ways(block):
                same(lab.run("learner", lab.defaults("learner", ppo), episodes, rl_module=module), expected)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("state", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_module_batches(lab, seed, state, autoreset):
    module = lab.module(state=state)
    for what, block, plain in record(seed, autoreset):
        if what == "step":
            expected = lab.run("env_to_module", lab.defaults("env_to_module"), plain, rl_module=module)
            for episodes in (block, list(block)):
                same(lab.run("env_to_module", lab.defaults("env_to_module"), episodes, rl_module=module), expected)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("seed", range(3))
def test_rewards_rewritten_by_a_user_piece(lab, seed, autoreset):
    def shape(batch, episodes):
        for episode in episodes:
            rewards = np.array(episode.get_rewards())
            episode.set_rewards(new_data=rewards * 2.0 + episode.get_observations(slice(0, len(episode)))[:, 0])

    for what, block, plain in record(seed, autoreset):
        if what == "flush" and plain:
            pieces = [lab.user(shape), *lab.defaults("learner", True)]
            module = lab.module(multi=True)
            same(
                lab.run("learner", pieces, block, rl_module=module), lab.run("learner", pieces, plain, rl_module=module)
            )


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("seed", range(3))
def test_observations_written_back_by_a_user_piece(lab, seed, autoreset):
    """On the env side the newest observation is scaled; the train batch must hold the scaled ones."""

    def scale(batch, episodes):
        for episode in episodes:
            if episode.custom_data.get("at") != (episode.t, episode.id_):
                episode.custom_data["at"] = (episode.t, episode.id_)
                episode.set_observations(new_data=episode.get_observations(-1) * 3.0, at_indices=-1)

    pieces = [lab.user(scale), *lab.defaults("env_to_module")]
    for what, block, plain in record(seed, autoreset):
        if what == "step":
            first = lab.run("env_to_module", pieces, block, rl_module=lab.module())
            same(first, lab.run("env_to_module", pieces, plain, rl_module=lab.module()))
        elif plain:
            ours, theirs = (
                lab.run("learner", lab.defaults("learner"), episodes, rl_module=lab.module())
                for episodes in (block, plain)
            )
            same(ours, theirs)


class Recurrent:
    """A module with a state, and sequences of four steps."""

    model_config = {"max_seq_len": 4}  # noqa: RUF012

    def is_stateful(self):
        return True

    def get_initial_state(self):
        return {"h": np.zeros(2, np.float32)}


class ReplacesRewards(ConnectorV2):
    """A plain piece that gives one episode rewards of its own."""

    mutates_episodes = True

    def __call__(self, *, batch, episodes, **kwargs):
        rows = np.arange(len(episodes[1]) + episodes[1].lookback, dtype=np.float64)
        episodes[1].rewards = InfiniteLookbackBuffer(rows, lookback=episodes[1].lookback)
        return batch


def delivered(seed):
    rng = np.random.default_rng(seed)
    recorder = VectorRecorder(3, autoreset="same_step", capacity=2)
    recorder.reset(rng.standard_normal((3, 2)))
    out, no = [], np.zeros(3, bool)
    for _ in range(2):
        for _ in range(8):
            recorder.step(
                rng.integers(0, 4, 3), rng.standard_normal(3), rng.random(3) < 0.2, no, rng.standard_normal((3, 2)),
                extras={"state_out": {"h": rng.standard_normal((3, 2)).astype(np.float32)}, "vf_preds": rng.random(3)},
                final_observations=rng.standard_normal((3, 2)),
            )  # fmt: skip
        out.append(recorder.flush(3))
    return out


def pieces(bootstrap, stacked, replaced):
    return [
        *([ReplacesRewards()] if replaced else []),
        *([AddOneTsToEpisodesAndTruncate()] if bootstrap else []),
        *([FrameStacking(num_frames=3, axis=-1, as_learner_connector=True)] if stacked else []),
        *([] if stacked else [AddObservationsFromEpisodesToBatch(as_learner_connector=True)]),
        AddColumnsFromEpisodesToTrainBatch(),
        *([] if stacked else [AddNextObservationsFromEpisodesToTrainBatch()]),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        BatchIndividualItems(),
    ]


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)
        for key in found:
            assert_same(found[key], expected[key])
    else:
        np.testing.assert_array_equal(found, expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("order", ["one after another", "in turns"])
def test_batches_are_those_of_plain_lists(bootstrap, stacked, replaced, order):
    episodes = [episode for seed in (0, 1) for delivery in delivered(seed) for episode in delivery]
    if order == "in turns":
        episodes = [episodes[i] for i in np.random.default_rng(0).permutation(len(episodes))]
    twins = pickle.loads(pickle.dumps(episodes))
    box = gym.spaces.Box(-9, 9, (2,), np.float64)
    batches = []
    for given in (episodes, twins):
        pipeline = LearnerConnectorPipeline(box, None, connectors=pieces(bootstrap, stacked, replaced))
        batches.append(pipeline(rl_module=Recurrent(), batch={}, episodes=given))
    assert_same(*batches)


def test_a_later_write_to_the_episodes_does_not_reach_the_batch(lab):
    episodes = [lab.episode("a", 5), lab.episode("b", 3)]
    pieces = lab.defaults("learner")[:2]

    def overwrite(batch, episodes):
        for episode in episodes:
            episode.set_rewards(new_data=np.full(len(episode), 77.0))
            episode.get_observations()[:] = 77

    batch = lab.run("learner", [*pieces, lab.user(overwrite)], episodes)
    assert batch["rewards"][("a",)][0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert batch["obs"][("b",)][0][:, 0].tolist() == [0, 1, 2]


def test_batches_of_chunks_whose_types_differ_take_the_wider(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3, rewards=[1, 2, 3])]
    pieces = lab.defaults("learner", True)[:-2]
    rewards = lab.run("learner", pieces, episodes[::-1], rl_module=lab.module())["rewards"]
    assert rewards.dtype == np.float64 and rewards.tolist() == [1, 2, 3, 0, 0.5, 1.5, 0]
    assert isinstance(rewards, np.ndarray) and not torch.is_tensor(rewards)


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("module", [False, True])
def test_float64_is_halved_where_the_next_piece_would_and_nowhere_else(lab, between, module):
    episodes = [lab.episode("a", 2, rewards=[0.1, 1e-300]), lab.episode("b", 3, rewards=[1, 2**60, 3])]
    seen = []
    pieces = lab.defaults("learner")
    if between:
        pieces.insert(-1, lab.user(lambda batch, episodes: seen.append(batch["rewards"].dtype)))
    keywords = {"rl_module": lab.module()} if module else {}
    for given in (episodes, episodes[:1], episodes[1:]):
        rewards = lab.run("learner", pieces, given, **keywords)["rewards"]
        rows = np.concatenate([one.get_rewards() for one in given])
        expected = rows.astype(np.float32) if module and rows.dtype == np.float64 else rows
        assert np.asarray(rewards).dtype == expected.dtype and rewards.tolist() == expected.tolist()
    assert seen == [np.float64, np.float64, np.int64] * between
