"""Episodes of several agents: everything that an environment returned is in them once, however they are cut."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from fixture_cases import slow, slow_but

from epibatch.connectors import ConnectorV2
from epibatch.core.errors import UnknownNameError
from oracle.agent_games import AGENTS, OBSERVATIONS

GAMES = ("random", "turns", "steady")


@pytest.mark.parametrize("kind", GAMES)
@pytest.mark.parametrize(("num_envs", "steps", "calls"), [(1, 1, 40), slow(3, 1, 30), slow(3, 7, 20), (2, 100, 2)])
def test_whatever_is_cut_chunks_put_together_are_what_the_games_played(teams, kind, num_envs, steps, calls):
    runner = teams.runner(kind, num_envs)
    chunks = [chunk for _ in range(calls) for chunk in runner.sample(num_timesteps=steps)]
    episodes = teams.joined(chunks)
    assert len(episodes) >= num_envs * 2
    for place, episode in episodes.items():
        teams.assert_same(episode, teams.recorded(place).played())
        teams.check_outputs(episode)
    played = sum(len(record.steps) for game in teams.game.games for record in game.record)
    assert played == sum(len(chunk) for chunk in chunks) == runner.num_env_steps_sampled_lifetime


@pytest.mark.parametrize("kind", slow_but(["turns"], GAMES))
def test_all_rewards_are_in_the_chunks_or_pending_in_the_last_one(teams, kind):
    runner = teams.runner(kind, 3)
    chunks = [chunk for _ in range(30) for chunk in runner.sample(num_timesteps=4)]
    last = {chunk.id_: chunk for chunk in chunks}
    found = sum(chunk.get_return() for chunk in chunks)
    found += sum(sum(chunk.pending_rewards.values()) for chunk in last.values())
    assert found == sum(record.rewards for game in teams.game.games for record in game.record)


@pytest.mark.parametrize("kind", slow_but(["turns"], GAMES))
def test_every_observation_passes_the_env_to_module_pipeline_once(teams, kind):
    seen = []
    runner = teams.runner(kind, 3, env_to_module=[teams.Seen(seen=seen)])
    for _ in range(25):
        runner.sample(num_timesteps=5)
    records = [record for game in teams.game.games for record in game.record]
    given = [own for record in records for own in (record.reset[0], *(step[1] for step in record.steps))]
    assert Counter(seen) == Counter(tuple(row.tolist()) for own in given for row in own.values())


@pytest.mark.parametrize("kind", slow_but(["turns"], GAMES))
def test_environments_in_processes_play_the_same(teams, kind):
    found = {}
    for mode in ("sync", "async"):
        runner = teams.runner(kind, 3, gym_env_vectorize_mode=mode)
        found[mode] = teams.joined([chunk for _ in range(12) for chunk in runner.sample(num_timesteps=5)])
    assert found["sync"].keys() == found["async"].keys()
    for place, episode in found["sync"].items():
        teams.assert_same(found["async"][place], episode)


def test_arrays_that_an_environment_uses_again(teams):
    runner = teams.runner("random", 2, reused=True, length=20)
    for place, episode in teams.joined([c for _ in range(20) for c in runner.sample(num_timesteps=3)]).items():
        teams.assert_same(episode, teams.recorded(place).played())


def test_the_mapping_is_asked_once_for_each_agent_of_an_episode_and_kept(teams):
    rng, asked = np.random.default_rng(0), defaultdict(list)

    def mapping(agent_id, episode, **kwargs):
        asked[episode.id_, agent_id].append(str(rng.choice(["walker", "thinker"])))
        return asked[episode.id_, agent_id][-1]

    runner = teams.runner("random", 3, mapping=mapping)
    chunks = [chunk for _ in range(25) for chunk in runner.sample(num_timesteps=3)]
    modules = defaultdict(set)
    for chunk in chunks:
        for segment in chunk.segments:
            modules[chunk.id_, segment.agent_id].add(segment.episode.module_id)
    assert all(len(answers) == 1 for answers in asked.values())
    assert {key: {answers[0]} for key, answers in asked.items() if key in modules} == modules
    assert len({module for own in modules.values() for module in own}) == 2
    for episode in teams.joined(chunks).values():
        teams.check_outputs(episode)


def test_a_module_that_is_not_there_is_named(teams):
    runner = teams.runner("steady", 1, mapping=lambda agent_id, episode: "wanderer")
    with pytest.raises(UnknownNameError, match=r"agent 'ann'[\s\S]*'wanderer'"):
        runner.sample(num_timesteps=1)


def test_spaces(teams):
    runner = teams.runner("steady", 2)
    spaces = runner.get_spaces()
    assert list(spaces["__env_single__"][0].spaces) == sorted(AGENTS)
    assert spaces["__env__"][0]["ann"].shape == (2, *OBSERVATIONS.shape)
    assert {name: pair[0] for name, pair in spaces.items() if name[0] != "_"} == {
        "walker": OBSERVATIONS,
        "thinker": OBSERVATIONS,
    }


@pytest.mark.parametrize("kind", slow_but(["turns"], GAMES))
def test_the_pieces_of_a_cut_run_see_what_they_see_in_an_uncut_one(teams, kind):
    found = []
    for steps in (1, 500):
        look = Look()
        runner = teams.runner(kind, 2, env_to_module=[look])
        for _ in range(40 // steps + 1):
            runner.sample(num_timesteps=steps)
        found.append(look.seen)
    assert len(found[0]) > 100 and found[0] == found[1][: len(found[0])]


class Look(ConnectorV2):
    """Notes the three newest observations of each agent, without saying that it reads them."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            rows = np.array(episode.get_observations([-3, -2, -1], fill=-1.0))
            self.seen.append((rows[-1].tolist(), rows[:, 4].tolist()))
        return batch


def test_chunks_keep_as_many_steps_of_each_agent_as_pieces_declare(teams):
    class Declared(ConnectorV2):
        reads, lookback = (), 2

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            return batch

    runner, kept = teams.runner("turns", 1, length=60, env_to_module=[Declared()]), []
    for _ in range(25):
        (chunk,) = runner.sample(num_timesteps=1)
        kept += [(segment.episode.t_started, segment.episode.lookback) for segment in chunk.segments]
    assert max(kept)[0] > 5 and all(lookback >= min(t_started, 2) for t_started, lookback in kept)
    for wanted, found in ((4, {4}), (None, {7, 8})):  # None: whatever there is, 4 and those since
        runner.require_lookback(wanted)
        for _ in range(11):
            (chunk,) = runner.sample(num_timesteps=1)
        assert {segment.episode.lookback for segment in chunk.segments} == found
