"""Episodes that a default LSTM played, with the states it had, and the pipelines that make sequences of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.learner import default_pipeline
from epibatch.core.rl_module import DefaultActorCritic, DefaultLSTMActorCritic
from epibatch.episodes import SingleAgentEpisode
from epibatch.testing import check_connector
from fixture_pieces import played as played_rows

OBS, ACT = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(2)


class Played:
    """A module and what it recorded."""

    obs_space, act_space = OBS, ACT

    @staticmethod
    def module(seed: int = 0, **options: Any) -> DefaultLSTMActorCritic:
        torch.manual_seed(seed)
        config = {"fcnet_hiddens": [6], "use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 4, **options}
        return DefaultLSTMActorCritic(observation_space=OBS, action_space=ACT, model_config=config)

    @staticmethod
    def stateless(seed: int = 0) -> DefaultActorCritic:
        torch.manual_seed(seed)
        return DefaultActorCritic(observation_space=OBS, action_space=ACT, model_config={"fcnet_hiddens": [6]})

    @staticmethod
    @torch.no_grad()
    def states(module: Any, obs: Any, state: Any = None) -> list[dict[str, Any]]:
        """The state after each observation, one at a time."""
        state = module.get_initial_state() if state is None else state
        found = []
        for row in obs:
            batch = {"obs": torch.as_tensor(row)[None, None], "state_in": {k: v[None] for k, v in state.items()}}
            state = {name: leaf[0] for name, leaf in module.forward_inference(batch)["state_out"].items()}
            found.append({name: leaf.numpy() for name, leaf in state.items()})
        return found

    @classmethod
    def episodes(cls, module: Any, lengths: Any, seed: int = 0) -> list[SingleAgentEpisode]:
        rng, made = np.random.default_rng(seed), []
        for number, length in enumerate(lengths):
            obs = list(rng.normal(size=(length + 1, 3)).astype(np.float32))
            columns = {
                "actions": list(rng.integers(2, size=length)),
                "rewards": list(rng.normal(size=length)),
                "extra_model_outputs": {
                    "state_out": cls.states(module, obs[:-1]),
                    "action_logp": list(rng.normal(size=length)),
                },
            }
            spaces = {"observation_space": OBS, "action_space": ACT}
            made.append(played_rows(obs, id_=f"e{number}", terminated=bool(number % 2), **columns, **spaces))
        return made

    @staticmethod
    def pipeline(*user: Any, ppo: bool = False, burn_in: bool = False, behind: Any = ()) -> Any:
        discounts = {"gamma": 0.9, "lambda_": 0.8} if ppo else {}
        pipeline = default_pipeline(OBS, ACT, connectors=user, advantages=ppo, burn_in=burn_in, **discounts)
        for piece in behind:
            pipeline.append(piece)
        return pipeline

    @classmethod
    def batch(cls, module: Any, episodes: Any, *user: Any, **options: Any) -> dict[str, Any]:
        return cls.pipeline(*user, **options)(rl_module=module, batch={}, episodes=episodes)

    @staticmethod
    def check(piece: Any, **model_config: Any) -> None:
        """The contract kit, about a recurrent module."""
        model = {"use_lstm": True, "fcnet_hiddens": [4], "lstm_cell_size": 3, "max_seq_len": 4, **model_config}
        every = "it is about every column with a time axis, whatever its name"
        check_connector(piece, model_config=model, skip={"writes": every, "reads": every})


@pytest.fixture
def played() -> type[Played]:
    return Played
