"""Faults of episodes of several agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from oracle.probes import Raises, plain, probe, tried


def episode_of(library: Any, *agents: str) -> Any:
    """An episode after a reset in which agents observe 0.0."""
    episode = library.MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations=dict.fromkeys(agents, 0.0))
    return episode


def step_of(*agents: str, **others: Any) -> dict[str, Any]:
    """An env step in which agents act, observe 1.0 and get 0.5."""
    given = {"observations": 1.0, "actions": 0, "rewards": 0.5}
    step: dict[str, Any] = {name: dict.fromkeys(agents, value) for name, value in given.items()}
    for name, values in others.items():
        step[name] = {**step.get(name, {}), **values}
    return step


def flags(episode: Any) -> dict[str, list[bool]]:
    ends = {a: [one.is_terminated, one.is_truncated] for a, one in sorted(episode.agent_episodes.items())}
    return {**ends, "__all__": [episode.is_terminated, episode.is_truncated]}


def rewards(episode: Any, agent: str) -> Any:
    return [float(reward) for reward in episode.agent_episodes[agent].get_rewards()]


@probe("O13", ours=[False, True], theirs=[False, False])
def test_get_truncateds_of_all(library: Any) -> Any:
    episode = episode_of(library, "a")
    episode.add_env_step(**step_of("a", truncateds={"__all__": True}))
    return [episode.get_terminateds()["__all__"], episode.get_truncateds()["__all__"]]


@probe(
    "O14",
    ours={"a": [False, True], "b": [False, True], "__all__": [False, True]},
    theirs={"a": [True, True], "b": [True, True], "__all__": [True, False]},
)
def test_agents_that_are_truncated_one_by_one(library: Any) -> Any:
    episode = episode_of(library, "a", "b")
    episode.add_env_step(**step_of("a", "b", truncateds={"a": True, "b": True}))
    return flags(episode)


@probe("O14", ours=[["a", "new"], False], theirs=[["a"], True])
def test_a_newcomer_in_the_step_of_the_last_end(library: Any) -> Any:
    episode = episode_of(library, "a")
    episode.add_env_step(**step_of("a", observations={"new": 3.0}, terminateds={"a": True}))
    return [sorted(episode.agent_ids), episode.is_done]


@probe("O15", ours=[1.0], theirs=[0.5])
def test_a_reward_before_the_first_observation(library: Any) -> Any:
    episode = episode_of(library, "a")
    episode.add_env_step(**step_of("a", rewards={"b": 0.5}))
    episode.add_env_step(**step_of("a", observations={"b": 0.0}))
    episode.add_env_step(**step_of("a", "b"))
    return rewards(episode, "b")


@probe("O15", ours=[True, 1.75], theirs=[False, 1.5])
def test_an_idle_agent_at_the_end_of_all(library: Any) -> Any:
    episode = episode_of(library, "a", "b")
    episode.add_env_step(**step_of("a", "b"))
    episode.add_env_step(**step_of("b", rewards={"a": 0.25}, terminateds={"__all__": True}))
    return [episode.agent_episodes["a"].is_done, episode.get_return(include_hanging_rewards=True)]


def pending(library: Any) -> Any:
    """Agent a has acted two env steps ago and observed nothing since; b goes on."""
    episode = episode_of(library, "a", "b")
    episode.add_env_step(**step_of("a", "b"))
    episode.add_env_step(**step_of("b", actions={"a": 1}, rewards={"a": 0.25}))
    return episode


@probe("O16", ours=["a", "b"], theirs=["b"])
def test_a_cut_without_lookback_and_a_pending_action(library: Any) -> Any:
    return sorted(pending(library).cut().agent_ids)


@probe("O16", ours=2.75, theirs=3.0)
def test_rewards_after_concatenating(library: Any) -> Any:
    left = pending(library)
    right = left.cut(1)
    right.add_env_step(**step_of("b", observations={"a": 1.0}, rewards={"a": 0.5}))
    left.concat_episode(right)
    return left.get_return(include_hanging_rewards=True)


@probe("O17", ours={"a": [1], "b": [2]}, theirs=Raises(KeyError, "v"))
def test_outputs_of_a_first_pending_step(library: Any) -> Any:
    episode = episode_of(library, "a", "b")
    step = step_of("b", actions={"a": 0}, extra_model_outputs={"a": {"v": 1}, "b": {"v": 2}})
    episode.add_env_step(**step)
    return {agent: list(plain(rows)) for agent, rows in sorted(episode.get_extra_model_outputs("v").items())}


@probe("O18", ours=[[{"x": 1}, {"x": 2}], {"kept": 1}], theirs=[[{}, {}], {}])
def test_infos_and_custom_data_of_a_slice(library: Any) -> Any:
    episode = library.MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations={"a": 0.0}, infos={"a": {"x": 1}})
    episode.custom_data["kept"] = 1
    episode.add_env_step(**step_of("a", infos={"a": {"x": 2}}))
    part = episode[:1]
    return [list(part.agent_episodes["a"].get_infos()), part.custom_data]


@probe("O47", ours=[7.0, True], theirs=[1.0, False])
def test_what_setters_index(library: Any) -> Any:
    """Agent b observes at env steps 1 and 2; its row at env step 1 is its own row 0."""
    episode = episode_of(library, "a")
    episode.add_env_step(**step_of("a", observations={"b": 1.0}))
    episode.add_env_step(**step_of("a", "b"))
    episode.set_observations(new_data={"b": 7.0}, at_indices=1)
    return [float(episode.get_observations(1)["b"]), hasattr(episode, "set_infos")]


@probe(
    "O51",
    ours={"a": [False, True], "__all__": [False, True]},
    theirs={"a": [True, True], "__all__": [True, True]},
)
def test_truncated_flags_of_all_and_of_each(library: Any) -> Any:
    episode = episode_of(library, "a")
    episode.add_env_step(**step_of("a", truncateds={"a": True, "__all__": True}))
    return flags(episode)


@probe("O52", ours=[0, 1], theirs=[0, "S", 1])
def test_the_env_steps_of_an_agent_terminated_without_an_observation(library: Any) -> Any:
    episode = episode_of(library, "a", "b")
    episode.add_env_step(**step_of("b", actions={"a": 0}, rewards={"a": 0.5}, terminateds={"a": True}))
    return list(episode.env_t_to_agent_t["a"].data)


@probe("O53", ours=["S", "S", 0], theirs=["S", "S", "S", 0])
def test_the_env_steps_of_an_agent_born_after_a_cut(library: Any) -> Any:
    """Behind a lookback of one env step it appears in the first one."""
    episode = episode_of(library, "a")
    for _ in range(2):
        episode.add_env_step(**step_of("a"))
    chunk = episode.cut(1)
    chunk.add_env_step(**step_of("a", observations={"b": 0.0}))
    return list(chunk.env_t_to_agent_t["b"].data)


@probe("O54", ours=[[1.0, 2.0], [3.0, 4.0]], theirs=[1.0, 2.0])
def test_a_pending_vector_action_of_an_array_episode(library: Any) -> Any:
    """RLlib's two env steps give the first two numbers of four."""
    episode = episode_of(library, "a", "b")
    episode.add_env_step(**step_of("a", "b", actions={"a": np.array([1.0, 2.0])}))
    episode.add_env_step(**step_of("b", actions={"a": np.array([3.0, 4.0])}))
    return plain(episode.to_numpy().get_actions()["a"])


@probe("O55", ours=[1.0], theirs=Raises(AssertionError, "", None))
def test_outputs_on_the_right_of_an_agent_without_a_step_on_the_left(library: Any) -> Any:
    left = episode_of(library, "a")
    left.add_env_step(**step_of("a", observations={"b": 0.0}, extra_model_outputs={"a": {"v": 0.0}}))
    right = left.cut()
    right.add_env_step(**step_of("a", "b", extra_model_outputs={"a": {"v": 0.0}, "b": {"v": 1.0}}))
    left.concat_episode(right)
    return list(plain(left.get_extra_model_outputs("v", agent_ids="b")["b"]))


@probe("O56", ours=[0.75], theirs=[0.5])
def test_a_reward_while_an_agent_waits_with_its_observation(library: Any) -> Any:
    episode = episode_of(library, "a", "b")
    episode.add_env_step(**step_of("b", rewards={"a": 0.25}))
    episode.add_env_step(**step_of("a", "b"))
    return rewards(episode, "a")


@probe("O56", ours=["a", "b"], theirs=["b"])
def test_a_cut_while_an_agent_waits_with_its_observation(library: Any) -> Any:
    episode = episode_of(library, "a", "b")
    episode.add_env_step(**step_of("b"))
    return sorted(tried(lambda: episode.cut(0)).agent_ids)


@probe("O57", ours=False, theirs=True)
def test_an_episode_without_agents(library: Any) -> Any:
    episode = episode_of(library)
    episode.add_env_step({}, {}, {})
    return episode.is_done


def mapped(library: Any, agents: Any, **settings: Any) -> Any:
    """What an env-to-module pipeline makes of one episode's reset observations."""
    home = library.env_to_module
    episode = library.MultiAgentEpisode(id_="game", agent_to_module_mapping_fn=lambda *_, **__: "m")
    episode.add_env_reset(observations=agents)
    pieces = [home.AddObservationsFromEpisodesToBatch(), home.AgentToModuleMapping(**settings)]
    spaces = [gym.spaces.Dict({agent: gym.spaces.Box(0, 9, (), np.float32) for agent in agents}) for _ in range(2)]
    pipeline = home.EnvToModulePipeline(*spaces, connectors=pieces)
    return pipeline(rl_module=None, batch={}, episodes=[episode], explore=False, shared_data={})


@probe("O48", ours=[2.0, 1.0], theirs=[1.0, 2.0])
def test_the_order_of_agents(library: Any) -> Any:
    spec = library.RLModuleSpec(observation_space=gym.spaces.Box(0, 9, ()), action_space=gym.spaces.Discrete(2))
    settings = {"rl_module_specs": {"m": spec}, "agent_to_module_mapping_fn": lambda *_, **__: "m"}
    return [float(row) for row in mapped(library, {2: 2.0, 1: 1.0}, **settings)["m"]["obs"]]


@probe("O45", ours=["NoneType"], theirs=["MultiAgentEpisode"])
def test_what_the_mapping_is_asked_about_when_spaces_are_derived(library: Any) -> Any:
    asked = set()

    def mapping(agent_id: Any, episode: Any, **_: Any) -> Any:
        asked.add(type(episode).__name__)
        return f"m{agent_id}"

    piece = library.env_to_module.AgentToModuleMapping(
        rl_module_specs={name: library.RLModuleSpec() for name in ("mx", "my")}, agent_to_module_mapping_fn=mapping
    )
    spaces = gym.spaces.Dict({agent: gym.spaces.Box(0, 1, (size,)) for agent, size in (("x", 3), ("y", 2))})
    piece.input_action_space = piece.input_observation_space = spaces
    assert piece.observation_space["mx"].shape == (3,)
    return sorted(asked)
