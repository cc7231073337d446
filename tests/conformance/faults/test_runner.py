"""Faults of the runner."""

from __future__ import annotations

from typing import Any

import numpy as np

from faults.runners import Counting, runner_of
from oracle.probes import Raises, probe, tried


@probe("O25", ours=[3.0, 4.0, 5.0, 6.0], theirs=[0.0, 4.0, 5.0, 6.0])
def test_history_at_a_chunks_start(library: Any) -> Any:
    """A piece that reads four observations, at the first step after a chunk of five."""
    seen = []

    class Reader(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            for episode in self.single_agent_episode_iterator(episodes):
                seen.append(np.concatenate(episode.get_observations(slice(-4, None), fill=0.0)).tolist())
            return batch

    runner, _ = runner_of(library, {}, env_to_module_connector=lambda env, spaces, device=None: Reader())
    runner.sample(num_timesteps=5)
    runner.sample(num_timesteps=1)
    return seen[-1]


@probe("O25", ours=[1, 1], theirs=[0, Raises(IndexError, "index 3 is out of bounds for axis 0 with size 3")])
def test_recurrent_learners_need_the_last_state(library: Any) -> Any:
    """The second chunk of three steps, recorded with `episode_lookback_horizon=0`."""
    model = library.DefaultModelConfig(use_lstm=True, lstm_cell_size=4, max_seq_len=5)
    runner, _ = runner_of(library, {}, lambda config: config.rl_module(model_config=model), episode_lookback_horizon=0)
    runner.sample(num_timesteps=3)
    (chunk,) = runner.sample(num_timesteps=3)
    pieces = [
        library.learner.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        library.learner.AddColumnsFromEpisodesToTrainBatch(),
        library.learner.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        library.learner.AddStatesFromEpisodesToBatch(as_learner_connector=True),
    ]
    pipeline = library.learner.LearnerConnectorPipeline(
        Counting.observation_space, Counting.action_space, connectors=pieces
    )
    module = runner.module.as_multi_rl_module()
    return [
        chunk.observations.lookback,
        tried(lambda: len(pipeline(rl_module=module, batch={}, episodes=[chunk])["rewards"])),
    ]


@probe("O34", ours=[[2], [0]], theirs=[[2], Raises(AssertionError, "^$", "validate")])
def test_policy_steps_and_then_random_steps(library: Any) -> Any:
    """Lengths of the first call's chunks, and where those of the second start."""
    runner, _ = runner_of(library, {})
    first = [len(chunk) for chunk in runner.sample(num_timesteps=2)]
    return [first, tried(lambda: [chunk.t_started for chunk in runner.sample(num_timesteps=2, random_actions=True)])]


@probe("O35", ours=[], theirs=[0])
def test_no_timesteps(library: Any) -> Any:
    runner, _ = runner_of(library, {})
    runner.sample(num_timesteps=3)
    return [len(chunk) for chunk in runner.sample(num_timesteps=0)]


LOST = r"(?s)^environment .* failed in step\(\):\nsimulator lost"


@probe(
    "O40",
    ours=[Raises(ConnectionError, LOST), [3, 3]],
    theirs=[Raises(RuntimeError, "^$", "_try_env_step"), Raises(AssertionError, "^$", "_sample")],
)
def test_a_failure_loses_no_ended_episode(library: Any) -> Any:
    """Two environments with episodes of three steps; the second fails in its fifth. Then sampling goes on."""
    environment = {"length": 3, "failing": range(5, 6)}
    runner, _ = runner_of(library, environment, num_envs_per_env_runner=2)
    error = tried(lambda: runner.sample(num_timesteps=20))
    return [error, tried(lambda: [len(chunk) for chunk in runner.sample(num_timesteps=2) if chunk.is_done])]


def restarting(config: Any) -> None:
    config.fault_tolerance(restart_failed_sub_environments=True)


@probe("O40", ours=Raises(AttributeError, "no method 'fault_tolerance'"), theirs=16)
def test_counting_begins_anew_when_environments_are_restarted(library: Any) -> Any:
    """Ten steps are asked for, six have been taken when it happens. Here nothing restarts by itself yet."""
    environment = {"length": 3, "failing": range(5, 6)}
    runner, _ = runner_of(library, environment, restarting, num_envs_per_env_runner=2)
    return sum(len(chunk) for chunk in runner.sample(num_timesteps=10))


@probe("O40", ours=Raises(AttributeError, "no method 'fault_tolerance'"), theirs=26)
def test_resets_are_tried_without_end_when_environments_are_restarted(library: Any) -> Any:
    """How often an environment is reset whose resets fail 25 times."""
    environment = {"failing": range(1, 26), "method": "reset"}
    runner, env = runner_of(library, environment, restarting, num_envs_per_env_runner=2)
    runner.sample(num_timesteps=2)
    return env.calls
