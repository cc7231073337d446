"""Games of several agents that follow a schedule, modules that answer them, and runners of both libraries on them.

Everything that happens can be told from the observations: [environment, episode, env step, agent, step of its own].
The agents act by it, and a game that is given another action than the module's fails. A game keeps a record of all
that it was given and returned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from oracle.libraries import EPIBATCH, RLLIB, Library

AGENTS = ("ann", "bob", "cid", "dot")
WIDTH = 5
OBSERVATIONS = gym.spaces.Box(-np.inf, np.inf, (WIDTH,), np.float32)
ACTIONS = gym.spaces.Discrete(3)


def action_for(observation: Any) -> int:
    """The action of the module for an observation."""
    return int(observation[2] + 2 * observation[4]) % 3


class Recorded:
    """One episode as the game played it.

    Attributes:
        reset: what `reset` returned.
        steps: for each step the actions and what was returned for them.
    """

    def __init__(self, reset: tuple[Any, Any]) -> None:
        self.reset = reset
        self.steps: list[tuple[Any, ...]] = []

    @property
    def rewards(self) -> float:
        """All of them."""
        return float(sum(sum(step[2].values()) for step in self.steps))

    def played(self, **keywords: Any) -> Any:
        """The same as an episode that nobody cut: epibatch's, made with the keywords."""
        episode = EPIBATCH.MultiAgentEpisode(**keywords)
        episode.add_env_reset(observations=self.reset[0], infos=self.reset[1])
        for actions, observations, rewards, terminateds, truncateds, infos in self.steps:
            flags = {"terminateds": terminateds, "truncateds": truncateds}
            episode.add_env_step(observations, actions, rewards, infos, **flags)
        return episode


def game_class(library: Library, **settings: Any) -> type:
    """The game as a library's MultiAgentEnv.

    Args:
        library: whose.
        **settings: `kind`, one of "random" (agents come, pause, end and come back as they like), "steady" (none of
            this: all act in every step) and "turns" (one after the other); `length` of an episode at most; `wild`,
            whether in random games agents that ended come back, all may be away or at an end while others come, and
            some get rewards before they appear; `fail_at`, (environment, episode, step) that raises once; `reused`,
            whether observations are in the same array each time; `seeds`, the first ones, by which games in
            processes of their own tell their numbers.
    """
    kind, length = settings.get("kind", "random"), settings.get("length", 9)
    wild, reused = settings.get("wild", True), settings.get("reused", False)
    fail_at = [settings["fail_at"]] if "fail_at" in settings else []
    numbers = itertools.count()
    made: list[Any] = []

    class Game(library.MultiAgentEnv):  # type: ignore[misc, name-defined]
        games = made

        def __init__(self, config: Any = None) -> None:
            super().__init__()
            self.number = next(numbers)
            self.possible_agents = self.agents = list(AGENTS)
            self.observation_spaces = dict.fromkeys(AGENTS, OBSERVATIONS)
            self.action_spaces = dict.fromkeys(AGENTS, ACTIONS)
            self.episode = -1
            self.seeds: list[Any] = []
            self.record: list[Recorded] = []
            self.rows = {agent: np.zeros(WIDTH, np.float32) for agent in AGENTS}
            made.append(self)

        def _observe(self, agent: str) -> Any:
            row = self.rows[agent] if reused else np.zeros(WIDTH, np.float32)
            row[:] = self.number, self.episode, self.t, AGENTS.index(agent), self.own[agent]
            self.own[agent] += 1
            return row

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            if not self.seeds and seed in settings.get("seeds", ()):
                self.number = settings["seeds"].index(seed)
            self.seeds.append(seed)
            self.episode, self.t = self.episode + 1, 0
            self.rng = np.random.default_rng([self.number, self.episode])
            self.own = dict.fromkeys(AGENTS, 0)
            self.ended: set[str] = set()
            some = [a for a in AGENTS if self.rng.random() < 0.6 or (a == AGENTS[0] and not wild)]
            first = {"random": some, "turns": AGENTS[:1]}.get(kind, AGENTS)
            self.waiting = {agent: self._observe(agent) for agent in first}  # those that act next
            self.away: set[str] = set()  # acted, and were not told since
            infos = {agent: {"t": 0} for agent in self.waiting}
            self.record.append(Recorded((_copies(self.waiting), infos)))
            return dict(self.waiting), infos

        def step(self, action_dict: Any) -> Any:
            if (self.number, self.episode, self.t) in fail_at:
                fail_at.clear()
                raise ConnectionError("no answer")
            expected = {agent: action_for(row) for agent, row in self.waiting.items()}
            if settings.get("scripted", True) and action_dict != expected:
                raise AssertionError(f"actions {action_dict} instead of {expected}")
            if self.record[-1].steps and not (self.waiting or self.away or kind == "random"):
                raise AssertionError("stepped after its end")
            actions = {agent: int(action) for agent, action in action_dict.items()}
            self.t += 1
            self.away |= set(actions)
            self.waiting = {}
            terminateds, truncateds = self._flags()
            observed = self._observed(terminateds, truncateds)
            observations = {agent: self._observe(agent) for agent in observed}
            rewards = self._rewards(observed, actions)
            gone = {a for flags in (terminateds, truncateds) for a, flag in flags.items() if flag and a != "__all__"}
            self.away -= gone | set(observed)
            self.ended = (self.ended | gone) - (set(observed) - gone)
            self.waiting = {agent: row for agent, row in observations.items() if agent not in gone}
            infos = {agent: {"t": self.t} for agent in observed}
            out = (_copies(observations), dict(rewards), dict(terminateds), dict(truncateds), infos)
            self.record[-1].steps.append((actions, *out))
            return observations, rewards, terminateds, truncateds, infos

        def _flags(self) -> tuple[dict[str, bool], dict[str, bool]]:
            terminateds, truncateds = {"__all__": False}, {"__all__": False}
            last = self.t >= length - (self.number + self.episode) % 3
            if kind == "random":
                for agent in sorted(self.away if wild else self.away - {AGENTS[0]}):
                    draw = self.rng.random()
                    if draw < 0.15:
                        (terminateds if draw < 0.08 else truncateds)[agent] = True
            if last:
                (truncateds if self.episode % 2 else terminateds)["__all__"] = True
            return terminateds, truncateds

        def _observed(self, terminateds: Any, truncateds: Any) -> list[str]:
            """Who is told what comes next: in random games whoever may be, with agents that are cut off among them."""
            if kind == "steady":
                return list(AGENTS)
            if kind == "turns":
                over = terminateds["__all__"] or truncateds["__all__"]
                return [a for a in AGENTS[:3] if self.own[a]] if over else [AGENTS[self.t % 3]]
            out = []
            for agent in AGENTS:
                cut_off = truncateds.get(agent) or (truncateds["__all__"] and agent in self.away)
                if agent in self.away:
                    told = cut_off or self.rng.random() < 0.6
                elif agent in self.ended:
                    told = wild and self.rng.random() < 0.3
                else:
                    told = self.rng.random() < 0.4
                if told:
                    out.append(agent)
            return out

        def _rewards(self, observed: list[str], actions: Any) -> dict[str, float]:
            """One for whoever acted and observes, and in random games some for others that have not ended."""
            rewards = {agent: self._reward(agent) for agent in observed if agent in actions}
            if kind != "steady":
                living = [a for a in AGENTS if a not in rewards and a not in self.ended and (a in self.away or wild)]
                rewards |= {agent: self._reward(agent) for agent in living if self.rng.random() < 0.4}
            return rewards

        def _reward(self, agent: str) -> float:
            return float(self.rng.integers(-8, 9)) / 4

    return Game


def _copies(rows: dict[str, Any]) -> dict[str, Any]:
    return {agent: row.copy() for agent, row in rows.items()}


def answering_module(library: Library) -> Any:
    """An RLModule class that acts as the games expect, and counts the steps of each agent in its recurrent state."""

    class Answering(library.TorchRLModule):  # type: ignore[misc]
        def setup(self) -> None:
            self.weight = torch.nn.Parameter(torch.ones(1))

        def get_initial_state(self) -> Any:
            return {"steps": np.zeros(1, np.float32)} if self.model_config["recurrent"] else {}

        def _forward(self, batch: Any, **kwargs: Any) -> Any:
            rows = batch["obs"]
            actions = (rows[..., 2] + 2 * rows[..., 4]).long() % 3
            out = {"actions": actions, "seen": rows[..., 4].clone()}
            if self.model_config["recurrent"]:
                out["state_out"] = {"steps": batch["state_in"]["steps"] + 1}
            return out

    return Answering


def specs_of(library: Library) -> dict[str, Any]:
    """Two modules: `walker` without state, and `thinker`, which is recurrent."""
    cls = answering_module(library)
    spaces = {"observation_space": OBSERVATIONS, "action_space": ACTIONS}
    return {
        name: library.RLModuleSpec(module_class=cls, model_config={"recurrent": name == "thinker"}, **spaces)
        for name in ("walker", "thinker")
    }


def module_of(agent_id: Any, episode: Any = None, **_: Any) -> str:
    """The mapping function: every second agent thinks."""
    return ("walker", "thinker")[AGENTS.index(agent_id) % 2]


class TeamConfig:
    """What epibatch's runner asks of its configuration, with the default pieces and a user's in front."""

    count_steps_by = "env_steps"

    def __init__(self, config: Any, specs: dict[str, Any], mapping: Callable[..., Any] | None, **pieces: Any) -> None:
        self._config, self.specs, self.policy_mapping_fn, self._pieces = config, specs, mapping, pieces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def get_multi_rl_module_spec(self, env: Any = None, spaces: Any = None) -> Any:
        from epibatch.core.rl_module import MultiRLModuleSpec

        return MultiRLModuleSpec(rl_module_specs=self.specs)

    def build_env_to_module_connector(self, env: Any = None, spaces: Any = None, device: Any = None) -> Any:
        from epibatch.connectors.env_to_module import default_pipeline

        return default_pipeline(
            *spaces["__env_single__"],
            connectors=list(self._pieces.get("env_to_module", ())),
            device=device,
            rl_module_specs=self.specs,
            agent_to_module_mapping_fn=self.policy_mapping_fn,
        )

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        from epibatch.connectors.module_to_env import default_pipeline

        return default_pipeline(
            *spaces["__env_single__"],
            connectors=list(self._pieces.get("module_to_env", ())),
            normalize_actions=self.normalize_actions,
            clip_actions=self.clip_actions,
            rl_module_specs=self.specs,
        )


def team_runner(library: Library, game: type, num_envs: int = 1, **options: Any) -> Any:
    """A library's runner on games.

    Args:
        library: whose.
        game: of `game_class`.
        num_envs: how many of them.
        **options: `mapping`, `specs`, `count_steps_by`; `env_to_module` and `module_to_env`, functions that make a
            user's pieces; `configure`, called with the config; the rest are settings of `env_runners`.
    """
    mapping, specs = options.pop("mapping", module_of), options.pop("specs", None) or specs_of(library)
    counts, configure = options.pop("count_steps_by", "env_steps"), options.pop("configure", None)
    pieces = {name: options.pop(name, list) for name in ("env_to_module", "module_to_env")}
    config = library.PPOConfig().environment(game).debugging(seed=options.pop("seed", 3))
    config.env_runners(num_envs_per_env_runner=num_envs, num_env_runners=0, **options)
    if configure is not None:
        configure(config)
    if library is RLLIB:
        config.environment(disable_env_checking=True)  # it steps with any actions
        config.env_runners(
            env_to_module_connector=lambda env, spaces, device: pieces["env_to_module"](),
            module_to_env_connector=lambda env, spaces: pieces["module_to_env"](),
        )
        config.multi_agent(policies=set(specs), policy_mapping_fn=mapping, count_steps_by=counts)
        config.rl_module(rl_module_spec=library.MultiRLModuleSpec(rl_module_specs=specs))
        return library.MultiAgentEnvRunner(config=config, worker_index=0)
    team = TeamConfig(config, specs, mapping, **{name: make() for name, make in pieces.items()})
    team.count_steps_by = counts
    return library.MultiAgentEnvRunner(config=team)
