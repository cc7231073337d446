"""Random schedules: in every mode, cut anywhere, with failures or none, episodes are those of one loop by hand."""

from __future__ import annotations

from collections import Counter, defaultdict

import gymnasium as gym
import numpy as np
from fixture_cases import random_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, SingleAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode

AGENTS = ("a", "b", "c")
SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
ACTIONS = gym.spaces.Discrete(3)


class Plan:
    """All that happens in an episode: who observes, rewards and flags of each step, and which call fails (0: reset)."""

    def __init__(self, seed, episode, faults, agents, horizon=None):
        rng = np.random.default_rng((seed, episode))
        self.length = int(rng.integers(1, 8))
        self.fails_at = int(rng.integers(0, 8)) if rng.random() < faults else None
        alive = set(agents)
        self.seen = [[agent for agent in agents if agent == "a" or rng.random() < 0.5]]
        self.rewards, self.flags = [], []
        for t in range(1, self.length + 1):
            over = t == self.length
            seen = [agent for agent in sorted(alive) if over or rng.random() < 0.6]
            self.rewards.append({agent: float(rng.integers(-8, 9)) / 4 for agent in seen})
            self.flags.append(({"__all__": over and rng.random() < 0.5}, {"__all__": False}))
            self.flags[-1][1]["__all__"] = over and (rng.random() < 0.3 or not self.flags[-1][0]["__all__"])
            if seen and seen[-1] != "a" and rng.random() < 0.2 and not over:
                self.flags[-1][0][seen[-1]] = True
                alive.discard(seen[-1])
            self.seen.append(seen)
        self.is_cut = horizon is not None and horizon < self.length
        if self.is_cut:
            self.length = horizon


class Player:
    """Plays the plans of its seed one after the other; a call that is to fail raises."""

    agents = ("a",)

    def begin(self, seed):
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode, self.t, self.received = self.episode + 1, 0, dict.fromkeys(self.agents, -1)
        self.plan = Plan(self.seed, self.episode, self.faults, self.agents)
        return self.shown()

    def advance(self, actions):
        self.t += 1
        self.received.update(actions)
        return self.shown()

    def shown(self):
        if self.plan.fails_at == self.t:
            raise ValueError("planned")
        return {agent: self.row(agent) for agent in self.plan.seen[self.t]}

    def row(self, agent):
        return np.array([self.seed, self.episode, self.t, self.received[agent]], np.float64)


class OneAgent(Player, gym.Env):
    observation_space, action_space = SPACE, ACTIONS

    def __init__(self, config):
        self.faults = config["faults"]

    def reset(self, *, seed=None, options=None):
        self.begin(seed)
        return self.row("a"), {"t": 0}

    def step(self, action):
        self.advance({"a": action})
        terminateds, truncateds = self.plan.flags[self.t - 1]
        reward = self.plan.rewards[self.t - 1].get("a", 0.0)
        return self.row("a"), reward, terminateds["__all__"], truncateds["__all__"], {"t": self.t}


class Several(Player, MultiAgentEnv):
    agents = AGENTS

    def __init__(self, config):
        super().__init__()
        self.faults = config["faults"]
        self.possible_agents = list(AGENTS)
        self.observation_spaces, self.action_spaces = dict.fromkeys(AGENTS, SPACE), dict.fromkeys(AGENTS, ACTIONS)

    def reset(self, *, seed=None, options=None):
        return self.begin(seed), {}

    def step(self, action_dict):
        return self.advance(action_dict), self.plan.rewards[self.t - 1], *self.plan.flags[self.t - 1], {}


class Seen(ConnectorV2):
    """Notes the newest observations that it is shown, by agent."""

    def __init__(self, *args, seen=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = seen

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for single in self.single_agent_episode_iterator(episodes):
            self.seen[(single.agent_id, *single.get_observations(-1)[:3])] += 1
        return batch


def played(env, schedule):
    """Sample as the schedule says; returns the chunks, and how often the pipeline saw each observation."""
    seen = Counter()
    config = (
        PPOConfig()
        .environment(env, env_config={"faults": schedule["faults"]})
        .env_runners(
            num_envs_per_env_runner=schedule["num_envs"],
            num_envs_per_worker=schedule["per_process"] or 1,
            gym_env_vectorize_mode="async" if schedule["per_process"] else "sync",
            gym_env_autoreset_mode=schedule["mode"] if env is OneAgent else None,
            horizon=schedule["horizon"],
            keep_running_episodes=schedule["keeps"],
            env_to_module_connector=lambda *args, **kwargs: Seen(seen=seen),
        )
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=schedule["seed"])
        .fault_tolerance(restart_failed_sub_environments=True)
    )
    if env is Several:
        config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
    runner = (SingleAgentEnvRunner if env is OneAgent else MultiAgentEnvRunner)(config=config)
    try:
        calls = []
        for amount in schedule["amounts"]:
            if schedule["amount"] == "masks" and amount < 16:  # its bits are the mask
                calls.append(runner.step(mask=(amount >> np.arange(schedule["num_envs"])) % 2 == 1))
            else:
                calls.append(runner.sample(**{schedule["amount"].replace("masks", "num_timesteps"): amount}))
    finally:
        runner.stop()
    if schedule["amount"] == "num_episodes":
        assert [len(call) for call in calls] == schedule["amounts"] and all(e.is_done for call in calls for e in call)
    else:
        steps = runner.get_metrics()["num_env_steps_sampled_lifetime"]
        assert steps == sum(len(e) for call in calls for e in call)
        assert schedule["amount"] == "masks" or steps >= sum(schedule["amounts"])
    return [episode for call in calls for episode in call], seen


def check_streams(found, schedule, agents):
    """Without a gap each stream of a seed has its episodes up to its failure, and as many go on as there are places."""
    streams = defaultdict(dict)
    for (seed, episode), (steps, done) in found.items():
        plan = Plan(seed, episode, schedule["faults"], agents, schedule["horizon"])
        assert done == (steps == plan.length) or plan.fails_at == steps + 1
        assert plan.fails_at is None or steps < plan.fails_at
        streams[seed][episode] = (steps, done, plan)
    if schedule["amount"] == "num_episodes":
        assert not schedule["keeps"] or all(sorted(own) == list(range(len(own))) for own in streams.values())
        return
    going_on = 0
    for seed, episodes in streams.items():
        assert sorted(episodes) == list(range(len(episodes)))
        assert all(steps == plan.length for number, (steps, _, plan) in episodes.items() if number < len(episodes) - 1)
        steps, done, plan = episodes[len(episodes) - 1]
        after = (
            Plan(seed, len(episodes), schedule["faults"], agents, schedule["horizon"]) if steps == plan.length else plan
        )
        going_on += after.fails_at is None or after.fails_at > (1 if after is not plan else steps + 1)
    assert going_on <= schedule["num_envs"]


def schedules():
    return st.fixed_dictionaries(
        {
            "num_envs": st.integers(1, 4),
            "per_process": st.sampled_from([None, None, 1, 2, 3]),
            "mode": st.sampled_from(["next_step", "same_step", "disabled"]),
            "faults": st.sampled_from([0.0, 0.3]),
            "horizon": st.sampled_from([None, None, 3]),
            "keeps": st.booleans(),
            "seed": st.integers(0, 10_000),
        }
    ).flatmap(
        lambda drawn: st.sampled_from([("num_timesteps", 25, 6), ("num_episodes", 5, 6), ("masks", 20, 25)]).flatmap(
            lambda kind: st.lists(st.integers(1, kind[1]), min_size=1, max_size=kind[2]).map(
                lambda amounts: {**drawn, "amount": kind[0], "amounts": amounts}
            )
        )
    )


@settings(max_examples=random_examples(5))
@given(schedules())
def test_one_agent(schedule):
    chunks, seen = played(OneAgent, schedule)
    found, shown = {}, Counter()
    for chunk in chunks:
        rows, start = chunk.get_observations(), chunk.t_started
        key = tuple(rows[0, :2].astype(int))
        plan = Plan(*key, schedule["faults"], ("a",), schedule["horizon"])
        before, done = found.get(key, (0, False))
        steps = before + len(chunk)
        assert (before, done) == (start, False) and len(chunk) > 0
        np.testing.assert_array_equal(rows[:, :3], [[*key, t] for t in range(start, steps + 1)])
        np.testing.assert_array_equal(rows[1:, 3], chunk.get_actions())
        assert chunk.get_rewards().tolist() == [plan.rewards[t].get("a", 0.0) for t in range(start, steps)]
        assert [info["t"] for info in chunk.get_infos()] == list(range(start, steps + 1))
        ends = (False, "env_failure" in chunk.get_infos(-1))
        if steps == plan.length:
            ends = plan.flags[steps - 1][0]["__all__"], plan.flags[steps - 1][1]["__all__"] or plan.is_cut
        assert (chunk.is_terminated, chunk.is_truncated) == ends
        shown.update((None, *row[:3]) for row in rows[start > 0 :].tolist())
        found[key] = steps, chunk.is_done
    check_streams(found, schedule, ("a",))
    assert max(seen.values()) == 1 and shown.keys() <= seen.keys() and set(shown.values()) <= {1}


@settings(max_examples=random_examples(5))
@given(schedules())
def test_several_agents(schedule):
    chunks, seen = played(Several, schedule)
    found, joined = {}, {}
    for chunk in chunks:
        first = next(segment.episode for segment in chunk.segments)
        key = tuple(first.get_observations(0)[:2].astype(int))
        before, done = found.get(key, (0, False))
        assert (before, done) == (chunk.env_t_started, False) and len(chunk) > 0
        found[key] = before + len(chunk), chunk.is_done
        if key in joined:
            joined[key].concat_episode(chunk)
        else:
            joined[key] = chunk
    check_streams(found, schedule, AGENTS)
    assert max(seen.values()) == 1
    for key, episode in joined.items():
        steps, done = found[key]
        expected = plain_loop(Plan(*key, schedule["faults"], AGENTS, schedule["horizon"]), key, steps, done)
        assert (episode.is_terminated, episode.is_truncated) == (expected.is_terminated, expected.is_truncated)
        assert episode.get_return(include_hanging_rewards=True) == expected.get_return(include_hanging_rewards=True)
        assert set(episode.agent_episodes) == set(expected.agent_episodes)
        for agent, single in expected.agent_episodes.items():
            actual = episode.agent_episodes[agent]
            rows = actual.get_observations()
            np.testing.assert_array_equal(rows[:, :3], single.get_observations()[:, :3])
            np.testing.assert_array_equal(rows[1:, 3], actual.get_actions())
            np.testing.assert_array_equal(actual.get_rewards(), single.get_rewards())
            assert (actual.is_terminated, actual.is_truncated) == (single.is_terminated, single.is_truncated)
            assert all(seen[(agent, *row[:3])] for row in rows)


def plain_loop(plan, key, steps, done):
    """The episode as one loop would build it."""
    episode = MultiAgentEpisode()

    def observed(t):
        return {agent: np.array([*key, t, -1.0]) for agent in plan.seen[t]}

    episode.add_env_reset(observations=observed(0))
    for t in range(1, steps + 1):
        terminateds, truncateds = plan.flags[t - 1]
        flags = {"terminateds": terminateds, "truncateds": truncateds}
        actions = dict.fromkeys(episode.get_agents_to_act(), 0)
        episode.add_env_step(observed(t), actions, plan.rewards[t - 1], **flags)
    if done and not episode.is_done:
        episode.truncate()
    return episode
