"""The runners of both libraries on the same environments and games: the same episodes, callbacks and metrics.

What differs between the libraries' episodes themselves is compared elsewhere; here one such fault is met, O52, and told
by its situation.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from epibatch.env_runner.callbacks import RUNNER_EVENTS
from oracle.agent_games import game_class, team_runner
from oracle.libraries import BOTH, RLLIB
from oracle.makers import Walk, make_runner
from oracle.probes import holds

pytestmark = pytest.mark.filterwarnings("ignore")
EVENTS = RUNNER_EVENTS[1:]


def whole(episode: Any) -> tuple[Any, ...]:
    start, end = (getattr(episode, name, None) for name in ("env_t_started", "env_t"))
    ends = bool(episode.is_terminated), bool(episode.is_truncated)
    return (episode.t_started, episode.t, *ends) if start is None else (start, end, *ends)


class Log:
    """Notes every call of a callback; episodes are numbered in the order in which they are first seen."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self._numbers: dict[str, int] = {}

    def function(self, event: str, by: str = "function") -> Any:
        return lambda **keywords: self.note(event, by, keywords)

    def listener(self, library: Any) -> type:
        """A class of callbacks whose methods note what they are told."""
        path, name = ("env_runner.callbacks", "Callbacks")
        if library is RLLIB:
            path, name = ("callbacks.callbacks", "RLlibCallback")
        methods = {event: lambda _, event=event, **keywords: self.note(event, "method", keywords) for event in EVENTS}
        return type("Noting", (getattr(library.module(path), name),), methods)

    def note(self, event: str, by: str, keywords: dict[str, Any]) -> None:
        row: list[Any] = [by, event, sorted(keywords)]
        if "episode" in keywords:
            episode = keywords["episode"]
            number = self._numbers.setdefault(episode.id_, len(self._numbers))
            row += [number, keywords["env_index"], len(episode), *whole(episode), episode.is_reset]
            if hasattr(episode, "get_agents_to_act"):
                row.append(sorted(episode.get_agents_to_act()))
            elif len(episode):
                row.append(np.asarray(episode.get_observations(-1)).tolist())
            row.append([(len(chunk), whole(chunk)) for chunk in keywords.get("prev_episode_chunks", ())])
        if "samples" in keywords:
            row.append([(self._numbers.get(chunk.id_), len(chunk), whole(chunk)) for chunk in keywords["samples"]])
        self.calls.append(tuple(map(str, row)))


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
    num_envs, lengths, samples = CASES[case]
    logs = []
    for library in BOTH:
        log, numbers = Log(), itertools.count()

        def make(env_config: Any, numbers: Any = numbers) -> Any:
            first = next(numbers) % len(lengths)
            return Walk(lengths[first:] + lengths[:first])

        library.register_env("lengths", make)
        config = library.PPOConfig().environment("lengths")
        config.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
        config.callbacks(log.listener(library), **{event: log.function(event) for event in EVENTS})
        runner = make_runner(library, config)
        for keywords in samples:
            runner.sample(**keywords)
        runner.stop()
        logs.append(log.calls)
    assert logs[0] == logs[1]
    found = {row[1] for row in logs[1]}
    assert found >= {"on_episode_created", "on_episode_start", "on_episode_step", "on_sample_end"}
    assert {row[0] for row in logs[1]} == {"function", "method"}


# -- several agents --------------------------------------------------------------------------------

KINDS = ("steady", "turns", "random")


def runners(kind: str, num_envs: int, **options: Any) -> list[Any]:
    return [team_runner(library, game_class(library, kind=kind, wild=False), num_envs, **options) for library in BOTH]


def rows_of(episode: Any) -> dict[Any, Any]:
    """Everything that an agent with steps saw, did and got, by agent."""
    return {
        agent: {
            "t_started": one.t_started,
            "obs": [row.tolist() for row in one.get_observations()],
            "actions": [int(action) for action in one.get_actions()],
            "rewards": [float(reward) for reward in one.get_rewards()],
            "infos": [info.get("t") for info in one.get_infos()],
            "outputs": [list(map(float, one.get_extra_model_outputs(key))) for key in ("seen", "weights_seq_no")],
            "state": len(one.get_extra_model_outputs("state_out")["steps"]) if one.module_id == "thinker" else None,
            "ends": (one.is_terminated, one.is_truncated),
            "module": one.module_id,
        }
        for agent, one in episode.agent_episodes.items()
        if len(one)
    }


def ended_unseen(rows: dict[str, Any]) -> bool:
    """Whether an agent terminated without an observation after the start of its chunk: O52."""
    return len(rows["obs"]) == 2 and rows["obs"][0] == rows["obs"][1] and rows["ends"][0]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_return_the_same_chunks_and_whole_episodes(kind, num_envs):
    both, unseen = runners(kind, num_envs), 0
    amounts = [{"num_timesteps": steps} for steps in (1, 5, 3, 9, 2, 1, 1, 30, 4, 4, 4)]
    for amount in [*amounts, *({"num_episodes": count} for count in (1, 2, 5))]:
        theirs, ours = (runner.sample(**amount) for runner in both)
        assert [whole(chunk) for chunk in ours] == [whole(chunk) for chunk in theirs]
        for mine, other in zip(ours, theirs):
            found, expected = rows_of(mine), rows_of(other)
            missing = [agent for agent in found if agent not in expected and "num_timesteps" in amount]
            assert all(ended_unseen(found.pop(agent)) for agent in missing)
            unseen += len(missing)
            assert found == expected
    assert bool(unseen) == (kind == "random")  # the situation is met, and in no other games


@pytest.mark.parametrize("kind", KINDS)
def test_agent_steps_are_counted_alike(kind):
    both = runners(kind, 2, count_steps_by="agent_steps")
    for steps in (1, 4, 7, 20, 3):
        theirs, ours = (runner.sample(num_timesteps=steps) for runner in both)
        assert [whole(chunk) for chunk in ours] == [whole(chunk) for chunk in theirs]


def test_random_actions_are_of_the_same_agents_and_have_no_outputs():
    found = []
    for library in BOTH:
        game = game_class(library, kind="random", wild=False, scripted=False)
        episodes = team_runner(library, game, 2).sample(num_episodes=4, random_actions=True)
        rows = [[(len(one), dict(one.extra_model_outputs)) for one in e.agent_episodes.values()] for e in episodes]
        acted = [[list(step[0]) for step in record.steps] for own in game.games for record in own.record]
        found.append(([sorted(map(str, own)) for own in rows], [[sorted(a) for a in own] for own in acted]))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_are_told_the_same_in_the_same_order(kind):
    logs = []
    events = [*(f"on_episode_{event}" for event in ("created", "start", "step", "end")), "on_sample_end"]
    for library in BOTH:
        log = Log()
        listeners = {event: log.function(event) for event in [*events, "on_environment_created"]}
        game = game_class(library, kind=kind, wild=False)
        runner = team_runner(library, game, 1, configure=lambda config, own=listeners: config.callbacks(**own))
        for steps in (4, 7, 3, 12):
            runner.sample(num_timesteps=steps)
        runner.sample(num_episodes=1)
        logs.append(log.calls)
    assert len(logs[1]) > 40 and logs[0] == logs[1]


def value(metric: Any) -> Any:
    """A number as a metric of either library tells it."""
    if isinstance(metric, dict):
        return {key: value(own) for key, own in metric.items()}
    return float(metric.peek() if hasattr(metric, "peek") else metric)


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_the_same(kind):
    both = runners(kind, 2)
    for runner in both:
        runner.sample(num_episodes=8)
    theirs, ours = (runner.get_metrics() for runner in both)
    counts = [f"num_{of}_steps_sampled{over}" for of in ("env", "agent", "module") for over in ("", "_lifetime")]
    figures = [f"episode_{of}_{kind}" for of in ("return", "len") for kind in ("mean", "min", "max")]
    others = ["num_episodes", "agent_episode_returns_mean", "module_episode_returns_mean", "agent_steps"]
    for name in [*counts, *figures, *others]:
        assert value(ours[name]) == pytest.approx(value(theirs[name])), name
