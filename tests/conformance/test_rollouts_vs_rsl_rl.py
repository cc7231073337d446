"""RolloutStorage beside rsl_rl's: equal minibatches, returns and trajectories, and the differences that are listed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage as TheirStorage
from tensordict import TensorDict

from epibatch.core.errors import RolloutOverflowError
from epibatch.learner import RolloutStorage

T, N, ACTIONS, LAYERS, STATE = 6, 10, 3, 2, 4
GAMMA, LAMBDA = 0.97, 0.9
COLUMNS = {
    "actions": "actions",
    "vf_preds": "values",
    "advantages": "advantages",
    "value_targets": "returns",
    "action_logp": "old_actions_log_prob",
}


def rollout(seed: int = 0, *, ends: float = 0.15, time_outs: float = 0.0) -> list[dict]:
    """Steps of our form."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(N, *shape, generator=generator)

    steps = []
    for _ in range(T):
        terminateds, truncateds = torch.rand(2, N, generator=generator) < torch.tensor([[ends], [time_outs]])
        steps.append(
            {
                "obs": {"policy": drawn(5), "critic": drawn(2)},
                "actions": drawn(ACTIONS),
                "rewards": drawn(),
                "terminateds": terminateds,
                "truncateds": truncateds & ~terminateds,
                "vf_preds": drawn(),
                "action_logp": drawn(),
                "action_dist_inputs": drawn(2 * ACTIONS),
                "state_in": {"h": drawn(LAYERS, STATE)},
            }
        )
    return steps


def ours(steps: list[dict]) -> RolloutStorage:
    storage = RolloutStorage(len(steps), N)
    for step in steps:
        storage.add_step(step)
    return storage


def observations(step: dict) -> TensorDict:
    return TensorDict(dict(step["obs"]), [N])


def algorithm(steps: list[dict]) -> tuple[PPO, TensorDict, torch.Tensor]:
    """Their PPO after the same steps, time-outs included; observations after the last step, and their values."""
    torch.manual_seed(0)
    first = observations(steps[0])
    groups = {"actor": ["policy"], "critic": ["policy", "critic"]}
    actor = MLPModel(
        first,
        groups,
        "actor",
        ACTIONS,
        [8],
        distribution_cfg={"class_name": "rsl_rl.modules.distribution:GaussianDistribution"},
    )
    critic = MLPModel(first, groups, "critic", 1, [8])
    storage = TheirStorage("rl", N, len(steps), first, [ACTIONS])
    ppo = PPO(actor, critic, storage, gamma=GAMMA, lam=LAMBDA)
    for step in steps:
        transition = ppo.transition
        transition.observations, transition.actions = observations(step), step["actions"]
        transition.values, transition.actions_log_prob = step["vf_preds"][:, None], step["action_logp"]
        transition.distribution_params = tuple(step["action_dist_inputs"].chunk(2, -1))
        transition.hidden_states = (step["state_in"]["h"].transpose(0, 1), None)
        dones = step["terminateds"] | step["truncateds"]
        ppo.process_env_step(observations(step), step["rewards"], dones, {"time_outs": step["truncateds"].float()})
    last_obs = observations(rollout(99)[0])
    return ppo, last_obs, critic(last_obs).detach()[:, 0]


def both(steps: list[dict]) -> tuple[RolloutStorage, TheirStorage]:
    """Both storages, with returns."""
    ppo, last_obs, last_values = algorithm(steps)
    ppo.compute_returns(last_obs)
    storage = ours(steps)
    storage.compute_returns(last_values, gamma=GAMMA, lambda_=LAMBDA)
    return storage, ppo.storage


def close(left: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(left.numpy(), right.numpy(), atol=tolerance, rtol=0)


# ------------------------------------------------------------------------------------------------ returns


@pytest.mark.parametrize("seed", range(5))
def test_returns_and_advantages(seed):
    storage, theirs = both(rollout(seed))
    close(storage["value_targets"], theirs.returns[..., 0])
    factor = ((T * N - 1) / (T * N)) ** 0.5  # their deviation is that of a sample
    close(storage["advantages"] * factor, theirs.advantages[..., 0])


def test_deviations_that_scale_advantages():
    storage, theirs = both(rollout())
    assert float(storage["advantages"].std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    assert float(theirs.advantages.std(correction=1)) == pytest.approx(1.0, abs=1e-5)


def slow_targets(steps: list[dict], last_values: torch.Tensor, after_time_outs: str) -> torch.Tensor:
    """Return value targets, one environment after the other; time-outs are followed by the values of a column."""
    targets = torch.zeros(T, N)
    for n in range(N):
        following, advantage = float(last_values[n]), 0.0
        for t in reversed(range(T)):
            value, step = float(steps[t]["vf_preds"][n]), steps[t]
            if step["terminateds"][n] or step["truncateds"][n]:
                following, advantage = float(step[after_time_outs][n]) * bool(step["truncateds"][n]), 0.0
            advantage = float(step["rewards"][n]) + GAMMA * following - value + GAMMA * LAMBDA * advantage
            targets[t, n] = advantage + value
            following = value
    return targets


def with_terminal_values(steps: list[dict]) -> list[dict]:
    generator = torch.Generator().manual_seed(7)
    return [{**step, "values_bootstrapped": torch.randn(N, generator=generator)} for step in steps]


def test_the_value_after_a_time_out():
    """Theirs is that of the observation before the action; ours that of the terminal observation, if it is known."""
    steps = with_terminal_values(rollout(3, time_outs=0.2))
    assert sum(int(step["truncateds"].sum()) for step in steps) > 5
    storage, theirs = both(steps)
    _, _, last_values = algorithm(steps)
    close(theirs.returns[..., 0], slow_targets(steps, last_values, "vf_preds"))
    close(storage["value_targets"], slow_targets(steps, last_values, "values_bootstrapped"))
    for step in steps:
        del step["values_bootstrapped"]
    with pytest.warns(UserWarning, match="values_bootstrapped"):
        storage, theirs = both(steps)
    close(storage["value_targets"], theirs.returns[..., 0])


def test_a_step_that_is_terminated_and_timed_out_is_terminated():
    steps = with_terminal_values(rollout(ends=0.0))
    steps[2]["terminateds"][4] = steps[2]["truncateds"][4] = True
    storage, theirs = both(steps)
    reward, value = steps[2]["rewards"][4], steps[2]["vf_preds"][4]
    close(storage["value_targets"][2, 4], reward)
    close(theirs.returns[2, 4, 0], reward + GAMMA * value)


# -------------------------------------------------------------------------------------------- minibatches


@pytest.mark.parametrize("number", [1, 3, 4, 6])
def test_minibatches_of_one_permutation(number):
    """Rows are steps first, environments second, in both; column by column."""
    storage, theirs = both(rollout())
    torch.manual_seed(5)
    expected = list(theirs.mini_batch_generator(number, 2))
    generator = torch.Generator().manual_seed(5)
    found = list(storage.minibatches(number, epochs=2, remainder="drop", generator=generator))
    assert len(found) == len(expected) == 2 * number
    factor = ((T * N - 1) / (T * N)) ** 0.5
    for own, other in zip(found, expected):
        for name, theirs_name in COLUMNS.items():
            column = own[name] * factor if name == "advantages" else own[name]
            right = getattr(other, theirs_name)
            close(column, right.reshape(column.shape), 1e-5 if name in ("advantages", "value_targets") else 0.0)
        close(own["action_dist_inputs"], torch.cat(other.old_distribution_params, -1), 0.0)
        assert own["obs"].keys() == set(other.observations.keys())
        for group in own["obs"]:
            close(own["obs"][group], other.observations[group], 0.0)


def test_rows_that_are_left_out():
    """60 rows in 7 minibatches of 8: they leave out the last four rows always, ours are drawn."""
    steps = rollout()
    for t, n in itertools.product(range(T), range(N)):
        steps[t]["action_logp"][n] = t * N + n
    storage, theirs = both(steps)
    expected = [batch.old_actions_log_prob.flatten() for batch in theirs.mini_batch_generator(7, 1)]
    assert sorted(torch.cat(expected).tolist()) == list(range(56))
    left_out = set()
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        parts = list(storage.minibatches(7, remainder="drop", generator=generator))
        rows = torch.cat([part["action_logp"] for part in parts]).tolist()
        assert [len(part["action_logp"]) for part in parts] == [8] * 7 and len(set(rows)) == 56
        left_out |= set(range(60)) - set(rows)
    assert len(left_out) > 50
    kept = [part["action_logp"] for part in storage.minibatches(7)]
    assert sorted(torch.cat(kept).tolist()) == list(range(60))


def test_epochs():
    """They go through 8 epochs unless told otherwise, in one order; ours through 1, and in one order or several."""
    storage, theirs = both(rollout())
    assert len(list(theirs.mini_batch_generator(4))) == 32 and len(list(storage.minibatches(4))) == 4
    epochs = [batch.actions for batch in theirs.mini_batch_generator(1, 2)]
    assert torch.equal(*epochs)
    once, often = (
        [batch["actions"] for batch in storage.minibatches(1, epochs=2, shuffle=shuffle)]
        for shuffle in ("once", "epoch")
    )
    assert torch.equal(*once) and not torch.equal(*often)


def test_a_rollout_that_is_not_full():
    """They draw from all rows, written or not."""
    steps = rollout()
    storage, theirs = RolloutStorage(2 * T, N), TheirStorage("rl", N, 2 * T, observations(steps[0]), [ACTIONS])
    for step in steps:
        storage.add_step(step)
        own = TheirStorage.Transition()
        own.observations, own.actions, own.rewards = observations(step), step["actions"], step["rewards"]
        own.dones, own.values = step["terminateds"], step["vf_preds"][:, None]
        own.actions_log_prob, own.distribution_params = step["action_logp"], (step["actions"],)
        theirs.add_transition(own)
    storage.compute_returns(torch.zeros(N))
    assert sum(len(part["actions"]) for part in storage.minibatches(4)) == T * N
    drawn = torch.cat([batch.actions for batch in theirs.mini_batch_generator(4, 1)])
    assert len(drawn) == 2 * T * N and int((drawn == 0).all(-1).sum()) == T * N


def test_one_step_more_than_there_is_room_for():
    storage, theirs = both(rollout())
    with pytest.raises(OverflowError, match="call clear"):
        theirs.add_transition(TheirStorage.Transition())
    with pytest.raises(RolloutOverflowError, match=r"call clear\(\)") as error:
        storage.add_step(rollout()[0])
    assert isinstance(error.value, OverflowError)


# ----------------------------------------------------------------------------------- recurrent, distillation


@pytest.mark.parametrize("ends", [0.0, 0.15, 0.6])
def test_trajectories_masks_and_states(ends):
    """Trajectories of the rollout in the same order, padded to its length."""
    storage, theirs = both(rollout(4, ends=ends))
    (expected,) = theirs.recurrent_mini_batch_generator(1, 1)
    sequences = storage.sequences(max_seq_len=T)
    for group, column in sequences["obs"].items():
        close(column.transpose(0, 1), expected.observations[group], 0.0)
    assert torch.equal(sequences["loss_mask"].T, expected.masks)
    close(sequences["state_in"]["h"].transpose(0, 1), expected.hidden_states[0], 0.0)


def test_trajectories_of_minibatches_of_environments():
    """Their minibatches are of environments in their order; ours of sequences, drawn in any order."""
    storage, theirs = both(rollout(4))
    sequences = storage.sequences(max_seq_len=T)
    start = 0
    for batch in theirs.recurrent_mini_batch_generator(2, 1):
        count = batch.masks.shape[1]
        own = slice(start, start + count)
        start += count
        assert torch.equal(sequences["loss_mask"][own].T, batch.masks)
        close(sequences["obs"]["policy"][own].transpose(0, 1), batch.observations["policy"], 0.0)
        close(sequences["state_in"]["h"][own].transpose(0, 1), batch.hidden_states[0], 0.0)
    assert start == len(sequences["seq_lens"])
    drawn = storage.minibatches(2, unit="sequences", max_seq_len=T, generator=torch.Generator().manual_seed(0))
    found = torch.cat([batch["obs"]["policy"] for batch in drawn])
    assert sorted(found.flatten(1).tolist()) == sorted(sequences["obs"]["policy"].flatten(1).tolist())
    assert not torch.equal(found, sequences["obs"]["policy"])


def test_one_layout_for_all_columns():
    """They pad observations alone: [time, trajectories], beside actions [time, environments]."""
    storage, theirs = both(rollout(4, ends=0.3))
    (batch,) = theirs.recurrent_mini_batch_generator(1, 1)
    assert batch.observations["policy"].shape[1] > N == batch.actions.shape[1]
    (own,) = storage.minibatches(1, unit="sequences", time_major=True)
    assert own["obs"]["policy"].shape[:2] == own["actions"].shape[:2] == own["advantages"].shape


@pytest.mark.parametrize("number", [1, 2, 5])
def test_whole_environments(number):
    storage, theirs = both(rollout())
    expected = list(theirs.recurrent_mini_batch_generator(number, 2))
    found = list(storage.minibatches(number, epochs=2, unit="environments", shuffle=None, time_major=True))
    assert len(found) == len(expected)
    for own, other in zip(found, expected):
        close(own["actions"], other.actions, 0.0)
        close(own["value_targets"], other.returns[..., 0])
        close(own["vf_preds"], other.values[..., 0], 0.0)


def test_distillation():
    steps = [{**step, "teacher_actions": -step["actions"]} for step in rollout()]
    storage, theirs = ours(steps), TheirStorage("distillation", N, T, observations(steps[0]), [ACTIONS])
    for step in steps:
        transition = TheirStorage.Transition()
        transition.observations, transition.actions = observations(step), step["actions"]
        transition.rewards, transition.dones = step["rewards"], step["terminateds"]
        transition.privileged_actions = step["teacher_actions"]
        theirs.add_transition(transition)
    for own, other in zip(storage.steps(), theirs.generator(), strict=True):
        close(own["teacher_actions"], other.privileged_actions, 0.0)
        close(own["obs"]["policy"], other.observations["policy"], 0.0)
        assert torch.equal(own["terminateds"], other.dones[:, 0].bool())
