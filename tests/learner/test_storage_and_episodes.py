"""The same rollouts as storage and as episodes: rows, ids, batches, and updates from both."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow
from fixture_learners import Threads
from fixture_tensor_envs import TorchPoints
from fixture_together import learners_in_threads, together
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.learner import default_pipeline
from epibatch.core import MaskedColumn
from epibatch.core.errors import (
    BatchLayoutError,
    ColumnError,
    ConfigError,
    EpisodeError,
    FirstUpdateError,
    LookbackError,
)
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI, default_module_spec
from epibatch.env_runner import SingleAgentEnvRunner, TensorEnvRunner
from epibatch.episodes import VectorEpisodes, VectorRecorder
from epibatch.learner import Learner, LearnerGroup, LearnerSettings, PPOLoss, RolloutStorage

KEY = "default_policy"
SPACES = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3)
T, N = 6, 4
LSTM = {"use_lstm": True, "lstm_cell_size": 6, "max_seq_len": 20}


class Acting:
    """Random environments that a module acts in, and a storage of its steps."""

    def __init__(self, lookback=1, seed=0, final_obs=True, keeps_state_out=False, **model_config):
        torch.manual_seed(seed)
        self.module = default_module_spec(*SPACES, {"fcnet_hiddens": [8], **model_config}).build()
        self.rng = torch.Generator().manual_seed(seed)
        self.storage = RolloutStorage(T, N, lookback=lookback)
        self.final_obs, self.keeps_state_out = final_obs, keeps_state_out
        self.recurrent = bool(model_config)
        self.initial = {name: leaf.expand(N, -1) for name, leaf in self.module.get_initial_state().items()}
        self.obs, self.state = self.observations(), self.initial

    def observations(self):
        return torch.rand(N, 4, generator=self.rng)

    def outputs(self, obs, state):
        batch = {"obs": obs[:, None] if self.recurrent else obs, "state_in": state}
        out = {**self.module.forward_exploration(batch), "vf_preds": self.module.compute_values(batch)}
        rows = {
            name: out[name].squeeze(1) if self.recurrent else out[name] for name in ("action_dist_inputs", "vf_preds")
        }
        return rows, out.get("state_out", {})

    @torch.no_grad()
    def rollout(self):
        """One rollout in the storage, finished, with returns."""
        for _ in range(T):
            rows, after = self.outputs(self.obs, self.state)
            distribution = self.module.get_exploration_action_dist_cls().from_logits(rows["action_dist_inputs"])
            actions, last = distribution.sample(), self.observations()
            terminateds, truncateds = torch.rand((2, N), generator=self.rng) < 0.15
            step = {
                "obs": self.obs,
                "actions": actions,
                "action_logp": distribution.logp(actions),
                "rewards": torch.randn(N, generator=self.rng),
                "terminateds": terminateds,
                "truncateds": truncateds,
                **rows,
            }
            if self.final_obs:
                step["values_bootstrapped"] = self.outputs(last, after)[0]["vf_preds"]
            if self.recurrent:
                step["state_in"] = self.state
            if self.keeps_state_out:
                step["state_out"] = after
            final = {"final_obs": last} if self.final_obs else {}
            if self.recurrent and self.final_obs and not self.keeps_state_out:
                final["final_state"] = after
            self.storage.add_step(step, **final)
            ended = (terminateds | truncateds)[:, None]
            self.obs = torch.where(ended, self.observations(), last)
            self.state = {name: torch.where(ended, self.initial[name], leaf) for name, leaf in after.items()}
        self.storage.finish(self.obs, self.state if self.recurrent else None)
        self.storage.compute_returns(self.outputs(self.obs, self.state)[0]["vf_preds"])
        return self.storage


def learner_of(module, **arguments):
    options = {"lr": 0.01, "num_epochs": 3, "minibatch_size": None, "seed": 5, **arguments.pop("settings", {})}
    return Learner(
        module=copy.deepcopy(module),
        connector=default_pipeline(*SPACES),
        settings=LearnerSettings(**options),
        loss=PPOLoss(),
        **{"check_first_update": "error", **arguments},
    )


def env_major(batch):
    """A batch of storage, [T * N, ...], in the order of its episodes: one environment after another."""
    return {name: column.unflatten(0, (-1, N)).transpose(0, 1).flatten(0, 1) for name, column in batch.items()}


def cut(storage):
    """Steps after which a chunk ends and its episode goes on, bool [T, N]: the pipeline marks them as truncated."""
    steps = torch.zeros(T, N, dtype=torch.bool)
    steps[-1] = ~storage.ended()[-1]
    return steps


@pytest.mark.parametrize("lookback", [0, 1, 3])
@pytest.mark.filterwarnings("ignore:RolloutStorage.compute_returns")
@pytest.mark.parametrize("final_obs", [True, False])
def test_the_learner_pipeline_gives_the_batch_of_the_storage(lookback, final_obs):
    acting, kinds = Acting(lookback, final_obs=final_obs), set()
    pipeline = default_pipeline(*SPACES)
    for _ in range(4):
        storage = acting.rollout()
        made = pipeline(rl_module=acting.module, batch={}, episodes=storage.episodes(), shared_data={})
        mask, expected = made["loss_mask"], env_major(storage.batch())
        assert expected.keys() <= made.keys()
        expected["truncateds"] = expected["truncateds"] | cut(storage).T.flatten()
        for name, column in expected.items():
            torch.testing.assert_close(made[name][mask], column, atol=1e-5, rtol=1e-5)
        kinds |= {name for name in ("terminateds", "truncateds") if storage[name].any()}
        storage.clear()
    assert kinds == {"terminateds", "truncateds"}


@pytest.mark.parametrize("lookback", [1, 3])
@pytest.mark.parametrize(
    ("max_seq_len", "keeps_state_out"), [(20, False), (4, True), (3, True), (3, False), (1, False)]
)
def test_the_learner_pipeline_gives_the_sequences_of_the_storage(lookback, max_seq_len, keeps_state_out):
    acting = Acting(lookback, keeps_state_out=keeps_state_out, **{**LSTM, "max_seq_len": max_seq_len})
    pipeline = default_pipeline(*SPACES)
    for _ in range(4):
        storage = acting.rollout()
        made = pipeline(rl_module=acting.module, batch={}, episodes=storage.episodes(), shared_data={})
        expected, mask = storage.sequences(max_seq_len), made["loss_mask"]
        own = made["truncateds"][mask] & ~cut(storage).T.flatten()
        assert torch.equal(own, expected["truncateds"][expected["loss_mask"]])
        for name in storage.batch().keys() - {"truncateds", "state_out"}:
            torch.testing.assert_close(made[name][mask], expected[name][expected["loss_mask"]], atol=1e-5, rtol=1e-5)
        for name, state in expected["state_in"].items():  # sequences without loss are of bootstrap rows
            torch.testing.assert_close(made["state_in"][name][mask.any(1)], state, atol=1e-5, rtol=1e-5)
        storage.clear()


@pytest.mark.parametrize(("lookback", "num_frames"), [(1, 2), (3, 4), (3, 2)])
def test_frame_stacks_read_over_the_edges_of_rollouts(lookback, num_frames):
    acting, before = Acting(lookback), [[] for _ in range(N)]
    for _ in range(3):
        storage = acting.rollout()
        pipeline = default_pipeline(*SPACES, advantages=False)
        pipeline.prepend(FrameStacking(SPACES[0], num_frames=num_frames, axis=-1, as_learner_connector=True))
        made = pipeline(rl_module=acting.module, batch={}, episodes=storage.episodes(), shared_data={})
        expected = []
        for n in range(N):
            for t in range(T):
                before[n].append(storage["obs"][t, n].clone())
                frames = [torch.zeros(4)] * num_frames + before[n]
                expected.append(torch.cat(frames[-num_frames:]))
                if storage.ended()[t, n]:
                    before[n] = []
        torch.testing.assert_close(made["obs"], torch.stack(expected))
        storage.clear()


@pytest.mark.parametrize("minibatch_size", [None, 7])
def test_updates_from_storage_and_from_episodes_are_equal(minibatch_size):
    acting = Acting()
    options = {"minibatch_size": minibatch_size, "shuffle": None}
    first, second = (learner_of(acting.module, settings=options, check_first_update="warn") for _ in range(2))
    for _ in range(2):
        storage = acting.rollout()
        results = first.update(episodes=storage.episodes()), second.update(batch={KEY: env_major(storage.batch())})
        assert results[0][KEY] == pytest.approx(results[1][KEY], abs=1e-5)
        assert results[0]["__all_modules__"]["num_rows"] == T * N
        steps = [result["__all_modules__"]["num_env_steps_trained_lifetime"] for result in results]
        assert steps[0] == steps[1] and steps[0] % (T * N) == 0
        for left, right in zip(first.module[KEY].parameters(), second.module[KEY].parameters()):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)
        acting.module = first.module[KEY]
        storage.clear()


def test_recurrent_updates_from_storage_and_from_episodes_are_equal():
    acting = Acting(seed=2, **LSTM)
    storage = acting.rollout()
    first, second = learner_of(acting.module), learner_of(acting.module)
    results = first.update(episodes=storage.episodes()), second.update(batch={KEY: storage.sequences(20)})
    assert results[0][KEY] == pytest.approx(results[1][KEY], abs=1e-5)
    assert results[1]["__all_modules__"]["num_env_steps_trained_lifetime"] == T * N
    for left, right in zip(first.module[KEY].parameters(), second.module[KEY].parameters()):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def test_learners_that_share_a_batch_learn_as_one_does():
    acting = Acting()
    batch, alone = acting.rollout().batch(), learner_of(acting.module)
    expected = alone.update(batch={KEY: batch})
    parts = [{name: column[half::2] for name, column in batch.items()} for half in (0, 1)]
    members = [learner_of(acting.module, learners=learners) for learners in learners_in_threads(2)]
    found = together([partial(member.update, batch={KEY: part}) for member, part in zip(members, parts)])
    for member, results in zip(members, found):
        assert results[KEY] == pytest.approx(expected[KEY], rel=1e-3, abs=1e-5)
        assert results["__all_modules__"]["num_env_steps_trained_lifetime"] == T * N
        for left, right in zip(member.module[KEY].parameters(), alone.module[KEY].parameters()):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.tuples(*[st.sampled_from("rrrtux")] * 3), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sets(st.integers(0, 3)),
)
def test_ids_lengths_and_flags_are_those_of_a_loop_over_steps(rollouts, lookback, resets):
    """r: goes on, t: terminated, u: truncated, x: both."""
    storage, counter = RolloutStorage(4, 3, lookback=lookback), 0.0
    running = [{"key": object(), "rewards": [], "ids": set()} for _ in range(3)]
    everything = []
    for number, rollout in enumerate(rollouts):
        if number:
            storage.clear()
        if number in resets:
            storage.reset()
            running = [{"key": object(), "rewards": [], "ids": set()} for _ in range(3)]
        history, chunks = storage.history, [[] for _ in range(3)]
        before = [list(episode["rewards"]) for episode in running]
        for ends in rollout:
            rewards = counter + torch.arange(3.0)
            counter += 3
            flags = [torch.tensor([end in which for end in ends]) for which in ("tx", "ux")]
            step = {"obs": rewards, "actions": rewards + 0.25, "rewards": rewards, "extra": rewards + 0.5}
            storage.add_step({**step, "terminateds": flags[0], "truncateds": flags[1]}, final_obs=rewards + 0.75)
            for n, end in enumerate(ends):
                running[n]["rewards"].append(float(rewards[n]))
                if end != "r":
                    chunks[n].append((running[n], end))
                    running[n] = {"key": object(), "rewards": [], "ids": set()}
        for n in range(3):
            if running[n]["rewards"] and (len(chunks[n]) or running[n]["rewards"] != before[n]):
                chunks[n].append((running[n], "r"))
        storage.finish(torch.full((3,), -1.0))
        expected = [(n, episode, end) for n in range(3) for episode, end in chunks[n]]
        seen = set()
        for chunk, (n, episode, end) in zip(storage.episodes(), expected, strict=True):
            went_on = n not in seen
            old = len(before[n]) if went_on else 0
            seen.add(n)
            rewards = episode["rewards"]
            assert chunk.get_rewards().tolist() == rewards[old:] and chunk.t_started == old
            assert chunk.get_actions().tolist() == [reward + 0.25 for reward in rewards[old:]]
            assert chunk.get_extra_model_outputs("extra").tolist() == [reward + 0.5 for reward in rewards[old:]]
            last = rewards[-1] + 0.75 if end != "r" else -1.0
            assert chunk.get_observations().tolist() == [*rewards[old:], last]
            kept = min(history, old)
            rows = chunk.get_rewards(slice(-kept, 0), neg_index_as_lookback=True).tolist() if kept else []
            assert chunk.rewards.lookback == kept and rows == rewards[old - kept : old]
            assert (chunk.is_terminated, chunk.is_truncated) == (end in "tx", end in "ux")
            assert chunk.return_before == sum(rewards[:old])
            assert chunk.get_infos(-1) == {}
            episode["ids"].add(chunk.id_)
            everything.append(episode)
    ids = {id(episode): episode["ids"] for episode in everything}
    assert all(len(names) == 1 for names in ids.values())
    assert len(set.union(*ids.values())) == len(ids)


def test_episodes_share_memory_until_they_are_copied():
    acting = Acting()
    storage = acting.rollout()
    episodes = storage.episodes()
    assert isinstance(episodes, VectorEpisodes)
    rows = episodes[0].get_observations(slice(0, len(episodes[0])))
    assert rows.__array_interface__["data"][0] == storage["obs"].data_ptr()
    episodes[0].set_rewards(new_data=77.0, at_indices=0)
    assert float(storage["rewards"][0, 0]) == 77.0
    assert [episode.id_ for episode in storage.episodes()] == [episode.id_ for episode in episodes]
    kept, sent = copy.deepcopy(list(episodes)), pickle.loads(pickle.dumps(episodes))
    expected = [episode.get_observations().tolist() for episode in kept]
    storage.clear()
    acting.rollout()
    for others in (kept, sent):
        assert [episode.get_observations().tolist() for episode in others] == expected
    assert [episode.get_observations().tolist() for episode in episodes] != expected


@pytest.mark.filterwarnings("ignore:RolloutStorage.compute_returns")
def test_an_episode_without_terminal_observation_is_marked_as_the_runners_are():
    storage = Acting(final_obs=False).rollout()
    ended = [episode for episode in storage.episodes() if episode.is_done]
    assert ended
    for episode in ended:
        assert episode.get_infos(-1) == {"missing_final_obs": True}
        assert np.array_equal(episode.get_observations(-1), episode.get_observations(-2))


def test_groups_and_masked_columns_are_structs_of_episodes():
    storage = RolloutStorage(2, N)
    for t in range(2):
        value = torch.arange(2.0 * N).reshape(N, 2) + 10 * t
        ref = MaskedColumn(value, torch.arange(N) % 2 == t)
        step = {"obs": {"policy": value, "ref": ref}, "actions": value, "rewards": torch.zeros(N), "teacher": ref}
        storage.add_step(step)
    storage.finish(step["obs"])
    first = storage.episodes()[1]
    obs = first.get_observations()
    assert obs["policy"].tolist() == [[2, 3], [12, 13], [12, 13]]
    assert type(obs["ref"]) is MaskedColumn and obs["ref"].mask.tolist() == [False, True, True]
    assert first.get_extra_model_outputs("teacher").mask.tolist() == [False, True]
    again = RolloutStorage.from_episodes(storage.episodes())
    assert type(again["obs"]["ref"]) is MaskedColumn
    assert torch.equal(again["teacher"].mask, storage["teacher"].mask)


@pytest.mark.parametrize("recurrent", [{}, LSTM])
def test_there_and_back(recurrent):
    acting = Acting(**recurrent)
    for _ in range(3):
        storage = acting.rollout()
        again = RolloutStorage.from_episodes(storage.episodes())
        assert sorted(again.columns) == sorted(storage.columns)
        assert again["obs"].data_ptr() == storage["obs"].data_ptr()
        for name in storage.columns:
            torch.testing.assert_close(again[name], storage[name])
        assert torch.equal(again.rows("obs", T, T + 1), storage.rows("obs", T, T + 1))
        assert again.terminal_observations.keys() == storage.terminal_observations.keys()
        for step, (envs, rows) in storage.terminal_observations.items():
            assert torch.equal(again.terminal_observations[step][0], envs)
            assert torch.equal(again.terminal_observations[step][1], rows)
        ends = [(chunk.t_started, len(chunk), chunk.is_terminated, chunk.is_truncated) for chunk in storage.episodes()]
        assert ends == [
            (chunk.t_started, len(chunk), chunk.is_terminated, chunk.is_truncated) for chunk in again.episodes()
        ]
        sent = RolloutStorage.from_episodes(pickle.loads(pickle.dumps(storage.episodes())))
        some = RolloutStorage.from_episodes(storage.episodes(), columns=["rewards", "terminateds"])
        assert torch.equal(sent["obs"], storage["obs"]) and list(some.columns) == ["terminateds", "rewards"]
        storage.clear()


@pytest.mark.parametrize(("recurrent", "num_frames"), [({}, 3), slow(LSTM, 1), slow({**LSTM, "max_seq_len": 3}, 1)])
def test_conversions_keep_history_ids_and_returns(recurrent, num_frames):
    acting, longest = Acting(lookback=2, **recurrent), 0
    for _ in range(5):
        storage = acting.rollout()
        episodes = storage.episodes()
        again = RolloutStorage.from_episodes(episodes)
        sent = RolloutStorage.from_episodes(pickle.loads(pickle.dumps(episodes)))  # rows that are gathered
        twice = RolloutStorage.from_episodes(again.episodes())

        def facts(chunks):
            return [(e.id_, e.t_started, pytest.approx(e.return_before), e.rewards.lookback, len(e)) for e in chunks]

        def made(chunks):
            pipeline = default_pipeline(*SPACES, advantages=num_frames == 1)
            stack = FrameStacking(SPACES[0], num_frames=num_frames, axis=-1, as_learner_connector=True)
            if num_frames > 1:
                pipeline.prepend(stack)
            return pipeline(rl_module=acting.module, batch={}, episodes=chunks, shared_data={})

        expected = made(episodes)
        for other in (again, sent, twice):
            chunks = other.episodes()
            assert facts(episodes) == facts(chunks)
            torch.testing.assert_close(made(chunks), expected, atol=1e-6, rtol=0)
            for name in ("obs", "rewards"):
                (rows, mask), (found, found_mask) = storage.previous(name), other.previous(name)
                assert torch.equal(mask, found_mask) and torch.equal(rows, found)
            for mine, its in zip(episodes, chunks, strict=True):
                both = (
                    e.get_observations(slice(-e.rewards.lookback, 0), neg_index_as_lookback=True) for e in (mine, its)
                )
                assert np.array_equal(*both)
        longest = max(longest, again.history)
        assert again.lookback == again.history <= storage.history
        storage.clear()
    assert longest == 2


def runner_of(mode="same_step", **model_config):
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=N, gym_env_autoreset_mode=mode)
    config.rl_module(model_config={"fcnet_hiddens": [8], **model_config})
    return SingleAgentEnvRunner(config=config)


@pytest.mark.parametrize("recurrent", [{}, LSTM])
def test_a_runners_fragment_as_storage_has_the_rows_of_its_episodes(recurrent):
    runner = runner_of(**recurrent)
    for _ in range(3):
        episodes = runner.sample(num_timesteps=25 * N)
        storage = RolloutStorage.from_episodes(episodes)
        assert len(storage) == 25 and storage.num_envs == N
        lengths = {(n, int(e)): 1 for n in range(N) for e in torch.nonzero(storage.ended()[:, n])}
        assert len(lengths) == sum(episode.is_done for episode in episodes) > 0
        order = np.argsort(episodes.envs(), kind="stable")
        rewards = np.concatenate([episodes[i].get_rewards() for i in order.tolist()])
        assert storage["rewards"].T.flatten().tolist() == rewards.tolist()
        obs = np.concatenate([episodes[i].get_observations(slice(0, len(episodes[i]))) for i in order.tolist()])
        assert torch.equal(storage["obs"].transpose(0, 1).flatten(0, 1), torch.from_numpy(obs))
        assert np.shares_memory(storage["obs"].numpy(), episodes[0].get_observations(slice(0, 1)))
        made = default_pipeline(advantages=False)(
            rl_module=runner.module, batch={}, episodes=[episodes[i] for i in order.tolist()], shared_data={}
        )
        expected = storage.sequences(20) if recurrent else env_major(storage.batch())
        for name in made.keys() & expected.keys() - {"truncateds"}:
            torch.testing.assert_close(made[name], expected[name], check_dtype=False)


def test_rows_that_do_not_lie_side_by_side_are_gathered():
    recorder, step = VectorRecorder(2, autoreset="next_step"), 0
    recorder.reset(np.array([0.0, 1.0]))
    ends = [(0, 0), (1, 0), (0, 1), (0, 0), (0, 0)]  # each environment has a row that only brings its reset
    for step, end in enumerate(ends, 1):
        flags = np.array(end, np.bool_)
        recorder.step(np.array([step, -step]), np.full(2, step), flags, np.zeros_like(flags), np.full(2, 10.0 * step))
    storage = RolloutStorage.from_episodes(recorder.flush(0))
    assert storage["actions"].T.tolist() == [[1, 2, 4, 5], [-1, -2, -3, -5]]
    assert storage.rows("obs", 0, 5).T.tolist() == [[0, 10, 30, 40, 50], [1, 10, 20, 40, 50]]
    assert storage["terminateds"].T.int().tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]] and not storage["truncateds"].any()
    terminal = {t: (envs.tolist(), rows.tolist()) for t, (envs, rows) in storage.terminal_observations.items()}
    assert terminal == {1: ([0], [20.0]), 2: ([1], [30.0])}


@pytest.mark.parametrize("model_config", [{"fcnet_hiddens": [8]}, {"fcnet_hiddens": [8], **LSTM}])
def test_a_runner_of_tensors_gives_storage_and_episodes(model_config):
    options = {"num_envs_per_env_runner": N, "gym_env_vectorize_mode": "vector_entry_point"}
    config = PPOConfig().environment(TorchPoints).env_runners(**options).debugging(seed=0)
    runner = TensorEnvRunner(config=config.rl_module(model_config=model_config))
    storage, pipeline = RolloutStorage(20, N, lookback=1), default_pipeline()
    for _ in range(2):
        runner.sample(storage)
        storage.compute_returns(runner.last_values())
        made = pipeline(rl_module=runner.module, batch={}, episodes=storage.episodes(), shared_data={})
        mask, expected = made["loss_mask"], env_major(storage.batch())
        for name in expected.keys() - {"truncateds"}:
            torch.testing.assert_close(made[name][mask], expected[name], atol=1e-4, rtol=1e-4)
        storage.clear()
    runner.stop()


def test_states_before_each_step_are_those_after_the_step_before():
    ends, state = np.array([[0, 0], [1, 0], [0, 0]], np.bool_), np.arange(6.0).reshape(3, 2, 1)
    columns = {"observations": np.zeros((4, 2, 3)), "actions": np.zeros((3, 2)), "rewards": np.ones((3, 2))}
    flags = {"terminateds": ends, "truncateds": np.zeros_like(ends)}
    make = partial(VectorEpisodes.from_arrays, **columns, **flags, extra_model_outputs={"state_out": {"h": state}})
    storage = RolloutStorage.from_episodes(make(), initial_state={"h": torch.tensor([-1.0])})
    assert storage.rows("state_in", 0, 4)["h"][..., 0].tolist() == [[-1, -1], [0, 1], [-1, 3], [4, 5]]
    went_on = make(t_started=np.array([3, 7]), lookback=1, returns_before=np.array([5.0, 6.0]))
    storage = RolloutStorage.from_episodes(went_on)
    assert storage.rows("state_in", 0, 3)["h"][..., 0].tolist() == [[0, 1], [0, 3], [4, 5]]
    assert [(chunk.t_started, chunk.return_before) for chunk in storage.episodes()] == [(3, 5.0), (0, 0.0), (7, 6.0)]
    with pytest.raises(EpisodeError, match="no lookback in episode"):
        RolloutStorage.from_episodes(make(t_started=np.array([3, 7])))
    with pytest.raises(ColumnError, match="column 'words'"):
        RolloutStorage.from_episodes(make(extra_model_outputs={"words": np.full((3, 2), "a", object)}))


class Counter(TorchRLModule, ValueFunctionAPI):
    """Its state is the number of steps since the reset, and its value too."""

    def setup(self):
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def get_initial_state(self):
        return {"n": torch.zeros(1)}

    def _forward(self, batch, **kwargs):
        steps = batch["obs"].shape[1]
        inputs = torch.zeros(len(batch["obs"]), steps, 2) + self.weight
        return {"action_dist_inputs": inputs, "state_out": {"n": batch["state_in"]["n"] + steps}}

    def compute_values(self, batch, embeddings=None):
        return batch["state_in"]["n"] + torch.arange(batch["obs"].shape[1]) + 0 * self.weight


class Limited(gym.Env):
    """Truncates each episode after `limit` steps without reward."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

    def __init__(self, config):
        self.limit = config["limit"]

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 0.0, False, self.steps == self.limit, {}


@pytest.mark.parametrize("limit", [2, 3, 4, 6])
@pytest.mark.parametrize("way", ["tensors", "episodes", "episodes, sent"])
def test_a_truncated_episode_is_valued_in_the_state_after_its_last_step(limit, way):
    """Without rewards and discount each target is the value of the terminal observation: the number of steps."""
    config = PPOConfig().environment(Limited, env_config={"limit": limit}).debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=2, gym_env_autoreset_mode="same_step")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Counter, model_config={"max_seq_len": 3}))
    if way == "tensors":
        runner, storage = TensorEnvRunner(config=config), RolloutStorage(2 * limit + 1, 2, lookback=1)
        runner.sample(storage)
    else:
        runner = SingleAgentEnvRunner(config=config)
        chunks = runner.sample(num_timesteps=2 * (2 * limit + 1))
        storage = RolloutStorage.from_episodes(pickle.loads(pickle.dumps(chunks)) if way.endswith("sent") else chunks)
    pipeline = default_pipeline(gamma=1.0, lambda_=1.0, standardize_advantages=False)
    for episodes in (storage, storage.episodes()):
        made = pipeline(rl_module=runner.module, batch={}, episodes=episodes, shared_data={})
        assert made["value_targets"][made["loss_mask"]].tolist() == [*[limit] * 2 * limit, 1] * 2
    runner.stop()


def test_a_terminal_observation_without_its_state_is_no_episode_of_a_recurrent_module():
    acting = Acting(**LSTM)
    step = {"obs": acting.obs, "actions": torch.zeros(N), "rewards": torch.zeros(N), "state_in": acting.state}
    step |= {"terminateds": torch.tensor([True, False, False, False]), "truncateds": torch.zeros(N, dtype=torch.bool)}
    storage, truncated = acting.storage, {**step, "truncateds": torch.tensor([False, False, True, False])}
    storage.add_step(step, final_obs=acting.obs)  # nothing is computed from the state after a termination
    storage.add_step(truncated)  # nor without a terminal observation
    storage.finish(acting.obs, acting.state)
    last = [episode.get_extra_model_outputs("state_out", -1)["h"].tolist() for episode in storage.episodes()]
    assert last == [[0.0] * 6] * 5
    storage.add_step(truncated, final_obs=acting.obs)
    storage.finish(acting.obs, acting.state)
    with pytest.raises(LookbackError, match=r"step 2[\s\S]*final_state=state_out"):
        storage.episodes()
    storage.clear()
    storage.add_step(
        truncated, final_obs=acting.obs, final_state={name: leaf + 7 for name, leaf in step["state_in"].items()}
    )
    storage.finish(acting.obs, acting.state)
    last = {
        episode.is_truncated: episode.get_extra_model_outputs("state_out", -1)["c"] for episode in storage.episodes()
    }
    assert last[True].tolist() == [7.0] * 6 and not last[False].any()
    for wrong in ({"h": acting.state["h"]}, {name: leaf[:, :2] for name, leaf in acting.state.items()}):
        with pytest.raises(ColumnError, match="final_state"):
            storage.add_step(truncated, final_obs=acting.obs, final_state=wrong)
    with pytest.raises(ColumnError, match=r"final_state[\s\S]*steps with state_in"):
        RolloutStorage(1, N).add_step(
            {"obs": acting.obs, "truncateds": truncated["truncateds"]}, final_state=acting.state
        )
    assert len(storage) == 1


def test_fragments_that_are_none_are_refused():
    runner = runner_of("next_step")
    while len(set((episodes := runner.sample(num_timesteps=40 * N)).lengths().tolist())) < 2:
        pass
    with pytest.raises(EpisodeError, match="same_step"):
        RolloutStorage.from_episodes(episodes.take([0, 1]))
    storage = Acting().rollout()
    episodes = storage.episodes()
    with pytest.raises(EpisodeError, match="2 fragments"):
        RolloutStorage.from_episodes(VectorEpisodes.joined([episodes, storage.episodes()]))
    with pytest.raises(EpisodeError, match="found:    list"):
        RolloutStorage.from_episodes(list(episodes))
    with pytest.raises(ColumnError, match="did you mean 'rewards'"):
        RolloutStorage.from_episodes(episodes, columns=["reward"])


def test_episodes_need_steps_and_what_follows_them():
    storage = RolloutStorage(2, N)
    with pytest.raises(BatchLayoutError, match="at least one step"):
        storage.episodes()
    storage.add_step({"obs": torch.zeros(N, 2), "actions": torch.zeros(N)})
    with pytest.raises(BatchLayoutError, match=r"call finish\(obs\)"):
        storage.episodes()
    storage.finish(torch.zeros(N, 2))
    with pytest.raises(ColumnError, match="'rewards'"):
        storage.episodes()


def test_wrong_updates_are_named():
    acting = Acting()
    storage, each = acting.rollout(), learner_of(acting.module)
    batch = storage.batch()
    with pytest.raises(ConfigError, match="neither"):
        each.update()
    with pytest.raises(ConfigError, match="both"):
        each.update(episodes=storage.episodes(), batch={KEY: batch})
    with pytest.raises(BatchLayoutError, match=r"default_policy': storage\.batch"):
        each.update(batch=batch)
    with pytest.raises(BatchLayoutError, match="found:    RolloutStorage"):
        each.update(batch=storage)
    with pytest.raises(BatchLayoutError, match=r"'default_policy': RolloutStorage\n.*call batch\(\)"):
        each.update(batch={KEY: storage})
    without_pipeline = Learner(module=acting.module, connector=None, settings=LearnerSettings(), loss=PPOLoss())
    with pytest.raises(ConfigError, match=r"connector=None[\s\S]*default_pipeline[\s\S]*update\(batch"):
        without_pipeline.update(episodes=storage.episodes())
    with pytest.raises(FirstUpdateError, match="row 0 of the batch"):
        each.update(batch={KEY: {**batch, "obs": batch["obs"] + 1}})
    group = LearnerGroup(each)
    assert group.update(batch={KEY: batch})[KEY]["num_rows"] == T * N


def test_errors_about_a_storage_name_its_methods():
    acting = Acting()
    storage, each = acting.rollout(), learner_of(acting.module)
    batch = storage.batch()
    with pytest.raises(ColumnError, match=r"'advantages'[\s\S]*compute_returns\(\)"):
        each.update(batch={KEY: {name: batch[name] for name in storage.columns}})
    recurrent = Acting(lookback=0, **LSTM)
    learner = learner_of(recurrent.module, check_first_update="off")
    with pytest.raises(ColumnError, match=r"sequences\(\) of a RolloutStorage.*obs\[:, None\]"):
        learner.update(batch={KEY: recurrent.rollout().batch()})
    recurrent.storage.clear()
    with pytest.raises(LookbackError, match=r"RolloutStorage\(lookback=1\)"):
        learner.update(episodes=recurrent.rollout().episodes())
    with pytest.raises(ConfigError, match=r"Learner, device[\s\S]*'gpu'"):
        learner_of(acting.module, device="gpu")


def test_a_batch_between_updates_that_leave_columns_out():
    acting, left_out = Acting(), []
    storage = acting.rollout()
    each, plain = (learner_of(acting.module, columns=kind, check_first_update="off") for kind in ("auto", "all"))
    for data in (
        {"episodes": storage.episodes()},
        {"batch": {KEY: storage.batch()}},
        {"episodes": storage.episodes()},
    ):
        results = each.update(**data)
        assert results[KEY] == plain.update(**data)[KEY]
        left_out.append(results["__all_modules__"]["bytes_left_out"])
    assert left_out[:2] == [0, 0] and left_out[2] > 0


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("network", [{}, LSTM], ids=["stateless", "lstm"])
def test_processes_that_share_a_batch_learn_as_one_learner_does(count, network):
    acting = Acting(seed=2, **network)
    storage = acting.rollout()
    batch = storage.sequences(20) if network else storage.batch()
    alone, shared = learner_of(acting.module), learner_of(acting.module)
    group = LearnerGroup(shared, num_learners=count, actor_group=Threads)
    results = group.update(batch={KEY: batch}), alone.update(batch={KEY: batch})
    assert results[0][KEY] == pytest.approx(results[1][KEY], rel=1e-3, abs=1e-5)
    assert results[0]["__all_modules__"]["num_env_steps_trained_lifetime"] == T * N
    for left, right in zip(shared.module[KEY].parameters(), alone.module[KEY].parameters()):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)
    group.stop()


def test_a_batch_for_processes_that_is_none_is_named_here():
    acting = Acting()
    group = LearnerGroup(learner_of(acting.module), num_learners=2, actor_group=Threads)
    batch = acting.rollout().batch()
    with pytest.raises(BatchLayoutError, match=r"Learner\.update\(batch=\.\.\.\)"):
        group.update(batch=batch)
    with pytest.raises(ColumnError, match="column 'actions'"):
        group.update(batch={KEY: {"obs": batch["obs"], "actions": batch["actions"][1:]}})
    with pytest.raises(ConfigError, match="both"):
        group.update(batch={KEY: batch}, episodes=[])
    with pytest.raises(BatchLayoutError, match="at least one module"):
        group.update(batch={})
    group.stop()
