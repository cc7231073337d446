"""Steps and resets of some environments of several agents: episodes are what the games played."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from fixture_cases import slow_but

from epibatch.connectors import ConnectorV2

GAMES = ("random", "turns", "steady")


class SkipSome(ConnectorV2):
    """Asks to skip every third episode that it is shown."""

    count = 0

    def __call__(self, *, batch, episodes, shared_data, **kwargs):
        self.count += len(episodes)
        shared_data["skip_env_step"] = [(self.count + i) % 3 == 0 for i in range(len(episodes))]
        return batch


@pytest.mark.parametrize("random_actions", [False, True])
@pytest.mark.parametrize("kind", slow_but(["turns"], GAMES))
def test_episodes_are_what_the_games_played(teams, kind, random_actions):
    seen, rng, chunks = [], np.random.default_rng(2), []
    runner = teams.runner(kind, 3, env_to_module=[teams.Seen(seen=seen), SkipSome()], scripted=not random_actions)
    for _ in range(60):
        mask = rng.random(3) < 0.6
        before = [len(game.record[-1].steps) if game.record else 0 for game in teams.game.games]
        chunks += runner.step(mask=mask, random_actions=random_actions)
        for env in np.flatnonzero(~mask) if any(before) else ():
            assert len(teams.game.games[env].record[-1].steps) == before[env]
        if rng.random() < 0.3:
            chunks += runner.sample(num_timesteps=4, random_actions=random_actions)
    records = [record for game in teams.game.games for record in game.record]
    given = [own for record in records for own in (record.reset[0], *(step[1] for step in record.steps))]
    assert Counter(seen) == Counter(tuple(row.tolist()) for own in given for row in own.values())
    played = sum(len(record.steps) for record in records)
    assert played == sum(map(len, chunks)) == runner.num_env_steps_sampled_lifetime
    episodes = teams.joined(chunks)
    assert len(episodes) > 6
    for place, episode in episodes.items():
        teams.assert_same(episode, teams.recorded(place).played())
        if not random_actions:
            teams.check_outputs(episode)


def test_a_reset_of_some_leaves_the_others_as_they_are(teams):
    runner = teams.runner("steady", 3, length=20)
    chunks = [chunk for _ in range(3) for chunk in runner.step()]
    runner.reset(mask=np.array([True, False, True]))
    assert list(runner.env.call("episode")) == [1, 0, 1]
    for _ in range(4):
        chunks += runner.step()
    episodes = teams.joined(chunks)
    assert {place: len(episode) for place, episode in episodes.items()} == {
        (0, 0): 3,
        (0, 1): 4,
        (1, 0): 7,
        (2, 0): 3,
        (2, 1): 4,
    }
    for place, episode in episodes.items():
        teams.assert_same(episode, teams.recorded(place).played())
    runner.reset()
    assert list(runner.env.call("episode")) == [2, 1, 2]


def test_actions_that_wait_are_forgotten_with_their_episodes(teams):
    runner = teams.runner("turns", 3)
    for _ in range(4):
        assert len(runner.step()) == 3
        runner.step(mask=[True, False, False])
        runner.reset()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_together_are_stepped_and_reset_in_part(teams, mode):
    envs = teams.runner("steady", 3, gym_env_vectorize_mode=mode).env
    observations, _ = envs.reset(mask=np.array([True, True, True]))
    mask = np.array([False, True, False])
    result = envs.step([dict.fromkeys(own, 0) for own in observations], mask=mask)
    assert [bool(own) for own in result[0]] == [bool(own) for own in result[1]] == [False, True, False]
    observations, _ = envs.reset(mask=mask)
    assert [bool(own) for own in observations] == [False, True, False]
    assert envs.call("episode") == (0, 1, 0) and not envs.ended.any()
