"""Saved at any step of a run and restored from the file, pieces and pipelines go on bit by bit."""

from __future__ import annotations

import copy
import os
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from epibatch.algorithms import PPO, PPOConfig
from epibatch.connectors import ConnectorV2, env_to_module, module_to_env
from epibatch.connectors._engine.call import PipelineCall
from epibatch.connectors._engine.sequences import layout_of
from epibatch.connectors.actions import DiscretizeActions, EpisodeNoise, ProjectDiscreteActions
from epibatch.connectors.env_to_module import MeanStdFilter, PrevActionsPrevRewards
from epibatch.connectors.images import RandomCrop
from epibatch.connectors.module_to_env import GetActions
from epibatch.connectors.observations import Affine, FrozenModule, GoalDistanceRewards
from epibatch.connectors.rewards import CountBasedReward, KLReward, NormalizeReward
from epibatch.connectors.sequences import RandomSubsequences
from epibatch.core import load_state, save_state
from epibatch.core.registry import built_in_pieces, piece_class
from epibatch.core.rl_module import default_module_spec
from epibatch.core.state_codec import encode_state
from epibatch.core.structs import flatten, map_struct
from epibatch.episodes import SingleAgentEpisode

STEPS, NEXT, WHOLE = 300, 3, 150  # at every 150th step all that is left is compared
# At the others it is the next few, and the state behind them: equal states go on equally, so nothing is left open.
OBS = gym.spaces.Dict(
    position=gym.spaces.Box(-np.inf, np.inf, (2,)),
    pixels=gym.spaces.Box(0, 255, (3, 2), np.uint8),
    door=gym.spaces.Discrete(3),
)
ACT = gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,))])


@pytest.fixture(autouse=True)
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of files are written here; waiting for the disk each time is tested elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def told(value: Any) -> bytes:
    """Type, shape and every bit of all leaves."""
    leaves = [leaf.detach().numpy() if hasattr(leaf, "detach") else np.asarray(leaf) for leaf in flatten(value)[0]]
    return b"|".join(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes() for leaf in leaves)


def told_state(state: Any) -> tuple[str, list[bytes]]:
    data, arrays = encode_state(state)
    return repr(data), [told(array) for array in arrays.values()]


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
        if i % 70 == 50:
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


class CropRun:
    """Where random sub-sequences of eight chunks begin."""

    def __init__(self) -> None:
        spec = default_module_spec(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2), {"use_lstm": True})
        self.module = spec.build()
        rows = {"observations": [np.zeros(2, np.float32)] * 61, "actions": [0] * 60, "rewards": [0.0] * 60}
        self.episodes = [SingleAgentEpisode(**rows, len_lookback_buffer=0) for _ in range(8)]

    def fresh(self) -> Any:
        piece = RandomSubsequences()
        piece.seed(5)
        return piece

    def step(self, piece: Any, i: int) -> bytes:
        call = PipelineCall(rl_module=self.module, episodes=self.episodes).groups[None]
        piece.run({}, call)
        return layout_of(call).offsets.tobytes()


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
        return told(list(piece(batch={}, episodes=self.episodes(i))["rewards"].values()))


class CountRun(RewardRun):
    """Visits of a few observations."""

    def fresh(self) -> Any:
        return CountBasedReward()


class ReferenceRun(RewardRun):
    """Divergence from a policy that is kept."""

    def __init__(self) -> None:
        super().__init__()
        spec = default_module_spec(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(3), {"fcnet_hiddens": [4]})
        self.module = spec.build()
        self.current = torch.randn(STEPS, 6, 3, generator=torch.Generator().manual_seed(1))

    def fresh(self) -> Any:
        return KLReward()

    def step(self, piece: Any, i: int) -> bytes:
        call = PipelineCall(rl_module=self.module, episodes=self.episodes(i), training=True).groups[None]
        batch = {"obs": torch.zeros(6, 1), "rewards": torch.zeros(6), "action_dist_inputs": self.current[i]}
        return told(piece.run(batch, call)["rewards"])


class NoiseRun(RewardRun):
    """Numbers of one episode that is new each time, and of one that goes on."""

    def fresh(self) -> Any:
        piece = EpisodeNoise(shape=[2])
        piece.seed(5)
        return piece

    def step(self, piece: Any, i: int) -> bytes:
        return told(list(piece(batch={}, episodes=self.episodes(i))["noise"].values()))


class RowsRun:
    """What a transform makes of random rows, or its inverse."""

    def __init__(self, make: Any, method: str, shape: tuple[int, ...], highest: int = 0) -> None:
        rng = np.random.default_rng(4)
        whole = rng.integers(0, highest, (STEPS, 4, *shape)) if highest else rng.normal(size=(STEPS, 4, *shape))
        self.fresh_piece, self.method = make, method
        self.rows = whole if highest else whole.astype(np.float32)

    def fresh(self) -> Any:
        piece = self.fresh_piece()
        if hasattr(piece, "seed"):
            piece.seed(5)
        return piece

    def step(self, piece: Any, i: int) -> bytes:
        return told(piece.changed(piece.paths[0], self.rows[i], getattr(piece, self.method)))


class GoalRun(RewardRun):
    """Distances from a goal in what a network makes of observations, and the rewards there were."""

    def fresh(self) -> Any:
        network = {"module": "torch.nn:Linear", "keywords": {"in_features": 1, "out_features": 3}}
        return GoalDistanceRewards(goal=[2.0], added=True, **network)

    def step(self, piece: Any, i: int) -> bytes:
        rows = {"observations": np.float32([[0], [1], [i], [3]]), "actions": [0, 0, 0], "rewards": self.rewards[i]}
        batch = piece(batch={}, episodes=[SingleAgentEpisode(**rows, len_lookback_buffer=0)])
        return told(list(batch["rewards"].values()))


LINEAR = {"module": "torch.nn:Linear", "keywords": {"in_features": 3, "out_features": 2}}
FIVE, TWO = gym.spaces.Discrete(5), gym.spaces.Box(-1, 1, (2,))
RUNS = {
    "affine": partial(RowsRun, lambda: Affine(loc=0.5, scale=2.0), "transform", (3,)),
    "discretize_actions": partial(RowsRun, lambda: DiscretizeActions(None, TWO, value="random"), "inverse", (2,), 11),
    "episode_noise": NoiseRun,
    "frozen_module": partial(RowsRun, lambda: FrozenModule(**LINEAR), "transform", (3,)),
    "goal_distance_rewards": GoalRun,
    "project_discrete_actions": partial(
        RowsRun, lambda: ProjectDiscreteActions(None, FIVE, num_actions=99, outside="random"), "inverse", (40,), 99
    ),
    "random_crop": partial(RowsRun, lambda: RandomCrop(height=2, width=2), "transform", (5, 5, 1)),
    "mean_std_filter": FilterRun,
    "get_actions": DrawRun,
    "random_subsequences": CropRun,
    "normalize_reward": RewardRun,
    "count_based_reward": CountRun,
    "kl_reward": ReferenceRun,
}


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
    assert set(RUNS) <= keeping and keeping - set(RUNS) <= resumed and drawing | learning <= keeping
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


# ------------------------------------------------------------------------------------------ whole pipelines


class Loop:
    """Three environments in a loop of its own: filter, previous steps, a recurrent module, drawn actions."""

    def __init__(self) -> None:
        user = [MeanStdFilter(), PrevActionsPrevRewards(n_prev_actions=2)]
        self.to_module = env_to_module.default_pipeline(OBS, ACT, connectors=user)
        self.to_env = module_to_env.default_pipeline(OBS, ACT)
        self.to_module.seed(3)
        self.to_env.seed(4)

    def states(self) -> dict[str, Any]:
        return {"to_module": self.to_module.get_state(), "to_env": self.to_env.get_state()}

    def restore(self, states: dict[str, Any]) -> Loop:
        self.to_module.set_state(states["to_module"])
        self.to_env.set_state(states["to_env"])
        return self

    def step(self, module: Any, episodes: list[Any]) -> bytes:
        """Act once in all episodes, and go on with what comes next."""
        shared: dict[str, Any] = {}
        call = {"rl_module": module, "episodes": episodes, "explore": True, "shared_data": shared}
        batch = self.to_module(batch={}, **call)
        with torch.no_grad():
            outputs = module.forward_exploration(batch)
        acted = self.to_env(batch=dict(outputs), **call)
        seen = told(batch) + told(acted) + b"".join(told(episode.get_observations(-1)) for episode in episodes)
        actions, for_env = acted.pop("actions"), acted.pop("actions_for_env")
        for i, episode in enumerate(episodes):
            add_step(episode, _row(actions, i), _row(for_env, i), {key: _row(own, i) for key, own in acted.items()})
            if episode.is_done:
                episodes[i] = start(int(episode.id_) + 3)
        return seen


def _row(struct: Any, i: int) -> Any:
    return map_struct(lambda leaf: leaf[i], struct)


def observe(number: int, t: int, moved: float) -> dict[str, Any]:
    rng = np.random.default_rng([number, t])
    position = (rng.normal(size=2) + moved).astype(np.float32)
    return {"position": position, "pixels": rng.integers(0, 256, (3, 2), np.uint8), "door": np.int64(rng.integers(3))}


def start(number: int) -> SingleAgentEpisode:
    episode = SingleAgentEpisode(id_=str(number), observation_space=OBS, action_space=ACT)
    episode.add_env_reset(observe(number, 0, 0.0))
    return episode


def add_step(episode: Any, action: Any, for_env: Any, outputs: dict[str, Any]) -> None:
    """What comes next depends on the action, so that one wrong bit spreads."""
    number, t, moved = int(episode.id_), len(episode) + 1, float(for_env[0]) + float(for_env[1].sum())
    done = t == 5 + number % 7
    episode.add_env_step(observe(number, t, moved), action, moved, terminated=done, extra_model_outputs=outputs)


def everything(loop: Loop, episodes: list[Any]) -> Any:
    """The pipelines' states and the episodes, but for the seconds these took."""
    return told_state(
        {"loop": loop.states(), "episodes": [{**episode.get_state(), "duration_s": 0} for episode in episodes]}
    )


@pytest.mark.slow
def test_whole_pipelines_go_on_bit_by_bit_from_every_step(tmp_path: Path) -> None:
    loop = Loop()
    torch.manual_seed(0)
    config = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
    module = default_module_spec(loop.to_module.observation_space, ACT, config).build()
    episodes = [start(number) for number in range(3)]
    before, outputs, files, states = [], [], [], [everything(loop, episodes)]
    for i in range(STEPS):
        before.append(copy.deepcopy(episodes))
        files.append(save_state(tmp_path / str(i), loop.states()))
        outputs.append(loop.step(module, episodes))
        states.append(everything(loop, episodes))
    assert len(set(outputs)) == STEPS and int(episodes[0].id_) > 60
    for i, file in enumerate(files):
        again, stop = Loop().restore(load_state(file)), STEPS if i % WHOLE == 0 else min(i + NEXT, STEPS)
        assert [again.step(module, before[i]) for _ in range(i, stop)] == outputs[i:stop], f"after a restore at {i}"
        assert everything(again, before[i]) == states[stop]


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
