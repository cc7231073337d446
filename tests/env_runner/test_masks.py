"""Steps and resets of some environments: every episode is what its environment would play alone, step by step."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import random_examples, slow_but
from gymnasium.vector import AutoresetMode
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpisodeStateError, RunnerError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import AsyncEnvs, SingleAgentEnvRunner, SyncEnvs
from epibatch.episodes import VectorRecorder, reader_of

N = 3
MODES = {mode.name.lower(): mode for mode in AutoresetMode}


class Walk(gym.Env[Any, Any]):
    """Observes [10000 number + 100 episode, step, place]; actions move the place, and the lengths (3, 5, 2) repeat."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number: int = 0) -> None:
        self.number, self.episode, self.steps, self.shown = number, -1, 0, list[tuple[float, ...]]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.at, self.place = self.episode + 1, 0, self.number
        return self.now(), {"code": self.episode}

    def step(self, action: Any) -> Any:
        self.steps, self.at, self.place = self.steps + 1, self.at + 1, self.place + 1 + 2 * int(action)
        over, even = self.at == (3, 5, 2)[(self.number + self.episode) % 3], self.episode % 2 == 0
        return self.now(), self.place + 0.5, over and even, over and not even, {"code": self.place}

    def now(self) -> Any:
        self.shown.append((10_000 * self.number + 100 * self.episode, self.at, self.place))
        return np.array(self.shown[-1], np.float32)


class Leaky(TorchRLModule):
    """A recurrent module whose outputs do not depend on the size of the batch; they contain what it was shown."""

    def setup(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))

    def get_initial_state(self) -> Any:
        return {"sum": np.zeros(1, np.float32)}

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        seen, state = batch[Columns.OBS], batch[Columns.STATE_IN]["sum"]
        place = seen[:, 0, -6]  # of the newest frame: the observation, two actions, one reward
        total = state / 2 + place[:, None] % 7 + 1
        return {
            Columns.ACTIONS: ((state[:, 0] + place).long() % 2)[:, None],
            Columns.STATE_OUT: {"sum": total},
            "seen": seen,
        }


class Seen(ConnectorV2):
    """Counts the newest observations that it is shown."""

    def __init__(self, *args: Any, seen: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen = seen

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        self.seen.update(tuple(episode.get_observations(-1).tolist()) for episode in episodes)
        return batch


class Skip(ConnectorV2):
    """Asks to skip the environments of episodes for which a predicate is true."""

    def __init__(self, *args: Any, predicate: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.predicate = predicate

    def __call__(self, *, batch: Any, episodes: Any, shared_data: Any, **kwargs: Any) -> Any:
        shared_data["skip_env_step"] = np.array([self.predicate(episode) for episode in episodes])
        return batch


class Walkers(SingleAgentEnvRunner):
    """A runner of a vector environment that was made before."""

    def __init__(self, *, made: Any, **arguments: Any) -> None:
        self.made = made
        super().__init__(**arguments)

    def make_env(self) -> Any:
        return self.made


def runner_of(envs: Any, *pieces: Any, callbacks: Any = None, **faults: Any) -> Any:
    config = PPOConfig().environment(Walk).debugging(seed=0).callbacks(**(callbacks or {})).fault_tolerance(**faults)
    config.env_runners(num_envs_per_env_runner=envs.num_envs, explore=False)
    config.env_runners(env_to_module_connector=lambda *spaces: [piece() for piece in pieces])
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Leaky, model_config={"max_seq_len": 4}))
    return Walkers(made=envs, config=config)


def walks(mode: str = "next_step", vectorize: Any = SyncEnvs, numbers: Any = range(N), **options: Any) -> Any:
    return vectorize([partial(Walk, number) for number in numbers], autoreset_mode=MODES[mode], **options)


PIECES = (
    lambda: PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=1),
    FlattenObservations,
    lambda: FrameStacking(num_frames=3, axis=-1),
)


def joined(chunks: Any) -> dict[int, Any]:
    """Episodes by their code, chunks put together."""
    out: dict[str, Any] = {}
    for chunk in chunks:
        if chunk.id_ in out:
            out[chunk.id_].concat_episode(chunk)
        else:
            out[chunk.id_] = chunk.slice(slice(None))
    return {int(episode.get_observations(0)[0]): episode for episode in out.values()}


@cache
def alone(number: int) -> Any:
    """The episodes of one environment, stepped on its own without any mask."""
    runner = runner_of(walks(numbers=[number]), *PIECES)
    episodes = joined(runner.sample(num_timesteps=300))
    runner.stop()
    return episodes


def check(chunks: Any, steps: Any, dropped: Any = ()) -> None:
    """Chunks put together are the first `steps[number]` steps of each environment on its own, without some episodes."""
    actual = joined(chunks)
    for number, count in enumerate(steps):
        for code, expected in alone(number).items():
            if code in dropped:
                continue
            if count <= 0:
                assert code not in actual
                continue
            assert_same(actual[code], expected, min(count, len(expected)))
            count -= len(expected)


def assert_same(actual: Any, expected: Any, steps: int) -> None:
    ends = steps == len(expected)
    assert len(actual) == steps
    assert (actual.is_terminated, actual.is_truncated) == (
        ends and expected.is_terminated,
        ends and expected.is_truncated,
    )
    np.testing.assert_array_equal(actual.get_observations(), expected.get_observations(slice(0, steps + 1)))
    np.testing.assert_array_equal(actual.get_actions(), expected.get_actions(slice(0, steps)))
    np.testing.assert_array_equal(actual.get_rewards(), expected.get_rewards(slice(0, steps)))
    assert list(actual.get_infos()) == list(expected.get_infos(slice(0, steps + 1)))
    assert actual.extra_model_outputs.keys() == expected.extra_model_outputs.keys()
    for name in ("seen", "state_out"):
        left = actual.get_extra_model_outputs(name)
        right = expected.get_extra_model_outputs(name, slice(0, steps))
        left, right = (left["sum"], right["sum"]) if name == "state_out" else (left, right)
        np.testing.assert_array_equal(left, right)


masks = st.lists(st.booleans(), min_size=N, max_size=N).map(np.array)
schedules = st.lists(st.one_of(masks, st.integers(1, 7)), min_size=5, max_size=25)


def check_metrics(runner: Any, chunks: Any) -> None:
    ended, metrics = [episode for episode in joined(chunks).values() if episode.is_done], runner.get_metrics()
    assert metrics["num_episodes_lifetime"] == len(ended)
    if ended:
        assert metrics["episode_len_max"] == max(map(len, ended))
        assert metrics["episode_return_mean"] == pytest.approx(np.mean([one.get_return() for one in ended]))


def check_schedule(mode: str, vectorize: Any, schedule: Any, skips: Any) -> None:
    seen, chances = Counter[Any](), iter(skips)
    pieces = [partial(Seen, seen=seen), partial(Skip, predicate=lambda episode: next(chances, False))]
    runner = runner_of(walks(mode, vectorize), *pieces, *PIECES)
    chunks = []
    for item in schedule:
        if isinstance(item, int):
            chunks += runner.sample(num_timesteps=item)
        else:
            one = runner.step(mask=item)
            assert all(len(chunk) == 1 and item[int(chunk.get_observations(0)[0]) // 10_000] for chunk in one)
            chunks += one
    steps = runner.env.call("steps")
    assert seen == Counter(shown for of_env in runner.env.call("shown") for shown in of_env)
    assert sum(map(len, chunks)) == sum(steps) == runner.num_env_steps_sampled_lifetime
    check_metrics(runner, chunks)
    runner.stop()
    check(chunks, steps)


@settings(max_examples=random_examples(4))
@given(st.sampled_from(sorted(MODES)), schedules, st.lists(st.booleans(), max_size=60))
@example("disabled", [np.array([False, True, True]), 1, 1], [False, True, True])
def test_episodes_are_those_of_environments_that_step_alone(mode: str, schedule: Any, skips: Any) -> None:
    check_schedule(mode, SyncEnvs, schedule, skips)


@pytest.mark.parametrize("vectorize", [SyncEnvs, partial(AsyncEnvs, per_process=2)], ids=["sync", "async"])
@pytest.mark.parametrize("mode", slow_but(["same_step"], MODES))
def test_long_runs_with_masks_in_this_process_and_in_others(mode: str, vectorize: Any) -> None:
    rng = np.random.default_rng(0)
    schedule = [5, *(rng.random((25, N)) < 0.5), 4, *(rng.random((10, N)) < 0.7)]
    check_schedule(mode, vectorize, schedule, rng.random(60) < 0.2)


@pytest.mark.parametrize("vectorize", [SyncEnvs, AsyncEnvs])
def test_an_ended_environment_that_waits_for_its_reset_can_be_left_out(vectorize: Any) -> None:
    envs, actions, others = walks("disabled", vectorize), np.zeros(N, np.int64), np.array([True, True, False])
    envs.reset()
    assert [envs.step(actions)[2].tolist() for _ in range(2)] == [[False] * N, [False, False, True]]
    with pytest.raises(RunnerError, match=r"environments \[2\] ended in the step before"):
        envs.step(actions)
    observations, rewards, terminateds, _, infos = envs.step(actions, mask=others)
    assert (observations[:, 1].tolist(), rewards.tolist()) == ([3, 3, 2], [3.5, 4.5, 0])
    assert terminateds.tolist() == [True, False, False] and [*map(bool, infos["env_infos"])] == others.tolist()
    envs.reset(mask=np.array([True, False, True]))
    assert envs.step(actions)[0][:, 1].tolist() == [1, 4, 1]
    envs.close()


@pytest.mark.parametrize("mode", slow_but(["next_step"], MODES))
def test_batches_and_running_statistics_count_each_row_once(mode: str) -> None:
    runner = runner_of(walks(mode), MeanStdFilter, *PIECES)
    config = runner.config.training(
        learner_connector=lambda *spaces: [FrameStacking(num_frames=3, axis=-1, as_learner_connector=True)]
    )
    pipeline = config.build_learner_connector(*runner.get_spaces()["__episodes__"])
    config.extend_learner_connector(pipeline)
    pipeline.remove("GeneralAdvantageEstimation")  # the module has no values
    runner.require_lookback(pipeline.lookback_needed)
    rng, rows = np.random.default_rng(1), 0
    for _ in range(30):
        runner.step(mask=rng.random(N) < 0.5)
        batch = pipeline(batch={}, episodes=runner.sample(num_timesteps=5), shared_data={})
        mask = np.asarray(batch[Columns.LOSS_MASK])
        np.testing.assert_array_equal(np.asarray(batch["seen"])[mask], np.asarray(batch[Columns.OBS])[mask])
        rows += mask.sum()
    shown = np.array([row for rows in runner.env.call("shown") for row in rows], np.float64)
    state = runner.pipelines["env_to_module"]["MeanStdFilter"].get_state()["since"]
    assert state["count"] == len(shown) > rows > 150
    np.testing.assert_allclose(state["mean"], shown.mean(0), rtol=1e-12)
    np.testing.assert_allclose(state["squares"], shown.var(0) * len(shown), rtol=1e-10)
    runner.stop()


@pytest.mark.parametrize("mode", MODES)
def test_one_call_gives_the_step_and_a_loop_of_calls_never_stops_at_an_end(mode: str) -> None:
    runner = runner_of(walks(mode), *PIECES)
    for _ in range(40):
        for chunk in runner.step():
            number, episode = (
                int(chunk.get_observations(0)[0]) // 10_000,
                int(chunk.get_observations(0)[0]) // 100 % 100,
            )
            assert len(chunk) == 1 and chunk.get_observations(-1)[0] == chunk.get_observations(0)[0]
            assert chunk.is_done == (chunk.get_observations(-1)[1] == (3, 5, 2)[(number + episode) % 3])
    resets = sum(episode + 1 for episode in runner.env.call("episode"))
    assert sum(runner.env.call("steps")) == 40 * N - (resets - N if mode == "next_step" else 0)
    runner.stop()


@pytest.mark.parametrize("vectorize", [SyncEnvs, AsyncEnvs])
@pytest.mark.parametrize("mode", MODES)
def test_a_reset_of_some_drops_their_episodes_alone(mode: str, vectorize: Any) -> None:
    told: list[Any] = []
    callbacks = {
        event: lambda env_index, episode, event=event, **_: told.append((event, env_index))
        for event in ("on_episode_created", "on_episode_start", "on_episode_step")
    }
    runner = runner_of(walks(mode, vectorize), *PIECES, callbacks=callbacks)
    runner.reset(mask=[True, False, False])  # the first call resets all
    chunks = list(runner.step(mask=[True] * 3))
    told.clear()
    chunks += runner.step(mask=[True, False, True])  # here the third one's first episode ends
    assert [env for event, env in told if event == "on_episode_step"] == [0, 2]
    told.clear()
    runner.reset(mask=np.array([False, True, True]))
    assert told == [(f"on_episode_{event}", env) for event in ("created", "start") for env in (1, 2)]
    runner.reset(mask=[False] * 3)
    third = 1 if mode == "next_step" else 2  # otherwise its second episode had begun
    assert list(runner.env.call("episode")) == [0, 1, third]
    chunks += runner.sample(num_timesteps=36)
    dropped = {10_000, 20_000, 20_000 + 100 * (third - 1)}
    shown = runner.env.call("shown")
    steps = [sum(1 for code, at, _ in of_env if at and code not in dropped) for of_env in shown]
    check([chunk for chunk in chunks if chunk.get_observations(0)[0] not in dropped], steps, dropped)
    check_metrics(runner, chunks)
    runner.reset()
    assert all(of_env[-1][1] == 0 for of_env in runner.env.call("shown"))
    runner.stop()


def test_a_predicate_that_is_true_at_even_times_halves_the_calls_of_the_environment() -> None:
    """The time of an environment counts its vector steps: those that it took and those that it skipped."""
    skipped = Counter[str]()

    def even(episode: Any) -> bool:
        is_even = (episode.t + skipped[episode.id_]) % 2 == 0
        skipped[episode.id_] += is_even
        return is_even

    runner = runner_of(walks("same_step", numbers=[0]), partial(Skip, predicate=even), *PIECES)
    for step in range(20):
        assert len(runner.step()) == step % 2
    assert runner.env.call("steps") == (10,)
    assert len(runner.sample(num_timesteps=7)) >= 1 and runner.env.call("steps") == (17,)  # samples always end
    runner.stop()


class Asks(ConnectorV2):
    """Lets environments skip as long as a condition of an episode holds."""

    def __init__(self, observation_space: Any = None, action_space: Any = None, *, condition: Any) -> None:
        super().__init__(observation_space, action_space)
        self.condition = lambda episodes: [condition(int(episode.get_observations(0)[0])) for episode in episodes]

    def __call__(self, *, batch: Any, shared_data: Any, **_: Any) -> Any:
        shared_data["skip_env_step"] = self.condition
        return batch


def test_a_condition_is_asked_at_each_step_and_skips_any_number_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0
    asked: list[tuple[int, int]] = []

    def busy(first: int) -> bool:
        asked.append((clock, first // 10_000))
        return first < 10_000 and clock % 4 != 3  # environment 0 works every fourth step

    runner = runner_of(walks("disabled"), partial(Asks, condition=busy), *PIECES)
    steps = []
    for clock in range(12):
        steps.append(sorted(int(chunk.get_observations(0)[0]) // 10_000 for chunk in runner.step()))
        assert [env for at, env in asked if at == clock] == [0, 1, 2]  # each once, skipped or not
    assert steps == [[0, 1, 2] if clock % 4 == 3 else [1, 2] for clock in range(12)]
    assert runner.env.call("steps") == (3, 12, 12)
    runner.step(mask=[False, True, True])
    assert len(asked) == 38
    runner.stop()

    monkeypatch.setattr("epibatch.env_runner.env_runner._PATIENCE", 50)
    stuck = runner_of(walks("disabled"), partial(Asks, condition=lambda first: True), *PIECES)
    with pytest.raises(RunnerError, match=r"an environment that steps[\s\S]*all 3 environments skipped, 50 vector"):
        stuck.sample(num_timesteps=1)
    stuck.stop()


def test_a_skip_that_was_asked_for_waits_for_a_step_of_its_environment() -> None:
    runner = runner_of(walks("disabled"), partial(Skip, predicate=lambda episode: episode.t == 1), *PIECES)
    first = np.arange(N) == 0
    runner.step()
    assert len(runner.step(mask=first)) == 0
    runner.reset(mask=first)
    assert [int(chunk.get_observations(0)[0]) for chunk in runner.step()] == [100]
    assert len(runner.step()) == N - 1
    runner.stop()


def test_the_reset_of_an_ended_episode_is_not_skipped() -> None:
    runner = runner_of(walks("next_step", numbers=[0]), partial(Skip, predicate=lambda episode: True), *PIECES)
    found = [len(runner.step()) for _ in range(9)]
    assert found == [0, 1, 0, 1, 0, 1, 0, 0, 1] and runner.env.call("episode") == (1,)  # the seventh one resets
    runner.stop()


def test_an_action_waits_with_the_number_of_its_weights() -> None:
    runner = runner_of(walks(), *PIECES)
    runner.step(mask=[True, False, False])
    runner.weights_updated()
    numbers = {int(chunk.get_observations(0)[0]) // 10_000: chunk for chunk in runner.step()}
    found = {env: int(chunk.get_extra_model_outputs("weights_seq_no")[0]) for env, chunk in numbers.items()}
    assert found == {0: 1, 1: 0, 2: 0}
    chunks = runner.step(mask=[False, True, False], random_actions=True)  # resets, as sample() does
    assert len(chunks) == 1 and runner.env.call("episode") == (1, 1, 1)
    runner.step(mask=[False, False, True], random_actions=True)
    assert [len(chunk) for chunk in runner.step(random_actions=True)] == [1, 1, 1]
    runner.stop()


def test_receipts_of_some_environments_make_the_episodes_that_they_play_alone() -> None:
    """An own loop: `send` and `recv` with worker environments; receipts have one environment or several."""
    envs, turn = walks("next_step", AsyncEnvs), np.ones(N, np.bool_)
    recorder = VectorRecorder(N, envs.single_observation_space, envs.single_action_space)
    actions, chunks, steps = np.zeros(N, np.int64), list[Any](), np.zeros(N, np.int64)
    recorder.reset(*envs.reset())
    recorder.commit()
    while steps.min() < 20:
        envs.send(actions, mask=turn)
        with pytest.raises(RunnerError, match=rf"environments .*{np.flatnonzero(turn)[0]}.* at work on send"):
            envs.send(actions, mask=turn)
        observations, rewards, terminateds, truncateds, infos, turn = envs.recv()
        steps[turn] += [env not in recorder.waiting for env in np.flatnonzero(turn)]
        recorder.step(actions, rewards, terminateds, truncateds, observations, infos, mask=turn)
        recorder.commit()
        for env in np.flatnonzero(turn):
            actions[env] = recorder.episodes[env].get_observations(-1)[2] % 2
        newest, _ = reader_of(recorder.episodes).newest(Columns.OBS)
        np.testing.assert_array_equal(newest[turn], observations[turn])
        if steps.sum() % 7 == 0:
            chunks += recorder.flush(2)
    chunks += recorder.flush(0)
    envs.send(actions, mask=turn)
    with pytest.raises(RunnerError, match="at work on send"):
        envs.call("steps")
    envs.close()
    assert sum(map(len, chunks)) == steps.sum()
    for code, episode in joined(chunks).items():
        env = Walk(code // 10_000)
        env.episode = code // 100 % 100 - 1
        row, _ = env.reset()
        for at, action in enumerate(episode.get_actions()):
            np.testing.assert_array_equal(episode.get_observations(at), row)
            assert action == (int(row[2]) % 2 if code % 10_000 or at else 0)
            row, reward, terminated, truncated, info = env.step(action)
            assert (episode.get_rewards(at), episode.get_infos(at + 1)) == (reward, info)
        np.testing.assert_array_equal(episode.get_observations(-1), row)
        assert (episode.is_terminated, episode.is_truncated) == (terminated, truncated)


def test_resets_are_sent_and_received_beside_steps() -> None:
    """An own loop of autoreset mode DISABLED, which gives up each third episode of environment 1 after a step."""
    envs = walks("disabled", AsyncEnvs)
    recorder = VectorRecorder(N, envs.single_observation_space, envs.single_action_space)
    envs.send_reset()
    observations, *_, infos, turn = envs.recv(N)
    assert turn.all() and envs.was_reset.all()
    recorder.reset(observations, infos)
    recorder.commit()
    over, chunks, steps = np.zeros(N, np.bool_), list[Any](), 0
    while steps < 80:
        newest = np.stack([episode.get_observations(-1) for episode in recorder.episodes])
        actions = newest[:, 2].astype(np.int64) % 2
        given_up = (newest[:, 0] // 10_000 == 1) & (newest[:, 0] % 10_000 // 100 % 3 == 1) & (newest[:, 1] == 1)
        again = turn & (over | given_up)
        if again.any():
            envs.send_reset(again)
            with pytest.raises(RunnerError, match=r"send_reset[\s\S]*at work on send"):
                envs.send_reset(again)
        if (turn & ~again).any():
            envs.send(actions, mask=turn & ~again)
        observations, rewards, terminateds, truncateds, infos, turn = envs.recv()
        over = terminateds | truncateds
        stepped = turn & ~envs.was_reset
        steps += stepped.sum()
        if stepped.any():
            recorder.step(actions, rewards, terminateds, truncateds, observations, infos, mask=stepped)
            recorder.commit()
        if envs.was_reset.any():
            assert not rewards[envs.was_reset].any() and not over[envs.was_reset].any()
            recorder.reset(observations, infos, mask=envs.was_reset)
            recorder.commit()
        chunks += recorder.flush(2)
    envs.close()
    episodes = joined(chunks)
    codes = {code for code, episode in episodes.items() if episode.is_done}
    for number in range(N):
        own = sorted(code for code in codes if code // 10_000 == number)
        played = [10_000 * number + 100 * at for at in range(50) if number != 1 or at % 3 != 1]
        assert len(own) > 3 and own == played[: len(own)]
    for code in codes:
        env, episode = Walk(code // 10_000), episodes[code]
        env.episode = code // 100 % 100 - 1
        rows, terminated, truncated = [env.reset()[0]], False, False
        while not terminated and not truncated:
            row, reward, terminated, truncated, _ = env.step(int(rows[-1][2]) % 2)
            assert episode.get_rewards(len(rows) - 1) == reward
            rows.append(row)
        np.testing.assert_array_equal(episode.get_observations(), rows)
        assert (episode.is_terminated, episode.is_truncated) == (terminated, truncated)


def test_seeds_and_options_of_resets_that_are_sent() -> None:
    envs = AsyncEnvs([partial(gym.make, "CartPole-v1")] * N)
    bounds = {"low": -0.01, "high": 0.01}
    envs.send_reset(np.array([True, False, True]), seed=5, options=bounds)
    observations, *_, answered = envs.recv(2)
    assert answered.tolist() == envs.was_reset.tolist() == [True, False, True]
    for number in (0, 2):
        expected, _ = gym.make("CartPole-v1").reset(seed=5 + number, options=bounds)
        np.testing.assert_array_equal(observations[number], expected)
    envs.close()


class Dying(Walk):
    """Fails in its second step, or ends its process."""

    def step(self, action: Any) -> Any:
        if self.at == 1:
            if self.number == 2:
                os._exit(3)
            raise ConnectionError("no step")
        return super().step(action)


def test_a_receipt_raises_what_an_environment_raised_and_keeps_those_of_the_others() -> None:
    envs = AsyncEnvs([Walk, partial(Dying, 1), partial(Dying, 2)])
    actions, answered, errors = np.zeros(N, np.int64), np.zeros(N, np.int64), []
    envs.reset()
    for mask in (np.ones(N, np.bool_), np.array([True, True, False]), np.array([False, False, True])):
        envs.send(actions, mask=mask)
        time.sleep(0.1)  # so that those that answer do so in one receipt
        while mask.any():
            try:
                *_, receipt = envs.recv()
                answered += receipt
                mask = mask & ~receipt
            except Exception as error:
                errors.append(str(error).partition("\n")[0])
                mask = mask & [env not in envs.failures for env in range(N)]
    assert answered.tolist() == [2, 1, 1] and errors == ["no step", "worker process"]
    assert envs.restart(1, None, {})[0][1].tolist() == [10_000, 0, 1]
    envs.close()


class OneEpisode(Walk):
    """Cannot be reset again."""

    def reset(self, **keywords: Any) -> Any:
        if self.episode == 0:
            raise ConnectionError("no reset")
        return super().reset(**keywords)


def test_a_reset_that_fails_after_an_episodes_end_keeps_the_receipts_of_the_steps() -> None:
    envs = AsyncEnvs([Walk, partial(Walk, 1), partial(OneEpisode, 2)], autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset()
    errors, finals = [], []
    for _ in range(2):
        answered = np.zeros(N, np.int64)
        envs.send(answered)
        while not answered.all():
            try:
                *_, infos, receipt = envs.recv()
                answered += receipt
                finals += [row.tolist() for row in infos.get("final_obs", ()) if row is not None]
            except ConnectionError as error:
                errors.append((str(error), list(envs.failures)))
        assert answered.tolist() == [1, 1, 1]
    assert errors == [("no reset", [2])] and finals == [[20_000, 2, 4]]
    envs.close()


class Faulty(Walk):
    """Fails in every ninth step, and in every fifth reset, of all environments; `log` has what it returned."""

    log: list[tuple[float, ...]]
    given: list[float]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.episode = seed % 1000  # each new environment plays other episodes
        if len(self.log) % 5 == 4:
            self.log.append(())
            raise ConnectionError("no reset")
        result = super().reset()
        self.log.append(self.shown[-1])
        return result

    def step(self, action: Any) -> Any:
        if len(self.given) % 9 == 8:
            self.given.append(0.0)
            raise ConnectionError("no step")
        result = super().step(action)
        self.given.append(result[1])
        self.log.append(self.shown[-1])
        return result


@pytest.mark.parametrize("failed_episodes", ["truncate", "drop"])
@pytest.mark.parametrize("mode", slow_but(["same_step"], MODES))
def test_environments_that_fail_beside_others_that_rest(mode: str, failed_episodes: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(Faulty, "log", [], raising=False)
    monkeypatch.setattr(Faulty, "given", [], raising=False)
    seen, rng, chunks = Counter[Any](), np.random.default_rng(4), list[Any]()
    made = SyncEnvs([partial(Faulty, number) for number in range(N)], autoreset_mode=MODES[mode])
    settings = {"restart_failed_sub_environments": True, "failed_episodes": failed_episodes}
    runner = runner_of(made, partial(Seen, seen=seen), *PIECES, **settings)
    for _ in range(120):
        chunks += runner.step(mask=rng.random(N) < 0.6)
        if rng.random() < 0.1:
            chunks += runner.sample(num_timesteps=5)
    assert seen == Counter(row for row in Faulty.log if row)
    steps = sum(reward != 0 for reward in Faulty.given)
    assert runner.num_env_steps_sampled_lifetime == steps > 150
    if failed_episodes == "truncate":
        assert sorted(reward for chunk in chunks for reward in chunk.get_rewards()) == sorted(
            filter(None, Faulty.given)
        )
    for chunk in chunks:
        assert len({row[0] for row in chunk.get_observations()}) == 1
        np.testing.assert_array_equal(chunk.get_observations()[:, 1], np.arange(chunk.t_started, chunk.t + 1))
    runner.stop()


class Own(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector environment of one's own, whose rows without a step are nonsense."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self) -> None:
        self.inner = walks("disabled")
        self.num_envs, self.call = N, self.inner.call
        for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
            setattr(self, name, getattr(self.inner, name))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.inner.reset(seed=seed, options=options)

    def step(self, actions: Any, mask: Any = None) -> Any:
        observations, rewards, terminateds, truncateds, infos = self.inner.step(actions, mask)
        idle = np.zeros(N, np.bool_) if mask is None else ~mask
        return observations, np.where(idle, 99.0, rewards), terminateds | idle, truncateds | idle, infos


def test_a_vector_environment_whose_step_takes_a_mask() -> None:
    runner = runner_of(Own(), *PIECES)
    rng, chunks = np.random.default_rng(3), list[Any]()
    for _ in range(30):
        chunks += runner.step(mask=rng.random(N) < 0.6)
    check(chunks, runner.env.call("steps"))
    runner.reset(mask=[False, True, False])
    assert [of_env[-1][1] == 0 for of_env in runner.env.call("shown")][1]


def gymnasiums() -> Any:
    return gym.vector.SyncVectorEnv([partial(Walk, number) for number in range(N)])


def test_what_cannot_be_masked_is_named_and_loses_nothing() -> None:
    runner = runner_of(gymnasiums(), *PIECES)
    chunks = list(runner.sample(num_timesteps=6))
    with pytest.raises(RunnerError, match=r"step of some environments\n  expected: .*step\(actions, mask=None\)"):
        runner.step(mask=[True, False, True])
    for mask, found in (
        ([True, False], "True, False"),
        (np.ones(N), "float64"),
        ("no", "'no'"),
        ([1, 0, 1], "1, 0, 1"),
    ):
        for call in (runner.step, runner.reset):
            with pytest.raises(RunnerError, match=f"(?s)Walkers.{call.__name__}, mask.*found: .*{found}"):
                call(mask=mask)
    chunks += runner.step(mask=[True] * N)
    runner.reset(mask=[True, False, False])  # Gymnasium's resets take a mask
    assert [env.episode for env in runner.env.envs] == [1, 0, 1]
    chunks += runner.sample(num_timesteps=9)
    check([one for one in chunks if one.get_observations(0)[0] >= 10_000], [0, *(e.steps for e in runner.env.envs[1:])])
    wrong = runner_of(walks(), partial(Skip, predicate=lambda episode: 0.5), *PIECES)
    with pytest.raises(RunnerError, match=r"shared_data\['skip_env_step'\].*\n  expected: bools of shape \(3,\)"):
        wrong.step()
    native = runner_of(gym.make_vec("CartPole-v1", N, "vector_entry_point"))
    with pytest.raises(RunnerError, match="reset of some environments"):
        native.reset(mask=[True, False, True])


class Gap(Walk):
    """Its second observation is NaN."""

    def now(self) -> Any:
        return super().now() * (np.nan if self.at == 1 else 1)


def test_an_error_names_the_environment_among_those_that_step() -> None:
    envs = SyncEnvs([Walk, Walk, Gap])
    config = PPOConfig().environment(Walk).env_runners(num_envs_per_env_runner=N)
    runner = Walkers(made=envs, config=config)
    runner.step(mask=[True, False, True])
    with pytest.raises(ColumnError, match="observation of environment 2, of which the module made its outputs"):
        runner.step(mask=[False, True, True])
    runner.stop()


def test_a_recorder_leaves_dropped_episodes_as_they_were_and_refuses_masks_that_do_not_fit() -> None:
    recorder = VectorRecorder(2)
    step: Any = (np.zeros(2, int), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), np.zeros((2, 1)))
    with pytest.raises(EpisodeStateError, match="reset\\(\\) first"):
        recorder.reset(np.zeros((2, 1)), mask=np.ones(2, bool))
    recorder.reset(np.zeros((2, 1)))
    recorder.step(*step)
    dropped = recorder.episodes[1]
    recorder.reset(step[-1] + 9, mask=np.array([False, True]))
    recorder.step(*step)
    assert (dropped.get_observations().tolist(), dropped.get_rewards().tolist()) == ([[0], [0]], [0])
    for call in (partial(recorder.step, *step), partial(recorder.reset, step[-1])):
        with pytest.raises(ColumnError, match="'mask'"):
            call(mask=np.ones(3, bool))


ROWS = (
    lambda code: np.float32([code, 1]),
    lambda code: np.array([code, 2], np.int64),
    lambda code: np.array([code, 0.25]),
    lambda code: np.float32([code, 3, 4]),  # of another shape
)


def recorded(envs: list[int], turns: Any, autoreset: Any) -> dict[int, list[Any]]:
    """The rows of each environment's chunks that a recorder makes of turns.

    A turn has a kind of rows, the environments that step, and the kind of rows that a piece writes back (None: none).
    """
    recorder, at, chunks = VectorRecorder(len(envs), autoreset=autoreset, capacity=4), dict.fromkeys(envs, 0), []
    numbers = {"env": np.array(envs)}
    recorder.reset(np.array([ROWS[0](100 * env) for env in envs]), numbers)
    recorder.commit()
    if 0 in envs:  # so the first rows of the environments lie apart
        recorder.reset(np.array([ROWS[0](100 * env) for env in envs]), numbers, mask=np.array(envs) == 0)
    for number, (kind, mask, written) in enumerate(turns):
        turn = [env for env in envs if mask[env]]
        for env in turn:
            at[env] += 1
        rows = np.array([ROWS[kind](100 * env + at[env]) for env in envs])
        ends, chosen = np.array([at[env] % 6 == 0 for env in envs]), np.array([bool(mask[env]) for env in envs])
        actions = np.array([at[env] for env in envs])
        step = [actions, actions + 0.5, ends, ~ends & False, rows, numbers, {"twice": {"x": actions * 2.0}}, rows + 50]
        if turn:
            recorder.step(*step, mask=None if chosen.all() else chosen)
        for env in turn if written is not None else ():
            recorder.episodes[envs.index(env)].set_observations(new_data=ROWS[written](7), at_indices=-1)
        recorder.commit()
        if number % 5 == 4:
            chunks += recorder.flush(2)
    found: dict[int, list[Any]] = {env: [] for env in envs}
    for chunk in chunks:
        every = slice(-chunk.lookback, None)
        columns = [chunk.get_observations(every, neg_index_as_lookback=True)]
        columns += [chunk.get_actions(every, neg_index_as_lookback=True), chunk.get_rewards()]
        columns += [chunk.get_extra_model_outputs("twice")["x"], chunk.get_return(), chunk.return_before]
        rows = [[np.asarray(row).tolist() for row in np.atleast_1d(column)] for column in columns]
        infos = chunk.get_infos(every, neg_index_as_lookback=True)
        found[infos[-2]["env"]].append((rows, list(infos[:-1]), chunk.t_started, chunk.is_terminated))
    return found


kinds = st.integers(0, 3)
turns = st.lists(st.tuples(kinds, masks, st.none() | kinds), min_size=11, max_size=30)


@settings(max_examples=random_examples(10))
@given(turns, st.sampled_from(["next_step", "same_step"]))
def test_rows_of_other_shapes_and_types_are_kept_beside_those_of_other_environments(turns: Any, autoreset: Any) -> None:
    together = recorded([0, 1, 2], turns, autoreset)
    for env in range(N):
        assert together[env] == recorded([env], turns, autoreset)[env]
