"""Faults of the runner of several agents."""

from __future__ import annotations

from typing import Any

from oracle.agent_games import game_class, team_runner
from oracle.probes import probe


@probe("O36", ours=[], theirs=["connector_pipeline_timer", "timers"])
def test_where_timers_of_the_reset_stand(library: Any) -> Any:
    """Names that pieces log by themselves, among the runner's own metrics."""
    runner = team_runner(library, game_class(library, kind="steady"))
    runner.sample(num_timesteps=2)
    return sorted(name for name in runner.get_metrics() if "timers" in name or name.startswith("connector"))


def watching(library: Any, watch: Any) -> Any:
    """A piece that calls a function with what it is called with."""

    class Watching(library.ConnectorV2):  # type: ignore[misc]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, shared_data: Any, **kwargs: Any) -> Any:
            watch(episodes, shared_data)
            return batch

    return Watching()


@probe("O37", ours=[1, 1, 1, 1, 1], theirs=[1, 2, 1, 2, 1])
def test_calls_of_the_env_to_module_pipeline_in_a_vector_step(library: Any) -> Any:
    """Of the five steps after the first reset, the second and the fourth end an episode."""
    calls: list[int] = []
    game = game_class(library, kind="steady", length=2)

    class Noting(game):  # type: ignore[misc, valid-type]
        def reset(self, **keywords: Any) -> Any:
            calls.append(0)
            return super().reset(**keywords)

        def step(self, action_dict: Any) -> Any:
            calls.append(0)
            return super().step(action_dict)

    def watch(episodes: Any, shared_data: Any) -> None:
        calls[-1] += 1

    runner = team_runner(library, Noting, env_to_module=lambda: [watching(library, watch)])
    while len(calls) < 6:
        runner.sample(num_timesteps=1)
    return calls[1:6]


@probe("O49", ours=[], theirs=[0])
def test_episodes_that_were_not_reset_are_shown_to_pieces(library: Any) -> Any:
    """How many agents such episodes had."""
    found: list[int] = []

    def watch(episodes: Any, shared_data: Any) -> None:
        found.extend(len(episode.agent_ids) for episode in episodes if not episode.is_reset)

    game = game_class(library, kind="steady", length=2)
    team_runner(library, game, env_to_module=lambda: [watching(library, watch)]).sample(num_timesteps=2)
    return found
