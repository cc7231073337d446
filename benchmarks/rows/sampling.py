"""Sampling rows: whole `sample()` calls, environment and network included, beside the loop one writes by hand."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cartpole import check_dynamics
from benchmarks.libraries import library, library_names
from benchmarks.row import FLOOR, OURS, Measured, Options, Row, Target, Workload, times_faster
from benchmarks.timing import Side, measure, spread
from benchmarks.workers import team

ENV = "CartPole-v1"
SB3 = "SB3"
SB3_HIDDEN, SB3_STEPS = 64, 128


@dataclass(frozen=True)
class Sampler(Side):
    """A side whose turn is a single call; its time is per step.

    Args:
        count: Steps in what a call gave.
        rows: The same as `obs`, `actions` and `next_obs` in flat rows, to be checked.
    """

    count: Callable[[Any], int] = len
    rows: Callable[[Any], dict[str, Any]] = dict

    def once(self) -> Any:
        """What a call gave, in flat rows."""
        return self.rows(super().once())

    def calls(self, seconds: float) -> int:
        """One; the side is warm afterwards."""
        self.turn(1)
        return 1

    def turn(self, calls: int) -> float:
        """Seconds per step of one call."""
        given = None if self.prepare is None else self.prepare()
        gc.collect()
        start = self.clock()
        output = self.run(given)
        stop = self.clock()
        return (stop - start) / self.count(output)


# ------------------------------------------------------------------------------------------- sides


def library_side(name: str, num_envs: int, steps: int, mode: str) -> Sampler:
    """`sample()` of a library's runner; its metrics are fetched in front of each call, outside the time."""
    lib = library(name)
    config = lib.PPOConfig().environment(ENV)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs, gym_env_vectorize_mode=mode)
    runner = lib.SingleAgentEnvRunner(config=config, worker_index=0)
    return Sampler(
        lambda _: runner.sample(num_timesteps=steps, explore=True), runner.get_metrics, count=steps_of, rows=flat
    )


def steps_of(episodes: Sequence[Any]) -> int:
    """Steps of all episodes."""
    return sum(map(len, episodes))


def flat(episodes: Sequence[Any]) -> dict[str, Any]:
    """The steps of all episodes in flat rows."""
    observations = [np.asarray(own.get_observations()) for own in episodes]
    return {
        "obs": np.concatenate([own[:-1] for own in observations]),
        "actions": np.concatenate([np.asarray(own.get_actions()) for own in episodes]),
        "next_obs": np.concatenate([own[1:] for own in observations]),
    }


def bare_side(num_envs: int, steps: int, mode: str) -> Sampler:
    """The loop written by hand, which counts every step, those that only reset an environment too."""
    import gymnasium as gym

    from benchmarks.floors.acting import BareLoop, transitions

    loop = BareLoop(gym.make_vec(ENV, num_envs=num_envs, vectorization_mode=mode))
    vector_steps = -(-steps // num_envs)
    return Sampler(lambda _: loop.collect(vector_steps), count=lambda kept: len(kept) * num_envs, rows=transitions)


def sampling(options: Options, num_envs: int, steps: int, mode: str = "sync") -> Workload:
    """Both libraries and the bare loop."""
    if options.quick:
        steps = max(400, 4 * num_envs)
    sides: dict[str, Callable[[], Side]] = {
        name: partial(library_side, name, num_envs, steps, mode) for name in library_names(options)
    }
    sides[FLOOR] = partial(bare_side, num_envs, steps, mode)

    def check(outputs: Any) -> None:
        for name, sampled in outputs.items():
            check_dynamics(sampled, name, steps * (name != FLOOR))

    return Workload(sides, check, steps=1)


def measured(build: Callable[[Options], Workload]) -> Callable[[Options], Measured]:
    """The `measure` of a sampling row; its note says what the bare loop's count is worth."""

    def measure_row(options: Options) -> Measured:
        workload = build(options)
        with team(build, options, workload.sides) as sides:
            workload.check({name: side.output for name, side in sides.items()})
            resets = float(sides[FLOOR].output["resets"])
            values = measure(sides, rounds=options.turns, seconds=options.seconds)
        share = spread(bare / own for bare, own in zip(values[FLOOR], values[OURS])).median
        note = (
            f"{100 * resets:.1f} % of the steps that the bare loop counts only reset an environment; epibatch does not "
            f"count those. Of the bare loop's other steps per second it does {100 * share / (1 - resets):.0f} %."
        )
        return Measured(values, steps=1, note=note)

    return measure_row


# --------------------------------------------------------------------------- beside Stable-Baselines3


def sb3_side(num_envs: int) -> Side:
    """`collect_rollouts`: observations, actions, values, log probabilities, and advantages at its end."""
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = DummyVecEnv([lambda: gym.make(ENV) for _ in range(num_envs)])
    net = {"pi": [SB3_HIDDEN] * 2, "vf": [SB3_HIDDEN] * 2}
    algorithm = PPO("MlpPolicy", env, n_steps=SB3_STEPS, device="cpu", policy_kwargs={"net_arch": net})
    _, callback = algorithm._setup_learn(10**9, None)
    callback.on_training_start({}, {})
    buffer = algorithm.rollout_buffer

    def run(_: Any) -> Any:
        algorithm.collect_rollouts(algorithm.env, callback, buffer, n_rollout_steps=SB3_STEPS)
        return buffer

    return Sampler(run, count=lambda _: num_envs * SB3_STEPS, rows=_of_buffer)


def _of_buffer(buffer: Any) -> dict[str, Any]:
    """The buffer's steps but for the last ones of episodes, whose next observation it does not hold."""
    going_on = buffer.episode_starts[1:] == 0
    return {
        "obs": buffer.observations[:-1][going_on],
        "actions": buffer.actions[:-1, :, 0][going_on],
        "next_obs": buffer.observations[1:][going_on],
    }


def own_side_beside_sb3(num_envs: int) -> Side:
    """The same with epibatch: a network that predicts values while it acts, and the train batch with advantages."""
    from benchmarks.floors.acting import mlp
    from epibatch.algorithms.ppo import PPOConfig
    from epibatch.core.columns import Columns
    from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI

    class Net(TorchRLModule, ValueFunctionAPI):
        def setup(self) -> None:
            self.policy, self.value = mlp(4, 2, SB3_HIDDEN), mlp(4, 1, SB3_HIDDEN)

        def _forward(self, batch: Any, **kwargs: Any) -> Any:
            return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS])}

        def _forward_exploration(self, batch: Any, **kwargs: Any) -> Any:
            return {**self._forward(batch), Columns.VF_PREDS: self.compute_values(batch)}

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            return self.value(batch[Columns.OBS]).squeeze(-1)

    config = PPOConfig().environment(ENV).rl_module(rl_module_spec=RLModuleSpec(module_class=Net))
    config.env_runners(num_envs_per_env_runner=num_envs).training(train_batch_size=num_envs * SB3_STEPS, lambda_=0.95)
    algorithm = config.build_algo()
    runner, connector, module = algorithm.env_runner, algorithm.learner.connector, algorithm.learner.module

    def run(_: Any) -> Any:
        episodes = runner.sample()
        connector(rl_module=module, batch={}, episodes=episodes, shared_data={})
        return episodes

    return Sampler(run, runner.get_metrics, count=steps_of, rows=flat)


def beside_sb3(options: Options, num_envs: int) -> Workload:
    """Both, to everything that PPO's epochs need."""
    sides = {OURS: partial(own_side_beside_sb3, num_envs), SB3: partial(sb3_side, num_envs)}

    def check(outputs: Any) -> None:
        for name, sampled in outputs.items():
            check_dynamics(sampled, name, num_envs * SB3_STEPS // 2)

    return Workload(sides, check, steps=1)


def measure_beside_sb3(options: Options, num_envs: int) -> Measured:
    """Nothing if Stable-Baselines3 is not there."""
    if importlib.util.find_spec("stable_baselines3") is None:
        return Measured({}, note="stable-baselines3 is not installed")
    build = partial(beside_sb3, num_envs=num_envs)
    workload = build(options)
    with team(build, options, workload.sides) as sides:
        workload.check({name: side.output for name, side in sides.items()})
        return Measured(measure(sides, rounds=options.turns, seconds=options.seconds), steps=1)


# -------------------------------------------------------------------------------------------- rows


def of_bare_loop(share: float) -> Target:
    """At least this share of the bare loop's steps per second."""
    return Target(f">= {100 * share:g} % of the bare loop's steps/s", share, FLOOR, times_faster=True)


ROW_MAP = [
    *(
        Row(
            f"R1/{num_envs}",
            f"sampling CartPole, N = {num_envs}, 4,000 steps a call; per step",
            measured(partial(sampling, num_envs=num_envs, steps=4000)),
            (of_bare_loop(share),),
            missed="environments and network take what they do in the loop; two pipelines of eleven pieces, checks of "
            "what the environments return and the recording of episodes add 30 to 60 us to a vector step",
        )
        for num_envs, share in ((1, 0.7), (16, 0.82), (64, 0.9))
    ),
    *(
        Row(
            f"R1v/{num_envs}",
            f"sampling Gymnasium's native vector CartPole, N = {num_envs}, {steps:,} steps a call; per step",
            measured(partial(sampling, num_envs=num_envs, steps=steps, mode="vector_entry_point")),
            (of_bare_loop(0.7),),
        )
        for num_envs, steps in ((64, 8192), (1024, 65_536))
    ),
    Row(
        "SB3/64",
        "sampling CartPole with values and advantages, N = 64, 8,192 steps a call; per step",
        partial(measure_beside_sb3, num_envs=64),
        (times_faster(1, SB3),),
    ),
]
