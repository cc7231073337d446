"""Behaviours C58, C60 and C64 with several agents, beside RLlib's own runner in this process."""

from __future__ import annotations

from collections import Counter

import pytest

from items.behaviours import behaviour
from oracle.agent_games import AGENTS, action_for, game_class, team_runner

pytestmark = pytest.mark.filterwarnings("ignore")


@behaviour("C58")
def test_observations_of_several_agents_pass_the_pipeline_once(library):
    seen = Counter()

    class Seen(library.ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            for one in self.single_agent_episode_iterator([episode for episode in episodes if episode.is_reset]):
                seen[tuple(one.get_observations(-1).tolist())] += 1
            return batch

    game = game_class(library, kind="turns", length=5)
    team_runner(library, game, 2, env_to_module=lambda: [Seen()]).sample(num_timesteps=20)
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
