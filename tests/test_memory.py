"""Training does not grow: what is allocated after a warm-up is given back, whatever was sampled and learned."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from fixture_configs import cart_pole

NUM_ENVS = 256
FRAGMENT = 32
ITERATIONS = 8
STEPS = ITERATIONS * NUM_ENVS * FRAGMENT
A_STEP = 4 * 4 + 8 + 8  # an observation, an action and a reward: less than what is recorded of a step


@pytest.fixture
def config():
    batch = NUM_ENVS * FRAGMENT
    made = cart_pole(train_batch_size=batch, minibatch_size=batch)
    return made.env_runners(num_envs_per_env_runner=NUM_ENVS, gym_env_vectorize_mode="vector_entry_point")


def growth(config):
    """Bytes that Python and NumPy hold more after some iterations than before."""
    algorithm = config.build_algo()
    try:
        algorithm.train()
        tracemalloc.start()
        for _ in range(4):  # what every iteration allocates anew is traced from here on
            algorithm.train()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(ITERATIONS):
            algorithm.train()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        algorithm.stop()


def note_chunks(*, episode, prev_episode_chunks, metrics_logger, **kwargs):
    metrics_logger.log_value("chunks", 1 + len(prev_episode_chunks), window=50)


CASES = {
    "stateless": lambda config: config,
    "pieces that keep something": lambda config: config.env_runners(
        env_to_module_connector=[{"piece": "mean_std_filter"}, {"piece": "prev_actions_prev_rewards"}]
    ),
    "callbacks": lambda config: config.callbacks(on_episode_end=note_chunks),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_steps_leave_nothing_behind(config, case):
    assert growth(CASES[case](config)) < 0.1 * STEPS * A_STEP


@pytest.mark.slow
def test_a_leak_would_be_seen(config):
    kept = []
    leaking = config.callbacks(on_sample_end=lambda samples, **kwargs: kept.append(samples))
    assert growth(leaking) > STEPS * A_STEP
