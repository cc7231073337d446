"""Learners on two nodes: what they learn together, and what happens when a node goes away, or one hangs or fails."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_fates import Fate

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.learner import default_pipeline
from epibatch.core.errors import EpibatchWarning
from epibatch.core.rl_module import TorchRLModule, default_module_spec
from epibatch.learner import Learner, LearnerGroup, LearnerSettings, Losses, PPOLoss, RolloutStorage, UpdateRule


def algo_of(folder):
    """PPO on CartPole whose minibatches are whole batches, so that any number of learners makes the same steps."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size=400, minibatch_size=None, num_epochs=3, lr=1e-3)
        .rl_module(model_config={"fcnet_hiddens": [16, 16]})
        .learners(learner_connector=lambda *spaces: Fate(str(folder)))
        .debugging(seed=3)
        .build_algo()
    )


def weights(learner):
    """All weights in one vector."""
    return np.concatenate([value.detach().numpy().ravel() for value in learner.module.state_dict().values()])


def assert_same(state, expected, rtol):
    """Compare the modules and optimisers of two states."""
    for part in ("module", "optimizers"):
        for module_id in expected[part]:
            for name, values in expected[part][module_id].items():
                np.testing.assert_allclose(
                    *(
                        np.concatenate([np.ravel(item) for item in (own.values() if isinstance(own, dict) else [own])])
                        for own in (state[part][module_id][name], values)
                    ),
                    rtol=rtol,
                    atol=rtol,
                    err_msg=f"{part} {module_id} {name}",
                )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fates")


@pytest.fixture(scope="module")
def nodes(cluster):
    """Two nodes with room for one learner each."""
    made = [cluster.add_node(num_cpus=10, object_store_memory=100_000_000) for _ in range(2)]
    yield made
    for node in made:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


@pytest.fixture(scope="module")
def algo(nodes, folder):
    made = algo_of(folder)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def group(algo):
    made = LearnerGroup(algo.learner, num_learners=2, num_cpus_per_learner=9, timeout_s=6.0)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def alone(algo, folder):
    """A learner of this process in the state in which the group begins."""
    made = algo_of(folder)
    made.learner.set_state(algo.learner.get_state())
    yield made.learner
    made.stop()


def test_two_learners_make_the_steps_of_one(algo, group, alone, nodes):
    ray = pytest.importorskip("ray")
    assert not group.is_local and group.num_learners == 2
    for _ in range(3):
        episodes = algo.env_runner.sample(num_timesteps=400)
        results, expected = group.update(episodes=episodes), alone.update(episodes=episodes)
        for name in ("total_loss", "grad_norm", "explained_variance", "num_rows", "num_minibatches"):
            assert results["default_policy"][name] == pytest.approx(expected["default_policy"][name], rel=1e-4)
        assert_same(algo.learner.get_state(), alone.get_state(), rtol=1e-5)
    first, second = group.foreach_learner(weights)
    assert (first == second).all() and (first == weights(algo.learner)).all()
    places = group.foreach_learner(lambda learner: ray.get_runtime_context().get_node_id())
    assert sorted(places) == sorted(node.node_id for node in nodes)


def updated_again(algo, group, alone):
    """Make an update in which a learner is lost; it is made again with all learners, and made once."""
    report = group.fault_report()
    episodes = algo.env_runner.sample(num_timesteps=400)
    with pytest.warns(EpibatchWarning, match=r"(?s)LearnerGroup, restart.*learner [12]"):
        group.update(episodes=episodes)
    alone.update(episodes=episodes)
    assert_same(algo.learner.get_state(), alone.get_state(), rtol=1e-5)
    assert group.fault_report() == {**report, "num_learner_restarts": report["num_learner_restarts"] + 1}


def test_the_update_is_made_again_after_a_node_went_away(algo, group, alone, folder, cluster, nodes):
    (folder / "waits").touch()
    nodes.append(cluster.add_node(num_cpus=10, object_store_memory=100_000_000))

    def remove():
        time.sleep(0.5)
        cluster.remove_node(nodes[0])
        (folder / "waits").unlink()

    with ThreadPoolExecutor() as pool:
        removed = pool.submit(remove)
        updated_again(algo, group, alone)
        removed.result()


def test_the_update_is_made_again_after_a_learner_hung(algo, group, alone, folder):
    (folder / "hangs").touch()
    updated_again(algo, group, alone)
    assert not (folder / "hangs").exists()


def test_an_error_of_one_learner_is_raised_here_once_and_all_go_on(algo, group, folder):
    report = group.fault_report()
    episodes = algo.env_runner.sample(num_timesteps=400)
    (folder / "raises").touch()
    with pytest.raises(ZeroDivisionError, match="a mistake of the user") as raised:
        group.update(episodes=episodes)
    assert str(raised.value.__notes__).count("Traceback") == 1
    group.update(episodes=episodes)
    first, second = group.foreach_learner(weights)
    assert (first == second).all() and group.fault_report() == report


def test_a_state_goes_on_with_another_number_of_learners(algo, group):
    episodes = algo.env_runner.sample(num_timesteps=400)
    before = group.get_state()
    group.update(episodes=episodes)
    after = group.get_state()
    group.set_state(before)
    group.update(episodes=episodes)
    np.testing.assert_equal(group.get_state()["module"], after["module"])
    group.set_state(before)
    group.stop()
    one = LearnerGroup(algo.learner, num_learners=1)
    one.update(episodes=episodes)
    assert_same(one.get_state(), after, rtol=1e-5)
    one.stop()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("count", [0, 2])
def test_a_batch_is_shared_by_processes_and_values_of_its_rows_come_back_in_order(cluster, count):
    """A value per row, pulled to a column; the error before the first step is known."""

    class Constant(TorchRLModule):
        def setup(self):
            self.at = torch.nn.Parameter(torch.zeros(()))

        def _forward(self, batch, **kwargs):
            return {"at": self.at}

    class Squares(UpdateRule):
        row_outputs = ("error",)

        def losses(self, batch, module, own, coefficients):
            errors = batch["goal"] - module.at
            return Losses({"total": errors.square().mean()}, rows={"error": errors.detach()})

    settings = LearnerSettings(lr=0.5, optimizer="sgd", minibatch_size=None, num_epochs=1)
    learner = Learner(module=Constant(), connector=None, settings=settings, loss=Squares())
    group = LearnerGroup(learner, num_learners=count, num_cpus_per_learner=0)
    for goal in (torch.arange(9.0), torch.arange(4.0) - 2):
        before = float(learner.module["default_policy"].at.detach())
        group.update(batch={"default_policy": {"goal": goal}})
        torch.testing.assert_close(group.row_outputs["default_policy"]["error"], goal - before)
        assert float(learner.module["default_policy"].at.detach()) == pytest.approx(float(goal.mean()))
    assert learner.get_state()["num_env_steps"] == 13
    group.stop()


def test_processes_learn_from_a_storage_as_from_its_episodes(cluster):
    spaces = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    storage, made = RolloutStorage(6, 4), []
    for _ in range(6):
        step = {"obs": torch.rand(4, 3), "actions": torch.randint(2, (4,)), "rewards": torch.rand(4)}
        step |= {"truncateds": torch.rand(4) < 0.3, "action_logp": torch.full((4,), -0.7)}
        storage.add_step(step | {"action_dist_inputs": torch.zeros(4, 2)})
    storage.finish(torch.rand(4, 3))
    for count, episodes in ((0, storage.episodes()), (2, storage)):
        torch.manual_seed(0)
        learner = Learner(
            module=default_module_spec(*spaces).build(),
            connector=default_pipeline(*spaces),
            settings=LearnerSettings(minibatch_size=None, num_epochs=1),
            loss=PPOLoss(),
            check_first_update="off",
        )
        group = LearnerGroup(learner, num_learners=count, num_cpus_per_learner=0)
        group.update(episodes=episodes)
        made.append(weights(learner))
        group.stop()
    np.testing.assert_allclose(*made, atol=1e-5)
