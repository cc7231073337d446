"""Environments that reset themselves: no row of two episodes, placeholders for terminal observations, and values."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, EpisodeError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import MultiAgentEnvRunner, SingleAgentEnvRunner, environment_seeds, make_multi_agent
from epibatch.episodes import SingleAgentEpisode, VectorRecorder, reader_of
from epibatch.learner.postprocessing.episodes import add_one_ts_to_episodes_and_truncate

GAMMA, LAMBDA = 0.9, 0.8
SEED = 5


class Walk(gym.Env):
    """Episodes of 1 to 4 steps, of which half are truncated; each observation is drawn, so none is there twice."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left, self.truncated = self.np_random.integers(1, 5), self.np_random.random() < 0.5
        return self.observe(), {"left": int(self.left)}

    def step(self, action: Any) -> Any:
        self.left -= 1
        observation, ended, truncated = self.observe(), self.left == 0, self.truncated
        return (
            observation, float(self.np_random.normal()), bool(ended and not truncated), bool(ended and truncated),
            {"left": int(self.left)},
        )  # fmt: skip

    def observe(self) -> Any:
        return self.np_random.normal(size=2).astype(np.float32)


class SelfResetting(Walk):
    """The same walks, with the next one's first observation in place of the last."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        return (self.reset()[0], *result[1:]) if result[2] or result[3] else result


class SelfResettingVector(gym.vector.VectorEnv):
    """Isaac's way: one vector environment, no mode in its metadata, no terminal observations."""

    def __init__(self, num_envs: int, **metadata: Any) -> None:
        self.num_envs, self.walks = num_envs, [SelfResetting() for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = Walk.observation_space, Walk.action_space
        self.observation_space = gym.vector.utils.batch_space(Walk.observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(Walk.action_space, num_envs)
        self.metadata = metadata

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seeds = [None] * self.num_envs if seed is None else environment_seeds(SEED, self.num_envs)
        results = [walk.reset(seed=each) for walk, each in zip(self.walks, seeds)]
        return np.stack([row for row, _ in results]), {"left": np.array([info["left"] for _, info in results])}

    def step(self, actions: Any) -> Any:
        rows, *values, infos = zip(*(walk.step(action) for walk, action in zip(self.walks, actions)))
        return np.stack(rows), *map(np.array, values), {"left": np.array([info["left"] for info in infos])}


class Values(TorchRLModule):
    """Acts by the sign of the first number. The value is twice the first number plus the second; NaN is refused."""

    def setup(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        assert batch[Columns.OBS].isfinite().all()
        return {Columns.ACTION_DIST_INPUTS: 30.0 * batch[Columns.OBS][..., :2]}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        assert batch[Columns.OBS].isfinite().all()
        return 2 * batch[Columns.OBS][..., 0] + batch[Columns.OBS][..., 1]


def config_of(env: Any, **settings: Any) -> PPOConfig:
    return (
        PPOConfig()
        .environment(env)
        .env_runners(**{"num_envs_per_env_runner": 3, "explore": False, **settings})
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Values))
        .training(gamma=GAMMA, lambda_=LAMBDA)
        .debugging(seed=SEED)
    )


def sampled(config: PPOConfig, steps: int = 90) -> Any:
    runner = SingleAgentEnvRunner(config=config)
    try:
        return runner.sample(num_timesteps=steps)
    finally:
        runner.stop()


KINDS: dict[str, dict[str, Any]] = {
    "sync": {"env": SelfResetting, "env_resets_itself": True},
    "async": {"env": SelfResetting, "env_resets_itself": True, "gym_env_vectorize_mode": "async"},
    "vector": {
        "env": SelfResettingVector,
        "env_resets_itself": True,
        "gym_env_vectorize_mode": "vector_entry_point",
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_terminal_observations_differ_from_an_environment_that_waits(kind):
    expected = sampled(config_of(Walk, gym_env_autoreset_mode="same_step"))
    episodes = sampled(config_of(missing_final_obs="keep", **KINDS[kind]))
    assert len(episodes) == len(expected) and sum(episode.is_done for episode in expected) > 20
    for actual, other in zip(episodes, expected):
        ended = other.is_done
        rows = slice(0, -1 if ended else None)
        np.testing.assert_array_equal(actual.get_observations(rows), other.get_observations(rows))
        for name in ("get_actions", "get_rewards"):
            np.testing.assert_array_equal(getattr(actual, name)(), getattr(other, name)())
        assert (actual.is_terminated, actual.is_truncated) == (other.is_terminated, other.is_truncated)
        assert actual.lacks_final_obs == ended
        if ended:
            np.testing.assert_array_equal(actual.get_observations(-1), other.get_observations(-2))
        assert actual.get_infos()[1:] == [
            *other.get_infos()[1:-1],
            {**other.get_infos(-1), **({"missing_final_obs": True} if ended else {})},
        ]


@pytest.mark.parametrize(("value", "expected"), [("nan", np.nan), ("zero", 0.0), (-7.5, -7.5), (np.nan, np.nan)])
def test_a_value_takes_the_place_of_terminal_observations(value, expected):
    episodes = sampled(config_of(missing_final_obs=value, **KINDS["vector"]))
    ended = [episode for episode in episodes if episode.is_done]
    for episode in ended:
        np.testing.assert_array_equal(episode.get_observations(-1), np.full(2, expected, np.float32))
        assert np.isfinite(episode.get_observations(slice(0, -1))).all()
    assert len(ended) > 20 and [e.lacks_final_obs for e in episodes] == [e.is_done for e in episodes]


class Plain(ConnectorV2):
    """A piece that reads all observations of its episodes."""

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            assert np.isfinite(episode.get_observations()).all()
        return batch


def advantages_of(episode: Any) -> list[float]:
    """Generalised advantages step by step; a truncated end has the value of the last observation that was real."""
    values = [2 * float(row[0]) + float(row[1]) for row in episode.get_observations()]
    if episode.lacks_final_obs:
        values[-1] = values[-2]
    if episode.is_terminated:
        values[-1] = 0.0
    out, advantage = [], 0.0
    for t in reversed(range(len(episode))):
        error = float(episode.get_rewards(t)) + GAMMA * values[t + 1] - values[t]
        advantage = error + GAMMA * LAMBDA * advantage
        out.append(advantage)
    return out[::-1]


@pytest.mark.parametrize("kind", ["as sampled", "pickled", "two samples", "plain piece"])
@pytest.mark.parametrize("value", ["nan", "zero", "keep"])
def test_values_never_read_a_placeholder(kind, value):
    config = config_of(missing_final_obs=value, **KINDS["sync"])
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_timesteps=60)
    if kind == "two samples":
        episodes = [*episodes, *runner.sample(num_timesteps=30)]
    episodes = pickle.loads(pickle.dumps(list(episodes))) if kind == "pickled" else episodes
    config.training(learner_connector=lambda *spaces: AddNextObservationsFromEpisodesToTrainBatch())
    pipeline = config.build_learner_connector(*runner.get_spaces()["__episodes__"])
    config.extend_learner_connector(pipeline)
    pipeline["GeneralAdvantageEstimation"].standardize_advantages = False
    if kind == "plain piece":
        pipeline.insert_after("AddOneTsToEpisodesAndTruncate", Plain())
    batch = pipeline(batch={}, episodes=episodes, rl_module=runner.module, shared_data={})
    runner.stop()
    mask = np.asarray(batch[Columns.LOSS_MASK])
    expected = [number for episode in episodes for number in advantages_of(episode)]
    np.testing.assert_allclose(np.asarray(batch[Columns.ADVANTAGES])[mask], expected, rtol=1e-4, atol=1e-5)
    following = [
        row
        for episode in episodes
        for row in (
            *episode.get_observations(slice(1, len(episode))),
            episode.get_observations(-2 if episode.lacks_final_obs else -1),
        )
    ]
    np.testing.assert_array_equal(np.asarray(batch[Columns.NEXT_OBS])[mask], following)


def test_rows_of_readers_skip_placeholders_wherever_they_begin():
    episodes = sampled(config_of(missing_final_obs="nan", **KINDS["sync"]), 30)
    stores = (episodes, pickle.loads(pickle.dumps(list(episodes))))
    for reader in map(reader_of, stores):
        lengths = reader.lengths
        whole = [np.array(e.get_observations()) for e in episodes]
        for row in (rows[-1:] for rows in whole):
            row[np.isnan(row)] = 0.0
        whole = [np.concatenate([w[:-1], w[-2:-1]]) if e.lacks_final_obs else w for w, e in zip(whole, episodes)]
        for first, step in ((lengths, 1), (lengths - 1, 1), (0, 2), (1, 3)):
            begins = np.zeros_like(lengths) + first
            expected = np.concatenate([rows[begin::step] for rows, begin in zip(whole, begins)])
            np.testing.assert_array_equal(reader.rows("obs", first, lengths + 1, step).joined(), expected)
        found = reader.at("obs", np.arange(len(lengths)), lengths)
        np.testing.assert_array_equal(found, [rows[-1] for rows in whole])


def test_running_statistics_do_not_see_placeholders():
    seen: list[Any] = []

    class Seen(Plain):
        def __call__(self, *, batch, episodes, **kwargs):
            seen.extend(np.array(episode.get_observations(-1)) for episode in episodes)
            return batch

    config = config_of(missing_final_obs="nan", **KINDS["async"])
    config.env_runners(env_to_module_connector=lambda *spaces: [Seen(), MeanStdFilter()])
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_timesteps=60)
    known = runner.pipelines["env_to_module"]["MeanStdFilter"].get_state()["since"]
    runner.stop()
    count = sum(len(episode) for episode in episodes) + 3
    assert len(seen) == known["count"] == count
    assert np.isfinite(seen).all()
    np.testing.assert_allclose(known["mean"], np.mean(seen, axis=0, dtype=np.float64), rtol=1e-6)


def test_own_loops_mark_the_end_in_its_info():
    episode = SingleAgentEpisode(observations=[1.0], len_lookback_buffer=0)
    episode.add_env_step(2.0, 0, 1.0)
    episode.add_env_step(np.nan, 0, 1.0, truncated=True, infos={"missing_final_obs": True})
    assert episode.lacks_final_obs
    assert reader_of([episode]).rows("obs", 0, 3).joined().tolist() == [1.0, 2.0, 2.0]
    assert episode.with_artificial_step().get_observations().tolist() == [1.0, 2.0, 2.0, 2.0]
    add_one_ts_to_episodes_and_truncate([episode])
    assert episode.get_observations().tolist() == [1.0, 2.0, 2.0, 2.0]


def test_an_environment_may_give_some_terminal_observations():
    recorder = VectorRecorder(2, autoreset="same_step", missing_final_obs=9)
    recorder.reset(np.array([1, 2]))
    given = np.array([None, 30], object)
    flags = np.array([True, True])
    recorder.step(np.zeros(2), np.zeros(2), flags, ~flags, np.array([5, 6]), {"final_obs": given}, None, given)
    first, second = recorder.flush(0)
    assert first.get_observations().tolist() == [1, 9] and first.lacks_final_obs
    assert second.get_observations().tolist() == [2, 30] and not second.lacks_final_obs


class Whole(SelfResetting):
    observation_space = gym.spaces.Dict(
        a=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), b=gym.spaces.Discrete(3)
    )  # fmt: skip


ERRORS = {
    "no value": (
        SelfResetting,
        {"missing_final_obs": "none"},
        ConfigError,
        r"'nan', 'zero', 'keep' or a finite number",
    ),
    "no setting": (SelfResetting, {"env_resets_itself": True}, ConfigError, "set missing_final_obs='keep'"),
    "integers": (
        Whole,
        {"env_resets_itself": True, "missing_final_obs": "nan"},
        ConfigError,
        r"observations \['b'\] can hold: Discrete\(3\)[\s\S]*'nan'",
    ),
    "mode": (
        SelfResetting,
        {"env_resets_itself": True, "missing_final_obs": "keep", "gym_env_autoreset_mode": "disabled"},
        ConfigError,
        "leave gym_env_autoreset_mode out",
    ),
    "counting": (
        lambda config: gym.wrappers.TimeLimit(SelfResetting(), 3),
        {"env_resets_itself": True, "missing_final_obs": "keep"},
        ConfigError,
        "TimeLimit",
    ),
    "not said": (
        lambda num_envs: SelfResettingVector(num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP),
        {"gym_env_vectorize_mode": "vector_entry_point"},
        EpisodeError,
        r"environments \[.*\] ended\n[\s\S]*missing_final_obs='keep'",
    ),
    "other mode": (
        lambda num_envs: SelfResettingVector(num_envs, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP),
        {**{k: v for k, v in KINDS["vector"].items() if k != "env"}, "missing_final_obs": "keep"},
        ConfigError,
        "'same_step', as gym_env_autoreset_mode or env_resets_itself says",
    ),
}


@pytest.mark.parametrize(("env", "settings", "error", "text"), ERRORS.values(), ids=ERRORS)
def test_settings_that_cannot_be_are_named(env, settings, error, text):
    with pytest.raises(error, match=text):
        sampled(config_of(env, **settings))


def test_environments_of_several_agents_wait_for_their_reset():
    config = config_of(make_multi_agent(Walk), env_resets_itself=True, missing_final_obs="keep")
    with pytest.raises(ConfigError, match="none of them for environments of several agents"):
        MultiAgentEnvRunner(config=config)


def test_rollouts_have_the_observation_before_a_missing_one():
    runner = SingleAgentEnvRunner(config=config_of(missing_final_obs="nan", **KINDS["sync"]))
    columns = runner.rollout(20)
    runner.stop()
    ended = columns["terminateds"] | columns["truncateds"]
    expected = np.where(ended[:-1, :, None], columns["obs"][:-1], columns["obs"][1:])
    np.testing.assert_array_equal(columns["new_obs"][:-1], expected)
    assert ended.sum() > 10
