"""Facts of an algorithm's three pipelines, from steps that a runner of its own samples."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, EpibatchWarning, RunnerError
from epibatch.core.imports import load_object
from epibatch.core.metrics import MetricsLogger
from epibatch.core.random_state import random_state_apart
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.structs import map_struct

from ..connectors._inspect.inspection import (
    NOT_FINITE,
    Inspection,
    inspect_pipeline,
    lane,
    leaves_of,
    not_finite,
    observation_rows,
    traced,
)
from ..connectors.connector_v2 import ConnectorV2
from ..connectors.pipeline_copies import copied
from ..env_runner.env_runner_group import EnvRunnerGroup
from ..env_runner.envs.make_env import makes_vector_env
from ..env_runner.tensor_env_runner import TensorEnvRunner
from ..learner.acting_side import find_parting, pieces_of_one_side
from .recorded_episodes import with_spaces_of_data

if TYPE_CHECKING:
    from .algorithm import Algorithm

_SHOWN_CALL = 5
"""Number of the acting call that is shown: episodes have a few steps then."""
_MOST_SAMPLES = 10_000
_STATES = ("rl_module", "weights_seq_no")
_TOLERANCE = 1e-4
_CLEAR = 0.01
"""Part of the largest difference that a step needs to be run again on both sides."""


class _Observed(ConnectorV2):
    """Keeps what the module is given while acting.

    Attributes:
        rows: (id of a single agent's episode, step) -> the observation, as one vector.
        envs: Id of an episode -> number of its environment.
    """

    rows: dict[Any, Any]
    envs: dict[Any, int]

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Sequence[Any], **kwargs: Any) -> Any:
        """Keep a copy of each row."""
        flat: dict[Any, Any] = {}
        rows: dict[Any, int] = {}
        self.envs.update({episode.id_: place for place, episode in enumerate(episodes)})
        for episode in self.single_agent_episode_iterator(episodes):
            columns = batch if Columns.OBS in batch else batch.get(episode.module_id, {})
            if Columns.OBS in columns and not (episode.agent_id is not None and episode.is_done):
                key, row = episode.module_id, rows.get(episode.module_id, 0)
                if key not in flat:
                    flat[key] = observation_rows(leaves_of(columns), 1)[0]
                if row < len(flat[key]):
                    self.rows[episode.id_, int(episode.t)] = flat[key][row].copy()
                rows[key] = row + 1
        return batch


class _Begun(ConnectorV2):
    """Keeps copies of the episodes of one acting call, as they are when it begins."""

    calls = 0
    episodes: Sequence[Any] = ()

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Sequence[Any], **kwargs: Any) -> Any:
        """Copy the episodes of the call that is shown."""
        self.calls += 1
        if self.calls <= _SHOWN_CALL:
            self.episodes = copy.deepcopy(list(episodes))
        return batch


def inspect_algorithm(algo: Algorithm, num_env_steps: int = 256) -> Inspection:
    """Sample with a runner of its own, and run copies of the pipelines; see `Algorithm.inspect`.

    Raises:
        ConfigError: the algorithm learns from simulators, which do not run for an inspection.
    """
    if algo.config.samples and algo.config.env is None:
        do = "inspect a config with the same pieces and an environment of the same spaces"
        raise ConfigError("Algorithm.inspect", expected="an environment", found="simulators that drive", do=do)
    stream = random_stream(algo.config.seed, "inspection")
    with warnings.catch_warnings(record=True) as caught, random_state_apart(seed_of(stream)):
        warnings.simplefilter("always")
        inspection = _inspected(algo, num_env_steps)
    data = inspection.data
    data["notes"] += dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in caught)
    return inspection


def _inspected(algo: Algorithm, num_env_steps: int) -> Inspection:
    config, learner = _small(algo.config, num_env_steps), algo.learner
    acts = config.env is not None and config.samples
    group = EnvRunnerGroup(config=config if config.env is not None else with_spaces_of_data(config))
    observed, begun = _Observed(), _Begun()
    observed.rows, observed.envs = {}, {}
    try:
        runner = group.local_env_runner
        edited = algo.env_runner.pipelines  # by hand, perhaps
        pipelines = copied("inspect", *edited.values(), kept=algo.env_runner.module, do="write __deepcopy__ for it")
        runner.replace_parts(
            config=runner.config, pipelines=dict(zip(edited, pipelines)), module=runner.module, spaces=runner.spaces
        )
        runner.set_state(copy.deepcopy(algo.env_runner.get_state(_STATES)))
        runner.require_lookback(learner.connector.lookback_needed if learner.connector.lookback_known else None)
        acting = runner.pipelines["env_to_module"]
        acting.prepend(begun)
        acting.append(observed)
        episodes = _sampled(config.make_source(group))
        if not config.samples:  # a source of recorded steps draws those of many updates at once
            episodes = episodes[:num_env_steps]
        acting.remove(begun)
        acting.remove(observed)
        lanes = _acting_lanes(runner, list(begun.episodes)) if acts and begun.episodes else []
    finally:
        group.stop()
    module = copy.deepcopy(learner.module)
    name = config.env if isinstance(config.env, str) else getattr(config.env, "__name__", type(config.env).__name__)
    environment = str(name) if acts else "recorded data"
    inspection = inspect_pipeline(
        learner.connector,
        episodes,
        module,
        title=f"{environment}, {type(algo).__name__}",
        acted=observed.rows if acts else None,
        envs=observed.envs,
        outputs=lambda batch: _outputs(module, batch),
        metrics=MetricsLogger(times_pieces=False),
    )
    data = inspection.data
    data["flow"] = [*lanes, *data["flow"]]
    data["facts"] = {
        "algorithm": type(algo).__name__,
        "environment": environment,
        "environments": int(config.num_envs_per_env_runner) if acts else 0,
        "iteration": algo.training_iteration,
        **data["facts"],
    }
    data["parting"] = _parting(data, episodes, acting, learner.connector, module)
    data["notes"] = [*_notes(data, algo), *not_finite(lanes), *data["notes"]]
    return inspection


def _small(config: Any, num_env_steps: int) -> Any:
    """A copy of a config that samples few steps, in this process."""
    small = config.copy().env_runners(num_env_runners=0).learners(num_learners=0)
    cls = small.env_runner_cls
    if cls is not None and issubclass(
        load_object(cls, "env_runner_cls") if isinstance(cls, str) else cls, TensorEnvRunner
    ):
        small.env_runners(env_runner_cls=None)  # the same episodes, by pieces on arrays
        if makes_vector_env(small.env):
            small.env_runners(gym_env_vectorize_mode="vector_entry_point")
    changes: dict[str, Any] = {"train_batch_size": num_env_steps, "minibatch_size": num_env_steps}
    if hasattr(small, "num_steps_sampled_before_learning_starts"):
        changes = {"train_batch_size": num_env_steps, "num_steps_sampled_before_learning_starts": num_env_steps // 2}
        changes["training_intensity"] = 1.0
    return small.training(**changes)


def _sampled(source: Any) -> Sequence[Any]:
    for _ in range(_MOST_SAMPLES):
        episodes: Sequence[Any] = source.sample()
        if len(episodes):
            return episodes
    raise RunnerError(
        "Algorithm.inspect",
        expected="a source that returns episodes",
        found=f"none in {_MOST_SAMPLES} samples",
        do="check the source with source.sample()",
    )


def _acting_lanes(runner: Any, episodes: list[Any]) -> list[dict[str, Any]]:
    """Trace both acting pipelines in one step."""
    pipelines, module = runner.pipelines, runner.module
    shared: dict[str, Any] = {}
    call: dict[str, Any] = {"copies": False, "explore": True, "shared_data": shared}
    seen = traced(pipelines["env_to_module"], episodes, module, **call)
    lanes = [lane(pipelines["env_to_module"], seen, "env_to_module")]
    if seen.batch is not None:
        with torch.no_grad():
            outputs = module.forward_exploration(seen.batch)
        acted = traced(pipelines["module_to_env"], episodes, module, batch=outputs, **call)
        lanes.append(lane(pipelines["module_to_env"], acted, "module_to_env"))
    return lanes


def _outputs(module: Any, batch: Mapping[Any, Any]) -> dict[Any, Any]:
    """The outputs of each module in training; a module that raises has none, and a warning says so."""
    made = {}
    for module_id, columns in batch.items():
        member = module[module_id] if module_id in module else module[DEFAULT_MODULE_ID]
        device = next((weight.device for weight in member.parameters()), None)
        try:
            with torch.no_grad():
                made[module_id] = member.forward_train(map_struct(partial(_on, device), dict(columns)))
        except Exception as error:
            warning = EpibatchWarning(
                f"module {module_id!r}, forward_train",
                expected="outputs of the train batch",
                found=f"{type(error).__name__}: {error}",
                do="call it with the batch of algo.learner.make_batch(episodes) to see the whole error",
            )
            warnings.warn(warning, stacklevel=2)
    return made


def _on(device: Any, leaf: Any) -> Any:
    return leaf.to(device) if isinstance(leaf, torch.Tensor) and device is not None else leaf


def _parting(
    data: Mapping[str, Any], episodes: Sequence[Any], acting: Any, learning: Any, module: Any
) -> dict[str, Any] | None:
    """Find the pieces after which both sides part, on the first step whose observations clearly differ.

    Returns:
        See `Inspection.data`, `parting`.
    """
    least = _CLEAR * (data["gap"][0] or 0.0)
    if least == 0:
        return None
    step, number, at = min(
        (data["chunks"][number]["t0"] + at, number, at)
        for grid in data["grids"].values()
        for number, at, pair in zip(grid["chunk"], grid["at"], grid["pairs"])
        if pair is not None and (pair[2] or 0.0) >= least
    )
    shown = data["chunks"][number]
    every = ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False)
    chunk = next(one for one in every if (one.id_, one.t_started) == (shown["name"], shown["t0"]))
    found = find_parting(acting, learning, module, chunk, at)
    text = f"On step {step} of episode {shown['episode']} "
    text += "no piece differs when it runs again: look for random numbers and state" if found is None else found.text
    names = (None, None) if found is None else (found.acting, found.learning)
    return {"acting": names[0], "learning": names[1], "text": text}


def _that_change_states(flow: Sequence[Any]) -> str:
    """The user's pieces that changed `state_out` before it was recorded."""
    pieces = [piece for lane in flow if lane["key"] == "module_to_env" for piece in lane["pieces"] if piece["own"]]
    states = (Columns.STATE_OUT, f"{DEFAULT_MODULE_ID}/{Columns.STATE_OUT}")
    return ", ".join(
        piece["kind"]
        for piece in pieces
        if any(column["what"] and column["name"].startswith(states) for column in piece["columns"])
    )


def _size(gap: float) -> str:
    if gap >= NOT_FINITE:
        return "in values that are not finite"
    return f"by up to {gap:.3g}" if gap else "are equal"


def _notes(data: Mapping[str, Any], algo: Algorithm) -> list[str]:
    """Return notes on what is to be seen first: where acting and learning part, and how much is padding."""
    notes = []
    observations, outputs = data["gap"]
    if observations or (outputs or 0.0) > _TOLERANCE:
        where = "look at recurrent states and other columns that the module reads"
        if observations:
            parting = data["parting"]
            where = parting["text"]
            if parting["acting"] is None and parting["learning"] is None:
                pieces = pieces_of_one_side(algo.pipelines["env_to_module"], algo.pipelines["learner"])
                where = "; ".join(filter(None, [where, *pieces.split("\n")]))
        elif changing := _that_change_states(data["flow"]):
            where = f"{changing} changed the module's state while acting"
        gaps = {"observations": observations, "module outputs": outputs}
        sizes = ", ".join(f"{name} {_size(gap)}" for name, gap in gaps.items() if gap is not None)
        notes.append(f"Acting and learning differ: {sizes}. {where[:1].upper()}{where[1:]}.")
    kinds = np.concatenate([grid["kind"] for grid in data["grids"].values()] or [np.ones(0)])
    if kinds.size and (padding := float((kinds == 0).mean())) > 0.25:
        notes.append(f"{padding:.0%} of the cells are padding. sequence_end='continue' lays sequences out without it.")
    return notes
