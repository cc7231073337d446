"""`epibatch record`: whole episodes, acted by what a run has trained, in a data set."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from epibatch.core.errors import ConfigError
from epibatch.core.random_state import random_state_apart
from epibatch.core.random_streams import random_stream, seed_of

from ...env_runner.group.make_runner import make_runner
from ...offline import write_episodes
from ..config.pipelines import check_same_pieces
from ..evaluation import EvaluatedEpisodes, sample_whole_episodes
from .training_run import built_algorithm

_STATES = ("rl_module", "weights_seq_no", "env_to_module_connector", "module_to_env_connector")


class Recorded(NamedTuple):
    """The numbers of what was recorded.

    Args:
        episodes: Episodes.
        steps: Environment steps in them.
        mean_return: Mean of their returns.
    """

    episodes: int
    steps: int
    mean_return: float


def record(
    path: Path,
    count: int,
    target: Path,
    *,
    explore: bool = False,
    seed: int | None = None,
    format: str | None = None,
    allow_imports: bool = False,
) -> Recorded:
    """Record whole episodes with what a run has trained, in new environments of the run's config.

    Each environment contributes its first episodes, alike many of each, so that short ones are no more frequent than
    they are. The states of pieces, such as running means, stay as they are in the checkpoint.

    Args:
        path: A run's folder, a checkpoint, or a config file, whose modules are untrained.
        count: The number of episodes.
        target: The folder, or file, as the format has it; nothing may be there.
        explore: True to draw actions, as in training.
        seed: Of the environments and of what is drawn; None: another one each time.
        format: As for `write_episodes`.
        allow_imports: True if the config may name pieces and environments by import path.

    Raises:
        EpibatchError: the path is none of these, or the episodes cannot be recorded; the target is as it was.
    """
    stream = random_stream(seed)

    def counted(runner: Any, episodes: EvaluatedEpisodes) -> Iterator[Any]:
        for env, chunk in sample_whole_episodes(runner, count, explore=explore):
            episodes.add(env, chunk)
            yield chunk

    with ExitStack() as opened:
        algorithm = built_algorithm(path, allow_imports=allow_imports)
        opened.callback(algorithm.stop)
        config = algorithm.config
        if config.env is None:
            do = "record what a run in an environment has trained"
            raise ConfigError(str(path), expected="a config with an environment", found="none", do=do)
        alone = {"num_env_runners": 0, "num_envs_per_env_runner": min(count, config.num_envs_per_env_runner)}
        parts: dict[str, dict[str, Any]] = {
            "env_runners": alone,
            "offline_data": {"input_": None, "output": str(target)},
        }
        runner = make_runner(config.copy().change("record", parts), 1)
        opened.callback(runner.stop)
        check_same_pieces(runner.pipelines, algorithm.env_runner.pipelines, "record")
        runner.set_state(copy.deepcopy(algorithm.env_runner.get_state(_STATES)))
        opened.enter_context(random_state_apart(seed_of(stream)))
        runner.seed(stream)
        for pipeline in runner.pipelines.values():
            pipeline.freeze()
        episodes = EvaluatedEpisodes(runner.num_envs)
        write_episodes(
            _joined(counted(runner, episodes)), target, format, env=config.env if isinstance(config.env, str) else None
        )
    return Recorded(count, episodes.steps, float(np.mean(episodes.returns)))


def _joined(chunks: Iterator[Any]) -> Iterator[Any]:
    """Whole episodes, each once it has ended."""
    running: dict[str, Any] = {}
    for chunk in chunks:
        episode = running.setdefault(chunk.id_, chunk)
        if episode is not chunk:
            episode.concat_episode(chunk)
        if episode.is_done:
            yield running.pop(chunk.id_)
