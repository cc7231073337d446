"""Episodes of equal spaces are of one kind, whichever objects the spaces are."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

from epibatch.connectors.space_kinds import SpaceKinds
from epibatch.episodes import SingleAgentEpisode


def test_equal_spaces_are_one_kind() -> None:
    def episode(size: int, choices: int) -> SingleAgentEpisode:
        return SingleAgentEpisode(
            observation_space=Box(-1, 1, (size,), np.float32), action_space=Discrete(choices), agent_id="a"
        )

    kinds = SpaceKinds()
    made = [episode(*sizes) for sizes in ((2, 3), (2, 4), (2, 3), (3, 3), (2, 4))]
    assert [kinds.of(one) for one in made] == [0, 1, 0, 2, 1]
    assert [kinds.of(one) for one in made] == [0, 1, 0, 2, 1]


def test_agents_without_spaces_are_told_apart_by_their_name() -> None:
    kinds = SpaceKinds()
    assert [kinds.of(SingleAgentEpisode(agent_id=name)) for name in "abba"] == [0, 1, 1, 0]


def test_observations_of_different_spaces_that_a_piece_made_alike_are_of_two_kinds() -> None:
    kinds = SpaceKinds()
    made = [SingleAgentEpisode(observation_space=Box(-1, 1, (size,), np.float32)) for size in (2, 3, 3)]
    for episode in made:
        episode.observation_space = Box(-1, 1, (5,), np.float32)
    assert [kinds.of(one) for one in made] == [0, 1, 1]
