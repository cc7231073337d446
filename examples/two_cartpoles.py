"""Several agents: two cart poles in one custom environment, a module for each, PPO for both.

Agent `short` balances a pole half as long as CartPole's, agent `long` one twice as long. An agent ends when its pole
falls, or after 500 steps. The episode ends when both agents have ended. So the agents act
for different times, and each module learns only from its own agent's steps.

You write only the environment. Its inputs and outputs are dicts from agent to value. `terminateds` and `truncateds`
have the agents' flags, and `__all__` ends the environment.

Target: both agents at a mean return of 450 over their last 100 episodes, of 500 at most. Measured with two seeds:
after 121,000 and 123,000 steps, 29 and 38 s at 3,200 to 4,300 steps/s on one core of a busy machine.

`epibatch train examples/two_cartpoles.yaml --allow-imports` trains the same and keeps a run folder. In the
file the mapping is a table. Run it from the repository root (about half a minute):

    python examples/two_cartpoles.py
    python examples/two_cartpoles.py --steps 4000
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.algorithms.ppo import PPOConfig
from epibatch.env_runner import MultiAgentEnv

GOAL = 450.0
POLES = {"short": 0.25, "long": 1.0}
"""Agent -> half the length of its pole; CartPole's is 0.5."""


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    steps: int = 200_000
    seed: int = 0


class TwoCartPoles(MultiAgentEnv):
    """A cart pole for each agent; the environment ends when both have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = list(POLES)
        self.carts = {agent: gym.make("CartPole-v1") for agent in POLES}
        for agent, cart in self.carts.items():
            pole: Any = cart.unwrapped
            pole.length, pole.polemass_length = POLES[agent], POLES[agent] * pole.masspole
        self.observation_spaces = {agent: cart.observation_space for agent, cart in self.carts.items()}
        self.action_spaces = {agent: cart.action_space for agent, cart in self.carts.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        seeds = [None, None] if seed is None else np.random.SeedSequence(seed).generate_state(2).tolist()
        self.agents = list(POLES)
        starts = {agent: cart.reset(seed=own) for (agent, cart), own in zip(self.carts.items(), seeds)}
        return {agent: start[0] for agent, start in starts.items()}, {}

    def step(self, action_dict: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        steps = {agent: self.carts[agent].step(action) for agent, action in action_dict.items()}
        observations, rewards, terminateds, truncateds = (
            {agent: step[part] for agent, step in steps.items()} for part in range(4)
        )
        self.agents = [agent for agent in self.agents if not (terminateds[agent] or truncateds[agent])]
        # Each agent has its own flag; one for all of them would turn the other's time limit into a fall.
        terminateds["__all__"] = not self.agents and not any(truncateds.values())
        truncateds["__all__"] = not self.agents and any(truncateds.values())
        return observations, rewards, terminateds, truncateds, {}

    def close(self) -> None:
        for cart in self.carts.values():
            cart.close()


def config_for(options: Options) -> PPOConfig:
    """PPO with a module for each agent, called like it."""
    return (
        PPOConfig()
        .environment(TwoCartPoles)
        .env_runners(num_envs_per_env_runner=8)
        .training(
            lr=1e-3,
            gamma=0.99,
            lambda_=0.95,
            train_batch_size=2048,
            minibatch_size=256,
            num_epochs=10,
            grad_clip=0.5,
            clip_param=0.2,
            entropy_coeff=0.0,
            use_kl_loss=False,
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"})
        .multi_agent(policies=["short", "long"], policy_mapping_fn=lambda agent_id, episode, **kwargs: agent_id)
        .debugging(seed=options.seed)
        .stopping(num_env_steps_sampled_lifetime=options.steps)
    )


def main(options: Options) -> tuple[float, int]:
    """Train until both agents are at the goal; returns the smaller mean return and the steps it took."""
    algorithm = config_for(options).build_algo()
    returns: dict[str, float] = {}
    steps = 0
    for results in algorithm.iterations():
        steps = results["num_env_steps_sampled_lifetime"]
        returns = results["env_runners"]["agent_episode_returns_mean"]
        if results["training_iteration"] % 5 == 0:
            print(f"{steps:7d} steps  mean return {describe(returns)}")
        if min(returns.values()) >= GOAL:
            break
    algorithm.stop()
    print(
        f"{steps:7d} steps  mean return {describe(returns)}: {'solved' if min(returns.values()) >= GOAL else 'not yet'}"
    )
    return min(returns.values()), steps


def describe(returns: dict[str, float]) -> str:
    """The agents' returns, in words."""
    return ", ".join(f"{agent} {mean:5.1f}" for agent, mean in returns.items())


def parse(arguments: list[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
