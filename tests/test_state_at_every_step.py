"""Saved at any step of a run and restored from the file, pieces and algorithms go on bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from epibatch.algorithms import PPO, PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.actions import EpisodeNoise
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.connectors.module_to_env import GetActions
from epibatch.connectors.rewards import CountBasedReward, NormalizeReward
from epibatch.core import load_state, save_state
from epibatch.core.registry import built_in_pieces, piece_class
from epibatch.core.rl_module import default_module_spec
from epibatch.episodes import SingleAgentEpisode
from fixture_episodes import leaves_of, over

STEPS, NEXT, WHOLE = 40, 3, 20  # at every 20th step all that is left is compared
# At the others it is the next few, and the state behind them: equal states go on equally, so nothing is left open.
OBS = gym.spaces.Dict(
    position=gym.spaces.Box(-np.inf, np.inf, (2,)),
    pixels=gym.spaces.Box(0, 255, (3, 2), np.uint8),
    door=gym.spaces.Discrete(3),
)


def told(value: Any) -> bytes:
    """Path, type, shape and every bit of all leaves."""
    parts = []
    for path, leaf in leaves_of(value).items():
        array = leaf.detach().numpy() if hasattr(leaf, "detach") else np.asarray(leaf)
        parts.append(f"{path}{array.dtype}{array.shape}".encode() + array.tobytes())
    return b"|".join(parts)


def told_state(state: Any) -> tuple[str, bytes]:
    """The same of a state; what holds no numbers as text."""
    found = leaves_of(over(lambda leaf: leaf if isinstance(leaf, np.ndarray) else repr(leaf), state))
    texts = {path: leaf for path, leaf in found.items() if isinstance(leaf, str)}
    return repr(texts), told({path: leaf for path, leaf in found.items() if path not in texts})


# ---------------------------------------------------------------------------------------- single pieces


class FilterRun:
    """A filter that sees three environments, and is synchronised with a copy now and then."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.rows = [
            [{"position": rng.normal(size=2), "pixels": rng.integers(0, 256, (3, 2)), "door": 1} for _ in range(3)]
            for _ in range(STEPS)
        ]

    def fresh(self) -> Any:
        return MeanStdFilter(OBS)

    def step(self, piece: Any, i: int) -> bytes:
        episodes = [SingleAgentEpisode(observations=[row]) for row in self.rows[i]]
        piece(batch={}, episodes=episodes)
        if i % 20 == 15:
            piece.set_state(piece.merge_states([piece.get_state(), MeanStdFilter(OBS).get_state()]))
        return b"".join(told(episode.get_observations(-1)) for episode in episodes)


class DrawRun:
    """Actions drawn from random logits."""

    def __init__(self) -> None:
        self.logits = torch.randn(STEPS, 4, 3, generator=torch.Generator().manual_seed(1))
        self.module = default_module_spec(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(3), {}).build()

    def fresh(self) -> Any:
        piece = GetActions(None, gym.spaces.Discrete(3))
        piece.seed(5)
        return piece

    def step(self, piece: Any, i: int) -> bytes:
        batch = piece(rl_module=self.module, batch={"action_dist_inputs": self.logits[i]}, episodes=[], explore=True)
        return told((batch["actions"], batch["action_logp"]))


class RewardRun:
    """Rewards of episodes that go on from call to call, and of one that is new each time."""

    def __init__(self) -> None:
        self.rewards = np.random.default_rng(2).normal(size=(STEPS, 3))

    def fresh(self) -> Any:
        return NormalizeReward(gamma=0.9)

    def episodes(self, i: int) -> list[SingleAgentEpisode]:
        rows = {"observations": [i % 7, i % 5, 0, 1], "actions": [0, 0, 0], "rewards": self.rewards[i]}
        return [
            SingleAgentEpisode(str(i), **rows, terminated=True, len_lookback_buffer=0),
            SingleAgentEpisode("on", **rows, t_started=3 * i, len_lookback_buffer=0),
        ]

    def step(self, piece: Any, i: int) -> bytes:
        return told(piece(batch={}, episodes=self.episodes(i))["rewards"])


class CountRun(RewardRun):
    """Visits of a few observations."""

    def fresh(self) -> Any:
        return CountBasedReward()


class NoiseRun(RewardRun):
    """Numbers of one episode that is new each time, and of one that goes on."""

    def fresh(self) -> Any:
        piece = EpisodeNoise(shape=[2])
        piece.seed(5)
        return piece

    def step(self, piece: Any, i: int) -> bytes:
        return told(piece(batch={}, episodes=self.episodes(i))["noise"])


RUNS = {
    "mean_std_filter": FilterRun,
    "get_actions": DrawRun,
    "normalize_reward": RewardRun,
    "count_based_reward": CountRun,
    "episode_noise": NoiseRun,
}
ELSEWHERE = {"random_subsequences"}  # tests/connectors/sequences/test_random_subsequences.py


def test_every_built_in_piece_with_state_has_a_run_here_or_is_resumed_by_the_contract_kit() -> None:
    entries = YAML(typ="safe").load(Path(__file__).with_name("built_in_pieces.yaml").read_text(encoding="utf-8"))
    tried = {name: entries.get(name, {}) for name in built_in_pieces()}
    resumed = {
        name
        for name, entry in tried.items()
        if not {"resume", "state_round_trip"} & set(entry.get("skip", ())) and "only" not in entry
    }
    classes = {name: piece_class(name) for name in built_in_pieces()}
    keeping = {name for name, cls in classes.items() if cls.get_state is not ConnectorV2.get_state}  # type: ignore[attr-defined]
    drawing = {name for name, cls in classes.items() if hasattr(cls, "seed")}
    learning = {name for name, cls in classes.items() if cls.freeze is not ConnectorV2.freeze}  # type: ignore[attr-defined]
    assert set(RUNS) <= keeping and keeping - set(RUNS) - ELSEWHERE <= resumed and drawing | learning <= keeping
    for name in keeping:
        assert classes[name].set_state is not ConnectorV2.set_state  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", RUNS)
def test_a_piece_goes_on_bit_by_bit_from_every_step(name: str, tmp_path: Path) -> None:
    run = RUNS[name]()
    piece, files, states, outputs = run.fresh(), [], [], []
    for i in range(STEPS):
        files.append(save_state(tmp_path / str(i), piece.get_state()))
        states.append(told_state(piece.get_state()))
        outputs.append(run.step(piece, i))
    states.append(told_state(piece.get_state()))
    assert len(set(outputs)) == STEPS
    for i, file in enumerate(files):
        again = run.fresh()
        again.set_state(load_state(file))
        stop = STEPS if i % WHOLE == 0 else min(i + NEXT, STEPS)
        assert [run.step(again, k) for k in range(i, stop)] == outputs[i:stop], f"after a restore at step {i}"
        assert told_state(again.get_state()) == states[stop]


# ------------------------------------------------------------------------------------------------ algorithms

CONFIG = """
algorithm: ppo
environment: {env: Pendulum-v1}
env_runners: {num_envs_per_env_runner: 3}
training: {train_batch_size: 60, minibatch_size: 30, num_epochs: 2, lr: 0.001}
rl_module: {model_config: {fcnet_hiddens: [8], use_lstm: true, lstm_cell_size: 4, max_seq_len: 5}}
debugging: {seed: 2}
env_to_module: [mean_std_filter, {piece: prev_actions_prev_rewards, n_prev_actions: 2}]
"""


def trained(algorithm: Any) -> Any:
    """Everything that is saved after one more iteration, but for the seconds it took."""
    algorithm.train()
    state = algorithm.get_state()
    del state["counters"]["time_total_s"]
    return told_state(state)


def test_an_algorithm_goes_on_bit_by_bit_from_every_iteration(tmp_path: Path) -> None:
    algorithm = PPOConfig.from_yaml(CONFIG).build_algo()
    found, iterations = [], 5
    for i in range(iterations):
        algorithm.save_to_path(tmp_path / str(i), end_episodes=True)
        found.append(trained(algorithm))
    known = algorithm.env_runner.get_state("env_to_module_connector")["env_to_module_connector"]["mean_std_filter"]
    assert known["since"]["count"] == iterations * (60 + 3)  # each save ends the running episodes: three new ones
    algorithm.stop()
    for i in range(iterations):
        again = PPO.from_checkpoint(tmp_path / str(i))
        assert trained(again) == found[i], f"restored at iteration {i}"
        again.stop()
