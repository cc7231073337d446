"""Differences of the runner of several agents that are there on purpose."""

from __future__ import annotations

from typing import Any

from epibatch.core.errors import ColumnError
from oracle.agent_games import AGENTS, OBSERVATIONS, game_class, team_runner
from oracle.libraries import RLLIB
from oracle.probes import Raises, probe, tried


def small_game(library: Any) -> Any:
    """Two agents; in the second step `bob` terminates and is told nothing, `ann` goes on; the third one is the last."""
    base = library.module("env.multi_agent_env" if library is RLLIB else "env_runner.multi_agent_env").MultiAgentEnv

    class Small(base):  # type: ignore[misc]
        def __init__(self, config: Any = None) -> None:
            super().__init__()
            self.possible_agents = self.agents = list(AGENTS[:2])
            game = game_class(library)()
            self.observation_spaces, self.action_spaces = game.observation_spaces, game.action_spaces

        def _row(self, agent: str) -> Any:
            row = OBSERVATIONS.sample() * 0
            row[2:4] = self.t, AGENTS.index(agent)
            return row

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.t = 0
            return {agent: self._row(agent) for agent in self.agents}, {}

        def step(self, action_dict: Any) -> Any:
            self.t += 1
            told = self.agents if self.t == 1 else self.agents[:1]
            flags = {"__all__": self.t == 3, **({"bob": True} if self.t == 2 else {})}
            rewards = dict.fromkeys(action_dict, 1.0)
            return {agent: self._row(agent) for agent in told}, rewards, flags, {"__all__": False}, {}

    return Small


@probe("unseen-ends", ours=[("ann", 2)], theirs=[("ann", 2), ("bob", 1)])
def test_whose_observations_pieces_are_shown_in_the_step_of_an_end(library: Any) -> Any:
    """Agents and times; bob ended in this step without an observation."""
    calls: list[Any] = []

    class Seen(library.ConnectorV2):  # type: ignore[misc]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            newest = [one.get_observations(-1) for one in self.single_agent_episode_iterator(episodes)]
            calls.append(sorted((AGENTS[int(row[3])], int(row[2])) for row in newest))
            return batch

    team_runner(library, small_game(library), env_to_module=lambda: [Seen()]).sample(num_timesteps=2)
    return calls[2]


@probe("idle-in-chunks", ours=["ann", "bob"], theirs=[])
def test_agents_of_a_chunk_in_which_they_took_no_step(library: Any) -> Any:
    """Both acted, and are told what came of it in the next chunk."""
    game = game_class(library, kind="turns", length=9)
    runner = team_runner(library, game)
    return sorted(runner.sample(num_timesteps=2)[0].agent_episodes)[:2]


@probe("started-seen", ours=[True, True], theirs=[True, False])
def test_on_episode_start_comes_behind_the_env_to_module_pipeline(library: Any) -> Any:
    """Whether pieces had the reset observation by then: of the first episode, and of the second."""
    shown: set[str] = set()
    found: list[bool] = []

    class Seen(library.ConnectorV2):  # type: ignore[misc]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            shown.update(episode.id_ for episode in episodes if episode.is_reset)
            return batch

    def listen(*, episode: Any, **kwargs: Any) -> None:
        found.append(episode.id_ in shown)

    game = game_class(library, kind="steady", length=2)
    told = {"configure": lambda config: config.callbacks(on_episode_start=listen)}
    team_runner(library, game, env_to_module=lambda: [Seen()], **told).sample(num_timesteps=3)
    return found


@probe("hanging-returns", ours=3.0, theirs=2.0)
def test_rewards_of_an_agent_that_never_appears_in_returns(library: Any) -> Any:
    """Two steps: ann acts and gets 1.0 each time, bob gets 0.5 and is told nothing."""
    base = small_game(library)

    class Generous(base):  # type: ignore[misc, valid-type]
        def reset(self, **keywords: Any) -> Any:
            observations, infos = super().reset(**keywords)
            del observations["bob"]
            return observations, infos

        def step(self, action_dict: Any) -> Any:
            self.t += 1
            return {"ann": self._row("ann")}, {"ann": 1.0, "bob": 0.5}, {"__all__": self.t == 2}, {"__all__": False}, {}

    runner = team_runner(library, Generous)
    runner.sample(num_episodes=1)
    found = runner.get_metrics()["episode_return_mean"]
    return float(found.peek() if library is RLLIB else found)


@probe(
    "missing-actions",
    ours=[Raises(ColumnError, "agent 'bob'"), []],
    theirs=[Raises(AssertionError, r"^$"), [["ann"]]],
)
def test_an_action_that_a_piece_left_out(library: Any) -> Any:
    """Episodes that sample() returns, and whose actions the environment got."""
    got: list[Any] = []
    base = small_game(library)

    class Noting(base):  # type: ignore[misc, valid-type]
        def step(self, action_dict: Any) -> Any:
            got.append(sorted(action_dict))
            return super().step(action_dict)

    class LeavesOut(library.ConnectorV2):  # type: ignore[misc]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            batch["actions"] = {key: items for key, items in batch["actions"].items() if key[1] != "bob"}
            return batch

    both = {"mapping": lambda agent_id, episode, **kwargs: "walker"}
    runner = team_runner(library, Noting, module_to_env=lambda: [LeavesOut()], **both)
    found = tried(lambda: len(runner.sample(num_timesteps=1)))
    return [found, got]
