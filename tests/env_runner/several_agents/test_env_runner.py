"""The runner of several agents where something goes wrong, its seeds, metrics and state."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.core.errors import ConfigError, RunnerError, UnknownNameError
from epibatch.core.rl_module import RLModuleSpec
from oracle.agent_games import AGENTS, game_class, module_of
from oracle.libraries import EPIBATCH

KINDS = ("random", "turns", "steady")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_ended_before_a_fault_comes_with_the_next_call(teams, mode):
    # environment 2 ends its first episode after 7 steps, environment 0 fails in the ninth
    runner = teams.runner("steady", 3, fail_at=(0, 0, 8), gym_env_vectorize_mode=mode)
    with pytest.raises(ConnectionError, match=r"number 0 of 3, failed in step\(\)[\s\S]*no answer"):
        runner.sample(num_timesteps=60)
    chunks = runner.sample(num_timesteps=7 + 8 + 6)
    assert [(chunk.custom_data["place"], chunk.is_done) for chunk in chunks[:2]] == [((2, 0), True), ((1, 0), True)]
    assert [chunk.env_t_started for chunk in chunks[2:]] == [0, 0, 0] and [len(c) for c in chunks[2:]] == [2, 2, 2]
    assert [runner.env_of(chunk) for chunk in chunks] == [chunk.custom_data["place"][0] for chunk in chunks]
    runner.sample(num_timesteps=6)
    runner.sample(num_timesteps=6)
    with pytest.raises(UnknownNameError, match="one of the last sample"):
        runner.env_of(chunks[0])


def test_what_ends_in_the_step_of_a_fault_is_kept_and_was_shown(teams):
    seen = []
    runner = teams.runner("steady", 2, fail_at=(0, 0, 7), env_to_module=[teams.Seen(seen=seen)])
    with pytest.raises(ConnectionError):
        runner.sample(num_timesteps=60)  # environment 1 ends its first episode in this step, the eighth
    (ended, *_) = runner.sample(num_timesteps=2)
    assert ended.custom_data["place"] == (1, 0) and ended.is_done
    assert Counter(seen)[1.0, 0.0, 8.0, 0.0, 8.0] == 1


def test_a_step_that_an_episode_refuses_names_the_environment(teams):
    class Silent(game_class(EPIBATCH, kind="steady")):
        def step(self, action_dict):
            observations, rewards, *rest = super().step(action_dict)
            return (observations, {} if self.number == 1 and self.t == 3 else rewards, *rest)

    runner = teams.runner(game=Silent, num_envs=3)
    with pytest.raises(ValueError, match=r"environment 1:[\s\S]*agent 'ann' at env step 3[\s\S]*a reward"):
        runner.sample(num_timesteps=30)
    assert [len(chunk) for chunk in runner.sample(num_timesteps=3)] == [1, 1, 1]


def test_broken_processes_are_replaced_and_seeded_anew(teams):
    class Fatal(game_class(EPIBATCH, kind="steady", first_seed=3)):
        def step(self, action_dict):
            if self.number == 0 and self.t == 8:
                raise SystemExit(7)
            return super().step(action_dict)

    runner = teams.runner(game=Fatal, num_envs=3, gym_env_vectorize_mode="async")
    with pytest.raises(RunnerError, match="exit code 7"):
        runner.sample(num_timesteps=60)
    before, seeds = runner.env, []
    runner._make_stepper = lambda seconds: noting_seeds(runner, seconds, seeds)
    chunks = runner.sample(num_timesteps=7 + 8 + 3)
    assert runner.env is not before and before.closed
    assert [(chunk.is_done, len(chunk)) for chunk in chunks] == [(True, 7), (True, 8)] + [(False, 1)] * 3
    assert len(seeds) == 1 and seeds[0] not in (None, 3)


def noting_seeds(runner, seconds, seeds):
    stepper = type(runner)._make_stepper(runner, seconds)
    reset = stepper.reset
    stepper.reset = lambda seed: seeds.append(seed) or reset(seed)
    return stepper


def test_interrupted_in_a_piece_nothing_that_ended_is_lost(teams):
    class Interrupted(ConnectorV2):
        calls = 0

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            type(self).calls += 1
            if self.calls == 9:  # after the eighth step, which ended the episode of environment 1
                raise KeyboardInterrupt
            return batch

    runner = teams.runner("steady", 2, env_to_module=[Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        runner.sample(num_timesteps=60)
    assert [c.custom_data["place"] for c in runner.sample(num_timesteps=8 + 2)] == [(1, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize(("seed", "worker"), [(5, 0), (5, 3), (None, 0)])
def test_seeds_are_given_at_the_first_reset_only(teams, seed, worker):
    runner = teams.runner("steady", 2, seed=seed, worker_index=worker, length=4)
    runner.sample(num_timesteps=20)
    runner.sample(num_timesteps=2, force_reset=True)
    first, second = (game.seeds[0] for game in teams.game.games)
    assert (first == seed) is (worker == 0)
    assert second == (None if seed is None else first + 1)
    assert {own for game in teams.game.games for own in game.seeds[1:]} == {None}


def test_a_stopped_runner_says_so(teams):
    runner = teams.runner()
    runner.stop()
    runner.stop()
    with pytest.raises(RunnerError, match="MultiAgentEnvRunner"):
        runner.sample(num_timesteps=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"counts": "agents"}, r"count_steps_by[\s\S]*agent_steps"),
        ({"gym_env_autoreset_mode": "same_step"}, "next_step"),
        ({"gym_env_vectorize_mode": "vector_entry_point"}, "sync"),
    ],
)
def test_settings_that_such_environments_do_not_have(teams, settings, message):
    with pytest.raises(ConfigError, match=message):
        teams.runner(**settings)


def test_metrics_are_what_the_games_gave(teams):
    runner = teams.runner("random", 3)
    for _ in range(30):
        runner.sample(num_timesteps=5)
    found = runner.get_metrics()
    ended = [record for game in teams.game.games for record in game.record if record.played().is_done]
    assert found["num_episodes"] == len(ended)
    assert found["episode_return_mean"] == pytest.approx(np.mean([record.rewards for record in ended]))
    assert found["episode_len_max"] == max(len(record.steps) for record in ended)
    returns, modules, steps = defaultdict(list), defaultdict(list), Counter()
    for record in ended:
        by_module = Counter()
        for agent in AGENTS:
            own = [step[2][agent] for step in record.steps if agent in step[2]]
            episode = record.played().agent_episodes
            if own or agent in episode:
                returns[agent].append(sum(own))
            if agent in episode:
                by_module[module_of(agent)] += sum(own)
        for module_id, value in by_module.items():
            modules[module_id].append(value)
    for record in (record for game in teams.game.games for record in game.record):
        steps.update(agent for step in record.steps for agent in step[1])
    assert found["agent_episode_returns_mean"] == pytest.approx({a: np.mean(own) for a, own in returns.items()})
    assert found["module_episode_returns_mean"] == pytest.approx({m: np.mean(own) for m, own in modules.items()})
    assert found["num_agent_steps_sampled"] == steps == found["num_agent_steps_sampled_lifetime"]
    assert sum(found["num_module_steps_sampled"].values()) == steps.total()
    assert runner.get_metrics()["num_agent_steps_sampled"] == {}


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_from_a_state_is_the_same(teams, kind):
    one = teams.runner(kind, 2)
    one.sample(num_timesteps=20)
    one.get_metrics()
    one.checkpoint_reset()
    state = one.get_state()
    game = teams.game
    other = teams.runner(kind, 2, seed=99)
    other.set_state(state)
    for mine, right in zip(teams.game.games, game.games):
        mine.episode = right.episode  # what a game draws from
    for _ in range(3):
        found, expected = other.sample(num_timesteps=15), one.sample(num_timesteps=15)
        assert len(found) == len(expected)
        for chunk, right in zip(found, expected):
            teams.assert_same(chunk, right)
    assert [game.seeds[-1] for game in teams.game.games] == [own.seeds[-1] for own in game.games]
    counts = [{k: v for k, v in r.get_metrics().items() if k not in ("sample", "env_step_timer")} for r in (one, other)]
    assert counts[0] == counts[1]


def test_parts_of_a_state(teams):
    runner = teams.runner()
    assert set(runner.get_state("rl_module")["rl_module"]) == {"walker", "thinker"}
    assert {"agent_metrics", "env_to_module_connector", "reset_seeds"} <= runner.get_state().keys()
    weights = runner.get_state(["rl_module", "weights_seq_no"])
    weights["rl_module"]["walker"]["weight"] = weights["rl_module"]["walker"]["weight"] * 0 + 7
    runner.set_state(weights)
    assert runner.module["walker"].weight.item() == 7 and runner.module["thinker"].weight.item() == 1


def test_specs_are_those_of_the_config(teams):
    runner = teams.runner("steady", 1)
    assert all(type(spec) is RLModuleSpec for spec in runner.config.specs.values())
    assert list(runner.module.keys()) == ["walker", "thinker"]
