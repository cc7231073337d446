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
_COMMON = ("capacity", "capacity_bytes", "folder", "kept_outputs")
_OPTIONS = {
    "EpisodeReplayBuffer": _COMMON,
    "PrioritizedEpisodeReplayBuffer": (*_COMMON, "alpha", "beta", "eta"),
}
_SEVERAL = "MultiAgent"
_BETA = TypeAdapter(ScheduledCoefficient)


def _buffer_config(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        kind = value.get("type", "EpisodeReplayBuffer")
        value = {**value, "type": kind.__name__ if kind in _BUFFERS else kind}
    if not isinstance(value, Mapping) or value["type"] not in [*BUFFERS]:
        raise ValueError(f"expected a mapping with type: {' or '.join(BUFFERS)}")
    options = _OPTIONS[value["type"].removeprefix(_SEVERAL)]
    for name in value:
        if name != "type" and name not in options:
            raise ValueError(f"unknown option {name!r} of {value['type']}; {nearest(str(name), options)}")
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
