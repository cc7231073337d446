"""Modules that are points, and a loss that pulls them to the rows they see."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from epibatch.core.rl_module import MultiRLModule, RLModuleSpec, TorchRLModule
from epibatch.learner import Learner, LearnerSettings, MultiAgentSettings


class Point(TorchRLModule):
    """A point in the plane, at `model_config["at"]`."""

    def setup(self) -> None:
        self.at = torch.nn.Parameter(torch.tensor(self.model_config["at"], dtype=torch.float64))

    def _forward_train(self, batch, **kwargs):
        return {"at": self.at}

    def get_train_action_dist_cls(self):
        return None


class Distances:
    """The mean squared distance of a point to the rows, and every minibatch's rows in the order of the calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, list[float]]] = []

    def __call__(self, batch, outputs, distribution_class):
        name = batch["name"][0] if "name" in batch else None
        self.seen.append((name, batch["x"][:, 0].tolist()))
        loss = (outputs["at"] - batch["x"]).square().sum(-1).mean()
        return loss, {"rows": torch.tensor(float(len(batch["x"])))}

    def of(self, name) -> list[list[float]]:
        """The minibatches of one module."""
        return [rows for own, rows in self.seen if own == name]


class Points:
    """What the tests of several modules are put together from."""

    Module, Distances = Point, Distances

    @staticmethod
    def spec(*at: float) -> RLModuleSpec:
        return RLModuleSpec(module_class=Point, model_config={"at": list(at)})

    @classmethod
    def modules(cls, **at: tuple[float, float]) -> MultiRLModule:
        return MultiRLModule(rl_module_specs={name: cls.spec(*own) for name, own in at.items()})

    @staticmethod
    def batch(name: str, rows: int, seed: int = 0) -> dict[str, Any]:
        """Rows whose first entries are 0, 1, 2..."""
        x = torch.randn((rows, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        x[:, 0] = torch.arange(rows)
        return {"x": x, "name": [name] * rows}

    @staticmethod
    def learner(module, batches, loss=None, multi_agent: Any = None, **settings: Any) -> Learner:
        """A learner whose pipeline gives these batches."""
        options = {"lr": 0.1, "num_epochs": 2, "minibatch_size": 4, "seed": 7, **settings}
        return Learner(
            module=module,
            connector=lambda **kwargs: {name: dict(columns) for name, columns in batches.items()},
            settings=LearnerSettings(**options),
            loss=loss or Distances(),
            multi_agent=None if multi_agent is None else MultiAgentSettings(**multi_agent),
        )

    @staticmethod
    def where(module: MultiRLModule) -> dict[str, list[float]]:
        return {name: own.at.tolist() for name, own in module.items() if isinstance(own, Point)}


@pytest.fixture(scope="session")
def points() -> type[Points]:
    return Points
