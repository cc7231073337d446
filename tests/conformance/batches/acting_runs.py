"""Random vector steps through the env-to-module and module-to-env pipelines of both libraries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hypothesis import strategies as st

from batches.chunks import STATES, BatchChunk, acting_module, build_all, chunk_lists, in_a_block, states
from batches.stages import Record, alone, check_overriding, overriding, snapshot_keys, watched
from batches.user_pieces import ACTING, user_piece
from epibatch.core.distributions import distribution_for
from oracle.libraries import EPIBATCH, Library
from oracle.pieces import TO_ENV, TO_MODULE, pieces_of
from oracle.spaces import nested, rows, spaces

WAYS = ("columnar list", "columnar block", "plain", "overriding")

action_spaces = nested(
    st.one_of(
        st.builds(lambda n, start: gym.spaces.Discrete(n, start=start), st.integers(2, 5), st.sampled_from([0, 0, 3])),
        st.lists(st.integers(2, 4), min_size=1, max_size=3).map(gym.spaces.MultiDiscrete),
        st.builds(
            lambda bounds, size: gym.spaces.Box(*bounds, (size,), np.float32),
            st.sampled_from([(-2.0, 4.0), (0.0, 1.0), (-np.inf, np.inf), (-1.0, 1.0), (0.0, np.inf)]),
            st.integers(1, 3),
        ),
    )
)
"""Action spaces that RLlib has a distribution for."""


@dataclass(frozen=True)
class ActingCall:
    """One vector step, as data.

    Attributes:
        chunks: the episodes, one per environment; those that just ended are among them, as in RLlib's runner.
        layout: of the module's recurrent state, a name in `STATES`.
        users: names of users' pieces in front of the env-to-module pipeline.
        explore: as in the pipelines' calls.
        given: what the module gives: "inputs" of its distribution alone or "actions" too, each also "... and logp".
        normalize: stretch actions to the bounds.
        clip: cut actions to the bounds.
        seed: of what the module gives.
    """

    chunks: tuple[BatchChunk, ...]
    layout: str = ""
    users: tuple[str, ...] = ()
    explore: bool | None = False
    given: str = "inputs"
    normalize: bool = True
    clip: bool = False
    seed: int = field(default=0)

    @property
    def spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        return self.chunks[0].observation_space, self.chunks[0].action_space

    def outputs(self) -> dict[str, Any]:
        """What the module gives: tensors [N, ...], with a time axis if it is recurrent."""
        rng, count = np.random.default_rng(self.seed), len(self.chunks)
        width = distribution_for(self.spaces[1]).required_input_dim(self.spaces[1])
        out: dict[str, Any] = {
            "action_dist_inputs": rng.standard_normal((count, width)).astype(np.float32) * 2,
            "vf_preds": rng.standard_normal(count).astype(np.float32),
            "tags": rng.integers(0, 99, (count, 2)),
            "nested": {"x": rng.standard_normal((count, 2)), "y": (rng.integers(0, 9, count),)},
        }
        if self.given.startswith("actions"):
            drawn = rows(counted_from_zero(self.spaces[1]), rng, count)
            out["actions"] = stack(drawn)
        if self.given.endswith("and logp"):
            known = rng.standard_normal(count) if self.explore else np.zeros(count)
            out["action_logp"] = known.astype(np.float32)
        if self.layout:
            out = over(out, lambda leaf: leaf[:, None])
            out["state_out"] = states(
                STATES[self.layout], lambda s: rng.standard_normal((count, *s)).astype(np.float32)
            )
        return over(out, torch.from_numpy)  # type: ignore[no-any-return]

    def record(self, library: Library, way: str = "plain") -> tuple[Record, Record]:
        """Run both pipelines, with somebody looking behind every piece or at the ends only."""
        acting, back = Record(), Record()
        if way == "columnar block":
            episodes: Any = in_a_block(self.chunks)
        else:
            episodes = build_all(library, self.chunks, numpy=library is EPIBATCH)
        acting.places = snapshot_keys(episodes)
        back.places = dict(acting.places)
        front = [user_piece(library, ACTING[name])(seed=self.seed) for name in self.users]
        scaling = {"normalize_actions": self.normalize, "clip_actions": self.clip}
        if library is EPIBATCH:
            to_module = list(library.env_to_module.default_pipeline(connectors=front))
            to_env = list(library.module_to_env.default_pipeline(**scaling))
        else:
            to_module = [*front, *pieces_of(library, "env_to_module", *TO_MODULE)]
            to_env = pieces_of(library, "module_to_env", *TO_ENV, NormalizeAndClipActions=scaling)
        if way == "plain":
            to_module, to_env = watched(library, to_module, acting), watched(library, to_env, back)
        elif way == "overriding":
            to_module, to_env = overriding(to_module, acting), overriding(to_env, back)
        shared: dict[str, Any] = {}
        module = acting_module(library, self.spaces, self.layout)
        call = {"rl_module": module, "episodes": episodes, "shared_data": shared, "explore": self.explore}
        if way == "alone":
            acting.finish(alone(to_module, self.spaces, acting, {}, call), episodes, shared)
            back.finish(alone(to_env, self.spaces, back, self.outputs(), call), episodes, shared)
            return acting, back
        there = library.env_to_module.EnvToModulePipeline(*self.spaces, connectors=to_module)
        acting.finish(there(batch={}, **call), episodes, shared)
        home = library.module_to_env.ModuleToEnvPipeline(*self.spaces, connectors=to_env)
        back.finish(home(batch=self.outputs(), **call), episodes, shared)
        if way == "overriding" and library is EPIBATCH:
            check_overriding(to_module, acting)
            check_overriding(to_env, back)
        return acting, back


def over(struct: Any, function: Any) -> Any:
    """A structure with every leaf replaced."""
    if isinstance(struct, dict):
        return {key: over(own, function) for key, own in struct.items()}
    if isinstance(struct, tuple):
        return tuple(over(own, function) for own in struct)
    return function(struct)


def stack(items: list[Any]) -> Any:
    """One structure of arrays from a list of structures."""
    if isinstance(items[0], dict):
        return {key: stack([item[key] for item in items]) for key in items[0]}
    if isinstance(items[0], tuple):
        return tuple(stack(list(part)) for part in zip(*items))
    return np.stack([np.asarray(item) for item in items])


def counted_from_zero(space: Any) -> Any:
    """The space of what a network's distribution gives: choices count from 0, numbers are not bounded."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: counted_from_zero(own) for key, own in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([counted_from_zero(own) for own in space.spaces])
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.Discrete(space.n)
    return space if isinstance(space, gym.spaces.MultiDiscrete) else gym.spaces.Box(-9, 9, space.shape, np.float32)


LAYOUTS = st.sampled_from(["", "", *STATES])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "users": st.lists(st.sampled_from(sorted(ACTING)), max_size=2, unique=True).map(tuple),
    "explore": st.sampled_from([False, False, True, None]),
    "given": st.sampled_from(["inputs", "inputs", "actions", "actions and logp"]),
    "normalize": st.booleans(),
    "clip": st.booleans(),
    "seed": st.integers(0, 1000),
}


@st.composite
def acting_calls(draw: st.DrawFn, **fixed: Any) -> ActingCall:
    """Vector steps of 1 to 6 environments."""
    layout = draw(LAYOUTS)
    chunks = draw(chunk_lists((draw(spaces), draw(action_spaces)), layout, unique=True))
    drawn = {**fixed, **{name: draw(own) for name, own in FIELDS.items() if name not in fixed}}
    if drawn["explore"] and drawn["given"] == "inputs":
        drawn["given"] = "actions"  # the libraries draw from different random streams
    return ActingCall(chunks, layout, **drawn)
