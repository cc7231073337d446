"""Configs and environments of several agents in both libraries: the same pieces, modules, spaces and steps."""

from __future__ import annotations

import inspect
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from ray._common.deprecation import DEPRECATED_VALUE

from epibatch.core.errors import ConfigError
from oracle.agent_games import AGENTS, game_class
from oracle.libraries import BOTH, EPIBATCH, RLLIB
from oracle.makers import names
from oracle.probes import plain

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
WIDE = gym.spaces.Box(-1.0, 1.0, (9,), np.float32)
TWO, THREE = gym.spaces.Discrete(2), gym.spaces.Discrete(3)
SAME = {"a0": (BOX, TWO), "a1": (BOX, TWO), "b0": (BOX, TWO)}
DIFFERENT = {"a0": (BOX, TWO), "a1": (BOX, TWO), "b0": (WIDE, THREE)}


def by_letter(agent_id, episode, **kwargs):
    return {"a": "x", "b": "y"}[agent_id[0]]


def agents_of(spaces: Any) -> Any:
    """An environment that has spaces, which is all that configs ask for."""

    class Agents(RLLIB.MultiAgentEnv):
        def __init__(self) -> None:
            super().__init__()
            self.agents = self.possible_agents = list(spaces)
            self.observation_spaces, self.action_spaces = ({a: own[i] for a, own in spaces.items()} for i in (0, 1))
            self.observation_space = gym.spaces.Dict(self.observation_spaces)
            self.action_space = gym.spaces.Dict(self.action_spaces)

    return Agents()


@pytest.mark.parametrize(
    "settings",
    [
        {"policies": {"x", "y"}, "policy_mapping_fn": by_letter},
        {"policies": ["x", "y"], "policy_mapping_fn": by_letter, "policies_to_train": ["x"]},
        {"policies": {"main"}, "policy_mapping_fn": lambda agent_id, episode, **kwargs: "main"},
        {"policies": {"default_policy"}},
        {},
    ],
)
def test_pipelines_have_the_same_pieces(settings):
    env, found = agents_of(SAME), []
    own = (env.observation_space, env.action_space)
    given = {"env": env, "spaces": {"__env__": own, "__env_single__": own}}
    for library in BOTH:
        config = library.PPOConfig().multi_agent(**settings)
        to_module = config.build_env_to_module_connector(**given)
        pipelines = [to_module, config.build_module_to_env_connector(**given), config.build_learner_connector(*own)]
        spaces = [dict(to_module.observation_space), dict(to_module.action_space)] if config.is_multi_agent else []
        found.append([config.is_multi_agent, spaces, *map(names, pipelines)])
    assert found[0] == found[1]


SECTIONS = [
    "environment", "env_runners", "learners", "training", "callbacks", "evaluation", "offline_data", "multi_agent",
    "reporting", "checkpointing", "debugging", "fault_tolerance", "rl_module",
]  # fmt: skip


def test_every_setting_of_theirs_is_one_here_or_is_answered():
    asked, unanswered = 0, []
    for section in SECTIONS:
        for name, parameter in inspect.signature(getattr(RLLIB.AlgorithmConfig, section)).parameters.items():
            if parameter.default is inspect.Parameter.empty or parameter.default == DEPRECATED_VALUE:
                continue
            asked += 1
            try:
                getattr(EPIBATCH.PPOConfig(), section)(**{name: None})
            except ConfigError as error:  # None may be no value of it
                answer = re.search(rf"{name}: unknown setting(; use|; leave it out| here; it belongs to)?", str(error))
                unanswered += [name] if answer and not answer[1] else []
    assert asked > 150 and unanswered == []


def policy(library: Any, **settings: Any) -> Any:
    """The library's PolicySpec."""
    return library.module("policy.policy" if library is RLLIB else "algorithms").PolicySpec(**settings)


def several(library: Any, **specs: Any) -> Any:
    return library.MultiRLModuleSpec(rl_module_specs={name: library.RLModuleSpec(**own) for name, own in specs.items()})


IDS = {"x", "y"}
CRITIC = {"observation_space": WIDE, "action_space": TWO, "learner_only": True}
CASES: dict[str, Any] = {  # the policies, and the spec of modules if there is one
    "ids": lambda library: (IDS, None),
    "spaces of a policy": lambda library: ({"x": policy(library, observation_space=WIDE), "y": policy(library)}, None),
    "four-tuples": lambda library: ({"x": (None, WIDE, THREE, {}), "y": (None, None, None, {})}, None),
    "one spec for all": lambda library: (IDS, library.RLModuleSpec()),
    "a spec of its own": lambda library: (IDS, several(library, x={"observation_space": WIDE})),
    "for learners only": lambda library: (IDS, several(library, x={}, critic=CRITIC)),
}


@pytest.mark.parametrize("inference_only", [False, True])
@pytest.mark.parametrize("agents", [SAME, DIFFERENT], ids=["same spaces", "different spaces"])
@pytest.mark.parametrize("case", CASES)
def test_modules_have_the_same_spaces(case, agents, inference_only):
    found = []
    for library in BOTH:
        policies, spec = CASES[case](library)
        config = library.PPOConfig().multi_agent(policies=policies, policy_mapping_fn=by_letter)
        if spec is not None:
            config.rl_module(rl_module_spec=spec)
        specs = config.get_multi_rl_module_spec(env=agents_of(agents), inference_only=inference_only).rl_module_specs
        facts = ("observation_space", "action_space", "inference_only", "learner_only")
        found.append({name: [getattr(own, fact) for fact in facts] for name, own in specs.items()})
    assert found[0] == found[1]


def test_settings_of_single_modules_and_their_networks():
    overrides = {"x": {"lr": 0.01, "clip_param": 0.1}, "y": {"lambda_": 0.75}}
    common, own = {"fcnet_hiddens": [8], "fcnet_activation": "relu"}, {"fcnet_hiddens": [16]}
    found, networks = [], []
    for library in BOTH:
        spec = several(library, x={"model_config": own})
        config = library.PPOConfig().multi_agent(policies={"x", "y"}, policy_mapping_fn=by_letter)
        config.rl_module(model_config=common, rl_module_spec=spec, algorithm_config_overrides_per_module=overrides)
        settings = [config.get_config_for_module(name) for name in "xyz"]
        found.append([[getattr(own, name) for name in ("lr", "clip_param", "lambda_", "gamma")] for own in settings])
        specs = config.get_multi_rl_module_spec(env=agents_of(SAME))
        networks.append([{key: specs[name].model_config[key] for key in common} for name in "xy"])
    assert found[0] == found[1] and networks[0] == networks[1]


def steps_of(library: Any, seed: int) -> list[Any]:
    """Everything that two games return together; for steps that reset only what both libraries define alike."""
    made = [game_class(library, scripted=False, kind="random", length=7)] * 2
    if library is RLLIB:
        envs = library.module("env.vector.sync_vector_multi_agent_env").SyncVectorMultiAgentEnv(made)
    else:
        envs = library.module("env_runner").VectorMultiAgentEnv(made)
    observations, infos = envs.reset(seed=seed)
    told = [plain((list(observations), list(infos)))]
    draw, over = np.random.default_rng(seed), [False, False]
    for _ in range(30):
        result = envs.step([{agent: int(draw.integers(3)) for agent in AGENTS} for _ in range(2)])
        for number in range(2):
            own = plain(tuple(column[number] for column in result))
            told.append((own[0], own[4]) if over[number] else own)
            over[number] = own[2]["__all__"] or own[3]["__all__"]
    return told


@pytest.mark.parametrize("seed", range(4))
def test_several_of_a_class(seed: int) -> None:
    theirs, ours = (steps_of(library, seed) for library in BOTH)
    assert ours == theirs


def test_agents_side_by_side() -> None:
    told = []
    for library in BOTH:
        env = library.make_multi_agent("CartPole-v1")({"num_agents": 1})
        start, _ = env.reset(seed=3)
        env.envs[0].unwrapped.state = np.array([0.01, 0.02, 0.03, 0.04])  # the seeds of agents are a listed difference
        rows = [plain(env.step({0: 1}))]
        while not rows[-1][2]["__all__"]:
            rows.append(plain(env.step({0: 1})))
        told.append((list(start), env.possible_agents, list(env.action_spaces), [row[:3] for row in rows]))
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["classic/tictactoe-v3", "classic/connect_four-v3", "classic/rps-v2"])
def test_turn_based_games(name: str) -> None:
    theirs, ours = ([game(library.PettingZooEnv, name, seed) for seed in range(5)] for library in BOTH)
    assert ours == theirs


def game(adapter: Any, name: str, seed: int) -> list[Any]:
    """What a game of random moves returns."""
    draw, env = np.random.default_rng(seed), adapter(pettingzoo.make("aec", name))
    observations, _ = env.reset(seed=seed)
    told, over = [plain(observations)], False
    while not over:
        (player,) = observations
        seen = observations[player]
        moves = np.flatnonzero(seen["action_mask"]) if isinstance(seen, dict) else np.arange(3)
        step = env.step({player: int(draw.choice(moves))})
        told.append(plain(step))
        observations, over = step[0], step[2]["__all__"] or step[3]["__all__"]
    return told


def test_a_parallel_game() -> None:
    told = []
    for library in BOTH:
        env = library.ParallelPettingZooEnv(pettingzoo.make("parallel", "sisl/pursuit-v5", n_pursuers=2, max_cycles=3))
        rows = [plain(env.reset(seed=5))]
        rows += [plain(env.step(dict.fromkeys(env.possible_agents, t))) for t in range(3)]
        told.append([[dict(sorted(column.items())) for column in row] for row in rows])
    assert told[0] == told[1] and told[0][-1][3]["__all__"]
