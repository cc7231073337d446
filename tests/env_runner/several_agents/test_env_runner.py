"""Sampling, state and failures of runners of several agents."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, RunnerError, UnknownNameError
from epibatch.env_runner import environment_seeds
from oracle.agent_games import AGENTS, game_class, module_of
from oracle.libraries import EPIBATCH

KINDS = ("random", "turns", "steady")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_ended_before_a_fault_comes_with_the_next_call(teams, mode):
    # environment 2 ends its first episode after 7 steps, environment 0 fails in the ninth
    runner = teams.runner("steady", 3, fail_at=(0, 0, 8), gym_env_vectorize_mode=mode)
    with pytest.raises(ConnectionError, match=r"number 0 of 3, 8 steps into its episode,[\s\S]*no answer"):
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


@pytest.mark.parametrize("call", ["step", "reset"])
def test_what_an_episode_refuses_names_the_environment_and_loses_no_ended_one(teams, call):
    class Wrong(game_class(EPIBATCH, kind="steady")):
        """Environment 1 gives no reward in the step that ends the episode of number 2, or a reset row too long."""

        def step(self, action_dict):
            observations, rewards, *rest = super().step(action_dict)
            return (observations, {} if call == "step" and self.number == 1 and self.t == 7 else rewards, *rest)

        def reset(self, **settings):
            observations, infos = super().reset(**settings)
            if call == "reset" and self.number == 1 and self.episode == 1:
                observations = {agent: np.append(row, 0.0) for agent, row in observations.items()}
            return observations, infos

    runner = teams.runner(game=Wrong, num_envs=3)
    message = r"agent 'ann' at env step 7[\s\S]*a reward" if call == "step" else "shape"
    with pytest.raises(ValueError, match=rf"(environment 1:|number 1 of 3)[\s\S]*{message}"):
        runner.sample(num_timesteps=60)
    ended = [(2, 0)] if call == "step" else [(2, 0), (1, 0), (0, 0)]
    kept = runner.sample(num_timesteps=1)
    assert [chunk.custom_data["place"] for chunk in kept] == ended and all(chunk.is_done for chunk in kept)
    assert [len(chunk) for chunk in runner.sample(num_timesteps=3)] == [1, 1, 1]
    if call == "reset":
        runner.sample(num_timesteps=1, force_reset=True)
        for game in teams.game.games:
            game.episode = 0
        with pytest.raises(ValueError, match=r"(environment 1:|number 1 of 3)[\s\S]*shape"):
            runner.sample(num_timesteps=1, force_reset=True)


def test_broken_processes_are_replaced_and_seeded_anew(teams):
    class Fatal(game_class(EPIBATCH, kind="steady", seeds=environment_seeds(3, 3))):
        def step(self, action_dict):
            if self.number == 0 and self.t == 8:
                raise SystemExit(7)
            return super().step(action_dict)

    runner = teams.runner(game=Fatal, num_envs=3, gym_env_vectorize_mode="async")
    with pytest.raises(RunnerError, match="exit code 7"):
        runner.sample(num_timesteps=60)
    before, seeds = runner.env, []
    runner.make_env = lambda: noting_seeds(runner, seeds)
    chunks = runner.sample(num_timesteps=7 + 8 + 3)
    assert runner.env is not before and before.closed
    assert [(chunk.is_done, len(chunk)) for chunk in chunks] == [(True, 7), (True, 8)] + [(False, 1)] * 3
    assert len({*seeds[0], *environment_seeds(3, 3)}) == 6 and len(seeds) == 1


def noting_seeds(runner, seeds):
    envs = type(runner).make_env(runner)
    reset = envs.try_reset
    envs.try_reset = lambda *, seed, mask: seeds.append(seed) or reset(seed=seed, mask=mask)
    return envs


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


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("seed", "worker"), [(5, 0), (5, 3), (None, 0)])
def test_seeds_are_given_at_the_first_reset_only(teams, seed, worker, count):
    runner = teams.runner("steady", count, seed=seed, worker_index=worker, length=4)
    runner.sample(num_timesteps=20)
    runner.sample(num_timesteps=2, force_reset=True)
    first = [game.seeds[0] for game in teams.game.games]
    assert first == ([None] * count if seed is None else environment_seeds(seed, count, worker))
    assert {own for game in teams.game.games for own in game.seeds[1:]} == {None}


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


@pytest.mark.parametrize("window", [100, 3])
def test_metrics_are_what_the_games_gave(teams, window):
    """Of all episodes that ended, in the order of their ends; dropped ones and parts of them do not count."""
    runner = teams.runner("random", 3, window=window)
    ended = []
    for call in range(30):
        chunks = runner.sample(num_timesteps=5, force_reset=call in (7, 20))
        ended += [teams.recorded(chunk.custom_data["place"]) for chunk in chunks if chunk.is_done]
    found, newest = runner.get_metrics(), ended[-window:]
    assert found["num_episodes"] == len(ended) > 10
    assert found["episode_return_mean"] == pytest.approx(np.mean([record.rewards for record in newest]))
    assert found["episode_len_max"] == max(len(record.steps) for record in newest)
    returns, modules, lengths, steps = defaultdict(list), defaultdict(list), defaultdict(list), Counter()
    for record in ended:
        by_module, played = Counter(), record.played()
        for agent in AGENTS:
            own = [step[2][agent] for step in record.steps if agent in step[2]]
            taken = sum(len(segment.episode) for segment in played.segments if segment.agent_id == agent)
            if sum(own) or taken:  # else it only saw the end
                returns[agent].append(sum(own))
                lengths[agent].append(taken)
                if agent in played.agent_episodes:
                    by_module[module_of(agent)] += sum(own)
        for module_id, value in by_module.items():
            modules[module_id].append(value)
    for name, values in (
        ("agent_episode_returns_mean", returns),
        ("module_episode_returns_mean", modules),
        ("agent_steps", lengths),
    ):
        assert found[name] == pytest.approx({key: np.mean(own[-window:]) for key, own in values.items()}), name
    for record in (record for game in teams.game.games for record in game.record):
        steps.update(agent for step in record.steps for agent in step[1])
    assert found["num_agent_steps_sampled"] == steps == found["num_agent_steps_sampled_lifetime"]
    assert sum(found["num_module_steps_sampled"].values()) == steps.total()
    again = runner.get_metrics()
    assert again["num_agent_steps_sampled"] == {} and again["num_agent_steps_sampled_lifetime"] == steps


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


def test_random_actions_are_of_those_who_are_to_act_and_have_no_outputs(teams):
    runner = teams.runner("random", 3, scripted=False)
    episodes = teams.joined([c for _ in range(20) for c in runner.sample(num_timesteps=6, random_actions=True)])
    taken = Counter()
    for place, episode in episodes.items():
        teams.assert_same(episode, teams.recorded(place).played())
        for segment in episode.segments:
            assert segment.episode.extra_model_outputs == {}
            taken.update(segment.episode.get_actions().tolist() if len(segment.episode) else ())
    assert taken.keys() == {0, 1, 2} and min(taken.values()) > 30
    again = teams.runner("random", 3, scripted=False)
    for place, episode in teams.joined(again.sample(num_timesteps=40, random_actions=True)).items():
        right = episodes[place][: len(episode)]
        assert [s.episode.get_actions().tolist() for s in episode.segments if len(s.episode)] == [
            s.episode.get_actions().tolist() for s in right.segments if len(s.episode)
        ]


class Doubled(ConnectorV2):
    """Lets modules' actions be twice those that the game gets."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        batch[Columns.ACTIONS_FOR_ENV] = dict(batch[Columns.ACTIONS])
        batch[Columns.ACTIONS] = {
            key: [2 * action for action in items] for key, items in batch[Columns.ACTIONS].items()
        }
        return batch


def test_the_modules_action_is_stored_and_the_environments_acted_on(teams):
    runner = teams.runner("random", 2, module_to_env=[Doubled()])
    for place, episode in teams.joined([c for _ in range(10) for c in runner.sample(num_timesteps=4)]).items():
        played = teams.recorded(place).played()  # which checks what it gets
        for mine, right in zip(episode.segments, played.segments):
            if len(right.episode):
                assert mine.episode.get_actions().tolist() == [2 * a for a in right.episode.get_actions()]
        assert episode.pending_actions == {a: 2 * action for a, action in played.pending_actions.items()}


def test_explore_follows_the_config_unless_given(teams):
    runner = teams.runner("steady", 1, explore=False)
    told = []
    runner.module.forward_exploration = lambda batch, t: told.append(t) or runner.module._forward_exploration(batch)
    runner.sample(num_timesteps=2)
    assert told == []
    runner.sample(num_timesteps=2, explore=True)
    assert told == [2, 3]


def test_weights_seq_no_is_kept_with_every_step(teams):
    runner = teams.runner("steady", 1, length=30)
    runner.sample(num_timesteps=2)
    runner.weights_updated()
    chunk = runner.sample(num_timesteps=3)[0]
    found = {segment.agent_id: segment.episode.get_extra_model_outputs("weights_seq_no") for segment in chunk.segments}
    assert {agent: rows.tolist() for agent, rows in found.items()} == {agent: [1, 1, 1] for agent in AGENTS}
    assert runner.get_metrics()["weights_seq_no"] == 1


def test_a_game_in_which_nobody_acts_for_a_while(teams):
    class Late(game_class(EPIBATCH, kind="steady", length=6)):
        def reset(self, **kwargs):
            self.held, _ = super().reset(**kwargs)
            return {}, {}

        def step(self, action_dict):
            if self.held:
                assert action_dict == {}
                held, self.held = self.held, {}
                return held, {}, {"__all__": False}, {}, {}
            return super().step(action_dict)

    seen = []
    runner = teams.runner(game=Late, num_envs=2, env_to_module=[teams.Seen(seen=seen)])
    episodes = teams.joined([chunk for _ in range(8) for chunk in runner.sample(num_timesteps=4)])
    assert {row[2] for row in seen} == set(range(7)) and len(seen) == len(set(seen))
    for episode in episodes.values():
        assert [segment.env_steps[0] for segment in episode.segments] == [1] * 4


@pytest.mark.parametrize(("wanted", "found"), [(1, 3), (3, 3), (4, 6)])
def test_env_steps_are_rounded_up_to_whole_vector_steps(teams, wanted, found):
    assert sum(len(chunk) for chunk in teams.runner("steady", 3).sample(num_timesteps=wanted)) == found


@pytest.mark.parametrize(("wanted", "steps"), [(1, 1), (8, 1), (9, 2), (17, 3)])
def test_agent_steps_are_counted_by_the_observations_that_end_them(teams, wanted, steps):
    runner = teams.runner("steady", 2, counts="agent_steps")  # 8 in a vector step
    chunks = runner.sample(num_timesteps=wanted)
    assert [len(chunk) for chunk in chunks] == [steps, steps]
    assert sum(chunk.agent_steps() for chunk in chunks) == 8 * steps


def test_counting_agent_steps_where_nobody_acts_any_more_ends(teams, monkeypatch):
    class Deserted(game_class(EPIBATCH, kind="steady")):
        def step(self, action_dict):
            if self.t < 2:
                return super().step(action_dict)
            return {}, {}, {"__all__": False}, {}, {}

    monkeypatch.setattr("epibatch.env_runner.multi_agent_env_runner._PATIENCE", 50)
    runner = teams.runner(game=Deserted, num_envs=1, counts="agent_steps")
    assert len(runner.sample(num_timesteps=8)[0]) == 2
    with pytest.raises(RunnerError, match="no observation of any agent in 50 vector steps"):
        runner.sample(num_timesteps=1)
    assert [(len(chunk), chunk.env_t_started) for chunk in runner.sample(num_timesteps=4)] == [(1, 0)]  # anew
    waiting = teams.runner(game=Deserted, num_envs=1)
    assert len(waiting.sample(num_timesteps=200)[0]) == 200


def test_steps_that_only_bring_a_reset_are_not_counted(teams):
    runner = teams.runner("steady", 1, length=3)
    assert [[len(c) for c in runner.sample(num_timesteps=2)] for _ in range(4)] == [[2], [1, 1], [1, 1], [2]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_exactly_so_many_whole_episodes(teams, count):
    runner = teams.runner("random", 3)
    for _ in range(2):
        before = [len(game.record) for game in teams.game.games]
        episodes = runner.sample(num_episodes=count)
        assert len(episodes) == count and all(episode.is_done and episode.env_t_started == 0 for episode in episodes)
        begun = {game.number: game.record[before[game.number]] for game in teams.game.games}  # each game was reset
        for episode in episodes:
            assert episode.custom_data["place"][1] >= before[episode.custom_data["place"][0]]
        assert len(begun) == 3


def test_ended_episodes_come_first_in_the_order_of_their_ends(teams):
    runner = teams.runner("steady", 3)  # their first episodes are of 9, 8 and 7 steps
    chunks = runner.sample(num_timesteps=27)
    assert [chunk.custom_data["place"] for chunk in chunks] == [(2, 0), (1, 0), (0, 0), (1, 1), (2, 1)]
    assert [chunk.is_done for chunk in chunks] == [True, True, True, False, False]
