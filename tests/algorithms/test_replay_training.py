"""Training around a replay buffer: how much is drawn for what is sampled, runners in processes, what is reported."""

from __future__ import annotations

import re
import warnings
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from fake_actors import FakeActors

from epibatch.algorithms import DQNConfig, SACConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import EpisodeTransform
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import ColumnError, ConfigError, EpibatchWarning
from epibatch.env_runner import EnvRunnerGroup, make_multi_agent
from epibatch.episodes import SingleAgentEpisode
from fixture_envs import CountingEnv

PRIORITIZED = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 1000, "alpha": 1.0}


class Runners:
    """Has `sample` of a group: episodes of as many steps as are asked for."""

    local_env_runner = SimpleNamespace(module=None, lookback=0)

    def __init__(self):
        self.calls = []

    def sample(self, *, num_timesteps, random_actions):
        self.calls.append((num_timesteps, random_actions))
        obs = np.arange(num_timesteps + 1.0)
        return [SingleAgentEpisode(observations=obs, actions=obs[1:], rewards=obs[1:], terminated=True,
                                   len_lookback_buffer=0)]  # fmt: skip


def small(kind=DQNConfig, **training):
    return kind().training(**{"train_batch_size": 8, "num_steps_sampled_before_learning_starts": 10, **training})


@pytest.mark.parametrize(
    ("intensity", "envs", "fragment", "each"),
    [(None, 1, 1, 1), (None, 4, "auto", 16), (None, 24, "auto", 24), (None, 5, "auto", 20), (8, 2, 3, 6),
     (2, 1, 1, 0.25), (1, 4, 2, 1), (24, 1, 5, 15), (40, 2, 50, 500), (0.5, 3, 1, 3 / 16)],
)  # fmt: skip
def test_as_many_steps_are_drawn_as_the_ratio_says(intensity, envs, fragment, each):
    """`each`: updates of 8 steps that a fragment is worth; after the warm-up, whose steps count for none."""
    runners, size = Runners(), envs * (-(-16 // envs) if fragment == "auto" else fragment)
    config = small(training_intensity=intensity).env_runners(
        num_envs_per_env_runner=envs, rollout_fragment_length=fragment
    )
    source, drawn = config.make_source(runners), 0
    while len(runners.calls) < 60 and drawn < 30_000:
        drawn += len(source.sample())
    warm_up = -(-10 // size)
    assert runners.calls[: warm_up + 2] == [(size, True)] * warm_up + [(size, False)] * 2
    worth = each * (len(runners.calls) - warm_up)
    assert worth - each - 32 - 1 < drawn / 8 <= worth + 1e-9
    counts = source.get_metrics()["replay_buffer"]
    steps = size * len(runners.calls)
    assert (counts["num_env_steps_added"], counts["num_env_steps_sampled"]) == (steps, drawn)
    assert counts["training_intensity"] == drawn / steps
    assert source.get_metrics()["replay_buffer"]["num_env_steps_added"] == 0, "those were reported"


def test_no_draw_has_more_than_a_few_updates():
    source = small().env_runners(rollout_fragment_length=200).make_source(Runners())
    sizes = [len(source.sample()) for _ in range(9)]
    assert sizes == [0, *[32 * 8] * 6, 8 * 8, 32 * 8], "200 updates, then the next fragment"


def test_beta_follows_the_steps_that_were_sampled():
    config = small(replay_buffer_config={**PRIORITIZED, "beta": [[0, 0.0], [100, 1.0]]}).debugging(seed=0)
    source = config.env_runners(rollout_fragment_length=10).make_source(Runners())
    assert len(source.sample()) == 0
    known = source.sample()
    source.buffer.update_priorities(1.0 + known.starts, known)
    for steps in (30, 40):
        drawn = source.sample()
        weights = source.buffer.sample(200, beta=1.0)
        has_priority = np.isin(drawn.drawn, known.drawn)
        old = drawn.starts[has_priority]
        assert len(weights) == 200 and len(old)
        found = drawn.per_chunk["weights"][has_priority]
        priorities = 1.0 + old
        ratio = np.log(found / found[0])[priorities != priorities[0]]
        logs = np.log(priorities / priorities[0])[priorities != priorities[0]]
        np.testing.assert_allclose(ratio, -steps / 100 * logs, rtol=1e-4)


@pytest.mark.parametrize(
    "change",
    [{"beta": -1.0}, {"beta": [[5, 1.0]]}, {"beta": "high"}, {"kept_outputs": "state"}, {"kept_outputs": [1]}],
)
def test_wrong_options_of_the_buffer_are_named(change):
    with pytest.raises(ConfigError, match="replay_buffer_config"):
        DQNConfig().training(replay_buffer_config={**PRIORITIZED, **change})


@pytest.mark.parametrize(
    ("name", "do"),
    [("prioritized_replay_alpha", "use alpha"), ("prioritized_replay_eps", "1e-6 is added"),
     ("replay_burn_in", "burn_in_len"), ("replay_sequence_length", "max_seq_len"),
     ("learning_starts", "num_steps_sampled_before_learning_starts"), ("capacty", "did you mean 'capacity'?")],
)  # fmt: skip
def test_options_of_other_buffers_have_a_hint(name, do):
    with pytest.raises(ConfigError) as caught:
        DQNConfig().training(replay_buffer_config={**PRIORITIZED, name: 1})
    assert f"unknown option {name!r}" in str(caught.value) and do in str(caught.value)


def test_settings_that_change_nothing_are_a_warning():
    with pytest.warns(EpibatchWarning, match="minibatch_size and num_epochs, which change nothing") as caught:
        config = small().training(num_epochs=3, minibatch_size=4)
    assert len(caught) == 1 and (config.num_epochs, config.minibatch_size) == (1, 8)
    again = DQNConfig.from_yaml(config.to_yaml()).training(train_batch_size=24)
    assert (again.copy().num_epochs, again.minibatch_size) == (1, 24)


@pytest.mark.parametrize(
    ("capacity", "warm_up", "found"),
    [(9, 10, "num_steps_sampled_before_learning_starts, 10"), (7, 5, "train_batch_size, 8"), (10, 10, None)],
)
def test_a_buffer_that_is_too_small_is_a_warning(capacity, warm_up, found):
    config = small(num_steps_sampled_before_learning_starts=warm_up, replay_buffer_config={"capacity": capacity})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config.validate()
    assert [found in str(warning.message) for warning in caught] == ([] if found is None else [True])


@pytest.mark.parametrize(
    ("training", "network", "found"),
    [({"burn_in_len": 3}, {}, "training.burn_in_len: needs a recurrent network"),
     ({"burn_in_len": 12}, {"use_gru": True, "max_seq_len": 12}, "burn_in_len: expected less than max_seq_len (12)"),
     ({"v_min": 2.0, "v_max": 2.0}, {}, "training.v_max: expected more than v_min (2.0), found 2.0")],
)  # fmt: skip
def test_errors_name_the_settings_that_were_written(training, network, found):
    with pytest.raises(ConfigError) as caught:
        small(**training).environment("CartPole-v1").rl_module(model_config=network).build_algo()
    assert found in str(caught.value)


def test_an_unknown_setting_gets_the_nearest_names_and_the_number_of_the_others():
    with pytest.raises(ConfigError) as caught:
        DQNConfig().training(train_batch=8)
    shown = re.search(r"did you mean 'train_batch_size'\? Known: (.*), and (\d+) more\n", str(caught.value))
    names = type(DQNConfig().settings.training).spellings()
    assert set(shown[1].split(", ")) < set(names) and int(shown[2]) == len(names) - len(shown[1].split(", "))


class Big(gym.Env):
    """Actions from 100 to 300; the observation is the action before."""

    observation_space = gym.spaces.Box(0, 300, (1,), np.float32)
    action_space = gym.spaces.Box(100, 300, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.float32(action), 1.0, False, False, {}


@pytest.mark.parametrize("learns", [False, True])
def test_actions_are_kept_in_the_units_of_the_module(learns):
    config = small(SACConfig, num_steps_sampled_before_learning_starts=0 if learns else 50).environment(Big)
    config = config.env_runners(rollout_fragment_length=40).debugging(seed=0)
    group = EnvRunnerGroup(config=config)
    source = config.make_source(group)
    source.sample()
    episodes = source.buffer.sample(60)
    actions = np.concatenate([episode.get_actions() for episode in episodes])
    applied = np.concatenate([episode.get_observations(1)[None] for episode in episodes])
    np.testing.assert_allclose(actions, (applied - 200) / 100, atol=1e-5)
    assert np.abs(actions).max() <= 1 and actions.std() > 0.2
    group.stop()


class Noting(ConnectorV2):
    """Writes the number of steps that schedules go by into a column."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        batch["seen"] = np.full(len(episodes), shared_data["num_env_steps"])
        return batch


def hosted(runners=2, scenario=None, **settings):
    """A source, and its group of runners with an actor each."""
    buffer = {"type": "EpisodeReplayBuffer", "capacity": 4000, "kept_outputs": ["seen", "weights_seq_no"]}
    config = small(num_steps_sampled_before_learning_starts=0, replay_buffer_config=buffer).environment(
        CountingEnv, env_config={"length": 7}
    )
    config = config.env_runners(
        num_env_runners=runners, num_envs_per_env_runner=3, rollout_fragment_length=5,
        module_to_env_connector=lambda *spaces: Noting(), **settings,
    ).debugging(seed=0)  # fmt: skip
    group = EnvRunnerGroup(config=config, make_actors=partial(FakeActors, scenario=scenario))
    return config.make_source(group), group


def test_runners_in_processes_fill_lanes_of_their_own():
    source, group = hosted()
    for _ in range(6):
        group.sync_weights()
        drawn = source.sample()
        assert source.num_env_steps == 2 * 3 * 5 and len(drawn) == 8 * 30
        source.sample_ahead()
        assert group.num_in_flight_async_reqs() == 2, "they sample while the modules learn"
    assert source.buffer.lanes.num_lanes == 6
    episodes = list(source.buffer.sample(400))
    for episode in episodes:
        before, after = episode.get_observations()
        assert after[0] == before[0] + 1, "no lane has steps of two runners in between"
    versions = {int(episode.get_extra_model_outputs("weights_seq_no")[0]) for episode in episodes}
    assert versions >= {1, 2, 3, 4, 5}
    group.stop()


@pytest.mark.slow
def test_schedules_of_runners_follow_the_steps_of_all():
    source, group = hosted(runners=3)
    while source.buffer.get_added_timesteps() < 5 * 45:
        source.sample()
    seen = [int(e.get_extra_model_outputs("seen")[0]) for e in source.buffer.sample(2000)]
    first, most = min(seen), max(seen)
    assert first == 0 and 4 * 45 <= most < 5 * 45
    assert set(seen) == {45 * call + 3 * step for call in range(5) for step in range(5)}
    group.stop()


@pytest.mark.filterwarnings("ignore:(?s)env runner .*; replaced, ")
def test_a_lost_runner_costs_its_fragment():
    lost = []

    def scenario(actors, index, ran):
        if index == 2 and ran == 2 and not lost:
            lost.append(index)
            return "die"
        return None

    source, group = hosted(scenario=scenario)
    steps = []
    for _ in range(6):
        source.sample()
        steps.append(source.num_env_steps)
    assert lost and sorted(steps) == [15, 30, 30, 30, 30, 30]
    assert len(source.buffer) == sum(steps) and group.fault_report()["num_env_steps_lost"] == 15
    for episode in source.buffer.sample(300):
        before, after = episode.get_observations()
        assert after[0] == before[0] + 1
    group.stop()


class ShortConfig(DQNConfig):
    """Iterations of 60 steps."""

    min_env_steps_per_iteration = 60


def test_results_of_training_have_the_buffer_and_batches_have_kept_outputs():
    kept, versions = {"type": "EpisodeReplayBuffer", "capacity": 50, "kept_outputs": ["weights_seq_no"]}, []

    class Seen(ConnectorV2):
        """Keeps a column of the batches."""

        def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
            versions.append([int(e.get_extra_model_outputs("weights_seq_no")[0]) for e in episodes])
            return batch

    config = ShortConfig().training(
        train_batch_size=8, num_steps_sampled_before_learning_starts=10, replay_buffer_config=kept
    )
    config = config.environment(CountingEnv).env_runners(rollout_fragment_length=20).debugging(seed=0)
    config = config.learners(learner_connector=lambda *spaces: Seen()).rl_module(model_config={"fcnet_hiddens": [4]})
    algo = config.build_algo()
    results = algo.train()["replay_buffer"]
    assert results["num_env_steps_added"] == results["num_env_steps_added_lifetime"] == 60
    assert results["num_env_steps_sampled"] == 8 * 40 and results["training_intensity"] == 8 * 40 / 60
    assert 35 <= results["num_env_steps_stored"] <= 50
    assert [max(each) for each in versions] == [0, 1], "each fragment of the weights of one update"
    drawn = algo.replay_buffer.sample(30)
    batch = algo.learner.make_batch(drawn)["default_policy"]
    versions = [int(episode.get_extra_model_outputs("weights_seq_no")[0]) for episode in drawn]
    assert batch["weights_seq_no"].tolist() == versions and set(versions) == {0, 1}
    algo.stop()


@pytest.mark.parametrize("kind", [DQNConfig, SACConfig])
def test_outputs_of_the_module_are_kept_from_the_first_step_on(kind):
    kept = {"type": "EpisodeReplayBuffer", "capacity": 50, "kept_outputs": ["action_logp"]}
    config = small(kind, replay_buffer_config=kept).environment("CartPole-v1").debugging(seed=0)
    group = EnvRunnerGroup(config=config)
    source = config.make_source(group)
    while not len(source.sample()):
        pass
    logp = [float(episode.get_extra_model_outputs("action_logp")[0]) for episode in source.buffer.sample(40)]
    assert max(logp) <= 0 and min(logp) < -0.1
    group.stop()


class TenTimes(CountingEnv):
    """Its infos have ten times the number of steps."""

    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"tens": 10.0 * self.steps}


class Kept(ConnectorV2):
    """Keeps the columns `obs` and `tens` of train batches."""

    rows = ()

    def __call__(self, *, batch, **kwargs):
        parts = batch.values() if "default_policy" in batch or "p" in batch else [batch]
        self.rows = [*self.rows, *[(np.asarray(part["obs"]), np.asarray(part["tens"])) for part in parts]]
        return batch


@pytest.mark.parametrize("kind", ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"])
@pytest.mark.parametrize("agents", [1, 2])
def test_infos_are_kept_for_pieces_that_read_them_or_an_error_says_how(kind, agents):
    def built(**options):
        config = small(replay_buffer_config={"type": kind, **options}).environment(TenTimes)
        config.env_runners(rollout_fragment_length=1).rl_module(model_config={"fcnet_hiddens": [8]})
        if agents > 1:
            config.environment(make_multi_agent(TenTimes), env_config={"num_agents": agents})
            config.multi_agent(policies={"p"}, policy_mapping_fn=lambda *args, **kwargs: "p")
        kept = Kept()
        views = TrajectoryViews(views={"tens": View("infos/tens", shift=1)})
        config.learners(learner_connector=lambda *spaces: views)
        algo = config.build_algo()
        algo.learner.connector.append(kept)
        return algo, kept

    def train(algo):
        for _ in range(14):
            algo.training_step()

    algo, kept = built(keep_infos=True)
    train(algo)
    algo.stop()
    for obs, tens in kept.rows:
        np.testing.assert_allclose(tens.reshape(-1), 10.0 * (obs.reshape(-1) + 1))
    assert kept.rows
    algo, _ = built()
    with pytest.raises(ColumnError, match=r"infos were not kept[\s\S]*'keep_infos': True"):
        train(algo)
    algo.stop()


class LessRewards(EpisodeTransform):
    """Takes 1 off every reward of what was drawn."""

    def transform_episode(self, episode):
        episode.set_rewards(new_data=episode.get_rewards() - 1.0)


@pytest.mark.parametrize("n_step", [1, 3])
def test_rewards_that_pieces_change_in_episodes_are_summed(n_step):
    config = small(n_step=n_step, gamma=0.5).environment(CountingEnv)
    config.learners(learner_connector=lambda obs, act: LessRewards())
    algo = config.build_algo()
    rows = {"observations": np.arange(6.0)[:, None], "actions": [0] * 5, "rewards": [2.0] * 5}
    chunk = SingleAgentEpisode(**rows, terminated=True, len_lookback_buffer=0)
    connector = algo.learner.connector
    batch = connector(rl_module=algo.learner.module, batch={}, episodes=[chunk])["default_policy"]
    algo.stop()
    steps_left = np.minimum(n_step, 5 - np.arange(5))
    expected = [sum(0.5**step for step in range(count)) for count in steps_left]
    np.testing.assert_allclose(np.asarray(batch["rewards"])[:5], expected, rtol=1e-6)


class MoreRewards(EpisodeTransform):
    """Adds ten times what a step led to."""

    def transform_episode(self, episode):
        episode.set_rewards(new_data=episode.get_rewards() + 10.0 * episode.get_observations()[1:, 0])


def test_pieces_change_episodes_before_they_are_added_to_the_buffer():
    piece, drawn = MoreRewards(), []

    def on_sample_end(samples, **kwargs):
        piece(batch={}, episodes=samples)

    config = small().environment(CountingEnv).callbacks(on_sample_end=on_sample_end).debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=3)  # episodes of 5 steps
    group = EnvRunnerGroup(config=config)
    source = config.make_source(group)
    while len(source.buffer) < 90:
        drawn += source.sample()
    rows = {(step.get_observations(1)[0].item(), step.get_rewards(0)) for step in [*drawn, *source.buffer.sample(200)]}
    assert rows == {(float(at), 1.0 + 10.0 * at) for at in range(1, 6)}, "once for each step"
    group.stop()
