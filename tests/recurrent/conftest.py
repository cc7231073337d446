"""Modules with memory of every make: what the library carries, stores, cuts, pads and saves must fit all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from epibatch.algorithms import PPOConfig
from epibatch.core.columns import Columns
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.core.structs import map_struct
from epibatch.env_runner import SingleAgentEnvRunner, environment_seeds


class Recurrent(TorchRLModule, ValueFunctionAPI):
    """Policy and value on features that `encode` makes of observations and state."""

    size: int

    def setup(self) -> None:
        self.observations = int(torch.tensor(self.observation_space.shape).prod())
        self.build()
        self.policy = nn.Linear(self.size, int(self.action_space.n))
        self.value = nn.Linear(self.size, 1)

    def build(self) -> None:
        raise NotImplementedError

    def encode(self, obs: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        raise NotImplementedError

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features, state = self.encode(batch[Columns.OBS], batch[Columns.STATE_IN])
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.STATE_OUT: state}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        return self.value(self.encode(batch[Columns.OBS], batch[Columns.STATE_IN])[0]).squeeze(-1)


class TwoGRUs(Recurrent):
    """Two layers whose states are a dict of tuples of dicts."""

    size = 12

    def build(self) -> None:
        self.first = nn.GRU(self.observations, 5, batch_first=True)
        self.second = nn.GRU(5, 12, batch_first=True)

    def get_initial_state(self) -> Any:
        return {"layers": (torch.zeros(5), {"top": torch.full((12,), 0.5)})}

    def encode(self, obs: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        low, inner = state["layers"]
        features, low = self.first(obs, low[None].contiguous())
        features, top = self.second(features, inner["top"][None].contiguous())
        return features, {"layers": (low[0], {"top": top[0]})}


class Exact(Recurrent):
    """Sums of small integers in several dtypes: exact in any order and batch, so states compare bit by bit."""

    size = 3

    def build(self) -> None:
        pass

    def get_initial_state(self) -> Any:
        return {
            "steps": torch.tensor(0, dtype=torch.int64),
            "parts": (torch.tensor([True, False]), {"sum": torch.tensor([1.5, -2.0])}),
            "last": {"code": torch.tensor([[7]], dtype=torch.int16), "half": torch.tensor(0.25, dtype=torch.float16)},
        }

    def encode(self, obs: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        whole = torch.round(obs[..., :1] * 64)
        time = torch.arange(1, obs.shape[1] + 1)
        flip, total = state["parts"]
        steps = state["steps"][:, None] + time
        sums = total["sum"][:, None] + whole.cumsum(1) * torch.tensor([1.0, 0.5])
        flips = flip[:, None] ^ (time % 2 == 1)[:, None]
        code = (whole[:, -1:] % 100).to(torch.int16)
        features = torch.stack([steps.float(), sums[..., 1].float(), 64 * flips[..., 0].float()], -1) / 64
        last = {"code": code, "half": state["last"]["half"] + torch.tensor(0.5 * len(time)).half()}
        return features, {"steps": steps[:, -1], "parts": (flips[:, -1], {"sum": sums[:, -1]}), "last": last}


LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 6}
MODULES = {"gru": TwoGRUs, "exact": Exact}
SEED = 11


class CartPole:
    """CartPole cut off after 13 steps, so that some episodes end by themselves and some are truncated."""

    @staticmethod
    def make(env_config: Any = None) -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1", max_episode_steps=13)

    @staticmethod
    def config(kind: str, *, num_envs: int, max_seq_len: int, **settings: Any) -> PPOConfig:
        """PPO on it with one of the modules; `kind` "lstm" is the default network."""
        config = PPOConfig().environment(CartPole.make).debugging(seed=SEED)
        config.env_runners(num_envs_per_env_runner=num_envs, **settings)
        if kind == "lstm":
            return config.rl_module(model_config={**LSTM, "max_seq_len": max_seq_len})
        spec = RLModuleSpec(module_class=MODULES[kind], model_config={"max_seq_len": max_seq_len})
        return config.rl_module(rl_module_spec=spec)

    @staticmethod
    def runner(config: PPOConfig, mode: str) -> SingleAgentEnvRunner:
        """A runner whose vector environment resets in this mode."""

        class Own(SingleAgentEnvRunner):
            def make_env(self) -> Any:
                makers = [CartPole.make] * config.num_envs_per_env_runner
                return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode])

        torch.manual_seed(0)
        return Own(config=config)


@torch.no_grad()
def step_by_hand(module: Any, obs: Any, state: Any) -> Any:
    """One call of the module for one observation: logits, value, and the state afterwards."""
    batch = {"obs": torch.as_tensor(obs)[None, None], "state_in": map_struct(lambda leaf: leaf[None], state)}
    outputs = module.forward_inference(batch)
    state = map_struct(lambda leaf: leaf[0], outputs["state_out"])
    return outputs["action_dist_inputs"][0, 0], module.compute_values(batch).item(), state


class ByHand:
    """One environment and one module, step by step: no vector, no pipeline, no cut."""

    def __init__(self, module: Any, number: int) -> None:
        self.module, self.env, self.seed = module, CartPole.make(), environment_seeds(SEED, number + 1)[-1]

    def episode(self) -> Any:
        """Play one episode greedily; `states[t]` and `logits[t]` are those after and at step t."""
        obs, _ = self.env.reset(seed=self.seed)
        self.seed, state, done = None, self.module.get_initial_state(), False
        out = SimpleNamespace(obs=[obs], actions=[], logits=[], states=[])
        while not done:
            logits, _, state = step_by_hand(self.module, obs, state)
            obs, _, terminated, truncated, _ = self.env.step(int(logits.argmax()))
            done = terminated or truncated
            out.obs.append(obs)
            out.actions.append(int(logits.argmax()))
            out.logits.append(logits)
            out.states.append(state)
        return out


@pytest.fixture
def cart_pole() -> type[CartPole]:
    return CartPole


@pytest.fixture
def by_hand() -> type[ByHand]:
    return ByHand


@pytest.fixture
def step() -> Any:
    return step_by_hand
