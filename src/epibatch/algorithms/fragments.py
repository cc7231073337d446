"""Learning from fragments of runners as they come: settings, and the config of algorithms that do."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from epibatch.core.errors import EpibatchWarning
from epibatch.core.settings import Coefficient, Positive, PositiveNumber, PositiveOrInfinite, ScheduledCoefficient

from ..connectors.learner.learner_connector_pipeline import add_advantages
from ..connectors.learner.vtrace import VTrace
from .algorithm_config import AlgorithmConfig
from .config.settings import BATCH_SIZE_NAMES, TrainingSettings
from .fragment_queue import FragmentQueue, QueueSettings

if TYPE_CHECKING:
    from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline

_FRAGMENT = 50
"""Steps of each environment in a fragment, if the config does not say how many."""


class FragmentTraining(TrainingSettings):
    """Set learning rate, batch sizes, V-trace and the weights of the losses."""

    lr: ScheduledCoefficient = 5e-4
    """Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps that were sampled."""
    train_batch_size: Positive = Field(default=500, validation_alias=BATCH_SIZE_NAMES)
    """Environment steps of a train batch, at least."""
    grad_clip: PositiveNumber | None = 40.0
    """Bound of the gradients; None for none."""
    vtrace_clip_rho_threshold: PositiveOrInfinite = 1.0
    """Highest ratio of probabilities, now to when it acted, that weights a step in the value targets."""
    vtrace_clip_pg_rho_threshold: PositiveOrInfinite = 1.0
    """Highest such ratio that weights an advantage."""
    vf_loss_coeff: Coefficient = 0.5
    """Weight of the value loss."""
    entropy_coeff: ScheduledCoefficient = 0.01
    """Weight of the entropy bonus; a number, or a schedule as for `lr`."""
    broadcast_interval: Positive = 1
    """Updates from one sending of weights to runners in other processes to the next."""


_OF_PIECES = {
    "gamma": "gamma",
    "vtrace_clip_rho_threshold": "clip_rho_threshold",
    "vtrace_clip_pg_rho_threshold": "clip_pg_rho_threshold",
}
"""Settings that are arguments of VTrace -> their names there."""


class FragmentConfig(AlgorithmConfig):
    """Settings that algorithms share whose runners never wait."""

    training_model: ClassVar[type[TrainingSettings]] = FragmentTraining
    min_env_steps_per_iteration: ClassVar[int] = 1000
    target: ClassVar[str] = ""
    """The name of the target network in what the rule keeps; "": there is none."""

    @property
    def queue(self) -> QueueSettings:
        """The queue of train batches; by default the newest one."""
        return QueueSettings(1, 1, False, "train_batch_size")

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps that each environment of a runner contributes to one `sample()`; 50 with "auto".

        Args:
            worker_index: The runner's number; RLlib's argument.
        """
        return _FRAGMENT if self.rollout_fragment_length == "auto" else int(self.rollout_fragment_length)

    def make_source(self, env_runner_group: Any) -> Any:
        """Return a `FragmentQueue`, or the recorded episodes."""
        return FragmentQueue(self, env_runner_group) if self.samples else super().make_source(env_runner_group)

    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add a bootstrap step to every chunk after the user's pieces, and V-trace at the end.

        Pieces that change episodes are warned of, if each train batch is used several times.
        """
        changing = [
            name for name, piece in zip(pipeline.names, pipeline) if piece.mutates_episodes or piece.reads is None
        ]
        if changing and self.queue.uses > 1 and self.samples:
            warning = EpibatchWarning(
                f"{type(self).__name__}, learner pipeline",
                expected=f"pieces that leave episodes as they are, as each train batch is used {self.queue.uses} times",
                found=f"pieces that may change them: {', '.join(changing)}",
                do="let them write columns of the batch, and declare what they read; or set "
                "circular_buffer_iterations_per_batch=1",
            )
            warnings.warn(warning, stacklevel=2)
        if self.add_default_connectors_to_learner_pipeline:
            add_advantages(pipeline, self._vtrace())

    def _vtrace(self) -> VTrace:
        own = {module_id: _of_pieces(self.overrides_for(module_id)) for module_id in self.policies}
        common = _of_pieces({name: getattr(self, name) for name in _OF_PIECES})
        return VTrace(**common, target=self.target, per_module={key: part for key, part in own.items() if part} or None)

    def update_modules(self, pipeline: Any) -> None:
        """Let a pipeline know the modules of this config, and their discounts."""
        for place, piece in enumerate(pipeline.connectors):
            if self.add_default_connectors_to_learner_pipeline and type(piece) is VTrace:  # others are the user's
                pipeline.connectors[place] = self._vtrace()
        super().update_modules(pipeline)


def _of_pieces(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {argument: settings[name] for name, argument in _OF_PIECES.items() if name in settings}
