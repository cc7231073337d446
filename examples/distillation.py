"""A student learns from a teacher that sees more: DAgger with a `RolloutStorage`.

The environments are those of motion_tracking.py. The teacher is trained by PPO and sees the group `critic`: exact
velocity, wind and drag. The student sees the noisy group `policy` and the reference. It acts; the teacher says what it
would have done in the same states, in a column `teacher_actions` that is computed for a whole rollout at once; and
`DistillationLoss` moves the student's actions there (Ross et al. 2011, arXiv:1011.0686).

`epibatch train examples/distillation.yaml --allow-imports` trains a student of a controller, without a loop.

Target: the student is within 0.1 of the teacher's mean distance. Run it from the repository root:

    python examples/distillation.py
    python examples/distillation.py --device cuda --envs 4096
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.env_runner import TensorEnvRunner
from epibatch.learner import DistillationLoss, Learner, LearnerSettings, RolloutStorage

if __package__:  # as distillation.yaml imports it
    from .motion_tracking import Options as TeacherOptions
    from .motion_tracking import Training, config_for
else:
    from motion_tracking import Options as TeacherOptions
    from motion_tracking import Training, config_for


class ControllerLoss(DistillationLoss):
    """Imitates a controller, as distillation.yaml does: it pushes to the reference, against wind and drag."""

    def __call__(self, batch: Any, *arguments: Any) -> Any:
        """Return the loss against the controller's actions, of `critic`: way, velocity, wind and drag."""
        way, velocity, wind, drag = batch["obs"]["critic"].split([2, 2, 2, 1], -1)
        actions = (60.0 * way + (drag - 6.0) * velocity - wind) / 6.0
        return super().__call__({**batch, "teacher_actions": actions.clamp(-1.0, 1.0)}, *arguments)


@dataclass(frozen=True)
class Options(TeacherOptions):
    """The options of the command line; `iterations` are the teacher's."""

    student_iterations: int = 50


def train_teacher(options: Options) -> tuple[Any, float]:
    """Train a policy that sees everything; returns the module, and its mean distance from the reference."""
    training, distances = Training(options, config_for(options, ["policy", "ref", "critic"])), []
    for _ in range(options.iterations):
        distances.append(training.sample())
        training.learn()
    return training.runner.module, sum(distances[-10:]) / len(distances[-10:])


def actions_of(module: Any, obs: Any) -> torch.Tensor:
    """Return the actions that a module chooses without exploring."""
    with torch.no_grad():
        inputs = module.forward_inference({"obs": obs})["action_dist_inputs"]
    actions: torch.Tensor = module.get_inference_action_dist_cls().from_logits(inputs).to_deterministic().sample()
    return actions


def train_student(options: Options, teacher: Any) -> list[float]:
    """Let the student act, and learn what the teacher would have done; returns its mean distances."""
    runner = TensorEnvRunner(config=config_for(options))
    storage = RolloutStorage(options.rollout, options.envs, device=options.device)
    settings = LearnerSettings(lr=1e-3, minibatch_size=options.rollout * options.envs // 4, num_epochs=2)
    learner = Learner(module=runner.module, connector=None, settings=settings, loss=DistillationLoss())
    distances = []
    for iteration in range(options.student_iterations):
        storage.clear()
        runner.sample(storage)
        storage.add_column("teacher_actions", actions_of(teacher, storage["obs"]))
        metrics = learner.update(batch={DEFAULT_MODULE_ID: storage.batch()})[DEFAULT_MODULE_ID]
        distances.append(float(runner.env.unwrapped.distance().mean()))
        if iteration % 10 == 0 or iteration == options.student_iterations - 1:
            print(f"student, iteration {iteration:3d}  loss {metrics['total_loss']:.4f}  distance {distances[-1]:.3f}")
    return distances


def main(options: Options) -> tuple[float, float]:
    """Train both; returns the mean distances of teacher and student over their last ten iterations."""
    torch.manual_seed(options.seed)
    teacher, teacher_distance = train_teacher(options)
    print(f"teacher: distance {teacher_distance:.3f}")
    distances = train_student(options, teacher)
    return teacher_distance, sum(distances[-10:]) / len(distances[-10:])


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
