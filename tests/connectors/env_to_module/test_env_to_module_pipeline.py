"""From episodes to a module's batch: the default order as a whole."""

from __future__ import annotations

import numpy as np
import torch

from epibatch.connectors.env_to_module import EnvToModulePipeline


def two_episodes(lab, state=0):
    return [lab.episode("a", 0, state=state, numpy=False), lab.episode("b", 3, state=state, numpy=False)]


def test_feed_forward(lab):
    batch = lab.run("env_to_module", lab.defaults("env_to_module"), two_episodes(lab), rl_module=lab.module())
    assert set(batch) == {"obs"}
    assert batch["obs"].dtype == torch.float32
    assert batch["obs"].tolist() == [[0.0, 10.0], [3.0, 13.0]]


def test_recurrent(lab):
    module = lab.module(state=2)
    batch = lab.run("env_to_module", lab.defaults("env_to_module"), two_episodes(lab, 2), rl_module=module)
    assert set(batch) == {"obs", "state_in"}
    assert batch["obs"].tolist() == [[[0.0, 10.0]], [[3.0, 13.0]]]
    assert batch["state_in"]["h"].tolist() == [[-1.0, -1.0], [2.25, 2.25]]
    assert batch["state_in"]["h"].dtype == torch.float32


def test_the_batch_defaults_to_an_empty_one_and_shared_data_is_made(lab):
    spy = lab.spy()
    pipeline = lab.pipeline("env_to_module", [spy, *lab.defaults("env_to_module")])
    batch = pipeline(rl_module=lab.module(), episodes=two_episodes(lab), anything="handed on")
    assert batch["obs"].shape == (2, 2)
    assert spy.seen == {}
    assert isinstance(spy.shared_data, dict)
    assert spy.kwargs["anything"] == "handed on"


def test_a_user_piece_writes_the_newest_observation_back(lab):
    def double(batch, episodes):
        for episode in episodes:
            episode.set_observations(new_data=episode.get_observations(-1) * 2, at_indices=-1)

    episodes = two_episodes(lab)
    batch = lab.run(
        "env_to_module", [lab.user(double), *lab.defaults("env_to_module")], episodes, rl_module=lab.module()
    )
    assert batch["obs"].tolist() == [[0.0, 20.0], [6.0, 26.0]]
    assert episodes[1].get_observations(-1).tolist() == [6.0, 26.0]
    assert episodes[1].get_observations(-2).tolist() == [2.0, 12.0]


def test_a_user_piece_can_supply_the_observations(lab):
    def supply(batch, episodes):
        for i, episode in enumerate(episodes):
            lab.user.add_batch_item(batch, "obs", np.full(3, i, np.float32), episode)

    batch = lab.run(
        "env_to_module", [lab.user(supply), *lab.defaults("env_to_module")], two_episodes(lab), rl_module=lab.module()
    )
    assert batch["obs"].tolist() == [[0.0] * 3, [1.0] * 3]


def test_an_empty_pipeline_keeps_its_spaces(lab):
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space)
    assert (pipeline.observation_space, pipeline.action_space) == (lab.obs_space, lab.act_space)
    assert pipeline(rl_module=None, batch={}, episodes=two_episodes(lab)) == {}
