"""Multi-agent episodes: not in this release."""

from __future__ import annotations

from typing import Any, NoReturn

from epibatch.core.errors import NotAvailableError, explain

__all__ = ["MultiAgentEpisode"]


class MultiAgentEpisode:
    """Names the class that ported files import; making one is refused until multi-agent support is there.

    Raises:
        NotAvailableError: always.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotAvailableError(
            explain(
                "MultiAgentEpisode",
                expected="single-agent episodes",
                found="a multi-agent episode",
                do="record each agent as a SingleAgentEpisode; this release is single-agent",
            )
        )
