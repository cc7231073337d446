"""Random actions are legal ones, all of them alike, of the rows that the module would see."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch

from epibatch.connectors._engine.call import ROWS
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.env_runner.acting import legal_actions_of_agents, random_legal

MASK = np.array([[True, False, True], [False, True, False]])
SPACE = gym.spaces.Discrete(3)


def drawn(mask, seed):
    return random_legal(EnvToModulePipeline(), {"action_mask": mask}, SPACE, np.random.default_rng(seed))


def test_one_action_a_row_whatever_the_mask_is_made_of():
    masks = [MASK, MASK[:, None], torch.from_numpy(MASK).float(), torch.from_numpy(MASK)[:, None]]
    for seed in range(20):
        found = [drawn(mask, seed) for mask in masks]
        for actions, for_env in found:
            assert np.array_equal(actions, for_env) and np.array_equal(actions, found[0][0])
            assert MASK[np.arange(2), actions].all()
    first = [int(drawn(MASK, seed)[0][0]) for seed in range(200)]
    assert set(first) == {0, 2} and 60 < first.count(0) < 140


def test_nothing_is_drawn_where_nothing_says_what_is_legal():
    assert random_legal(EnvToModulePipeline(), {"obs": MASK}, SPACE, np.random.default_rng(0)) is None


def test_agents_get_their_own_rows():
    batch = {"p": {"action_mask": MASK}, "q": {"obs": MASK}}
    rows = SimpleNamespace(rows={"p": SimpleNamespace(owners=[1, 0], agents=["x", "y"]), "q": None})
    spaces = {"p": (None, SPACE), "q": (None, SPACE)}
    pipeline = EnvToModulePipeline()
    for seed in range(20):
        found = legal_actions_of_agents(pipeline, batch, spaces, {ROWS: rows}, np.random.default_rng(seed))
        assert found.keys() == {(1, "x"), (0, "y")}
        assert found[1, "x"][0] in (0, 2) and found[0, "y"] == (1, 1)
