"""Learning from a replay buffer: its settings, and the source that fills the buffer and draws from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, PlainValidator, WithJsonSchema

from epibatch.core.columns import Columns
from epibatch.core.errors import EpibatchError, nearest
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.registry import snake_case
from epibatch.core.rl_module.module_facts import is_stateful, sequence_settings
from epibatch.core.settings import Count, Fraction, Positive, PositiveNumber

from ..connectors.replay.n_step_returns import NStepReturns
from ..connectors.sequences.random_subsequences import RandomSubsequences
from ..episodes import count_steps
from ..episodes.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)
from .algorithm_config import AlgorithmConfig
from .config.settings import TrainingSettings

if TYPE_CHECKING:
    from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline

_PRIORITIZED = PrioritizedEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer
_BUFFERS: tuple[Any, ...] = EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer, *_PRIORITIZED
BUFFERS = {kind.__name__: kind for kind in _BUFFERS}
_OPTIONS = {
    "EpisodeReplayBuffer": ("capacity",),
    "PrioritizedEpisodeReplayBuffer": ("capacity", "alpha", "beta", "eta"),
}
_SEVERAL = "MultiAgent"


def _buffer_config(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or value.get("type") not in BUFFERS:
        raise ValueError(f"expected a mapping with type: {' or '.join(BUFFERS)}")
    options = _OPTIONS[value["type"].removeprefix(_SEVERAL)]
    for name in value:
        if name != "type" and name not in options:
            raise ValueError(f"unknown option {name!r} of {value['type']}; {nearest(str(name), options)}")
    try:
        _buffer(value)
    except EpibatchError as error:
        raise ValueError(f"expected {error.expected}, found {error.found}") from None
    return dict(value)


def _buffer(config: Mapping[str, Any], several: bool = False, **more: Any) -> Any:
    """Make the buffer of that type for one agent or for several, whichever of the two names the type has."""
    kind = BUFFERS[_SEVERAL * several + config["type"].removeprefix(_SEVERAL)]
    options = {name: value for name, value in config.items() if name not in ("type", "beta")}
    return kind(**options, **more)


BufferConfig = Annotated[dict[str, Any], PlainValidator(_buffer_config), WithJsonSchema({"type": "object"})]


class ReplayTraining(TrainingSettings):
    """Set learning rate, batch sizes and the replay buffer."""

    train_batch_size: Positive = 256
    """Steps drawn for one update."""
    replay_buffer_config: BufferConfig = Field(default={"type": "EpisodeReplayBuffer", "capacity": 100_000})
    """The buffer: `type` (EpisodeReplayBuffer or PrioritizedEpisodeReplayBuffer; with several agents that of
    MultiAgent...), `capacity` in steps, of each module, and, of a prioritised one, `alpha` (exponent of the
    priorities), `beta` (how far the weights of losses undo them) and `eta` (share of the highest error in the priority
    of a sequence)."""
    num_steps_sampled_before_learning_starts: Count = 1000
    """Environment steps before the first update: with random actions, of a recurrent module with its own."""
    training_intensity: PositiveNumber | None = None
    """Steps drawn for each one sampled; None: one update for each step of the environments."""
    n_step: Positive = 1
    """Steps of which a row has the rewards, and after which it has the next observation."""
    tau: Fraction = 1.0
    """Share of the way that targets move towards the networks: 1 copies them."""
    store_buffer_in_checkpoints: bool = False
    """True: checkpoints hold the buffer too."""

    def model_post_init(self, context: Any, /) -> None:
        """Make minibatches of one update each."""
        self.__dict__["minibatch_size"] = self.train_batch_size


class ReplaySource:
    """Lets runners fill a replay buffer, and draws train batches from it.

    Args:
        config: the algorithm's.
        group: the runners, an `EnvRunnerGroup`.

    Attributes:
        buffer: the steps.
        num_env_steps: environment steps that were sampled for the newest batch.
    """

    is_late = False

    def __init__(self, config: Any, group: Any) -> None:
        self._config, self._group = config, group
        stream = random_stream(config.seed, "replay")
        seed = None if config.seed is None else seed_of(stream)
        module = group.local_env_runner.module
        self._sequences: dict[str, int] = {}
        if is_stateful(module):
            sequences = sequence_settings(module)
            length = sequences.max_seq_len - sequences.burn_in
            self._sequences = {"batch_length_T": length, "burn_in": sequences.burn_in, "lookback": 1}
        kept = [Columns.STATE_OUT] if self._sequences else []
        self.buffer = _buffer(config.replay_buffer_config, config.is_multi_agent, kept_outputs=kept, seed=seed)
        self.num_env_steps = 0
        self._sampled = 0
        self._owed = 0.0  # updates that sampled steps are worth
        self._drawn: Sequence[Any] | None = None

    def sample(self) -> Sequence[Any]:
        """Sample one fragment, and return what is drawn for the updates that it is worth; nothing before the start."""
        config = self._config
        starts = self._sampled >= config.num_steps_sampled_before_learning_starts
        random = not starts and not self._sequences  # random actions come without states
        episodes = self._group.sample(num_timesteps=self._fragment(), random_actions=random)
        self.buffer.add(episodes)
        self.num_env_steps = count_steps(episodes)
        self._sampled += self.num_env_steps
        self._drawn = None
        if not starts:
            return []
        intensity = config.training_intensity
        self._owed += self.num_env_steps * (1.0 if intensity is None else intensity / config.train_batch_size)
        updates = int(self._owed)
        if not updates:
            return []
        options = {"beta": config.replay_buffer_config.get("beta", 0.4)} if self._prioritized else {}
        steps, length = updates * config.train_batch_size, self._sequences.get("batch_length_T", 1)
        self._drawn = self.buffer.sample(-(-steps // length), **self._sequences, **options)
        self._owed -= int(np.minimum(self._drawn.lengths, length).sum()) / config.train_batch_size
        return self._drawn

    def _fragment(self) -> int:
        config = self._config
        envs = int(config.num_envs_per_env_runner) * max(1, int(config.num_env_runners))
        length = config.rollout_fragment_length
        return envs * (1 if length == "auto" else int(length))

    @property
    def _prioritized(self) -> bool:
        return isinstance(self.buffer, _PRIORITIZED)

    def learned(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the absolute errors of the newest batch as priorities, if the buffer has priorities.

        Args:
            rows: module id -> name -> tensor [rows], what the update rule gave for each row.
        """
        if self._drawn is None or not self._prioritized:
            return
        errors: Any = {name: np.abs(values["td_error"].numpy()) + 1e-6 for name, values in rows.items()}
        if not self._config.is_multi_agent:
            (errors,) = errors.values()
        self.buffer.update_priorities(errors, drawn=self._drawn)

    def sample_ahead(self) -> None:
        """Prepare nothing."""

    def forget(self) -> None:
        """Forget nothing: what was sampled is in the buffer."""

    def get_state(self) -> dict[str, Any]:
        """Return the counts, and the buffer if checkpoints are to hold it."""
        state: dict[str, Any] = {"sampled": self._sampled, "owed": self._owed}
        return {**state, "buffer": self.buffer.get_state()} if self._config.store_buffer_in_checkpoints else state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue as the source did whose state it is; without its buffer, begin with an empty one."""
        self._owed = float(state["owed"])
        if "buffer" in state:
            self.buffer.set_state(state["buffer"])
            self._sampled = int(state["sampled"])
        else:
            self._sampled = 0


class ReplayConfig(AlgorithmConfig):
    """Settings that algorithms with a replay buffer share."""

    training_model: ClassVar[type[TrainingSettings]] = ReplayTraining
    min_env_steps_per_iteration: ClassVar[int] = 1000

    def make_source(self, env_runner_group: Any) -> Any:
        """Return a `ReplaySource`."""
        return ReplaySource(self, env_runner_group)

    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add n-step returns after the last of the user's pieces that may change rewards, and next observations."""
        if not self.add_default_connectors_to_learner_pipeline:
            return
        after: Any = "AddObservationsFromEpisodesToBatch"
        for piece in reversed(pipeline.connectors[: pipeline.names.index(snake_case(after))]):
            if piece.reads is None or Columns.REWARDS in piece.writes:
                break
            after = piece
        pipeline.insert_before(after, NStepReturns(n_step=self.n_step, gamma=self.gamma))
        if "burn_in" in pipeline.names:
            pipeline.prepend(RandomSubsequences(at="end"))
