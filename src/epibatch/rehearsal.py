"""A small stage on which one connector piece is tried: an environment, recorded episodes, pipelines, a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import gymnasium as gym

from epibatch.core.struct_batches import convert_to_numpy

__all__ = ["Maker", "Rehearsal", "Stage"]

Maker: TypeAlias = Callable[[], Any]
_STEPS = 24


class Stage(gym.Env[Any, Any]):
    """An environment that draws observations from its space, ends episodes at once or in time, and checks actions."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.observation_space, self.action_space = env_config["spaces"]
        self.refused: list[Any] = env_config["refused"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            self.refused.append(action)
        self._steps += 1
        ends = self.np_random.random() < 0.15
        return self.observation_space.sample(), float(self._steps % 3), ends, self._steps >= 7 and not ends, {}


class Rehearsal:
    """Recorded episodes, pipelines with a piece in them, and a module to go with them.

    Args:
        make: makes a new piece.
        pipeline: where it goes.
        spaces: observation and action space of one environment.
        model_config: settings of the default module.
    """

    def __init__(self, make: Maker, pipeline: str, spaces: tuple[Any, Any], model_config: dict[str, Any]) -> None:
        self.make, self.pipeline, self.spaces = make, pipeline, spaces
        self.refused: list[Any] = []
        self._model_config = {"fcnet_hiddens": [4], "max_seq_len": 4, **model_config}
        self.sampled = self.sample([], lookback=8)

    def config(self, pieces: Sequence[Any]) -> Any:
        """A small config with these pieces in the pipeline that is checked."""
        from epibatch.algorithms.pipelines import PIPELINES
        from epibatch.algorithms.ppo import PPOConfig

        setting = PIPELINES[self.pipeline].setting
        config = PPOConfig().environment(Stage, env_config={"spaces": self.spaces, "refused": self.refused})
        config.rl_module(model_config=self._model_config).debugging(seed=0)
        config.env_runners(num_envs_per_env_runner=2)
        section = config.learners if self.pipeline == "learner" else config.env_runners
        section(**{setting: _hook(self.pipeline, pieces)})
        return config

    def sample(self, pieces: Sequence[Any], lookback: int = 0) -> list[Any]:
        """What two calls of a runner with these pieces give."""
        from epibatch.env_runner import SingleAgentEnvRunner

        config = self.config(pieces).env_runners(episode_lookback_horizon=lookback)
        runner = SingleAgentEnvRunner(config=config)
        try:
            return [runner.sample(num_timesteps=_STEPS), runner.sample(num_timesteps=_STEPS)]
        finally:
            runner.stop()

    def episodes(self, call: int = 0) -> list[Any]:
        """New copies of the episodes of one sample, as a plain list; some go on from the sample before."""
        from epibatch.episodes import SingleAgentEpisode

        return [SingleAgentEpisode.from_state(one.get_state()) for one in self.sampled[call] if len(one)]

    def pipelines(self, piece: Any, neighbours: bool = False) -> tuple[Any, Any]:
        """The pipelines of an acting step, or the learner's alone, with the piece in its place; seeded."""
        pieces = [_plain(), piece, _plain()] if neighbours else [piece]
        config = self.config(pieces)
        spaces = {"__env__": self.spaces, "__env_single__": self.spaces}
        if self.pipeline == "learner":
            learner = config.build_learner_connector(*self.spaces)
            config.extend_learner_connector(learner)
            made: tuple[Any, Any] = (learner, None)
        else:
            made = (
                config.build_env_to_module_connector(None, spaces),
                config.build_module_to_env_connector(None, spaces),
            )
        for number, one in enumerate(made):
            if one is not None:
                one.seed(number)
        return made

    def module(self, observation_space: Any) -> Any:
        """The default module for what comes out of a pipeline, with the same weights every time."""
        import torch

        from epibatch.core.rl_module import default_module_spec

        with torch.random.fork_rng():
            torch.manual_seed(0)
            return default_module_spec(observation_space, self.spaces[1], self._model_config).build()

    def outputs(self, pipelines: tuple[Any, Any], episodes: Sequence[Any]) -> list[Any]:
        """What the pipelines give for these episodes, as arrays: one train batch, or what each acting step gives."""
        first, second = pipelines
        module = self.module(first.observation_space)
        if second is None:
            return [convert_to_numpy(first(rl_module=module, batch={}, episodes=episodes))]
        return list(self._acting(first, second, module, episodes))

    def _acting(self, first: Any, second: Any, module: Any, recorded: Sequence[Any]) -> Iterator[Any]:
        from epibatch.episodes import SingleAgentEpisode

        steps = min(len(one) for one in recorded)
        episodes = [SingleAgentEpisode(one.id_, observation_space=self.spaces[0]) for one in recorded]
        for t in range(steps + 1):
            for episode, one in zip(episodes, recorded):
                row = one.get_observations(t)
                if t == 0:
                    episode.add_env_reset(row)
                else:
                    extras = {key: one.get_extra_model_outputs(key, t - 1) for key in one.extra_model_outputs}
                    episode.add_env_step(
                        row, one.get_actions(t - 1), one.get_rewards(t - 1), extra_model_outputs=extras
                    )
            shared: dict[str, Any] = {}
            call = {"rl_module": module, "episodes": episodes, "explore": False, "shared_data": shared}
            batch = first(batch={}, **call)
            seen = convert_to_numpy(batch)
            acted = second(batch=module.forward_inference(batch), **call)
            yield {"in": seen, "out": convert_to_numpy(dict(acted))}


def _hook(pipeline: str, pieces: Sequence[Any]) -> Any:
    made = list(pieces)
    if pipeline == "env_to_module":
        return lambda env, spaces, device: made
    return (lambda env, spaces: made) if pipeline == "module_to_env" else (lambda obs_space, act_space: made)


def _plain() -> Any:
    """A piece that does nothing and declares nothing, so that its neighbours see plain dicts."""
    from epibatch.connectors.connector_v2 import ConnectorV2

    class Plain(ConnectorV2):
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            return batch

    return Plain()
