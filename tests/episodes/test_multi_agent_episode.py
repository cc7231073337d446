"""Multi-agent episodes are refused by name."""

from __future__ import annotations

import pytest

from epibatch.episodes.multi_agent_episode import MultiAgentEpisode


def test_it_says_what_to_do_instead() -> None:
    with pytest.raises(NotImplementedError, match="record each agent as a SingleAgentEpisode"):
        MultiAgentEpisode(id_="x")
