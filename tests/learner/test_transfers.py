"""Batches go to a GPU from page-locked memory, one minibatch ahead. The GPU is a fake: its tensors are the CPU's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.learner import default_pipeline
from epibatch.core.rl_module import default_module_spec
from epibatch.core.tensors import convert_to_torch_tensor
from epibatch.learner import Learner, LearnerSettings, Loss, Losses

ROWS, SIZE, EPOCHS = 10, 4, 2


class Squares(Loss):
    """Learns actions by heart; logs what it is given."""

    row_outputs = ("error",)

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def losses(self, batch: Any, module: Any, own: Any, coefficients: Any) -> Any:
        self.log.append("learn")
        errors = (module.forward_train(batch)["action_dist_inputs"] - batch["target"]).square().mean(-1)
        return Losses({"total": errors.mean()}, rows={"error": errors.detach()})

    def __call__(self, batch: Any, outputs: Any, distribution_class: Any, coefficients: Any) -> Any:
        raise AssertionError


@pytest.fixture
def gpu(monkeypatch):
    """Fake a GPU and return the log of what is done with it."""
    log: list[Any] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            log.append("stream")

        def record_event(self) -> int:
            return log.count("sent") + 1

        def wait_event(self, event: int) -> None:
            log.append(("wait", event))

    @contextmanager
    def entered(stream: Stream) -> Any:
        yield
        log.append("sent")

    move = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        if args and str(args[0]).startswith("cuda"):
            log.append(("to", keywords.get("non_blocking"), len(self) if self.ndim else 0))
            return self.clone()
        return move(self, *args, **keywords)

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: log.append("pin") or self)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: log.append("kept"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: self)
    monkeypatch.setattr("epibatch.learner.learner.usable_device", lambda device, where: torch.device(device))
    return log


def trained(device: str | None, log: list[Any]) -> tuple[dict[str, Any], Any]:
    torch.manual_seed(0)
    module = default_module_spec(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)).build()
    settings = LearnerSettings(lr=0.1, minibatch_size=SIZE, num_epochs=EPOCHS, seed=0)
    learner = Learner(module=module, connector=None, settings=settings, loss=Squares(log), device=device)
    batch = {"obs": torch.rand(ROWS, 3), "target": torch.rand(ROWS, 2)}
    learner.update(batch={"default_policy": batch})
    return learner.get_state()["module"]["default_policy"], learner.row_outputs["default_policy"]["error"]


def test_the_next_minibatch_is_on_its_way_while_this_one_is_learned(gpu):
    expected, errors = trained(None, [])
    del gpu[:]
    found, found_errors = trained("cuda:0", gpu)
    np.testing.assert_equal(found, expected)
    assert torch.equal(found_errors, errors)
    moves = [entry for entry in gpu if isinstance(entry, tuple) and entry[0] == "to"]
    assert moves == [("to", True, size) for _ in range(EPOCHS) for size in (4, 4, 4, 4, 2, 2)]
    assert gpu.count("pin") == gpu.count("kept") == len(moves)
    order = [entry for entry in gpu if entry in ("sent", "learn") or entry[0] == "wait"]
    epoch = ["sent", "sent", 1, "learn", "sent", 2, "learn", 3, "learn"]
    waited = [entry[1] if isinstance(entry, tuple) else entry for entry in order]
    assert waited == [*epoch, *(entry + 3 if isinstance(entry, int) else entry for entry in epoch)]


def test_the_learner_pipeline_pins_for_a_gpu_alone():
    spaces = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    pipelines = [default_pipeline(*spaces, device=device) for device in (None, "cpu", "cuda:0")]
    assert [pipeline["numpy_to_tensor"].pin_memory for pipeline in pipelines] == [False, False, True]


def test_arrays_are_pinned_and_tensors_of_a_device_are_not(gpu):
    convert_to_torch_tensor({"arrays": np.ones(2), "rows": torch.ones(2, device="meta")}, pin_memory=True)
    assert gpu == ["pin"]
