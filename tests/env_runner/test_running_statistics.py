"""Filters and histories in a runner: what is counted, what is kept for the learner, what a saved run goes on with."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import MeanStdFilter, PrevActionsPrevRewards, SingleAgentObservationPreprocessor
from epibatch.core import load_state, save_state
from epibatch.core.columns import Columns
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import SingleAgentEnvRunner
from fixture_episodes import leaves, over


class Noting(TorchRLModule):
    """Draws one of two actions; what it was shown is among its outputs, so that episodes keep it."""

    def setup(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        seen = batch[Columns.OBS]
        return {Columns.ACTION_DIST_INPUTS: torch.zeros(len(leaves(seen)[0]), 2), "seen": over(torch.clone, seen)}


def pieces(*classes: Any) -> Any:
    return lambda *spaces: [made() for made in classes]


def stacks(learner: bool = False) -> Any:
    return FrameStacking(num_frames=3, as_learner_connector=learner)


def noting_runner(toys: Any, mode: str | None, *user: Any, env: Any = None, **settings: Any) -> Any:
    config = toys.config(3, env=env, env_to_module_connector=pieces(*user), **settings)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Noting))
    return toys.runner(3, mode=mode, config=config), config


def filter_of(runner: Any) -> Any:
    return runner.pipelines["env_to_module"]["MeanStdFilter"]


@pytest.mark.parametrize("random_actions", [False, True])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_each_observation_is_counted_once(toys: Any, mode: str, random_actions: bool) -> None:
    runner, _ = noting_runner(toys, mode, MeanStdFilter)
    for amount in ({"num_timesteps": 31}, {"num_timesteps": 3}, {"num_episodes": 4}, {"num_timesteps": 17}):
        runner.sample(random_actions=random_actions, **amount)
    codes = np.array(sorted(toys.shown().elements()), np.float64)
    known = filter_of(runner).get_state()["since"]
    assert known["count"] == len(codes) > 60
    assert known["mean"][0] == pytest.approx(codes.mean(), rel=1e-12)
    assert known["squares"][0] == pytest.approx(codes.var() * len(codes), rel=1e-10)


def column_env(toys: Any) -> Any:
    make = toys.factory()
    return lambda config: gym.wrappers.ReshapeObservation(make(config), (2, 1))


class Differences(SingleAgentObservationPreprocessor):
    """Observations, and how they changed: what came out before is read from the episode."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        return gym.spaces.Box(-9, 9, (4,), np.float32)

    def preprocess(self, observation: Any, episode: Any) -> Any:
        assert observation.shape == (2,)
        observation = observation / np.float32(1000)
        before = episode.get_observations(-2)[:2] if len(episode) else observation
        return np.concatenate([observation, observation - before])


CHAINS: dict[str, tuple[Any, Any]] = {
    "filter": ((MeanStdFilter,), ()),
    "filter, stacks": ((MeanStdFilter, stacks), (lambda: stacks(True),)),
    "filter, history": ((MeanStdFilter, lambda: PrevActionsPrevRewards(n_prev_actions=3, n_prev_rewards=2)), ()),
    "history, filter": ((PrevActionsPrevRewards, MeanStdFilter), ()),
    "preprocessor": ((Differences,), ()),
}


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize(("acting", "learning"), CHAINS.values(), ids=CHAINS)
def test_the_learner_sees_what_the_module_saw(toys: Any, mode: str, acting: Any, learning: Any) -> None:
    env = column_env(toys) if learning else None
    runner, config = noting_runner(toys, mode, *acting, env=env)
    config.training(learner_connector=pieces(*learning))
    pipeline = config.build_learner_connector(*runner.get_spaces()["__episodes__"])
    config.extend_learner_connector(pipeline)
    runner.require_lookback(pipeline.lookback_needed)
    pipeline.remove("GeneralAdvantageEstimation")  # the module has no values
    before: dict[str, list[Any]] = {}  # last observation of chunks that go on, by episode
    chunks_that_went_on = 0
    for _ in range(4):
        episodes = runner.sample(num_timesteps=24)
        batch = pipeline(batch={}, episodes=episodes, shared_data={})
        seen, shown = (leaves(batch[name]) for name in ("seen", Columns.OBS))
        own = np.asarray(batch[Columns.LOSS_MASK])
        for a, b in zip(seen, shown, strict=True):
            assert a.dtype == b.dtype == np.float32
            np.testing.assert_array_equal(a[own], b[own])
        ends = np.cumsum([len(episode) + 1 for episode in episodes]) - 1
        starts = ends - [len(episode) for episode in episodes]
        for episode, first, last in zip(episodes, starts, ends):
            for leaf, known in zip(shown, before.get(episode.id_, ())):
                np.testing.assert_array_equal(leaf[first], known)
            chunks_that_went_on += episode.id_ in before
            before[episode.id_] = [leaf[last] for leaf in shown]
        if acting == (Differences,):
            for episode in episodes:
                rows = episode.get_observations()
                np.testing.assert_allclose(rows[1:, 2:], np.diff(rows[:, :2], axis=0), atol=1e-6)
    assert chunks_that_went_on >= 3
    assert float(np.abs(shown[0]).max()) <= 10  # codes of raw observations go into the thousands


def saved_runner() -> Any:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=3, env_to_module_connector=pieces(MeanStdFilter, PrevActionsPrevRewards))
        .rl_module(model_config={"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5})
        .debugging(seed=11)
    )
    return SingleAgentEnvRunner(config=config)


def fingerprint(runner: Any) -> list[Any]:
    """All that a call gave, and the state behind it."""
    rows = []
    for episode in runner.sample(num_timesteps=75):
        columns = [episode.get_observations(), episode.get_actions(), episode.get_rewards()]
        outputs = [episode.get_extra_model_outputs(key) for key in sorted(episode.extra_model_outputs)]
        rows.append([leaf.tobytes() for column in (*columns, *outputs) for leaf in leaves(column)])
    states = [pipeline.get_state() for pipeline in runner.pipelines.values()]
    return [rows, [np.asarray(leaf).tobytes() for state in states for leaf in leaves(state) if leaf is not None]]


def test_a_restored_runner_goes_on_bit_by_bit_at_every_iteration(tmp_path: Any) -> None:
    """Each save ends the running episodes, here and in the run that goes on."""
    runner, files, found = saved_runner(), [], []
    for iteration in range(4):
        files.append(save_state(tmp_path / str(iteration), runner.get_state()))
        runner.checkpoint_reset()
        found.append(fingerprint(runner))
    runner.stop()
    assert len({str(own) for own in found}) == 4
    for iteration, file in enumerate(files):
        again = saved_runner()
        again.set_state(load_state(file))
        again.checkpoint_reset()
        assert fingerprint(again) == found[iteration], f"restored at iteration {iteration}"
        again.stop()
