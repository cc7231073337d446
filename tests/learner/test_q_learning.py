"""Deep Q-learning from a list of chunks, as an update rule, against values that are known exactly."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_learners import Threads

from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from epibatch.connectors.learner.learner_connector_pipeline import default_pipeline
from epibatch.core.rl_module import TorchRLModule
from epibatch.episodes import SingleAgentEpisode
from epibatch.learner import Learner, LearnerGroup, LearnerSettings, Losses, UpdateRule, frozen_copy, polyak

NUM_STATES, GAMMA = 5, 0.9
OBS, ACTIONS = gym.spaces.Box(0, 1, (NUM_STATES,), np.float32), gym.spaces.Discrete(2)


def step(state, action):
    """Walk left or right; the step to the right of the last state ends the episode and is worth 1, others cost 0.1."""
    if action == 1 and state == NUM_STATES - 1:
        return state, 1.0, True
    return (state + 1 if action else max(state - 1, 0)), -0.1, False


def exact_values():
    """The fixed point of the Bellman equation, [states, actions]."""
    values = np.zeros((NUM_STATES, 2))
    for _ in range(500):
        outcomes = [[step(state, action) for action in (0, 1)] for state in range(NUM_STATES)]
        values = np.array([[r + GAMMA * (not end) * values[s].max() for s, r, end in row] for row in outcomes])
    return values


def chunks(count):
    """Random walks that are cut off after 6 steps."""
    random, made = np.random.default_rng(0), []
    for _ in range(count):
        states, actions, rewards, end = [int(random.integers(NUM_STATES))], [], [], False
        while len(actions) < 6 and not end:
            actions.append(int(random.integers(2)))
            state, reward, end = step(states[-1], actions[-1])
            states.append(state)
            rewards.append(reward)
        observations = list(np.eye(NUM_STATES, dtype=np.float32)[states])
        flags = {"terminated": end, "truncated": not end}
        columns = {"observations": observations, "actions": actions, "rewards": rewards}
        made.append(SingleAgentEpisode(**columns, **flags, len_lookback_buffer=0))
    return made


class Table(TorchRLModule):
    """A value for each state and action."""

    def setup(self):
        self.values = torch.nn.Linear(NUM_STATES, 2, bias=False)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.values(batch["obs"])}


class DQNRule(UpdateRule):
    """Double Q-learning (van Hasselt et al. 2016) with a target that is copied every ten steps."""

    row_outputs = ("td_error",)

    def make_own(self, module):
        return frozen_copy(module)

    def losses(self, batch, module, own, coefficients):
        with torch.no_grad():
            best = module.values(batch["new_obs"]).argmax(-1, keepdim=True)
            after = own.values(batch["new_obs"]).gather(-1, best)[:, 0]
            goals = batch["rewards"] + GAMMA * ~batch["terminateds"].bool() * after
        chosen = module.values(batch["obs"]).gather(-1, batch["actions"].long()[:, None])[:, 0]
        loss = torch.nn.functional.huber_loss(chosen, goals)
        return Losses({"total": loss}, {"q_mean": chosen.detach().mean()}, {"td_error": (chosen - goals).detach()})

    def after_step(self, module, own, num_steps):
        if num_steps % 10 == 0:
            polyak(own, module, tau=1.0)


def learner(**settings):
    pipeline = default_pipeline(OBS, ACTIONS)
    pipeline.insert_after("AddColumnsFromEpisodesToTrainBatch", AddNextObservationsFromEpisodesToTrainBatch())
    torch.manual_seed(0)
    module = Table(observation_space=OBS, action_space=ACTIONS, model_config={})
    return Learner(module=module, connector=pipeline, settings=LearnerSettings(**settings, seed=1), loss=DQNRule())


def test_q_learning_with_a_target_finds_the_exact_values():
    made = learner(lr=[[0, 0.05], [20_000, 0.001]], minibatch_size=64, num_epochs=60)
    episodes = chunks(60)
    for _ in range(2):
        made.update(episodes=episodes, num_env_steps=10_000)
    found = made.module["default_policy"].values.weight.detach().numpy().T
    np.testing.assert_allclose(found, exact_values(), atol=0.01)
    assert (found.argmax(-1) == 1).all()
    errors = made.row_outputs["default_policy"]["td_error"]
    assert int(errors.isfinite().sum()) == sum(map(len, episodes))  # not of bootstrap rows


def test_learners_in_a_group_keep_the_target_of_one_learner():
    alone, copied = (learner(lr=0.05, num_epochs=7, shuffle=None) for _ in range(2))
    group, episodes = LearnerGroup(copied, num_learners=2, actor_group=Threads), chunks(21)
    for _ in range(3):
        group.update(episodes=episodes, num_env_steps=21)
        alone.update(episodes=episodes, num_env_steps=21)
    left, right = alone.get_state(), group.get_state()
    assert left["num_env_steps"] == right["num_env_steps"] == 63
    assert left["rules"]["default_policy"]["num_steps"] == right["rules"]["default_policy"]["num_steps"] == 21
    for one, both in ((left["module"], right["module"]), (left["rules"], right["rules"])):
        one, both = (state["default_policy"].get("own", state["default_policy"]) for state in (one, both))
        np.testing.assert_allclose(one["values.weight"], both["values.weight"], rtol=1e-5, atol=1e-6)
    group.stop()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_values_of_rows_come_back_in_the_order_of_a_batch(count):
    """TD errors of the first gradient step are the rewards, as values are taken from zero weights."""
    made = learner(lr=0.05, optimizer="sgd", grad_clip=None)
    torch.nn.init.zeros_(made.module["default_policy"].values.weight)
    made.renew_own("default_policy")
    group = LearnerGroup(made, num_learners=count, actor_group=Threads)
    states, actions, loss_mask = np.arange(11) % NUM_STATES, np.arange(11) % 2, np.arange(11) != 4
    rewards = np.arange(11, dtype=np.float32) / 10
    batch = {
        "obs": torch.eye(NUM_STATES)[states],
        "new_obs": torch.eye(NUM_STATES)[states],
        "actions": torch.from_numpy(actions),
        "rewards": torch.from_numpy(rewards),
        "terminateds": torch.ones(11, dtype=torch.bool),
        "loss_mask": torch.from_numpy(loss_mask),
    }
    results = group.update(batch={"default_policy": batch})
    errors = group.row_outputs["default_policy"]["td_error"].numpy()
    np.testing.assert_array_equal(errors, np.where(loss_mask, -rewards, np.nan).astype(np.float32))
    weight = np.zeros((2, NUM_STATES))  # after one step of the Huber loss, whose slope is the error up to 1
    for state, action, reward in zip(states[loss_mask], actions[loss_mask], rewards[loss_mask]):
        weight[action, state] += 0.05 * reward / 10
    np.testing.assert_allclose(made.module["default_policy"].values.weight.detach(), weight, rtol=1e-5)
    assert results["default_policy"]["num_rows"] == 10
    assert results["__all_modules__"]["num_env_steps_trained_lifetime"] == 10
    group.update(episodes=chunks(4), num_env_steps=5)
    assert bool(group.row_outputs) is (count == 0), "processes keep the rows of their pipelines"
    assert made.get_state()["num_env_steps"] == 15
    group.stop()
