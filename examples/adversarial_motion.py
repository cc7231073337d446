"""Adversarial motion priors: point masses learn to move as a reference does, from a discriminator alone.

The environments are those of motion_tracking.py, of which the policy sees position and velocity. Their rewards are not
used. A discriminator tells transitions of the agent from transitions of the reference motion, and the agent is rewarded
where it is deceived (AMP, Peng et al. 2021, arXiv:2104.02180). Rewards are computed for a whole rollout at once, before
its returns. Transitions that an end of an episode interrupts are left out, by a mask.

`epibatch train examples/adversarial_motion.yaml --allow-imports` needs no loop: there the discriminator is a piece.

Target: a mean distance of 0.25 from the curve; at random it is 1.6. Run it from the repository root:

    python examples/adversarial_motion.py
    python examples/adversarial_motion.py --device cuda --envs 4096
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from epibatch.connectors import ConnectorV2

if __package__:  # as adversarial_motion.yaml imports it
    from .motion_tracking import Options as TrackingOptions
    from .motion_tracking import Training, config_for, reference
else:
    from motion_tracking import Options as TrackingOptions
    from motion_tracking import Training, config_for, reference


@dataclass(frozen=True)
class Options(TrackingOptions):
    """The options of the command line."""

    iterations: int = 150


class Discriminator:
    """A network that gives 1 for transitions of the reference and -1 for the agent's (least squares).

    Args:
        device: where it is.
    """

    def __init__(self, device: str) -> None:
        self.network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.network.to(device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-4)

    def rewards(self, transitions: torch.Tensor) -> torch.Tensor:
        """Return max(0, 1 - (d - 1)^2 / 4) for transitions [n, 4]: float [n]."""
        with torch.no_grad():
            return (1.0 - 0.25 * (self.network(transitions)[:, 0] - 1.0).square()).clamp(min=0.0)

    def learn(self, agent: torch.Tensor, expert: torch.Tensor) -> float:
        """Take a gradient step, with a penalty on the gradient at the reference's transitions; returns the loss."""
        expert = expert.requires_grad_()
        real = self.network(expert)
        (slope,) = torch.autograd.grad(real.sum(), expert, create_graph=True)
        loss = (real - 1.0).square().mean() + (self.network(agent) + 1.0).square().mean()
        loss = loss + 5.0 * slope.square().sum(1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def reference_transitions(count: int, device: str) -> torch.Tensor:
    """Return transitions [count, 4] of the reference motion at speed 1: positions before and after a step."""
    phase = 2 * math.pi * torch.rand(count, 1, device=device)
    return torch.cat([reference(phase), (reference(phase + 0.05) - reference(phase)) / 0.05], 1)


class MotionPrior(ConnectorV2):
    """Replaces rewards by the discriminator's, and trains it, as a learner piece of adversarial_motion.yaml.

    Args:
        device: where the discriminator is.
    """

    mutates_episodes: ClassVar[bool] = True

    def __init__(self, *spaces: Any, device: str = "cpu") -> None:
        super().__init__(*spaces)
        self.device, self.discriminator = device, Discriminator(device)

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], metrics: Any = None, **kwargs: Any) -> Any:
        """Set the rewards of all episodes; logs the mean distance from the curve."""
        positions = [torch.as_tensor(each.get_observations()["policy"][:, :2].copy()) for each in episodes]
        pairs = [torch.cat([each[:-1], (each[1:] - each[:-1]) / 0.05], 1) for each in positions]
        transitions = torch.cat(pairs).to(self.device)
        rewards = self.discriminator.rewards(transitions).cpu().numpy()
        for episode, own in zip(episodes, np.split(rewards, np.cumsum([len(each) for each in pairs])[:-1])):
            episode.set_rewards(new_data=own)
        for _ in range(4):
            rows = torch.randint(len(transitions), (512,), device=self.device)
            self.discriminator.learn(transitions[rows], reference_transitions(512, self.device))
        if metrics is not None:
            metrics.log_value("distance_from_curve", distance_from_curve(torch.cat(positions)), window=1)
        return batch

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the discriminator's weights; its optimiser begins again."""
        return {name: value.cpu().numpy().copy() for name, value in self.discriminator.network.state_dict().items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the discriminator's weights."""
        self.discriminator.network.load_state_dict({name: torch.tensor(value) for name, value in state.items()})


def distance_from_curve(positions: torch.Tensor) -> float:
    """Return the mean distance of positions [n, 2] from the nearest point of the curve."""
    curve = reference(torch.linspace(0, 2 * math.pi, 200, device=positions.device)[:, None])
    return float(torch.cdist(positions, curve).min(1).values.mean())


def main(options: Options) -> tuple[float, float]:
    """Train; returns the mean distances from the curve in the first rollout and over the last ten."""
    torch.manual_seed(options.seed)
    training, discriminator = (
        Training(options, config_for(options, ["policy"], spread=1.0, farthest=math.inf)),
        Discriminator(options.device),
    )
    storage, distances = training.storage, []
    for iteration in range(options.iterations):
        training.sample()
        position = storage.rows("obs", 0, len(storage) + 1)["policy"][..., :2]
        transitions = torch.cat([position[:-1], (position[1:] - position[:-1]) / 0.05], 2).flatten(0, 1)
        whole = ~storage.ended().flatten()  # the observation after an end is that of another episode
        rewards = torch.where(whole, discriminator.rewards(transitions), 0.0)
        storage["rewards"].copy_(rewards.reshape(len(storage), -1))
        agent = transitions[whole]
        for _ in range(4):
            rows = torch.randint(len(agent), (512,), device=agent.device)
            loss = discriminator.learn(agent[rows], reference_transitions(512, options.device))
        training.learn()
        distances.append(distance_from_curve(position.flatten(0, 1)))
        if iteration % 20 == 0 or iteration == options.iterations - 1:
            print(f"iteration {iteration:3d}  discriminator {loss:.3f}  distance from the curve {distances[-1]:.3f}")
    return distances[0], sum(distances[-10:]) / len(distances[-10:])


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
