"""Several agents that come and go, their spaces and modules, and the episodes that they make."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from epibatch.algorithms import PPOConfig
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode

from .content import OBSERVATIONS, STATES, Random, chance, draw, eighths, map_shapes, pick, row
from .modules import spec

AGENTS = ("b", "a", "c", "d")
THREE, FOUR, FIVE = (spaces.Box(-np.inf, np.inf, (n,), np.float32) for n in (3, 4, 5))
KINDS: dict[str, dict[str, Any]] = {
    "alike": dict.fromkeys(AGENTS, THREE),
    "shared": dict.fromkeys(AGENTS, THREE),
    "different": {"b": THREE, "a": FOUR, "c": spaces.Discrete(4), "d": OBSERVATIONS["dict"]()},
    "padded": {"b": THREE, "a": FOUR, "c": FIVE, "d": OBSERVATIONS["dict"]()},
}
"""Observation spaces by agent. Agents `a` and `c` share a module, which sees vectors of a common length."""
MODULES = {"b": "thinker", "a": "walker", "c": "walker", "d": "scout"}


class Team:
    """The agents' spaces and modules in one case.

    Args:
        rng: What is drawn from.
        kinds: The kinds to pick from, among `KINDS`.
    """

    def __init__(self, rng: Random, kinds: tuple[str, ...]) -> None:
        self.kind = pick(rng, kinds)
        self.state = pick(rng, ["", "h", "nested"])
        self.integers = chance(rng, 25)
        self.observation_space = spaces.Dict(KINDS[self.kind])
        action = pick(rng, [spaces.Discrete(4), spaces.Box(-2.0, 2.0, (2,), np.float32)])
        self.action_space = spaces.Dict(dict.fromkeys(AGENTS, action))

    def module_of(self, agent_id: Any, *args: Any, **kwargs: Any) -> str:
        """Return the module of an agent: the mapping function."""
        return "thinker" if self.kind == "shared" else MODULES[agent_id]

    @property
    def module_ids(self) -> list[str]:
        """The modules, in an order of their own."""
        return ["thinker"] if self.kind == "shared" else ["walker", "scout", "thinker"]

    def specs(self, stacked: tuple[str, ...] = (), **options: Any) -> dict[str, RLModuleSpec]:
        """Return the modules' specs; only `thinker` is recurrent, rows of stacked ones have two axes."""
        action = self.action_space["a"]
        out = {}
        for module_id in self.module_ids:
            more = {**options, "state": self.state if module_id == "thinker" else ""}
            out[module_id] = spec(THREE, action, **more, **({"axes": 2} if module_id in stacked else {}))
        return out

    def modules(self, stacked: tuple[str, ...] = (), **options: Any) -> MultiRLModule:
        """Build the modules."""
        return MultiRLModule(rl_module_specs=self.specs(stacked, **options))

    def rewards(self, rng: Random) -> Any:
        """Draw a reward."""
        return int(rng.integers(-3, 4)) if self.integers else float(eighths(rng, (), np.float64))

    def outputs(self, rng: Random, agent: str) -> dict[str, Any]:
        """Draw an agent's model outputs of one step."""
        out = {"action_logp": eighths(rng, ())}
        if self.state and self.module_of(agent) == "thinker":
            out["state_out"] = map_shapes(STATES[self.state], lambda shape: eighths(rng, shape))
        return out

    def episode(self, name: str, **more: Any) -> MultiAgentEpisode:
        """Make an episode without steps."""
        return MultiAgentEpisode(name, agent_to_module_mapping_fn=self.module_of, **more)


class Game(MultiAgentEnv):
    """Environment in which agents come, pause, end and come back as a generator says; actions change nothing.

    Args:
        team: Whose spaces it has.
        rng: What is drawn from.
        length: Env steps of an episode.
    """

    def __init__(self, team: Team, rng: Random, length: int = 6) -> None:
        super().__init__()
        self.team, self.rng, self.length = team, rng, length
        self.agents = self.possible_agents = list(AGENTS)
        self.observation_spaces, self.action_spaces = dict(team.observation_space), dict(team.action_space)

    def _observations(self, agents: list[str]) -> dict[str, Any]:
        return {agent: row(draw(self.observation_spaces[agent], self.rng, 1), 0) for agent in agents}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        start = int(self.rng.integers(4))
        self.living = [agent for i, agent in enumerate(AGENTS) if i == start or chance(self.rng, 50)]
        return self._observations(self.living), {}

    def step(self, action_dict: Any) -> Any:
        rng, self.t = self.rng, self.t + 1
        new = [agent for agent in AGENTS if agent not in self.living and chance(rng, 20)]
        gone = {agent: pick(rng, ["terminated", "truncated"]) for agent in self.living if chance(rng, 12)}
        staying = [agent for agent in self.living if agent not in gone]
        over = pick(rng, ["terminated", "truncated"]) if self.t >= self.length or not staying + new else ""
        told = [agent for agent in self.living if "truncated" in (over, gone.get(agent)) or chance(rng, 70)] + new
        if staying and not set(told) - set(gone):
            told.append(staying[0])
        rewards = {agent: self.team.rewards(rng) for agent in self.living if agent in told or chance(rng, 50)}
        flags = []
        for kind in ("terminated", "truncated"):
            flags.append({"__all__": over == kind, **{agent: True for agent, end in gone.items() if end == kind}})
        self.living = staying + new
        return self._observations(told), rewards, *flags, {}


def grown(team: Team, rng: Random, count: int, lookback: int) -> list[MultiAgentEpisode]:
    """Chunks of episodes whose steps were drawn; agents keep at least `lookback` steps of their own at a cut."""
    out = []
    for number in range(count):
        game = Game(team, rng, int(rng.integers(2, 9)))
        spaces_ = {"observation_space": team.observation_space, "action_space": team.action_space}
        episode = team.episode(f"team_{number}", **spaces_)
        episode.add_env_reset(observations=game.reset()[0])
        while not episode.is_done:
            if len(episode) and chance(rng, 20):
                out.append(episode)
                episode = episode.cut(lookback, agent_steps=lookback)
            acting = list(episode.get_agents_to_act())
            actions = {agent: row(draw(game.action_spaces[agent], rng, 1), 0) for agent in acting}
            outputs = {agent: team.outputs(rng, agent) for agent in acting}
            observations, rewards, terminateds, truncateds, infos = game.step(actions)
            flags = {"terminateds": terminateds, "truncateds": truncateds, "extra_model_outputs": outputs}
            episode.add_env_step(observations, actions, rewards, infos, **flags)
        out.append(episode)
    return out


def sampled(team: Team, rng: Random, count: int, lookback: int) -> list[MultiAgentEpisode]:
    """Episodes out of the runner, of which an earlier call delivered a part."""
    numbers = iter(range(count + 8))
    seed = int(rng.integers(1000))
    config = PPOConfig().environment(lambda _: Game(team, np.random.default_rng([seed, next(numbers)])))
    config.debugging(seed=seed).env_runners(num_envs_per_env_runner=count, episode_lookback_horizon=max(lookback, 1))
    config.multi_agent(policies=team.specs(max_seq_len=20), policy_mapping_fn=team.module_of)
    runner = MultiAgentEnvRunner(config=config)
    runner.sample(num_timesteps=count * 2, explore=False)
    episodes = runner.sample(num_timesteps=count * 5, explore=False)
    runner.stop()
    return episodes
