"""The multi-agent runners of both libraries on the same games: the same episodes, callbacks and metrics.

Games check every action that they get. What differs between the libraries' episodes themselves is compared elsewhere;
here one such fault is met, O52, and told by its situation.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray", reason="RLlib is the oracle")

from epibatch.core import metrics
from epibatch.env_runner.metrics import AgentMetrics
from oracle.agent_games import game_class, team_runner
from oracle.libraries import BOTH

pytestmark = pytest.mark.filterwarnings("ignore")

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


class Log:
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
        log = logs[library.name] = Log()
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
