"""Modules are kept to legal actions; random numbers stay the same for a whole episode."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.actions import ActionMask, DiscretizeActions, EpisodeNoise
from epibatch.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline, PadActions
from epibatch.core.distributions import TorchCategorical
from epibatch.core.errors import ColumnError, ConfigError, SpaceError
from epibatch.core.registry import build_piece
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import MultiAgentEnvRunner, SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode
from fixture_envs import BOX, TurnsEnv

Box, Dict, Discrete, MultiBinary = gym.spaces.Box, gym.spaces.Dict, gym.spaces.Discrete, gym.spaces.MultiBinary
FIVE = Discrete(5, start=2)


class Gated(gym.Env):
    """Some actions are legal at each step, as observation and infos say; at the end none is. Others are an error."""

    def __init__(self, choices=FIVE, length=12, counts=(5,)):
        self.action_space, self.length, self.counts = choices, length, counts
        size = sum(counts)
        self.observation_space = Dict(action_mask=MultiBinary(size), observations=Box(-1, 1, (3,)))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {"legal": self.mask}

    def step(self, action):
        first = np.cumsum(self.counts) - self.counts
        entries = np.atleast_1d(action - getattr(self.action_space, "start", 0)).ravel()
        assert self.mask[first + entries].all(), (action, self.mask)
        self.t += 1
        return self._seen(), float(entries[0]), self.t == self.length, False, {"legal": self.mask}

    def _seen(self):
        rng = self.np_random
        parts = []
        for count in self.counts:
            part = rng.random(count) < 0.3
            part[rng.integers(count)] = self.t < self.length  # one at least, but none in the end
            parts.append(part & (self.t < self.length))
        self.mask = np.concatenate(parts).astype(np.int8)
        return {"action_mask": self.mask, "observations": rng.uniform(-1, 1, 3).astype(np.float32)}


def config(piece=ActionMask, env=Gated, lstm=False, **runners):
    made = PPOConfig().environment(lambda _: env()).debugging(seed=0)
    made.env_runners(num_envs_per_env_runner=16, env_to_module_connector=lambda env, spaces, device: piece(), **runners)
    made.training(train_batch_size=128, minibatch_size=64, num_epochs=2)
    return made.rl_module(model_config={"fcnet_hiddens": [16], "use_lstm": lstm, "lstm_cell_size": 8, "max_seq_len": 5})


SEVERAL = gym.spaces.MultiDiscrete([3, 2, 4], start=[1, 0, 5])


@pytest.mark.parametrize("how", ["exploring", "greedy", "random"])
@pytest.mark.parametrize(
    ("choices", "counts", "source", "steps"),
    [
        pytest.param(FIVE, (5,), "obs/action_mask", 10_000, marks=pytest.mark.slow),
        (FIVE, (5,), "obs/action_mask", 1000),
        (FIVE, (5,), "infos/legal", 1000),
        (SEVERAL, (3, 2, 4), "obs/action_mask", 1000),
        (MultiBinary(3), (2, 2, 2), "obs/action_mask", 1000),
    ],
    ids=["many", "obs", "infos", "multi_discrete", "multi_binary"],
)
def test_no_illegal_action_reaches_the_environment(how, choices, counts, source, steps):
    made = config(lambda: ActionMask(source=source), lambda: Gated(choices, counts=counts))
    runner = SingleAgentEnvRunner(config=made)
    episodes = runner.sample(num_timesteps=steps, explore=how != "greedy", random_actions=how == "random")
    actions = np.concatenate([episode.get_actions() for episode in episodes])
    assert len(actions) >= steps and all(choices.contains(action) for action in actions)
    if how != "greedy" and choices is FIVE:
        assert set(actions.tolist()) == {2, 3, 4, 5, 6}
    runner.stop()


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_random_actions_are_all_legal_ones_alike(mode):
    runner = SingleAgentEnvRunner(config=config(gym_env_autoreset_mode=mode))
    episodes = runner.sample(num_timesteps=4000, random_actions=True)
    counts, expected = np.zeros(5), np.zeros(5)
    for episode in episodes:
        mask = episode.get_observations()["action_mask"][: len(episode)]
        counts += np.bincount(episode.get_actions() - 2, minlength=5)
        expected += (mask / mask.sum(1, keepdims=True)).sum(0)
    np.testing.assert_allclose(counts / expected, 1, atol=0.1)
    runner.stop()


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_the_learner_masks_what_was_masked(lstm, keep):
    algo = config(lambda: ActionMask(keep=keep), lstm=lstm).build_algo()
    episodes = algo.env_runner.sample(num_timesteps=200)
    learner = algo.learner
    batch = learner.connector(rl_module=learner.module, batch={}, episodes=episodes, shared_data={})["default_policy"]
    outputs = learner.module["default_policy"].forward_train(batch)
    real = batch["loss_mask"]
    mask, before, now = (
        own[real] for own in (batch["action_mask"], batch["action_dist_inputs"], outputs["action_dist_inputs"])
    )
    assert mask.dtype == torch.bool and not mask.all() and mask.any(1).all()
    assert (now[~mask] == torch.finfo(torch.float32).min).all()
    torch.testing.assert_close(now, before, rtol=1e-4, atol=1e-4)
    logp = TorchCategorical.from_logits(now, start=2).logp(batch["actions"][real])
    torch.testing.assert_close(logp, batch["action_logp"][real], rtol=1e-4, atol=1e-4)
    seen = algo.get_module().observation_space
    assert seen == (Dict(action_mask=MultiBinary(5), observations=Box(-1, 1, (3,))) if keep else Box(-1, 1, (3,)))
    results = algo.train()["learners"]["default_policy"]
    assert all(np.isfinite(results[name]) for name in ("total_loss", "entropy", "mean_kl"))
    assert -1e-6 <= results["mean_kl"] < 1  # 0 but for rounding
    algo.stop()


@pytest.mark.slow
def test_a_policy_that_learns_from_legal_actions():
    """The reward is the number of the action: the best legal one is the last."""
    algo = config().training(lr=0.01, train_batch_size=512, num_epochs=6).build_algo()
    before = algo.train()["env_runners"]["episode_return_mean"]
    for _ in range(9):
        after = algo.train()["env_runners"]["episode_return_mean"]
    assert after > before + 2
    algo.stop()


class Two(TurnsEnv):
    """Two agents with their own numbers of actions, of which each may take those that its mask shows."""

    def __init__(self, config=None):
        actions = {"a": Discrete(3), "b": Discrete(5)}
        spaces = {name: Dict(action_mask=MultiBinary(int(own.n)), observations=BOX) for name, own in actions.items()}
        super().__init__({"agents": "ab", "observation_spaces": spaces, "action_spaces": actions})

    def _observe(self):
        found = super()._observe()
        self.masks = {agent: seen["action_mask"] for agent, seen in found.items()}
        for mask in self.masks.values():
            mask[self.np_random.integers(len(mask))] = 1
        return found

    def step(self, actions):
        assert all(self.masks[agent][action] for agent, action in actions.items()), (actions, self.masks)
        return super().step(actions)


@pytest.mark.parametrize("how", ["exploring", "greedy", "random"])
@pytest.mark.parametrize("shared", [False, True])
def test_several_agents(how, shared):
    made = PPOConfig().environment(lambda _: Two()).debugging(seed=0)
    pieces = [PadActions(), ActionMask(keep=False)] if shared else [ActionMask(keep=False)]
    made.env_runners(num_envs_per_env_runner=3, env_to_module_connector=lambda env, spaces, device: pieces)
    if shared:
        made.env_runners(module_to_env_connector=lambda env, spaces: build_piece("cut_padded_actions"))
    names = {"a": "p", "b": "p"} if shared else {"a": "a", "b": "b"}
    made.multi_agent(policies=set(names.values()), policy_mapping_fn=lambda agent, episode: names[agent])
    runner = MultiAgentEnvRunner(config=made)
    episodes = runner.sample(num_timesteps=300, explore=how != "greedy", random_actions=how == "random")
    assert sum(map(len, episodes)) >= 300
    runner.stop()


def test_masks_behind_a_piece_that_makes_the_choices():
    space = Dict(action_mask=MultiBinary(4), observations=Box(-1, 1, (1,)))
    pieces = [DiscretizeActions(bins=4), ActionMask()]
    pipeline = EnvToModulePipeline(space, Box(-1, 1, (1,)), connectors=[*pieces, BatchIndividualItems()])
    row = {"action_mask": np.int8([1, 0, 0, 1]), "observations": np.zeros(1, np.float32)}
    batch = pipeline(episodes=[SingleAgentEpisode(observations=[row])])
    assert batch["action_mask"].tolist() == [[True, False, False, True]]


# ----------------------------------------------------------------------------------------- mistakes

SEEN = Dict(action_mask=MultiBinary(3), board=Box(0, 1, (2,)))


def episode(mask, **keywords):
    row = {"action_mask": np.asarray(mask), "board": np.zeros(2, np.float32)}
    return SingleAgentEpisode(id_="e", observations=[row], **keywords)


def run(piece, *episodes):
    return EnvToModulePipeline(SEEN, Discrete(3), connectors=[piece])(episodes=list(episodes))


def test_no_legal_action_is_named():
    with pytest.raises(ColumnError, match=r"episode 'e_1'(.|\n)*a legal action(.|\n)*\[0, 0, 0\](.|\n)*to pass"):
        run(ActionMask(), episode([0, 1, 0], observation_space=SEEN), episode([0, 0, 0]))


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_episode_that_ended_needs_no_legal_action(end):
    batch = run(ActionMask(), episode([0, 0, 0], **{end: True}), episode([2, 0, 0]))
    assert [items[0].tolist() for items in batch["action_mask"].values()] == [[False] * 3, [True, False, False]]


def piece_of(observations, actions=None, **settings):
    return ActionMask(observations, actions or Discrete(3), **settings)


TWO_BY_TWO = piece_of(Dict(action_mask=MultiBinary(4)), gym.spaces.MultiDiscrete([2, 2]))
INFO = {"source": "infos/legal"}


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: ActionMask(source="action_mask"), ConfigError, "source='obs/action_mask'"),
        (lambda: ActionMask(source="rewards/x"), ConfigError, "'infos/...'"),
        (lambda: ActionMask(**INFO, keep=False), ConfigError, "keep=False"),
        (lambda: piece_of(SEEN, Box(0, 1, (2,))).action_space, SpaceError, "Discrete, MultiDiscrete or MultiBinary"),
        (lambda: piece_of(SEEN, Discrete(4)).observation_space, SpaceError, "each of 4 choices"),
        (lambda: piece_of(SEEN, source="obs/mask").observation_space, SpaceError, "Known: action_mask, board"),
        (lambda: piece_of(Box(0, 1, (2,))).observation_space, SpaceError, "without parts"),
        (
            lambda: piece_of(Dict(a=SEEN), source="obs/a/action_mask", keep=False).observation_space,
            SpaceError,
            "DropColumns",
        ),
        (lambda: run(ActionMask(**INFO), episode([1, 1, 1])), ColumnError, "entry 'legal'"),
        (lambda: run(ActionMask(**INFO), episode([1] * 3, infos=[{"legal": [1]}])), SpaceError, r"shape \(1,\)"),
        (lambda: run(ActionMask(), episode([1, 1])), SpaceError, r"shape \(2,\)"),
        (lambda: TWO_BY_TWO(batch={}, episodes=[episode([1, 1, 0, 0])]), ColumnError, "in every entry"),
    ],
)
def test_what_cannot_be_meant_is_named(make, error, said):
    with pytest.raises(error, match=said):
        make()


def episodes(*names):
    return [SingleAgentEpisode(id_=name, observations=[0.0]) for name in names]


def numbers(piece, *names):
    column = piece(batch={}, episodes=episodes(*names))["noise"]
    return {key[0]: items[0] for key, items in column.items()}


def test_numbers_stay_with_their_episode_whoever_else_is_there():
    piece = EpisodeNoise(shape=[2, 3])
    piece.seed(0)
    first = numbers(piece, "a", "b")
    assert first["a"].shape == (2, 3) and first["a"].dtype == np.float32 and not (first["a"] == first["b"]).any()
    only, later = numbers(piece, "b"), numbers(piece, "c", "a", "b")
    assert (only["b"] == first["b"]).all() and (later["b"] == first["b"]).all() and (later["a"] == first["a"]).all()
    assert not (later["c"] == first["a"]).any()
    drawn = np.concatenate([own.ravel() for own in numbers(piece, *map(str, range(2000))).values()])
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [0, 1], atol=0.03)


def test_only_as_many_are_kept_as_can_be_running():
    piece = EpisodeNoise(shape=[1])
    running = numbers(piece, *map(str, range(50)))
    for i in range(150):
        numbers(piece, f"ended {i}")
        assert (numbers(piece, *map(str, range(50)))["7"] == running["7"]).all()
    assert len(piece.get_state()["known"]) <= 2 * 51 + 64


class Noisy(TorchRLModule):
    """Acts by the numbers alone, and gives them to be recorded."""

    def _forward(self, batch, **kwargs):
        noise = batch["noise"]
        return {"actions": noise[:, 0].clamp(-1, 1), "action_logp": torch.zeros(len(noise)), "drawn": noise[:, 0]}


def noise_config(env):
    made = PPOConfig().environment(env).debugging(seed=0)
    made.env_runners(
        num_envs_per_env_runner=3, env_to_module_connector=lambda env, spaces, device: EpisodeNoise(shape=[1, 1])
    )
    return made.rl_module(rl_module_spec=RLModuleSpec(module_class=Noisy))


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_runs_draw_once_per_episode(mode):
    def short(env_config):
        return gym.wrappers.TimeLimit(gym.make("Pendulum-v1").unwrapped, max_episode_steps=7)

    runner = SingleAgentEnvRunner(config=noise_config(short).env_runners(gym_env_autoreset_mode=mode))
    seen = {}
    for _ in range(4):  # cuts episodes in between
        for episode in runner.sample(num_timesteps=30):
            seen.setdefault(episode.id_, set()).update(episode.get_extra_model_outputs("drawn").ravel().tolist())
    assert len(seen) > 12 and all(len(own) == 1 for own in seen.values())
    assert len(set.union(*seen.values())) == len(seen)
    runner.stop()


@pytest.mark.parametrize("keywords", [{"shape": 3}, {"shape": [0]}, {"shape": [True]}, {"shape": [1], "column": ""}])
def test_noise_that_cannot_be_meant_is_named(keywords):
    with pytest.raises(ConfigError, match=r"shape=\[64, 2\]"):
        EpisodeNoise(**keywords)
