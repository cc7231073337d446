"""How much the runner of several agents samples: env steps, agent steps and whole episodes."""

from __future__ import annotations

import pytest

from epibatch.core.errors import RunnerError
from oracle.agent_games import game_class
from oracle.libraries import EPIBATCH


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


def test_defaults_of_the_config(teams):
    fragments = teams.runner("steady", 2, rollout_fragment_length=5)
    assert sum(len(chunk) for chunk in fragments.sample()) == 10
    whole = teams.runner("random", 2, batch_mode="complete_episodes")
    assert [episode.is_done for episode in whole.sample()] == [True, True]


def test_nothing_asked_for_touches_nothing(teams):
    runner = teams.runner()
    assert runner.sample(num_timesteps=0) == runner.sample(num_episodes=0) == []
    assert all(game.episode == -1 for game in teams.game.games)


def test_force_reset_drops_what_was_running(teams):
    runner = teams.runner("steady", 2, length=20)
    runner.sample(num_timesteps=4)
    chunks = runner.sample(num_timesteps=4, force_reset=True)
    assert [(chunk.env_t_started, chunk.custom_data["place"]) for chunk in chunks] == [(0, (0, 1)), (0, (1, 1))]
