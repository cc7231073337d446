"""RLlib's example scripts about connectors, ported: their configs build the same pipelines, and train here.

A script is run as it is, up to where it hands its config to the experiment; argument parsing is RLlib's own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import ConfigError
from epibatch.core.registry import register_env
from epibatch.porting import port_source
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
from oracle.makers import run
from stock.installed import config_of, ported, ported_module, rllib_file

SCRIPTS = "examples/connectors"
IMAGES = gym.spaces.Box(0, 255, (64, 64, 1), np.uint8)


class Images(gym.Env):
    """Random images, in the place of Atari's."""

    observation_space, action_space = IMAGES, gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._image(), {}

    def step(self, action):
        return self._image(), 1.0, False, bool(self.np_random.random() < 0.1), {}

    def _image(self):
        return self.np_random.integers(0, 256, (64, 64, 1), np.uint8)


register_env("stock_images", lambda env_config: Images())


def env_of(stem: str) -> Any:
    """An environment with the spaces of a script's own."""
    if stem == "flatten_observations_dict_space":
        module = RLLIB.module("examples.envs.classes.cartpole_with_dict_observation_space")
        return module.CartPoleWithDictObservationSpace()
    if stem == "prev_actions_prev_rewards":
        return RLLIB.module("examples.envs.classes.stateless_cartpole").StatelessCartPole()
    if stem == "mean_std_filtering":
        return gym.wrappers.TransformObservation(
            gym.make("Pendulum-v1"),
            lambda row: ((row + 1.0) / 2.0 * (4000.0 - 1456.0) - 4000.0).astype(np.float32),
            gym.spaces.Box(-4000.0, -1456.0, (3,), np.float32),
        )
    return Images() if stem == "frame_stacking" else gym.make("CartPole-v1")


RUN = [
    "flatten_observations_dict_space",
    "frame_stacking",
    "mean_std_filtering",
    "prev_actions_prev_rewards",
    "single_agent_observation_preprocessor",
]
SEVERAL = ["multi_agent_observation_preprocessor"]
"""Scripts about several agents."""

OLD_SETTING = "            clip_rewards=True,\n"
"""A setting of the old API stack's sample collectors, which RLlib's new one takes and does not read."""


def ported_script(stem: str, folder: Path) -> Path:
    """A script, ported, without what is named above."""
    source = rllib_file(f"{SCRIPTS}/{stem}.py").read_text(encoding="utf-8")
    assert (OLD_SETTING in source) == (stem == "frame_stacking")
    path = folder / f"{stem}.py"
    path.write_text(ported(source.replace(OLD_SETTING, ""), path.name).text, encoding="utf-8")
    return path


@pytest.fixture
def configs(tmp_path: Path) -> Any:
    """The configs that a script makes, in RLlib and here."""

    def make(stem: str, *arguments: str) -> dict[Library, Any]:
        theirs = config_of(rllib_file(f"{SCRIPTS}/{stem}.py"), *arguments)
        return {RLLIB: theirs, EPIBATCH: config_of(ported_script(stem, tmp_path), *arguments)}

    return make


def journey(env: Any, steps: int, seed: int) -> list[dict[str, Any]]:
    """What happens to an agent that acts at random, step after step."""
    env.action_space.seed(seed)
    taken = [{"observation": env.reset(seed=seed)[0]}]
    while len(taken) < steps and not (taken[-1].get("terminated") or taken[-1].get("truncated")):
        action = env.action_space.sample()
        names = ("observation", "reward", "terminated", "truncated")
        taken.append({"action": action, **dict(zip(names, env.step(action)))})
    return taken


def seen_by_modules(config: Any, episode: Any, taken: list[dict[str, Any]]) -> list[Any]:
    """The observations that the config's env-to-module pipeline makes of a journey, step after step, and its space."""
    spaces = dict.fromkeys(("__env__", "__env_single__"), (episode.observation_space, episode.action_space))
    pipeline, seen = config.build_env_to_module_connector(spaces=spaces), []
    for step, event in enumerate(taken):
        (episode.add_env_step if step else episode.add_env_reset)(**event)
        seen.append(run(pipeline, [episode], explore=True))
    return [*seen, pipeline.observation_space]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("stem", RUN)
def test_the_pipeline_shows_the_module_the_same(configs, stem, seed):
    both, env = configs(stem), env_of(stem)
    taken = journey(env, 12, seed)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    theirs, ours = (seen_by_modules(both[own], own.SingleAgentEpisode(**spaces), taken) for own in BOTH)
    assert len(theirs) == len(ours) == len(taken) + 1 > 4
    assert theirs.pop() == ours.pop()
    for other, mine in zip(theirs, ours):
        other, mine = (np.array(batch["obs"]) for batch in (other, mine))
        assert (other.shape, other.dtype) == (mine.shape, mine.dtype)
        if stem == "mean_std_filtering":  # sums in another order
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("stem", RUN)
def test_the_ported_script_trains(tmp_path, stem):
    config = config_of(ported_script(stem, tmp_path))
    if stem == "frame_stacking":
        config.environment("stock_images", env_config={})
    elif stem in ("flatten_observations_dict_space", "prev_actions_prev_rewards"):
        register_env("env", lambda _: env_of(stem))  # which the script has registered; its class is RLlib's
    config.env_runners(num_envs_per_env_runner=2)
    config.training(train_batch_size=64, minibatch_size=32, num_epochs=1)
    algorithm = config.build_algo()
    results = algorithm.train()
    assert np.isfinite(results["learners"]["default_policy"]["total_loss"])
    assert results["num_env_steps_sampled_lifetime"] >= 64
    algorithm.stop()


def test_a_setting_that_rllib_takes_and_does_not_read_is_named(tmp_path):
    source = rllib_file(f"{SCRIPTS}/frame_stacking.py").read_text(encoding="utf-8")
    script = tmp_path / "whole.py"
    result = port_source(source, "whole.py")
    assert [left.reason for left in result.leftovers if left.name == "environment(clip_rewards=...)"] != []
    script.write_text(result.text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"environment\.clip_rewards"):
        config_of(script)


# ------------------------------------------------------------------------------------- several agents

CLASS = "connectors.classes.add_other_agents_row_index_to_xy_pos"
CORRIDOR = "envs.classes.multi_agent.double_row_corridor_env"


@pytest.fixture
def agents_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script about several agents, ported, with the connector and the environment that it imports."""
    path = ported_script(SEVERAL[0], tmp_path)
    text = path.read_text(encoding="utf-8")
    for module in (CLASS, CORRIDOR):
        made = ported_module(f"examples/{module.replace('.', '/')}.py", tmp_path)
        monkeypatch.setitem(sys.modules, made.__name__, made)
        assert f"ray.rllib.examples.{module}" in text
        text = text.replace(f"ray.rllib.examples.{module}", made.__name__)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_pipeline_shows_several_modules_the_same(agents_script, seed):
    configs = {RLLIB: config_of(rllib_file(f"{SCRIPTS}/{SEVERAL[0]}.py")), EPIBATCH: config_of(agents_script)}
    env, rng = RLLIB.module(f"examples.{CORRIDOR}").DoubleRowCorridorEnv(), np.random.default_rng(seed)
    taken = [dict(zip(("observations", "infos"), env.reset()))]
    for _ in range(11):
        actions = {agent: int(rng.integers(4)) for agent in taken[-1]["observations"]}
        names = ("observations", "rewards", "terminateds", "truncateds", "infos")
        taken.append({"actions": actions, **dict(zip(names, env.step(actions)))})
    spaces = [dict.fromkeys(env.possible_agents, env.get_observation_space("agent_0"))]
    spaces.append(dict.fromkeys(env.possible_agents, env.get_action_space("agent_0")))
    names = ("observation_space", "action_space")
    settings: dict[str, Any] = dict(zip(names, map(gym.spaces.Dict, spaces)))
    settings["agent_to_module_mapping_fn"] = lambda agent, episode: "p0" if agent == "agent_0" else "p1"
    theirs, ours = (seen_by_modules(configs[own], own.MultiAgentEpisode(**settings), taken) for own in BOTH)
    assert theirs.pop() == ours.pop()
    assert len(theirs) == len(ours) == 12
    for other, mine in zip(theirs, ours):
        assert sorted(other) == sorted(mine) == ["p0", "p1"]
        for name, columns in mine.items():
            rows, expected = np.array(columns["obs"]), np.array(other[name]["obs"])
            assert (expected.shape, expected.dtype) == (rows.shape, rows.dtype)
            np.testing.assert_array_equal(rows, expected)


def test_the_ported_script_about_several_agents_trains(agents_script):
    config = config_of(agents_script)
    config.env_runners(num_envs_per_env_runner=2)
    config.training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    algorithm = config.build_algo()
    results = algorithm.train()
    assert all(np.isfinite(results["learners"][name]["total_loss"]) for name in ("p0", "p1"))
    assert algorithm.get_module("p0").observation_space.shape == (33,)  # 30 fields and 3 rows
    algorithm.stop()


def test_every_script_is_run():
    stems = {path.stem for path in rllib_file(SCRIPTS).glob("*.py")} - {"__init__"}
    assert stems == {*RUN, *SEVERAL}
