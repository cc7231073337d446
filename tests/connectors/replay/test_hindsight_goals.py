"""Goals of hindsight: achieved at a step that the strategy allows, with rewards and ends that follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.connectors.replay import HindsightGoals, NStepReturns
from epibatch.core.errors import ColumnError
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

GAMMA = 0.5


def reward(achieved, desired, info):
    return (achieved == desired)[:, 0] * 10.0 - 1.0


def reached(achieved, desired, info):
    return (achieved == desired)[:, 0]


def episodes(rng, count=6):
    """Episodes of which every achieved goal is another number: 100 times the episode's, plus the step."""
    out = []
    for number in range(count):
        length = int(rng.integers(1, 9))
        rows = [
            {"achieved_goal": np.array([100 * number + t]), "desired_goal": np.array([-1])} for t in range(length + 1)
        ]
        out.append(
            SingleAgentEpisode(
                id_=f"e{number}", observations=rows, actions=[0] * length, rewards=[-1.0] * length,
                terminated=number % 3 == 0, truncated=number % 3 == 1, len_lookback_buffer=0,
            )
        )  # fmt: skip
    return out


def pipeline(*pieces):
    pieces = [
        *pieces,
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
    ]
    return LearnerConnectorPipeline(connectors=pieces)


def allowed(strategy, t, length):
    """Steps at which a row's goal may have been reached."""
    return {"future": range(t + 1, length + 1), "final": [length], "episode": range(1, length + 1)}[strategy]


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("n_step", [None, 1, 3])
@pytest.mark.parametrize("ends", [False, True])
def test_drawn_rows_are_those_of_a_loop(strategy, n_step, ends):
    rng = np.random.default_rng(0)
    goals_seen = 0
    for seed in range(12):
        whole = episodes(rng)
        buffer = EpisodeReplayBuffer(200, seed=seed)
        buffer.add(whole)
        piece = HindsightGoals(
            compute_reward=reward, strategy=strategy, num_goals=2, compute_terminated=reached if ends else None
        )
        piece.seed(seed)
        after = [NStepReturns(n_step=n_step, gamma=GAMMA)] if n_step else []
        batch = pipeline(piece, *after)(episodes=buffer.sample(40))
        for i in range(40):
            number, t = divmod(int(batch["obs"]["achieved_goal"][i, 0]), 100)
            goal, length = int(batch["obs"]["desired_goal"][i, 0]), len(whole[number])
            assert goal == int(batch["new_obs"]["desired_goal"][i, 0])
            is_new = goal >= 0
            if is_new:
                goals_seen += 1
                assert divmod(goal, 100)[0] == number and goal % 100 in allowed(strategy, t, length)
            total, k, terminated = 0.0, 0, False
            while k < (n_step or 1) and t + k < length and not terminated:
                achieved = 100 * number + t + k + 1
                total += GAMMA**k * ((9.0 if achieved == goal else -1.0) if is_new else -1.0)
                terminated = whole[number].is_terminated and t + k + 1 == length
                terminated = achieved == goal if is_new and ends else terminated
                k += 1
            assert batch["rewards"][i] == pytest.approx(total)
            assert batch["terminateds"][i] == terminated
            assert int(batch["new_obs"]["achieved_goal"][i, 0]) == 100 * number + t + k
    assert 0.55 < goals_seen / (12 * 40) < 0.78, "two of three rows"


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_whole_episodes_have_a_goal_for_each_row(strategy):
    whole = episodes(np.random.default_rng(1), 30)
    piece = HindsightGoals(compute_reward=reward, strategy=strategy, num_goals=10**9)
    piece.seed(0)
    batch = pipeline(piece)(episodes=whole)
    at, goals = batch["obs"]["achieved_goal"][:, 0], batch["obs"]["desired_goal"][:, 0]
    for row, goal, given in zip(at.tolist(), goals.tolist(), batch["rewards"].tolist()):
        number, t = divmod(row, 100)
        assert divmod(goal, 100)[0] == number and goal % 100 in allowed(strategy, t, len(whole[number]))
        assert given == (9.0 if row + 1 == goal else -1.0)
    assert whole[0].get_observations(0)["desired_goal"][0] == -1, "the episodes are as they were"


def test_the_state_goes_on_drawing_the_same_goals():
    whole = episodes(np.random.default_rng(2))
    first, second = HindsightGoals(compute_reward=reward), HindsightGoals(compute_reward=reward)
    first.seed(3)
    pipeline(first)(episodes=whole)
    second.set_state(first.get_state())
    batches = [pipeline(piece)(episodes=whole)["obs"]["desired_goal"].tolist() for piece in (first, second)]
    assert batches[0] == batches[1]


def test_priorities_and_weights_stay_those_of_the_draw():
    buffer = PrioritizedEpisodeReplayBuffer(200, alpha=1.0, seed=0)
    buffer.add(episodes(np.random.default_rng(3)))
    drawn = buffer.sample(16, beta=1.0)
    batch = pipeline(HindsightGoals(compute_reward=reward), NStepReturns(n_step=2, gamma=GAMMA))(episodes=drawn)
    assert batch["weights"].tolist() == drawn.per_chunk["weights"].tolist()


def test_what_cannot_work_is_named():
    whole = episodes(np.random.default_rng(4))
    with pytest.raises(ColumnError, match="HindsightGoals, observations") as caught:
        pipeline(HindsightGoals(compute_reward=reward, desired="goal"))(episodes=whole)
    assert caught.value.found == "a Dict with 'achieved_goal', 'desired_goal'"
    with pytest.raises(ColumnError, match="one for each row"):
        pipeline(HindsightGoals(compute_reward=lambda achieved, desired, info: 1.0))(episodes=whole)
    plain = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[1.0], len_lookback_buffer=0)
    with pytest.raises(ColumnError, match="no Dict"):
        pipeline(HindsightGoals(compute_reward=reward))(episodes=[plain])
