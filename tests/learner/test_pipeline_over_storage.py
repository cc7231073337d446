"""A learner pipeline over a storage: the batches of its episodes, with rows that never leave the device."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from epibatch.connectors import FrameStacking, Piece
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.learner import (
    AddNextObservationsFromEpisodesToTrainBatch,
    ComputeReturnsToGo,
    PrevActionsPrevRewardsLearner,
    default_pipeline,
)
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import EpibatchWarning
from epibatch.core.rl_module import TorchRLModule, ValueFunctionAPI, default_module_spec
from epibatch.episodes import VectorEpisodes
from epibatch.learner import Learner, LearnerSettings, PPOLoss, RolloutStorage

T, N = 10, 7
FRAME, PAIR = gym.spaces.Box(-9, 9, (3, 1)), gym.spaces.Box(-9, 9, (2, 1))
ACTIONS = gym.spaces.Discrete(3)
TO_HOST = {"numpy", "cpu", "tolist", "item", "__array__", "__bool__", "__float__", "__int__", "__index__"}


def leaves_of(struct, path=""):
    """The leaves of nested dicts and tuples, by path."""
    parts = struct.items() if isinstance(struct, dict) else enumerate(struct) if isinstance(struct, tuple) else None
    if parts is None:
        return {path: struct}
    return {name: leaf for key, part in parts for name, leaf in leaves_of(part, f"{path}/{key}").items()}


class Critic(TorchRLModule, ValueFunctionAPI):
    lead = 1

    def setup(self):
        self.bias = nn.Parameter(torch.zeros(1))

    def compute_values(self, batch, embeddings=None):
        sums = [leaf.float().flatten(self.lead).sum(-1) for leaf in leaves_of(batch["obs"]).values()]
        return torch.sin(sum(sums) + (batch["state_in"]["n"].sum(-1)[:, None] if self.lead > 1 else 0)) + self.bias


class RecurrentCritic(Critic):
    lead, handles_resets = 2, True

    def get_initial_state(self):
        return {"n": torch.zeros(2)}


class DrawingCritic(RecurrentCritic):
    def get_initial_state(self):
        return {"n": torch.randn(2)}


class Doubled(ColumnTransform):
    columns, takes_tensors = "obs", True

    def transform(self, x):
        return x * 2


class EndsEarlier(ColumnTransform):
    columns, takes_tensors = "rewards", True

    def transform(self, x):
        return x > 1


class RewardsThrice(Piece):
    pipelines, input_layouts, takes_tensors = ("learner",), ("episodes",), True
    reads, writes = ("obs",), ("thrice",)

    def run(self, columns, group):
        rewards = group.reader.rows("rewards").joined()
        return {**columns, "thrice": columns["obs"].with_data(rewards * 3)}


class NeedsArrays(Piece):
    pipelines, input_layouts = ("learner",), ("episodes",)

    def run(self, columns, group):
        assert isinstance(group.reader.rows("rewards").joined(), np.ndarray)
        return columns


class OnDevice(TorchFunctionMode):
    """Refuses to show rows to the host: all but flags [T, N], integers about environments, and single numbers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in TO_HOST or (name == "to" and "cpu" in (*args[1:], *(kwargs or {}).values())):
            rows = args[0]
            flags, integers = rows.dtype is torch.bool and rows.ndim == 2, rows.dtype is torch.int64 and rows.ndim == 1
            assert flags or integers or rows.numel() < N, f"{name} of {rows.dtype} {list(rows.shape)}"
        return func(*args, **(kwargs or {}))


class Rollouts:
    """Random rollouts in a storage, one after the other."""

    def __init__(self, nested, recurrent, final_obs, ends, kind=RolloutStorage):
        self.storage, self.rng = kind(T, N, lookback=4), torch.Generator().manual_seed(1)
        self.nested, self.recurrent, self.final_obs, self.ends = nested, recurrent, final_obs, ends
        self.obs, self.state = self.observations(), self.draw(N, 2)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.rng)

    def observations(self):
        return {"b": self.draw(N, 2, 1), "a": self.draw(N, 3, 1)} if self.nested else {"": self.draw(N, 3, 1)}

    def next(self):
        def shown(obs):
            return obs if self.nested else obs[""]

        self.storage.clear()
        for _ in range(T):
            terminated, truncated = torch.rand(2, N, generator=self.rng) < self.ends
            step = {"obs": shown(self.obs), "actions": torch.randint(0, 3, (N,), generator=self.rng)}
            step |= {"rewards": self.draw(N), "action_logp": self.draw(N), "extra": (self.draw(N), self.draw(N, 2))}
            step |= {"terminateds": terminated, "truncateds": truncated}
            step |= {"state_in": {"n": self.state}} if self.recurrent else {}
            after, begun, state = self.observations(), self.observations(), self.draw(N, 2)
            self.storage.add_step(
                step,
                final_obs=shown(after) if self.final_obs else None,
                final_state={"n": state} if self.recurrent else None,
            )
            ended = terminated | truncated
            self.obs = {name: torch.where(ended[:, None, None], begun[name], after[name]) for name in after}
            self.state = torch.where(ended[:, None], 0.0, state)
        self.storage.finish(shown(self.obs), *([{"n": self.state}] if self.recurrent else []))
        return self.storage


def assert_same(batch, expected):
    leaves, others = leaves_of(dict(batch)), leaves_of(dict(expected))
    assert list(leaves) == list(others)
    for name, leaf in leaves.items():
        assert isinstance(leaf, torch.Tensor)
        message = f"{name}: {{}}".format
        torch.testing.assert_close(leaf, others[name], rtol=1e-6, atol=1e-6, msg=message)


VIEWS = {
    "last_reward": View("rewards", shift=-1, mask=True),
    "around": View("obs", shift="-2:0"),
    "last_action": View("actions", shift=-1, fill=2),
}
CASES = {
    "plain": {},
    "no terminal observations": {"final_obs": False},
    "no ends": {"ends": 0.0},
    "dict": {"nested": True},
    "lstm": {"module": RecurrentCritic},
    "lstm, dict, most steps end": {"module": RecurrentCritic, "nested": True, "ends": 0.6},
    "lstm, no terminal observations": {"module": RecurrentCritic, "final_obs": False},
    "lstm, drawn states": {"module": DrawingCritic},
    "lstm, drawn states, all steps end": {"module": DrawingCritic, "ends": 1.0},
    "lstm, continue": {"module": RecurrentCritic, "sequence_end": "continue"},
    "lstm, overlap": {"module": RecurrentCritic, "sequence_end": "overlap", "advantages": False},
    "frames": {"pieces": lambda: [FrameStacking(num_frames=3)]},
    "frames of a part, pooled": {
        "pieces": lambda: [FrameStacking(num_frames=3, max_pool=2, padding="same", columns="obs/a")],
        "nested": True,
    },
    "frames, lstm, new_obs": {
        "pieces": lambda: [AddNextObservationsFromEpisodesToTrainBatch(), FrameStacking(num_frames=3)],
        "module": RecurrentCritic,
    },
    "steps before": {"pieces": lambda: [PrevActionsPrevRewardsLearner(n_prev_actions=2, n_prev_rewards=3)]},
    "views, lstm": {"pieces": lambda: [TrajectoryViews(views=VIEWS)], "module": RecurrentCritic},
    "ends of a piece": {"pieces": lambda: [EndsEarlier(to="terminateds")]},
    "users' pieces": {"pieces": lambda: [Doubled(), ComputeReturnsToGo(gamma=0.9)], "advantages": False},
}


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_the_episodes_and_no_row_leaves_the_device(case):
    settings = {"nested": False, "final_obs": True, "ends": 0.1, "module": Critic, **CASES[case]}
    space = gym.spaces.Dict(a=FRAME, b=PAIR) if settings["nested"] else FRAME
    config = {"max_seq_len": 5, "sequence_end": settings.get("sequence_end", "pad")}
    module = settings["module"](observation_space=space, action_space=ACTIONS, model_config=config)
    pieces = settings.get("pieces", list)()
    advantages = settings.get("advantages", config["sequence_end"] == "pad")
    pipeline = default_pipeline(space, ACTIONS, connectors=pieces, advantages=advantages)
    rollouts = Rollouts(settings["nested"], module.lead > 1, settings["final_obs"], settings["ends"])
    for _ in range(3):
        storage = rollouts.next()
        with OnDevice():
            batch = pipeline(rl_module=module, batch={}, episodes=storage)
        assert_same(batch, pipeline(rl_module=module, batch={}, episodes=storage.episodes()))


def test_a_piece_with_run_reads_tensors_and_one_without_takes_tensors_gets_arrays_and_is_named():
    class Elsewhere(RolloutStorage):
        def chunk_table(self):
            table = super().chunk_table()
            table.device = torch.device("meta")
            return table

    storage = Rollouts(False, False, True, 0.1).next()
    module = Critic(observation_space=FRAME, action_space=ACTIONS, model_config={})
    plain = default_pipeline(FRAME, ACTIONS, advantages=False)
    expected = plain(rl_module=module, batch={}, episodes=storage)
    plain.insert_after("AddObservationsFromEpisodesToBatch", RewardsThrice())
    with OnDevice():
        batch = plain(rl_module=module, batch={}, episodes=storage)
    assert torch.equal(batch.pop("thrice"), 3 * batch["rewards"])
    assert_same(batch, expected)
    pipeline = default_pipeline(FRAME, ACTIONS, connectors=[NeedsArrays()], advantages=False)
    assert_same(pipeline(rl_module=module, batch={}, episodes=storage), expected)
    elsewhere = Rollouts(False, False, True, 0.1, Elsewhere).next()
    with pytest.warns(EpibatchWarning, match=r"NeedsArrays[\s\S]*takes_tensors[\s\S]*meta"):
        assert_same(pipeline(rl_module=module, batch={}, episodes=elsewhere), expected)


def test_a_table_is_a_sequence_of_the_episodes():
    storage = Rollouts(True, True, True, 0.2).next()
    table, episodes = storage.chunk_table(), storage.episodes()
    assert len(table) == len(episodes) == len(list(table))
    assert list(table.ids) == episodes.ids
    assert [len(episode) for episode in table] == episodes.lengths().tolist() == table.lengths.tolist()
    assert (table.terminateds == episodes.terminateds()).all()
    assert (table.truncateds == episodes.truncateds()).all()
    assert isinstance(table.arrays(), VectorEpisodes)


def test_a_learner_learns_the_same_from_a_storage_and_from_its_episodes():
    def results(episodes_of):
        torch.manual_seed(0)
        module = default_module_spec(FRAME, ACTIONS).build()
        learner = Learner(
            module=module, connector=default_pipeline(FRAME, ACTIONS), settings=LearnerSettings(), loss=PPOLoss()
        )
        storage = RolloutStorage(T, N)
        for _ in range(T):
            obs = torch.rand(N, 3, 1)
            inputs = module.forward_exploration({"obs": obs})["action_dist_inputs"].detach()
            distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
            step = {"obs": obs, "actions": (actions := distribution.sample()), "rewards": torch.rand(N)}
            step |= {"action_logp": distribution.logp(actions), "action_dist_inputs": inputs}
            storage.add_step(step | {"terminateds": torch.rand(N) < 0.2}, final_obs=obs)
        storage.finish(torch.rand(N, 3, 1))
        torch.manual_seed(1)
        return [learner.update(episodes=episodes_of(storage)) for _ in range(2)]

    for ours, expected in zip(results(lambda storage: storage), results(RolloutStorage.episodes)):
        counts = ours["__all_modules__"], expected["__all_modules__"]
        assert len({count["num_env_steps_trained_lifetime"] for count in counts}) == 1
        for name, value in ours["default_policy"].items():
            assert value == pytest.approx(expected["default_policy"][name], rel=1e-4, abs=1e-6), name


def test_a_reward_of_nan_does_not_outlive_its_episode():
    storage = RolloutStorage(2, 1)
    for rewards, ended in (([float("nan"), 2.0], [True, False]), ([3.0, 4.0], [False, False])):
        storage.clear()
        for reward, end in zip(rewards, ended):
            step = {"obs": torch.zeros(1, 1), "actions": torch.zeros(1), "rewards": torch.tensor([reward])}
            storage.add_step({**step, "terminateds": torch.tensor([end])})
        storage.finish(torch.zeros(1, 1))
    (episode,) = storage.episodes()
    assert (episode.t_started, episode.return_before) == (1, 2.0)
