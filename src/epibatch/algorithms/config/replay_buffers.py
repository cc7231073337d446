"""The setting of a replay buffer: its type and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, TypeAdapter, ValidationError, WithJsonSchema

from epibatch.core.errors import EpibatchError, nearest
from epibatch.core.settings import ScheduledCoefficient

from ...episodes.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)

PRIORITIZED = PrioritizedEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer
_BUFFERS: tuple[Any, ...] = EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer, *PRIORITIZED
BUFFERS = {kind.__name__: kind for kind in _BUFFERS}
_COMMON = ("capacity", "capacity_bytes", "folder", "kept_outputs", "keep_infos", "device", "pin_memory")
_OPTIONS = {
    "EpisodeReplayBuffer": _COMMON,
    "PrioritizedEpisodeReplayBuffer": (*_COMMON, "alpha", "beta", "eta"),
}
_DRAWN = "leave it out: training(train_batch_size=...) says how much is drawn"
_OTHER_OPTIONS = {
    "batch_length_T": "leave it out: max_seq_len of the network's model_config says how long sequences are",
    "batch_size_B": _DRAWN,
    "learning_starts": "use training(num_steps_sampled_before_learning_starts=...)",
    "metrics_num_episodes_for_smoothing": "use reporting(metrics_num_episodes_for_smoothing=...)",
    "prioritized_replay_alpha": "use alpha",
    "prioritized_replay_beta": "use beta",
    "prioritized_replay_eps": "leave it out: 1e-6 is added to each error",
    "replay_batch_size": _DRAWN,
    "replay_burn_in": "use training(burn_in_len=...)",
    "replay_mode": "leave it out: the steps of each module are drawn by themselves",
    "replay_sequence_length": "use max_seq_len: rl_module(model_config={'max_seq_len': ...})",
    "replay_zero_init_states": "leave it out: sequences begin with the states that were recorded",
    "storage_unit": "leave it out: a buffer holds steps, and draws sequences if the network has memory",
    "underlying_replay_buffer_config": "leave it out: type names the buffer of all modules",
    "worker_side_prioritization": "leave it out: new steps have the highest priority so far",
}
"""Options of RLlib's buffers, in its earlier versions too -> what to do here."""
_SEVERAL = "MultiAgent"
_BETA = TypeAdapter(ScheduledCoefficient)


def _buffer_config(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        kind = value.get("type", "EpisodeReplayBuffer")
        value = {**value, "type": kind.__name__ if kind in _BUFFERS else kind}
        value |= {"device": str(value["device"])} if value.get("device") is not None else {}
    if not isinstance(value, Mapping) or value["type"] not in [*BUFFERS]:
        raise ValueError(f"expected a mapping with type: {' or '.join(BUFFERS)}")
    options = _OPTIONS[value["type"].removeprefix(_SEVERAL)]
    for name in value:
        if name != "type" and name not in options:
            advice = _OTHER_OPTIONS.get(name) or nearest(str(name), options)
            raise ValueError(f"unknown option {name!r} of {value['type']}; {advice}")
    kept = value.get("kept_outputs", ())
    if not isinstance(kept, (list, tuple)) or not all(isinstance(name, str) for name in kept):
        raise ValueError(f"expected kept_outputs: a list of names of model outputs, found {kept!r}")
    try:
        _BETA.validate_python(value.get("beta", 0.0))
        make_buffer(value)
    except ValidationError as error:
        raise ValueError(f"beta: {error.errors()[0]['msg']}") from None
    except EpibatchError as error:
        raise ValueError(f"in {error.where}: expected {error.expected}, found {error.found}") from None
    return dict(value)


def make_buffer(config: Mapping[str, Any], several: bool = False, **more: Any) -> Any:
    """Make the buffer of that type for one agent or for several, whichever of the two names the type has."""
    kind = BUFFERS[_SEVERAL * several + config["type"].removeprefix(_SEVERAL)]
    options = {name: value for name, value in config.items() if name not in ("type", "beta")}
    return kind(**{"kept_outputs": (), **options}, **more)


BufferConfig = Annotated[dict[str, Any], PlainValidator(_buffer_config), WithJsonSchema({"type": "object"})]
