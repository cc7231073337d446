"""Rollouts of 4,096 environments: their minibatches, of rows and of sequences, and the storage that steps go into."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from benchmarks.checks import check_all_same
from benchmarks.memory import MIB, NoPeakError, peak_of
from benchmarks.row import FLOOR, OURS, Measured, Options, Row, Timed, Values, Workload, at_most, times_faster
from benchmarks.timing import Side, in_a_process, spread

RSL_RL, COPY = "rsl_rl", "what is copied"
STEPS, MINIBATCHES, EPOCHS = 24, 4, 5
LENGTH, STATE = 8, 64
WIDTHS = {"policy": 48, "ref": 26, "critic": 48, "critic_ref": 26, "rnd": 48, "dagger": 19}
WIDTHS |= {"actions": 19, "mean": 19, "sigma": 19, "values": 0, "advantages": 0, "returns": 0, "logp": 0, "phase": 0}
FLAGS = ("ref_mask", "critic_ref_mask")
GROUPS = ("policy", "ref", "critic", "critic_ref", "rnd", "dagger", "phase", *FLAGS)
RSL_RL_NAMES = {
    "actions": "actions",
    "values": "values",
    "advantages": "advantages",
    "returns": "returns",
    "logp": "actions_log_prob",
}


def num_envs(options: Options) -> int:
    """Return how many environments there are."""
    return 64 if options.quick else 4096


def rollout(*lead: int) -> dict[str, Any]:
    """Return 14 columns of 277 floats and two flags, `[*lead, ...]`, drawn with one seed."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = {name: (*lead, width) if width else lead for name, width in WIDTHS.items()}
    columns = {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    return {**columns, **{name: torch.rand(*lead, generator=generator) > 0.5 for name in FLAGS}}


def rows_of(options: Options) -> dict[str, Any]:
    """Return 98,304 rows."""
    return rollout(num_envs(options) * STEPS)


def sequences_of(options: Options) -> dict[str, Any]:
    """Return 12,288 sequences of 8 steps, with states of 64 numbers."""
    import torch

    count = num_envs(options) * STEPS // LENGTH
    states = {name: torch.randn(count, STATE, generator=torch.Generator().manual_seed(2)) for name in ("h", "c")}
    lens, mask = torch.full((count,), LENGTH), torch.ones(count, LENGTH, dtype=torch.bool)
    return {**rollout(count, LENGTH), "state_in": states, "seq_lens": lens, "loss_mask": mask}


# -------------------------------------------------------------------------------------------- minibatches


def through(draw: Callable[[], Iterable[Any]], show: Callable[[Any], dict[str, Any]] = dict) -> Side:
    """Return a side that goes through all minibatches; each is freed after the next one was drawn."""

    def run(_: Any) -> tuple[int, Any]:
        return deque(enumerate(draw(), 1), maxlen=1).pop()

    return Side(run, single=True, show=lambda output: {"count": output[0], **show(output[1])})


def seeded() -> Any:
    """Return the generator that every side draws from."""
    import torch

    return torch.Generator().manual_seed(1)


def epibatch_side(make: Callable[[Options], Any], shuffle: str, options: Options) -> Side:
    """Return `Minibatches`."""
    from epibatch.learner import Minibatches

    batch = make(options)
    settings: dict[str, Any] = {"num_minibatches": MINIBATCHES, "epochs": EPOCHS, "shuffle": shuffle}
    return through(lambda: Minibatches(batch, generator=seeded(), **settings))


def plain_side(
    make: Callable[[Options], Any], draw: Callable[..., Iterable[Any]], gather: Any, options: Options
) -> Side:
    """Return the same by hand."""
    batch = make(options)
    return through(lambda: draw(batch, partial(gathered_leaves, gather)))


def gathered_leaves(gather: Callable[[Any, Any], Any], columns: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Gather rows of each column; `state_in` is a dict of them."""
    return {
        name: gathered_leaves(gather, column, rows) if isinstance(column, dict) else gather(column, rows)
        for name, column in columns.items()
    }


def numpy_take(column: Any, rows: Any) -> Any:
    """Gather rows by NumPy."""
    import torch

    return torch.from_numpy(column.numpy().take(rows.numpy(), axis=0))


def index_select(column: Any, rows: Any) -> Any:
    """Gather rows by torch."""
    return column.index_select(0, rows)


def shuffled_once(batch: Mapping[str, Any], gather: Callable[..., Any]) -> Iterable[dict[str, Any]]:
    """Shuffle every column once, then slice it, the same in every epoch."""
    import torch

    rows = len(batch["actions"])
    size = rows // MINIBATCHES
    shuffled = gather(batch, torch.randperm(rows, generator=seeded()))
    for _ in range(EPOCHS):
        for start in range(0, rows, size):
            yield {name: column[start : start + size] for name, column in shuffled.items()}


def drawn_in_each_epoch(batch: Mapping[str, Any], gather: Callable[..., Any]) -> Iterable[dict[str, Any]]:
    """Gather every minibatch, in another order in each epoch."""
    import torch

    rows, generator = len(batch["actions"]), seeded()
    size = rows // MINIBATCHES
    for _ in range(EPOCHS):
        order = torch.randperm(rows, generator=generator)
        for start in range(0, rows, size):
            yield gather(batch, order[start : start + size])


def rsl_rl_storage(options: Options) -> Any:
    """Return rsl_rl's storage of the same rollout."""
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    lead = (STEPS, num_envs(options))
    steps = rollout(*lead)
    groups = {name: column for name, column in steps.items() if name in GROUPS}
    first = TensorDict({name: column[0] for name, column in groups.items()}, lead[1:])
    storage = RolloutStorage("rl", lead[1], STEPS, first, [19])
    storage.observations = TensorDict(groups, lead)
    for name, attribute in RSL_RL_NAMES.items():
        setattr(storage, attribute, steps[name])
    storage.distribution_params = (steps["mean"], steps["sigma"])
    return storage


def rsl_rl_side(options: Options) -> Side:
    """Return rsl_rl's `mini_batch_generator`, which draws one order from torch's global generator."""
    import torch

    storage = rsl_rl_storage(options)

    def draw() -> Iterable[Any]:
        torch.manual_seed(1)
        return storage.mini_batch_generator(MINIBATCHES, EPOCHS)

    def show(batch: Any) -> dict[str, Any]:
        names = {"logp": "old_actions_log_prob"}
        outputs = {name: getattr(batch, names.get(name, name)) for name in RSL_RL_NAMES}
        mean, sigma = batch.old_distribution_params
        return {**batch.observations, **outputs, "mean": mean, "sigma": sigma}

    return through(draw, show)


def minibatches(options: Options, make: Callable[[Options], Any], shuffle: str) -> Workload:
    """Five epochs of four minibatches."""
    draw = shuffled_once if shuffle == "once" else drawn_in_each_epoch
    sides = {
        OURS: partial(epibatch_side, make, shuffle, options),
        f"{FLOOR}: take": partial(plain_side, make, draw, numpy_take, options),
        f"{FLOOR}: index_select": partial(plain_side, make, draw, index_select, options),
    }
    if shuffle == "once" and rsl_rl_is_there():
        sides[RSL_RL] = partial(rsl_rl_side, options)
    return Workload(sides, check_all_same, note=beside_rsl_rl)


def beside_rsl_rl(outputs: Mapping[str, Any], values: Values) -> str:
    """Return what rsl_rl takes, if it was measured."""
    return f"rsl_rl takes {spread(values[RSL_RL]).median * 1e3:.3g} ms" if RSL_RL in values else ""


def rsl_rl_is_there() -> bool:
    """Return True if rsl_rl can be imported."""
    return importlib.util.find_spec("rsl_rl") is not None


# ------------------------------------------------------------------------------------------------- memory


def peak_of_minibatches(options: Options, shuffle: str) -> tuple[float, float]:
    """Return how far memory rises while minibatches are drawn, and the bytes of the rollout, in MiB."""
    from epibatch.learner import Minibatches

    batch = rows_of(options)

    def run() -> None:
        for minibatch in Minibatches(batch, num_minibatches=MINIBATCHES, epochs=EPOCHS, shuffle=shuffle):
            del minibatch

    run()
    peak, _ = peak_of(run)
    return peak / MIB, sum(column.nbytes for column in batch.values()) / MIB


def measure_memory(options: Options, shuffle: str) -> Measured:
    """Measure the peak beside what has to be copied: the rollout, or one minibatch."""
    try:
        peak, size = in_a_process(peak_of_minibatches, options, shuffle)
    except NoPeakError as error:
        return Measured({}, unit="MiB", note=f"not measured: {error}")
    return Measured({OURS: [peak], COPY: [size if shuffle == "once" else size / MINIBATCHES]}, unit="MiB")


# ------------------------------------------------------------------------------------------------ storage


def added(options: Options) -> Workload:
    """Add a whole rollout, step by step."""
    sides = {OURS: partial(storage_side, options), FLOOR: partial(copies_side, options)}
    if rsl_rl_is_there():
        sides[RSL_RL] = partial(transitions_side, options)
    return Workload(sides, check_all_same, note=beside_rsl_rl)


def step_of(options: Options) -> dict[str, Any]:
    """Return one step of all environments."""
    columns = rollout(num_envs(options))
    rewards, _ = columns.pop("advantages"), columns.pop("returns")
    return {**columns, "rewards": rewards, "dones": columns["ref_mask"]}


def storage_side(options: Options) -> Side:
    """Return `RolloutStorage.add_step`."""
    from epibatch.learner import RolloutStorage

    columns = step_of(options)
    step = {"obs": {name: columns.pop(name) for name in GROUPS}, **columns}
    storage = RolloutStorage(STEPS, num_envs(options))

    def run(_: Any) -> None:
        storage.clear()
        for _ in range(STEPS):
            storage.add_step(step)

    return Side(run, show=lambda _: {**storage["obs"], **{name: storage[name] for name in columns}})


def copies_side(options: Options) -> Side:
    """Return a `copy_` per column and step."""
    import torch

    step = step_of(options)
    rows = {name: torch.zeros(STEPS, *column.shape, dtype=column.dtype) for name, column in step.items()}

    def run(_: Any) -> None:
        for t in range(STEPS):
            for name, column in step.items():
                rows[name][t].copy_(column)

    return Side(run, show=lambda _: rows)


def transitions_side(options: Options) -> Side:
    """Return rsl_rl's `add_transition`."""
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    step, lead = step_of(options), [num_envs(options)]
    observations = TensorDict({name: step[name] for name in GROUPS}, lead)
    storage = RolloutStorage("rl", *lead, STEPS, observations, [19])
    transition = storage.Transition()
    transition.observations, transition.actions = observations, step["actions"]
    transition.rewards, transition.dones = step["rewards"], step["dones"]
    transition.values, transition.actions_log_prob = step["values"][:, None], step["logp"]
    transition.distribution_params = (step["mean"], step["sigma"])

    def run(_: Any) -> None:
        storage.clear()
        for _ in range(STEPS):
            storage.add_transition(transition)

    def show(_: Any) -> dict[str, Any]:
        numbers = {"rewards": storage.rewards, "values": storage.values, "logp": storage.actions_log_prob}
        mean, sigma = storage.distribution_params
        return {
            **storage.observations,
            **{name: column[..., 0] for name, column in numbers.items()},
            "dones": storage.dones[..., 0].bool(),
            **{"actions": storage.actions, "mean": mean, "sigma": sigma},
        }

    return Side(run, show=show)


# ----------------------------------------------------------------------------------------------- sampling


def sampled(options: Options) -> Workload:
    """Sample an environment of tensors into a storage, with truncations and values of terminal observations."""
    check = partial(check_all_same, close={"vf_preds": 1e-5, "values_bootstrapped": 1e-5})
    return Workload({OURS: partial(runner_side, options), FLOOR: partial(loop_side, options)}, check)


def carts(num_envs: int) -> Any:
    """Return a vector environment of 48 numbers and 12 actions; every 20 steps an episode is truncated."""
    import gymnasium as gym
    import torch
    from gymnasium.vector.utils import batch_space

    class Carts(gym.vector.VectorEnv[Any, Any, Any]):
        metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

        def __init__(self) -> None:
            self.num_envs = num_envs
            self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (48,), np.float32)
            self.single_action_space = gym.spaces.Box(-np.inf, np.inf, (12,), np.float32)
            self.observation_space = batch_space(self.single_observation_space, num_envs)
            self.action_space = batch_space(self.single_action_space, num_envs)
            self.push = torch.randn(12, 48, generator=torch.Generator().manual_seed(3)) / 10

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.x, self.t = torch.ones(num_envs, 48), torch.arange(num_envs) % 20
            return self.x, {}

        def step(self, actions: Any) -> Any:
            after, self.t = self.x * 0.9 + actions.clip(-1, 1) @ self.push, self.t + 1
            truncated = self.t == 20
            self.x, self.t = torch.where(truncated[:, None], 1.0, after), torch.where(truncated, 0, self.t)
            return self.x, -after.square().mean(1), torch.zeros_like(truncated), truncated, {"final_obs": after}

    return Carts()


def carts_config(options: Options) -> Any:
    """Return a config of them, with two networks of two layers of 128."""
    import torch

    from epibatch.algorithms import PPOConfig

    torch.manual_seed(0)
    config = PPOConfig().environment(lambda config: carts(num_envs(options)))
    config.env_runners(num_envs_per_env_runner=num_envs(options), gym_env_vectorize_mode="vector_entry_point")
    return config.rl_module(model_config={"fcnet_hiddens": [128, 128]})


def runner_side(options: Options) -> Side:
    """Return `TensorEnvRunner.sample`, from reset environments."""
    import torch

    from epibatch.env_runner import TensorEnvRunner
    from epibatch.learner import RolloutStorage

    runner, storage = TensorEnvRunner(config=carts_config(options)), RolloutStorage(STEPS, num_envs(options))

    def run(_: Any) -> None:
        torch.manual_seed(1)
        storage.clear()
        runner.reset()
        runner.sample(storage)

    return Side(run, show=lambda _: {name: storage[name] for name in storage.columns})


def loop_side(options: Options) -> Side:
    """Return a loop that calls the same networks and environment, and copies every column."""
    import torch

    from epibatch.env_runner import TensorEnvRunner

    runner = TensorEnvRunner(config=carts_config(options))
    env, module = runner.env, runner.module.eval()
    distribution = module.get_exploration_action_dist_cls()
    columns: dict[str, Any] = {}

    def run(_: Any) -> None:
        torch.manual_seed(1)
        obs, _ = env.reset()
        for t in range(STEPS):
            batch = {"obs": obs}
            inputs = module.forward_exploration(batch)["action_dist_inputs"]
            drawn = distribution.from_logits(inputs)
            actions = drawn.sample()
            step = {"obs": obs, "actions": actions, "action_dist_inputs": inputs, "action_logp": drawn.logp(actions)}
            step["vf_preds"] = module.compute_values(batch)
            obs, rewards, terminateds, truncateds, infos = env.step(actions)
            step |= {"rewards": rewards, "terminateds": terminateds, "truncateds": truncateds}
            rows = truncateds.nonzero().flatten()
            values = torch.zeros_like(rewards)
            if len(rows):
                values[rows] = module.compute_values({"obs": infos["final_obs"][rows]})
            step["values_bootstrapped"] = values
            for name, column in step.items():
                if name not in columns:
                    columns[name] = torch.zeros(STEPS, *column.shape, dtype=column.dtype)
                columns[name][t].copy_(column)

    return Side(torch.no_grad()(run), show=lambda _: columns)


ROWS = [
    Row(
        "minibatches",
        "98,304 rows of 277 floats, 5 epochs of 4 minibatches, shuffled once",
        Timed(partial(minibatches, make=rows_of, shuffle="once")),
        (at_most(1.2), times_faster(10, RSL_RL)),
    ),
    Row(
        "minibatches/epoch",
        "the same, shuffled in every epoch",
        Timed(partial(minibatches, make=rows_of, shuffle="epoch")),
        (at_most(1.2),),
    ),
    Row(
        "minibatches/sequences",
        "12,288 sequences of 8 such rows, 5 epochs of 4 minibatches, shuffled in every epoch",
        Timed(partial(minibatches, make=sequences_of, shuffle="epoch")),
        (at_most(1.5),),
    ),
    Row(
        "minibatches/memory",
        "peak of memory above the rollout, shuffled once",
        partial(measure_memory, shuffle="once"),
        (at_most(1.05, COPY),),
    ),
    Row(
        "minibatches/memory/epoch",
        "peak of memory above the rollout, shuffled in every epoch",
        partial(measure_memory, shuffle="epoch"),
        (at_most(1.05, COPY),),
    ),
    Row(
        "add_step",
        "24 steps of 4,096 environments, 276 floats each, into a RolloutStorage",
        Timed(added),
        (at_most(1.2),),
    ),
    Row(
        "sample/tensors",
        "24 steps of 4,096 environments of tensors, 48 floats, two networks of two layers, into a RolloutStorage",
        Timed(sampled),
        (at_most(1.2),),
    ),
]
