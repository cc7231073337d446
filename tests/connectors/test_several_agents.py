"""Several agents: keys and groups of their rows, plain layouts and back, and what each module gets."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import random_examples
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from hypothesis import HealthCheck, given, settings

from epibatch.connectors import ConnectorV2, Piece
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping, FlattenObservations
from epibatch.connectors.env_to_module import AgentIndicator, EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.connectors.module_to_env import ModuleToAgentUnmapping
from epibatch.core.errors import (
    BatchLayoutError,
    ColumnError,
    ConfigError,
    EpisodeError,
    PipelineError,
    UnknownNameError,
)
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.core.spaces import BatchedNdArray
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_episodes import assert_same
from fixture_pieces import Lab, UserPiece
from oracle.teams import ACTIONS as TEAM_ACTIONS
from oracle.teams import SPACES as TEAM_SPACES
from oracle.teams import STATE, Team, keywords, module_of, teams

MODULES = {"x": "m", "y": "n", "z": "m"}


def game(id_: str = "e") -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=lambda agent_id, *_, **__: MODULES[agent_id])
    episode.add_env_reset(observations={"z": 0.0, "y": 10.0, "x": 20.0})
    for t in (1.0, 2.0):
        rewards = {"z": t, "y": 10 + t, "x": 20 + t}
        episode.add_env_step(rewards, dict.fromkeys("zyx", 0), rewards)
    return episode


def lives(id_: str = "e") -> MultiAgentEpisode:
    """`b` and `a` step; `b` ends, comes back and steps again; `c` has only observed."""
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=lambda agent_id, *_, **__: agent_id.upper())
    episode.add_env_reset(observations={"b": 0, "a": 10})
    episode.add_env_step({"b": 1, "a": 11}, {"b": 0, "a": 0}, {"b": 0.0, "a": 0.0}, terminateds={"b": True})
    episode.add_env_step({"b": 2, "c": 20}, {"a": 0}, {})
    episode.add_env_step({"b": 3}, {"b": 0}, {"b": 0.0})
    return episode


def run(*pieces: Any, episodes: Any = None) -> Any:
    return LearnerConnectorPipeline(connectors=list(pieces))(episodes=episodes or [game()], batch={})


def rows() -> list[Any]:
    return [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]


def seen(*pieces: Any, episodes: Any) -> Any:
    """What a plain piece after these sees: {column: {key: list}}."""
    found: dict[str, Any] = {}
    run(*pieces, UserPiece(lambda batch, episodes: found.update(batch)), episodes=episodes)
    return {name: {key: items[0].tolist() for key, items in own.items()} for name, own in found.items()}


def test_training_takes_every_life_that_has_steps_and_all_keys_differ() -> None:
    found = seen(*rows()[:1], episodes=[lives()])["obs"]
    assert found == {("e", "b_0", "B"): [0], ("e", "b_1", "B"): [2], ("e", "a", "A"): [10]}
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0, "a_1": 10})
    episode.add_env_step({"a": 1, "a_1": 11}, {"a": 0, "a_1": 0}, {"a": 0, "a_1": 0}, terminateds={"a": True})
    episode.add_env_step({"a": 2}, {}, {})
    episode.add_env_step({"a": 3}, {"a": 0}, {"a": 0})
    found = seen(*rows()[:1], episodes=[episode])["obs"]
    assert list(found) == [("e", name, "default_policy") for name in ("a_0", "a_1_", "a_1")]


def test_acting_takes_the_newest_life_of_agents_with_a_new_observation() -> None:
    pieces = [AddObservationsFromEpisodesToBatch(), AgentToModuleMapping()]
    episode, shared = lives(), {}
    assert EnvToModulePipeline(connectors=pieces[:1])(episodes=[episode])["obs"] == {("e", "b", "B"): [3]}
    episode.add_env_step({"a": 12, "b": 4}, {"b": 0}, {"a": 0.0, "b": 0.0}, terminateds={"b": True})
    acting = EnvToModulePipeline(connectors=pieces)
    assert acting(episodes=[episode], shared_data=shared) == {"A": {"obs": [12]}}, "b has ended"
    ended = MultiAgentEpisode(id_="e")
    ended.add_env_reset(observations={"a": 0, "b": 10, "c": 20})
    rewards = dict.fromkeys("abc", 0.0)
    ended.add_env_step({"a": 1, "c": 21}, dict.fromkeys("abc", 0), rewards, terminateds={"b": True, "c": True})
    shown = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])(episodes=[ended])["obs"]
    assert [key[1] for key in shown] == ["a", "c"], "b ended without an observation"


def test_the_iterator_goes_by_life_or_by_new_observation() -> None:
    episodes, iterate = [lives(), lives("f")], ConnectorV2.single_agent_episode_iterator
    every = [part.get_observations().tolist() for part in iterate(episodes, agents_that_stepped_only=False)]
    assert every == [[0, 1], [2, 3], [10, 11], [20]] * 2
    assert [part.get_observations().tolist() for part in iterate(episodes)] == [[2, 3]] * 2
    column = {("e", "b", "B"): [1.5], ("f", "b", "B"): [2.5]}
    zipped = [(part.multi_agent_episode_id, item) for part, item in iterate(episodes, zip_with_batch_column=column)]
    assert zipped == [("e", 1.5), ("f", 2.5)]


def test_what_a_plain_piece_adds_by_agent_is_a_column_of_its_module() -> None:
    def add(batch: Any, episodes: Any) -> None:
        for part in ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            ConnectorV2.add_n_batch_items(batch, "twice", 2 * part.get_rewards(), len(part), part)
        batch["note"] = "mine"

    shown: dict[str, Any] = {}
    pieces = [*rows(), UserPiece(lambda batch, episodes: shown.update(batch)), UserPiece(add)]
    found = run(*pieces, AgentToModuleMapping(as_learner_connector=True), BatchIndividualItems())
    assert list(shown["rewards"]) == [("e", "z", "m"), ("e", "y", "n"), ("e", "x", "m")]
    (items,) = shown["rewards"]["e", "y", "n"]
    assert isinstance(items, BatchedNdArray) and items.tolist() == [11.0, 12.0]
    assert found["m"]["twice"].tolist() == [2.0, 4.0, 42.0, 44.0]
    assert found["n"]["twice"].tolist() == [22.0, 24.0]
    assert found["note"] == "mine", "what belongs to no module travels along"


def test_what_a_plain_piece_changes_by_module_stays_changed_and_lost_rows_are_named() -> None:
    def change(batch: Any, episodes: Any) -> None:
        batch["m"]["rewards"] = [2 * item for item in batch["m"]["rewards"]]

    def lose(batch: Any, episodes: Any) -> None:
        batch["m"]["rewards"] = batch["m"]["rewards"][:1]

    mapping = AgentToModuleMapping(as_learner_connector=True)
    found = run(*rows(), mapping, UserPiece(change), BatchIndividualItems())
    assert found["m"]["rewards"].tolist() == [2.0, 4.0, 42.0, 44.0]
    assert found["n"]["rewards"].tolist() == [11.0, 12.0]
    with pytest.raises(ColumnError, match=r"(?s)column 'rewards' of module 'm'.*expected: 4 rows.*found: +2 rows"):
        run(*rows(), mapping.clone(), UserPiece(lose), BatchIndividualItems())


def test_keys_that_are_nobodys_are_named() -> None:
    def stray(batch: Any, episodes: Any) -> None:
        batch["rewards"]["e", "w", "m"] = [1.0]

    with pytest.raises(BatchLayoutError, match=r"such as \('e', 'z', 'm'\)[\s\S]*\('e', 'w', 'm'\)"):
        run(*rows(), UserPiece(stray), AgentToModuleMapping(as_learner_connector=True))


# -- groups of equal spaces ----------------------------------------------------------------------


class Groups(Piece):
    """Counts the groups of chunks that it is given."""

    reads = writes = ()

    def run(self, batch: Any, group: Any) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return batch


def groups_of(*spaces: gym.Space[Any] | None) -> int:
    """How many groups the agents of one module are in, that have these observation spaces."""
    names = [f"a{i}" for i in range(len(spaces))]
    given = {} if spaces[0] is None else {"observation_space": dict(zip(names, spaces))}
    episode = MultiAgentEpisode(**given)
    seen = {name: 0 if space is None else space.sample() for name, space in zip(names, spaces)}
    episode.add_env_reset(observations=seen)
    piece = Groups()
    EnvToModulePipeline(connectors=[piece])(episodes=[episode])
    return int(piece.count)


THIRD = np.float32(1 / 3)


@pytest.mark.parametrize(
    ("one", "other", "groups"),
    [
        (Box(-1, 1, (2,), np.float32), Box(-1, 2, (2,), np.float32), 2),
        (Box(-1, 1, (2, 1), np.float32), Box(-1, 1, (1, 2), np.float32), 2),
        (Box(0, 1, (2,), np.int64), Box(0, 1, (2,), np.uint64), 2),
        (Discrete(3), Discrete(3, start=1), 2),
        (Dict(a=Discrete(2), b=Discrete(3)), Dict(a=Discrete(2), c=Discrete(3)), 2),
        (Dict(a=Tuple((Discrete(2),))), Dict(a=Tuple((Discrete(3),))), 2),
        (Box(-THIRD, THIRD, (2,)), Box(-THIRD, np.nextafter(THIRD, np.float32(1)), (2,)), 1),
        (Dict({"a": Discrete(2), "b": Discrete(3)}), Dict({"b": Discrete(3), "a": Discrete(2)}), 1),
        (None, None, 2),
    ],
)
def test_groups_are_those_of_comparing_spaces(one: Any, other: Any, groups: int) -> None:
    """Whichever objects the spaces are; agents without spaces are told apart by their names."""
    assert groups_of(one, other) == groups
    if one is not None:
        assert groups_of(one, other, pickle.loads(pickle.dumps(one)), pickle.loads(pickle.dumps(other))) == groups


# -- agents that pieces are told of ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "found", "do"),
    [
        ([0, 1], "1", "write 1: ids are of type int here, not str"),
        (["0", "1"], 1, "write '1': ids are of type str here, not int"),
        (["left", "right"], "lift", "did you mean 'left'?"),
        (["left", "right"], "q", "name it in agent_ids"),
        (["a", "b", "a"], "a", "agent_ids"),
        ({"a"}, "a", "agent_ids"),
        ("ab", "a", "agent_ids"),
        ([], "a", "agent_ids"),
        (3, "a", "agent_ids"),
    ],
)
def test_an_agent_that_is_not_in_the_list_is_told_apart_from_the_one_that_was_meant(
    agents: Any, found: Any, do: str
) -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={found: np.zeros(1, np.float32)})
    with pytest.raises((UnknownNameError, ConfigError)) as caught:
        AgentIndicator(agent_ids=agents)(batch={}, episodes=[episode])
    assert do in str(caught.value)


# -- each module gets what the same pieces make of its agents' episodes alone -----------------------------

CASES = settings(max_examples=random_examples(10), suppress_health_check=list(HealthCheck))


def modules(absent: str = "") -> MultiRLModule:
    """One module of each kind; `thinker` has a state."""
    agent_of = {module_of(agent): agent for agent in TEAM_SPACES}
    specs = {
        name: RLModuleSpec(
            module_class=type(Lab.module()),
            observation_space=TEAM_SPACES[agent_of[name]],
            action_space=TEAM_ACTIONS,
            model_config={"state": state, "max_seq_len": 3},
        )
        for name, state in STATE.items()
        if name != absent
    }
    return MultiRLModule(rl_module_specs=specs)


def mapped(pieces: list[Any], **settings: Any) -> list[Any]:
    """Default pieces with the mapping before the batching."""
    names = [type(piece).__name__ for piece in pieces]
    at = names.index("BatchIndividualItems")
    return [*pieces[:at], AgentToModuleMapping(**settings), *pieces[at:]]


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
    assert_same(found, expected)


def module_by_letter(agent: Any, *_: Any, **__: Any) -> str:
    return "q" if agent == "y" else "p"


def test_each_agent_gets_the_action_that_its_module_decided_on(lab: Any) -> None:
    """Modules p (of x and z) and q (of y) choose 1 for agents that observed 1; agents of the modules alternate."""
    spec = RLModuleSpec(module_class=type(lab.module()), observation_space=lab.obs_space, action_space=lab.act_space)
    whole = MultiRLModule(rl_module_specs={"p": spec, "q": spec})
    wanted = [{"x": 1, "y": 0, "z": 0}, {"z": 1, "y": 1, "x": 0}, {"y": 0}, {"z": 0, "y": 1}]
    episodes = []
    for i, actions in enumerate(wanted):
        episode = MultiAgentEpisode(str(i), agent_to_module_mapping_fn=module_by_letter)
        episode.add_env_reset(observations={agent: np.float32([own, i]) for agent, own in actions.items()})
        episodes.append(episode)
    call: dict[str, Any] = {"rl_module": whole, "shared_data": {}, "explore": False}
    found = lab.run("env_to_module", mapped(lab.defaults("env_to_module")), episodes, **call)
    outputs = {
        name: {"action_dist_inputs": torch.stack([1 - own["obs"][:, 0], own["obs"][:, 0]], -1), "seen": own["obs"]}
        for name, own in found.items()
    }
    outputs["p"]["memory"] = {"h": found["p"]["obs"][:, :1] + 0.5}
    pieces = lab.defaults("module_to_env")
    pieces.insert(3, ModuleToAgentUnmapping())
    out = lab.run("module_to_env", pieces, episodes, batch=outputs, spaces=(None, lab.act_space), **call)
    assert [list(own) for own in out["actions"]] == [list(episode.get_agents_to_act()) for episode in episodes]
    assert out["actions"] == out["actions_for_env"] == wanted
    seen = [{agent: own.tolist() for agent, own in row.items()} for row in out["seen"]]
    assert seen == [{agent: [own, i] for agent, own in actions.items()} for i, actions in enumerate(wanted)]
    memory = [{agent: float(own["h"][0]) for agent, own in row.items()} for row in out["memory"]]
    assert memory == [{agent: own + 0.5 for agent, own in actions.items() if agent != "y"} for actions in wanted]


def small(agents: tuple[str, ...] = ("a", "b")) -> MultiAgentEpisode:
    """One env step of some agents."""
    episode = MultiAgentEpisode(id_="e", **keywords())
    episode.add_env_reset(observations={agent: np.ones(TEAM_SPACES[agent].shape, np.float32) for agent in agents})
    obs = {agent: np.full(TEAM_SPACES[agent].shape, 2, np.float32) for agent in agents}
    episode.add_env_step(obs, dict.fromkeys(agents, 1), dict.fromkeys(agents, 0.5))
    return episode


def stranger(module_id: Any) -> MultiAgentEpisode:
    """An episode whose agent has this module."""
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda *_, **__: module_id)
    episode.add_env_reset(observations={"a": np.ones(2, np.float32)})
    episode.add_env_step({"a": np.ones(2, np.float32)}, {"a": 0}, {"a": 0.0})
    return episode


@pytest.mark.parametrize(
    ("episodes", "module", "mapping", "error", "match"),
    [
        (lambda: [small()], lambda: modules("walker"), True, UnknownNameError, r"agent 'b'[\s\S]*found: +'walker'"),
        (lambda: [stranger(3)], modules, True, UnknownNameError, "found:    3"),
        (lambda: [stranger(None)], modules, True, UnknownNameError, "found:    None"),
        (lambda: [stranger(("walker", 1))], modules, True, UnknownNameError, r"found:    \('walker', 1\)"),
        (lambda: [small()], Lab.module, True, ConfigError, "a MultiRLModule, since the episodes have several agents"),
        (lambda: [small(), SingleAgentEpisode()], modules, True, PipelineError, "SingleAgentEpisode at position 1"),
        (lambda: [small()], modules, False, PipelineError, "put AgentToModuleMapping before BatchIndividualItems"),
    ],
)
def test_episodes_and_modules_that_do_not_fit_are_named(
    lab: Any, episodes: Any, module: Any, mapping: bool, error: Any, match: str
) -> None:
    pieces = mapped(lab.defaults("learner")) if mapping else lab.defaults("learner")
    with pytest.raises(error, match=match):
        lab.run("learner", pieces, episodes(), rl_module=module(), **(SPACE_ARGS if mapping else {}))


def test_agents_of_one_module_that_pieces_make_alike_are_rewritten_each_by_its_space() -> None:
    """After the first step both have episodes of one space, but the environment still gives them two kinds."""
    spaces = gym.spaces.Dict({"a": gym.spaces.MultiDiscrete([2, 3]), "b": gym.spaces.MultiDiscrete([3, 2])})
    actions = gym.spaces.Dict(dict.fromkeys("ab", TEAM_ACTIONS))
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
    episode.add_env_step({"c": np.ones(TEAM_SPACES["c"].shape, np.float32)}, {}, {})
    pieces = mapped([lab.user(add), *lab.defaults("learner")])
    found = lab.run("learner", pieces, [episode], rl_module=modules(), **SPACE_ARGS)
    assert {module_id: own["doubled"].reshape(-1).tolist()[:1] for module_id, own in found.items()} == {
        "thinker": [1.0],
        "walker": [1.0],
    }


def test_pieces_after_the_bootstrap_see_lengthened_agents(lab: Any) -> None:
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
