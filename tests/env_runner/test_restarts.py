"""Environments that raise, lie, die or hang are made again one by one, and no step is lost or counted twice."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow, slow_but

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import EpibatchWarning, EpisodeStateError, RunnerError, SpaceError
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, SingleAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode

LENGTH = 7
SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
MODES = ["next_step", "same_step", "disabled"]


class Faulty:
    """Every k-th step or reset of all environments of a process fails; observations say whose they are, and when."""

    made = calls = 0

    def setup(self, config):
        self.faults = config
        Faulty.made += 1
        self.number, self.episode, self.t = os.getpid() * 10_000 + Faulty.made, 0, 0

    def lies(self, method):
        """Fail if it is time; True if the environment shall return something wrong."""
        Faulty.calls += method == self.faults["method"]
        if method != self.faults["method"] or not self.faults["every"] or Faulty.calls % self.faults["every"]:
            return False
        if self.faults["how"] == "raise":
            raise ValueError("planted")
        if self.faults["how"] == "die":
            os._exit(3)
        if self.faults["how"] == "hang":
            time.sleep(60)
        return True

    def observed(self):
        return np.array([self.number, self.episode, self.t], np.float64)


class OneAgent(Faulty, gym.Env):
    observation_space, action_space = SPACE, gym.spaces.Discrete(2)

    def __init__(self, config):
        self.setup(config)

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return (np.zeros(2) if self.lies("reset") else self.observed()), {"seed": seed}

    def step(self, action):
        lies = self.lies("step")
        self.t += 1
        return (np.zeros(2) if lies else self.observed()), 1.0, self.t == LENGTH, False, {}


class TwoAgents(Faulty, MultiAgentEnv):
    """Both act in every step, or they take turns."""

    def __init__(self, config):
        super().__init__()
        self.setup(config)
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.agents, SPACE)
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))

    def shown(self, lies=False):
        agents = self.agents if self.t == LENGTH or not self.faults["turns"] else [self.agents[self.t % 2]]
        return {agent: np.zeros(2) if lies else self.observed() for agent in agents}

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return self.shown(self.lies("reset")), {}

    def step(self, action_dict):
        lies = self.lies("step")
        self.t += 1
        return self.shown(lies), {"a": 1.0, "b": 1.0}, {"__all__": self.t == LENGTH}, {"__all__": False}, {}


def runner_of(env, num_envs, vectorize="sync", faults=(), mode=None, **tolerance):
    Faulty.made = Faulty.calls = 0
    faults = {"every": 0, "method": "step", "how": "raise", "turns": False, **dict(faults)}
    config = (
        PPOConfig()
        .environment(env, env_config=faults)
        .env_runners(num_envs_per_env_runner=num_envs, gym_env_vectorize_mode=vectorize, gym_env_autoreset_mode=mode)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=1)
        .fault_tolerance(**{"restart_failed_sub_environments": True, **tolerance})
    )
    if env is TwoAgents:
        config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
        return MultiAgentEnvRunner(config=config)
    return SingleAgentEnvRunner(config=config)


def rows_of(episode):
    """Observations of one agent; of several by env step, one of those that observed in it."""
    if not isinstance(episode, MultiAgentEpisode):
        return episode.t_started, episode.get_observations(), [episode]
    by_step = {}
    for segment in episode.segments:
        rows = segment.episode.get_observations()
        by_step.update(zip(segment.steps[-len(rows) :], rows))  # the steps before are the lookback's
    steps = [t for t in sorted(by_step) if t >= episode.env_t_started]  # who waits has seen one before
    return steps[0], np.array([by_step[t] for t in steps]), [segment.episode for segment in episode.segments]


def sampled(runner, calls=3, steps=40, reason="planted"):
    """Sample, and check every chunk: one episode of one instance, no gap, no step twice; returns lengths by ending."""
    lengths, running, total = defaultdict(list), {}, 0
    for call in range(calls):
        for episode in runner.sample(num_timesteps=steps):
            start, rows, singles = rows_of(episode)
            key = tuple(rows[0, :2])
            assert (rows[:, :2] == key).all() and len(episode) > 0
            assert running.pop(key, (0, 0))[0] == start and rows[0, 2] == start
            assert (np.diff(rows[:, 2]) == 1).all() and rows[-1, 2] == start + len(episode)
            if not isinstance(episode, MultiAgentEpisode):
                assert episode.get_return() == len(episode)
            end = "terminated" if episode.is_terminated else "truncated" if episode.is_truncated else "running"
            if end == "running":
                running[key] = start + len(episode), call
            else:
                lengths[end].append(start + len(episode))
            if end == "truncated":
                assert all(reason in single.get_infos(-1)["env_failure"] for single in singles)
            total += len(episode)
    metrics = runner.get_metrics()
    assert metrics["num_env_steps_sampled_lifetime"] == total >= calls * steps
    cut_at_a_border = sum(call < calls - 1 for _, call in running.values())  # without a step to return
    assert metrics["num_episodes_lifetime"] == sum(map(len, lengths.values())) + cut_at_a_border
    assert set(lengths["terminated"]) <= {LENGTH}
    runner.stop()
    return lengths, metrics["num_env_restarts_lifetime"]


@pytest.mark.parametrize("num_envs", [slow(1), 4])
@pytest.mark.parametrize("method", ["step", slow("reset")])
@pytest.mark.parametrize(("env", "mode"), [*((OneAgent, mode) for mode in MODES), slow(TwoAgents, None)])
def test_environments_that_fail_in_every_kth_call(env, mode, method, num_envs):
    for every in (2, 5, 8):
        for turns in (False, True)[: 1 + (env is TwoAgents)]:
            faults = {"every": every, "method": method, "turns": turns}
            lengths, restarts = sampled(runner_of(env, num_envs, faults=faults, mode=mode))
            assert restarts == Faulty.calls // every
            assert len(lengths["truncated"]) <= restarts * (method == "step")


@pytest.mark.parametrize("how", ["die", "lie", "raise"])
@pytest.mark.parametrize("method", ["step", slow("reset")])
@pytest.mark.parametrize(("env", "mode"), [(OneAgent, "same_step"), slow(OneAgent, "next_step"), slow(TwoAgents, None)])
def test_environments_in_processes_of_their_own(env, mode, method, how):
    before = {child.pid for child in multiprocessing.active_children()}
    faults = {"every": 9 if method == "step" else 2, "method": method, "how": how}
    runner = runner_of(env, 2, "async", faults, mode)
    if how == "raise":
        sampled(runner, calls=2, steps=30)
    else:
        episodes = [episode for _ in range(2) for episode in runner.sample(num_timesteps=30)]
        assert sum(map(len, episodes)) == runner.get_metrics()["num_env_steps_sampled_lifetime"] >= 60
        reasons = {"die": "exit code 3", "lie": "shape (2,)"}
        cut = [rows_of(episode)[2] for episode in episodes if episode.is_truncated]
        assert bool(cut) == (method == "step")
        assert all(reasons[how] in single.get_infos(-1)["env_failure"] for singles in cut for single in singles)
        assert runner.get_metrics()["num_env_restarts_lifetime"] > 0
        runner.stop()
    assert {child.pid for child in multiprocessing.active_children()} == before


@pytest.mark.parametrize("env", [OneAgent, slow(TwoAgents)])
def test_a_process_that_hangs_is_killed_after_the_time_limit(env):
    faults = {"every": 25, "how": "hang"}
    runner = runner_of(env, 2, "async", faults, sub_environment_timeout_s=0.4)
    started = time.monotonic()
    episodes = runner.sample(num_timesteps=56)
    assert sum(map(len, episodes)) >= 56 and time.monotonic() - started < 20
    cut = [episode for episode in episodes if episode.is_truncated]
    assert cut and all("within 0.4 s" in rows_of(episode)[2][0].get_infos(-1)["env_failure"] for episode in cut)
    runner.stop()


@pytest.mark.parametrize("vectorize", ["sync", "async"])
@pytest.mark.parametrize("env", [OneAgent, slow(TwoAgents)])
def test_a_budget_that_is_spent_is_an_error_with_the_cause(env, vectorize):
    runner = runner_of(env, 2, vectorize, {"every": 1}, max_sub_environment_restarts_per_sample=3)
    for _ in range(2):  # each call has its own
        with pytest.raises(RunnerError, match=r"failed in step\(\)[^\n]* with action") as caught:
            runner.sample(num_timesteps=20)
        assert caught.value.expected == "at most 3 restarts of one environment in a call"
        assert "planted" in caught.value.found and isinstance(caught.value.__cause__, ValueError)
    runner.stop()
    limited = runner_of(env, 2, vectorize, {"every": 4}, max_sub_environment_restarts=2)
    with pytest.raises(RunnerError) as caught:
        limited.sample(num_timesteps=100)
    assert caught.value.expected == "at most 2 restarts of all environments of a runner"
    limited.stop()


@pytest.mark.parametrize("env", [OneAgent, slow(TwoAgents)])
def test_episodes_that_a_failure_cut_can_be_dropped(env):
    runner = runner_of(env, 2, faults={"every": 9}, failed_episodes="drop")
    episodes = [episode for _ in range(3) for episode in runner.sample(num_timesteps=40)]
    assert not any(episode.is_truncated for episode in episodes)
    assert runner.get_metrics()["num_env_restarts_lifetime"] > 10
    runner = runner_of(env, 1, faults={"every": 6}, failed_episodes="drop")
    with pytest.raises(RunnerError, match="restarts of one environment"):
        runner.sample(num_episodes=1)


def test_the_same_seed_gives_the_same_restarts_and_none_twice():
    def seeds():
        runner = runner_of(OneAgent, 2, faults={"every": 6})
        return [
            episode.get_infos(0).get("seed") for episode in runner.sample(num_timesteps=60) if not episode.t_started
        ]

    first = [seed for seed in seeds() if seed is not None]
    assert len(first) > 5 and len(set(first)) == len(first)
    assert first == [seed for seed in seeds() if seed is not None]


class Native(gym.vector.VectorEnv):
    """A vector environment that fails as a whole, or returns what `returns` says, in every fifth step."""

    steps = made = 0

    def __init__(self, num_envs, returns=None):
        self.num_envs, self.returns, Native.made = num_envs, returns, Native.made + 1
        self.single_observation_space, self.single_action_space = SPACE, gym.spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(SPACE, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.number = Native.made

    def observed(self):
        return np.array([[self.number * 10 + env, 1, self.t] for env in range(self.num_envs)], np.float64)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observed(), {}

    def step(self, actions):
        Native.steps += 1
        self.t += 1
        no = np.zeros(self.num_envs, bool)
        result = {
            "observations": self.observed(),
            "rewards": np.ones(self.num_envs),
            "ended": no,
            "cut": no,
            "infos": {},
        }
        if Native.steps % 5 == 0:
            if self.returns is None:
                raise ValueError("planted")
            result.update(self.returns)
        return tuple(result.values())


@pytest.mark.parametrize(
    ("returns", "reason"),
    [
        (None, "planted"),
        ({"rewards": np.array([1.0, np.nan, 1.0])}, "finite numbers"),
        ({"ended": np.zeros(3)}, "column 'terminateds'"),
        ({"observations": np.zeros((3, 2))}, "shape"),
    ],
)
def test_a_vector_environment_that_fails_as_a_whole_is_made_again(returns, reason):
    Native.steps = Native.made = 0
    config = (
        PPOConfig()
        .environment(Native, env_config={"returns": returns})
        .env_runners(num_envs_per_env_runner=3, gym_env_vectorize_mode="vector_entry_point")
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .fault_tolerance(restart_failed_sub_environments=True)
    )
    lengths, restarts = sampled(SingleAgentEnvRunner(config=config), reason=reason)
    assert restarts == Native.made - 1 >= 9 and set(lengths["truncated"]) == {4}


def test_callbacks_see_a_cut_episode_end_and_the_next_one_begin():
    events = []

    def note(name):
        return lambda *, episode, **kwargs: events.append((name, episode.id_, len(episode), episode.is_truncated))

    runner = runner_of(OneAgent, 1, faults={"every": 4})
    names = ["on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"]
    config = runner.config.copy().callbacks(**{name: note(name) for name in names})
    Faulty.calls = 0
    SingleAgentEnvRunner(config=config).sample(num_timesteps=5)
    steps = [(name, length, truncated) for name, _, length, truncated in events]
    assert steps == [
        ("on_episode_created", 0, False),
        ("on_episode_start", 0, False),
        *(("on_episode_step", length, False) for length in (1, 2, 3)),
        ("on_episode_end", 3, True),
        ("on_episode_created", 0, False),
        ("on_episode_start", 0, False),
        *(("on_episode_step", length, False) for length in (1, 2)),
    ]
    assert len({id_ for _, id_, _, _ in events}) == 2


@pytest.mark.parametrize("failed_episodes", ["truncate", "drop"])
@pytest.mark.parametrize("env", [OneAgent, TwoAgents])
def test_an_episode_that_is_cut_without_a_step_since_the_last_call_ends(env, failed_episodes):
    ends = []

    def note(*, episode, prev_episode_chunks, **kwargs):
        ends.append((episode.is_truncated, len(episode), [len(chunk) for chunk in prev_episode_chunks], episode.id_))

    runner = runner_of(env, 1, faults={"every": 4}, failed_episodes=failed_episodes)
    config = runner.config.copy().callbacks(on_episode_end=note)
    Faulty.calls = 0
    runner = type(runner)(config=config)
    (first,), (second,) = runner.sample(num_timesteps=3), runner.sample(num_timesteps=3)
    assert (len(first), len(second), second.is_done) == (3, 3, False) and first.id_ != second.id_
    cut = failed_episodes == "truncate"
    assert ends == [(True, 0, [3], first.id_)] * cut
    metrics = runner.get_metrics()
    assert metrics["num_episodes_lifetime"] == cut and metrics["num_env_steps_sampled_lifetime"] == 6
    if cut:
        assert metrics["episode_len_mean"] == 3 and metrics["episode_return_mean"] == 3 * (1 + (env is TwoAgents))


def test_a_callback_that_raises_is_no_failure_of_the_environment():
    Native.steps = Native.made = 0
    config = PPOConfig().environment(Native).fault_tolerance(restart_failed_sub_environments=True)
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode="vector_entry_point")
    created = []
    config.callbacks(on_environment_created=lambda **kwargs: created.append(1) or (created[1:] and 1 / 0))
    runner = SingleAgentEnvRunner(config=config)
    with pytest.raises(ZeroDivisionError):
        runner.sample(num_timesteps=20)
    assert len(created) == 2 and runner.get_metrics()["num_env_restarts_lifetime"] == 1


def test_the_info_of_a_step_that_failed_is_not_the_next_episodes():
    class Talks(OneAgent):
        def step(self, action):
            observation, *rest, _ = super().step(action)
            return (observation[:2] if self.t == 3 else observation), *rest, {"step": self.t}

    runner = runner_of(Talks, 2)
    episodes = [episode for episode in runner.sample(num_timesteps=20) if not episode.t_started]
    assert len(episodes) > 4
    assert all(set(episode.get_infos(0)) == {"seed"} for episode in episodes)


def test_a_failure_is_in_an_info_that_a_callback_read_and_changed():
    def on_episode_step(episode, **kwargs):
        episode.get_infos(-1)["read"] = len(episode)

    runner = runner_of(OneAgent, 2, faults={"every": 9})
    Faulty.calls = 0
    runner = SingleAgentEnvRunner(config=runner.config.copy().callbacks(on_episode_step=on_episode_step))
    cut = [episode for episode in runner.sample(num_timesteps=40) if episode.is_truncated]
    assert cut and all({"env_failure", "read"} <= set(episode.get_infos(-1)) for episode in cut)


def test_an_integer_that_is_no_byte_is_an_error_in_every_process():
    class Bytes(OneAgent):
        observation_space = gym.spaces.Box(0, 255, (2,), np.uint8)

        def observed(self):
            return np.array([0, 300])

    for vectorize in ("sync", "async"):
        runner = runner_of(Bytes, 2, vectorize, restart_failed_sub_environments=False)
        with pytest.raises(SpaceError, match="uint8"):
            runner.sample(num_timesteps=4)
        runner.stop()

    class AtTheEnd(Bytes):
        def observed(self):
            return np.array([0, self.t], np.int64 if self.t == LENGTH else np.uint8)

    for vectorize in ("sync", "async"):
        runner = runner_of(AtTheEnd, 2, vectorize, mode="same_step")
        ends = [len(episode) for episode in runner.sample(num_timesteps=20) if episode.is_done]
        assert ends == [LENGTH - 1] * 2
        runner.stop()


def test_messages_say_how_far_an_episode_of_several_agents_was():
    episode = runner_of(TwoAgents, 1, faults={"every": 5}).sample(num_timesteps=8)[0]
    reason = episode.agent_episodes["a"].get_infos(-1)["env_failure"]
    assert "4 steps into its episode, failed in step() with actions {'a': " in reason


def test_truncating_an_episode_of_several_agents_by_hand():
    episode = MultiAgentEpisode()
    with pytest.raises(EpisodeStateError, match="not reset"):
        episode.truncate()
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
    episode.add_env_step({"a": 1.0}, {"a": 0, "b": 1}, {"a": 0.5, "b": 2.0})  # b waits for an observation
    episode.truncate({"why": "power cut"})
    a, b = episode.agent_episodes["a"], episode.agent_episodes["b"]
    assert episode.is_truncated and a.is_truncated and b.is_truncated and not episode.is_terminated
    assert (len(episode), len(a), len(b)) == (1, 1, 0)
    assert a.get_infos(-1) == b.get_infos(-1) == {"why": "power cut"}
    assert episode.pending_actions == {} and episode.get_return(include_hanging_rewards=True) == 2.5
    with pytest.raises(EpisodeStateError, match="ended at env step 1"):
        episode.truncate()


class Reader(OneAgent):
    """Has an attribute, a method and a picture, and fails to be made if the config says so."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    task = 1

    def describe(self, text):
        return f"{text} {self.task}"

    def render(self):
        return np.full((2, 2, 3), self.task, np.uint8)


def test_attributes_methods_and_pictures_of_environments_in_processes():
    runner = runner_of(Reader, 2, "async")
    runner.sample(num_timesteps=4)
    envs = runner.env
    envs.set_attr("task", [3, 4])
    assert envs.get_attr("task") == (3, 4) and envs.call("describe", "task") == ("task 3", "task 4")
    assert [image.max() for image in envs.render()] == [3, 4]
    envs.set_attr("task", 5)
    assert envs.get_attr("task") == (5, 5)
    with pytest.raises(AttributeError, match="no_such"):
        envs.call("no_such")
    with pytest.raises(AttributeError):
        envs.get_wrapper_attr("no_such")
    for reset in ({"seed": [1]}, {"options": {"reset_mask": np.zeros(2, bool)}}):
        with pytest.raises(RunnerError, match=r"AsyncEnvs\.reset"):
            envs.reset(**reset)
    with pytest.raises(RunnerError, match="2 actions"):
        envs.step(np.array([0]))
    with pytest.raises(RunnerError, match="2 values"):
        envs.set_attr("task", [3])
    with pytest.raises(RunnerError, match="can be sent to another process"):
        envs.set_attr("task", [3, lambda: 4])
    assert envs.get_attr("task") == (5, 5)
    runner.stop()
    with pytest.raises(RunnerError, match="closed ones"):
        envs.call("describe", "task")


@pytest.mark.parametrize("mode", slow_but(["next_step"], MODES))
def test_processes_give_what_one_process_gives(mode):
    played = []
    for vectorize in ("sync", "async"):
        torch.manual_seed(0)
        config = PPOConfig().environment("CartPole-v1").debugging(seed=3).rl_module(model_config={"fcnet_hiddens": [4]})
        config.env_runners(
            num_envs_per_env_runner=3, gym_env_vectorize_mode=vectorize, gym_env_autoreset_mode=mode
        ).env_runners(num_envs_per_worker=2)
        runner = SingleAgentEnvRunner(config=config)
        played.append([episode.get_observations() for _ in range(2) for episode in runner.sample(num_timesteps=90)])
        runner.stop()
    assert len(played[0]) == len(played[1]) > 6
    for left, right in zip(*played):
        np.testing.assert_array_equal(left, right)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium logs errors so
@pytest.mark.parametrize("how", ["", slow("raise"), slow("die")])
def test_gymnasiums_worker_processes_run_as_they_are(how):
    every = 9 if how else 0

    def make(num_envs):
        faults = {"every": every, "method": "step", "how": how, "turns": False}
        return gym.vector.AsyncVectorEnv([lambda: OneAgent(faults)] * num_envs)

    config = (
        PPOConfig()
        .environment(make)
        .env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode="vector_entry_point")
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .fault_tolerance(restart_failed_sub_environments=bool(how))
    )
    Faulty.calls = 0
    runner = SingleAgentEnvRunner(config=config)
    episodes = [episode for _ in range(2) for episode in runner.sample(num_timesteps=30)]
    assert sum(map(len, episodes)) >= 60
    reasons = [episode.get_infos(-1)["env_failure"] for episode in episodes if episode.is_truncated]
    assert bool(reasons) == bool(how)
    assert all({"raise": "planted", "die": "a worker process has ended"}[how] in reason for reason in reasons)
    runner.stop()
    if how:
        config.fault_tolerance(restart_failed_sub_environments=False)
        runner = SingleAgentEnvRunner(config=config)
        with pytest.raises((ValueError, RunnerError), match=r"failed in step\(\)"):
            runner.sample(num_timesteps=40)
        runner.stop()


@pytest.mark.slow
def test_a_second_environment_of_a_process_that_died_is_made_again_too():
    runner = runner_of(OneAgent, 4, "async", {"every": 15, "how": "die"})
    config = runner.config.copy().env_runners(num_envs_per_worker=2)
    runner.stop()
    runner = SingleAgentEnvRunner(config=config)
    episodes = [episode for _ in range(3) for episode in runner.sample(num_timesteps=60)]
    restarts = runner.get_metrics()["num_env_restarts_lifetime"]
    assert sum(map(len, episodes)) >= 180 and restarts >= 4 and restarts % 2 == 0
    runner.stop()


@pytest.mark.parametrize("env", [OneAgent, TwoAgents])
def test_one_environment_steps_on_alone_in_a_process_that_died(env):
    runner = runner_of(env, 2, "async", {"every": 4, "how": "die"})
    config = runner.config.copy().env_runners(num_envs_per_worker=2)
    runner.stop()
    runner = (SingleAgentEnvRunner if env is OneAgent else MultiAgentEnvRunner)(config=config)
    alone = np.array([True, False])
    chunks = [[len(chunk) for chunk in runner.step(mask=mask)] for mask in (None, alone, alone, alone, None)]
    assert chunks == [[1, 1], [1], [], [1], [1]]
    assert runner.get_metrics()["num_env_restarts_lifetime"] == 2
    runner.stop()


@pytest.mark.parametrize("bad", [{"reward": float("nan")}, {"info": [1]}])
def test_a_late_reward_or_info_that_is_wrong_restarts_the_environment(bad):
    class Late(OneAgent):
        def step(self, action):
            observation, reward, ended, cut, info = super().step(action)
            late = self.t == 4
            return (
                observation,
                bad.get("reward", reward) if late else reward,
                ended,
                cut,
                bad.get("info", info) if late else info,
            )

    runner = runner_of(Late, 2)
    episodes = runner.sample(num_timesteps=20)
    assert {len(episode) for episode in episodes if episode.is_truncated} == {3}
    assert runner.get_metrics()["num_env_restarts_lifetime"] >= 4


@pytest.mark.parametrize("failed_episodes", ["truncate", "drop"])
def test_returns_of_agents_do_not_go_on_in_the_next_episode(failed_episodes):
    runner = runner_of(TwoAgents, 2, faults={"every": 9}, failed_episodes=failed_episodes)
    for _ in range(12):
        runner.sample(num_timesteps=6)
    metrics = runner.get_metrics()
    assert metrics["num_env_restarts_lifetime"] > 5 and metrics["num_episodes_lifetime"] > 2
    assert all(0 < value <= LENGTH for value in metrics["agent_episode_returns_mean"].values())
    assert all(0 < value <= LENGTH for value in metrics["agent_steps"].values())


def test_a_part_of_a_state_leaves_the_count_of_restarts():
    runner = runner_of(OneAgent, 2, faults={"every": 5})
    runner.sample(num_timesteps=30)
    count = runner.get_metrics()["num_env_restarts_lifetime"]
    runner.set_state(runner.get_state(components=["rl_module"]))
    assert runner.get_metrics()["num_env_restarts_lifetime"] == count > 0


def test_a_value_that_cannot_be_sent_fails_its_own_environment_alone():
    class Sends(OneAgent):
        def step(self, action):
            *result, info = super().step(action)
            return (*result, {"no": lambda: None} if self.t == 3 and Faulty.made == 2 else info)

    runner = runner_of(Sends, 2, "async")
    config = runner.config.copy().env_runners(num_envs_per_worker=2)
    runner.stop()
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_timesteps=20)
    cut = [episode for episode in episodes if episode.is_truncated]
    assert len(cut) == 1 or all(len(episode) == 2 for episode in cut)
    assert any(episode.is_terminated and len(episode) == LENGTH for episode in episodes)
    runner.stop()


@pytest.mark.parametrize("env", [OneAgent, TwoAgents])
def test_a_time_limit_without_processes_is_warned_of(env):
    with pytest.warns(EpibatchWarning, match="'sync': an environment that hangs is waited for"):
        runner_of(env, 1, "sync", {}, sub_environment_timeout_s=1.0).stop()
