"""From observations of any space, and the steps before them, to the vectors that networks take."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, final

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, EpibatchWarning, SpaceError, nearest
from epibatch.core.masked_column import MaskedColumn
from epibatch.core.registered_spaces import network_of
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import CNN, conv_size, default_conv_filters, sizes_of, with_shape
from epibatch.core.space_dicts import EncodedBox
from epibatch.core.spaces import encoding_advice, mask_size_of
from epibatch.core.structs import sorted_keys

_MOST_CHOICES = 10_000_000

Encoder: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@final
class ObservationInput:
    """Turns a batch of observations into the float vectors that an MLP takes.

    Each part of a nested observation is encoded by itself, dict entries by sorted key, and joined to the
    others: Boxes are flattened and cast to float32; Discrete and MultiDiscrete become one-hot (zeros, with
    which sequences are padded, become zeros if they are no members of the space); MultiBinary is cast. Boxes
    with three axes [height, width, channels] (or as `conv_channels` says) are images, and go through a CNN of the
    encoder's own if `conv_filters` or `default_conv_filters` has layers for them.

    A Dict of a Box `value` and a `mask` is a pair. It becomes the value, with zeros where the mask is 0, then the mask.
    The mask is a Discrete(2), or a MultiBinary or a Box from 0 to 1 with one entry, or one for each entry or row of the
    value. A batch may have a `MaskedColumn` there.

    Args:
        space: The observation space.
        config: The `conv_` options; None for the defaults.
        groups: The parts of a Dict space to encode, in this order; None for all.

    Attributes:
        size: length of the vectors.

    Raises:
        SpaceError: a part that has no encoding, no numbers at all, or images whose channels seem to come first.

    Examples:
        >>> encode = ObservationInput(gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (1, 2))))
        >>> encode({"a": torch.tensor([2, 0]), "b": torch.ones(2, 1, 2)})
        tensor([[0., 0., 1., 1., 1.],
                [1., 0., 0., 1., 1.]])
    """

    def __init__(
        self,
        space: gym.Space[Any] | None,
        config: DefaultModelConfig | None = None,
        groups: Sequence[str] | None = None,
    ) -> None:
        self._config = config or DefaultModelConfig()
        if space is None:
            raise SpaceError(
                "observation space of a default module",
                expected="a space, for which the network is built",
                found=None,
                do="give it to the module's spec: RLModuleSpec(observation_space=..., action_space=...); if a "
                "piece makes observations of a type without a space, of complex numbers, let it give real ones",
            )
        if groups is None:
            leaves = _leaves(space, ())
        else:
            leaves = [leaf for name in groups for leaf in _leaves(_parts_of(space)[name], (name,))]
        self._parts: list[tuple[tuple[Any, ...], Encoder | None, tuple[Any, ...], int]] = []
        self._networks: list[Callable[[], nn.Module]] = []
        self.size = 0
        for path, leaf in leaves:
            value, mask_size = path, mask_size_of(leaf)
            if mask_size:
                value, leaf = (*path, "value"), leaf["value"]
            filters = self._filters(leaf) if mask_size <= 1 else []
            encoder: Encoder | None = None
            if isinstance(leaf, EncodedBox) and not mask_size:
                self._networks.append(partial(_RowNetwork, network_of(leaf), leaf))
                size = _RowNetwork(network_of(leaf), leaf).size
            elif filters:
                self._networks.append(partial(CNN, leaf.shape, filters, self._config))
                size = conv_size(sizes_of(leaf.shape, self._config), filters)
            else:
                encoder, size = _encoder(leaf, value, space)
            self._parts.append((value, encoder, (*path, "mask"), mask_size))
            self.size += size + mask_size
        if not self.size:
            raise SpaceError(
                "observation space of a default module",
                expected="at least one number for the network to see",
                found=f"none in {space}",
                do="give the environment an observation, a constant if there is nothing to see: Box(0, 1, (1,))",
            )
        self._only = self._parts[0][1] if self._parts[0][0] == () else None

    def _filters(self, leaf: Any) -> list[Any]:
        """The convolutions for a part, none if it is no image."""
        if not isinstance(leaf, spaces.Box) or len(leaf.shape) != 3:
            return []
        filters = self._config.conv_filters
        if filters is not None and not filters:
            return []
        sizes = sizes_of(leaf.shape, self._config)
        return default_conv_filters(sizes) if filters is None else list(filters)

    def cnns(self) -> nn.ModuleList | None:
        """New CNNs for the images among the parts, and networks of registered spaces, in their order; None without."""
        return nn.ModuleList([make() for make in self._networks]) if self._networks else None

    def __call__(self, obs: Any, cnns: nn.ModuleList | None = None) -> torch.Tensor:
        """Give `[..., size]` float32 for observations `[..., *space.shape]`, nested like the space.

        Args:
            obs: A tensor, or nested dicts and tuples of tensors.
            cnns: The CNNs for the images, as `cnns()` made them.

        Raises:
            SpaceError: shapes or values that are not those of the space.
            ColumnError: observations that are nested otherwise.
        """
        if self._only is not None and isinstance(obs, torch.Tensor):
            return self._only(obs)
        images = iter(cnns or ())
        parts = []
        for path, encoder, mask_path, mask_size in self._parts:
            part = _part(obs, path)
            if encoder is None:
                if mask_size:  # NaN in absent images would reach the gradients of the weights
                    mask = _mask(_part(obs, mask_path), part.shape[:-3], mask_size)
                    part = part.masked_fill(mask[..., None, None] == 0, 0)
                part = next(images)(part)
            else:
                part = encoder(part)
            if mask_size:
                mask = _mask(_part(obs, mask_path), part.shape[:-1], mask_size)
                each = mask if mask_size == 1 else mask.repeat_interleave(part.shape[-1] // mask_size, -1)
                parts.append(part.masked_fill(each == 0, 0.0))
                part = mask.float()
            parts.append(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def observations_of(batch: Any) -> Any:
    """The column `obs` of a batch.

    Raises:
        ColumnError: there is none, or the batch is no dict.
    """
    try:
        return batch[Columns.OBS]
    except (KeyError, TypeError) as error:
        found = f"columns {sorted(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
        raise ColumnError(
            "the module's forward pass",
            expected=f"a batch with a column {Columns.OBS!r}",
            found=found,
            do="pass what the env-to-module or the learner pipeline made",
        ) from error


def group_inputs(
    space: gym.Space[Any] | None, config: DefaultModelConfig, *, with_critic: bool = True
) -> tuple[ObservationInput, ObservationInput]:
    """The inputs of actor and critic, as `obs_groups` says; one object if they have the same parts.

    Args:
        space: The observation space.
        config: The `conv_` options and `obs_groups`.
        with_critic: False for modules without a critic, whose observations need not have its parts.

    Raises:
        ConfigError: `obs_groups` names parts that the space does not have, or none for the actor.
        SpaceError: the space is no Dict, though there are groups, or has parts without an encoding.
    """
    groups = config.obs_groups
    if groups is None:
        return (both := ObservationInput(space, config)), both
    names = list(_parts_of(space))
    actor = groups.get("actor") or next(([name] for name in ("actor", "policy") if name in names), ["policy"])
    critic = groups.get("critic", actor) if with_critic else actor
    is_absent = critic != actor and "critic" in critic and "critic" not in names
    others = [name for key in ("teacher", "rnd_state") if with_critic for name in groups.get(key, ())]
    for name in (*actor, *critic, *others):
        if name not in names and not (is_absent and name == "critic"):
            raise ConfigError(
                "obs_groups of model_config",
                expected="names of parts of the observation space",
                found=repr(name),
                do=nearest(name, names),
            )
    if is_absent:
        warning = EpibatchWarning(
            "obs_groups of model_config",
            expected="the part 'critic', which the critic asks for, in the observations",
            found=f"parts {', '.join(map(repr, names))}",
            do=f"let the environment give it; until then the critic gets the actor's parts, {', '.join(actor)}",
        )
        warnings.warn(warning, stacklevel=2)
        critic = actor
    first = ObservationInput(space, config, actor)
    return first, first if critic == actor else ObservationInput(space, config, critic)


def _parts_of(space: Any) -> dict[str, Any]:
    """The parts of a Dict space."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    raise SpaceError(
        "observation space of a default module with obs_groups",
        expected="a Dict, whose parts obs_groups names",
        found=space,
        do="let the environment give its parts in a dict, and take pieces that join them (flatten_observations) out "
        "of the pipelines; or leave obs_groups out",
    )


def _mask(mask: torch.Tensor, lead: Sequence[int], size: int) -> torch.Tensor:
    """A mask as [*lead, size]."""
    if mask.shape[: len(lead)] == tuple(lead) and mask.numel() == size * math.prod(lead):
        return mask.reshape(*lead, size)
    raise SpaceError(
        "mask of observations of a default module",
        expected=f"{size} for each of the values {list(lead)}",
        found=f"shape {list(mask.shape)}",
        do="give each row of the value its mask",
    )


def _leaves(space: Any, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Any]]:
    """The parts of a space with the keys that lead there, dict entries by sorted key; pairs are not opened."""
    if mask_size_of(space):
        return [(path, space)]
    if isinstance(space, spaces.Dict):
        keys = sorted_keys(dict(space.spaces))
    elif isinstance(space, spaces.Tuple):
        keys = list(range(len(space.spaces)))
    else:
        return [(path, space)]
    return [leaf for key in keys for leaf in _leaves(space.spaces[key], (*path, key))]


def _part(obs: Any, path: tuple[Any, ...]) -> torch.Tensor:
    part = obs
    for key in path:
        if isinstance(part, MaskedColumn) and isinstance(key, str):
            part = part._asdict()
        try:
            part = part[key] if isinstance(part, (dict, tuple)) else None
        except (KeyError, IndexError):
            part = None
        if part is None:
            break
    if isinstance(part, torch.Tensor):
        return part
    name = "".join(f"[{key!r}]" for key in path)
    raise ColumnError(
        "observations of a default module",
        expected=f"a tensor at obs{name}, as the module's observation_space says",
        found=f"{type(obs if part is None else part).__name__}"
        + (f" with keys {list(obs)}" if isinstance(obs, dict) else ""),
        do="build the module with the space that the env-to-module pipeline puts out, and give the learner "
        "pipeline the pieces that change observations too",
    )


def _encoder(leaf: Any, path: tuple[Any, ...], space: Any) -> tuple[Encoder, int]:
    """Return the encoder of one part, and the length of its vectors."""
    choices = int(leaf.n) if isinstance(leaf, spaces.Discrete) else int(np.sum(getattr(leaf, "nvec", 0)))
    if choices > _MOST_CHOICES:
        raise SpaceError(
            "observation space of a default module",
            expected=f"at most {_MOST_CHOICES:,} choices, as each is an entry of a one-hot vector",
            found=f"{leaf} at {''.join(f'[{key!r}]' for key in path)} of {space}" if path else leaf,
            do="let the environment give fewer, or their digits (MultiDiscrete), or write an RLModule with an "
            "embedding",
        )
    if isinstance(leaf, spaces.Discrete):
        counts, start = np.array([leaf.n], np.int64), np.array([leaf.start], np.int64)
        return _OneHot((), counts, start, path), int(leaf.n)
    if isinstance(leaf, spaces.MultiDiscrete):
        start = np.broadcast_to(getattr(leaf, "start", 0), leaf.shape)
        return _OneHot(leaf.shape, leaf.nvec.ravel(), start.ravel(), path), int(leaf.nvec.sum())
    if isinstance(leaf, (spaces.Box, spaces.MultiBinary)):
        size = int(np.prod(leaf.shape))
        return _Flat(tuple(leaf.shape), size), size
    raise SpaceError(
        "observation space of a default module",
        expected="Box, Discrete, MultiDiscrete and MultiBinary spaces, in Dicts and Tuples",
        found=f"{leaf} at {''.join(f'[{key!r}]' for key in path)} of {space}" if path else leaf,
        do=f"{encoding_advice(leaf)}, or write an RLModule of your own",
    )


@final
class _RowNetwork(nn.Module):
    """The network of a registered space, for rows with any axes before them.

    Attributes:
        size: Length of its vectors.
    """

    def __init__(self, make: Callable[[Any], Any], space: EncodedBox) -> None:
        super().__init__()
        self._shape, self.network = space.shape, make(space)
        with torch.no_grad():
            row = self.network(torch.from_numpy(np.zeros((1, *space.shape), space.dtype)))
        if not isinstance(row, torch.Tensor) or row.dim() != 2 or len(row) != 1:
            raise SpaceError(
                f"network of register_space, for {space.encoded_from}",
                expected="a tensor [B, size]",
                found=f"shape {list(row.shape)}, for one row" if isinstance(row, torch.Tensor) else type(row).__name__,
                do="return a vector for each row",
            )
        self.size = row.shape[1]

    def forward(self, part: torch.Tensor) -> torch.Tensor:
        part = with_shape(part, self._shape)
        lead = part.shape[: part.dim() - len(self._shape)]
        vectors: torch.Tensor = self.network(part.reshape(-1, *self._shape)).float()
        return vectors.reshape(*lead, self.size)


@final
class _Flat:
    """Flattens the axes of one observation and casts to float32; float32 vectors are passed through."""

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        self._shape = shape
        self._size = size
        self._is_vector = len(shape) == 1

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        if self._is_vector and part.dtype is torch.float32 and part.shape[-1] == self._size:
            return part
        part = with_shape(part, self._shape)
        return part.reshape(*part.shape[: part.dim() - len(self._shape)], self._size).float()


@final
class _OneHot:
    """One-hots of integers, those of several entries joined."""

    def __init__(self, shape: tuple[int, ...], counts: Any, start: Any, path: tuple[Any, ...]) -> None:
        self._shape = tuple(shape)
        self._counts, self._start = torch.tensor(counts, device="cpu"), torch.tensor(start, device="cpu")
        self._offsets = self._counts.cumsum(0) - self._counts
        self._path = "".join(f"[{key!r}]" for key in path)
        self._size = int(self._counts.sum())

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        part = with_shape(part, self._shape)
        counts, start, offsets = (tensor.to(part.device) for tensor in (self._counts, self._start, self._offsets))
        values = part.reshape(*part.shape[: part.dim() - len(self._shape)], len(counts)).long()
        indices = values - start
        inside = (indices >= 0) & (indices < counts)
        if not torch.compiler.is_compiling() and bool(inside.all()):
            return values.new_zeros(*values.shape[:-1], self._size, dtype=torch.float32).scatter_(
                -1, indices + offsets, 1.0
            )
        self._refuse(values, ~inside & (values != 0))
        positions = torch.where(inside, indices + offsets, self._size)
        out = values.new_zeros(*values.shape[:-1], self._size + 1, dtype=torch.float32)
        return out.scatter_(-1, positions, 1.0)[..., : self._size]

    def _refuse(self, values: torch.Tensor, outside: torch.Tensor) -> None:
        if not torch.compiler.is_compiling() and bool(outside.any()):
            rows = sorted(set(outside.nonzero()[:, 0].tolist())) if values.dim() > 1 else []
            raise SpaceError(
                f"observations of a default module{self._path and f', part {self._path}'}",
                expected="integers of their Discrete or MultiDiscrete space, "
                f"from {self._start.tolist()} on, {self._counts.tolist()} of them",
                found=f"{values[outside][:5].tolist()}" + (f" in rows {rows[:5]} of the batch" if rows else ""),
                do="correct the environment's observations, or its observation_space",
            )


ACTIONS, REWARDS, MASK = "prev_actions", "prev_rewards", "prev_actions_mask"


def previous_step_views(config: DefaultModelConfig) -> dict[str, dict[str, Any]]:
    """The views that a default network asks for, as arguments of `epibatch.connectors.views.View`.

    Examples:
        >>> previous_step_views(DefaultModelConfig(use_lstm=True, use_prev_reward=True))
        {'prev_rewards': {'column': 'rewards', 'shift': -1}}
    """
    views: dict[str, dict[str, Any]] = {}
    if config.use_prev_action:
        views[ACTIONS] = {"column": "actions", "shift": -1, "mask": True}
    if config.use_prev_reward:
        views[REWARDS] = {"column": "rewards", "shift": -1}
    return views


@final
class PreviousSteps:
    """Makes vectors of the columns `prev_actions` and `prev_rewards`, as far as a config wants them.

    Actions are encoded like observations of their space (Discrete ones are one-hot); at an episode's start all is 0.

    Args:
        action_space: The space of one action.
        config: `use_prev_action` and `use_prev_reward`.

    Attributes:
        size: length of the vectors.

    Raises:
        SpaceError: actions that have no encoding.
    """

    def __init__(self, action_space: gym.Space[Any] | None, config: DefaultModelConfig) -> None:
        flat = DefaultModelConfig(conv_filters=[])  # actions are no images
        self._actions = ObservationInput(action_space, flat) if config.use_prev_action else None
        self._rewards = config.use_prev_reward
        self.size = (self._actions.size if self._actions is not None else 0) + self._rewards

    def __call__(self, batch: dict[str, Any]) -> torch.Tensor:
        """Vectors [..., size], float32.

        Raises:
            ColumnError: a column is missing.
        """
        parts = []
        if self._actions is not None:
            mask = self._column(batch, MASK).unsqueeze(-1)
            parts.append(self._actions(self._column(batch, ACTIONS)) * mask)
        if self._rewards:
            parts.append(self._column(batch, REWARDS).to(torch.float32).unsqueeze(-1))
        return torch.cat(parts, -1)

    @staticmethod
    def _column(batch: dict[str, Any], name: str) -> Any:
        if name not in batch:
            raise ColumnError(
                "the default network with use_prev_action or use_prev_reward",
                expected=f"a batch with a column {name!r}",
                found=f"columns {', '.join(sorted(map(str, batch)))}",
                do="put TrajectoryViews(views=type(module).get_view_requirements(module.model_config)) into both "
                "pipelines, as a config does unless its default pieces are off",
            )
        return batch[name]
