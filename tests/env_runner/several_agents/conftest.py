"""Runners of several agents on games that keep a record, and what their episodes are held to."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.env_runner import MultiAgentEnvRunner, environment_seeds
from oracle.agent_games import TeamConfig, action_for, game_class, module_of, specs_of
from oracle.libraries import EPIBATCH


def remember_numbers(episode, env_runner, env_index, **kwargs):
    episode.custom_data["place"] = env_index, env_runner.env.call("episode")[env_index]


class Seen(ConnectorV2):
    """Notes the newest observations that it is shown, and refuses episodes without any."""

    def __init__(self, *args, seen=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = seen

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in episodes:
            assert episode.is_reset and episode.get_agents_that_stepped()
        for episode in self.single_agent_episode_iterator(episodes):
            self.seen.append(tuple(episode.get_observations(-1).tolist()))
        return batch


class Teams:
    """Makes runners on games, and closes them."""

    Seen = Seen

    def __init__(self):
        self.runners = []

    def runner(self, kind="random", num_envs=2, *, game=None, mapping=module_of, specs=None, counts=None, **settings):
        pieces = {name: settings.pop(name, ()) for name in ("env_to_module", "module_to_env")}
        options = {name: settings.pop(name) for name in ("length", "fail_at", "reused", "scripted") if name in settings}
        seed, worker_index = settings.pop("seed", 3), settings.pop("worker_index", 0)
        if settings.get("gym_env_vectorize_mode") == "async":
            options["seeds"] = environment_seeds(seed, num_envs)
        self.game = game or game_class(EPIBATCH, kind=kind, **options)
        config = PPOConfig().environment(self.game).debugging(seed=seed)
        config.reporting(metrics_num_episodes_for_smoothing=settings.pop("window", 100))
        callbacks = settings.pop("callbacks", {})
        starts = [remember_numbers, *([callbacks["on_episode_start"]] if "on_episode_start" in callbacks else [])]
        config.callbacks(**{**callbacks, "on_episode_start": starts})
        config.env_runners(num_envs_per_env_runner=num_envs, **settings)
        team = TeamConfig(config, specs or specs_of(EPIBATCH), mapping, **pieces)
        team.count_steps_by = counts or "env_steps"
        self.runners.append(MultiAgentEnvRunner(config=team, worker_index=worker_index))
        return self.runners[-1]

    def recorded(self, place):
        return self.game.games[place[0]].record[place[1]]

    @staticmethod
    def joined(chunks):
        """Episodes by (environment, number), chunks put together."""
        out = {}
        for chunk in chunks:
            place = chunk.custom_data["place"]
            if place in out:
                out[place].concat_episode(chunk)
            else:
                out[place] = chunk.slice(slice(None))
        return out

    @staticmethod
    def assert_same(found, expected):
        """Two episodes hold the same, but for names and outputs of modules."""
        for name in ("env_t_started", "env_t", "is_terminated", "is_truncated", "pending_actions", "pending_rewards"):
            assert getattr(found, name) == getattr(expected, name), name
        assert len(found.segments) == len(expected.segments)
        for mine, right in zip(found.segments, expected.segments):
            assert (mine.agent_id, mine.ended_at) == (right.agent_id, right.ended_at)
            assert mine.env_steps.tolist() == right.env_steps.tolist()
            one, other = mine.episode, right.episode
            assert (one.is_terminated, one.is_truncated) == (other.is_terminated, other.is_truncated)
            assert list(one.get_infos()) == list(other.get_infos())
            for column in ("observations", "actions", "rewards"):
                np.testing.assert_array_equal(
                    getattr(one, f"get_{column}")(), getattr(other, f"get_{column}")(), column
                )

    @staticmethod
    def check_outputs(episode):
        """Outputs are of the observation acted on; the recurrent state counts the agent's steps in its life."""
        for segment in episode.segments:
            single = segment.episode
            if not len(single):
                continue
            acted_on = single.get_observations(slice(0, len(single)))
            np.testing.assert_array_equal(single.get_extra_model_outputs("seen"), acted_on[:, 4])
            assert single.get_actions().tolist() == [action_for(row) for row in acted_on]
            assert ("state_out" in single.extra_model_outputs) == (single.module_id == "thinker")
            if single.module_id == "thinker":
                found = single.get_extra_model_outputs("state_out")["steps"][:, 0]
                assert found.tolist() == list(range(1, len(single) + 1))


@pytest.fixture
def teams():
    made = Teams()
    yield made
    for runner in made.runners:
        runner.stop()
