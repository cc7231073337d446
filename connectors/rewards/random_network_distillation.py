"""A bonus for observations that a network cannot predict yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Interval

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, StateError
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.restoring import check_like
from epibatch.core.shared_moments import SharedMoments, merge_shared_moments
from epibatch.core.structs import sorted_leaves

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import column_or_gather
from ..authoring.column_paths import paths_from
from ..columns.open_columns import in_tree
from .module_statistics import ModuleStatistics

if TYPE_CHECKING:
    import torch

_MODULE = "default_policy"


class _Novelty:
    """The two networks of one module, the predictor's optimiser, and the moments of inputs and errors.

    Args:
        sizes: Entries of a row, and units of each layer.
        lr: Learning rate of the predictor.
        seed: Of the weights.
    """

    def __init__(self, sizes: Sequence[int], lr: float, seed: int) -> None:
        import torch

        self.size, self._lr = sizes[0], lr
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = torch.nn.ModuleDict({name: _mlp(sizes) for name in ("target", "predictor")})
        self.networks["target"].requires_grad_(False)
        self.device = torch.device("cpu")
        self._make_optimizer()
        self.inputs = SharedMoments.nothing({"inputs": [self.size]})
        self.errors = SharedMoments.nothing({"errors": [1]})
        self.num_rows = 0  # that the predictor was trained on since the last merge

    def _make_optimizer(self) -> None:
        import torch

        self.optimizer = torch.optim.Adam(self.networks["predictor"].parameters(), lr=self._lr)

    def to(self, device: torch.device) -> None:
        """Move the networks, what the optimiser knows of them, and the moments."""
        import torch

        for moments in (self.inputs, self.errors):
            moments.place_beside(torch.empty(0, dtype=torch.float64, device=device))
        if device != self.device:
            state = self.optimizer.state_dict()
            self.networks.to(device)
            self._make_optimizer()
            self.optimizer.load_state_dict(state)
            self.device = device

    def losses(self, rows: torch.Tensor, normalize: bool) -> torch.Tensor:
        """Return the mean squared error of each row, [N]."""
        import torch

        total = self.inputs.total
        if normalize and total.count > 1:
            mean, std = (torch.as_tensor(part).to(rows) for part in (total.mean, total.std()))
            rows = ((rows - mean) / std.clamp(min=1e-8)).clamp(-5.0, 5.0)
        difference: torch.Tensor = self.networks["predictor"](rows) - self.networks["target"](rows)
        return difference.square().mean(-1)

    def to_state(self) -> dict[str, Any]:
        """Return copies: weights, the optimiser's values, moments, and the number of rows."""
        values, weights = self.optimizer.state, self.networks["predictor"].named_parameters()
        return {
            **{name: _arrays(network.state_dict()) for name, network in self.networks.items()},
            "optimizer": {name: _arrays(values[weight]) for name, weight in weights if weight in values},
            "inputs": self.inputs.to_state(),
            "errors": self.errors.to_state(),
            "num_rows": self.num_rows,
        }

    def restore(self, state: Mapping[str, Any], where: str) -> None:
        """Take over what `to_state` gave; raises an error of epibatch for something else."""
        for name, network in self.networks.items():
            check_like(f"{where}, {name!r}", state[name], _arrays(network.state_dict()))
            network.load_state_dict(_tensors(state[name]))
        shapes = {name: np.zeros(tuple(value.shape)) for name, value in self.networks["predictor"].named_parameters()}
        optimizer = state["optimizer"]
        if optimizer != {}:
            like = {name: {"step": np.zeros(()), "exp_avg": x, "exp_avg_sq": x} for name, x in shapes.items()}
            check_like(f"{where}, 'optimizer'", optimizer, like)
        values = {index: _tensors(optimizer[name]) for index, name in enumerate(shapes) if optimizer}
        self.optimizer.load_state_dict({"state": values, "param_groups": self.optimizer.state_dict()["param_groups"]})
        self.inputs = SharedMoments.from_state(state["inputs"], where)
        self.inputs.check({"inputs": [self.size]}, where)
        self.errors = SharedMoments.from_state(state["errors"], where)
        self.errors.check({"errors": [1]}, where)
        self.num_rows = int(state["num_rows"])


class RandomNetworkDistillation(ModuleStatistics):
    """Adds a bonus to each step's reward: the error of a network that predicts the outputs of a random one.

    A predictor is trained to give the outputs of a fixed target network (Burda et al. 2018, arXiv:1810.12894). Its
    error is large for observations unlike those that it was trained on. The bonus of a step is `weight` times the mean
    squared error for the step's observation, and stands in `intrinsic_rewards`, too. Each call first computes the
    bonuses, and then trains the predictor on the same rows. Use `columns="new_obs"` for the observations that steps
    lead to.

    A loop with tensors on a device calls `rewards_of(rows)` in each step and `train_on(rows)` in each update. These
    use the networks of `module_id`, and move them to the device of the rows.

    Each module has networks of its own. `merge_states` averages the predictors of copies, weighted by the rows that
    each was trained on; copies must have the same target. `freeze` stops the training. Rewards that an earlier piece
    put into the batch are the ones that the bonus is added to.

    Counterparts: rsl_rl's `RandomNetworkDistillation`, TorchRL's `RNDTransform`.

    Args:
        update_stats: Whether to train; see `freeze`.
        weight: Factor of the bonus; can be changed between calls.
        columns: What is predicted from: `obs`, or parts of it such as `obs/rnd`; several are concatenated.
        hiddens: Sizes of the hidden layers, which have ELU activations, and at the end of the output.
        lr: Learning rate of the predictor's Adam.
        minibatch_size: Rows of a gradient step; each call makes one pass. None: one step for all rows.
        state_normalization: Whether inputs are shifted and scaled by the moments of all rows trained on, and clipped
            to 5 deviations.
        reward_normalization: Whether errors are divided by the running deviation of all errors.
        add: Whether the bonus is added to the rewards; otherwise it stands in its column alone.

    Raises:
        ConfigError: invalid arguments.
        ColumnError: rows of another size than before.

    Examples:
        >>> import torch
        >>> piece = RandomNetworkDistillation(hiddens=(32, 8), lr=1e-2)
        >>> familiar, new = torch.zeros(64, 3), torch.ones(1, 3)
        >>> for _ in range(50):
        ...     error = piece.train_on(familiar)
        >>> bool(piece.rewards_of(new) > 10 * piece.rewards_of(familiar[:1]))
        True
    """

    weight: Annotated[float, Interval(ge=0, lt=math.inf)] = 1.0
    columns: Any = Columns.OBS
    hiddens: Sequence[int] = (64, 64)
    lr: Annotated[float, Gt(0)] = 1e-3
    minibatch_size: Annotated[int, Ge(1)] | None = 256
    state_normalization: bool = False
    reward_normalization: bool = False
    add: bool = True

    def __post_init__(self) -> None:
        """Check the parameters."""
        self._seed = 0
        self._paths = paths_from("RandomNetworkDistillation", self.columns)
        if not self.hiddens or not all(type(size) is int and size > 0 for size in self.hiddens):
            expected, do = "sizes of layers, at least one", "pass hiddens=(64, 64), for example"
            where = "RandomNetworkDistillation.hiddens"
            raise ConfigError(where, expected=expected, found=repr(self.hiddens), do=do)

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Set the seed of networks that are made from now on; without this call it is 0."""
        self._seed = seed_of(random_stream(seed))

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The bonus, and what it is added to."""
        return (Columns.INTRINSIC_REWARDS, *((Columns.REWARDS,) if self.add else ()))

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the bonus, and train the predictor."""
        import torch

        rewards = column_or_gather(columns, group, Columns.REWARDS, "RandomNetworkDistillation")
        counts = rewards.counts
        steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        real = steps < np.repeat(group.lengths, counts)
        names = dict.fromkeys(path.column for path in self._paths)
        tree = {name: column_or_gather(dict(columns), group, name, "RandomNetworkDistillation").data for name in names}
        leaves = [leaf for path in self._paths for leaf in sorted_leaves(in_tree(path).part(tree))]
        flat = [np.asarray(leaf, np.float32).reshape(len(leaf), -1) for leaf in leaves]
        inputs = np.concatenate(flat, axis=1)[real]
        if not np.isfinite(inputs).all():
            raise _not_finite(inputs, group.module_id)
        rows = torch.from_numpy(inputs)
        kind = rewards.data.dtype if rewards.data.dtype.kind == "f" else np.float64
        bonus = np.zeros(len(steps), kind)
        bonus[real] = self.rewards_of(rows, group.module_id).numpy()
        if self.learns and len(rows):
            self.train_on(rows, group.module_id)
        columns[Columns.INTRINSIC_REWARDS] = EpisodeColumn(bonus, counts)
        if self.add:
            columns[Columns.REWARDS] = rewards.with_data(rewards.data + bonus)
        return columns

    def rewards_of(self, rows: torch.Tensor, module_id: str = _MODULE) -> torch.Tensor:
        """Return the bonus of rows, float [N], on their device.

        Args:
            rows: Float tensor [N, D].
            module_id: Whose networks to use.

        Raises:
            ColumnError: rows of another shape.
        """
        import torch

        novelty = self._novelty(rows, module_id)
        with torch.no_grad():
            errors = novelty.losses(rows, self.state_normalization)
        if self.reward_normalization:
            if self.learns:
                novelty.errors.add(errors.double()[:, None])
            errors = errors / torch.as_tensor(novelty.errors.total.std()[0]).clamp(min=1e-8).to(errors)
        return self.weight * errors

    def train_on(self, rows: torch.Tensor, module_id: str = _MODULE) -> torch.Tensor:
        """Train the predictor on rows, in one pass, and return the mean error before each step, a scalar tensor.

        Minibatch i of n has the rows i, i + n, i + 2 n and so on.

        Args:
            rows: Float tensor [N, D], N >= 1.
            module_id: Whose networks to train.

        Raises:
            ColumnError: rows of another shape.
        """
        import torch

        novelty = self._novelty(rows, module_id)
        if self.state_normalization:
            novelty.inputs.add(rows.detach().double())
        num_steps = -(-len(rows) // (self.minibatch_size or len(rows)))
        total = torch.zeros((), device=rows.device)
        with torch.enable_grad():
            for first in range(num_steps):
                error = novelty.losses(rows[first::num_steps], self.state_normalization).mean()
                novelty.optimizer.zero_grad()
                error.backward()  # type: ignore[no-untyped-call]
                novelty.optimizer.step()
                total += error.detach()
        novelty.num_rows += len(rows)
        return total / num_steps

    def _novelty(self, rows: torch.Tensor, module_id: Any) -> _Novelty:
        """Return the networks of a module, on the device of rows; made for rows of their size at first."""
        import torch

        where = f"RandomNetworkDistillation, module {module_id!r}"
        if not isinstance(rows, torch.Tensor) or rows.ndim != 2 or not rows.is_floating_point():
            expected, found = "a float tensor [rows, entries]", type(rows).__name__
            if isinstance(rows, torch.Tensor):
                found = f"{rows.dtype} of shape {list(rows.shape)}"
            raise ColumnError(
                where, expected=expected, found=found, do="give one tensor, flattened and converted with .float()"
            )
        novelty: _Novelty | None = self._known.get(module_id)
        if novelty is None:
            novelty = self._known[module_id] = self.nothing_known(rows.shape[1])
        if novelty.size != rows.shape[1]:
            expected, found = f"{novelty.size} entries per row, as before", str(rows.shape[1])
            raise ColumnError(where, expected=expected, found=found, do="use a piece of its own for other columns")
        novelty.to(rows.device)
        return novelty

    def nothing_known(self, size: int = 0) -> _Novelty:
        """Networks for rows of some size, before training."""
        return _Novelty([size, *self.hiddens], self.lr, self._seed)

    def from_state(self, state: Any, where: str) -> _Novelty:
        """Networks of one module out of a state."""
        try:
            novelty = self.nothing_known(np.shape(state["target"]["0.weight"])[1])
            novelty.restore(state, where)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise _no_state(where, f"{type(error).__name__}: {error}") from error
        return novelty

    def merged(self, states: list[Any], where: str) -> dict[str, Any]:
        """One state of several copies."""
        copies = [self.from_state(state, f"{where}, state {i}").to_state() for i, state in enumerate(states)]
        for i, copy in enumerate(copies):
            if not all(np.array_equal(value, copies[0]["target"][name]) for name, value in copy["target"].items()):
                raise _no_state(f"{where}, state {i}", "another target network than that of the first copy")
        counts = np.array([copy["num_rows"] for copy in copies], np.float64)
        shares = counts / counts.sum() if counts.any() else np.eye(len(copies))[0]
        trained = [(copy, share) for copy, share in zip(copies, shares) if share]
        return {
            "target": copies[0]["target"],
            "predictor": _mean([(copy["predictor"], share) for copy, share in trained]),
            "optimizer": _mean([(copy["optimizer"], share) for copy, share in trained]),
            **{name: merge_shared_moments([copy[name] for copy in copies], where) for name in ("inputs", "errors")},
            "num_rows": 0,
        }


def _mlp(sizes: Sequence[int]) -> torch.nn.Sequential:
    import torch

    layers: list[torch.nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ELU()]
    return torch.nn.Sequential(*layers[:-1])


def _arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of tensors as arrays, by name."""
    return {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}


def _tensors(arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    import torch

    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _mean(parts: list[tuple[Any, float]]) -> Any:
    """Return the weighted mean of dicts of arrays of one nesting, in the arrays' types."""
    first = parts[0][0]
    if isinstance(first, Mapping):
        return {name: _mean([(part[name], share) for part, share in parts]) for name in first}
    return np.asarray(sum(part * share for part, share in parts), first.dtype)


def _not_finite(inputs: Any, module_id: Any) -> ColumnError:
    rows = np.flatnonzero(~np.isfinite(inputs).all(1))
    return ColumnError(
        f"RandomNetworkDistillation, module {module_id!r}",
        expected="finite numbers; others would spoil the predictor for good",
        found=f"NaN or infinity in {len(rows)} of {len(inputs)} rows, first in row {rows[0]}",
        do="correct what makes such values, or choose other parts with columns=",
    )


def _no_state(where: str, found: str) -> StateError:
    expected = "target, predictor, optimizer, inputs, errors and num_rows of networks of this piece"
    return StateError(where, expected=expected, found=found, do="pass what get_state or merge_states gave")
