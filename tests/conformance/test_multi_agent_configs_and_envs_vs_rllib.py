"""Configs and environments of several agents in both libraries: the same pieces, modules, spaces and steps."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.algorithms.multi_agent import AgentMapping
from epibatch.algorithms.policy_spec import PolicySpec
from epibatch.core.rl_module import MultiRLModuleSpec, RLModuleSpec
from epibatch.env_runner.vector_envs import VectorMultiAgentEnv
from oracle.libraries import BOTH, EPIBATCH, RLLIB
from oracle.probes import plain

pytest.importorskip("ray", reason="RLlib is the oracle")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ray.rllib.algorithms.ppo import PPOConfig as TheirConfig
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec as TheirMultiSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec as TheirSpec
    from ray.rllib.env.multi_agent_env import MultiAgentEnv
    from ray.rllib.policy.policy import PolicySpec as TheirPolicy


pytestmark = pytest.mark.filterwarnings("ignore")

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
WIDE = gym.spaces.Box(-1.0, 1.0, (9,), np.float32)
TWO, THREE = gym.spaces.Discrete(2), gym.spaces.Discrete(3)
SAME = {"a0": (BOX, TWO), "a1": (BOX, TWO), "b0": (BOX, TWO)}
DIFFERENT = {"a0": (BOX, TWO), "a1": (BOX, TWO), "b0": (WIDE, THREE)}


def by_letter(agent_id, episode, **kwargs):
    return {"a": "x", "b": "y"}[agent_id[0]]


class Agents(MultiAgentEnv):
    """Has spaces, which is all that configs ask for."""

    def __init__(self, spaces):
        super().__init__()
        self.agents = self.possible_agents = list(spaces)
        self.observation_spaces = {agent: own[0] for agent, own in spaces.items()}
        self.action_spaces = {agent: own[1] for agent, own in spaces.items()}
        self.observation_space = gym.spaces.Dict(self.observation_spaces)
        self.action_space = gym.spaces.Dict(self.action_spaces)


def names(pipeline):
    return [type(piece).__name__ for piece in pipeline]


def pipelines(config, spaces):
    env = Agents(spaces)
    own = (env.observation_space, env.action_space)
    both = {"__env__": own, "__env_single__": own}
    return (
        config.build_env_to_module_connector(env=env, spaces=both),
        config.build_module_to_env_connector(env=env, spaces=both),
        config.build_learner_connector(*own),
    )


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
    ours = PPOConfig().multi_agent(**settings)
    theirs = TheirConfig().multi_agent(**settings)
    assert ours.is_multi_agent == theirs.is_multi_agent
    found, expected = pipelines(ours, SAME), pipelines(theirs, SAME)
    assert [names(one) for one in found] == [names(one) for one in expected]
    for one, other in zip(found[:1], expected[:1]):
        if ours.is_multi_agent:
            assert dict(one.observation_space) == dict(other.observation_space)
            assert dict(one.action_space) == dict(other.action_space)


def described(spec):
    specs = spec.rl_module_specs
    return {
        each: (own.observation_space, own.action_space, own.inference_only, own.learner_only)
        for each, own in specs.items()
    }


CASES = {
    "ids": ({"x", "y"}, {"x", "y"}, None, None),
    "spaces of a policy": (
        {"x": PolicySpec(observation_space=WIDE), "y": PolicySpec()},
        {"x": TheirPolicy(observation_space=WIDE), "y": TheirPolicy()},
        None,
        None,
    ),
    "four-tuples": (
        {"x": (None, WIDE, THREE, {}), "y": (None, None, None, {})},
        {"x": (None, WIDE, THREE, {}), "y": (None, None, None, {})},
        None,
        None,
    ),
    "one spec for all": ({"x", "y"}, {"x", "y"}, RLModuleSpec(), TheirSpec()),
    "a spec of its own": (
        {"x", "y"},
        {"x", "y"},
        MultiRLModuleSpec(rl_module_specs={"x": RLModuleSpec(observation_space=WIDE)}),
        TheirMultiSpec(rl_module_specs={"x": TheirSpec(observation_space=WIDE)}),
    ),
    "for learners only": (
        {"x", "y"},
        {"x", "y"},
        MultiRLModuleSpec(
            rl_module_specs={
                "x": RLModuleSpec(),
                "critic": RLModuleSpec(observation_space=WIDE, action_space=TWO, learner_only=True),
            }
        ),
        TheirMultiSpec(
            rl_module_specs={
                "x": TheirSpec(),
                "critic": TheirSpec(observation_space=WIDE, action_space=TWO, learner_only=True),
            }
        ),
    ),
}


@pytest.mark.parametrize("inference_only", [False, True])
@pytest.mark.parametrize("agents", [SAME, DIFFERENT], ids=["same spaces", "different spaces"])
@pytest.mark.parametrize("case", CASES)
def test_modules_have_the_same_spaces(case, agents, inference_only):
    ours, theirs, our_spec, their_spec = CASES[case]
    env = Agents(agents)
    ours = PPOConfig().multi_agent(policies=ours, policy_mapping_fn=AgentMapping({"a*": "x", "b*": "y"}))
    theirs = TheirConfig().multi_agent(policies=theirs, policy_mapping_fn=by_letter)
    if our_spec is not None:
        ours.rl_module(rl_module_spec=our_spec)
        theirs.rl_module(rl_module_spec=their_spec)
    found = ours.get_multi_rl_module_spec(env=env, inference_only=inference_only)
    expected = theirs.get_multi_rl_module_spec(env=env, inference_only=inference_only)
    assert described(found) == described(expected)


def test_settings_of_single_modules():
    overrides = {"x": {"lr": 0.01, "clip_param": 0.1}, "y": {"lambda_": 0.75}}
    policies = {"policies": {"x", "y", "z"}, "policy_mapping_fn": by_letter}
    ours = PPOConfig().multi_agent(**policies, algorithm_config_overrides_per_module=overrides)
    theirs = TheirConfig().multi_agent(**policies).rl_module(algorithm_config_overrides_per_module=overrides)
    for module_id in "xyz":
        found, expected = ours.get_config_for_module(module_id), theirs.get_config_for_module(module_id)
        for name in ("lr", "clip_param", "lambda_", "gamma"):
            assert getattr(found, name) == getattr(expected, name)


def test_settings_of_networks():
    policies = {"policies": {"x", "y"}, "policy_mapping_fn": by_letter}
    common, own = {"fcnet_hiddens": [8], "fcnet_activation": "relu"}, {"fcnet_hiddens": [16]}
    ours = (
        PPOConfig()
        .multi_agent(**policies)
        .rl_module(
            model_config=common, rl_module_spec=MultiRLModuleSpec(rl_module_specs={"x": RLModuleSpec(model_config=own)})
        )
    )
    theirs = (
        TheirConfig()
        .multi_agent(**policies)
        .rl_module(
            model_config=common, rl_module_spec=TheirMultiSpec(rl_module_specs={"x": TheirSpec(model_config=own)})
        )
    )
    env = Agents(SAME)
    for module_id in "xy":
        found = ours.get_multi_rl_module_spec(env=env)[module_id].model_config
        expected = theirs.get_multi_rl_module_spec(env=env)[module_id].model_config
        assert found == {name: expected[name] for name in found}
        assert len(found) == len(common)


AGENTS = ["a", "b", "c"]


def guild(library: Any) -> Any:
    """Agents that come and go at random; it is reset when `__all__` says so."""

    class Guild(library.MultiAgentEnv):
        def __init__(self) -> None:
            super().__init__()
            self.agents = self.possible_agents = list(AGENTS)
            self.observation_spaces = {agent: gym.spaces.Box(-9, 9, (2,), np.float64) for agent in AGENTS}
            self.action_spaces = dict.fromkeys(AGENTS, gym.spaces.Discrete(4))
            self.render_mode = None

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed, options=options)
            return self.look(0.7), {"a": {"seed": seed}}

        def step(self, action_dict: Any) -> Any:
            observations = self.look(0.6)
            rewards = {agent: self.np_random.random() + action for agent, action in action_dict.items()}
            over = [bool(self.np_random.random() < 0.1) for _ in range(2)]
            flags = [{**dict.fromkeys(observations, False), "__all__": each} for each in over]
            return observations, rewards, *flags, {agent: {"x": 1} for agent in observations}

        def look(self, share: float) -> Any:
            return {agent: self.np_random.random(2) for agent in AGENTS if self.np_random.random() < share}

    return Guild()


def steps_of(library: Any, seed: int) -> list[Any]:
    """Everything that two of them return together; for steps that reset only what both libraries define alike."""
    made = [lambda: guild(library)] * 2
    if library is RLLIB:
        envs = library.module("env.vector.sync_vector_multi_agent_env").SyncVectorMultiAgentEnv(made)
    else:
        envs = VectorMultiAgentEnv(made)
    observations, infos = envs.reset(seed=seed)
    told = [plain((list(observations), list(infos)))]
    draw, over = np.random.default_rng(seed), [False, False]
    for _ in range(30):
        result = envs.step([{agent: int(draw.integers(4)) for agent in AGENTS} for _ in range(2)])
        for number in range(2):
            own = plain(tuple(column[number] for column in result))
            told.append((own[0], own[4]) if over[number] else own)
            over[number] = own[2]["__all__"] or own[3]["__all__"]
    return told


@pytest.mark.parametrize("seed", range(20))
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
    theirs, ours = told
    assert ours == theirs


@pytest.mark.parametrize("name", ["classic/tictactoe-v3", "classic/connect_four-v3", "classic/rps-v2"])
def test_turn_based_games(name: str) -> None:
    theirs, ours = ([game(library.PettingZooEnv, name, seed) for seed in range(10)] for library in (RLLIB, EPIBATCH))
    assert ours == theirs


def game(adapter: Any, name: str, seed: int) -> list[Any]:
    """What a game of random moves returns."""
    draw = np.random.default_rng(seed)
    env = adapter(pettingzoo.make("aec", name))
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
