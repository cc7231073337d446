"""Learning from a replay buffer: its settings, and the source that fills the buffer and draws from it.

Recorded episodes are in a buffer of their own: alone, or beside that of the runners.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, EpibatchWarning
from epibatch.core.metrics import WEIGHTS_SEQ_NO
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.registry import snake_case
from epibatch.core.restoring import check_count
from epibatch.core.rl_module.module_facts import is_stateful, sequence_settings
from epibatch.core.schedules import value_at
from epibatch.core.settings import Count, Fraction, Positive, PositiveNumber

from ..connectors.replay.n_step_returns import NStepReturns
from ..connectors.sequences.random_subsequences import RandomSubsequences
from ..env_runner.tensor_env_runner import TensorEnvRunner
from ..episodes import count_steps
from ..episodes.replay import MixedReplay
from .algorithm_config import AlgorithmConfig
from .config.replay_buffers import PRIORITIZED, BufferConfig, make_buffer
from .config.settings import BATCH_SIZE_NAMES, TrainingSettings
from .recorded_episodes import check_shapes, num_rows, training_episodes, whole_episodes

if TYPE_CHECKING:
    from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline

_MOST_UPDATES, _FRAGMENT, _AT_ONCE = 32, 16, 64
"""Updates that are drawn at once; steps of all environments of a runner in a fragment, if nothing says how many;
recorded episodes that are added at once."""
_SUMMED = frozenset((Columns.REWARDS, Columns.TERMINATEDS))  # n-step returns are made of these


class ReplayTraining(TrainingSettings):
    """Set learning rate, batch sizes and the replay buffer."""

    train_batch_size: Positive = Field(default=256, validation_alias=BATCH_SIZE_NAMES)
    """Steps drawn for one update."""
    replay_buffer_config: BufferConfig = Field(default={"type": "EpisodeReplayBuffer", "capacity": 100_000})
    """The buffer: `type` (EpisodeReplayBuffer or PrioritizedEpisodeReplayBuffer; with several agents that of
    MultiAgent...), `capacity` in steps, of each module, or `capacity_bytes` in its place, `folder` (where the
    rows lie, if not in memory), `device` (such as cuda) or `pin_memory` for rows in tensors, `kept_outputs`
    (names of model outputs that train batches are to have, such as weights_seq_no), `keep_infos` (True for
    pieces that read infos), and, of a prioritised one, `alpha` (exponent of the priorities), `beta` (how far the
    weights of losses undo them, or a schedule of it) and `eta` (share of the highest error in the priority of a
    sequence)."""
    num_steps_sampled_before_learning_starts: Count = 1000
    """Environment steps before the first update: with random actions; with those of the module if it is recurrent, or
    if the buffer keeps outputs of it."""
    training_intensity: PositiveNumber | None = None
    """Steps drawn for each one sampled: less than `train_batch_size` for fewer updates than steps, more for more;
    None: one update for each step of the environments, however many there are."""
    n_step: Positive = 1
    """Steps of which a row has the rewards, and after which it has the next observation."""
    tau: Fraction = 1.0
    """Share of the way that targets move towards the networks: 1 copies them."""
    store_buffer_in_checkpoints: bool = False
    """True: checkpoints hold the buffer too."""

    def model_post_init(self, context: Any, /) -> None:
        """Make each train batch one update, whatever is given."""
        one_update = {"minibatch_size": self.train_batch_size, "num_epochs": 1}
        given = [name for name in one_update.keys() & self.model_fields_set if getattr(self, name) != one_update[name]]
        if given:
            warning = EpibatchWarning(
                "training with a replay buffer",
                expected="each train batch to be one update, and training_intensity to say how many there are",
                found=f"{' and '.join(sorted(given))}, which change nothing here",
                do="leave them out",
            )
            warnings.warn(warning, stacklevel=2)
        self.__dict__.update(one_update)
        self.__pydantic_fields_set__ -= one_update.keys()


class ReplaySource:
    """Lets runners fill a replay buffer, and draws train batches from it, or from recorded episodes, or from both.

    Runners in other processes sample while the modules learn, so that their weights may be one update older. Each
    environment of each runner has a lane of its own. A runner that is lost costs the fragment that it was sampling.

    Recorded episodes (`input_`) stay in a buffer of their own. Without runners all is drawn from it; with runners, half
    of each batch is (Ball et al. 2023, arXiv:2302.02948), and recorded steps count for the start of the learning.

    Args:
        config: The algorithm's.
        group: The runners, an `EnvRunnerGroup`.

    Attributes:
        buffer: the steps.
        num_env_steps: environment steps that were sampled for the newest batch; without runners, those drawn.

    Raises:
        ConfigError: recurrent networks of several agents, or runners and recorded episodes of several agents, or
            of other shapes than the environment's.
    """

    is_late = False

    def __init__(self, config: Any, group: Any) -> None:
        self._config, self._group = config, group
        module = group.local_env_runner.module
        self._sequences: dict[str, int] = {}
        recurrent = [name for name in module if is_stateful(module[name])] if config.is_multi_agent else []
        if recurrent:
            raise ConfigError(
                "replay for several agents",
                expected="networks without memory",
                found=f"recurrent ones, of {', '.join(map(repr, recurrent))}",
                do="leave out use_lstm and use_gru, or train one agent",
            )
        if not config.is_multi_agent and is_stateful(module):
            sequences = sequence_settings(module)
            length = sequences.max_seq_len - sequences.burn_in
            self._sequences = {"batch_length_T": length, "burn_in": sequences.burn_in, "lookback": 1}
        if config.is_multi_agent and config.input_ is not None and config.samples:
            raise ConfigError(
                f"{type(config).__name__} for several agents, with an environment",
                expected="episodes that are sampled, or recorded ones",
                found="both",
                do="leave out offline_data, or environment: evaluation_config can name one to evaluate in",
            )
        self.num_env_steps = 0
        self._sampled = 0
        self._begin_buffer()
        self._starts_at = max(int(config.num_steps_sampled_before_learning_starts) - self._recorded, 0)
        self._owed = 0.0  # updates that sampled steps are worth
        self._reported = self._counts()  # steps that were added and drawn until the last report
        self._drawn: Sequence[Any] | None = None

    def _begin_buffer(self) -> None:
        """Begin with the recorded episodes, or with an empty buffer."""
        config, states = self._config, [Columns.STATE_OUT] if self._sequences else []
        settings = dict(config.replay_buffer_config)
        settings["kept_outputs"] = self._kept = [*states, *settings.get("kept_outputs", ())]
        buffers: dict[str, Any] = {}
        self._recorded = 0
        if config.input_ is not None:
            episodes = training_episodes(config)
            if config.samples:
                check_shapes(episodes, self._group.local_env_runner.get_spaces()["__env_single__"])
            rows = sum(map(num_rows, whole_episodes(episodes)))
            sized = {name: value for name, value in settings.items() if name != "capacity_bytes"}
            buffers["recorded"] = self._make_buffer({**sized, "capacity": max(rows, 2)}, "replay", "recorded")
            parts = whole_episodes(episodes)
            while part := list(islice(parts, _AT_ONCE)):
                buffers["recorded"].add(part)
            self._recorded = buffers["recorded"].get_added_timesteps()
        if config.samples:
            buffers["sampled"] = self._make_buffer(settings, "replay")
        self.buffer = next(reversed(buffers.values()))
        self._replay = MixedReplay(dict.fromkeys(buffers, 1.0), buffers) if len(buffers) > 1 else self.buffer
        self._buffers = list(buffers.values())
        self._key = secrets.token_hex(8)

    def _make_buffer(self, settings: Mapping[str, Any], *names: str) -> Any:
        """Make a buffer whose draws are seeded by the config's seed, and by the steps that were sampled or drawn."""
        config = self._config
        more = [self._sampled] if self._sampled else []
        drawn_by = None if config.seed is None else seed_of(random_stream(config.seed, *names, *more))
        return make_buffer(settings, config.is_multi_agent, seed=drawn_by)

    def sample(self) -> Sequence[Any]:
        """Return what is drawn for some of the updates that sampled steps are worth; nothing before the start.

        It samples a fragment first if those before are used up.
        """
        config = self._config
        size = config.total_train_batch_size
        self.num_env_steps, self._drawn = 0, None
        if self._owed < 1 and not config.samples:
            self._owed += _MOST_UPDATES
        elif self._owed < 1:
            learns = self._learns
            for runner, episodes in self._fragments():
                self.buffer.add(episodes, source=runner)
                self.num_env_steps += count_steps(episodes)
            self._sampled += self.num_env_steps
            if learns:
                intensity = size if config.training_intensity is None else config.training_intensity
                self._owed += self.num_env_steps * intensity / size
        updates = min(int(self._owed), _MOST_UPDATES)
        if updates:
            length = self._sequences.get("batch_length_T", 1)
            lookback = max(self._group.local_env_runner.lookback, self._sequences.get("lookback", 0))
            options: dict[str, Any] = {**self._sequences, "lookback": lookback}
            options["include_infos"] = config.replay_buffer_config.get("keep_infos", False)
            if self._prioritized:
                options["beta"] = value_at(config.replay_buffer_config.get("beta", 0.4), self._sampled)
            self._drawn = drawn = self._replay.sample(-(-updates * size // length), **options)
            steps = updates * size if length == 1 else int(np.minimum(drawn.lengths, length).sum())
            self._owed -= steps / size
            if not config.samples:
                self.num_env_steps = steps
                self._sampled += steps
        return self._drawn or []

    @property
    def _prioritized(self) -> bool:
        return isinstance(self.buffer, PRIORITIZED)

    @property
    def _learns(self) -> bool:
        """True if enough steps were sampled at random."""
        return self._sampled >= self._starts_at

    def _fragments(self) -> Sequence[tuple[int, Sequence[Any]]]:
        """Sample one fragment of each runner; return pairs of a runner's number and its episodes."""
        if not self._config.num_env_runners:
            tensors = isinstance(self._group.local_env_runner, TensorEnvRunner) and self.buffer.lanes.device is not None
            return [(0, self._group.sample(**self._arguments(), **({"as_tensors": True} if tensors else {})))]
        parts: list[tuple[int, Sequence[Any]]] = []
        while not parts:  # again if all runners were lost
            self.sample_ahead()
            while self._group.num_in_flight_async_reqs():
                parts += self._group.ready()
            parts += self._group.ready(timeout=0.0)
        return sorted(parts, key=lambda part: part[0])

    def _arguments(self) -> dict[str, Any]:
        config = self._config
        steps = int(config.num_envs_per_env_runner) * config.get_rollout_fragment_length()
        own = {*self._kept} - {WEIGHTS_SEQ_NO}  # random actions come without outputs of the module
        random = not self._learns and not own
        return {"num_timesteps": steps, "random_actions": random}

    def learned(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the absolute errors of the newest batch as priorities, if the buffer has priorities.

        Args:
            rows: Module id -> name -> tensor [rows], what the update rule gave for each row.
        """
        if self._drawn is None or not self._prioritized:
            return
        errors: Any = {name: np.abs(values["td_error"].numpy()) + 1e-6 for name, values in rows.items()}
        if not self._config.is_multi_agent:
            (errors,) = errors.values()
        self._replay.update_priorities(errors, drawn=self._drawn)

    def sample_ahead(self) -> None:
        """Let runners in other processes sample their next fragments, if no updates are owed for those before."""
        if self._config.num_env_runners and self._owed < 1 and not self._group.num_in_flight_async_reqs():
            self._group.request(**self._arguments())

    def forget(self) -> None:
        """Forget nothing: what was sampled is in the buffer."""

    def get_metrics(self) -> dict[str, Any]:
        """Return counts of the buffer, with those since the last call, under RLlib's names."""
        counts = self._counts()
        added, drawn = (count - before for count, before in zip(counts, self._reported))
        self._reported = counts
        return {
            "replay_buffer": {
                "num_env_steps_stored": sum(buffer.get_num_timesteps() for buffer in self._buffers),
                "num_env_steps_added": added,
                "num_env_steps_added_lifetime": counts[0],
                "num_env_steps_sampled": drawn,
                "num_env_steps_sampled_lifetime": counts[1],
                "training_intensity": drawn / added if added else 0.0,
            }
        }

    def _counts(self) -> tuple[int, int]:
        """Return the steps that were ever added, and drawn."""
        added = sum(buffer.get_added_timesteps() for buffer in self._buffers)
        return added, sum(buffer.get_sampled_timesteps() for buffer in self._buffers)

    @property
    def _contents(self) -> str:
        """A text that is equal for equal contents of this source's buffer, and for no other's."""
        return f"{self._key} {self.buffer.get_added_timesteps()}"

    def get_state(self) -> dict[str, Any]:
        """Return the counts, and the buffer if checkpoints are to hold it."""
        state: dict[str, Any] = {"sampled": self._sampled, "starts_at": self._starts_at, "owed": self._owed}
        state |= {"reported": list(self._reported), "contents": self._contents}
        return {**state, "buffer": self._replay.get_state()} if self._config.store_buffer_in_checkpoints else state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue as the source did whose state it is.

        Without its buffer it begins with recorded episodes or none, and warms up again, unless it is a state of what
        the buffer holds now.

        Raises:
            CheckpointError: it is something else; nothing was taken over.
        """
        where = "state of a replay source"
        sampled, starts_at = (check_count(where, state[name]) for name in ("sampled", "starts_at"))
        added, drawn = (check_count(where, count) for count in state["reported"])
        owed = float(state["owed"])
        if not 0 <= owed < math.inf:
            raise ValueError(f"{owed} updates")
        if "buffer" in state:
            self._replay.set_state(state["buffer"])
            self._key = secrets.token_hex(8)
        elif state["contents"] != self._contents:
            warm_up = max(int(self._config.num_steps_sampled_before_learning_starts) - self._recorded, 0)
            warning = EpibatchWarning(
                "restoring a replay buffer",
                expected="a checkpoint with the buffer, to go on exactly",
                found=f"one without it; the run begins with an empty buffer, and {warm_up} steps with random actions",
                do="save with training(store_buffer_in_checkpoints=True)",
            )
            if self._config.samples:
                warnings.warn(warning, stacklevel=2)
            self._sampled = sampled
            self._begin_buffer()
            owed, (added, drawn), starts_at = 0.0, self._counts(), sampled + warm_up
        self._sampled, self._starts_at, self._owed, self._reported = sampled, starts_at, owed, (added, drawn)
        self._drawn = None


class ReplayConfig(AlgorithmConfig):
    """Settings that algorithms with a replay buffer share."""

    training_model: ClassVar[type[TrainingSettings]] = ReplayTraining
    min_env_steps_per_iteration: ClassVar[int] = 1000

    @property
    def samples(self) -> bool:
        """True if runners sample, beside recorded episodes too, if there is an environment."""
        return self.input_ is None or (self.env is not None and not self.offline)

    def validate(self) -> None:
        """Check what no single setting can show.

        A buffer that is too small for other settings is a warning.

        Raises:
            ConfigError: settings that contradict each other, all of them in one message.
        """
        super().validate()
        buffer = make_buffer(self.replay_buffer_config)
        for name in ("num_steps_sampled_before_learning_starts", "train_batch_size"):
            too_small = buffer.capacity < getattr(self, name) and buffer.capacity_bytes is None
            if too_small and self.input_ is None:  # recorded steps do not count for the capacity
                warning = EpibatchWarning(
                    f"{type(self).__name__}.training, replay_buffer_config",
                    expected=f"a capacity of at least {name}, {getattr(self, name)}",
                    found=str(buffer.capacity),
                    do=f"raise the capacity, or lower {name}",
                )
                warnings.warn(warning, stacklevel=2)

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps that each environment of a runner contributes to one `sample()`, at least 1.

        With "auto", all environments of a runner contribute about 16: the updates that these are worth are drawn at
        once, and the modules that act are up to 16 updates older.

        Args:
            worker_index: The runner's number; RLlib's argument.
        """
        if self.rollout_fragment_length != "auto":
            return int(self.rollout_fragment_length)
        return -(-_FRAGMENT // int(self.num_envs_per_env_runner))

    def make_source(self, env_runner_group: Any) -> Any:
        """Return a `ReplaySource`."""
        return ReplaySource(self, env_runner_group)

    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add returns of n steps after the last of the user's pieces that may change rewards or ends."""
        if not self.add_default_connectors_to_learner_pipeline:
            return
        after: Any = "AddObservationsFromEpisodesToBatch"
        for piece in reversed(pipeline.connectors[: pipeline.names.index(snake_case(after))]):
            if piece.reads is None or piece.mutates_episodes or not _SUMMED.isdisjoint(piece.writes):
                break
            after = piece
        pipeline.insert_before(after, NStepReturns(n_step=self.n_step, gamma=self.gamma))
        if "burn_in" in pipeline.names:
            pipeline.prepend(RandomSubsequences(at="end"))
