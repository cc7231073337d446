"""The runners of both libraries on the same environments and games: the same episodes, callbacks and metrics.

What differs between the libraries' episodes themselves is compared elsewhere; here one such fault is met, O52, and told
by its situation.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core import metrics
from epibatch.core.registry import register_env
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.env_runner.callbacks import RUNNER_EVENTS, Callbacks
from epibatch.env_runner.metrics import AgentMetrics
from oracle.agent_games import game_class, team_runner
from oracle.behaviours import holds
from oracle.libraries import BOTH

pytest.importorskip("ray", reason="RLlib is the oracle")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ray.rllib.algorithms.ppo import PPOConfig as TheirConfig
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner as TheirRunner
    from ray.tune.registry import register_env as register_theirs


pytestmark = pytest.mark.filterwarnings("ignore")


class Lengths(gym.Env):
    """Episodes whose lengths repeat (3, 5, 2), rotated by the environment's number; every third is truncated."""

    observation_space = gym.spaces.Box(-1000.0, 1000.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number, lengths):
        self.number, self.lengths, self.episode = number, lengths, -1

    def _observation(self):
        return np.array([self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observation(), {"t": 0}

    def step(self, action):
        self.t += 1
        over = self.t == self.lengths[(self.number + self.episode) % len(self.lengths)]
        truncated = over and self.episode % 3 == 2
        return self._observation(), float(self.t), over and not truncated, truncated, {"t": self.t}


class Log:
    """Notes every call; episodes are numbered in the order in which they are first seen."""

    def __init__(self):
        self.calls, self._numbers = [], {}

    def function(self, event, by="function"):
        return lambda **keywords: self.note(event, by, keywords)

    def note(self, event, by, keywords):
        keys = sorted(keywords)
        row = [by, event, keys]
        if "episode" in keywords:
            episode = keywords["episode"]
            number = self._numbers.setdefault(episode.id_, len(self._numbers))
            row += [number, keywords["env_index"], len(episode), episode.t, episode.is_reset]
            row += [episode.is_terminated, episode.is_truncated]
            if len(episode):
                row.append(np.asarray(episode.get_observations(-1)).tolist())
            row.append([(len(chunk), chunk.t_started) for chunk in keywords.get("prev_episode_chunks", ())])
        if "samples" in keywords:
            row.append([(self._numbers.get(chunk.id_), len(chunk)) for chunk in keywords["samples"]])
        self.calls.append(tuple(map(str, row)))


def listener(base, log):
    """A class whose methods note what they are told."""
    names = RUNNER_EVENTS[1:]
    methods = {name: lambda self, _name=name, **keywords: log.note(_name, "method", keywords) for name in names}
    return type("Noting", (base,), methods)


def calls(config_class, runner_class, base, register, num_envs, lengths, samples):
    log, numbers = Log(), itertools.count()
    register("lengths", lambda env_config: Lengths(next(numbers), lengths))
    config = config_class().environment("lengths").env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
    config.callbacks(listener(base, log), **{event: log.function(event) for event in RUNNER_EVENTS[1:]})
    runner = runner_class(config=config, worker_index=0)
    for keywords in samples:
        runner.sample(**keywords)
    runner.stop()
    return log.calls


CASES = {
    "one environment": (1, (3, 5, 2), [{"num_timesteps": 25}]),
    "three environments": (3, (3, 5, 2), [{"num_timesteps": 60}]),
    "several calls": (2, (3, 5, 2), [{"num_timesteps": 7}] * 5),
    "a long episode": (1, (40,), [{"num_timesteps": 12}] * 4),
    "random actions": (2, (3, 4), [{"num_timesteps": 21, "random_actions": True}]),
    "a forced reset": (2, (3, 5, 2), [{"num_timesteps": 7}, {"num_timesteps": 7, "force_reset": True}]),
    "whole episodes": (1, (3, 5, 2), [{"num_episodes": 2}, {"num_episodes": 1}, {"num_timesteps": 4}]),
    "whole episodes of two": (2, (4,), [{"num_episodes": 2}, {"num_episodes": 2}]),
}


@holds("C59")
@pytest.mark.parametrize("case", CASES)
def test_calls_and_what_they_are_given(case):
    theirs = calls(TheirConfig, TheirRunner, RLlibCallback, register_theirs, *CASES[case])
    ours = calls(PPOConfig, SingleAgentEnvRunner, Callbacks, register_env, *CASES[case])
    assert ours == theirs
    assert {row[1] for row in ours} >= {"on_episode_created", "on_episode_start", "on_episode_step", "on_sample_end"}
    assert {row[0] for row in ours} == {"function", "method"}


pytest.importorskip("ray", reason="RLlib is the oracle")


KINDS = ("steady", "turns", "random")


def rows_of(episode: Any) -> dict[Any, Any]:
    """Everything that an agent with steps saw, did and got, by agent."""
    return {
        agent: {
            "t_started": one.t_started,
            "obs": [row.tolist() for row in one.get_observations()],
            "actions": [int(action) for action in one.get_actions()],
            "rewards": [float(reward) for reward in one.get_rewards()],
            "infos": [info.get("t") for info in one.get_infos()],
            "outputs": {
                key: [float(value) for value in one.get_extra_model_outputs(key)] for key in ("seen", "weights_seq_no")
            },
            "state": len(one.get_extra_model_outputs("state_out")["steps"]) if one.module_id == "thinker" else None,
            "ends": (one.is_terminated, one.is_truncated),
            "module": one.module_id,
        }
        for agent, one in episode.agent_episodes.items()
        if len(one)
    }


def whole(episode: Any) -> tuple[Any, ...]:
    return episode.env_t_started, episode.env_t, episode.is_terminated, episode.is_truncated


def ended_unseen(rows: dict[str, Any]) -> bool:
    """Whether an agent terminated without an observation after the start of its chunk: O52."""
    return len(rows["obs"]) == 2 and rows["obs"][0] == rows["obs"][1] and rows["ends"][0]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_return_the_same_chunks(kind, num_envs):
    runners = [team_runner(library, game_class(library, kind=kind, wild=False), num_envs) for library in BOTH]
    unseen = 0
    for steps in (1, 5, 3, 9, 2, 1, 1, 30, 4, 4, 4):
        theirs, ours = (runner.sample(num_timesteps=steps) for runner in runners)
        assert [whole(chunk) for chunk in ours] == [whole(chunk) for chunk in theirs]
        for mine, other in zip(ours, theirs):
            found, expected = rows_of(mine), rows_of(other)
            missing = [agent for agent in found if agent not in expected]
            assert all(ended_unseen(found.pop(agent)) for agent in missing)
            unseen += len(missing)
            assert found == expected
    assert bool(unseen) == (kind == "random")  # the situation is met, and in no other games


@pytest.mark.parametrize("kind", KINDS)
def test_calls_return_the_same_whole_episodes(kind):
    runners = [team_runner(library, game_class(library, kind=kind, wild=False), 2) for library in BOTH]
    for count in (1, 2, 5):
        theirs, ours = (runner.sample(num_episodes=count) for runner in runners)
        assert [whole(episode) for episode in ours] == [whole(episode) for episode in theirs]
        assert [rows_of(episode) for episode in ours] == [rows_of(episode) for episode in theirs]


@pytest.mark.parametrize("kind", KINDS)
def test_agent_steps_are_counted_alike(kind):
    games = {library: game_class(library, kind=kind, wild=False) for library in BOTH}
    runners = [team_runner(library, game, 2, count_steps_by="agent_steps") for library, game in games.items()]
    for steps in (1, 4, 7, 20, 3):
        theirs, ours = (runner.sample(num_timesteps=steps) for runner in runners)
        assert [whole(chunk) for chunk in ours] == [whole(chunk) for chunk in theirs]


def test_random_actions_are_of_the_same_agents_and_have_no_outputs():
    found = []
    for library in BOTH:
        game = game_class(library, kind="random", wild=False, scripted=False)
        runner = team_runner(library, game, 2)
        episodes = runner.sample(num_episodes=4, random_actions=True)
        rows = [[(len(one), dict(one.extra_model_outputs)) for one in e.agent_episodes.values()] for e in episodes]
        acted = [[list(step[0]) for step in record.steps] for own in game.games for record in own.record]
        found.append(([sorted(map(str, own)) for own in rows], [[sorted(a) for a in own] for own in acted]))
    theirs, ours = found
    assert ours == theirs


class TeamLog:
    """Notes every call of a callback; episodes are numbered in the order in which they are first seen."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self._numbers: dict[str, int] = {}

    def listener(self, event: str) -> Any:
        return lambda **keywords: self.note(event, keywords)

    def note(self, event: str, keywords: dict[str, Any]) -> None:
        row: list[Any] = [event, sorted(keywords)]
        if "episode" in keywords:
            episode = keywords["episode"]
            row += [self._numbers.setdefault(episode.id_, len(self._numbers)), keywords["env_index"]]
            row += [*whole(episode), episode.is_reset, sorted(episode.get_agents_to_act())]
            row.append([whole(chunk) for chunk in keywords.get("prev_episode_chunks", ())])
        if "samples" in keywords:
            row.append([(self._numbers[chunk.id_], whole(chunk)) for chunk in keywords["samples"]])
        self.calls.append(tuple(map(str, row)))


EVENTS = ("created", "start", "step", "end")


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_are_told_the_same_in_the_same_order(kind):
    logs = {}
    for library in BOTH:
        log = logs[library.name] = TeamLog()
        listeners = {f"on_episode_{event}": log.listener(f"on_episode_{event}") for event in EVENTS}
        for event in ("on_sample_end", "on_environment_created"):
            listeners[event] = log.listener(event)
        game = game_class(library, kind=kind, wild=False)
        runner = team_runner(library, game, 1, configure=lambda config, own=listeners: config.callbacks(**own))
        for steps in (4, 7, 3, 12):
            runner.sample(num_timesteps=steps)
        runner.sample(num_episodes=1)
    assert len(logs["epibatch"].calls) > 40
    assert logs["epibatch"].calls == logs["RLlib"].calls


def value(metric: Any) -> Any:
    """A number as a metric of either library tells it."""
    if isinstance(metric, dict):
        return {key: value(own) for key, own in metric.items()}
    return float(metric.peek() if hasattr(metric, "peek") else metric)


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_the_same(kind):
    found = []
    for library in BOTH:
        runner = team_runner(library, game_class(library, kind=kind, wild=False), 2)
        runner.sample(num_episodes=8)
        found.append(runner.get_metrics())
    names = [
        *("num_env_steps_sampled", "num_agent_steps_sampled", "num_module_steps_sampled"),
        *("num_episodes", "episode_return_mean", "episode_return_min", "episode_return_max"),
        *("episode_len_mean", "episode_len_min", "episode_len_max"),
        *("agent_episode_returns_mean", "module_episode_returns_mean", "agent_steps"),
    ]
    theirs, ours = found
    for name in names:
        assert value(ours[name]) == pytest.approx(value(theirs[name])), name


@pytest.mark.parametrize(
    "name", [f"NUM_{kind}_STEPS_SAMPLED{over}" for kind in ("AGENT", "MODULE") for over in ("", "_LIFETIME")]
)
def test_the_names_of_the_counts(name):
    from ray.rllib.utils import metrics as theirs

    assert getattr(metrics, name) == getattr(theirs, name)
    assert getattr(metrics, name) in AgentMetrics(1).report()
