"""The default networks with Q-values: of choices (DQN), and beside a policy (SAC)."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, final

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.distributions.choosing import distribution_for
from epibatch.core.distributions.distribution import Distribution
from epibatch.core.errors import ColumnError, ConfigError, SpaceError
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import (
    MLP,
    NoisyLinear,
    PolicyHead,
    fc_layers,
    masked_outputs,
    needs_training,
    run,
)
from epibatch.core.rl_module.observation_input import ObservationInput, group_inputs, observations_of
from epibatch.core.rl_module.recurrent_module import DefaultRecurrentModule
from epibatch.core.rl_module.rl_module import QDistributionAPI, QValueAPI, TorchRLModule, ValueFunctionAPI
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten


def choices_of(space: gym.Space[Any] | None, network: str) -> int:
    """The number of choices of a Discrete action space.

    Args:
        space: The space.
        network: Name of the class that needs it, for the message.

    Raises:
        SpaceError: it is of another kind.
    """
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    raise SpaceError(
        f"action space of {network}",
        expected="Discrete, since the network has one output for each action",
        found=space,
        do="put DiscretizeActions into the env-to-module pipeline, or take an algorithm for such actions, such as SAC "
        "for Boxes",
    )


@final
class QHead(nn.Module):
    """From features to the value of each action, or to the logits of its distribution.

    With `dueling` it has a stream for the value of the observation and one for the advantage of each action, of which
    the mean is taken off (Wang et al. 2016, arXiv:1511.06581). With `num_atoms` above 1 each value is a distribution
    over that many returns, evenly from `v_min` to `v_max` (Bellemare et al. 2017, arXiv:1707.06887). With `noisy` its
    layers are `NoisyLinear`.

    Args:
        size_in: Number of inputs of the head.
        num_actions: Number of actions.
        config: `dueling`, `num_atoms`, `v_min`, `v_max`, `noisy`, `sigma0` and the `head_` options.
    """

    def __init__(self, size_in: int, num_actions: int, config: DefaultModelConfig) -> None:
        super().__init__()
        self._shape = num_actions, config.num_atoms
        make = partial(NoisyLinear, sigma0=config.sigma0) if config.noisy else nn.Linear

        def stream(size_out: int) -> MLP:
            return MLP(*fc_layers(config, "head_fcnet", size_in, size_out, make=make))

        self.advantages = stream(num_actions * config.num_atoms)
        self.state_value = stream(config.num_atoms) if config.dueling else None
        self._noisy = [layer for layer in self.modules() if isinstance(layer, NoisyLinear)]
        self.atoms: torch.Tensor
        self.register_buffer("atoms", torch.linspace(config.v_min, config.v_max, config.num_atoms), persistent=False)

    def forward(self, x: torch.Tensor, noise: bool = True) -> torch.Tensor:
        """Give `[..., num_actions, num_atoms]` for `[..., size_in]`: logits, or values if there is one atom."""
        for layer in self._noisy:
            layer.has_noise = noise
        out = run(self.advantages, x)
        out = out.reshape(*out.shape[:-1], *self._shape) if self._shape[1] > 1 else out.unsqueeze(-1)
        if self.state_value is not None:
            out = out - out.mean(-2, keepdim=True) + run(self.state_value, x).unsqueeze(-2)
        return out

    def values(self, out: torch.Tensor) -> torch.Tensor:
        """Give the values `[..., num_actions]` of what `forward` gave: the means of the distributions."""
        return out.squeeze(-1) if out.shape[-1] == 1 else (out.softmax(-1) * self.atoms).sum(-1)


def chosen(values: torch.Tensor, actions: Any, space: Any) -> torch.Tensor:
    """Give the entries `[K, ...]` of `[K, ..., n]` at actions `[...]` of a Discrete space."""
    index = (actions.long() - int(space.start)).expand(values.shape[:-1]).unsqueeze(-1)
    return values.gather(-1, index).squeeze(-1)


@final
class DefaultQNetwork(DefaultRecurrentModule, QDistributionAPI):
    """A value for each action of a Discrete space, from an MLP (after convolutions for images).

    `use_lstm` or `use_gru` puts a recurrent layer between: columns are `[B, T, ...]` then, as in
    `DefaultRecurrentModule`. Outputs are `action_dist_inputs` `[B, n]`, the values, so that the most likely action is
    the best one, and the `state_out` of a recurrent layer. Where the batch has a column `action_mask`, illegal actions
    are out of the question.

    Args:
        **kwargs: The keywords of `RLModule`; `model_config` is a `DefaultModelConfig` or a dict of its fields.

    Raises:
        ConfigError: unknown or wrong options in `model_config`.
        SpaceError: actions that are not Discrete, or observations that these networks do not take.
        ColumnError: a batch without the `state_in` that a recurrent layer needs.

    Examples:
        >>> spaces = {"observation_space": gym.spaces.Box(-1, 1, (4,)), "action_space": gym.spaces.Discrete(2)}
        >>> DefaultQNetwork(**spaces).compute_q_values({"obs": torch.zeros(3, 4)}).shape
        torch.Size([1, 3, 2])
        >>> module = DefaultQNetwork(**spaces, model_config={"use_gru": True, "lstm_cell_size": 8, "dueling": True})
        >>> module.compute_q_values({"obs": torch.zeros(3, 5, 4), "state_in": {"h": torch.zeros(3, 8)}}).shape
        torch.Size([1, 3, 5, 2])
    """

    def setup(self) -> None:
        """Build the networks."""
        config = DefaultModelConfig.from_dict(self.model_config)
        num_actions = choices_of(self.action_space, type(self).__name__)
        size = self.build_encoder(config, group_inputs(self.observation_space, config, with_critic=False)[0])
        self.q = QHead(size, num_actions, config)

    @property
    def critic(self) -> nn.Module:
        return self

    @property
    def atoms(self) -> torch.Tensor:
        return self.q.atoms

    def compute_q_distribution(self, batch: dict[str, Any]) -> torch.Tensor:
        out: torch.Tensor = self.q(self.encode(batch)[0])
        return out.unsqueeze(0)

    def compute_q_values(self, batch: dict[str, Any], actions: Any = None) -> torch.Tensor:
        values = self.q.values(self.compute_q_distribution(batch))
        return values if actions is None else chosen(values, actions, self.action_space)

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, noise=False)

    def _forward(self, batch: dict[str, Any], noise: bool = True, **kwargs: Any) -> dict[str, Any]:
        features, state = self.encode(batch)
        outputs = masked_outputs(self.q.values(self.q(features, noise)), batch)
        return {**outputs, Columns.STATE_OUT: state} if state else outputs


@final
class Critic(nn.Module):
    """From observations and actions to a value; of Discrete actions, to the value of each.

    Args:
        encode: Makes vectors of observations.
        action_space: The space of one action.
        config: Options of layers.
    """

    def __init__(
        self, encode: ObservationInput, action_space: gym.Space[Any] | None, config: DefaultModelConfig
    ) -> None:
        super().__init__()
        self._input, size, num_values = encode, encode.size, 1
        self._actions: ObservationInput | None = None
        if isinstance(action_space, gym.spaces.Discrete):
            num_values = int(action_space.n)
        else:
            self._actions = ObservationInput(action_space, DefaultModelConfig(conv_filters=[]))
            size += self._actions.size
        features = config.fcnet_hiddens[-1] if config.fcnet_hiddens else size
        self.images = encode.cnns()
        self.net = MLP(*fc_layers(config, "fcnet", size), *fc_layers(config, "head_fcnet", features, num_values))

    def forward(self, obs: Any, actions: Any) -> torch.Tensor:
        """Give `[B]` for observations and actions, of Discrete ones `[B, n]` for observations alone."""
        features = self._input(obs, self.images)
        if self._actions is None:
            return run(self.net, features)
        return run(self.net, torch.cat([features, self._actions(actions)], -1)).squeeze(-1)


class DefaultSoftActorCritic(TorchRLModule, QValueAPI):
    """A policy, and `num_critics` critics with encoders of their own (SAC, TD3, REDQ).

    Actions of float Boxes, in Dicts and Tuples too, are drawn from a SquashedGaussian, within [-1, 1], where bounds
    are finite; so leave `normalize_actions` on. The critics get them as the policy gives them. Of a Discrete space they
    have a value for each action (Christodoulou 2019, arXiv:1910.07207). Acting computes the policy only.

    Args:
        **kwargs: The keywords of `RLModule`; `model_config` is a `DefaultModelConfig` or a dict of its fields.

    Raises:
        ConfigError: unknown or wrong options in `model_config`.
        SpaceError: actions other than one Discrete space or float Boxes, or observations that these networks do not
            take.

    Examples:
        >>> import gymnasium as gym
        >>> module = DefaultSoftActorCritic(
        ...     observation_space=gym.spaces.Box(-1, 1, (4,)), action_space=gym.spaces.Box(-1, 1, (2,)),
        ... )
        >>> module.compute_q_values({"obs": torch.zeros(3, 4)}, torch.zeros(3, 2)).shape
        torch.Size([2, 3])
    """

    def setup(self) -> None:
        """Build the networks."""
        config = DefaultModelConfig.from_dict(self.model_config)
        if config.use_lstm or config.use_gru:
            raise ConfigError(
                f"model_config of {type(self).__name__}",
                expected="a policy without memory",
                found="use_lstm" if config.use_lstm else "use_gru",
                do="leave it out, or write an RLModule with the QValueAPI",
            )
        config = dataclasses.replace(config, squash_actions=True)
        self._input, q_input = group_inputs(self.observation_space, config, with_critic=not self.inference_only)
        self._check_actions()
        size = self._input.size
        features = config.fcnet_hiddens[-1] if config.fcnet_hiddens else size
        self.images = self._input.cnns()
        self.pi = PolicyHead(fc_layers(config, "fcnet", size), features, self.action_space, config)
        self.q: nn.ModuleList | None = None
        if not self.inference_only:
            critics = [Critic(q_input, self.action_space, config) for _ in range(config.num_critics)]
            self.q = nn.ModuleList(critics)

    def _check_actions(self) -> None:
        space = self.action_space
        leaves = flatten(get_base_struct_from_space(space))[0]
        boxes = all(isinstance(leaf, gym.spaces.Box) and np.issubdtype(leaf.dtype, np.floating) for leaf in leaves)
        if not (isinstance(space, gym.spaces.Discrete) or boxes):
            raise SpaceError(
                f"action space of {type(self).__name__}",
                expected="one Discrete space, or float Boxes, also in a Dict or Tuple",
                found=space,
                do="give the integers among them as a Box, and round in the environment; or join choices to one "
                "Discrete space",
            )

    @property
    def critic(self) -> nn.Module:
        if self.q is None:
            raise needs_training(self, "critic")
        return self.q

    def compute_q_values(self, batch: dict[str, Any], actions: Any = None) -> torch.Tensor:
        if self.q is None:
            raise needs_training(self, "compute_q_values")
        discrete = isinstance(self.action_space, gym.spaces.Discrete)
        if actions is None and not discrete:
            raise ColumnError(
                f"{type(self).__name__}.compute_q_values",
                expected=f"actions of {self.action_space}, for which the values are",
                found="none",
                do="pass batch['actions'], or what the policy draws",
            )
        obs = observations_of(batch)
        values = torch.stack([critic(obs, actions) for critic in self.q])
        return chosen(values, actions, self.action_space) if discrete and actions is not None else values

    def _make_dist_cls(self) -> type[Distribution]:
        return distribution_for(self.action_space, squash=True)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return masked_outputs(self.pi(self._input(observations_of(batch), self.images)), batch)

    def get_non_inference_attributes(self) -> list[str]:
        return ["q"]


@final
class DefaultImplicitQ(DefaultSoftActorCritic, ValueFunctionAPI):
    """A `DefaultSoftActorCritic` with a value function, which has an encoder of its own (IQL).

    Args:
        **kwargs: The keywords of `RLModule`; `model_config` is a `DefaultModelConfig` or a dict of its fields.

    Raises:
        ConfigError: unknown or wrong options in `model_config`.
        SpaceError: actions other than one Discrete space or float Boxes, or observations that these networks do not
            take.

    Examples:
        >>> import gymnasium as gym
        >>> module = DefaultImplicitQ(
        ...     observation_space=gym.spaces.Box(-1, 1, (4,)), action_space=gym.spaces.Box(-1, 1, (2,)),
        ... )
        >>> module.compute_values({"obs": torch.zeros(3, 4)}).shape
        torch.Size([3])
    """

    def setup(self) -> None:
        """Build the networks."""
        super().setup()
        self.vf: Critic | None = None
        if not self.inference_only:
            config = DefaultModelConfig.from_dict(self.model_config)
            encode = group_inputs(self.observation_space, config, with_critic=True)[1]
            self.vf = Critic(encode, gym.spaces.Discrete(1), config)

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        if self.vf is None:
            raise needs_training(self, "compute_values")
        values: torch.Tensor = self.vf(observations_of(batch), None)
        return values.squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "vf"]
