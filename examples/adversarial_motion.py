"""Adversarial motion priors: point masses learn to move as a reference does, from a discriminator alone.

The environments are those of motion_tracking.py, of which the policy sees position and velocity. Their rewards are not
used. A discriminator tells transitions of the agent from transitions of the reference motion, and the agent is rewarded
where it is deceived (AMP, Peng et al. 2021, arXiv:2104.02180). Rewards are computed for a whole rollout at once, before
its returns. Transitions that an end of an episode interrupts are left out, by a mask.

Target: a mean distance of 0.25 from the curve; at random it is 1.6. Run it from the repository root:

    python examples/adversarial_motion.py
    python examples/adversarial_motion.py --device cuda --envs 4096
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from motion_tracking import Options as TrackingOptions
from motion_tracking import Training, config_for, reference
from torch import nn


@dataclass(frozen=True)
class Options(TrackingOptions):
    """What can be set from the command line."""

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
