"""How long episodes are and how they end: horizons, whole episodes that go on, rollouts, flags of several agents."""

from __future__ import annotations

import itertools
from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors.authoring import episode_function
from epibatch.connectors.learner import default_pipeline
from epibatch.core.errors import ConfigError, EpibatchWarning, RunnerArgumentError, RunnerError
from epibatch.env_runner import (
    MultiAgentEnv,
    MultiAgentEnvRunner,
    SingleAgentEnvRunner,
    VectorMultiAgentEnv,
    make_multi_agent,
)
from fixture_envs import CountingEnv, FailingEnv, RandomEnv, TurnsEnv

MODES = ("next_step", "same_step", "disabled")


@pytest.fixture
def runner_of():
    made = []

    def make(env, num_envs=1, *, env_config=None, seed=0, several=None, callbacks=None, restart=False, **settings):
        config = PPOConfig().environment(env, env_config=env_config or {}).debugging(seed=seed)
        config.env_runners(num_envs_per_env_runner=num_envs, **settings).rl_module(model_config={"fcnet_hiddens": [4]})
        config.callbacks(**(callbacks or {})).fault_tolerance(restart_failed_sub_environments=restart)
        if several is not None:
            config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p", **several)
        made.append((SingleAgentEnvRunner if several is None else MultiAgentEnvRunner)(config=config))
        return made[-1]

    yield make
    for runner in made:
        runner.stop()


def ends_of(episodes):
    return [(len(episode), episode.is_terminated, episode.is_truncated) for episode in episodes]


class Numbered(CountingEnv):
    """Observes its number, its episode and the step; environment k plays episodes of 3 + 4 k steps."""

    numbers = itertools.count()

    def __init__(self, length=None):
        self.number, self.episode = next(Numbered.numbers), -1
        super().__init__(length or 3 + 4 * self.number)
        self.observation_space = gym.spaces.Box(-1, 1e6, (3,), np.float32)

    def observed(self):
        return np.array([self.number, self.episode, self.steps], np.float32)

    def reset(self, **keywords):
        self.episode += 1
        super().reset(**keywords)
        return self.observed(), {"t": 0}

    def step(self, action):
        _, _, terminated, truncated, _ = super().step(action)
        return self.observed(), float(self.steps), terminated, truncated, {"t": self.steps}


@pytest.fixture
def numbered():
    Numbered.numbers = itertools.count()
    return Numbered


# ------------------------------------------------------------------------------------------- horizons


def limited(config):
    return gym.wrappers.TimeLimit(CountingEnv(length=10**6), 200)


@pytest.mark.parametrize("mode", MODES)
def test_a_horizon_raises_and_lowers_an_environments_own_limit(mode, runner_of):
    for horizon in (300, 50):
        runner = runner_of(limited, 2, horizon=horizon, gym_env_autoreset_mode=mode)
        assert ends_of(runner.sample(num_episodes=3, random_actions=True)) == [(horizon, False, True)] * 3


def test_a_horizon_and_the_task_itself(runner_of):
    ends = [ends_of(runner_of(CountingEnv, horizon=limit).sample(num_episodes=1)) for limit in (4, 5, 9)]
    assert ends == [[(4, False, True)], [(5, True, False)], [(5, True, False)]]
    pendulum = runner_of("Pendulum-v1", gym_env_vectorize_mode="async", horizon=203)
    assert ends_of(pendulum.sample(num_episodes=1)) == [(203, False, True)]


def test_a_horizon_of_several_agents(runner_of):
    runner = runner_of(make_multi_agent("Pendulum-v1"), env_config={"num_agents": 2}, several={}, horizon=11)
    for episode in runner.sample(num_episodes=2):
        assert (episode.env_t, episode.is_terminated, episode.is_truncated) == (11, False, True)
        assert [len(part) for part in episode.agent_episodes.values()] == [11, 11]


def test_agents_that_wait_at_a_horizon_end_with_their_last_observation(runner_of):
    settings = {"env_config": {"lengths": (30, 40)}, "several": {}, "seed": 2, "explore": False}
    torch.manual_seed(0)
    (whole,) = runner_of(TurnsEnv, **settings).sample(num_episodes=1)
    torch.manual_seed(0)
    (part,) = runner_of(TurnsEnv, horizon=8, **settings).sample(num_episodes=1)
    assert (part.env_t, part.is_terminated, part.is_truncated) == (8, False, True)
    for agent, single in part.agent_episodes.items():
        rows = single.get_observations()
        np.testing.assert_array_equal(rows, whole.agent_episodes[agent].get_observations(slice(0, len(rows))))
        assert single.is_done and len(single.get_actions()) == len(rows) - 1
    counts = [len(single) for single in whole[:8].agent_episodes.values()]
    assert [len(single) for single in part.agent_episodes.values()] == counts and sum(counts) < 24  # some have waited


@pytest.mark.parametrize("setting", ["horizon", "random_first_horizon"])
def test_settings_that_cannot_be_held(setting, runner_of):
    with pytest.raises(ConfigError, match=rf"env_runners\.{setting}[\s\S]*env_config={{'max_episode_steps'"):
        runner_of("CartPole-v1", gym_env_vectorize_mode="vector_entry_point", **{setting: 5})
    with pytest.raises(ConfigError, match=r"soft_horizon\n.*a horizon with it"):
        runner_of(CountingEnv, soft_horizon=True)
    with pytest.raises(ConfigError, match=r"no wrapper that counts steps[\s\S]*Horizon"):
        runner_of(CountingEnv, env_resets_itself=True, missing_final_obs="keep", **{setting: 5})


def test_first_episodes_are_shortened_at_random(runner_of):
    def lengths(seed=3, **settings):
        runner = runner_of(
            CountingEnv, 16, env_config={"length": 99}, random_first_horizon=40, seed=seed, horizon=50, **settings
        )
        by_env = defaultdict(list)
        samples = runner.sample(num_timesteps=16 * 101, random_actions=True)
        for chunk, episode in zip(samples.chunks, samples):
            by_env[chunk.env].append((len(episode), episode.is_truncated))
        assert all(parts[0][1] and parts[1] == (50, True) for parts in by_env.values())
        firsts = [parts[0][0] for parts in by_env.values()]
        return firsts, [len(episode) for episode in runner.sample(num_episodes=16, random_actions=True)]

    firsts, later = lengths()
    assert 1 <= min(firsts) <= 10 and 30 <= max(firsts) <= 40 and len(set(firsts)) > 8  # uniform in 1..40
    assert later == [50] * 16  # a reset without seed is no start
    assert lengths()[0] == firsts != lengths(seed=4)[0]
    config = PPOConfig().env_runners(random_first_horizon=40, horizon=50).get_evaluation_config_object()
    assert (config.random_first_horizon, config.horizon) == (None, 50)


@pytest.mark.parametrize("mode", MODES)
def test_a_soft_horizon_ends_episodes_and_the_environment_goes_on(mode, runner_of):
    runner = runner_of(
        lambda config: gym.wrappers.TimeLimit(CountingEnv(length=23), 9),
        2,
        horizon=10,
        soft_horizon=True,
        gym_env_autoreset_mode=mode,
        env_to_module_connector=[{"piece": "mean_std_filter"}],
    )
    samples = [runner.sample(num_timesteps=steps) for steps in (30, 60)]
    for env in range(2):
        own = [part for sample in samples for chunk, part in zip(sample.chunks, sample) if chunk.env == env]
        assert ends_of(own)[:5] == [(n, end, False) for n, end in zip((10, 5, 5, 3, 10), (False,) * 3 + (True, False))]
        assert [part.t_started for part in own[:5]] == [0, 10, 15, 20, 0] and own[1].id_ == own[2].id_
        assert len({own[i].id_ for i in (0, 1, 3, 4)}) == 4 and own[2].return_before == 5 and own[3].return_before == 0
        for before, after in itertools.pairwise(own[:4]):  # one observation, which the filter counted and wrote once
            np.testing.assert_array_equal(before.get_observations(-1), after.get_observations(0))
    statistics = runner.pipelines["env_to_module"].connectors[0].get_state()
    assert statistics["synchronised"]["count"] + statistics["since"]["count"] == 2 * (45 + 2)  # steps and resets
    metrics = runner.get_metrics()
    assert (metrics["num_episodes"], metrics["episode_len_max"], metrics["num_env_steps_sampled"]) == (10, 10, 90)


@pytest.mark.parametrize("several", [False, True])
def test_what_is_learned_from_a_soft_horizon_is_what_was_acted_on(several):
    config = PPOConfig().environment(RandomEnv, env_config={"lengths": (20, 50)})
    if several:
        config.environment(TurnsEnv, env_config={"lengths": (20, 50)})
        config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
    config.env_runners(horizon=10, soft_horizon=True, num_envs_per_env_runner=2)
    config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 7, "fcnet_hiddens": [8]})
    config.training(train_batch_size=100, minibatch_size=64, num_epochs=1)
    algo = config.debugging(seed=1, check_first_update="error").build_algo()
    results = algo.train()["env_runners"]
    assert results["episode_len_max"] == 10 and results["num_episodes"] >= 8
    algo.stop()


def test_rows_of_several_agents_do_not_depend_on_a_soft_horizon(runner_of):
    def sampled(**settings):
        torch.manual_seed(0)
        settings = {"env_config": {"lengths": (39, 39)}, "several": {}, "explore": False, "seed": 1, **settings}
        runner = runner_of(TurnsEnv, **settings)
        episodes = [episode for steps in (33, 41, 20) for episode in runner.sample(num_timesteps=steps)]
        rows = defaultdict(list)
        for segment in (segment for episode in episodes for segment in episode.segments):
            part = segment.episode
            assert part.multi_agent_episode_id in {episode.id_ for episode in episodes}
            columns = part.get_observations(slice(0, len(part))), part.get_rewards(), part.get_actions()
            rows[segment.agent_id].append(np.column_stack(columns))
        return episodes, {agent: np.concatenate(parts) for agent, parts in rows.items()}, runner.get_metrics()

    _, expected, whole = sampled()
    episodes, rows, split = sampled(horizon=10, soft_horizon=True)
    assert rows.keys() == expected.keys() and all(np.array_equal(rows[agent], expected[agent]) for agent in rows)
    assert [(part.env_t_started, len(part), part.is_done) for part in episodes[:5]] == [
        *[(t, 10, False) for t in (0, 10, 20)],
        (30, 3, False),
        (33, 6, True),
    ]
    assert len({part.id_ for part in episodes[:5]}) == 4 and split["num_episodes"] == 9 > whole["num_episodes"] == 2


def test_an_agent_that_ends_at_a_soft_horizon_has_a_processed_last_observation(runner_of):
    runner = runner_of(
        Team,
        env_config={"shared": (), "own_flags": True},
        several={},
        horizon=2,
        soft_horizon=True,
        env_to_module_connector=[{"piece": "flatten_observations"}],
    )
    for part in runner.sample(num_timesteps=8):
        for segment in part.segments:
            rows = segment.episode.get_observations()
            assert rows.shape[1] == 9 and rows.argmax(1).tolist() == list(segment.steps[-len(rows) :])


@pytest.mark.parametrize("several", [None, {}])
@pytest.mark.parametrize("calls", [(9,), (5, 4)])
def test_a_failure_right_after_a_soft_horizon_makes_no_episode(calls, several, runner_of):
    def make(config):
        return FailingEnv(step=6, length=99)

    env = make if several is None else make_multi_agent(make)
    runner = runner_of(env, several=several, restart=True, horizon=5, soft_horizon=True)
    parts = [part for steps in calls for part in runner.sample(num_timesteps=steps)]
    assert ends_of(parts) == [(5, False, False), (4, False, False)] and "env_failure" not in str(parts[0].get_infos(-1))
    metrics = runner.get_metrics()
    assert (metrics["num_episodes"], metrics["episode_len_min"]) == (1, 5)


@pytest.mark.parametrize("several", [None, {}])
@pytest.mark.parametrize("before", [0, 6])
def test_an_episode_at_its_soft_horizon_is_kept_when_another_environment_fails(before, several, runner_of):
    numbers = itertools.count()

    def make(config):
        return FailingEnv(step=5 if next(numbers) == 1 else None, length=99)

    env = make if several is None else make_multi_agent(make)
    runner = runner_of(env, 2, several=several, horizon=5, soft_horizon=True)
    runner.sample(num_timesteps=before)
    with pytest.raises(ConnectionError):
        runner.sample(num_timesteps=40)
    (whole,), (part, *_) = runner.sample(num_episodes=1), runner.sample(num_timesteps=1)
    assert len(whole) == 5 and len(part) == (2 if before else 1)  # a part is not whole, and waits
    assert runner.get_metrics()["num_episodes"] == (3 if before else 1)


class Two(torch.nn.Linear):
    """A critic whose value is 2 everywhere."""

    def compute_values(self, batch, embeddings=None):
        return torch.full(batch["obs"].shape[:-1], 2.0)


def test_no_end_is_in_a_batch_and_values_are_bootstrapped_at_each(runner_of):
    config = PPOConfig().environment(CountingEnv).env_runners(no_done_at_end=True)
    pieces = config.build_learner_connector().connectors[:1]
    assert [type(piece).__name__ for piece in pieces] == ["NeverTerminate"]
    episodes = runner_of(CountingEnv, 2).sample(num_timesteps=24)  # episodes of 5 steps that terminate
    pipeline = default_pipeline(connectors=pieces, gamma=0.5, lambda_=1.0, standardize_advantages=False)
    batch = pipeline(rl_module=Two(1, 1), batch={}, episodes=episodes)
    assert not batch["terminateds"].any() and not batch["truncateds"].any()
    assert [len(part) for part in episodes] == (batch["loss_mask"] == 0).nonzero().flatten().diff(
        prepend=torch.tensor([-1])
    ).sub(1).tolist()
    expected = []
    for part in episodes:  # the discounted sum of the rewards, and of the value 2 after the last step
        expected += [sum(0.5**k for k in range(n)) + 0.5**n * 2 - 2 for n in range(len(part), 0, -1)]
    np.testing.assert_allclose(batch["advantages"][batch["loss_mask"]], expected, rtol=1e-6)


# ------------------------------------------------------------------------------------- whole episodes


def test_chunks_of_exact_fragments(runner_of):
    runner = runner_of(CountingEnv, env_config={"length": 7}, rollout_fragment_length=20)
    first, second = runner.sample(), runner.sample()
    assert [len(part) for part in first] == [7, 7, 6] and [len(part) for part in second] == [1, 7, 7, 5]
    assert first[2].id_ == second[0].id_ and second[0].t_started == 6


def test_a_piece_of_episodes_never_sees_two_at_once(runner_of):
    seen = []

    @episode_function
    def record(episode):
        seen.append((episode.id_, episode.get_observations()[:, 0].tolist()))

    chunks = runner_of(CountingEnv, 2, env_config={"length": 7}).sample(num_timesteps=40)
    default_pipeline(connectors=[record()])(rl_module=Two(1, 1), batch={}, episodes=chunks)
    assert [(id_, len(rows) - 1) for id_, rows in seen] == [(part.id_, len(part)) for part in chunks]
    assert all(rows == list(range(len(rows))) for _, rows in seen)


def test_whole_episodes_without_end_warn_once(runner_of):
    runner = runner_of(CountingEnv, 20, env_config={"length": 5_020})
    with pytest.warns(EpibatchWarning, match=r"none that ended in the last 100,000 steps[\s\S]*horizon") as caught:
        runner.sample(num_episodes=1, random_actions=True)
    assert len(caught) == 1 and caught[0].filename == __file__


@pytest.mark.parametrize("mode", MODES)
def test_running_episodes_go_on_and_none_is_lost_or_doubled(mode, numbered, runner_of):
    runner = runner_of(numbered, 3, keep_running_episodes=True, gym_env_autoreset_mode=mode)
    seen = defaultdict(list)
    for call in range(24):
        episodes = runner.sample(num_episodes=1 + call % 4)
        assert len(episodes) == 1 + call % 4
        for episode in episodes:
            rows = episode.get_observations()
            number, count = int(rows[0, 0]), 3 + 4 * int(rows[0, 0])
            assert episode.is_terminated and episode.t_started == 0 and len(episode) == count
            np.testing.assert_array_equal(rows, [[number, rows[0, 1], t] for t in range(count + 1)])
            np.testing.assert_array_equal(episode.get_rewards(), np.arange(1, count + 1))
            assert [info["t"] for info in episode.get_infos()] == list(range(count + 1))
            assert len(episode.get_extra_model_outputs("action_logp")) == count
            seen[number].append(int(rows[0, 1]))
    assert all(numbers == list(range(len(numbers))) for numbers in seen.values())
    steps = {number: (3 + 4 * number + (mode == "next_step")) * len(numbers) for number, numbers in seen.items()}
    assert max(steps.values()) - min(steps.values()) <= 12  # slow ones have had their share of the steps
    parts = runner.sample(num_timesteps=30)  # cut episodes do not become whole: the next call resets
    assert {episode.t_started for episode in parts} == {0}
    assert {int(episode.get_observations(0)[2]) for episode in runner.sample(num_episodes=3)} == {0}


def test_running_episodes_of_several_agents_go_on(numbered, runner_of):
    runner = runner_of(make_multi_agent(numbered), 3, several={}, keep_running_episodes=True)
    seen = defaultdict(list)
    for call in range(12):
        episodes = runner.sample(num_episodes=1 + call % 3)
        assert len(episodes) == 1 + call % 3 and all(episode.env_t_started == 0 for episode in episodes)
        for episode in episodes:
            rows = episode.get_observations(slice(None))[0]
            number, count = int(rows[0, 0]), 3 + 4 * int(rows[0, 0])
            np.testing.assert_array_equal(rows, [[number, rows[0, 1], t] for t in range(count + 1)])
            seen[number].append(int(rows[0, 1]))
    assert len(seen) == 3 and all(numbers == list(range(len(numbers))) for numbers in seen.values())


@pytest.mark.parametrize("amounts", [{"num_episodes": 1}, {"num_timesteps": 4}])
def test_infos_that_a_callback_changed_stay_so_in_the_next_chunks(amounts, numbered, runner_of):
    def on_episode_step(episode, **kwargs):
        episode.get_infos(-1)["note"] = episode.t

    runner = runner_of(numbered, 3, keep_running_episodes=True, callbacks={"on_episode_step": on_episode_step})
    for _ in range(8):
        for episode in runner.sample(**amounts):
            start, t = episode.t_started, episode.t
            assert [info.get("note", 0) for info in episode.get_infos()] == list(range(start, t + 1))


@pytest.mark.parametrize("several", [None, {}])
def test_episodes_that_a_call_did_not_need_wait_for_one_like_it(several, runner_of):
    env = CountingEnv if several is None else make_multi_agent(CountingEnv)
    mode = {"gym_env_autoreset_mode": "same_step"} if several is None else {}
    runner = runner_of(env, 3, several=several, env_config={"length": 3}, keep_running_episodes=True, **mode)

    def stepped(call, **arguments):
        before = runner.num_env_steps_sampled_lifetime
        lengths = [len(episode) for episode in call(**arguments)]
        return runner.num_env_steps_sampled_lifetime - before, lengths

    state = runner.get_state()
    for drop in ({"random_actions": True}, {"force_reset": True}, {}):
        assert stepped(runner.sample, num_episodes=1, force_reset=True) == (9, [3])
        for _ in range(1 if several is None else 2):  # of several agents the first one resets
            taken, lengths = stepped(runner.step)
        assert (taken, lengths) == (3, [1, 1, 1])
        if not drop:
            runner.set_state(state)
        assert stepped(runner.sample, num_episodes=2, **drop) == (9, [3, 3])
        assert stepped(runner.sample, num_episodes=1, **drop) == ((9, [3]) if "force_reset" in drop else (0, [3]))


# ------------------------------------------------------------------------------------------- rollouts


@pytest.mark.parametrize("mode", MODES)
def test_a_rollout_of_a_fixed_number_of_steps(mode, numbered, runner_of):
    runner = runner_of(numbered, 2, gym_env_autoreset_mode=mode)
    columns = runner.rollout(12, random_actions=True)
    gap = [0] if mode == "next_step" else []  # the step that only resets
    clocks = [[*[*range(3), *gap] * 4][:12], [*range(7), *gap, *range(7)][:12]]
    steps = [[*[1] * length, *gap] * 4 for length in (3, 7)]
    mask = np.array([row[:12] for row in steps], bool).T
    np.testing.assert_array_equal(columns["mask"], mask)
    np.testing.assert_array_equal(columns["obs"][..., 2], np.where(mask, np.array(clocks).T, 0))
    np.testing.assert_array_equal(columns["new_obs"][..., 2], np.where(mask, np.array(clocks).T + 1, 0))
    np.testing.assert_array_equal(columns["rewards"], np.where(mask, np.array(clocks).T + 1, 0))
    np.testing.assert_array_equal(columns["terminateds"], mask & (columns["rewards"] == [3, 7]))
    assert not columns["truncateds"].any() and columns["actions"].shape == (12, 2)


def test_rollouts_that_break(numbered, runner_of):
    runner = runner_of(numbered, 3)
    at_any, at_all = runner.rollout(99, break_when_any_done=True), runner.rollout(99, break_when_all_done=True)
    assert at_any["mask"].shape == (3, 3) and at_any["mask"].all() and at_any["terminateds"].sum() == 1
    np.testing.assert_array_equal(at_all["mask"], np.arange(11)[:, None] < [3, 7, 11])
    assert at_all["terminateds"].sum() == 3 and at_all["terminateds"][[2, 6, 10], [0, 1, 2]].all()
    turned = runner.rollout(9, break_when_all_done=True, time_major=False)
    assert turned["obs"].shape == (3, 9, 3) and turned["action_dist_inputs"].shape == (3, 9, 2)
    for wrong in ({"max_steps": 0}, {"max_steps": 5, "break_when_any_done": True, "break_when_all_done": True}):
        with pytest.raises(RunnerArgumentError, match="at most one way to break"):
            runner.rollout(**wrong)


class Turns(MultiAgentEnv):
    """b acts at every second step; environment number i ends after 3 + 2 i steps; rewards and observations are t."""

    def __init__(self, config):
        super().__init__()
        self.length = 3 + 2 * config.vector_index
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_space, self.action_space = gym.spaces.Box(0, 99, (1,)), gym.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {}

    def step(self, actions):
        self.t += 1
        over = self.t == self.length
        agents = self.agents if over or self.t % 2 == 0 else ["a"]
        rewards = dict.fromkeys(self.agents, float(self.t))
        return {agent: np.float32([self.t]) for agent in agents}, rewards, {"__all__": over}, {}, {}


def turns(num_steps, episodes=99):
    """Return agent -> (row, environment) -> observation, the next one, reward, terminated: step by step."""
    out = {"a": {}, "b": {}}
    for env, length in enumerate((3, 5)):
        for first in list(range(0, num_steps, length + 1))[:episodes]:  # a step that only resets is between
            for agent, each in (("a", 1), ("b", 2)):
                for t in range(0, length, each):
                    after = min(t + each, length)
                    if first + after <= num_steps:
                        gained = sum(range(t + 1, after + 1))
                        out[agent][first + t, env] = (t, after, gained, after == length)
    return out


@pytest.mark.parametrize("breaks", [{}, {"break_when_any_done": True}, {"break_when_all_done": True}])
@pytest.mark.parametrize("random_actions", [True, False])
def test_rollouts_of_several_agents(runner_of, breaks, random_actions):
    runner = runner_of(Turns, 2, several={})
    columns = runner.rollout(13, random_actions=random_actions, **breaks)
    steps = {(): 13, ("break_when_any_done",): 3, ("break_when_all_done",): 5}[tuple(breaks)]
    expected = turns(steps, 1 if "break_when_all_done" in breaks else 99)
    assert [*columns] == ["a", "b"]
    for agent, own in columns.items():
        assert {len(column) for column in own.values()} == {steps} and own["mask"].shape == (steps, 2)
        assert ("action_logp" in own) == (not random_actions) and not {"env_t", "agent_id"} & {*own}
        found = {
            (row, env): (*(own[name][row, env].item() for name in ("obs", "new_obs", "rewards", "terminateds")),)
            for row, env in np.argwhere(own["mask"]).tolist()
        }
        assert found == expected[agent]
        assert not any(own[name][~own["mask"]].any() for name in ("obs", "new_obs", "rewards", "actions"))
    turned = runner.rollout(13, time_major=False, random_actions=True)
    assert turned["b"]["obs"].shape == (2, 13, 1) and turned["b"]["mask"].sum() == len(turns(13)["b"])
    assert {chunk.env_t_started for chunk in runner.sample(num_timesteps=20)} == {0}


def test_a_rollout_that_fails_or_is_refused(runner_of):
    class Failing(CountingEnv):
        fails = False

        def reset(self, **keywords):
            if Failing.fails:
                raise ConnectionError("no answer")
            return super().reset(**keywords)

    def on_sample_end(env_runner, **kwargs):
        with pytest.raises(RunnerError, match="one call at a time"):
            env_runner.rollout(2, random_actions=True)

    runner = runner_of(Failing, callbacks={"on_sample_end": on_sample_end})
    assert [runner.sample(num_timesteps=3)[0].t_started for _ in range(2)] == [0, 3]
    Failing.fails = True
    with pytest.raises(ConnectionError):
        runner.rollout(2)
    Failing.fails = False
    assert runner.sample(num_timesteps=3)[0].t_started == 0


# ------------------------------------------------------------------------- flags of several agents


class Team(MultiAgentEnv):
    """Agent number i ends after 2 + i steps; `shared` names what is one value for all."""

    def __init__(self, config):
        super().__init__()
        self.shared, self.own_flags = config["shared"], config.get("own_flags", False)
        self.agents = self.possible_agents = ["a", "b", "c"]
        self.observation_space = gym.spaces.Dict({"t": gym.spaces.Discrete(9)})
        self.action_space = gym.spaces.Discrete(2)

    def shown(self, name, value):
        return value if name in self.shared else dict.fromkeys(self.alive(), value)

    def alive(self):
        return [agent for i, agent in enumerate(self.possible_agents) if not self.own_flags or self.t <= 2 + i]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.shown("obs", {"t": 0}), {}

    def step(self, action_dict):
        self.t += 1
        rewards, over = self.shown("rewards", 0.5 * self.t), self.t == 4
        if self.own_flags:
            ended = {agent: self.t == 2 + i for i, agent in enumerate(self.possible_agents)}
            return self.shown("obs", {"t": self.t}), rewards, {**ended, "__all__": False}, {}, {}
        flags = (over, False) if "flags" in self.shared else ({"__all__": over}, {"__all__": False})
        return self.shown("obs", {"t": self.t}), rewards, *flags, {}


@pytest.mark.parametrize("shared", list(itertools.product(*[("", name) for name in ("obs", "rewards", "flags")])))
def test_values_of_all_agents_beside_those_by_agent(shared, runner_of):
    (episode,) = runner_of(Team, env_config={"shared": shared}, several={}).sample(num_episodes=1)
    assert episode.is_terminated and episode.env_t == 4 and list(episode.agent_episodes) == ["a", "b", "c"]
    for part in episode.agent_episodes.values():
        assert part.get_observations()["t"].tolist() == [0, 1, 2, 3, 4] and part.is_terminated
        assert part.get_rewards().tolist() == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize(("episode_end", "length"), [("all", 4), ("any", 2)])
def test_an_episode_ends_with_all_agents_or_with_any(episode_end, length, runner_of):
    settings = {"shared": (), "own_flags": True}
    runner = runner_of(Team, env_config=settings, several={"episode_end": episode_end})
    (episode,) = runner.sample(num_episodes=1)
    assert episode.env_t == length and episode.is_terminated
    assert [len(part) for part in episode.agent_episodes.values()] == [min(2 + i, length) for i in range(3)]
    assert all(part.is_terminated for part in episode.agent_episodes.values())


def test_shared_values_are_those_of_the_agents_that_are_left():
    envs = VectorMultiAgentEnv([lambda: Team({"shared": ("obs", "rewards"), "own_flags": True})], episode_end="all")
    assert list(envs.reset()[0][0]) == ["a", "b", "c"]
    steps = [envs.step([{}])[:2] for _ in range(4)]
    assert [list(observations[0]) for observations, _ in steps] == [["a", "b", "c"]] * 2 + [["b", "c"], ["c"]]
    assert [rewards[0] for _, rewards in steps][2:] == [{"b": 1.5, "c": 1.5}, {"c": 2.0}]
    assert envs.ended.tolist() == [True]
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("settings", [{"random_first_horizon": 9, "horizon": 12}, {"horizon": 6, "soft_horizon": True}])
def test_a_run_is_resumed_exactly(settings, several, tmp_path):
    config = PPOConfig().environment(TurnsEnv if several else RandomEnv).debugging(seed=0)
    if several:
        config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
    settings = {"keep_running_episodes": True, "batch_mode": "complete_episodes", **settings}
    config.env_runners(num_envs_per_env_runner=4, **settings).rl_module(model_config={"fcnet_hiddens": [4]})
    algo = config.training(train_batch_size=60, minibatch_size=30, num_epochs=1).build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "checkpoint", end_episodes=True)
    resumed = type(algo).from_checkpoint(tmp_path / "checkpoint", config=config)
    for _ in range(2):
        left, right = (one.train()["env_runners"] for one in (algo, resumed))
        for name in ("episode_return_mean", "episode_len_mean", "num_episodes_lifetime"):
            assert left[name] == right[name]
    algo.stop()
    resumed.stop()
