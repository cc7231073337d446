"""Runs of single pieces on small episodes: the columns before and after the piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from epibatch.connectors import env_to_module, learner, module_to_env
from epibatch.connectors.authoring import ColumnTransform, Undo
from epibatch.core.registry import build_piece, piece_class
from epibatch.core.rl_module import MultiRLModuleSpec, RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from gallery_drawing import Column

PIPELINES = {"env_to_module": env_to_module, "module_to_env": module_to_env, "learner": learner}
AGENTS = {"left": (0, 1, 2, 3, 4), "right": (1, 2, 3)}
"""Agents, and the env steps of their observations: the second comes later and ends earlier."""
BOTH, MODULE = 2, "default_policy"
"""An env step at which both act, and the module of both."""
REWARDS, MEASURED = (1.0, 0.0, -2.0, 0.0, 3.0), (-2.5, -0.5, 0.25, 1.0, 3.5)


class Half(ColumnTransform):
    """Actions of half the size."""

    columns = "actions"

    def transform(self, x: Any) -> Any:
        return x / 2

    def inverse(self, y: Any) -> Any:
        return y * 2


def nearness(achieved: Any, desired: Any, info: Any) -> Any:
    """Return the negative distance of goals."""
    return -np.abs(achieved - desired).sum(-1)


def one_module(agent_id: Any, episode: Any) -> str:
    """Return the module of an agent."""
    return MODULE


MADE_OF_CODE = {
    "hindsight_goals": {"compute_reward": nearness},
    "undo": {"of": Half()},
    "agent_to_module_mapping": {"agent_to_module_mapping_fn": one_module},
}
"""Arguments of pieces that are code."""


def image(t: int) -> Any:
    """Return a picture of a box that falls, 6 by 8 pixels."""
    pixels = np.full((6, 8, 3), (30, 60, 110), np.uint8)
    pixels[5] = (70, 130, 60)
    pixels[t : t + 2, 2 + t : 4 + t] = (240, 170, 40)
    return pixels


def _box(*shape: int) -> Any:
    return Box(-99, 99, shape, np.float32)


OBSERVATIONS: dict[str, tuple[Any, Any]] = {
    "count": (_box(1), lambda t: [t]),
    "zigzag": (_box(1), lambda t: [(3, 1, 2, 0, 4, 1)[t]]),
    "signed": (_box(2), lambda t: [t - 2, t / 2]),
    "vector": (_box(3), lambda t: [t, 10 + t, 20 + t]),
    "flat": (_box(1, 3), lambda t: [[t, 10 + t, 20 + t]]),
    "table": (_box(2, 3), lambda t: [[t, 10 + t, 20 + t], [30 + t, 40 + t, 50 + t]]),
    "image": (Box(0, 255, (6, 8, 3), np.uint8), image),
    "parts": (gym.spaces.Dict(a=_box(2), b=Discrete(3)), lambda t: {"a": [t, 10 + t], "b": t % 3}),
    "empty": (gym.spaces.Dict(a=_box(1), b=_box(0)), lambda t: {"a": [t], "b": []}),
    "masked": (
        gym.spaces.Dict(action_mask=Box(0, 1, (3,), np.float32), x=_box(1)),
        lambda t: {"action_mask": [t % 2, 1, t > 2], "x": [t]},
    ),
    "goals": (
        gym.spaces.Dict(achieved_goal=_box(1), desired_goal=_box(1)),
        lambda t: {"achieved_goal": [t], "desired_goal": [9]},
    ),
    "ragged": (
        gym.spaces.Sequence(_box(1), stack=True),
        lambda t: np.arange(t, t + 1 + t % 3, dtype=np.float32)[:, None],
    ),
}
"""Space of observations, and the observation of a step."""
ACTIONS: dict[str, tuple[Any, Any]] = {
    "choice": (Discrete(3), lambda t: (0, 1, 2, 1, 0)[t]),
    "more": (Discrete(4), lambda t: 3 - t),
    "measured": (Box(-2, 3, (1,), np.float32), lambda t: [MEASURED[t]]),
}


def step_of(kind: tuple[Any, Any], t: int) -> Any:
    """Return the observation or action of a step, in the type of its space."""

    def typed(space: Any, value: Any) -> Any:
        if isinstance(space, gym.spaces.Dict):
            return {key: typed(part, value[key]) for key, part in space.items()}
        return np.asarray(value, space.dtype) if isinstance(space, Box) else value

    return typed(kind[0], kind[1](t))


class Network(TorchRLModule, ValueFunctionAPI):
    """A network without weights: it prefers the action nearest to its observation, and its state counts steps."""

    def get_initial_state(self) -> dict[str, Any]:
        return {"h": torch.zeros(1)} if self.model_config.get("memory") else {}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        places = torch.arange(self.get_train_action_dist_cls().required_input_dim(self.action_space))
        obs = batch["obs"]["observations"] if isinstance(batch["obs"], dict) else batch["obs"]
        inputs = -((obs[..., :1].float() - places) ** 2) / 4
        if isinstance(self.action_space, Box):  # means from -1 to 1, and logarithms of deviations
            inputs = torch.where(places < len(places) // 2, obs[..., :1] / 2 - 1, torch.tensor(0.0))
        state = {"state_out": {"h": batch["state_in"]["h"] + obs.shape[1]}} if "state_in" in batch else {}
        return {"action_dist_inputs": inputs, **state}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
        return batch["obs"][..., 0].float() / 2


class Example:
    """A piece in a pipeline, and the episodes that it is given.

    Args:
        name: The piece's registered name.
        entry: Its entry in gallery.yaml.
        pipelines: The pipelines that it can stand in.

    Attributes:
        lengths: Steps of each episode.
        ends: Likewise, beyond which rows are bootstrap rows.
        names: Names of environments or agents, if rows are theirs.
        unit: The word for these, or "step".
    """

    def __init__(self, name: str, entry: Mapping[str, Any], pipelines: Sequence[str]) -> None:
        self.name, self.entry, self.undone = name, entry, entry.get("undone", False)
        self.side = "module_to_env" if self.undone else "learner" if "learner" in pipelines else pipelines[0]
        agents = entry.get("agents", {})
        self.kinds = {agent: self._kinds({**entry, **own}) for agent, own in agents.items()}
        self.lengths = [len(steps) - 1 for steps in AGENTS.values()] if agents else entry.get("lengths", [5, 3])
        self.ends = self.lengths if self.side == "learner" else [len(REWARDS) + 1] * len(REWARDS)
        self.names, self.unit = ("01234", "env") if self.side == "module_to_env" else ("", "step")
        if agents and self.side != "learner":
            self.names, self.unit = tuple(AGENTS), "agent"
        self.observe, self.act = self._kinds(entry)
        actions = self.pipeline("env_to_module").action_space if self.undone else self.act[0]
        module = RLModuleSpec(Network, self.observe[0], actions, model_config=dict(entry.get("module", {})))
        self.module = (MultiRLModuleSpec(rl_module_specs={MODULE: module}) if agents else module).build()

    @staticmethod
    def _kinds(entry: Mapping[str, Any]) -> tuple[Any, Any]:
        return OBSERVATIONS[entry.get("observations", "count")], ACTIONS[entry.get("actions", "choice")]

    def piece(self, side: str) -> Any:
        """Return the piece; in the module-to-env pipeline what undoes it, if that is to be shown."""
        if self.undone and side == "module_to_env":
            return Undo(of=self.piece("env_to_module"))
        arguments = self.entry.get("arguments", {})
        if code := MADE_OF_CODE.get(self.name):
            return piece_class(self.name)(**arguments, **code)
        return build_piece({"piece": self.name, **arguments}, allow_imports=True)

    def pipeline(self, side: str) -> Any:
        """Return a default pipeline, with the piece if it is of this side, and with what the entry adds."""
        how: dict[str, Any] = {"agent_to_module_mapping_fn": one_module} if self.kinds else {}
        how |= {"advantages": self.entry.get("advantages", False)} if side == "learner" else {}
        how |= {"burn_in": self.name == "burn_in"} if side == "learner" else {}
        spaces: Any = (self.observe[0], self.act[0])
        if self.kinds:
            spaces = [gym.spaces.Dict({agent: own[i][0] for agent, own in self.kinds.items()}) for i in (0, 1)]
        build, own, place = (
            PIPELINES[side].default_pipeline,
            self.entry.get("with", {}).get(side, []),
            self.entry.get("place"),
        )
        piece, is_its = self.piece(side), side == self.side or self.undone
        to_add = is_its and type(piece) not in map(type, build(**how))
        pipeline = build(*spaces, connectors=[*own, piece] if to_add and not place else own, **how)
        if to_add and place:
            pipeline.prepend(piece) if place == "start" else pipeline.insert_after(place, piece)
        for other, spec in self.entry.get("after_others", {}).get(side, {}).items():
            pipeline.insert_after(other, spec)
        pipeline.seed(1)
        return pipeline

    # -- episodes ------------------------------------------------------------------------------------

    def episode(self, number: int, length: int, terminated: bool = False) -> SingleAgentEpisode:
        """Return an episode of one agent.

        Args:
            number: Its number.
            length: Its steps.
            terminated: True if it has ended.
        """
        outputs: dict[str, Any] = {"action_logp": np.full(length, -1.1, np.float32)}
        if "policy" in self.entry:
            outputs["action_dist_inputs"] = np.full((length, 3), self.entry["policy"], np.float32)
        if self.entry.get("module"):
            outputs["state_out"] = [{"h": np.float32([t + 1])} for t in range(length)]
        rewards: Any = [[REWARDS[t], t] if self.entry.get("objectives") else REWARDS[t] for t in range(length)]
        return SingleAgentEpisode(
            id_=f"e{number}",
            observations=[step_of(self.observe, t) for t in range(length + 1)],
            actions=[step_of(self.act, t) for t in range(length)],
            rewards=rewards,
            infos=[{"n": t} for t in range(length + 1)],
            extra_model_outputs=outputs,
            terminated=terminated,
            len_lookback_buffer=0,
        )

    def of_agents(self, steps: int) -> MultiAgentEpisode:
        """Return an episode of several agents after so many env steps."""
        there = [[agent for agent, own in AGENTS.items() if t in own] for t in range(steps + 1)]
        acting = [[agent for agent in there[t] if t + 1 in AGENTS[agent]] for t in range(steps)]
        return MultiAgentEpisode(
            id_="e0",
            observations=[{agent: step_of(self.kinds[agent][0], t) for agent in own} for t, own in enumerate(there)],
            actions=[{agent: step_of(self.kinds[agent][1], t) for agent in own} for t, own in enumerate(acting)],
            rewards=[dict.fromkeys(own, REWARDS[t]) for t, own in enumerate(acting)],
            terminateds={agent: own[-1] <= steps for agent, own in AGENTS.items()},
            len_lookback_buffer=0,
            agent_to_module_mapping_fn=one_module,
        )

    def episodes(self) -> list[Any]:
        """Return the episodes: for training whole ones, of which the first is terminated and the others are cut."""
        if self.kinds:
            return [self.of_agents(4 if self.side == "learner" else BOTH)]
        lengths = self.lengths if self.side == "learner" else range(len(self.names))
        return [self.episode(n, length, self.side == "learner" and n == 0) for n, length in enumerate(lengths)]

    # -- the columns of a run ----------------------------------------------------------------------

    def run(self) -> tuple[list[Column], list[Column]]:
        """Return the columns before and after the piece: those that it changed, or that its entry names."""
        pipeline, shared, how = self.pipeline(self.side), {}, {"keep_rows": 10**6}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if self.side == "learner":
                traces = [pipeline.trace(self.episodes(), self.module, origin=True, **how)]
            elif self.side == "module_to_env":
                call = {"episodes": self.episodes(), "shared_data": shared, "explore": self.entry.get("explore", False)}
                seen = self.pipeline("env_to_module")(rl_module=self.module, batch={}, **call)
                batch = self.module.forward_inference(seen)
                traces = [pipeline.trace(module=self.module, batch=batch, copies=False, **call, **how)]
            else:  # a call for each step, or one in which all agents act
                steps = [self.episodes()] if self.kinds else [[self.episode(0, t)] for t in range(self.lengths[0] + 1)]
                traces = [pipeline.trace(own, self.module, copies=False, shared_data=shared, **how) for own in steps]
        for error in (trace.error for trace in traces if trace.error):
            raise error
        kind = type(self.piece(self.side))
        place = [type(piece) for piece in pipeline].index(kind)
        changed = [_in_batch(column) for trace in traces for column in trace.pieces[place].changes]
        sides = []
        for key in ("before", "after"):
            names = self.entry.get(key, list(dict.fromkeys(changed)))
            columns = [self._column(traces, place, name, key == "after") for name in names]
            sides.append([column for column in columns if column])
        return sides[0], sides[1]

    def _column(self, traces: Sequence[Any], place: int, name: str, after: bool) -> Column | None:
        rows: list[Any] = []
        origins: list[Any] = []
        for t, trace in enumerate(traces):
            at = place if after else place - 1
            if after:  # what it does to episodes is seen when a later piece makes a column of them
                at = next((i for i, own in enumerate(trace.pieces) if i >= place and name in own.after), place)
            values = trace.pieces[at].values if at >= 0 else trace.start_values
            facts, own = (trace.pieces[at].after if after else trace.pieces[place].before).get(name), values.get(name)
            if facts is None and not after and self.side != "module_to_env":
                facts, own = trace.recorded.get(name, (None, None))
                facts = facts and facts._replace(layout="stored")
            if facts is None:  # no step was made yet
                continue
            own = self._objects(trace, name, facts.layout) if own is None else own
            if self.side == "env_to_module" and facts.layout == "stored" and not self.kinds:
                own, facts = own[-1:], facts._replace(shape=(1, *facts.shape[1:]))
            origin = self._origin(own, facts, values, t)
            line = origin.shape[1] if origin.ndim == 3 else 0
            rows += [entry for row in own for entry in row] if line else list(own)
            origins.append(origin.reshape(-1, 2))
        if not rows:
            return None
        words, layout = _in_batch(name), facts.layout
        if self.kinds:
            mapped = next(i for i, own in enumerate(trace.pieces) if own.piece.startswith(("agent_to", "module_to")))
            by_module = (at >= mapped) == (self.side != "module_to_env")
            layout = ("modules" if by_module else "agents") if layout == "episodes" else layout
            words = words if by_module else words.removeprefix(f"{MODULE}/")
        pixels = self.entry.get("observations") == "image" and words == "obs"
        return Column(words, layout, facts.dtype, facts.shape, rows, np.concatenate(origins), line, pixels)

    def _objects(self, trace: Any, name: str, layout: str) -> list[Any]:
        """Return rows that are no numbers, or differ in shape."""
        if layout != "stored":
            return list(trace.batch[name])
        if self.kinds:
            return list(self.of_agents(BOTH).get_observations(-1).values())
        return [own for episode in self.episodes() for own in episode.get_observations()]

    def _origin(self, rows: Any, facts: Any, values: Mapping[str, Any], t: int) -> Any:
        """Return episode and step of each row: int [rows, 2], or [sequences, T, 2]."""
        if self.side != "learner":
            pairs = [(row, 0 if self.names else t) for row in range(max(len(rows), len(self.kinds)))]
            return np.array([pairs] if len(rows) < len(pairs) else pairs)  # of one row with all agents a sequence
        orders = [
            np.array([(chunk, step) for chunk, length in enumerate(self.lengths) for step in range(length + more)])
            for more in (0, 1)
        ]
        numbers = next((own for key, own in values.items() if "row_origin" in key), None)
        if facts.layout != "stored" and numbers is not None:
            found = np.concatenate([[(-1, -1)], orders["advantages" in self.entry]])[numbers.astype(int)]
            found = found[:, 0] if found.ndim == 3 and rows.shape[:2] != found.shape[:2] else found
            if len(found) == len(rows):
                return found
        return next((order for order in orders if len(order) == len(rows)), np.full((len(rows), 2), -2))


def _in_batch(name: str) -> str:
    """Return the name in a batch of a column that episodes hold."""
    return name.replace("episode.observations", "obs")
