"""Behaviours C56 to C64: how runners sample, of one agent and of several, beside RLlib's own in this process."""

from __future__ import annotations

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest

from oracle.agent_games import AGENTS, action_for, game_class, team_runner
from oracle.makers import Walk, make_runner, runner, settings, user
from oracle.probes import behaviour, by_library, in_lists

pytestmark = pytest.mark.filterwarnings("ignore")
BOX = gym.spaces.Box(np.float32([-2]), np.float32([4]))


def told(episode):
    """Number of the episode, first step, steps, and how it ended, as the observations and flags tell."""
    number = int(np.asarray(episode.get_observations(-1))[0])
    end = "terminated" if episode.is_terminated else "truncated" if episode.is_truncated else ""
    return number, episode.t_started, len(episode), end


@behaviour("C37")
def test_both_pipelines_of_a_step_share_one_dict(library):
    heard = []

    def tell(piece, batch, episodes):
        piece.keywords["shared_data"]["told"] = [episode.t for episode in episodes]

    def hear(piece, batch, episodes):
        heard.append((piece.keywords["shared_data"]["told"], [episode.t for episode in episodes]))

    sides = {"env_to_module_connector": tell, "module_to_env_connector": hear}
    pieces = {name: lambda *args, do=do: user(library, do) for name, do in sides.items()}
    runner(library, (9,), 2, **pieces).sample(num_timesteps=6)
    assert heard == [([0, 0], [0, 0]), ([1, 1], [1, 1]), ([2, 2], [2, 2])]


@behaviour("C56")
def test_steps_or_episodes_and_whole_vector_steps(library):
    walking = runner(library, (9,), 2)
    assert [len(chunk) for chunk in walking.sample(num_timesteps=5)] == [3, 3]
    assert [len(chunk) for chunk in walking.sample(num_timesteps=4)] == [2, 2]
    with pytest.raises(AssertionError):
        walking.sample(num_timesteps=1, num_episodes=1)


@behaviour("C56")
def test_ended_chunks_come_first_and_running_ones_go_on(library):
    walking = runner(library, (3, 5))
    first, second, third = (walking.sample(num_timesteps=n) for n in (4, 3, 4))
    assert list(map(told, first)) == [(0, 0, 3, "terminated"), (1, 0, 1, "")]
    assert list(map(told, second)) == [(1, 1, 3, "")]
    assert list(map(told, third)) == [(1, 4, 1, "truncated"), (2, 0, 3, "terminated")]
    assert first[1].id_ == second[0].id_ == third[0].id_ != first[0].id_
    assert in_lists(second[0].get_observations()) == [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0], [1.0, 4.0]]
    first[1].concat_episode(second[0])
    first[1].concat_episode(third[0])
    assert told(first[1]) == (1, 0, 5, "truncated") and in_lists(first[1].get_rewards()) == [1.0, 2.0, 3.0, 4.0, 5.0]


@behaviour("C57")
def test_whole_episodes_begin_and_end_with_a_reset(library):
    walking = runner(library, (3,), 2)
    walking.sample(num_timesteps=4)
    # both environments stood in their episodes 0, which are dropped
    whole = walking.sample(num_episodes=3)
    assert list(map(told, whole)) == [(1, 0, 3, "truncated"), (1, 0, 3, "truncated"), (2, 0, 3, "terminated")]
    after = walking.sample(num_timesteps=4)
    assert [(chunk.t_started, len(chunk)) for chunk in after] == [(0, 2), (0, 2)]
    assert {told(chunk)[0] for chunk in after} == {3}
    assert not {chunk.id_ for chunk in after} & {chunk.id_ for chunk in whole}


@behaviour("C57")
def test_a_forced_reset_drops_what_was_running(library):
    walking = runner(library, (9,))
    assert told(walking.sample(num_timesteps=4)[0]) == (0, 0, 4, "")
    assert told(walking.sample(num_timesteps=4, force_reset=True)[0]) == (1, 0, 4, "")


@behaviour("C58")
def test_the_step_of_an_automatic_reset_is_none_of_the_episodes(library):
    walking = runner(library, (3,))
    episodes = walking.sample(num_timesteps=9)
    assert [len(episode) for episode in episodes] == [3, 3, 3]
    for number, episode in enumerate(episodes):
        assert in_lists(episode.get_observations()) == [[float(number), float(t)] for t in range(4)]
        assert in_lists(episode.get_rewards()) == [1.0, 2.0, 3.0] and "reset" in episode.get_infos(0)


@behaviour("C58")
def test_every_observation_goes_through_env_to_module_once(library):
    seen = Counter()

    def note(piece, batch, episodes):
        for episode in episodes:
            number, t = in_lists(episode.get_observations(-1))
            seen[episode.id_, number, t] += 1
            assert episode.t == t

    walking = runner(library, (3, 2), 2, env_to_module_connector=lambda *args: user(library, note))
    episodes = [*walking.sample(num_timesteps=7), *walking.sample(num_timesteps=9)]
    expected = {
        (episode.id_, float(told(episode)[0]), float(episode.t_started + t))
        for episode in episodes
        for t in range(len(episode) + 1)
    }
    assert expected <= set(seen) and set(seen.values()) == {1}
    # nothing else went through but the first observations of successors without a step
    assert {t for _, _, t in set(seen) - expected} <= {0.0}


@behaviour("C60")
def test_the_module_s_actions_are_kept_and_the_scaled_ones_taken(library):
    (episode,) = make_runner(library, settings(library, (20,), action_space=BOX)).sample(num_episodes=1)
    kept = np.asarray(episode.get_actions())
    taken = np.stack([info["action"] for info in episode.get_infos()[1:]])
    assert kept.shape == taken.shape == (20, 1)
    np.testing.assert_allclose(taken, np.clip(-2 + (kept + 1) * 3, -2, 4), rtol=1e-5, atol=1e-5)
    assert not np.allclose(kept, taken)


@behaviour("C60")
def test_all_other_outputs_are_kept_with_the_number_of_the_weights(library):
    (episode,) = runner(library).sample(num_episodes=1)
    assert set(episode.extra_model_outputs) == {"action_dist_inputs", "action_logp", "weights_seq_no"}
    assert np.shape(episode.get_extra_model_outputs("action_dist_inputs")) == (3, 2)
    assert np.shape(episode.get_extra_model_outputs("action_logp")) == (3,)
    assert in_lists(episode.get_extra_model_outputs("weights_seq_no")) == [0, 0, 0]


@behaviour("C61")
def test_without_an_amount(library):
    """Whole episodes are as many as environments; fragments are per environment."""
    walking = runner(library, (3, 5), 2, batch_mode="complete_episodes")
    assert list(map(told, walking.sample())) == [(0, 0, 3, "terminated")] * 2
    assert list(map(told, walking.sample())) == [(1, 0, 5, "truncated")] * 2
    walking = runner(library, (9,), 2, rollout_fragment_length=4)
    assert list(map(told, walking.sample())) == [(0, 0, 4, "")] * 2


@behaviour("C62")
def test_seeds_are_given_at_the_first_reset_only(library):
    walking = make_runner(library, settings(library, (3,), 2).debugging(seed=42))
    walking.sample(num_timesteps=4)
    seeds = list(Walk.seeds)
    assert len({*seeds}) == 2 and None not in seeds
    walking.sample(num_timesteps=4)  # two automatic resets
    walking.sample(num_timesteps=4, force_reset=True)
    walking.sample(num_episodes=1)
    assert Walk.seeds[:2] == seeds and len(Walk.seeds) == 8 and set(Walk.seeds[2:]) == {None}


@behaviour("C62")
def test_the_number_of_a_runner_is_added_to_the_seed(library):
    config = settings(library, (3,), 2).debugging(seed=42)
    library.SingleAgentEnvRunner(config=config, worker_index=3).sample(num_timesteps=2)
    assert (Walk.seeds == [45, 46]) is by_library("runner-seeds", library, rllib=True, epibatch=False)


@behaviour("C63")
def test_ended_episodes_outlive_a_broken_environment(library):
    config = settings(library, (3,))
    if library.name == "RLlib":
        config = config.fault_tolerance(restart_failed_sub_environments=True)
    Walk.fails_at.append((2, 2))
    walking = make_runner(library, config)

    before = [(0, 0, 3, "terminated"), (1, 0, 3, "truncated")]
    if library.name == "epibatch":
        with pytest.raises(RuntimeError, match="the environment broke"):
            walking.sample(num_timesteps=10)
    found = list(map(told, walking.sample(num_timesteps=10)))
    # RLlib makes a new environment within the call and counts its steps from 0; here the next call has what was ended,
    # whose steps count towards its 10
    new = [(0, 0, 3, "terminated"), (1, 0, 3, "truncated"), (2, 0, 3, "terminated"), (3, 0, 1, "")]
    same = [(3, 0, 3, "truncated"), (4, 0, 1, "")]
    assert found == [*before, *by_library("O40", library, rllib=new, epibatch=same)]


@behaviour("C64")
def test_random_actions_are_the_environments_own(library):
    config = settings(library, (200,), action_space=gym.spaces.Box(np.float32([3]), np.float32([7])))
    (episode,) = make_runner(library, config).sample(num_episodes=1, random_actions=True)
    kept = np.asarray(episode.get_actions())
    taken = np.stack([info["action"] for info in episode.get_infos()[1:]])
    assert taken.min() < 3.5 and taken.max() > 6.5
    of_module = by_library("random-action-units", library, rllib=taken, epibatch=(taken - 3) / 2 - 1)
    np.testing.assert_allclose(kept, of_module, atol=1e-6)
    assert set(episode.extra_model_outputs) == {"weights_seq_no"}


@behaviour("C58")
def test_observations_of_several_agents_pass_the_pipeline_once(library):
    seen = Counter()

    def note(piece, batch, episodes):
        for one in piece.single_agent_episode_iterator([episode for episode in episodes if episode.is_reset]):
            seen[tuple(one.get_observations(-1).tolist())] += 1

    game = game_class(library, kind="turns", length=5)
    team_runner(library, game, 2, env_to_module=lambda: [user(library, note)]).sample(num_timesteps=20)
    records = [record for own in game.games for record in own.record]
    given = [own for record in records for own in (record.reset[0], *(step[1] for step in record.steps))]
    assert seen == Counter(tuple(row.tolist()) for own in given for row in own.values())


@behaviour("C60")
def test_actions_and_outputs_of_several_agents_are_their_modules(library):
    runner = team_runner(library, game_class(library, kind="turns", length=9), 1)
    (episode,) = runner.sample(num_episodes=1)
    for agent in AGENTS[:3]:
        one = episode.agent_episodes[agent]
        acted_on = [one.get_observations(t) for t in range(len(one))]
        assert [int(action) for action in one.get_actions()] == [action_for(row) for row in acted_on]
        assert [float(value) for value in one.get_extra_model_outputs("seen")] == [row[4] for row in acted_on]
        assert list(one.get_extra_model_outputs("weights_seq_no")) == [0] * len(one)


@behaviour("C64")
def test_random_actions_are_those_of_agents_that_act(library):
    game = game_class(library, kind="turns", length=9, scripted=False)
    runner = team_runner(library, game, 1)
    episodes = runner.sample(num_episodes=20, random_actions=True)
    steps = [step for own in game.games for record in own.record for step in record.steps]
    assert [list(step[0]) for step in steps[:4]] == [["ann"], ["bob"], ["cid"], ["ann"]]
    assert {action for step in steps for action in step[0].values()} == {0, 1, 2}
    assert all(not one.extra_model_outputs for episode in episodes for one in episode.agent_episodes.values())
