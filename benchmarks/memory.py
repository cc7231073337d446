"""Memory: what a train batch of stacked frames needs beyond its inputs, and whether a long training grows.

    python -m benchmarks.memory                     # both, some minutes; `make bench-memory`
    python -m benchmarks.memory --steps 1_000_000   # a shorter training
    python -m benchmarks.memory --steps 0           # the train batch alone

from the root of the repository. Memory is what the system counts: resident pages, and their peak, which only Linux
lets a process reset (/proc/self/clear_refs). Elsewhere nothing is measured, and it says so.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

MIB = 2**20
FRAMES, STEPS, EPISODES = 4, 4096, 20
LOOK_EVERY = 500_000
WARM_UP = 2_000_000
MOST_PER_BATCH = 1.1
MOST_PER_MILLION = 1.0


class NoPeakError(RuntimeError):
    """The system does not let a process measure the peak of its memory."""


def status(field: str) -> int:
    """Bytes of a field of /proc/self/status, VmRSS or VmHWM.

    Raises:
        NoPeakError: there is no such file.
    """
    listing = Path("/proc/self/status")
    if not listing.is_file():
        raise NoPeakError("no /proc/self/status, which Linux has")
    for line in listing.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise NoPeakError(f"no {field} in /proc/self/status")


def peak_of(call: Callable[[], Any]) -> tuple[int, Any]:
    """How far resident memory rises above where it was while a call runs, in bytes, and what the call gave.

    Raises:
        NoPeakError: the peak cannot be reset here.
    """
    gc.collect()
    before = status("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        raise NoPeakError(f"the peak cannot be reset: {error}") from error
    output = call()
    return status("VmHWM") - before, output


# --------------------------------------------------------------------------------------- a train batch


def stacked(name: str, steps: int = STEPS) -> tuple[float, float]:
    """Peak above the inputs and size of a train batch with stacked frames of 84 x 84 bytes, in MiB.

    Args:
        name: The library whose learner pipeline makes it.
        steps: Of the episodes.
    """
    from benchmarks.columns import episodes
    from benchmarks.rows.learner import library_side

    small = episodes(32, 2, (84, 84, 1), kind="uint8")
    library_side(name, small, "uint8", change=_stack).once()  # loads what there is to load, and leaves little behind
    columns = episodes(steps, max(2, EPISODES * steps // STEPS), (84, 84, 1), kind="uint8")
    side = library_side(name, columns, "uint8", change=_stack)
    given = side.prepare() if side.prepare is not None else None
    peak, batch = peak_of(partial(side.run, given))
    return peak / MIB, sum(column.nbytes for column in batch.values()) / MIB


def _stack(lib: Any, pipeline: Any) -> None:
    pipeline.prepend(lib.FrameStacking(num_frames=FRAMES, as_learner_connector=True))


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own, whose heap nobody else has used."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_one_thread) as process:
        return process.submit(function, *arguments).result()


def _one_thread() -> None:
    from benchmarks.one_thread import use_one_thread

    use_one_thread()


# ------------------------------------------------------------------------------------- a long training


@dataclass(frozen=True)
class Growth:
    """Resident memory in a training.

    Args:
        steps: Environment steps at each look.
        bytes: Resident memory then.
    """

    steps: list[int]
    bytes: list[int]

    def per_million(self, warm_up: int) -> float:
        """MiB by which memory grows per million steps behind the warm-up: the slope of the line of least squares."""
        import numpy as np

        kept = [(step, size) for step, size in zip(self.steps, self.bytes) if step >= warm_up]
        steps, sizes = np.array(kept, np.float64).T
        return float(np.polyfit(steps / 1e6, sizes / MIB, 1)[0])


def train(steps: int, every: int = LOOK_EVERY, *, num_envs: int = 256, say: bool = True) -> Growth:
    """Train PPO on Gymnasium's native vector CartPole with a small network, looking at memory on the way."""
    from epibatch.algorithms.ppo import PPOConfig

    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [16]}).debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=num_envs, gym_env_vectorize_mode="vector_entry_point")
    config.training(train_batch_size=num_envs * 64, minibatch_size=num_envs * 16, num_epochs=1, lr=1e-3)
    algorithm = config.build_algo()
    growth = Growth([], [])
    while (done := algorithm.env_runner.num_env_steps_sampled_lifetime) < steps:
        results = algorithm.train()
        if done // every != algorithm.env_runner.num_env_steps_sampled_lifetime // every:
            gc.collect()
            growth.steps.append(algorithm.env_runner.num_env_steps_sampled_lifetime)
            growth.bytes.append(status("VmRSS"))
            if say:
                returns = results["env_runners"]["episode_return_mean"]
                size = growth.bytes[-1] / MIB
                print(f"{growth.steps[-1] / 1e6:6.1f} M steps: {size:7.2f} MiB, mean return {returns:.0f}", flush=True)
    algorithm.stop()
    return growth


# -------------------------------------------------------------------------------------------- command


def main() -> int:
    """Measure; 1 if something needs too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000_000, help="of the long training")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="steps that are not looked at")
    options = parser.parse_args()
    from benchmarks.libraries import library_names, rllib_is_there
    from benchmarks.row import OURS, Options

    good = True
    for name in library_names(Options(rllib=rllib_is_there())):
        try:
            peak, size = in_a_process(stacked, name)
        except NoPeakError as error:
            print(f"not measured: {error}")
            return 0
        ratio = peak / size
        print(f"train batch of stacked frames, {name}: {peak:.1f} MiB above the inputs for {size:.1f}: {ratio:.2f} x")
        if name == OURS:
            good = ratio <= MOST_PER_BATCH
            print(f"  at most {MOST_PER_BATCH} x: {'yes' if good else 'NO'}")
    if options.steps:
        slope = in_a_process(train, options.steps).per_million(options.warm_up)
        held = slope < MOST_PER_MILLION
        print(
            f"training: {slope:+.3f} MiB per million steps; less than {MOST_PER_MILLION:g}: {'yes' if held else 'NO'}"
        )
        good = good and held
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
