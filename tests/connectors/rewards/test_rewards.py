"""Rewards clipped, scaled, summed up, by divergence, and returns so far and still wanted: against loops."""

from __future__ import annotations

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms import Policy
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    ComputeReturnsToGo,
)
from epibatch.connectors.rewards import (
    BinarizeReward,
    KLReward,
    LineariseRewards,
    RewardClipping,
    RewardScaling,
    RewardSign,
    RewardSum,
    TargetReturn,
)
from epibatch.core.errors import ColumnError, ConfigError, LookbackError, PipelineError, StateError, UnknownNameError
from epibatch.core.rl_module import MultiRLModule, default_module_spec
from epibatch.episodes import SingleAgentEpisode, VectorRecorder
from fixture_pieces import acted, chunks_of_rewards, played, trained


def clipped(reward, low=-1.0, high=1.0):
    return low if reward < low else high if reward > high else reward


PIECES = [
    (RewardClipping(), clipped),
    (RewardClipping(low=None, high=0.25), lambda reward: min(reward, 0.25)),
    (RewardClipping(low=0.5, high=None), lambda reward: max(reward, 0.5)),
    (RewardScaling(scale=0.5), lambda reward: reward * 0.5),
    (RewardScaling(scale=-2.0, loc=1.0), lambda reward: reward * -2.0 + 1.0),
    (RewardScaling(scale=4.0, loc=3.0, standard_normal=True), lambda reward: (reward - 3.0) / 4.0),
    (RewardSign(), lambda reward: 0.0 if reward == 0 else math.copysign(1.0, reward)),
    (BinarizeReward(), lambda reward: 0.0 if reward == 0 else 1.0),
]
EACH = pytest.mark.parametrize(("piece", "alone"), PIECES, ids=[repr(piece) for piece, _ in PIECES])
NUMBERS = st.one_of(st.just(0.0), st.floats(-100, 100, width=32))


@EACH
@settings(max_examples=30, deadline=None)
@given(chunks=st.lists(st.lists(NUMBERS, min_size=1, max_size=5), min_size=1, max_size=4), lookback=st.integers(0, 2))
def test_each_reward_by_itself(piece, alone, chunks, lookback):
    episodes = chunks_of_rewards(chunks, lookback)
    expected = [alone(reward) for rewards in chunks for reward in rewards]
    assert trained([piece.clone(), AddColumnsFromEpisodesToTrainBatch()], episodes)["rewards"].tolist() == expected
    assert [one.get_rewards().tolist() for one in episodes] == chunks


@EACH
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_tensors_as_arrays(piece, alone, dtype):
    numbers = np.array([-3, 0, 1, 7], dtype)
    array, tensor = piece.transform(numbers), piece.transform(torch.from_numpy(numbers))
    assert array.tolist() == tensor.tolist() == [alone(one) for one in numbers.tolist()]
    assert numbers.tolist() == [-3, 0, 1, 7]
    assert isinstance(tensor, torch.Tensor) and (array.dtype == dtype or dtype is np.int64)
    if isinstance(piece, RewardScaling):
        assert piece.inverse(array).tolist() == numbers.tolist()


def test_other_columns():
    made = played([0, 1], [2.0], extra_model_outputs={"bonus": [-4.0]})
    found = trained([AddColumnsFromEpisodesToTrainBatch(), RewardSign(columns="bonus")], [made])
    assert (found["bonus"].tolist(), found["rewards"].tolist()) == ([-1.0], [2.0])


VECTOR = st.lists(st.integers(-50, 50), min_size=3, max_size=3)


@settings(max_examples=40, deadline=None)
@given(chunks=st.lists(st.lists(VECTOR, min_size=1, max_size=4), min_size=1, max_size=3), weights=VECTOR)
def test_weighted_sums_of_objectives(chunks, weights):
    episodes = chunks_of_rewards(chunks, lookback=2)
    expected = [sum(w * r for w, r in zip(weights, row)) for rows in chunks for row in rows]
    assert trained([LineariseRewards(weights=weights)], episodes)["rewards"].tolist() == expected
    assert episodes[0].get_rewards().tolist() == chunks[0]


def test_returns_of_weighted_sums():
    chunks = chunks_of_rewards([[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]], [[4.0, 40.0]]], lookback=2)
    batch = trained([LineariseRewards(weights=[1.0, 0.1]), ComputeReturnsToGo(gamma=1.0)], chunks)
    np.testing.assert_allclose(batch["returns_to_go"], [12, 10, 6, 8])


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_sums_of_tensors(kind):
    piece = LineariseRewards(weights=[0.5, 2.0])
    assert piece.transform(torch.tensor([[2, 1], [4, 3]], dtype=kind)).tolist() == [3.0, 8.0]
    assert piece.transform(np.float32([[2, 1]])).dtype == np.float32


# -- returns so far --------------------------------------------------------------------------------


def sums(episodes, *front):
    return trained([*front, RewardSum()], episodes)["episode_return"]


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=5), min_size=1, max_size=4),
    lookback=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_each_chunk_goes_on_from_the_one_before(chunks, lookback, order):
    episodes = chunks_of_rewards(chunks, lookback)
    flat = [reward for rewards in chunks for reward in rewards]
    running = [sum(flat[: t + 1]) for t in range(len(flat))]
    assert sums(episodes).tolist() == running
    places = list(range(len(chunks)))
    order.shuffle(places)
    starts = np.cumsum([0, *map(len, chunks)])
    expected = [running[t] for place in places for t in range(starts[place], starts[place + 1])]
    assert sums([episodes[place] for place in places]).tolist() == expected


def test_rewards_in_the_batch_do_not_count_and_bootstrap_rows_repeat():
    episode = played([0, 1, 2], [1.0, 3.0])
    assert sums([episode], AddOneTsToEpisodesAndTruncate(), RewardScaling(scale=9.0)).tolist() == [1.0, 4.0, 4.0]


@pytest.mark.parametrize(("dtype", "expected"), [(np.float32, np.float32), (np.int64, np.float64)])
def test_types_of_sums(dtype, expected):
    assert sums([played([0, 1, 2], np.array([1, 3], dtype))]).dtype == expected


def test_chunks_whose_start_is_not_there():
    facts = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [1.0, 2.0], "len_lookback_buffer": 1}
    with pytest.raises(LookbackError, match=r"starts at t=7[\s\S]*a lookback of 1 steps[\s\S]*episode.cut\(\)"):
        sums([SingleAgentEpisode(**facts, t_started=7)])
    assert sums([SingleAgentEpisode(**facts, t_started=1)]).tolist() == [3.0]


# -- returns still wanted --------------------------------------------------------------------------


def wanted(episodes, mode="reduce"):
    """What a batch to act on says that each episode has to get yet."""
    pieces = [TargetReturn(target=10.0, mode=mode), AddObservationsFromEpisodesToBatch()]
    return acted(pieces, episodes, gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2))["obs"]["target_return"]


@pytest.mark.parametrize("mode", ["reduce", "constant"])
@pytest.mark.parametrize("lookback", [0, 2])
def test_targets_shrink_by_the_rewards(mode, lookback):
    episode, shown, rewards = SingleAgentEpisode(), [], [0.5, 2.0, -1.0, 0.0, 4.0]
    episode.add_env_reset(np.zeros(1, np.float32))
    for t, reward in enumerate(rewards):
        shown += wanted([episode], mode)[:, 0].tolist()
        if t % 2:
            episode = episode.cut(len_lookback_buffer=lookback)
        episode.add_env_step(np.full(1, t, np.float32), 0, reward)
    assert shown == [10.0 - sum(rewards[:t]) if mode == "reduce" else 10.0 for t in range(5)]


def test_a_chunk_whose_rewards_are_not_known_has_no_target():
    chunk = played(np.zeros((2, 1), np.float32), [1.0], t_started=4)
    with pytest.raises(LookbackError, match="starts at t=4"):
        wanted([chunk])
    assert wanted([chunk], "constant").tolist() == [[10.0]]


def test_acting_from_outside(tmp_path):
    made = PPOConfig().environment("CartPole-v1").debugging(seed=1)
    algo = made.env_runners(env_to_module_connector=lambda env: TargetReturn(target=20.0)).build_algo()
    policy = Policy.from_checkpoint(algo.save_to_path(str(tmp_path / "saved")))
    algo.stop()
    shown, forward, observation = [], policy.module.forward_inference, np.zeros(4, np.float32)

    def noted(batch, **kwargs):
        shown.append(float(torch.as_tensor(batch["obs"]["target_return"]).ravel()[0]))
        return forward(batch, **kwargs)

    policy.module.forward_inference = noted
    _, state = policy.act(observation)
    for reward in (1.0, 0.25):
        _, state = policy.act(observation, state, reward=reward)
    assert shown == [20.0, 19.0, 18.75]
    with pytest.raises(ColumnError, match=r"reward=reward"):
        policy.act(observation, state)


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("piece", "settings", "words"),
    [
        *((RewardClipping, own, r"low=-1.0, high=1.0") for own in
          ({"low": 1.0, "high": -1.0}, {"low": None, "high": None}, {"low": math.nan})),
        *((RewardScaling, own, "a scale other than 0") for own in
          ({"scale": 0.0}, {"scale": math.inf}, {"loc": math.nan})),
        *((LineariseRewards, {"weights": own}, "one per objective") for own in
          ([], "ab", 3.0, [1.0, float("nan")], [[1.0]])),
        (TargetReturn, {"target": float("inf")}, r"target=200.0"),
        (TargetReturn, {"target": 1.0, "mode": "reduced"}, "'reduce' or 'constant'"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant(piece, settings, words):
    with pytest.raises(ConfigError, match=words):
        piece(**settings)


@pytest.mark.parametrize(
    ("piece", "rewards", "words"),
    [
        (LineariseRewards(weights=[1, 2]), [[1, 2, 3]], r"vectors of 2 entries[\s\S]*\(3,\)[\s\S]*a weight for each"),
        (LineariseRewards(weights=[1, 2]), [1.0], "leave the piece out"),
        (RewardSum(), [[1.0, 2.0]], "one number per step"),
    ],
)
def test_rewards_that_do_not_fit_are_named(piece, rewards, words):
    with pytest.raises(ColumnError, match=words):
        trained([piece], chunks_of_rewards([rewards]))


def test_runners_take_one_reward_per_step():
    recorder = VectorRecorder(1, gym.spaces.Discrete(9), gym.spaces.Discrete(2))
    recorder.reset(np.zeros(1, int))
    no = np.zeros(1, bool)
    with pytest.raises(ColumnError, match=r"column 'rewards'"):
        recorder.step(np.zeros(1, int), np.zeros((1, 2)), no, no, np.zeros(1, int))


BOX = gym.spaces.Box(-1, 1, (3,))
CHOICE, TORQUE = gym.spaces.Discrete(4), gym.spaces.Box(-1, 1, (2,))


def module(actions=CHOICE, seed=0, **config):
    torch.manual_seed(seed)
    made = default_module_spec(BOX, actions, {"fcnet_hiddens": [8], **config}).build()
    with torch.no_grad():
        for own in made.parameters():  # away from the small outputs that policies begin with
            own.add_(torch.randn_like(own) * 0.3)
    return made


def run(piece, rl_module, batch):
    """The rewards behind the piece, of a batch by column or by module."""
    one = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[0.0])
    found = piece(rl_module=rl_module, batch=dict(batch), episodes=[one])
    return found["rewards"] if "rewards" in found else {name: own["rewards"] for name, own in found.items()}


def rows(count=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {"obs": torch.randn(count, 3, generator=generator), "rewards": torch.arange(float(count))}


def logits(of, batch):
    with torch.no_grad():
        return of.forward_inference(batch)["action_dist_inputs"].double().numpy()


def categorical(p, q):
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (p, q))
    return (p * np.log(p / q)).sum(-1)


def gaussian(p, q):
    (m, s), (n, t) = np.split(p, 2, -1), np.split(q, 2, -1)
    s, t = np.exp(s), np.exp(t)
    return (np.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5).sum(-1)


@pytest.mark.parametrize(("space", "closed_form"), [(CHOICE, categorical), (TORQUE, gaussian)])
def test_closed_forms(space, closed_form):
    current, reference, batch = module(space), module(space, seed=1), rows()
    expected = closed_form(logits(current, batch), logits(reference, batch))
    found = run(KLReward(coef=0.5, reference=reference), current, batch)
    np.testing.assert_allclose(found.numpy(), np.arange(5) - 0.5 * expected, rtol=1e-4, atol=1e-5)
    assert (expected > 0.01).all()


def test_the_policy_that_acted_counts_where_it_is_recorded():
    current, batch = module(), rows()
    batch["action_dist_inputs"] = torch.randn(5, 4)
    expected = categorical(batch["action_dist_inputs"].double().numpy(), logits(current, batch))
    found = run(KLReward(coef=1.0), current, batch)
    np.testing.assert_allclose(found.numpy(), np.arange(5) - expected, rtol=1e-4, atol=1e-5)


def test_without_a_reference_it_is_the_module_as_it_was_first():
    current, batch, piece = module(), rows(), KLReward(coef=1.0)
    first = copy.deepcopy(current)
    assert run(piece, current, batch).tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0], abs=1e-6)
    with torch.no_grad():
        for own in current.parameters():
            own.mul_(1.5)
    expected = categorical(logits(current, batch), logits(first, batch))
    np.testing.assert_allclose(run(piece, current, batch).numpy(), np.arange(5) - expected, rtol=1e-4, atol=1e-5)
    assert all(own.requires_grad for own in current.parameters())


def test_masked_rows_and_sequences():
    current, reference = module(), module(seed=1)
    flat = rows(6)
    expected = run(KLReward(coef=1.0, reference=reference), current, flat)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    batch = {"obs": flat["obs"].view(2, 3, 3), "rewards": flat["rewards"].view(2, 3), "loss_mask": mask}
    found = run(KLReward(coef=1.0, reference=reference), current, batch)
    assert torch.equal(found[~mask], batch["rewards"][~mask])
    torch.testing.assert_close(found[mask], expected.view(2, 3)[mask])


def test_the_reference_is_saved():
    current, batch, piece = module(), rows(), KLReward(coef=1.0)
    run(piece, current, batch)
    state = copy.deepcopy(piece.get_state())
    with torch.no_grad():
        for own in current.parameters():
            own.mul_(1.5)
    again = KLReward(coef=1.0)
    again.set_state(state)
    assert str(again.get_state()) == str(piece.get_state())
    assert torch.equal(run(again, current, batch), run(piece, current, batch))
    assert piece.merge_states([{}, piece.get_state()]).keys() == {"references"}
    piece.reset_state()
    assert piece.get_state() == {} and torch.allclose(run(piece, current, batch), batch["rewards"], atol=1e-6)


def test_several_modules_each_by_its_own():
    def several(**seeds):
        made = MultiRLModule()
        for name, seed in seeds.items():
            made.add_module(name, module(seed=seed))
        return made

    piece = KLReward(coef=1.0, reference=several(other=1, default_policy=2))
    found = run(piece, several(default_policy=0), {"default_policy": rows()})["default_policy"]
    expected = categorical(logits(module(), rows()), logits(module(seed=2), rows()))
    np.testing.assert_allclose(found.numpy(), np.arange(5) - expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UnknownNameError, match=r"KLReward\.reference"):
        run(KLReward(reference=several(one=1)), module(), rows())


@pytest.mark.parametrize(
    "kwargs", [{"coef": -1.0}, {"coef": float("inf")}, {"reference": torch.nn.Linear(1, 1)}, {"reference": "x"}]
)
def test_arguments_that_cannot_be_meant(kwargs):
    with pytest.raises(ConfigError, match=rf"KLReward\.{next(iter(kwargs))}"):
        KLReward(**kwargs)


def test_mistakes_are_named():
    with pytest.raises(PipelineError, match="NumpyToTensor"):
        PPOConfig().learners(learner_connector=lambda o, a: KLReward()).build_learner_connector(BOX, CHOICE)
    with pytest.raises((ColumnError, RuntimeError)):
        run(KLReward(reference=module(TORQUE)), module(gym.spaces.Discrete(3)), rows())
    for state in ({"x": 1}, 3, {"references": 2}):
        with pytest.raises(StateError, match="pass what get_state gave"):
            KLReward().set_state(state)
