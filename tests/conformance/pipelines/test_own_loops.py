"""Programs around the acting pipelines that RLlib runs: what they read, and what reaches the environment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from items.lab import OBS, chunk, config, module
from oracle.libraries import EPIBATCH, RLLIB

BOTH = pytest.mark.parametrize("library", [RLLIB, EPIBATCH], ids=lambda library: library.name)
SPEED = gym.spaces.Box(-7, 9, (1,), np.float32)


def to_env(library, space, **settings):
    """The default module-to-env pipeline."""
    spaces = (OBS, space)
    built = config(library, *spaces).environment(**settings)
    return built.build_module_to_env_connector(env=None, spaces={"__env__": spaces, "__env_single__": spaces})


def acted(library, pipeline, outputs, steps=1, **options):
    """The columns of one step in environments "a", "b", ..."""
    count = len(outputs["actions"])
    episodes = [chunk(library, "abc"[i], steps, arrays=library is EPIBATCH, **options) for i in range(count)]
    shared = {"memorized_map_structure": list("abc"[:count])}
    rl_module = module(library, state=options.get("state", False))
    return pipeline(rl_module=rl_module, batch=outputs, episodes=episodes, explore=False, shared_data=shared)


@BOTH
def test_the_values_of_one_environment_are_taken_by_its_index(library):
    """As in RLlib's example `policy_inference_after_training_w_connector.py`, here for a recurrent module."""
    outputs = {
        "actions": torch.tensor([[1], [2]]),
        "state_out": {"h": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "c": torch.zeros(2, 2)},
        "values": torch.tensor([5.0, 6.0]),
    }
    columns = acted(library, to_env(library, gym.spaces.Discrete(3)), outputs, state=True)
    columns.pop("actions_for_env", None)
    episode = library.SingleAgentEpisode(id_="n")
    episode.add_env_reset(np.zeros(2, np.float32))
    row = {name: column[1] for name, column in columns.items()}
    episode.add_env_step(np.ones(2, np.float32), row.pop("actions"), 1.0, extra_model_outputs=row)
    state = episode.get_extra_model_outputs("state_out", -1)
    assert {name: leaf.tolist() for name, leaf in state.items()} == {"h": [3.0, 4.0], "c": [0.0, 0.0]}
    assert float(episode.get_extra_model_outputs("values", -1)) == 6.0


@pytest.mark.parametrize("clip", [False, True])
@BOTH
def test_integer_actions_that_are_not_normalised_reach_the_environment(library, clip):
    pipeline = to_env(library, gym.spaces.Box(-7, 9, (1,), np.int32), normalize_actions=False, clip_actions=clip)
    columns = acted(library, pipeline, {"actions": torch.tensor([[3], [9]])})
    for_env = columns.get("actions_for_env", columns["actions"])
    assert np.asarray(for_env).tolist() == [[3], [9]]


@pytest.mark.parametrize("place", ["NormalizeAndClipActions", "ListifyDataForVectorEnv"])
@pytest.mark.parametrize(
    ("settings", "expected"), [({}, [[1.0], [5.0]]), ({"normalize_actions": False}, [[0.0], [1.0]])]
)
@BOTH
def test_a_late_piece_changes_what_the_environment_gets_if_actions_are_neither_scaled_nor_clipped(
    library, place, settings, expected
):
    class Doubled(library.ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            if isinstance(batch["actions"], dict):
                batch["actions"] = {key: [2 * row for row in rows] for key, rows in batch["actions"].items()}
            else:
                batch["actions"] = 2 * batch["actions"]
            return batch

    pipeline = to_env(library, SPEED, **settings)
    pipeline.insert_after(getattr(library.module_to_env, place), Doubled())
    columns = acted(library, pipeline, {"actions": torch.tensor([[0.0], [0.5]])})
    assert np.asarray(columns["actions"]).tolist() == [[0.0], [1.0]]
    assert np.asarray(columns.get("actions_for_env", columns["actions"])).tolist() == expected
