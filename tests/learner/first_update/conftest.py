"""Random correct configs, of which the check must not warn."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.observations import FrozenModule
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from fixture_envs import RandomEnv, TurnsEnv

BOX = gym.spaces.Box(-2.0, 3.0, (2,))
ACTIONS = {
    "discrete": gym.spaces.Discrete(3, start=-1),
    "many": gym.spaces.MultiDiscrete([2, 3]),
    "bits": gym.spaces.MultiBinary(2),
    "box": BOX,
    "half box": gym.spaces.Box(np.array([-np.inf, 0.0], np.float32), np.array([1.0, np.inf], np.float32)),
    "counted": gym.spaces.Box(-3, 4, (2,), np.int64),
    "nested": gym.spaces.Dict(a=gym.spaces.Tuple([BOX, gym.spaces.Discrete(2)]), b=gym.spaces.MultiBinary(2)),
}
OBSERVATIONS = {
    "box": gym.spaces.Box(-5.0, 5.0, (3,)),
    "double": gym.spaces.Box(-5.0, 5.0, (3,), np.float64),
    "discrete": gym.spaces.Discrete(4, start=2),
    "nested": gym.spaces.Dict(a=gym.spaces.Box(-5.0, 5.0, (2, 2)), b=gym.spaces.Discrete(3)),
}


class Walk(RandomEnv):
    """Random observations and rewards for 1 to 12 steps; every third episode is truncated."""

    def __init__(self, observations: str = "box", actions: str = "discrete") -> None:
        super().__init__(OBSERVATIONS[observations], ACTIONS[actions], lengths=(1, 12), truncated=0.3)


class Tanh(ColumnTransform):
    columns = "obs"
    factor: float = 1.0

    def transform(self, x: Any) -> Any:
        return np.tanh(self.factor * x)


class Noise(ColumnTransform):
    """Draws from the global generator, for training alone."""

    columns = "obs"
    training_only = True

    def transform(self, x: Any) -> Any:
        return x + np.random.normal(size=x.shape).astype(x.dtype)


class Half(TorchRLModule, ValueFunctionAPI):
    """A network that acts in float32 and learns in bfloat16: with such weights or, as `model_config` says, autocast."""

    def setup(self) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {"action_dist_inputs": self.net(batch["obs"])}

    def _forward_train(self, batch: Any, **kwargs: Any) -> Any:
        if self.model_config["autocast"]:
            with torch.autocast("cpu", torch.bfloat16):
                return {"action_dist_inputs": self.net(batch["obs"]).float()}
        weights = {name: value.bfloat16() for name, value in self.net.named_parameters()}
        outputs = torch.func.functional_call(self.net, weights, batch["obs"].bfloat16())
        return {"action_dist_inputs": outputs.float()}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.net(batch["obs"])[:, 0]


class Negated(Tanh):
    columns = "actions"

    def transform(self, x: Any) -> Any:
        return -x

    inverse = transform


PIECES = {
    "filter": ("mean_std_filter", {}, False),
    "previous": ("prev_actions_prev_rewards", {"n_prev_actions": 2, "n_prev_rewards": 1}, False),
    "flat": ("flatten_observations", {}, False),
    "stack": ("frame_stacking", {"num_frames": 3, "axis": -1}, True),
    "pool": ("time_max_pool", {"num_frames": 2}, True),
    "clip": ("clip", {"low": -0.5, "high": 0.5}, True),
}


def random_config(seed: int) -> PPOConfig:
    """A correct config; the same for the same seed."""
    rng = np.random.default_rng(seed)

    def choose(*options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    agents = rng.random() < 0.25
    lstm = rng.random() < 0.4
    observations = "box" if agents else choose("box", "box", "double", "discrete", "nested")
    actions = "discrete" if agents else choose(*ACTIONS)
    network: dict[str, Any] = {"fcnet_hiddens": [8], "squash_actions": choose(True, False)}
    if lstm:
        end = choose("pad", "drop", "overlap", "continue")
        burn_in = choose(0, 2) if end in ("pad", "overlap") else 0
        network |= {"use_lstm": True, "lstm_cell_size": 6, "max_seq_len": choose(4, 7)}
        network |= {"sequence_end": end, "burn_in": burn_in}
    elif choose(True, False):
        network |= {"free_log_std": True}
    complete = rng.random() < 0.3
    config = (
        PPOConfig()
        .environment(TurnsEnv if agents else Walk, env_config={} if agents else {"observations": observations})
        .env_runners(
            num_envs_per_env_runner=choose(1, 3),
            batch_mode="complete_episodes" if complete else "truncate_episodes",
            rollout_fragment_length="auto" if complete else choose("auto", 5, 20),
        )
        .training(train_batch_size=60, minibatch_size=choose(8, 30, None), num_epochs=1)
        .rl_module(model_config=network)
        .debugging(seed=seed, check_first_update="error")
    )
    if agents:
        config.multi_agent(policies=["p", "q"], policy_mapping_fn={"a": "p", "*": "q"})
    else:
        config.environment(env_config={"observations": observations, "actions": actions})
    config.learners(columns=choose("all", "auto"))
    add_pieces(config, choose, observations, actions, agents)
    return config


def add_pieces(config: PPOConfig, choose: Any, observations: str, actions: str, agents: bool) -> None:
    flat = observations in ("box", "double")
    acting, training = [], []
    first = choose("filter", "previous", "flat", None) if not agents else choose("filter", "flat", None)
    second = choose("stack", "pool", "clip", None)
    for name in (first if flat else "flat", second if first != "previous" else None):
        if name is None or (agents and name == "pool"):
            continue
        piece, options, both = PIECES[name]
        acting.append({"piece": piece, **options})
        training += [{"piece": piece, **options}] if both else []
    factor, turned = choose(None, None, 0.5), actions in ("box", "half box") and choose(True, False)

    def made(specs: Any, *own: Any) -> Any:
        return lambda *_: [*own, *specs, *([Tanh(factor=factor)] if factor and flat else [])]

    config.env_runners(env_to_module_connector=made(acting, *([Negated()] if turned else [])))
    config.learners(learner_connector=made(training))


@pytest.fixture
def first_update() -> Any:
    """What the tests of the check are put together from."""

    class Parts:
        random_config = staticmethod(random_config)
        walk, turns, tanh, half, noise = Walk, TurnsEnv, Tanh, Half, Noise

        @staticmethod
        def frozen(seed: int) -> FrozenModule:
            """A network whose weights follow from a seed."""
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                return FrozenModule(module=torch.nn.Linear(3, 3))

        @staticmethod
        def config(**debugging: Any) -> PPOConfig:
            return (
                PPOConfig()
                .environment(Walk, env_config={"actions": "box"})
                .env_runners(num_envs_per_env_runner=2)
                .training(train_batch_size=40, minibatch_size=16, num_epochs=1)
                .rl_module(model_config={"fcnet_hiddens": [8]})
                .debugging(seed=1, **debugging)
            )

        @staticmethod
        def spec(module: type, **options: Any) -> RLModuleSpec:
            return RLModuleSpec(module_class=module, model_config=options)

    return Parts
