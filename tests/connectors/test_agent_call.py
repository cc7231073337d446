"""Pipelines about several agents: each module gets what the same pieces make of its agents' episodes alone."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from epibatch.connectors import ConnectorV2
from epibatch.connectors.common import AgentToModuleMapping, FlattenObservations
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.module_to_env import ModuleToAgentUnmapping
from epibatch.core.errors import ConfigError, EpisodeError, PipelineError, UnknownNameError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import Lab
from oracle.teams import ACTIONS, SPACES, STATE, Team, keywords, module_of, teams

CASES = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def modules() -> MultiRLModule:
    """One module of each kind; `thinker` has a state."""
    agent_of = {module_of(agent): agent for agent in SPACES}
    specs = {
        name: RLModuleSpec(
            module_class=type(Lab.module()),
            observation_space=SPACES[agent_of[name]],
            action_space=ACTIONS,
            model_config={"state": state, "max_seq_len": 3},
        )
        for name, state in STATE.items()
    }
    return MultiRLModule(rl_module_specs=specs)


def mapped(pieces: list[Any], **settings: Any) -> list[Any]:
    """Default pieces with the mapping in front of the batching."""
    names = [type(piece).__name__ for piece in pieces]
    at = names.index("BatchIndividualItems")
    return [*pieces[:at], AgentToModuleMapping(**settings), *pieces[at:]]


def unmapped(pieces: list[Any]) -> list[Any]:
    names = [type(piece).__name__ for piece in pieces]
    at = names.index("RemoveSingleTsTimeRankFromBatch")
    return [*pieces[:at], ModuleToAgentUnmapping(), *pieces[at:]]


def same(ours: Any, expected: Any) -> None:
    """Equal to the last bit, keys and types included."""
    assert type(ours) is type(expected)
    if isinstance(ours, dict):
        assert ours.keys() == expected.keys()
        for key in ours:
            same(ours[key], expected[key])
    elif isinstance(ours, list):
        assert len(ours) == len(expected)
        for one, other in zip(ours, expected):
            same(one, other)
    elif isinstance(ours, (torch.Tensor, np.ndarray)):
        assert ours.dtype == expected.dtype
        assert ours.shape == expected.shape
        assert np.array_equal(np.asarray(ours), np.asarray(expected))
    else:
        assert ours == expected


SPACE_ARGS = {"spaces": (keywords()["observation_space"], keywords()["action_space"])}


@pytest.mark.parametrize("ppo", [False, True])
@given(team=teams())
@CASES
def test_each_module_is_trained_on_what_its_agents_episodes_give(lab: Any, team: Team, ppo: bool) -> None:
    episodes, whole = team.chunks(MultiAgentEpisode, agent_steps=team.lookback), modules()
    own: dict[str, list[Any]] = {}
    for episode in episodes:
        for segment in episode.segments:
            if len(segment.episode):
                own.setdefault(module_of(segment.agent_id), []).append(segment.episode)
    if not own:
        with pytest.raises(EpisodeError, match="has made a step"):
            lab.run("learner", mapped(lab.defaults("learner", ppo)), episodes, rl_module=whole, **SPACE_ARGS)
        return
    found = lab.run("learner", mapped(lab.defaults("learner", ppo)), episodes, rl_module=whole, **SPACE_ARGS)
    expected = {
        name: lab.run("learner", lab.defaults("learner", ppo), parts, rl_module=whole[name])
        for name, parts in own.items()
    }
    assert list(found) == list(own)
    same(found, expected)


def outputs(whole: MultiRLModule, batch: dict[str, Any]) -> dict[str, Any]:
    """Module outputs in which every row can be told from its observation."""
    made = {}
    for name, columns in batch.items():
        first = columns["obs"][..., :1]
        made[name] = {"action_dist_inputs": torch.cat([first, -first, 2 * first, first * 0], -1)}
        if STATE[name]:
            made[name]["state_out"] = {"h": columns["obs"][:, 0, :2] + 0.5}
    return made


@given(team=teams())
@CASES
def test_each_module_acts_for_its_agents_and_each_agent_gets_its_row(lab: Any, team: Team) -> None:
    episodes, whole = team.chunks(MultiAgentEpisode, agent_steps=team.lookback), modules()
    shared: dict[str, Any] = {}
    found = lab.run(
        "env_to_module",
        mapped(lab.defaults("env_to_module")),
        episodes,
        rl_module=whole,
        shared_data=shared,
        **SPACE_ARGS,
    )
    acting: dict[str, list[tuple[int, Any]]] = {}
    for i, episode in enumerate(episodes):
        for agent_id in episode.get_agents_to_act():
            acting.setdefault(module_of(agent_id), []).append((i, agent_id))
    assert found.keys() == acting.keys()
    for name, own in acting.items():
        parts = [episodes[i].agent_episodes[agent_id] for i, agent_id in own]
        spaces = whole[name].observation_space, ACTIONS
        alone = lab.run("env_to_module", lab.defaults("env_to_module"), parts, rl_module=whole[name], spaces=spaces)
        same(found[name], alone)
    given_back = lab.run(
        "module_to_env",
        unmapped(lab.defaults("module_to_env")),
        episodes,
        rl_module=whole,
        batch=outputs(whole, found),
        shared_data=shared,
        explore=False,
        **SPACE_ARGS,
    )
    if not acting:
        assert not any(given_back.values())
        return
    assert [list(one) for one in given_back["actions"]] == [list(episode.get_agents_to_act()) for episode in episodes]
    for i, episode in enumerate(episodes):
        for agent_id, action in given_back["actions"][i].items():
            first = float(episode.get_observations(-1, agent_ids=[agent_id])[agent_id][0])
            assert action == (2 if first > 0 else 1), "the greedy action of the agent's own observation"
            if STATE[module_of(agent_id)]:
                own_state = given_back["state_out"][i][agent_id]["h"]
                assert own_state.tolist() == [first + 0.5, -first + 0.5]
            else:
                assert agent_id not in given_back.get("state_out", [{}] * len(episodes))[i]


def small(agents: tuple[str, ...] = ("a", "b")) -> MultiAgentEpisode:
    """One env step of some agents."""
    episode = MultiAgentEpisode(id_="e", **keywords())
    episode.add_env_reset(observations={agent: np.ones(SPACES[agent].shape, np.float32) for agent in agents})
    obs = {agent: np.full(SPACES[agent].shape, 2, np.float32) for agent in agents}
    episode.add_env_step(obs, dict.fromkeys(agents, 1), dict.fromkeys(agents, 0.5))
    return episode


def test_a_module_that_nobody_knows_is_named(lab: Any) -> None:
    whole = modules()
    whole.remove_module("walker")
    with pytest.raises(UnknownNameError, match=r"agent 'b'[\s\S]*found: +'walker'"):
        lab.run("learner", mapped(lab.defaults("learner")), [small()], rl_module=whole, **SPACE_ARGS)


@pytest.mark.parametrize("module_id", [3, None, ("walker", 1)])
def test_a_module_whose_id_is_no_text_is_named(lab: Any, module_id: Any) -> None:
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda *_, **__: module_id)
    episode.add_env_reset(observations={"a": np.ones(2, np.float32)})
    with pytest.raises(UnknownNameError, match=re.escape(f"found:    {module_id!r}")):
        lab.run("env_to_module", mapped(lab.defaults("env_to_module")), [episode], rl_module=modules())


def test_agents_of_one_module_that_pieces_make_alike_are_rewritten_each_by_its_space() -> None:
    """After the first step both have episodes of one space, but the environment still gives them two kinds."""
    spaces = gym.spaces.Dict({"a": gym.spaces.MultiDiscrete([2, 3]), "b": gym.spaces.MultiDiscrete([3, 2])})
    actions = gym.spaces.Dict(dict.fromkeys("ab", ACTIONS))
    episode = MultiAgentEpisode(observation_space=spaces, action_space=actions)
    episode.add_env_reset(observations={"b": [1, 0], "a": [1, 2]})
    pieces = mapped([FlattenObservations(multi_agent=True), *Lab.defaults("env_to_module")])
    pipeline = EnvToModulePipeline(spaces, actions, connectors=pieces)
    pipeline(rl_module=None, batch={}, episodes=[episode], explore=False)
    for seen in ({"b": [2, 1], "a": [0, 1]}, {"b": [1, 1], "a": [1, 0]}):
        episode.add_env_step(seen, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
        found = pipeline(rl_module=None, batch={}, episodes=[episode], explore=False)
        one_hot = [np.concatenate([np.eye(n)[x] for n, x in zip(spaces[agent].nvec, seen[agent])]) for agent in "ba"]
        assert found["default_policy"]["obs"].tolist() == np.stack(one_hot).tolist()
        episode = episode.cut()


def test_ported_pieces_of_the_learner_are_not_shown_parts_without_rows(lab: Any) -> None:
    """Agents that took no step in a chunk are in it, but have no rows that items could belong to."""

    def add(batch: Any, episodes: Any) -> None:
        for part in ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            items = part.get_rewards() * 2
            ConnectorV2.add_n_batch_items(batch, "doubled", items, len(part), single_agent_episode=part)

    episode = small()
    episode.add_env_step({"c": np.ones(SPACES["c"].shape, np.float32)}, {}, {})
    pieces = mapped([lab.user(add), *lab.defaults("learner")])
    found = lab.run("learner", pieces, [episode], rl_module=modules(), **SPACE_ARGS)
    assert {module_id: own["doubled"].reshape(-1).tolist()[:1] for module_id, own in found.items()} == {
        "thinker": [1.0],
        "walker": [1.0],
    }


def test_a_single_module_is_refused_by_name(lab: Any) -> None:
    with pytest.raises(ConfigError, match="a MultiRLModule, since the episodes have several agents"):
        lab.run("learner", mapped(lab.defaults("learner")), [small()], rl_module=lab.module(), **SPACE_ARGS)


def test_single_and_multi_agent_episodes_are_not_mixed(lab: Any) -> None:
    with pytest.raises(PipelineError, match="SingleAgentEpisode at position 1"):
        lab.run("learner", mapped(lab.defaults("learner")), [small(), SingleAgentEpisode()], rl_module=modules())


def test_columns_by_agent_are_not_batched(lab: Any) -> None:
    with pytest.raises(PipelineError, match="put AgentToModuleMapping before BatchIndividualItems"):
        lab.run("learner", lab.defaults("learner"), [small()], rl_module=modules(), **SPACE_ARGS)


def test_pieces_behind_the_bootstrap_see_lengthened_agents(lab: Any) -> None:
    seen: dict[str, Any] = {}

    def look(batch: Any, episodes: Any) -> None:
        seen["rewards"] = {agent: rows.tolist() for agent, rows in episodes[0].get_rewards().items()}
        seen["own"] = {a: one.get_rewards().tolist() for a, one in episodes[0].agent_episodes.items()}
        seen["t"] = episodes[0].env_t
        episodes[0].agent_episodes["a"].set_rewards(new_data=7.0, at_indices=0)

    episode, pieces = small(), mapped(lab.defaults("learner", ppo=True))
    pieces.insert(1, lab.user(look))
    found = lab.run("learner", pieces, [episode], rl_module=modules(), **SPACE_ARGS)
    assert seen["own"] == {"a": [0.5, 0.0], "b": [0.5, 0.0]}
    assert seen["rewards"] == seen["own"]
    assert seen["t"] == 2
    assert episode.get_rewards()["a"].tolist() == [0.5], "the episode stays as it is"
    assert found["thinker"]["rewards"].reshape(-1).tolist()[:2] == [7.0, 0.0]
    assert found["walker"]["rewards"].tolist() == [0.5, 0.0]
