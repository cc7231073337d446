"""Sampling rows: whole `sample()` calls, environment and network included, beside the loop one writes by hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.checks import DifferentValuesError, check_all_same, check_sampled, next_points
from benchmarks.libraries import ACTIONS, box, library, library_names
from benchmarks.row import FLOOR, OURS, Measured, Options, Row, Target, Timed, Workload, at_most, times_faster
from benchmarks.timing import Side, spread
from benchmarks.workloads import AGENTS, MODULES, module_of

ENV = "CartPole-v1"
SB3, GYMNASIUM = "SB3", "Gymnasium"
WORKER_STEPS = 200
SB3_HIDDEN, SB3_STEPS = 64, 128
NUM_ENVS_OF_AGENTS, STEPS_OF_AGENTS, LENGTH = 16, 3200, 200


def library_side(name: str, num_envs: int, steps: int, mode: str = "sync", agents: bool = False) -> Side:
    """Return `sample()` of a library's runner. Its metrics are fetched before each call, outside the time."""
    lib = library(name)
    config = lib.PPOConfig().environment(points(lib) if agents else ENV)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs, gym_env_vectorize_mode=mode)
    if agents:
        config.multi_agent(policies=set(MODULES), policy_mapping_fn=module_of)
    runner = (lib.MultiAgentEnvRunner if agents else lib.SingleAgentEnvRunner)(config=config, worker_index=0)
    run = partial(runner.sample, num_timesteps=steps, explore=True)
    return Side(lambda _: run(), runner.get_metrics, count=steps_of, show=flat)


def steps_of(episodes: Sequence[Any]) -> int:
    """Return the steps of all episodes."""
    return sum(map(len, episodes))


def flat(episodes: Sequence[Any]) -> dict[str, Any]:
    """Return the steps of all episodes and agents in flat rows, and how many env steps there were."""
    parts = [part for episode in episodes for part in getattr(episode, "agent_episodes", {"": episode}).values()]
    observations = [np.asarray(part.get_observations()) for part in parts]
    return {
        "obs": np.concatenate([rows[:-1] for rows in observations]),
        "actions": np.concatenate([np.asarray(part.get_actions()) for part in parts]),
        "rewards": np.concatenate([np.asarray(part.get_rewards()) for part in parts]),
        "next_obs": np.concatenate([rows[1:] for rows in observations]),
        "env_steps": steps_of(episodes),
    }


# ------------------------------------------------------------------------------------------- CartPole


def bare_side(num_envs: int, steps: int, mode: str) -> Side:
    """Return the loop written by hand, which counts every step, those that only reset an environment too."""
    import gymnasium as gym

    from benchmarks.floors.ppo import BareLoop, transitions

    loop = BareLoop(gym.make_vec(ENV, num_envs=num_envs, vectorization_mode=mode))
    vector_steps = -(-steps // num_envs)
    return Side(lambda _: loop.collect(vector_steps), count=lambda kept: len(kept) * num_envs, show=transitions)


def cartpole(options: Options, num_envs: int, steps: int, mode: str = "sync") -> Workload:
    """R1, R1v: both libraries and the bare loop."""
    steps = max(400, 4 * num_envs) if options.quick else steps
    sides = {name: partial(library_side, name, num_envs, steps, mode) for name in library_names(options)}

    def check(outputs: Mapping[str, Any]) -> None:
        for name, sampled in outputs.items():
            check_sampled(sampled, name, steps * (name != FLOOR))

    return Workload({**sides, FLOOR: partial(bare_side, num_envs, steps, mode)}, check, note_resets)


def note_resets(outputs: Mapping[str, Any], values: Mapping[str, Sequence[float]]) -> str:
    """Say what the bare loop's count is worth."""
    resets = float(outputs[FLOOR]["resets"])
    share = spread(bare / ours for bare, ours in zip(values[FLOOR], values[OURS])).median
    return (
        f"{100 * resets:.1f} % of the steps that the bare loop counts only reset an environment; epibatch does not "
        f"count those. Of the bare loop's other steps per second it does {100 * share / (1 - resets):.0f} %."
    )


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

    return Side(run, count=lambda _: num_envs * SB3_STEPS, show=_of_buffer)


def _of_buffer(buffer: Any) -> dict[str, Any]:
    """Return the buffer's steps but for the last ones of episodes, whose next observation it does not hold."""
    going_on = buffer.episode_starts[1:] == 0
    return {
        "obs": buffer.observations[:-1][going_on],
        "actions": buffer.actions[:-1, :, 0][going_on],
        "next_obs": buffer.observations[1:][going_on],
    }


def side_beside_sb3(num_envs: int) -> Side:
    """Do the same with epibatch: a network that predicts values while it acts, and the batch with advantages."""
    from benchmarks.floors.ppo import mlp
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

    return Side(run, runner.get_metrics, count=steps_of, show=flat)


def beside_sb3(options: Options, num_envs: int) -> Workload:
    """Make both sides, up to everything that PPO's epochs need."""

    def check(outputs: Mapping[str, Any]) -> None:
        for name, sampled in outputs.items():
            check_sampled(sampled, name, num_envs * SB3_STEPS // 2)

    return Workload({OURS: partial(side_beside_sb3, num_envs), SB3: partial(sb3_side, num_envs)}, check)


def measure_beside_sb3(options: Options, num_envs: int) -> Measured:
    """Measure nothing if Stable-Baselines3 is not installed."""
    if importlib.util.find_spec("stable_baselines3") is None:
        return Measured({}, note="stable-baselines3 is not installed")
    return Timed(partial(beside_sb3, num_envs=num_envs))(options)


# --------------------------------------------------------------------------------------- eight agents


def points(lib: SimpleNamespace) -> type:
    """Return an environment of eight points, each moved by its agent for 200 steps, which takes little time."""

    class Points(lib.MultiAgentEnv):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any = None) -> None:
            super().__init__()
            self.agents = self.possible_agents = list(AGENTS)
            self.observation_spaces = dict.fromkeys(AGENTS, box((4,)))
            self.action_spaces = dict.fromkeys(AGENTS, ACTIONS)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.left = LENGTH
            self.points = self.np_random.standard_normal((len(AGENTS), 4), np.float32)
            return dict(zip(AGENTS, self.points)), {}

        def step(self, action_dict: Any) -> Any:
            self.left -= 1
            self.points = next_points(self.points, [action_dict[agent] for agent in AGENTS])
            rewards = dict(zip(AGENTS, self.points[:, 0].tolist()))
            return dict(zip(AGENTS, self.points)), rewards, {"__all__": False}, {"__all__": self.left == 0}, {}

    return Points


def check_agents(steps: int, outputs: Mapping[str, Any]) -> None:
    """Check that every point went where its agent pushed it, and that no agent missed a step.

    Raises:
        DifferentValuesError: it is otherwise.
    """
    for name, sampled in outputs.items():
        if sampled["env_steps"] < steps or len(sampled["actions"]) != len(AGENTS) * sampled["env_steps"]:
            raise DifferentValuesError(f"{name}: {len(sampled['actions'])} rows in {sampled['env_steps']} steps")
        check_sampled(sampled, name, steps, next_points)
        if not np.allclose(sampled["next_obs"][:, 0], sampled["rewards"], rtol=1e-6, atol=0):
            raise DifferentValuesError(f"{name}: rewards of other steps")


def agents(options: Options) -> Workload:
    """R1m."""
    steps = 160 if options.quick else STEPS_OF_AGENTS
    side = partial(library_side, num_envs=NUM_ENVS_OF_AGENTS, steps=steps, agents=True)
    return Workload({name: partial(side, name) for name in library_names(options)}, partial(check_agents, steps))


# ---------------------------------------------------------------------------------- worker processes


def moving_frames() -> Any:
    """Return an environment of 84 x 84 x 4 bytes, which takes little time itself."""
    import gymnasium as gym

    class Frames(gym.Env[Any, Any]):
        observation_space, action_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8), ACTIONS

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.frame, self.t = self.np_random.integers(0, 256, (84, 84, 4), np.uint8), 0
            return self.frame, {}

        def step(self, action: Any) -> Any:
            self.t += 1
            self.frame[self.t % 84] = action
            return self.frame, float(action), self.t == LENGTH, False, {}

    return Frames()


def worker_side(name: str, env: Any, num_envs: int) -> Side:
    """Return vector steps of environments in worker processes, without a runner."""
    import gymnasium as gym

    from epibatch.env_runner import make_vector_env

    if name == OURS:
        envs = make_vector_env(env, num_envs, "async", {})
    else:
        envs = gym.vector.AsyncVectorEnv([partial(gym.make, env) if env == ENV else env] * num_envs)
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, (WORKER_STEPS, num_envs))

    def run(_: Any) -> Any:
        for row in actions:
            result = envs.step(row)
        return result

    names = ("obs", "rewards", "terminateds", "truncateds")
    return Side(run, count=lambda _: WORKER_STEPS, show=lambda result: dict(zip(names, map(np.copy, result[:4]))))


def workers(options: Options, env: Any, num_envs: int) -> Workload:
    """W1, W2: the same environments and actions."""
    sides = (OURS, GYMNASIUM)
    return Workload({name: partial(worker_side, name, env, num_envs) for name in sides}, check_all_same)


# -------------------------------------------------------------------------------------------- rows


def of_bare_loop(share: float) -> Target:
    """Do at least this share of the bare loop's steps per second."""
    return Target(f">= {100 * share:g} % of the bare loop's steps/s", share, FLOOR, faster=True)


ROWS = [
    *(
        Row(
            f"R1/{num_envs}",
            f"sampling CartPole, N = {num_envs}, 4,000 steps a call; per step",
            Timed(partial(cartpole, num_envs=num_envs, steps=4000)),
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
            Timed(partial(cartpole, num_envs=num_envs, steps=steps, mode="vector_entry_point")),
            (of_bare_loop(0.7),),
        )
        for num_envs, steps in ((64, 8192), (1024, 65_536))
    ),
    Row(
        "R1m/16",
        "sampling 8 agents, 3 modules, N = 16, 3,200 env steps a call; per env step",
        Timed(agents),
        (times_faster(5),),
    ),
    Row(
        "SB3/64",
        "sampling CartPole with values and advantages, N = 64, 8,192 steps a call; per step",
        partial(measure_beside_sb3, num_envs=64),
        (times_faster(1, SB3),),
    ),
    *(
        Row(
            f"{name}/{num_envs}",
            f"{what} in {num_envs} worker processes, beside Gymnasium's AsyncVectorEnv; per vector step",
            Timed(partial(workers, env=env, num_envs=num_envs)),
            (at_most(1.1, GYMNASIUM),),
        )
        for name, what, env, num_envs in (("W1", "CartPole", ENV, 8), ("W2", "84 x 84 x 4 bytes", moving_frames, 4))
    ),
]
