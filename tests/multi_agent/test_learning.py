"""Episodes of several agents through the learner pipeline into a Learner: modules that agents share, train or not."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow

from epibatch.connectors import learner as pieces
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from epibatch.learner import Learner, LearnerSettings, MultiAgentSettings, PPOLoss

OBS, ACT = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
MODULE_OF = {"a": "red", "b": "blue", "c": "red"}  # two agents share a module
COUNT = {"red": 2, "blue": 1}


def game(number: int, steps: int) -> MultiAgentEpisode:
    """Steps in which all agents act; in odd games they end one after the other. There is a recurrent state for all."""
    rng = np.random.default_rng(number)

    def rows(alive: list[str]) -> dict[str, Any]:
        return {agent: rng.uniform(-1, 1, 4).astype(np.float32) for agent in alive}

    episode = MultiAgentEpisode(
        id_=f"game {number}", agent_to_module_mapping_fn=lambda agent, *_: MODULE_OF[agent], observation_space=OBSERVED
    )
    alive = list(MODULE_OF)
    episode.add_env_reset(observations=rows(alive))
    for step in range(steps):
        logits = {agent: rng.normal(size=2).astype(np.float32) for agent in alive}
        actions = {agent: int(rng.integers(2)) for agent in alive}
        outputs = {
            agent: {
                "action_dist_inputs": logits[agent],
                "action_logp": np.float32(torch.log_softmax(torch.from_numpy(logits[agent]), -1)[actions[agent]]),
                "state_out": {part: rng.normal(size=4).astype(np.float32) for part in ("h", "c")},
            }
            for agent in alive
        }
        ends = alive[-1] if number % 2 and step >= steps - len(MODULE_OF) else None
        rewards = {agent: float(rng.normal()) for agent in alive}
        flags = {ends: True} if ends else {}
        episode.add_env_step(rows(alive), actions, rewards, terminateds=flags, extra_model_outputs=outputs)
        alive = [agent for agent in alive if agent != ends]
    return episode


OBSERVED = dict.fromkeys(MODULE_OF, OBS)
GAMES = [(0, 7), (1, 9), (2, 4)]


def modules(recurrent: tuple[str, ...] = (), ids: tuple[str, ...] = ("red", "blue", "past")) -> MultiRLModule:
    """Modules whose weights follow from their ids."""
    multi = MultiRLModule()
    for module_id in ids:
        with torch.random.fork_rng():
            torch.manual_seed(sum(map(ord, module_id)))
            options = {"fcnet_hiddens": [8], "use_lstm": module_id in recurrent, "lstm_cell_size": 4, "max_seq_len": 3}
            multi.add_module(
                module_id, RLModuleSpec(observation_space=OBS, action_space=ACT, model_config=options).build()
            )
    return multi


def pipeline(*, several: bool) -> Any:
    mapping = [pieces.AgentToModuleMapping(as_learner_connector=True, rl_module_specs=COUNT)] if several else []
    return pieces.LearnerConnectorPipeline(
        connectors=[
            pieces.AddOneTsToEpisodesAndTruncate(),
            pieces.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            pieces.AddColumnsFromEpisodesToTrainBatch(),
            pieces.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
            pieces.AddStatesFromEpisodesToBatch(as_learner_connector=True),
            *mapping,
            pieces.BatchIndividualItems(),
            pieces.NumpyToTensor(),
            pieces.GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8),
        ]
    )


def learner(module: MultiRLModule, *, several: bool = True, **multi_agent: Any) -> Learner:
    return Learner(
        module=module,
        connector=pipeline(several=several),
        settings=LearnerSettings(lr=0.01, minibatch_size=8, num_epochs=3, seed=5),
        loss=PPOLoss(),
        multi_agent=MultiAgentSettings(**multi_agent),
        check_first_update="off",  # the recorded outputs are drawn
    )


class OneModule:
    """A pipeline for one agent's episodes, whose batch stands under a module's id."""

    def __init__(self, module_id: str) -> None:
        self._module_id, self._pipeline = module_id, pipeline(several=False)

    def __call__(self, *, rl_module: Any, **arguments: Any) -> Any:
        return {self._module_id: self._pipeline(rl_module=rl_module[self._module_id], **arguments)}


def parts_of(episodes: list[MultiAgentEpisode], module_id: str) -> list[SingleAgentEpisode]:
    """What the agents of a module did, as episodes of one agent each, game by game."""
    return [
        segment.episode
        for episode in episodes
        for segment in episode.segments
        if MODULE_OF[segment.agent_id] == module_id
    ]


@pytest.mark.parametrize("recurrent", [(), slow(("red",)), slow(("red", "blue"))])
def test_agents_that_share_a_module_are_one_batch_of_it(recurrent):
    """Two updates of both modules against learners of one module, given its agents' episodes alone."""
    games = [game(*each) for each in GAMES]
    together = modules(recurrent)
    both = learner(together)
    results = [both.update(episodes=games) for _ in range(2)]
    for module_id in ("red", "blue"):
        alone, own = modules(recurrent, ids=(module_id,)), parts_of(games, module_id)
        one = learner(alone, several=False)
        one._learner_connector = OneModule(module_id)
        expected = [one.update(episodes=own) for _ in range(2)]
        assert [found[module_id] for found in results] == [found[module_id] for found in expected]
        np.testing.assert_equal(together[module_id].get_state(), alone[module_id].get_state())
        assert results[0][module_id]["num_rows"] == sum(map(len, own))
    np.testing.assert_equal(together["past"].get_state(), modules()["past"].get_state())


@pytest.mark.parametrize("rule", [["red"], lambda module_id, batch: module_id == "red"])
def test_a_frozen_opponent(rule):
    """It plays, and is neither trained nor, where that is known beforehand, asked for values of its steps."""
    together, trained_alone = modules(), modules()
    asked = []
    values = together["blue"].compute_values
    together["blue"].compute_values = lambda *given, **named: asked.append(1) or values(*given, **named)
    results = learner(together, policies_to_train=rule).update(episodes=[game(*each) for each in GAMES])
    assert set(results) == {"red", "__all_modules__"}
    assert len(asked) == (0 if isinstance(rule, list) else 1)
    learner(trained_alone).update(episodes=[game(*each) for each in GAMES])
    np.testing.assert_equal(together["red"].get_state(), trained_alone["red"].get_state())
    np.testing.assert_equal(together["blue"].get_state(), modules()["blue"].get_state())
