"""Simulators that drive: their episodes are those of an environment that is stepped, and nothing of them is lost."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_simulators import clients_of_page, drive, in_thread
from gymnasium.utils.env_checker import data_equivalence

from epibatch.algorithms import PPO, Policy, PPOConfig
from epibatch.connectors import ConnectorV2, FrameStacking, MeanStdFilter
from epibatch.core.errors import ConfigError, EpibatchWarning, RunnerError, SpaceError
from epibatch.env_runner import ExternalEnvRunner, ExternalEnvs, SingleAgentEnvRunner, environment_seeds

SPACES = {"observation_space": gym.spaces.Box(-np.inf, np.inf, (2,)), "action_space": gym.spaces.Discrete(2)}


class Nested(gym.Env):
    """Dict and Tuple observations of several types, Tuple actions; five steps."""

    observation_space = gym.spaces.Dict(
        b=gym.spaces.Tuple([gym.spaces.Discrete(7, start=2), gym.spaces.MultiBinary(2)]),
        a=gym.spaces.Box(0, 255, (2, 3), np.uint8),
    )
    action_space = gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-2, 2, (2,))])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {"t": 0}

    def observe(self):
        self.t += 1
        picture = self.np_random.integers(0, 256, (2, 3), np.uint8)
        return {"a": picture, "b": (np.int64(self.t + 1), np.array([self.t % 2, 1], np.int8))}

    def step(self, action):
        assert self.action_space.contains(action)
        observation = self.observe()
        return observation, float(action[1].sum()), self.t == 6, False, {"t": self.t}


def config_of(env=None, num_envs=1, **settings):
    """A config of simulators that have an environment's spaces."""
    spaces = SPACES if env is None else {name: getattr(env, name) for name in SPACES}
    config = PPOConfig().environment(**spaces).debugging(seed=3)
    return config.env_runners(
        env_runner_cls=ExternalEnvRunner, num_envs_per_env_runner=num_envs, explore=False, **settings
    )


@pytest.fixture
def made():
    """Makes runners, and stops them."""
    runners = []

    def make(config=None, **settings):
        runners.append(ExternalEnvRunner(config=config or config_of(**settings)))
        return runners[-1]

    yield make
    for runner in runners:
        runner.stop()


def same_steps(left, right, infos=True):
    """Assert that two episodes have the same columns, flags and infos."""
    assert (len(left), left.is_terminated, left.is_truncated) == (len(right), right.is_terminated, right.is_truncated)
    assert left.get_infos() == right.get_infos() or not infos
    assert left.extra_model_outputs.keys() == right.extra_model_outputs.keys()
    columns = [lambda e: e.get_observations(), lambda e: e.get_actions(), lambda e: e.get_rewards()]
    columns += [lambda e, key=key: e.get_extra_model_outputs(key) for key in left.extra_model_outputs]
    for column in columns:
        equal = data_equivalence(column(left), column(right), exact=True)
        assert equal, (column(left), column(right))


def filtered_stacks(env, spaces, device):
    return [MeanStdFilter(), FrameStacking(num_frames=3, new_axis=True)]


CASES = {
    "plain": ("CartPole-v1", {}, {}),
    "clipped": ("Pendulum-v1", {}, {}),
    "stacked and filtered": ("CartPole-v1", {"env_to_module_connector": filtered_stacks}, {}),
    "recurrent": ("CartPole-v1", {}, {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}),
    "nested": (Nested, {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_episodes_equal_those_of_an_environment_that_is_stepped(made, case):
    env, settings, model = CASES[case]
    simulator = gym.make(env) if isinstance(env, str) else env()
    config = config_of(simulator, **settings).rl_module(model_config={"fcnet_hiddens": [8], **model})
    config.environment(normalize_actions=case != "clipped", clip_actions=case == "clipped")
    stepped = SingleAgentEnvRunner(config=config.copy().environment(env))
    runner = made(config)
    runner.module.set_state(stepped.module.get_state())
    in_thread(drive, runner.env, simulator, None, environment_seeds(3, 1)[0])
    for amount in (47, 30, 33):  # chunks begin and end at other places
        left, right = (whole_of([each.sample(num_timesteps=amount)]) for each in (runner, stepped))
        for ours, theirs in zip(left, right, strict=True):
            same_steps(ours, theirs)
    left, right = (each.get_state()["env_to_module_connector"] for each in (runner, stepped))
    assert data_equivalence(left, right, exact=True)
    left, right = runner.get_metrics(), stepped.get_metrics()
    differing = {"sample", "env_step_timer"}
    for key in (left.keys() | right.keys()) - differing:
        np.testing.assert_equal(left[key], right[key])
    stepped.stop()


def whole_of(samples):
    """Chunks joined by episode, in the order of their first ones."""
    episodes = {}
    for chunk in (chunk for chunks in samples for chunk in chunks):
        if chunk.id_ in episodes:
            episodes[chunk.id_].concat_episode(chunk)
        else:
            episodes[chunk.id_] = chunk.slice(slice(None))
    return list(episodes.values())


@pytest.mark.parametrize(("mode", "calls"), [({"num_timesteps": 30}, 3), ({"num_episodes": 4}, 7)])
def test_many_simulators_at_once(made, toys, mode, calls):
    config = config_of(num_envs=3, keep_running_episodes=True).rl_module(rl_module_spec=toys.config().rl_module_spec)
    runner = made(config)
    make = toys.factory()
    for _ in range(3):
        in_thread(drive, runner.env, make({}), 10)  # 35, 34 and 31 steps
    samples = [runner.sample(**mode) for _ in range(calls)]
    episodes = toys.joined(chunk for chunks in samples for chunk in chunks)
    for episode in episodes.values():
        toys.check(episode)
        np.testing.assert_array_equal(episode.get_actions(), np.arange(len(episode)) % 2)  # as the module acts
    for env in range(3):
        numbers = sorted(number for index, number in episodes if index == env)
        assert numbers == list(range(len(numbers)))  # none is missing
    metrics = runner.get_metrics()
    if "num_timesteps" in mode:
        assert all(sum(map(len, chunks)) >= 30 for chunks in samples)
        assert metrics["num_env_steps_sampled"] == sum(len(chunk) for chunks in samples for chunk in chunks)
        assert metrics["num_episodes"] == sum(episode.is_done for episode in episodes.values())
    else:
        assert all(len(chunks) == 4 and all(chunk.is_done for chunk in chunks) for chunks in samples)


def test_the_client_of_the_page_plays_the_same_episodes(made, tmp_path):
    torch.manual_seed(3)  # actions of these weights end several episodes
    config = config_of(gym.make("CartPole-v1")).environment(env_config={"port": 0, "token": "known"})
    stepped = SingleAgentEnvRunner(config=config.copy().environment("CartPole-v1", env_config={}))
    runner = made(config)
    runner.module.set_state(stepped.module.get_state())
    with clients_of_page(tmp_path, runner.server, 1, *environment_seeds(3, 1)):
        ours = runner.sample(num_timesteps=200)
    theirs = stepped.sample(num_timesteps=200)
    assert len(ours) > 2
    for left, right in zip(ours, theirs, strict=True):
        same_steps(left, right, infos=False)
    stepped.stop()


def episode_of(env, steps, ends="end"):
    """Play an episode of so many steps, whose observations are their numbers; the simulator may go before the end."""
    episode_id = env.start_episode()
    for t in range(steps + (ends == "lost")):
        env.observe(episode_id, np.full(2, t), float(t), {"t": t})
    if ends == "lost":
        env.lose_episode(episode_id)
    else:
        env.end_episode(episode_id, np.full(2, steps), float(steps), info={"t": steps})


def test_callbacks_of_an_episode_come_in_order_and_once(made):
    calls = {0: [], 1: []}
    names = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")
    note = {name: lambda env_index, name=name, **kwargs: calls[env_index].append(name[11:]) for name in names}
    runner = made(config_of(num_envs=2).callbacks(**note))
    for ends in ("end", "lost", "end"):
        in_thread(episode_of, runner.env, 2, ends)
        assert list(map(len, runner.sample(num_episodes=1))) == [2]
    once = ["start", "step", "step", "end", "created"]
    assert calls[0] == ["created", *once, "created", *once, "created", *once] and calls[1] == ["created"] * 3
    assert runner.get_metrics()["num_episodes"] == 3


def test_a_simulator_that_goes_leaves_a_truncated_episode(made):
    runner = made(num_envs=2, keep_running_episodes=True)
    in_thread(episode_of, runner.env, 4, "lost")
    (episode,) = runner.sample(num_episodes=1)
    assert (episode.is_terminated, episode.is_truncated) == (False, True)
    assert episode.get_observations()[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert episode.get_rewards().tolist() == [1, 2, 3, 4]
    assert episode.get_infos()[-1] == {"t": 4, "env_failure": "the simulator has gone"}
    in_thread(episode_of, runner.env, 3)
    (episode,) = runner.sample(num_episodes=1)
    assert episode.is_terminated and episode.get_observations()[:, 0].tolist() == [0, 1, 2, 3]
    metrics = runner.get_metrics()
    assert (metrics["num_env_steps_sampled"], metrics["episode_len_max"], metrics["episode_return_max"]) == (7, 4, 10)


def test_an_episode_that_is_said_to_be_truncated_is_that_alone(made):
    def play(env):
        episode_id = env.start_episode()
        env.observe(episode_id, np.zeros(2))
        env.end_episode(episode_id, np.ones(2), 1.0, truncated=True)

    runner = made(num_envs=2)
    in_thread(play, runner.env)
    (episode,) = runner.sample(num_episodes=1)
    assert (episode.is_terminated, episode.is_truncated) == (False, True)


def test_an_episode_is_lost_while_its_first_call_waits(made):
    runner = made()
    lost = runner.env.start_episode()
    thread = in_thread(runner.env.observe, lost, np.zeros(2))
    time.sleep(0.1)
    runner.env.lose_episode(lost)
    waits_for_its_place = threading.Timer(0.1, episode_of, [runner.env, 2])

    def play():
        while thread.is_alive():
            time.sleep(0.01)
        waits_for_its_place.start()

    in_thread(play)
    (episode,) = runner.sample(num_timesteps=2)
    assert episode.get_observations()[:, 0].tolist() == [0, 1, 2]
    thread.join(10)
    assert not thread.is_alive()


def test_no_call_follows_the_loss_of_an_episode(made):
    runner, raised = made(), []

    def play():
        episode_id = runner.env.start_episode()
        for t in range(3):
            runner.env.observe(episode_id, np.full(2, t + 1), float(t))
        runner.env.lose_episode(episode_id)
        with pytest.raises(RunnerError, match="an episode that runs") as error:
            runner.env.observe(episode_id, np.full(2, 4), 3.0)
        raised.append(error)
        episode_of(runner.env, 2)

    in_thread(play)
    chunks = runner.sample(num_timesteps=4)
    rows = [chunk.get_observations()[:, 0].tolist() for chunk in chunks]
    assert rows == [[1, 2, 3], [0, 1, 2]] and len(raised) == 1


def test_many_simulators_go_before_their_first_step(made):
    runner = made(num_envs=2)

    def play():
        runner.env.observe(stays := runner.env.start_episode(), np.zeros(2))
        runner.env.observe(stays, np.full(2, 1), 1.0)
        for _ in range(40):  # more than the rows that a fragment of one step has
            episode_of(runner.env, 0, "lost")
        with pytest.raises(RunnerError, match="stopped"):
            runner.env.observe(stays, np.full(2, 2), 2.0)

    thread = in_thread(play)
    for t in (0, 1):
        (chunk,) = runner.sample(num_timesteps=1)
        assert chunk.get_observations()[:, 0].tolist() == [t, t + 1] and chunk.get_rewards().tolist() == [t + 1]
    runner.stop()
    thread.join(10)


def test_a_simulator_that_goes_where_a_chunk_was_cut(made):
    runner = made(num_envs=2)
    in_thread(episode_of, runner.env, 4, "lost")
    assert [chunk.get_observations()[:, 0].tolist() for chunk in runner.sample(num_timesteps=4)] == [[0, 1, 2, 3, 4]]
    in_thread(episode_of, runner.env, 3)
    (episode,) = runner.sample(num_timesteps=3)
    assert episode.get_observations()[:, 0].tolist() == [0, 1, 2, 3] and episode.t_started == 0
    assert runner.get_metrics()["num_episodes"] == 2  # the first one ended, though it had no steps to hand over


def test_episodes_of_simulators_that_go_can_be_dropped(made):
    runner = made(config_of(num_envs=2).fault_tolerance(failed_episodes="drop"))
    in_thread(lambda: [episode_of(runner.env, 4, "lost"), episode_of(runner.env, 3)])
    (episode,) = runner.sample(num_episodes=1)
    assert episode.get_observations()[:, 0].tolist() == [0, 1, 2, 3]


def test_a_reset_drops_running_episodes(made):
    runner, answers, goes_on = made(num_envs=3), {}, threading.Event()

    def play(name, waits):
        episode_id = runner.env.start_episode()
        answers[name] = [runner.env.observe(episode_id, np.zeros(2))]
        if waits:
            goes_on.wait()
        while answers[name][-1] is not None:
            answers[name].append(runner.env.observe(episode_id, np.zeros(2)))

    threads = [in_thread(play, "waits for an action", False), in_thread(play, "simulates", True)]
    while len(answers) < 2:
        runner.sample(num_timesteps=1)
    in_thread(episode_of, runner.env, 2)
    (chunk,) = runner.sample(num_timesteps=2, force_reset=True)
    assert chunk.get_observations()[:, 0].tolist() == [0, 1, 2]
    goes_on.set()
    for thread in threads:
        thread.join(10)
    assert all(given[-1] is None for given in answers.values())


class Fails(ConnectorV2):
    """Raises in its seventh call."""

    calls = 0

    def __call__(self, *, batch, **kwargs):
        self.calls += 1
        if self.calls == 7:
            raise ArithmeticError("seventh call")
        return batch


def test_after_an_error_simulators_begin_again(made, toys):
    runner = made(env_to_module_connector=lambda env, spaces, device: Fails())
    in_thread(drive, runner.env, toys.factory()({}), 9)
    with pytest.raises(ArithmeticError, match="seventh"):
        runner.sample(num_timesteps=20)
    chunks = [*runner.sample(num_timesteps=9), *runner.sample(num_timesteps=9)]
    numbers = [int(chunk.get_observations(0)[0]) // 100 for chunk in chunks if chunk.t_started == 0]
    assert numbers[:3] == [0, 2, 3]  # it ended before; the one that ran was dropped
    for episode in toys.joined(chunks).values():
        toys.check(episode)


def test_a_checkpoint_goes_on(tmp_path):
    config = config_of(gym.make("CartPole-v1"), num_envs=2)
    config.training(train_batch_size=64, minibatch_size=32, num_epochs=1).rl_module(model_config={"fcnet_hiddens": [4]})
    algo = config.build_algo()
    for _ in range(2):
        in_thread(drive, algo.env_runner.env, gym.make("CartPole-v1"))
    algo.train()
    running = {chunk.id_ for chunk in algo.env_runner.sample(num_timesteps=20) if not chunk.is_done}
    algo.save_to_path(tmp_path)
    assert running <= {chunk.id_ for chunk in algo.env_runner.sample(num_timesteps=20)}  # they were not dropped
    algo.stop()
    restored = PPO.from_checkpoint(tmp_path)
    assert type(restored.env_runner) is ExternalEnvRunner
    assert Policy.from_checkpoint(tmp_path).act(np.zeros(4, np.float32))[0] in (0, 1)
    in_thread(drive, restored.env_runner.env, gym.make("CartPole-v1"))
    results = restored.train()
    assert results["training_iteration"] == 2 and results["env_runners"]["num_env_steps_sampled_lifetime"] >= 128
    restored.stop()


def test_stop_ends_calls_that_wait(made):
    runner, caught = made(), []
    env, episode_id = runner.env, runner.env.start_episode()

    def wait():
        with pytest.raises(RunnerError, match="stopped") as error:
            env.observe(episode_id, np.zeros(2))
        caught.append(error)

    thread = in_thread(wait)
    time.sleep(0.05)
    runner.stop()
    thread.join(10)
    assert len(caught) == 1
    for call in (env.start_episode, partial(env.observe, episode_id, np.zeros(2))):
        with pytest.raises(RunnerError, match="stopped"):
            call()


WRONG = {
    "shape": (lambda env, key: env.observe(key, np.zeros(3)), r"observation\n.*numbers of shape \(2,\).*\(3,\)"),
    "nesting": (lambda env, key: env.observe(key, {"a": 0}), "the nesting of Box"),
    "text": (lambda env, key: env.observe(key, ["a", "b"]), "numbers of shape"),
    "NaN": (lambda env, key: env.observe(key, [np.nan, 0]), "finite numbers"),
    "too large": (lambda env, key: env.observe(key, [1e300, 0]), "finite numbers"),
    "reward": (lambda env, key: env.observe(key, np.zeros(2), np.inf), "reward"),
    "first reward": (lambda env, key: env.observe(key, np.zeros(2), 1.0), "before the first action"),
    "info": (lambda env, key: env.observe(key, np.zeros(2), info=[1]), "a dict as info"),
    "end without a step": (lambda env, key: env.end_episode(key, np.zeros(2)), "before the first action"),
    "no flag": (lambda env, key: env.end_episode(key, np.zeros(2), terminated=False), "terminated or truncated"),
    "flag": (lambda env, key: env.end_episode(key, np.zeros(2), terminated="yes"), "terminated"),
    "id": (lambda env, key: env.observe("another", np.zeros(2)), "the id 'another'"),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_raises_and_the_episode_goes_on(made, call, message):
    runner = made(num_envs=2)
    episode_id = runner.env.start_episode()
    with pytest.raises(RunnerError, match=rf"(?s){message}"):
        call(runner.env, episode_id)

    def play():
        runner.env.observe(episode_id, np.zeros(2))
        runner.env.end_episode(episode_id, np.ones(2), 1.0)

    in_thread(play)
    assert [len(episode) for episode in runner.sample(num_episodes=1)] == [1]


def test_no_more_episodes_than_environments_and_one_call_at_a_time():
    envs = ExternalEnvs(2, *SPACES.values())
    first, second = envs.start_episode(), envs.start_episode()
    assert first != second
    with pytest.raises(RunnerError, match="num_envs_per_env_runner"):
        envs.start_episode()
    envs.lose_episode(first)
    envs.start_episode()

    def wait():
        with pytest.raises(RunnerError, match="stopped"):
            envs.observe(second, np.zeros(2))

    waiting = in_thread(wait)
    time.sleep(0.05)
    with pytest.raises(RunnerError, match="one call at a time"):
        envs.observe(second, np.zeros(2))
    envs.close()
    waiting.join(10)
    assert not waiting.is_alive()


CONFIGS = {
    "no spaces": (lambda: PPOConfig().env_runners(env_runner_cls=ExternalEnvRunner), ConfigError, "the spaces of"),
    "horizon": (lambda: config_of(horizon=7), ConfigError, "horizon=7"),
    "wrappers": (lambda: config_of().environment(wrappers=["FlattenObservation"]), ConfigError, "wrappers"),
    "unknown": (lambda: config_of().environment(env_config={"size": 3}), ConfigError, "found: +size"),
    "limit": (lambda: config_of().environment(env_config={"port": 0, "max_clients": 0}), ConfigError, "max_clients"),
    "port": (lambda: config_of().environment(env_config={"port": 2**16}), ConfigError, "65536"),
    "port of text": (lambda: config_of().environment(env_config={"port": "5555"}), ConfigError, "'5555'"),
    "token": (lambda: config_of().environment(env_config={"port": 0, "token": ""}), ConfigError, "token"),
    "text": (lambda: config_of().environment(observation_space=gym.spaces.Text(3)), SpaceError, "external"),
}


@pytest.mark.parametrize(("config", "error", "message"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_does_not_fit(config, error, message):
    with pytest.raises(error, match=message):
        config().build_algo()


def test_ports(made):
    first = made(config_of().environment(env_config={"port": 0}))
    with pytest.raises(RunnerError, match="a free port"):
        made(config_of().environment(env_config={"port": first.server.port}))
    second = ExternalEnvRunner(config=config_of().environment(env_config={"port": first.server.port}), worker_index=1)
    assert second.server.port == first.server.port + 1
    second.stop()


def test_pieces_and_callers_cannot_leave_out_simulators(made):
    runner = made(num_envs=2)
    with pytest.raises(RunnerError, match="step on their own"):
        runner.step(mask=np.array([True, False]))


@pytest.mark.slow
def test_a_runner_that_waits_in_vain_says_so(made, monkeypatch):
    runner, now = made(), itertools.count(step=50)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    threading.Timer(2.5, episode_of, [runner.env, 1]).start()
    with pytest.warns(EpibatchWarning, match=r"simulators that call observe\(\)\n.*none for 60 s, with 0 episodes"):
        assert len(runner.sample(num_timesteps=1)) == 1


def test_a_runner_that_cannot_be_made_leaves_the_port_alone(made):
    first = made(config_of().environment(env_config={"port": 0}))
    port = first.server.port
    first.stop()
    with pytest.raises(ConfigError):
        made(config_of().environment(env_config={"port": port}).rl_module(model_config={"fcnet_hiddens": "wide"}))
    assert made(config_of().environment(env_config={"port": port})).server.port == port


def test_a_file_names_the_class():
    text = config_of(gym.make("CartPole-v1")).to_yaml()
    assert "epibatch.env_runner.external_env_runner:ExternalEnvRunner" in text
    algo = PPOConfig.from_yaml(text).build_algo()
    assert type(algo.env_runner) is ExternalEnvRunner
    algo.stop()


def test_an_inspection_needs_an_environment():
    algo = config_of().build_algo()
    with pytest.raises(ConfigError, match="simulators that drive"):
        algo.inspect()
    algo.stop()
