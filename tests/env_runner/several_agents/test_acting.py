"""What agents do, and what of it is stored."""

from __future__ import annotations

from collections import Counter

from epibatch.connectors import ConnectorV2
from epibatch.core.columns import Columns
from oracle.agent_games import AGENTS, game_class
from oracle.libraries import EPIBATCH


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


def test_changing_between_random_and_policy_resets(teams):
    runner = teams.runner("steady", 1, length=30, scripted=False)
    started = [runner.sample(num_timesteps=2, random_actions=own)[0].env_t_started for own in (0, 0, 1, 1, 0)]
    assert started == [0, 2, 0, 2, 0]


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
