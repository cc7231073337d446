"""Many runners on one machine: steps per second against the ideal line, the driver's time, and a model of more runners.

    python -m benchmarks.scale             # some minutes; the figures go into the page; `make scale`

from the root of the repository. The environments sleep in each step, so that a core can run many of them.
"""

from __future__ import annotations

import os
import pickle
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import typer

from benchmarks.results import FIGURES, REPOSITORY, processor
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.env_runner import EnvRunnerGroup
from epibatch.episodes import count_steps, join_episodes

PAGE, PICTURE = Path("docs/internals/scale.md"), Path("docs/scale.png")
RUNNERS = (1, 2, 4, 8, 16, 32)
SLEEPS = (0.010, 0.050)
SAMPLES, SECONDS_PER_SAMPLE = 3, 2.0
EPISODE = 200
MEMORY_GB, NETWORK_BYTES = 0.3, 10e9 / 8
"""Of a runner's process; of a network of 10 Gbit/s, per second."""


class Sleeper(gym.Env[np.ndarray, int]):
    """An environment whose step sleeps, and whose episodes have 200 steps."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, config: dict[str, Any]) -> None:
        self.seconds = config["seconds"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: int) -> Any:
        """Sleep."""
        time.sleep(self.seconds)
        self.t += 1
        return np.zeros(4, np.float32), 1.0, self.t == EPISODE, False, {}


class Measured(NamedTuple):
    """What N runners did.

    Args:
        runners: N.
        sleep: Seconds that each step sleeps.
        steps: Of each runner in a sample.
        rate: Steps of all runners in a second.
        driver: Processor time of the driver for each sample, in seconds.
        bytes_per_step: That came from the runners.
    """

    runners: int
    sleep: float
    steps: int
    rate: float
    driver: float
    bytes_per_step: float


def measure(runners: int, sleep: float, steps: int, samples: int = SAMPLES) -> Measured:
    """Sample with N runners, some times, and return the medians.

    Args:
        runners: N.
        sleep: Seconds that each step sleeps.
        steps: Of each runner in a sample.
        samples: How many to time, after one that is not timed.
    """
    config = PPOConfig().environment(Sleeper, env_config={"seconds": sleep}).debugging(seed=0)
    config.env_runners(num_env_runners=runners, num_cpus_per_env_runner=0, rollout_fragment_length=steps)
    group = EnvRunnerGroup(config=config)
    try:
        group.sample()
        rates, driver, sizes = [], [], []
        for _ in range(samples):
            group.sync_weights()
            wall, busy = time.perf_counter(), time.process_time()
            episodes = group.sample()
            wall, busy = time.perf_counter() - wall, time.process_time() - busy
            taken = count_steps(episodes)
            rates.append(taken / wall)
            driver.append(busy)
            sizes.append(size_of(episodes) / taken)
    finally:
        group.stop()
    return Measured(runners, sleep, steps, *map(statistics.median, (rates, driver, sizes)))


def size_of(episodes: Sequence[Any]) -> int:
    """Return the bytes of episodes as they come from a runner."""
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(episodes, protocol=5, buffer_callback=buffers.append)
    return len(rest) + sum(buffer.raw().nbytes for buffer in buffers)


def second_runner(pairs: int) -> str:
    """Say how much two runners sample in the time of one: the median of pairs of groups, one after the other."""
    ratios = []
    for _ in range(pairs):
        one, two = (measure(runners, 0.001, 2000, samples=1).rate for runners in (1, 2))
        ratios.append(two / one)
    return f"Steps that sleep 1 ms: 2 runners take {statistics.median(ratios):.2f} times as many in a second as 1."


def driver_time(blocks: int) -> str:
    """Say how long the driver takes for a block of CartPole steps, beyond its learner pipeline."""
    base = PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [16]}).debugging(seed=0)
    base.env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter(), rollout_fragment_length=1024)
    several = base.copy().env_runners(num_env_runners=4, num_envs_per_env_runner=8, num_cpus_per_env_runner=0)
    alone, group = base.env_runners(num_envs_per_env_runner=32).build_algo(), EnvRunnerGroup(config=several)
    beyond = []
    for _ in range(blocks + 1):
        group.request()
        here, times = alone.env_runner.sample(), []
        time.sleep(4)  # until all runners have answered
        for made_here in (True, True, False):
            start = time.perf_counter()
            block = here if made_here else join_episodes([part for _, part in group.ready()])
            alone.learner.connector(rl_module=alone.learner.module, batch={}, episodes=block, shared_data={})
            times.append(time.perf_counter() - start)
        if group.num_in_flight_async_reqs():  # a runner was late
            group.sample()
        else:
            beyond.append(times[2] - times[1])
    group.stop()
    alone.stop()
    return (
        "A block of 32,768 CartPole steps from 4 runners, with a MeanStdFilter: the driver takes "
        f"{1e3 * statistics.median(beyond[1:]):.1f} ms to receive it and merge statistics, beyond the learner pipeline."
    )


class Model(NamedTuple):
    """The time of a sample: `step * S + fixed + per_runner * N + per_step * N * S`, all in seconds.

    `step` is the time that one runner alone takes for a step, and S the steps of each runner.

    Args:
        fixed: Of the driver, for each sample.
        per_runner: Of the driver, for each runner's request and answer.
        per_step: Of the driver, for each step that comes.
    """

    fixed: float
    per_runner: float
    per_step: float

    def driver(self, runners: int, steps: int) -> float:
        """Return the driver's seconds for a sample."""
        return self.fixed + self.per_runner * runners + self.per_step * runners * steps

    def step_of(self, one: Measured) -> float:
        """Return the seconds that a runner takes for a step, of what one runner did."""
        return 1 / one.rate - self.driver(1, one.steps) / one.steps

    def rate(self, runners: int, one: Measured) -> float:
        """Return steps of all runners in a second, each of which does what one runner did."""
        return runners * one.steps / (self.step_of(one) * one.steps + self.driver(runners, one.steps))

    def runners_for(self, share: float, one: Measured) -> int:
        """Return the number of runners at which only a part of the ideal line is left."""
        driver = one.steps / one.rate / share - self.step_of(one) * one.steps - self.fixed
        return int(driver / (self.per_runner + self.per_step * one.steps))


def fitted(measured: Sequence[Measured]) -> Model:
    """Return the model whose driver times are nearest to those measured: least squares, no coefficient below zero."""
    from scipy.optimize import nnls

    rows = [(1.0, one.runners, one.runners * one.steps) for one in measured]
    (fixed, per_runner, per_step), _ = nnls(np.array(rows, np.float64), np.array([one.driver for one in measured]))
    return Model(float(fixed), float(per_runner), float(per_step))


def table(measured: Sequence[Measured]) -> str:
    """Return the measured figures in Markdown."""
    names = ("a step sleeps", "runners", "steps of each", "steps/s", "of the ideal", "driver per sample", "bytes/step")
    lines = [names, ("---",) * len(names)]
    for one in measured:
        base = next(other for other in measured if (other.sleep, other.runners) == (one.sleep, 1))
        share = f"{one.rate / (one.runners * base.rate):.0%}"
        rate, driver = f"{one.rate:,.0f}", f"{1e3 * one.driver:.1f} ms"
        lines.append(
            (f"{1e3 * one.sleep:g} ms", str(one.runners), f"{one.steps:,}", rate, share, driver)
            + (f"{one.bytes_per_step:.0f}",)
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def forecast(model: Model, measured: Sequence[Measured]) -> str:
    """Return what the model says about up to 1,000 runners, in words."""
    size = max(one.bytes_per_step for one in measured)
    singles = [one for one in measured if one.runners == 1]
    lines = [
        "The model: a sample of N runners with S steps each takes `t * S + a + b * N + c * N * S` seconds; t is the "
        "time that one runner alone takes for a step. Fitted to the driver's times above: "
        f"a = {1e3 * model.fixed:.2f} ms, b = {1e6 * model.per_runner:.0f} us per runner, "
        f"c = {1e9 * model.per_step:.1f} ns per step.",
        "",
        "| a step sleeps | runners | steps/s | of the ideal | driver per sample | network | memory of all runners |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in singles:
        for runners in (32, 100, 300, 1000):
            rate = model.rate(runners, one)
            lines.append(
                f"| {1e3 * one.sleep:g} ms | {runners:,} | {rate:,.0f} | {rate / (runners * one.rate):.0%} | "
                f"{1e3 * model.driver(runners, one.steps):,.0f} ms | {rate * size / NETWORK_BYTES:.2%} of 10 Gbit/s | "
                f"{MEMORY_GB * runners:,.0f} GB |"
            )
    limits = " and ".join(f"{model.runners_for(0.5, one):,} at {1e3 * one.sleep:g} ms a step" for one in singles)
    lines += [
        "",
        "The first limit is the main process, which asks one runner after the other and takes their answers: from "
        f"about {limits} on, half of the ideal line is left. Longer fragments make b smaller for each step, and "
        "`sample_while_learning` hides that time behind the update. The memory of the runners (0.3 GB each) is spread "
        "over the nodes, and a network is far from full.",
    ]
    return "\n".join(lines)


def draw(measured: Sequence[Measured], model: Model, path: Path) -> None:
    """Write the picture as PNG: steps per second over runners, measured and by the model, beside the ideal line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(SLEEPS), figsize=(10, 4), layout="constrained")
    for axes, sleep in zip(panels, SLEEPS):
        own = [one for one in measured if one.sleep == sleep]
        counts = np.geomspace(1, 1000, 50)
        axes.plot(counts, counts * own[0].rate, "--", color="#808080", label="ideal")
        axes.plot(counts, [model.rate(n, own[0]) for n in counts], color="#6fa8ff", label="model")
        axes.plot([one.runners for one in own], [one.rate for one in own], "o", color="#1f5fbf", label="measured")
        axes.set(xscale="log", yscale="log", xlabel="runners", ylabel="steps per second")
        axes.set_title(f"a step sleeps {1e3 * sleep:g} ms, {own[0].steps:,} steps of each runner in a sample", size=9)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(REPOSITORY / path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def main(quick: bool = False) -> None:
    """Measure, print, and write figures and picture.

    Args:
        quick: Up to 4 runners, and write nothing.
    """
    counts = RUNNERS[:3] if quick else RUNNERS
    measured = []
    for sleep in SLEEPS:
        for runners in counts:
            measured.append(measure(runners, sleep, round(SECONDS_PER_SAMPLE / sleep)))
            print(measured[-1], flush=True)
    report(measured, f"{second_runner(1 if quick else 5)}\n\n{driver_time(1 if quick else 8)}", quick)


def report(measured: Sequence[Measured], others: str, quick: bool = False) -> None:
    """Print the figures, and write them and the picture unless it was quick."""
    model = fitted(measured)
    machine = f"{processor()}, {os.cpu_count()} cores; Ray on this machine."
    figures = f"{machine}\n\n{table(measured)}\n\n{others}\n\n{forecast(model, measured)}"
    print(figures)
    if not quick:
        text, _, _ = (REPOSITORY / PAGE).read_text(encoding="utf-8").partition(FIGURES)
        (REPOSITORY / PAGE).write_text(f"{text}{FIGURES}\n\n{figures}\n", encoding="utf-8")
        draw(measured, model, PICTURE)


if __name__ == "__main__":
    typer.run(main)
