"""The learner: episodes through the learner pipeline, minibatches through the loss, gradients into the modules."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast
from zlib import crc32

import numpy as np
import torch

from epibatch.core import ALL_MODULES, KEPT_BY_RULES, LEARNERS, POLICIES_TO_TRAIN
from epibatch.core.columns import COLUMNS_LEFT_OUT, Columns
from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    ConfigError,
    EpisodeError,
    NonFiniteLossError,
    UnknownNameError,
    add_context,
    nearest,
)
from epibatch.core.restoring import check_count, check_like, restore_on_error, restoring
from epibatch.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec
from epibatch.core.runtime import evaluation_mode, usable_device
from epibatch.core.state_codec import require_mapping
from epibatch.core.structs import flatten, map_struct

from ..episodes.vector_episodes import count_steps
from .first_update_check import CheckMode, FirstUpdateCheck
from .loss import LossFunction, as_loss
from .minibatches import Minibatches, has_loss
from .module_trainer import ModuleShare, ModuleTrainer
from .settings import LearnerSettings, MultiAgentSettings, PoliciesToTrain
from .together.learners import Learners
from .together.shared_states import SharedStates
from .together.shared_update import SharedUpdate
from .unread_columns import ColumnUse, UnreadColumns
from .update_rule import UpdateRule

if TYPE_CHECKING:
    from epibatch.core.rl_module.rl_module import MultiRLModule, RLModule

_GIVEN_BATCH = "Learner.update(batch=...)"


class Learner:
    """Updates the modules of a `MultiRLModule` from episodes.

    Each module has its own optimiser, loss, minibatches and order of rows, independent of other modules. Modules that
    share parameters step them in turn.

    Args:
        module: The modules, or a single one; each that is trained has its own optimiser.
        connector: The learner pipeline; called as `connector(rl_module=, batch={}, episodes=, shared_data={},
            metrics=)`, it returns `{module_id: {column: tensor}}`; None if every update is given a batch.
        settings: Optimiser and minibatches.
        loss: An `UpdateRule`; a `Loss` (PPOLoss, say), which is one; or a function
            `(batch, outputs, distribution_class) -> (loss, metrics)`.
        device: The device of the modules and minibatches; None leaves both on their devices.
        multi_agent: Which modules are trained, and their own settings and losses; None trains all of them alike.
        columns: "all", or "auto": columns that are not read in a module's first update are not made for later ones.
        check_first_update: "warn", "error" or "off": the comparison, before the first gradient step of each
            module, of its outputs in training with those recorded while it acted. Turn it off for off-policy data; it
            is off for update rules that are not `on_policy`.
        learners: The learners that update together, each with its share of the episodes: a `TorchLearners`, say. All
            are made alike and have the same state. None: this learner is alone.

    Raises:
        ConfigError: the module is none of epibatch's, such as a plain `torch.nn.Module`.
        UnknownNameError: `multi_agent` names a module that does not exist.
        ConfigError: it has a setting that no module has, or a value out of its range; or the device cannot be used.
    """

    def __init__(
        self,
        *,
        module: MultiRLModule | RLModule,
        connector: Any,
        settings: LearnerSettings,
        loss: UpdateRule | LossFunction,
        device: torch.device | str | None = None,
        multi_agent: MultiAgentSettings | None = None,
        columns: Literal["all", "auto"] = "all",
        check_first_update: CheckMode = "warn",
        learners: Learners | None = None,
    ) -> None:
        self._module = _as_multi(module)
        self._learner_connector = connector
        self._settings = settings
        self._loss = as_loss(loss)
        self._device = None if device is None else usable_device(device, "Learner")
        self._multi_agent = multi_agent or MultiAgentSettings()
        self._multi_agent.check_ids(self._module.keys())
        self._unread = UnreadColumns(connector) if columns == "auto" else None
        self._check = FirstUpdateCheck(check_first_update)
        self._learners = learners or Learners()
        self._states = SharedStates(connector, self._learners)
        self._num_changes = 0
        self._num_updates = 0
        self._num_gradient_steps = 0
        self._num_env_steps = 0
        self._trainers_by_id: dict[str, ModuleTrainer] = {}
        self._trainers()

    @property
    def module(self) -> MultiRLModule:
        """The modules."""
        return self._module

    @property
    def connector(self) -> Any:
        """The learner pipeline."""
        return self._learner_connector

    @property
    def acting_connector(self) -> Any:
        """The env-to-module pipeline that the module acts with, or None; the first-update check names its pieces."""
        return self._check.acting

    @acting_connector.setter
    def acting_connector(self, pipeline: Any) -> None:
        self._check.acting = pipeline

    @property
    def settings(self) -> LearnerSettings:
        """The common settings."""
        return self._settings

    @property
    def learners(self) -> Learners:
        """The learners that update together."""
        return self._learners

    def settings_of(self, module_id: str) -> LearnerSettings:
        """Return one module's settings, including its overrides."""
        self._module[module_id]
        return self._trainers()[module_id].settings

    def loss_of(self, module_id: str) -> Any:
        """Return one module's loss or other update rule, including its overrides."""
        self._module[module_id]
        return self._trainers()[module_id].rule

    @property
    def row_outputs(self) -> dict[str, dict[str, torch.Tensor]]:
        """Module id -> name -> the update rule's values of the rows of the newest batch, float32 [B, ...].

        They are in the order of the batch's rows; rows without loss have NaN. With other learners, each has those of
        its own batch; `LearnerGroup.row_outputs` has those of all.
        """
        return {key: trainer.row_outputs for key, trainer in self._trainers().items() if trainer.row_outputs}

    def renew_own(self, module_id: str) -> None:
        """Make what the update rule keeps for a module, such as a target network, from the module as it is now.

        Call it after you set a module's weights from outside.
        """
        self._module[module_id]
        self._num_changes += 1
        self._trainers()[module_id].renew_own()

    def parts(self) -> dict[str, Any]:
        """Return the arguments from which another learner like this one is built, with the same parts as this one."""
        return {
            "module": self._module,
            "connector": self._learner_connector,
            "settings": self._settings,
            "loss": self._loss,
            "device": self._device,
            "multi_agent": self._multi_agent,
            "columns": "all" if self._unread is None else "auto",
            "check_first_update": self._check.mode,
        }

    @property
    def column_use(self) -> dict[str, ColumnUse]:
        """Module id -> the columns that it reads and those that are left out; empty without `columns="auto"`."""
        return {key: trainer.column_use for key, trainer in self._trainers().items() if trainer.column_use is not None}

    # --------------------------------------------------------------------- which modules are trained

    @property
    def policies_to_train(self) -> PoliciesToTrain:
        """The ids of the modules to update, a function that decides, or None for all; can be set at any time.

        The optimiser of a module that is no longer trained is kept, and used if the module is trained again.
        """
        return self._multi_agent.policies_to_train

    @policies_to_train.setter
    def policies_to_train(self, rule: PoliciesToTrain) -> None:
        multi_agent = replace(self._multi_agent, policies_to_train=rule)
        multi_agent.check_ids(self._module.keys())
        self._multi_agent = multi_agent

    def should_module_be_updated(self, module_id: str, batch: Any = None) -> bool:
        """True if a module is updated by a batch; `policies_to_train` decides.

        `update` calls it for each module of the train batch. If `policies_to_train` lists ids, the learner
        pipeline gets them as the frozenset `shared_data["policies_to_train"]`
        (`epibatch.core.POLICIES_TO_TRAIN`). AgentToModuleMapping leaves other modules out, so that the pieces
        after it do no work for them.

        Args:
            module_id: The module.
            batch: The train batch, `{module_id: {column: tensor}}`; None before there is one.
        """
        return self._multi_agent.should_be_updated(module_id, batch)

    def add_module(
        self,
        module_id: str,
        module_spec: RLModuleSpec | RLModule,
        *,
        config_overrides: Mapping[str, Any] | None = None,
        new_should_module_be_updated: PoliciesToTrain = None,
    ) -> MultiRLModuleSpec:
        """Add a module between two updates, also to the learner's `MultiRLModule`.

        Args:
            module_id: An unused id.
            module_spec: How to build the module, or the module itself.
            config_overrides: Its own settings, as in `MultiAgentSettings.overrides_per_module`.
            new_should_module_be_updated: The new `policies_to_train`; None leaves it unchanged, so that a list of
                ids does not include the new module.

        Returns:
            The spec of all modules.

        Raises:
            ConfigError: the id is taken, or a setting does not exist or has a wrong value; nothing was added.
            UnknownNameError: `new_should_module_be_updated` names a module that does not exist; nothing was added.
        """
        self._trainers()
        multi_agent = self._multi_agent.with_module(module_id, config_overrides)
        if new_should_module_be_updated is not None:
            multi_agent = replace(multi_agent, policies_to_train=new_should_module_be_updated)
        multi_agent.check_ids([*self._module.keys(), module_id])
        _overridden(module_id, self._settings, self._loss, config_overrides or {})
        module = module_spec
        if isinstance(module_spec, RLModuleSpec):
            module = replace(module_spec, inference_only=False).build()
        self._module.add_module(module_id, module)
        self._multi_agent = multi_agent
        self._trainers()
        return MultiRLModuleSpec.from_module(self._module)

    def remove_module(
        self, module_id: str, *, new_should_module_be_updated: PoliciesToTrain = None
    ) -> MultiRLModuleSpec:
        """Remove a module, its optimiser and its overrides.

        Args:
            module_id: The module.
            new_should_module_be_updated: The new `policies_to_train`; None only removes the module from it.

        Returns:
            The spec of the remaining modules.

        Raises:
            UnknownNameError: there is no such module, or `new_should_module_be_updated` names one that does not exist.
        """
        self._module[module_id]
        self._trainers()
        multi_agent = self._multi_agent.without_module(module_id)
        if new_should_module_be_updated is not None:
            multi_agent = replace(multi_agent, policies_to_train=new_should_module_be_updated)
        multi_agent.check_ids(key for key in self._module if key != module_id)
        self._module.remove_module(module_id)
        self._multi_agent = multi_agent
        self._trainers()
        return MultiRLModuleSpec.from_module(self._module)

    # ---------------------------------------------------------------------------------------- update

    def update(
        self,
        *,
        episodes: Sequence[Any] | None = None,
        batch: Mapping[str, Mapping[str, Any]] | None = None,
        metrics: Any = None,
        num_env_steps: int | None = None,
    ) -> dict[str, dict[str, float]]:
        """Run the pipeline over the episodes, then all epochs of minibatches of every module to train in the batch.

        A finished batch, such as `{"default_policy": storage.batch()}` of a `RolloutStorage`, takes the place of
        episodes; then the pipeline does not run. Its rows with loss count as environment steps; with several modules,
        those of the one with the most.

        A module that is not trained, or has no episodes, is not in the results. If all rows of one of several modules
        lack loss, it is not changed, and its `num_rows` is 0. For a learner's only module this is an error.

        With other learners each calls this with its share of the episodes or rows. All take the same steps, and have
        the same results and state; only the seconds and `bytes_left_out` are each one's own.

        Args:
            episodes: Chunks as an environment runner returns them; with other learners there may be none.
            batch: `{module_id: {column: tensor}}`, in place of episodes.
            metrics: Logger passed to the pipeline.
            num_env_steps: Environment steps that count as learned from, for schedules, if rows were drawn from a larger
                set; with other learners, those of this one's share. None: those of the episodes or the batch.

        Returns:
            Per module id the means of the loss's metrics over all minibatches, weighted by their valid rows, and
            `grad_norm` (before clipping), `explained_variance` (of the last epoch), `lr` (of the last step),
            `num_rows` (valid rows of the first epoch, as far as it went), `num_minibatches`, `<group>_lr` of groups
            with a learning rate of their own, and the loss's coefficients as used; under `__all_modules__`
            `connector_s`, `update_s`, `num_updates`, `num_gradient_steps`, `num_env_steps_trained_lifetime`, and
            `num_rows` of all modules together, and with `columns="auto"` `bytes_left_out`.

        Raises:
            ConfigError: episodes and a batch were given, or neither; or episodes to a learner without a pipeline.
            EpisodeError: there are no episodes.
            BatchLayoutError: the pipeline returned something else than batches per module, or `batch` is none.
            FirstUpdateError: with `check_first_update="error"`, a module's outputs differ from those recorded
                while it acted; nothing was updated.
            NonFiniteLossError: a loss, metric or gradient of a module is not finite; that step was not taken.
                All other modules were updated before it was raised.
            OtherLearnerError: another learner failed, and raises the error itself; that step was not taken.
            WorkerLostError: the connection to another learner is lost.
        """
        start = time.perf_counter()
        data = data_of(episodes, batch)
        self._num_changes += 1
        train_batch, shares, steps = self._shares(data, metrics, num_env_steps)
        connected = time.perf_counter()
        results = self._run(shares)
        self._num_updates += 1
        self._num_env_steps += steps
        results[ALL_MODULES] = {
            "connector_s": connected - start,
            "update_s": time.perf_counter() - connected,
            "num_updates": self._num_updates,
            "num_gradient_steps": self._num_gradient_steps,
            "num_env_steps_trained_lifetime": self._num_env_steps,
            "num_rows": sum(result["num_rows"] for result in results.values()),
        }
        if self._unread is not None:
            left_out = 0 if batch is not None else self._unread.end(train_batch, self._trainers())
            results[ALL_MODULES]["bytes_left_out"] = left_out
        return results

    def measure(self, batch: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        """Return the losses of a batch without learning from it, by module; modules without rows with loss are missing.

        Modules are in evaluation mode. Rules that draw random numbers take them from torch's generator.

        Args:
            batch: `{module_id: {column: tensor}}`, as `make_batch` returns it.

        Returns:
            Module id -> `<name>_loss` of each loss, the rule's metrics, and `num_rows`.

        Raises:
            BatchLayoutError: `batch` is something else.
            UnknownNameError: it has another module.
        """
        self.check_batch(dict(batch))
        trainers = self._trainers()
        with evaluation_mode(self._module), torch.no_grad():
            return {
                module_id: trainers[module_id].measure(columns, self._num_env_steps)
                for module_id, columns in batch.items()
                if has_loss(columns) and self.should_module_be_updated(module_id, batch)
            }

    def make_batch(self, episodes: Sequence[Any], metrics: Any = None) -> dict[str, Any]:
        """Return the train batch of episodes, for `update(batch=...)` of a `LearnerGroup`.

        Args:
            episodes: Chunks as an environment runner returns them.
            metrics: Logger passed to the pipeline.

        Raises:
            ConfigError: the learner has no pipeline.
        """
        return self._batch_of(episodes, metrics, SharedUpdate(Learners()))

    def _batch_of(self, data: Data, metrics: Any, shared: SharedUpdate) -> dict[str, Any]:
        """Return the train batch of episodes, or the one that was given, checked; it may be empty."""
        if isinstance(data, Mapping):
            return self._given_batch(data)
        episodes = data
        if self._learner_connector is None:
            raise ConfigError(
                "Learner.update(episodes=...)",
                expected="a learner pipeline, which makes the train batch of episodes",
                found="a learner with connector=None",
                do="give it one: epibatch.connectors.learner.default_pipeline(observation_space, action_space), say, "
                "or call update(batch=...)",
            )
        if len(episodes) == 0:
            return {}
        known_ids = self._multi_agent.known_ids
        shared_data: dict[str, Any] = {} if known_ids is None else {POLICIES_TO_TRAIN: known_ids}
        if shared.count > 1:
            shared_data[LEARNERS] = shared
        if kept := {name: trainer.own for name, trainer in self._trainers().items() if trainer.own is not None}:
            shared_data[KEPT_BY_RULES] = kept
        pending = self._check.begin(self._learner_connector, self._module, episodes, known_ids)
        if self._unread is not None:
            shared_data.update(self._unread.begin(self._trainers()))
            for module_id in pending:  # the check needs all columns
                shared_data[COLUMNS_LEFT_OUT].pop(module_id, None)
        with evaluation_mode(self._module):
            batch: dict[str, Any] = self._learner_connector(
                rl_module=self._module, batch={}, episodes=episodes, shared_data=shared_data, metrics=metrics
            )
        self.check_batch(batch, "batch of the learner pipeline")
        return batch

    def _given_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        self.check_batch(dict(batch))
        self._check.begin_batch(self._module)
        for trainer in self._trainers().values():
            trainer.read = None
        return dict(batch)

    def check_next_update(self, compare: bool = True) -> None:
        """Compare acting and training again in the next update, as after an edit of a pipeline that acts.

        Args:
            compare: False: do not compare in the next update, because its steps acted with earlier weights.
        """
        if compare:
            self._check.repeat()
        else:
            self._check.skip()

    def _shares(
        self, data: Data, metrics: Any, num_env_steps: int | None
    ) -> tuple[dict[str, Any], dict[str, ModuleShare], int]:
        """Make the train batch of this learner's data, and agree with the others on the minibatches.

        Returns:
            The train batch; this learner's share of the update of each module that any learner updates; and the
            environment steps of all learners.
        """
        shared = SharedUpdate(self._learners)
        own = shared.attempt(self._contribution, shared, data, metrics, num_env_steps)
        answers = shared.finish(own and own[2])
        batch, minibatches, _ = cast("tuple[dict[str, Any], dict[str, Minibatches], _Contribution]", own)
        if not any(answer.num_episodes for answer in answers):
            raise no_data(data)
        if not any(answer.has_batch for answer in answers) and self._multi_agent.known_ids is None:
            raise _no_batch_of_modules({}, self._module)
        if any(answer.state != answers[0].state for answer in answers):
            raise _other_states(answers)
        self._states.merge(shared, [answer.connector_states for answer in answers])
        trainers = self._trainers()
        for key, trainer in trainers.items():
            names = [answer.metric_names.get(key) for answer in answers]
            if trainer.gradients is not None and names != [names[0]] * len(names):  # of some a state was set
                trainer.gradients.forget_names()
        shares: dict[str, ModuleShare] = {}
        for key in dict.fromkeys(chain.from_iterable(answer.chosen for answer in answers)):
            rows, numbers = zip(*(answer.sizes.get(key, (0, 0)) for answer in answers))
            if len(self._module) == 1 and not any(rows):  # raises the error about a batch without loss
                shared.attempt(trainers[key].minibatches, batch.get(key, {}), False)
                shared.finish(None)
            number = None if shared.count == 1 else max(numbers)
            is_source = rows.index(max(rows)) + 1 == shared.index
            shares[key] = ModuleShare(shared, minibatches.get(key), sum(rows), number, is_source)
        return batch, shares, sum(answer.num_env_steps for answer in answers)

    def _contribution(
        self, shared: SharedUpdate, data: Data, metrics: Any, num_env_steps: int | None
    ) -> tuple[dict[str, Any], dict[str, Minibatches], _Contribution]:
        self._states.begin()
        batch, trainers = self._batch_of(data, metrics, shared), self._trainers()
        for trainer in trainers.values():
            trainer.row_outputs = {}
        chosen = [module_id for module_id in batch if self.should_module_be_updated(module_id, batch)]
        self._check.compare({module_id: trainers[module_id] for module_id in chosen}, batch)
        # the function of another learner may choose modules of this batch, too
        may_be_chosen = batch if callable(self.policies_to_train) and shared.count > 1 else chosen
        minibatches: dict[str, Minibatches] = {}
        for module_id in may_be_chosen:
            own = trainers[module_id].minibatches(batch[module_id])
            if own is not None:
                minibatches[module_id] = own
                _prepare(module_id, trainers[module_id])
        contribution = _Contribution(
            len(data),
            env_steps_of(data, num_env_steps),
            bool(batch),
            (self._num_updates, self._num_gradient_steps, self._num_env_steps),
            chosen,
            {key: (item.num_rows, item.num_per_epoch) for key, item in minibatches.items()},
            {key: trainer.gradients.names for key, trainer in trainers.items() if trainer.gradients},
            self._states.changed(),
        )
        return batch, minibatches, contribution

    def _run(self, shares: Mapping[str, ModuleShare]) -> dict[str, dict[str, float]]:
        """Run the updates of modules; a loss that is not finite is raised after all.

        An error that only this learner has is raised at once, as the others make no further exchange.
        """
        results: dict[str, dict[str, float]] = {}
        failures: list[NonFiniteLossError] = []
        for module_id, share in shares.items():
            if not share.num_rows:
                results[module_id] = {"num_rows": 0, "num_minibatches": 0}
                continue
            trainer = self._trainers_by_id[module_id]
            try:
                results[module_id] = trainer.update(share, self._num_env_steps)
            except Exception as error:
                if isinstance(error, NonFiniteLossError) and not share.shared.failed:
                    failures.append(error)
                    continue
                add_context(error, f"in the update of module {module_id!r}:")
                raise
            finally:
                self._num_gradient_steps += trainer.num_gradient_steps
        if len(failures) > 1:
            raise NonFiniteLossError("\n".join(map(str, failures))) from failures[0]
        if failures:
            raise failures[0]
        return results

    # ----------------------------------------------------------------------------------------- state

    def get_state(self) -> dict[str, Any]:
        """Return the state that the next update depends on, as dicts of NumPy arrays, numbers and strings (copies)."""
        trainers = self._trainers()
        state = {
            "module": _copies(self._module.get_state()),
            "optimizers": {key: item.optimizer.get_state() for key, item in trainers.items() if item.optimizer},
            "coefficients": {key: dict(trainer.coefficients) for key, trainer in trainers.items()},
            "generators": {key: trainer.get_order() for key, trainer in trainers.items()},
            "num_updates": self._num_updates,
            "num_gradient_steps": self._num_gradient_steps,
            "num_env_steps": self._num_env_steps,
        }
        rates = {key: trainer.adapted_lr for key, trainer in trainers.items() if trainer.adapted_lr is not None}
        if rates:
            state["learning_rates"] = rates
        rules = {key: trainer.get_own_state() for key, trainer in trainers.items() if trainer.own is not None}
        if rules:
            state["rules"] = rules
        if hasattr(self._learner_connector, "get_state"):
            state["connector"] = _copies(self._learner_connector.get_state())
        return state

    def state_version(self) -> tuple[Any, ...]:
        """Return a value that changes whenever the state does, without copying weights.

        Updates and states that are set are counted. Weights can be written to in ways that nothing counts, so they have
        checksums. Pieces of a pipeline have nothing but `get_state`, so their states are pickled to be compared.
        """
        connector = self._learner_connector
        states = pickle.dumps(connector.get_state() if hasattr(connector, "get_state") else None)
        modules = [module for module in self._module.values() if isinstance(module, torch.nn.Module)]
        tensors = [x.detach() for module in modules for x in chain(module.parameters(), module.buffers())]
        flat = (x.cpu().contiguous().view(-1).view(torch.uint8) for x in tensors)
        return self._num_changes, states, [crc32(x.numpy().data) for x in flat]

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`: the next update is bit-identical.

        The settings (learning rate, ids of modules to train and so on) are not part of the state. This learner's
        settings stay.

        Raises:
            CheckpointError: the state lacks a part, has other modules than this learner, or does not fit them; the
                learner is unchanged.
        """
        _check_state(state, list(self._module))
        before = self.get_state()
        with restore_on_error(lambda: self._restore(before)):
            self._restore(state)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._num_changes += 1
        with restoring("learner state", "module"):
            self._module.set_state(state["module"])
        for module_id, trainer in self._trainers().items():
            with restoring("learner state", module_id):
                _restore_trainer(module_id, trainer, state)
        self._num_updates = check_count("learner state, 'num_updates'", state["num_updates"])
        self._num_gradient_steps = check_count("learner state, 'num_gradient_steps'", state["num_gradient_steps"])
        steps = state.get("num_env_steps", 0)  # checkpoints from before schedules existed lack it
        self._num_env_steps = check_count("learner state, 'num_env_steps'", steps)
        if "connector" in state and hasattr(self._learner_connector, "set_state"):
            with restoring("learner state", "connector"):
                self._learner_connector.set_state(state["connector"])
        self._states.forget()

    def _trainers(self) -> dict[str, ModuleTrainer]:
        """Return one trainer for each current module, with an optimiser if the module is known to be trained."""
        trainers = self._trainers_by_id
        for module_id in [key for key, trainer in trainers.items() if self._module.get(key) is not trainer.module]:
            del trainers[module_id]
            if module_id not in self._module:
                self._multi_agent = self._multi_agent.without_module(module_id)
        for module_id, module in self._module.items():
            if module_id not in trainers:
                changes = self._multi_agent.overrides_per_module.get(module_id, {})
                settings, loss = _overridden(module_id, self._settings, self._loss, changes)
                trainers[module_id] = ModuleTrainer(module_id, module, settings, loss, self._device, self._learners)
            if not callable(self.policies_to_train) and self._multi_agent.should_be_updated(module_id):
                _prepare(module_id, trainers[module_id])
        return trainers

    def check_batch(self, batch: Any, where: str = _GIVEN_BATCH) -> None:
        """Check that a batch is one by module, of modules that this learner holds.

        Args:
            batch: The batch.
            where: Its name, for messages.

        Raises:
            BatchLayoutError: it is no `{module_id: {column: tensor}}`.
            UnknownNameError: it has another module.
        """
        if not isinstance(batch, dict) or not all(isinstance(value, dict) for value in batch.values()):
            raise _no_batch_of_modules(batch, self._module, where)
        module_ids = list(self._module)
        for module_id in batch:
            if module_id not in module_ids:
                raise UnknownNameError(
                    where,
                    expected="ids of modules that this learner holds",
                    found=repr(module_id),
                    do=nearest(str(module_id), map(str, module_ids)),
                )


def _as_multi(module: Any) -> MultiRLModule:
    if not hasattr(module, "as_multi_rl_module"):
        raise ConfigError(
            "Learner(module=...)",
            expected="a TorchRLModule, or a MultiRLModule of several",
            found=f"{type(module).__module__}.{type(module).__qualname__}",
            do="derive it from epibatch.core.TorchRLModule; or call the loss and the optimiser yourself: the learner "
            "pipeline takes any torch.nn.Module",
        )
    multi: MultiRLModule = module.as_multi_rl_module()
    return multi


class _Contribution(NamedTuple):
    """Facts that a learner tells the others of its share of an update."""

    num_episodes: int
    num_env_steps: int
    has_batch: bool
    state: tuple[int, ...]
    chosen: list[str]
    sizes: dict[str, tuple[int, int]]  # module id -> rows, and minibatches of an epoch
    metric_names: dict[str, list[str] | None]  # of all modules that have optimisers
    connector_states: dict[str, Any]


Data: TypeAlias = "Sequence[Any] | Mapping[str, Mapping[str, Any]]"
"""Episodes, or a batch."""


def data_of(episodes: Sequence[Any] | None, batch: Mapping[str, Any] | None) -> Data:
    """Return the one that is given.

    Raises:
        ConfigError: there are both, or neither.
        BatchLayoutError: the batch is no mapping.
    """
    given = [data for data in (episodes, batch) if data is not None]
    if len(given) != 1:
        do = "give one of them: update(episodes=...) or update(batch=...)"
        raise ConfigError("Learner.update", expected="episodes or a batch", found="both" if given else "neither", do=do)
    if batch is not None and not isinstance(batch, Mapping):
        raise _no_batch_of_modules(batch, (), _GIVEN_BATCH)
    return given[0]


def env_steps_of(data: Data, given: int | None) -> int:
    """Return the steps that are given; else those of episodes, or the steps with loss of the module with the most."""
    if given is not None:
        return given
    if not isinstance(data, Mapping):
        return count_steps(data)
    return max(map(_num_steps, data.values()), default=0)


def _num_steps(columns: Mapping[str, Any]) -> int:
    for name in (Columns.LOSS_MASK, Columns.SEQ_LENS):
        if name in columns:
            return int(torch.as_tensor(columns[name]).sum())
    return max((len(leaf) for leaf in flatten(dict(columns))[0] if np.ndim(leaf)), default=0)


def no_data(data: Data, where: str = "Learner.update") -> EpisodeError | BatchLayoutError:
    """Return the error about episodes, or a batch, of which there are none."""
    if isinstance(data, Mapping):
        return _no_batch_of_modules({}, (), _GIVEN_BATCH)
    return EpisodeError(where, expected="at least one episode", found="none", do="sample episodes first")


def _other_states(contributions: Sequence[_Contribution]) -> ConfigError:
    found = (f"learner {index}: {answer.state}" for index, answer in enumerate(contributions, 1))
    return ConfigError(
        "Learner.update with other learners",
        expected="learners in the same state: as many updates, gradient steps and environment steps learned from",
        found="; ".join(found),
        do="give all learners the state of one of them: learner.set_state(state)",
    )


def _no_batch_of_modules(batch: Any, modules: Any, where: str = "batch of the learner pipeline") -> BatchLayoutError:
    """Return the error about a pipeline's output, or a given batch, that is not a batch by module."""
    do = "keep BatchIndividualItems (or AgentToModuleMapping) in the learner pipeline"
    given_do = "name the module, call batch(): batch={'default_policy': storage.batch()}"
    if not isinstance(batch, dict):
        found = type(batch).__name__
    elif any(key in modules for key in batch):
        found = ", ".join(f"{key!r}: {type(value).__name__}" for key, value in batch.items())
        do = "let the piece that adds it say for whom: add_n_batch_items(batch, column, rows, len(rows), episode)"
    else:
        found = f"columns {sorted(map(str, batch))}"
    return BatchLayoutError(
        where,
        expected="{module_id: {column: tensor}} with at least one module",
        found=found,
        do=given_do if where == _GIVEN_BATCH else do,
    )


_SETTINGS = tuple(LearnerSettings.names())


def _prepare(module_id: str, trainer: ModuleTrainer) -> None:
    """Make a module's optimisers; an error names the module."""
    try:
        trainer.prepare()
    except ConfigError as error:
        add_context(error, f"module {module_id!r}:")
        raise
    except AttributeError as error:
        rule = type(trainer.rule).__name__
        raise ConfigError(
            f"module {module_id!r}",
            expected=f"the parts of a module that make_own and groups of {rule} name",
            found=str(error),
            do=f"give the module these parts, or let {rule} name those that it has",
        ) from error


def _overridden(
    module_id: str, settings: LearnerSettings, loss: UpdateRule, changes: Mapping[str, Any]
) -> tuple[LearnerSettings, UpdateRule]:
    """Return the common settings and loss with one module's changes.

    Args:
        module_id: Of the module, for messages.
        settings: The common settings.
        loss: The common loss.
        changes: Fields of `LearnerSettings`; `loss`, as for `as_loss`; and fields of that loss's settings.

    Raises:
        ConfigError: a name is none of these, or a value is out of its range.

    Examples:
        >>> from epibatch.learner import PPOLoss
        >>> settings, loss = _overridden("main", LearnerSettings(), PPOLoss(), {"lr": 0.01, "clip_param": 0.1})
        >>> settings.lr, loss.settings.clip_param
        (0.01, 0.1)
    """
    where = f"overrides of module {module_id!r}"
    try:
        loss = as_loss(changes.get("loss", loss), getattr(loss, "settings", None))
        names = (*_SETTINGS, "loss", *loss.setting_names())
        for name in changes:
            if name not in names:
                raise ConfigError(
                    name, expected="a setting of a module", found=repr(name), do=nearest(str(name), names)
                )
        settings = settings.with_changes(**{name: changes[name] for name in _SETTINGS if name in changes})
        of_loss = {name: changes[name] for name in loss.setting_names() if name in changes}
        return settings, loss.with_settings(**of_loss) if of_loss else loss
    except ConfigError as error:
        add_context(error, f"{where}:")
        raise


_PARTS = ("module", "optimizers", "coefficients", "generators", "num_updates", "num_gradient_steps")
_PER_MODULE = ("module", "coefficients", "generators")


def _check_state(state: Any, module_ids: Sequence[str]) -> None:
    """Check that a state has all its parts, and has exactly these modules.

    Raises:
        CheckpointError: it is no state, lacks a part, or modules are missing in it or in the learner.
    """
    require_mapping("Learner.set_state", state)
    missing = [name for name in _PARTS if name not in state]
    if missing:
        raise _error(f"parts {', '.join(_PARTS)}", f"no {', '.join(missing)}")
    for part in _PER_MODULE:
        states = require_mapping(f"learner state, {part!r}", state[part])
        strange = [key for key in states if key not in module_ids]
        lacking = [key for key in module_ids if key not in states]
        if strange:
            names = ", ".join(map(repr, strange))
            do = f"add {names} first with add_module, or restore the state before it was added"
            raise _error(f"{part!r} of modules {_names(module_ids)}", f"that of {names} too", do)
        if lacking:
            names = ", ".join(map(repr, lacking))
            do = f"remove {names} first with remove_module, or give it a state too"
            raise _error(f"{part!r} of modules {_names(module_ids)}", f"none of {names}", do)
    for module_id in require_mapping("learner state, 'optimizers'", state["optimizers"]):
        if module_id not in module_ids:
            raise _error(f"modules {_names(module_ids)}", f"an optimiser of {module_id!r}")


def _restore_trainer(module_id: str, trainer: ModuleTrainer, state: Mapping[str, Any]) -> None:
    """Restore a module's trainer from its part of a learner's state.

    Raises:
        CheckpointError: the part does not fit.
    """
    coefficients = state["coefficients"][module_id]
    check_like(f"learner state, coefficients of {module_id!r}", coefficients, trainer.coefficients)
    if not all(map(math.isfinite, coefficients.values())):
        raise _error(f"finite coefficients of {module_id!r}", str(coefficients))
    trainer.coefficients = dict(coefficients)
    trainer.adapted_lr = trainer.initial_lr()
    if trainer.adapted_lr is not None and module_id in state.get("learning_rates", {}):
        lr = state["learning_rates"][module_id]
        if not isinstance(lr, float) or not 0.0 <= lr < math.inf:
            raise _error(f"a learning rate of {module_id!r}, 0 or more", repr(lr))
        trainer.adapted_lr = lr
    trainer.set_order(state["generators"][module_id])
    trainer.set_own_state(state.get("rules", {}).get(module_id))
    if module_id in state["optimizers"]:
        optimizer = trainer.prepare()
        if optimizer is None:
            raise _error(f"no optimiser of {module_id!r}, which has nothing to train", f"an optimiser of {module_id!r}")
        try:
            optimizer.set_state(state["optimizers"][module_id])
        except CheckpointError as error:
            add_context(error, f"in module {module_id!r}:")
            raise


def _copies(state: Any) -> Any:
    """Return copies of the arrays of a state, tensors as arrays."""
    return map_struct(_copy, state)


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().numpy().copy()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _names(module_ids: Sequence[str]) -> str:
    return ", ".join(map(repr, module_ids)) or "none"


def _error(expected: str, found: str, do: str = "restore a state that Learner.get_state gave") -> CheckpointError:
    return CheckpointError("learner state", expected=expected, found=found, do=do)
