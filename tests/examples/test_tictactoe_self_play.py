"""Tic-tac-toe against itself: seats by lot, legal moves only, a frozen module that is refreshed, and it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("pettingzoo")

WON_AT_RANDOM = (0.585 + 0.288) / 2  # by the first and by the second player, of all games of random squares


class AtRandom:
    """Stands in for an algorithm: marks free squares at random."""

    def __init__(self):
        self.rng = np.random.default_rng(1)

    def act(self, observations, state):
        ((agent, observation),) = observations.items()
        return {agent: self.rng.choice(np.flatnonzero(observation["action_mask"]))}, state


def test_lots_are_drawn_and_taken_squares_refused(load_example):
    example = load_example("tictactoe_self_play")
    env, first = example.TicTacToe(), []
    for seed in range(40):
        observations, _ = env.reset(seed=seed)
        (beginner,) = observations
        assert list(env.reset(seed=seed)[0]) == [beginner]
        first.append(beginner)
    assert 10 < first.count("ann") < 30
    for beginner, other in (("ann", "bob"), ("bob", "ann")):
        assert list(env.reset(options={"first": beginner})[0]) == [beginner]
        observations = env.step({beginner: 4})[0]
        assert list(observations) == [other]
        assert env.observation_spaces[other].contains(observations[other])
        assert observations[other]["observation"][1, 1].tolist() == [0, 1]  # the other one's mark
        with pytest.raises(ValueError, match="square 4 is taken"):
            env.step({other: 4})
        for agent, square in ((other, 0), (beginner, 3), (other, 1)):
            env.step({agent: square})
        _, rewards, terminateds, _, _ = env.step({beginner: 5})
        assert rewards == {beginner: 1, other: -1} and terminateds["__all__"]
    env.close()


def test_games_are_counted_for_the_student(load_example):
    """Random against random: the shares are those of all games."""
    example = load_example("tictactoe_self_play")
    ends = example.play(AtRandom(), 300)
    assert ends.total() == 300
    assert abs(ends["won"] / 300 - WON_AT_RANDOM) < 0.1 and abs(ends["drawn"] / 300 - 0.127) < 0.07


def test_only_the_student_learns_and_the_past_takes_over_its_weights(load_example):
    example = load_example("tictactoe_self_play")
    config = example.config_for(example.Options()).training(train_batch_size=200, minibatch_size=50, num_epochs=1)
    algorithm = config.build_algo()
    student, past = algorithm.get_module("student"), algorithm.get_module("past")
    before = {"student": student.get_state(), "past": past.get_state()}
    results = algorithm.train()
    assert "student" in results["learners"] and "past" not in results["learners"]
    np.testing.assert_equal(past.get_state(), before["past"])
    assert any((value != before["student"][name]).any() for name, value in student.get_state().items())
    past.set_state(student.get_state())
    for episode in algorithm.env_runner.sample(num_episodes=20):
        rewards = {agent: own.get_return() for agent, own in episode.agent_episodes.items()}
        assert rewards["ann"] == -rewards["bob"] and abs(rewards["ann"]) in (0, 1)
        for agent in ("ann", "bob"):  # both decided as the student would
            own = episode.agent_episodes[agent]
            for t in range(len(own)):
                seen = own.get_observations(t)
                assert seen["action_mask"][own.get_actions(t)] == 1
                board = {name: torch.as_tensor(np.array(value))[None] for name, value in seen.items()}
                logits = student.forward_train({"obs": board})["action_dist_inputs"][0]
                recorded = own.get_extra_model_outputs("action_dist_inputs", t)
                np.testing.assert_allclose(recorded, logits.detach(), rtol=1e-4, atol=1e-5)
                assert (logits.softmax(-1)[board["action_mask"][0] == 0] == 0).all()
    algorithm.stop()
