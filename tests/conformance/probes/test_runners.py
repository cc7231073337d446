"""Faults and differences on purpose of runners and configs."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.errors import ColumnError, ConfigError, NotAvailableError
from oracle.agent_games import AGENTS, OBSERVATIONS, game_class, team_runner
from oracle.libraries import RLLIB
from oracle.modules import LEARNER, pieces_of
from oracle.probes import Raises, probe, tried
from probes.makers import Counting, runner_of


@probe("O25", ours=[3.0, 4.0, 5.0, 6.0], theirs=[0.0, 4.0, 5.0, 6.0])
def test_history_at_a_chunks_start(library: Any) -> Any:
    """A piece that reads four observations, at the first step after a chunk of five."""
    seen = []

    class Reader(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            for episode in self.single_agent_episode_iterator(episodes):
                seen.append(np.concatenate(episode.get_observations(slice(-4, None), fill=0.0)).tolist())
            return batch

    runner, _ = runner_of(library, {}, env_to_module_connector=lambda env, spaces, device=None: Reader())
    runner.sample(num_timesteps=5)
    runner.sample(num_timesteps=1)
    return seen[-1]


@probe("O25", ours=[1, 1], theirs=[0, Raises(IndexError, "index 3 is out of bounds for axis 0 with size 3")])
def test_recurrent_learners_need_the_last_state(library: Any) -> Any:
    """The second chunk of three steps, recorded with `episode_lookback_horizon=0`."""
    model = library.DefaultModelConfig(use_lstm=True, lstm_cell_size=4, max_seq_len=5)
    runner, _ = runner_of(library, {}, lambda config: config.rl_module(model_config=model), episode_lookback_horizon=0)
    runner.sample(num_timesteps=3)
    (chunk,) = runner.sample(num_timesteps=3)
    pieces = pieces_of(library, "learner", *LEARNER[:4])
    pipeline = library.learner.LearnerConnectorPipeline(
        Counting.observation_space, Counting.action_space, connectors=pieces
    )
    module = runner.module.as_multi_rl_module()
    return [
        chunk.observations.lookback,
        tried(lambda: len(pipeline(rl_module=module, batch={}, episodes=[chunk])["rewards"])),
    ]


@probe("O34", ours=[[2], [0]], theirs=[[2], Raises(AssertionError, "^$", "validate")])
def test_policy_steps_and_then_random_steps(library: Any) -> Any:
    """Lengths of the first call's chunks, and where those of the second start."""
    runner, _ = runner_of(library, {})
    first = [len(chunk) for chunk in runner.sample(num_timesteps=2)]
    return [first, tried(lambda: [chunk.t_started for chunk in runner.sample(num_timesteps=2, random_actions=True)])]


@probe("O35", ours=[], theirs=[0])
def test_no_timesteps(library: Any) -> Any:
    runner, _ = runner_of(library, {})
    runner.sample(num_timesteps=3)
    return [len(chunk) for chunk in runner.sample(num_timesteps=0)]


LOST = r"(?s)^environment .* failed in step\(\)[^\n]*:\nsimulator lost"


@probe(
    "O40",
    ours=[Raises(ConnectionError, LOST), [3, 3]],
    theirs=[Raises(RuntimeError, "^$", "_try_env_step"), Raises(AssertionError, "^$", "_sample")],
)
def test_a_failure_loses_no_ended_episode(library: Any) -> Any:
    """Two environments with episodes of three steps; the second fails in its fifth. Then sampling goes on."""
    environment = {"length": 3, "failing": range(5, 6)}
    runner, _ = runner_of(library, environment, num_envs_per_env_runner=2)
    error = tried(lambda: runner.sample(num_timesteps=20))
    return [error, tried(lambda: [len(chunk) for chunk in runner.sample(num_timesteps=2) if chunk.is_done])]


def restarting(config: Any) -> None:
    config.fault_tolerance(restart_failed_sub_environments=True)


@probe("O40", ours=11, theirs=16)
def test_counting_goes_on_when_environments_are_restarted(library: Any) -> Any:
    """Ten steps are asked for, six have been taken when it happens; ours takes whole vector steps."""
    environment = {"length": 3, "failing": range(5, 6)}
    runner, _ = runner_of(library, environment, restarting, num_envs_per_env_runner=2)
    return sum(len(chunk) for chunk in runner.sample(num_timesteps=10))


@probe("O40", ours=1, theirs=26)
def test_a_failed_environment_is_replaced_when_environments_are_restarted(library: Any) -> Any:
    """How often the first object is reset of an environment whose resets fail 25 times."""
    environment = {"failing": range(1, 26), "method": "reset"}
    runner, env = runner_of(library, environment, restarting, num_envs_per_env_runner=2)
    runner.sample(num_timesteps=2)
    return env.calls


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


@probe("sample-sequence", ours=[False, 2], theirs=[True, 2])
def test_what_sample_returns(library: Any) -> Any:
    runner, _ = runner_of(library, {}, num_envs_per_env_runner=2)
    chunks = runner.sample(num_timesteps=4)
    return [isinstance(chunks, list), len(chunks)]


@probe("config-errors", ours=["lr", "gamma", "num_epochs"], theirs=[])
def test_wrong_values_in_a_config(library: Any) -> Any:
    """Those that an error names."""
    config = library.PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    wrong = {"lr": -1.0, "gamma": "high", "num_epochs": 0}
    error = tried(lambda: config.training(**wrong).validate())
    return [name for name in wrong if isinstance(error, Exception) and f"training.{name}:" in str(error)]


@probe("evaluation-greedy", ours=False, theirs=True)
def test_whether_evaluation_explores(library: Any) -> Any:
    config = library.PPOConfig().environment("CartPole-v1").evaluation(evaluation_interval=1)
    return config.get_evaluation_config_object().explore


@probe("O39", ours=[True, None], theirs=[False, Raises(TypeError, "takes 2 positional arguments but 3 were given")])
def test_synchronising_without_a_local_runner(library: Any) -> Any:
    """Whether a group that is made without one has one, and what synchronising without broadcasting gives."""
    config = library.PPOConfig().environment("CartPole-v1").env_runners(broadcast_env_runner_states=False)
    package = "env" if library is RLLIB else "env_runner"
    group_class = library.module(f"{package}.env_runner_group").EnvRunnerGroup
    if library is RLLIB:
        group = object.__new__(group_class)  # no processes: what two runners would have sent is given
        group._local_env_runner = None
        group.num_healthy_remote_workers = lambda: 2
        group._merge_env_runner_connector_states = lambda **_: {}
    else:
        group = group_class(config=config)
    spaces = Counting.observation_space, Counting.action_space
    pipelines = {
        "env_to_module": library.env_to_module.EnvToModulePipeline(*spaces, connectors=[]),
        "module_to_env": library.module_to_env.ModuleToEnvPipeline(*spaces, connectors=[]),
    }
    synchronised = tried(lambda: group.sync_env_runner_states(config=config, **pipelines))
    return [group.local_env_runner is not None, synchronised]


@probe("not-available", ours=Raises(NotAvailableError, "num_aggregator_actors_per_learner"), theirs=2)
def test_aggregator_actors(library: Any) -> Any:
    config = library.PPOConfig().environment("CartPole-v1").learners(num_aggregator_actors_per_learner=2)
    return config.num_aggregator_actors_per_learner


def listener(library: Any, methods: dict[str, Any]) -> type:
    """A class of callbacks with these methods."""
    path, name = ("callbacks.callbacks", "RLlibCallback") if library is RLLIB else ("env_runner.callbacks", "Callbacks")
    return type("Listener", (getattr(library.module(path), name),), methods)


@probe("created-episode", ours=[False, True, {"k": 1}], theirs=[True, True, {"k": 1}])
def test_the_episode_that_on_episode_created_gets(library: Any) -> Any:
    """Whether it is the one that starts, has its id, and hands on what is put into it."""
    created, started = [], []

    def on_episode_created(self: Any, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_data["k"] = 1
        created.append(episode)

    def on_episode_start(self: Any, *, episode: Any, **kwargs: Any) -> None:
        started.append(episode)

    methods = {"on_episode_created": on_episode_created, "on_episode_start": on_episode_start}
    runner, _ = runner_of(library, {}, lambda config: config.callbacks(listener(library, methods)))
    runner.sample(num_timesteps=1)
    return [created[0] is started[0], created[0].id_ == started[0].id_, dict(started[0].custom_data)]


@probe("last-vector-step", ours=[0, 1, 0, 1], theirs=[0, 1, 0])
def test_callbacks_of_the_last_vector_step(library: Any) -> Any:
    """Environments of `on_episode_step` in episodes of two steps, of which one is asked for."""
    seen = []

    def on_episode_step(self: Any, *, env_index: int, **kwargs: Any) -> None:
        seen.append(env_index)

    heard = listener(library, {"on_episode_step": on_episode_step})
    runner, _ = runner_of(library, {"length": 2}, lambda config: config.callbacks(heard), num_envs_per_env_runner=2)
    runner.sample(num_episodes=1)
    return seen


@probe("unknown-callbacks", ours=Raises(ConfigError, "did you mean 'on_episode_end'"), theirs=1)
def test_a_callback_that_nothing_calls(library: Any) -> Any:
    methods = {"on_episode_ended": lambda self, **kwargs: None}
    runner, _ = runner_of(library, {}, lambda config: config.callbacks(listener(library, methods)))
    return len(runner.sample(num_timesteps=1))


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
