"""Learners of several modules in both libraries, with the same weights and batches."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from oracle.libraries import RLLIB, Library
from oracle.probes import plain

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3)
LEARNER = ("lr", "minibatch_size", "num_epochs", "grad_clip", "grad_clip_by")
LOSS = ("clip_param", "vf_clip_param", "vf_loss_coeff", "entropy_coeff", "kl_coeff", "kl_target", "use_kl_loss")
DEFAULTS = {"lr": 0.01, "minibatch_size": None, "num_epochs": 1, "grad_clip": None}


@cache
def net_class(library: Library) -> Any:
    """A linear policy and a linear value function, whose weights follow from `model_config["seed"]`."""

    class Net(library.TorchRLModule, library.ValueFunctionAPI):  # type: ignore[misc]
        def setup(self) -> None:
            self.pi, self.vf = nn.Linear(4, 3), nn.Linear(4, 1)
            generator = torch.Generator().manual_seed(self.model_config["seed"])
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)

        def _forward(self, batch: Any, **kwargs: Any) -> Any:
            return {"action_dist_inputs": self.pi(batch["obs"])}

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            return self.vf(batch["obs"]).squeeze(-1)

    return Net


def net_spec(library: Library, seed: int, **settings: Any) -> Any:
    spaces = {"observation_space": BOX, "action_space": CHOICE}
    return library.RLModuleSpec(module_class=net_class(library), model_config={"seed": seed}, **spaces, **settings)


def nets(library: Library, *names: str, first: int = 0) -> Any:
    """A container of modules of which the n-th has the weights of a seed."""
    return library.MultiRLModule(rl_module_specs={name: net_spec(library, first + i) for i, name in enumerate(names)})


def ppo_batch(rows: int, seed: int) -> dict[str, Any]:
    """Random columns that PPO's loss takes; behaviour is near the policy's, so that ratios are not all clipped."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.standard_normal((rows, 3)).astype(np.float32) * 0.3)
    actions = torch.from_numpy(rng.integers(0, 3, rows))
    return {
        "obs": torch.from_numpy(rng.uniform(-1, 1, (rows, 4)).astype(np.float32)),
        "actions": actions,
        "action_dist_inputs": logits,
        "action_logp": torch.log_softmax(logits, -1)[torch.arange(rows), actions],
        "advantages": torch.from_numpy(rng.standard_normal(rows).astype(np.float32)),
        "value_targets": torch.from_numpy(rng.standard_normal(rows).astype(np.float32)),
        "loss_mask": torch.ones(rows, dtype=torch.bool),
    }


class SeveralModules:
    """PPO's learner with modules of given ids, and what is needed to update it.

    Args:
        library: the library.
        module_ids: the ids; the n-th module has the weights of seed n.
        policies_to_train: as both libraries take it.
        overrides: settings per module, under RLlib's names.
        settings: common ones, under RLlib's names.
    """

    def __init__(
        self,
        library: Library,
        module_ids: Any = ("red", "blue"),
        policies_to_train: Any = None,
        overrides: Any = None,
        **settings: Any,
    ) -> None:
        self._library, self._settings = library, {**DEFAULTS, **settings}
        specs = {name: net_spec(library, seed) for seed, name in enumerate(module_ids)}
        spec = library.MultiRLModuleSpec(rl_module_specs=specs)
        make = self._rllibs if library is RLLIB else self._ours
        self.learner = make(spec, policies_to_train, overrides or {})

    def _rllibs(self, spec: Any, rule: Any, overrides: Any) -> Any:
        config = self._library.PPOConfig().environment(observation_space=BOX, action_space=CHOICE)
        names, override = list(spec.rl_module_specs), self._library.PPOConfig.overrides
        config.env_runners(num_env_runners=0).training(**self._settings).rl_module(rl_module_spec=spec)
        config.multi_agent(
            policies=set(names),
            policy_mapping_fn=lambda agent_id, episode, **kwargs: names[0],
            policies_to_train=rule,
            algorithm_config_overrides_per_module={name: override(**own) for name, own in overrides.items()},
        )
        return config.build_learner(spaces=dict.fromkeys(names, (BOX, CHOICE)))

    def _ours(self, spec: Any, rule: Any, overrides: Any) -> Any:
        package = self._library.module("learner")
        learner, loss = ({key: own for key, own in self._settings.items() if key in some} for some in (LEARNER, LOSS))
        return package.Learner(
            module=spec.build(),
            connector=lambda **kwargs: self.batches,
            settings=package.LearnerSettings(**learner, shuffle=None),
            loss=package.PPOLoss(package.PPOSettings(**loss)),
            multi_agent=package.MultiAgentSettings(overrides, rule),
        )

    def update(self, batches: dict[str, dict[str, Any]]) -> Any:
        """Update by these batches, and return the results."""
        self.batches = batches
        if self._library is not RLLIB:
            return self.learner.update(episodes=[1])
        sample_batch = self._library.module("policy.sample_batch")
        columns = {name: sample_batch.SampleBatch(batch) for name, batch in batches.items()}
        most = max(len(batch["obs"]) for batch in batches.values())
        results = self.learner.update(
            batch=sample_batch.MultiAgentBatch(columns, most),
            timesteps={"num_env_steps_sampled_lifetime": most},
            num_epochs=self._settings["num_epochs"],
            minibatch_size=self._settings["minibatch_size"],
        )
        return {
            name: {key: value.peek() if hasattr(value, "peek") else value for key, value in own.items()}
            for name, own in results.items()
        }

    def weights(self) -> dict[str, dict[str, Any]]:
        """Every module's parameters, as copies."""
        return {
            name: {key: value.detach().numpy().copy() for key, value in module.named_parameters()}
            for name, module in self.learner.module.items()
        }

    def moved(self, batches: dict[str, dict[str, Any]]) -> list[str]:
        """The modules whose parameters an update changes."""
        before = self.weights()
        self.update(batches)
        after = self.weights()
        return sorted(n for n, own in before.items() if any(not np.array_equal(own[k], after[n][k]) for k in own))


def minibatches(library: Any, batches: dict[str, dict[str, Any]], size: int) -> dict[str, Any]:
    """For each module the column `x` of its first five minibatches in one epoch, unshuffled."""
    if library is not RLLIB:
        made = library.module("learner.minibatches").Minibatches
        return {
            name: [plain(part["x"]) for part in islice(made(batch, size=size, shuffle=None), 5)]
            for name, batch in batches.items()
        }
    sample_batch = library.module("policy.sample_batch")
    padded = {name: "seq_lens" in batch for name, batch in batches.items()}
    columns = {name: sample_batch.SampleBatch(own, _zero_padded=padded[name]) for name, own in batches.items()}
    for name, batch in columns.items():
        if padded[name]:  # as its Learner does for recurrent modules
            batch.enable_slicing_by_batch_id()
    cyclic = library.module("utils.minibatch_utils").MiniBatchCyclicIterator
    parts = cyclic(sample_batch.MultiAgentBatch(columns, 1), minibatch_size=size, shuffle_batch_per_epoch=False)
    shown: dict[str, Any] = {name: [] for name in batches}
    for part in islice(parts, 5):
        for name, own in part.policy_batches.items():
            shown[name].append(plain(own["x"]) if "x" in own else "no columns")
    return shown
