"""Groups of learners: shares, failures, and what the learner here and the others know of each other."""

from __future__ import annotations

import threading
import warnings
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixture_cases import slow_but
from fixture_learners import Died, Hangs, Point, Rewards, Threads, episode_of, point_learner
from hypothesis import given
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchWarning, EpisodeError, WorkerLostError
from epibatch.core.metrics import MetricsLogger
from epibatch.learner import LearnerGroup, even_shares

pytest.importorskip("ray", reason="what is sent to other processes is pickled as Ray does")


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch):
    Rewards.events.clear()
    Rewards.seen.clear()
    # Threads that record warnings would change those of each other; processes do not.
    quiet = SimpleNamespace(catch_warnings=lambda record: nullcontext([]), simplefilter=lambda action: None)
    monkeypatch.setattr("epibatch.learner.together.hosted_learner.warnings", quiet)


def group_of(learner, count=2, **settings):
    return LearnerGroup(learner, num_learners=count, actor_group=Threads, **settings)


EPISODES = [episode_of("a", [1, 1, 1]), episode_of("b", [2, 2]), episode_of("c", [3]), episode_of("d", [4, 4])]


# ------------------------------------------------------------------------------------------------ shares


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(1, 9))
def test_shares_have_every_chunk_once_and_differ_by_one_chunk_at_most(steps, count):
    shares = even_shares(steps, count)
    assert len(shares) == count
    assert sorted(chunk for share in shares for chunk in share.tolist()) == list(range(len(steps)))
    assert all((np.diff(share) > 0).all() for share in shares)
    sums = [sum(steps[chunk] for chunk in share) for share in shares]
    assert max(sums) - min(sums) <= max(steps, default=0)
    assert [share.tolist() for share in even_shares(steps, count)] == [share.tolist() for share in shares]


def test_shares_of_fewer_chunks_than_learners_are_empty_for_some():
    assert [share.tolist() for share in even_shares([7], 3)] == [[0], [], []]


# ------------------------------------------------------------------------------------------------ updates


def test_a_group_without_processes_is_its_learner():
    learner = point_learner()
    group = LearnerGroup(learner)
    results = group.update(episodes=EPISODES)
    assert group.is_local and group.learner is learner and group.fault_report() == {}
    assert results["__all_modules__"]["num_updates"] == learner.get_state()["num_updates"] == 1
    assert group.foreach_learner(lambda own: own is learner) == [True]


def test_one_process_learns_what_the_learner_would_have_learned():
    alone, learner = point_learner(), point_learner()
    group = group_of(learner, count=1)
    for _ in range(3):
        results = group.update(episodes=EPISODES)
        expected = alone.update(episodes=EPISODES)
        assert results["main"] == expected["main"]
        np.testing.assert_equal(learner.get_state(), alone.get_state())
    assert not group.is_local and group.fault_report() == {"num_learner_restarts": 0, "num_healthy_learners": 1}
    group.stop()


def test_every_episode_is_learned_from_once_and_shares_are_even():
    group = group_of(point_learner(), count=2)
    group.update(episodes=EPISODES)
    assert sorted(map(sorted, Rewards.seen)) == [["a", "c"], ["b", "d"]]
    group.stop()


def test_no_episodes_are_an_error_before_anything_is_sent():
    group = group_of(point_learner())
    with pytest.raises(EpisodeError, match="at least one episode"):
        group.update(episodes=[])
    group.stop()


def test_what_pieces_log_is_added_up_here():
    group, metrics = group_of(point_learner()), MetricsLogger(times_pieces=False)
    group.update(episodes=EPISODES, metrics=metrics)
    assert metrics.reduce() == {"steps_seen": 8}
    group.stop()


def test_what_pieces_warn_of_is_warned_of_here(monkeypatch):
    monkeypatch.setattr("epibatch.learner.together.hosted_learner.warnings", warnings)
    group = group_of(point_learner(), count=1)
    Rewards.events["b", 1] = EpibatchWarning("look at b")
    with pytest.warns(EpibatchWarning, match="look at b"):
        group.update(episodes=EPISODES)
    group.stop()


# ------------------------------------------------------------------------------------------------ failures


def test_after_a_death_all_start_again_and_nothing_is_learned_twice():
    calm, learner = point_learner(), point_learner()
    group, undisturbed = group_of(learner), group_of(calm)
    for update in (1, 2, 3):
        if update == 2:
            Rewards.events["d", 2] = Died()
            with pytest.warns(EpibatchWarning, match=r"(?s)restart 1 of.*learner 2 died"):
                group.update(episodes=EPISODES)
        else:
            group.update(episodes=EPISODES)
        undisturbed.update(episodes=EPISODES)
        np.testing.assert_equal(learner.get_state(), calm.get_state())
    assert group.fault_report() == {"num_learner_restarts": 1, "num_healthy_learners": 2}
    group.stop()
    undisturbed.stop()


@pytest.mark.parametrize("settings", [{"restart_failed_learners": False}, {"max_num_learner_restarts": 0}])
def test_a_death_without_restarts_is_an_error_that_names_the_settings(settings):
    learner = point_learner()
    group = group_of(learner, **settings)
    group.update(episodes=EPISODES)
    before = learner.get_state()
    Rewards.events["a", 2] = Died()
    for _ in range(2):  # the second time nothing is there to learn
        with pytest.raises(WorkerLostError, match=r"(?s)restart_failed_learners, max_num_learner_restarts.*learner"):
            group.update(episodes=EPISODES)
    np.testing.assert_equal(learner.get_state(), before)
    assert group.fault_report()["num_healthy_learners"] == 0


def test_the_budget_counts_deaths_of_all_learners_together():
    group = group_of(point_learner(), max_num_learner_restarts=2)
    for call, place in ((1, "a"), (2, "b")):
        Rewards.events[place, call] = Died()
        with pytest.warns(EpibatchWarning, match=f"restart {call} of at most 2"):
            group.update(episodes=EPISODES)
    Rewards.events["a", 3] = Died()
    with pytest.raises(WorkerLostError, match="at most 2 times"):
        group.update(episodes=EPISODES)


@pytest.mark.parametrize("place", ["a", "b"])
def test_an_error_of_a_piece_is_raised_as_it_is_and_the_group_goes_on(place):
    group = group_of(point_learner())
    group.update(episodes=EPISODES)
    Rewards.events[place, 2] = ZeroDivisionError("a mistake of the user")
    with pytest.raises(ZeroDivisionError, match="a mistake of the user"):
        group.update(episodes=EPISODES)
    assert group.update(episodes=EPISODES)["main"]["num_minibatches"] == 1
    assert group.fault_report() == {"num_learner_restarts": 0, "num_healthy_learners": 2}
    group.stop()


def test_after_an_error_learners_whose_state_does_not_come_are_started_again(monkeypatch):
    group, limits = group_of(point_learner(), timeout_s=9.0), []
    Rewards.events["a", 1] = ZeroDivisionError("a mistake of the user")
    monkeypatch.setattr(Threads, "call", lambda self, method, indexes, timeout=None: limits.append(timeout) or {})
    with pytest.raises(ZeroDivisionError):
        group.update(episodes=EPISODES)
    assert limits == [9.0] and group.fault_report()["num_learner_restarts"] == 1
    group.update(episodes=EPISODES)
    group.stop()


class Noisy(Point):
    """A module that draws from torch's global generator, as dropout does."""

    def _forward_train(self, batch, **kwargs):
        return {"at": self.at.expand(len(batch["x"])) + torch.rand(1, dtype=torch.float64)}


def noisy_learner():
    learner = point_learner()
    learner.add_module("noisy", Noisy(model_config={"at": 0.0}))
    return learner


@pytest.mark.parametrize("restored", [True, False])
def test_learners_go_on_with_the_random_numbers_after_the_last_finished_update(restored):
    learner = noisy_learner()
    group = group_of(learner, count=1)
    group.update(episodes=EPISODES)
    state = group.get_state()
    group.update(episodes=EPISODES)
    expected = learner.get_state()
    torch.manual_seed(99)
    if restored:
        learner = noisy_learner()
        group = group_of(learner, count=1)
    group.set_state(state)
    if not restored:
        Rewards.events["d", 2] = Died()
    with nullcontext() if restored else pytest.warns(EpibatchWarning, match="restart 1 of"):
        group.update(episodes=EPISODES)
    np.testing.assert_equal(learner.get_state(), expected)
    group.stop()


def test_after_an_interrupt_the_update_counts_as_not_made(monkeypatch):
    calm, learner = point_learner(), point_learner()
    group, undisturbed = group_of(learner), group_of(calm)
    for own in (group, undisturbed):
        own.update(episodes=EPISODES)
    before = learner.get_state()
    with monkeypatch.context() as patch:
        patch.setattr(Threads, "wait", Threads.interrupted)
        with pytest.raises(KeyboardInterrupt):
            group.update(episodes=EPISODES)
    np.testing.assert_equal(learner.get_state(), before)
    for own in (group, undisturbed):
        own.update(episodes=EPISODES)
    np.testing.assert_equal(learner.get_state(), calm.get_state())
    assert group.fault_report()["num_learner_restarts"] == 0
    group.stop()
    undisturbed.stop()


@pytest.mark.parametrize(("count", "hanging"), slow_but([(2, "d")], [(2, "d"), (2, "ad"), (1, "a")]))
def test_learners_that_do_not_answer_are_started_again(count, hanging):
    calm, learner = point_learner(), point_learner()
    group, undisturbed = group_of(learner, count, timeout_s=1.0), group_of(calm, count)
    for place in hanging:
        Rewards.events[place, 1] = Hangs(seconds=4.0)
    with pytest.warns(EpibatchWarning, match=r"(?s)restart 1 of.*(within 1 s|waited 1.0 s|learner .*: none)"):
        group.update(episodes=EPISODES)
    undisturbed.update(episodes=EPISODES)
    np.testing.assert_equal(learner.get_state(), calm.get_state())
    assert group.fault_report()["num_learner_restarts"] == 1
    group.stop()
    undisturbed.stop()


def test_a_call_that_was_interrupted_and_hangs_is_not_waited_for_without_end(monkeypatch):
    group = group_of(point_learner(), count=1, timeout_s=1.0)
    Rewards.events["a", 1] = Hangs(seconds=4.0)
    with monkeypatch.context() as patch:
        patch.setattr(Threads, "wait", Threads.interrupted)
        with pytest.raises(KeyboardInterrupt):
            group.update(episodes=EPISODES)
    with pytest.warns(EpibatchWarning, match=r"(?s)restart 1 of.*learners: none"):
        group.update(episodes=EPISODES)
    group.stop()


# ------------------------------------------------------------------------------------------------ changes here


def copied(module):
    with torch.no_grad():
        module.at.copy_(torch.tensor([10.0]))


WAYS = {
    "state": lambda module: module.set_state({"at": np.array([10.0])}),
    "copy": copied,
    "data": lambda module: module.at.data.fill_(10.0),
    "replaced": lambda module: setattr(module, "at", torch.nn.Parameter(torch.tensor([10.0], dtype=torch.float64))),
}


@pytest.mark.parametrize("way", WAYS)
def test_weights_that_are_set_here_are_learned_on_with(way):
    learner = point_learner()
    group = group_of(learner, count=1)
    group.update(episodes=[episode_of("a", [0.0])])
    WAYS[way](learner.module["main"])
    group.update(episodes=[episode_of("b", [0.0])])
    assert learner.module["main"].at.item() == pytest.approx(10.0 - 0.1 * 2 * 10.0)
    group.stop()


def test_a_piece_that_is_changed_here_is_changed_there():
    learner = point_learner()
    group = group_of(learner, count=1)
    group.update(episodes=[episode_of("a", [0.0])])
    learner.connector.scale = 3.0
    group.update(episodes=[episode_of("b", [1.0])])
    assert learner.module["main"].at.item() == pytest.approx(0.1 * 2 * 3.0)
    group.stop()


def test_a_change_that_cannot_be_sent_is_named():
    learner = point_learner()
    group = group_of(learner, count=1)
    group.update(episodes=EPISODES)
    learner.connector.lock = threading.Lock()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"lock at learner\.connector > lock"):
            group.update(episodes=EPISODES)
    del learner.connector.lock
    group.update(episodes=EPISODES)
    group.stop()


class Counting(Point):
    """A module with a state of its own beside its weights."""

    updates = 0

    def get_extra_state(self):
        return torch.tensor(self.updates)

    def set_extra_state(self, state):
        self.updates = int(state)


def test_a_state_of_a_module_beside_its_weights_is_sent():
    learner = point_learner()
    learner.add_module("counts", Counting(model_config={"at": 0.0}))
    group = group_of(learner)
    for count in (0, 1):
        learner.module["counts"].updates = count
        group.update(episodes=EPISODES)
        assert group.foreach_learner(lambda own: own.module["counts"].updates) == [count, count]
    group.stop()


def test_a_state_beside_the_weights_that_is_no_tensor_is_a_named_error():
    learner = point_learner()
    learner.add_module("counts", Counting(model_config={"at": 0.0}))
    learner.module["counts"].get_extra_state = lambda: None  # an object that many others refer to
    group = group_of(learner)
    with pytest.raises(CheckpointError, match=r"Counting\.set_state"):
        group.update(episodes=EPISODES)
    group.stop()


def test_modules_that_are_added_removed_and_not_trained():
    learner = point_learner(left=0.0, right=0.0)
    group = group_of(learner, count=1)
    group.update(episodes=[episode_of("a", [1.0])])
    learner.policies_to_train = ["right"]
    group.update(episodes=[episode_of("a", [1.0])])
    places = {key: module.at.item() for key, module in learner.module.items()}
    assert places == pytest.approx({"left": 0.2, "right": 0.36})
    learner.remove_module("right", new_should_module_be_updated=["left"])
    results = group.update(episodes=[episode_of("a", [1.0])])
    assert set(results) == {"left", "__all_modules__"}
    assert learner.module["left"].at.item() == pytest.approx(0.36)
    group.stop()


def test_parts_are_sent_once():
    learner = point_learner()
    group = group_of(learner, count=1)
    builds = []
    for _ in range(3):
        group.update(episodes=EPISODES)
        builds.append(group.foreach_learner(id))
    assert builds[0] == builds[1] == builds[2]
    group.stop()


def test_parts_are_sent_once_also_if_seconds_of_pieces_are_measured(monkeypatch):
    monkeypatch.setattr("epibatch.algorithms.algorithm.LearnerGroup", partial(LearnerGroup, actor_group=Threads))
    config = PPOConfig().environment("CartPole-v1").learners(num_learners=1).debugging(time_pieces=True)
    algorithm = config.training(train_batch_size=32, minibatch_size=32, num_epochs=1).build_algo()
    builds = []
    for _ in range(3):
        algorithm.train()
        builds.append(algorithm.learner_group.foreach_learner(id))
    algorithm.stop()
    assert builds[0] == builds[1] == builds[2]


def test_a_function_may_change_the_state_of_all_learners():
    learner = point_learner()
    group = group_of(learner)

    def move(own):
        own.module["main"].set_state({"at": np.array([5.0])})
        return own.module["main"].at.item()

    assert group.foreach_learner(move) == [5.0, 5.0]
    assert learner.module["main"].at.item() == 5.0
    group.stop()


def test_a_state_goes_on_with_another_number_of_learners():
    first, learner = point_learner(), point_learner()
    group = group_of(first, count=2)
    group.update(episodes=EPISODES)
    state = group.get_state()
    group.stop()
    other = group_of(learner, count=1)
    other.set_state(state)
    np.testing.assert_equal(other.get_state(), state)
    other.update(episodes=EPISODES)
    first.update(episodes=EPISODES)
    np.testing.assert_equal(learner.get_state(), first.get_state())
    other.stop()


def test_a_learner_that_cannot_be_sent_is_an_error_that_names_the_part(tmp_path):
    learner = point_learner()
    with (tmp_path / "log").open("w") as file:
        learner.connector.file = file
        with pytest.raises(Exception, match=r"(?s)connector.*file"):
            group_of(learner)
