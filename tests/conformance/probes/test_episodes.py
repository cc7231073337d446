"""Faults of RLlib's episodes and buffers, and differences that are there on purpose; of one agent and of several."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpisodeError, EpisodeIndexError, EpisodeStateError, SpaceError
from oracle.makers import BOX, run
from oracle.probes import Raises, plain, probe, tried


def episode_of(library: Any, steps: int, *, terminated: bool = False, **settings: Any) -> Any:
    """An episode with observation [t], action t, reward t + 0.5; each step's output `seen` is t too."""
    episode = library.SingleAgentEpisode(id_="e", **settings)
    episode.add_env_reset(np.array([0], np.float32))
    for t in range(steps):
        done = terminated and t == steps - 1
        observation = np.array([t + 1], np.float32)
        episode.add_env_step(observation, t, t + 0.5, terminated=done, extra_model_outputs={"seen": t})
    return episode


@probe(
    "O18",
    ours={"slice": ["a", "m", "all", {"k": 1}], "cut": ["a", "m", "all", {"k": 1}]},
    theirs={"slice": [None, None, None, {}], "cut": [None, None, None, {"k": 1}]},
)
def test_slices_and_cuts_keep_ids_and_custom_data(library: Any) -> Any:
    episode = episode_of(library, 3, agent_id="a", module_id="m", multi_agent_episode_id="all")
    episode.custom_data["k"] = 1
    parts = {"slice": episode[1:3], "cut": episode.cut()}
    return {
        name: [part.agent_id, part.module_id, part.multi_agent_episode_id, dict(part.custom_data)]
        for name, part in parts.items()
    }


@probe("O19", ours=[2, 1, Raises(EpisodeIndexError, "2")], theirs=[2, 1, 6])
def test_an_index_before_the_lookback(library: Any) -> Any:
    buffer = library.InfiniteLookbackBuffer(data=np.array([1, 2, 3, 4, 5, 6]), lookback=2)
    return [tried(lambda i=i: plain(buffer.get(i, neg_index_as_lookback=True))) for i in (-1, -2, -3)]


@probe("O20", ours=[[5, 4, 3, 2, 1], [4, 3, 2]], theirs=[[], [4, 3, 2]])
def test_slices_go_backwards(library: Any) -> Any:
    """RLlib's are empty unless both bounds are given."""
    buffer = library.InfiniteLookbackBuffer(data=np.array([1, 2, 3, 4, 5]))
    return [plain(buffer.get(slice(None, None, -1))), plain(buffer.get(slice(3, 0, -1)))]


@probe("O21", ours={"is_numpy": True, "observations": "ndarray"}, theirs={"is_numpy": False, "observations": "ndarray"})
def test_a_chunk_without_steps_is_an_array_episode(library: Any) -> Any:
    episode = episode_of(library, 0).to_numpy()
    return {"is_numpy": episode.is_numpy, "observations": type(episode.get_observations()).__name__}


@probe("O22", ours=Raises(SpaceError, "t=1"), theirs=1)
def test_observations_are_checked_from_the_first_step_on(library: Any) -> Any:
    episode = episode_of(library, 0, observation_space=BOX)
    episode.add_env_step(np.zeros(7, np.float32), 0, 0.0)
    return len(episode)


@probe(
    "O22",
    ours=[Raises(SpaceError, "t=100"), Raises(SpaceError, "t=101")],
    theirs=[None, Raises(AssertionError, "`observation` 0.5 does NOT fit")],
)
def test_observations_are_checked_at_step_100(library: Any) -> Any:
    """Array episodes of 99 and 100 steps, whose observations are integers, get a fraction."""
    outcomes = []
    for steps in (99, 100):
        episode = library.SingleAgentEpisode(id_="e", observation_space=gym.spaces.Discrete(3))
        episode.add_env_reset(0)
        for _ in range(steps):
            episode.add_env_step(1, 0, 0.0)
        outcomes.append(tried(partial(episode.to_numpy().add_env_step, 0.5, 0, 0.0)))
    return outcomes


@probe("O23", ours=["refused", 1], theirs=["accepted", Raises(AssertionError, "^$", "validate")])
def test_a_model_output_that_appears_late(library: Any) -> Any:
    episode = episode_of(library, 1)
    outputs = {"seen": 1, "late": 1}
    error = tried(lambda: episode.add_env_step(np.ones(1, np.float32), 0, 0.0, extra_model_outputs=outputs))
    return ["refused" if error else "accepted", tried(lambda: len(episode.to_numpy()))]


@probe("O58", ours=[0, 1, 2, 0, 0], theirs=[0, 1, 2])
def test_a_slice_over_both_ends_is_filled_at_both(library: Any) -> Any:
    return plain(library.InfiniteLookbackBuffer(data=[1, 2]).get(slice(-3, 4), fill=0))


@probe("O59", ours=[], theirs=Raises(ValueError, "does not contain any items", "batch"))
def test_no_indices_give_no_rows(library: Any) -> Any:
    return plain(library.InfiniteLookbackBuffer(data=np.array([1, 2])).get([]))


@probe("O60", ours=[3, 3], theirs=[2, Raises(AssertionError, "^$", "validate")])
def test_slices_of_nested_columns_keep_their_lookback(library: Any) -> Any:
    """Five rows with two keys, three of them lookback: in a buffer, and in a slice of an episode."""
    column = {"x": np.zeros(6, np.float32), "y": np.zeros(6, np.float32)}
    episode = library.SingleAgentEpisode(
        id_="e",
        observations=[{"x": x, "y": x} for x in column["x"]],
        actions=[0] * 5,
        rewards=[0.0] * 5,
        len_lookback_buffer=3,
    ).to_numpy()
    buffer = library.InfiniteLookbackBuffer(data=column, lookback=3)
    return [buffer.lookback, tried(lambda: episode[0:2].observations.lookback)]


@probe("O62", ours=[3, 2, 2], theirs=[4, 3, 3])
def test_the_constructor_copies_what_it_is_given(library: Any) -> Any:
    observations, actions, rewards = [0, 1, 2], [0, 1], [0.5, 1.5]
    episode = library.SingleAgentEpisode(
        id_="e", observations=observations, actions=actions, rewards=rewards, len_lookback_buffer=0
    )
    episode.add_env_step(3, 2, 2.5)
    return [len(observations), len(actions), len(rewards)]


def rewarded(library: Any, rewards: list[Any]) -> Any:
    """An episode with these rewards and as many zeros as actions."""
    episode = library.SingleAgentEpisode(id_="e")
    episode.add_env_reset(np.zeros(1, np.float32))
    for reward in rewards:
        episode.add_env_step(np.zeros(1, np.float32), 0, reward)
    return episode


@probe("columns", ours=["ndarray", "ndarray", True], theirs=["list", "ndarray", True])
def test_rewards_are_an_array_from_the_first_on(library: Any) -> Any:
    episode = rewarded(library, [1.0, 2.0])
    before = type(episode.get_rewards()).__name__
    return [before, type(episode.to_numpy().get_rewards()).__name__, episode.to_numpy() is episode]


@probe("column-types", ours=[0.5, 2.0], theirs=[0, 2])
def test_a_fraction_among_whole_rewards(library: Any) -> Any:
    episode = rewarded(library, [1, 2]).to_numpy()
    episode.set_rewards(new_data=0.5, at_indices=0)
    return plain(episode.get_rewards())


@probe("changing-shapes", ours=[[0.0], [0.0, 0.0]], theirs=Raises(ValueError, "could not broadcast"))
def test_observations_of_another_shape(library: Any) -> Any:
    episode = rewarded(library, [])
    episode.add_env_step(np.zeros(2, np.float32), 0, 0.0)
    return [plain(row) for row in episode.to_numpy().get_observations()]


@probe("newest-observation", ours=(3,), theirs=Raises(ValueError, r"could not broadcast .* from shape \(3,\)"))
def test_the_newest_observation_is_replaced_by_one_of_another_shape(library: Any) -> Any:
    episode = rewarded(library, [1.0]).to_numpy()
    episode.set_observations(new_data=np.zeros(3, np.float32), at_indices=-1)
    return episode.get_observations(-1).shape


@probe("reset-tuple", ours=Raises(EpisodeError, "as env.reset\\(\\) returns it"), theirs=(1, {"a": 2}))
def test_a_reset_observation_of_two_whose_second_is_a_dict(library: Any) -> Any:
    episode = library.SingleAgentEpisode()
    episode.add_env_reset((1, {"a": 2}))
    return episode.get_observations(0)


@probe(
    "extra-keys",
    ours=Raises(EpisodeError, "the keys of its first step"),
    theirs=Raises(AssertionError, "^$", "validate"),
)
def test_a_model_output_that_is_missing_in_one_step(library: Any) -> Any:
    episode = rewarded(library, [])
    episode.add_env_step(np.zeros(1, np.float32), 0, 0.0, extra_model_outputs={"seen": 1})
    episode.add_env_step(np.zeros(1, np.float32), 0, 0.0)
    return episode.to_numpy()


@probe(
    "old-stack-methods",
    ours=[],
    theirs=["get_sample_batch", "add_temporary_timestep_data", "get_temporary_timestep_data"],
)
def test_methods_of_the_old_stack(library: Any) -> Any:
    names = ("get_sample_batch", "add_temporary_timestep_data", "get_temporary_timestep_data")
    return [name for name in names if hasattr(library.SingleAgentEpisode(), name)]


@probe(
    "state-errors",
    ours=[Raises(EpisodeStateError, "reset"), True],
    theirs=[Raises(AssertionError, "^$", "add_env_reset"), True],
)
def test_a_reset_after_a_step(library: Any) -> Any:
    episode = rewarded(library, [1.0])
    error = tried(lambda: episode.add_env_reset(np.zeros(1, np.float32)))
    return [error, isinstance(error, AssertionError)]


@probe("getters-write-through", ours=9.0, theirs=1.0)
def test_what_a_getter_gives_is_the_episodes(library: Any) -> Any:
    episode = rewarded(library, [1.0, 2.0])
    episode.get_rewards()[0] = 9.0
    return float(episode.get_rewards(0))


@probe("outputs-without-rows", ours=["x"], theirs=[])
def test_model_outputs_of_an_agent_without_a_step(library: Any) -> Any:
    episode = library.MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    outputs = {"a": {"x": 1}}
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0.0}, {}, extra_model_outputs=outputs)
    return list(episode.cut().agent_episodes["a"].extra_model_outputs)


def agents_of(library: Any, agents: str, *steps: dict[str, Any]) -> Any:
    """An episode after a reset in which agents observe 0.0, and some env steps."""
    episode = library.MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations=dict.fromkeys(agents, 0.0))
    for step in steps:
        episode.add_env_step(**step)
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
    episode = agents_of(library, "a", step_of("a", truncateds={"__all__": True}))
    return [episode.get_terminateds()["__all__"], episode.get_truncateds()["__all__"]]


@probe(
    "O14",
    ours={"a": [False, True], "b": [False, True], "__all__": [False, True]},
    theirs={"a": [True, True], "b": [True, True], "__all__": [True, False]},
)
def test_agents_that_are_truncated_one_by_one(library: Any) -> Any:
    return flags(agents_of(library, "ab", step_of("a", "b", truncateds={"a": True, "b": True})))


@probe("O15", ours=[1.0], theirs=[0.5])
def test_a_reward_before_the_first_observation(library: Any) -> Any:
    episode = agents_of(
        library, "a", step_of("a", rewards={"b": 0.5}), step_of("a", observations={"b": 0.0}), step_of("a", "b")
    )
    return rewards(episode, "b")


@probe("O16", ours=2.75, theirs=3.0)
def test_rewards_after_concatenating(library: Any) -> Any:
    """Agent a has acted two env steps ago and observed nothing since; b goes on."""
    left = agents_of(library, "ab", step_of("a", "b"), step_of("b", actions={"a": 1}, rewards={"a": 0.25}))
    right = left.cut(1)
    right.add_env_step(**step_of("b", observations={"a": 1.0}, rewards={"a": 0.5}))
    left.concat_episode(right)
    return left.get_return(include_hanging_rewards=True)


@probe("O17", ours={"a": [1], "b": [2]}, theirs=Raises(KeyError, "v"))
def test_outputs_of_a_first_pending_step(library: Any) -> Any:
    episode = agents_of(library, "ab")
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
    episode = agents_of(library, "a", step_of("a", observations={"b": 1.0}), step_of("a", "b"))
    episode.set_observations(new_data={"b": 7.0}, at_indices=1)
    return [float(episode.get_observations(1)["b"]), hasattr(episode, "set_infos")]


@probe(
    "O51",
    ours={"a": [False, True], "__all__": [False, True]},
    theirs={"a": [True, True], "__all__": [True, True]},
)
def test_truncated_flags_of_all_and_of_each(library: Any) -> Any:
    return flags(agents_of(library, "a", step_of("a", truncateds={"a": True, "__all__": True})))


@probe("O52", ours=[0, 1], theirs=[0, "S", 1])
def test_the_env_steps_of_an_agent_terminated_without_an_observation(library: Any) -> Any:
    episode = agents_of(library, "ab", step_of("b", actions={"a": 0}, rewards={"a": 0.5}, terminateds={"a": True}))
    return list(episode.env_t_to_agent_t["a"].data)


@probe("O53", ours=["S", "S", 0], theirs=["S", "S", "S", 0])
def test_the_env_steps_of_an_agent_born_after_a_cut(library: Any) -> Any:
    """Behind a lookback of one env step it appears in the first one."""
    episode = agents_of(library, "a")
    for _ in range(2):
        episode.add_env_step(**step_of("a"))
    chunk = episode.cut(1)
    chunk.add_env_step(**step_of("a", observations={"b": 0.0}))
    return list(chunk.env_t_to_agent_t["b"].data)


@probe("O54", ours=[[1.0, 2.0], [3.0, 4.0]], theirs=[1.0, 2.0])
def test_a_pending_vector_action_of_an_array_episode(library: Any) -> Any:
    """RLlib's two env steps give the first two numbers of four."""
    episode = agents_of(
        library,
        "ab",
        step_of("a", "b", actions={"a": np.array([1.0, 2.0])}),
        step_of("b", actions={"a": np.array([3.0, 4.0])}),
    )
    return plain(episode.to_numpy().get_actions()["a"])


@probe("O55", ours=[1.0], theirs=Raises(AssertionError, "", None))
def test_outputs_on_the_right_of_an_agent_without_a_step_on_the_left(library: Any) -> Any:
    left = agents_of(library, "a", step_of("a", observations={"b": 0.0}, extra_model_outputs={"a": {"v": 0.0}}))
    right = left.cut()
    right.add_env_step(**step_of("a", "b", extra_model_outputs={"a": {"v": 0.0}, "b": {"v": 1.0}}))
    left.concat_episode(right)
    return list(plain(left.get_extra_model_outputs("v", agent_ids="b")["b"]))


@probe("O56", ours=[0.75], theirs=[0.5])
def test_a_reward_while_an_agent_waits_with_its_observation(library: Any) -> Any:
    return rewards(agents_of(library, "ab", step_of("b", rewards={"a": 0.25}), step_of("a", "b")), "a")


@probe("O57", ours=False, theirs=True)
def test_an_episode_without_agents(library: Any) -> Any:
    return agents_of(library, "", step_of()).is_done


def mapped(library: Any, agents: Any, **settings: Any) -> Any:
    """What an env-to-module pipeline makes of one episode's reset observations."""
    home = library.env_to_module
    episode = library.MultiAgentEpisode(id_="game", agent_to_module_mapping_fn=lambda *_, **__: "m")
    episode.add_env_reset(observations=agents)
    pieces = [home.AddObservationsFromEpisodesToBatch(), home.AgentToModuleMapping(**settings)]
    spaces = [gym.spaces.Dict({agent: gym.spaces.Box(0, 9, (), np.float32) for agent in agents}) for _ in range(2)]
    pipeline = home.EnvToModulePipeline(*spaces, connectors=pieces)
    return run(pipeline, [episode])


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
