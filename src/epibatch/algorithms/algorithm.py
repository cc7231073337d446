"""`Algorithm`: a runner and a learner, tied together, and what both save."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.checkpoints import arrays_size
from epibatch.core.errors import (
    CheckpointError,
    ConfigError,
    EpibatchError,
    RunnerError,
    UnknownNameError,
    add_context,
    nearest,
)
from epibatch.core.lazy import MovedAttribute
from epibatch.core.metrics import MetricsLogger, merge_logged
from epibatch.core.random_state import get_random_state, seed_everything, set_random_state
from epibatch.core.random_streams import random_stream
from epibatch.core.restoring import check_count, restore_on_error, restoring
from epibatch.core.rl_module.module_data import weight_limit
from epibatch.core.rl_module.rl_module import RLModule, RLModuleSpec
from epibatch.core.state_codec import require_mapping, select_components

from ..connectors.step_watches import PieceSeconds
from ..connectors.views.view import View, as_views
from ..env_runner.callbacks import ALGORITHM_EVENTS, CallbackDispatcher
from ..env_runner.env_runner import EnvRunner
from ..env_runner.env_runner_group import EnvRunnerGroup
from ..env_runner.envs.env_checks import is_of_environment
from ..episodes import count_steps
from ..learner.learner import Learner
from ..learner.learner_group import LearnerGroup
from ..learner.loss import as_loss
from ..learner.settings import LearnerSettings, MultiAgentSettings, OptimizerSettings
from ..learner.update_rule import UpdateRule
from .algorithm_config import AlgorithmConfig
from .checkpoint import config_from_checkpoint, describe, read_checkpoint, write_checkpoint
from .config.module_specs import check_module, check_sequence_settings, complete_spec, config_with_views, module_views
from .config.pipelines import check_same_pieces, given_pieces, is_edited
from .episode_log import EpisodeLog, LoggedEnvRunnerGroup
from .evaluation import Evaluation
from .inspecting import inspect_algorithm
from .other_libraries import ACT
from .policy import MultiAgentPolicy, Policy, policy_for
from .policy_spec import PolicySpec, settings_of
from .recorded_episodes import apart_from_pieces, check_scale, held_out_episodes, held_out_losses, with_spaces_of_data
from .run.results import judge
from .run.saved_checkpoints import read_newest
from .sources import DrawnSource, ReportingSource, Source, StatefulSource, check_source
from .train_batches import TrainBatches

if TYPE_CHECKING:
    from ..connectors._inspect.inspection import Inspection
    from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline

__all__ = ["Algorithm", "LearnerGroup", "StepResult", "TrainBatches"]

_SHUFFLE = {True: "epoch", False: "once"}
AlgorithmT = TypeVar("AlgorithmT", bound="Algorithm")
StatePart: TypeAlias = "tuple[Callable[[], Any], Callable[[Any], None]]"
"""How a part of a state is read, and how it is restored."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The outcome of one `Algorithm.training_step`.

    Args:
        learner_results: What the learner's update returned, by module id; {} if nothing was learned.
        num_env_steps: Environment steps that were sampled.
        timers: Seconds of the parts of the step, by name, in their order; what `train` takes counts for the last.
    """

    learner_results: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_env_steps: int = 0
    timers: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def then(self, later: StepResult) -> StepResult:
        """Return the outcome of this step and a later one: steps and seconds of both, and the newest results."""
        names = {**self.timers, **later.timers}
        timers = {name: self.timers.get(name, 0.0) + later.timers.get(name, 0.0) for name in names}
        steps = self.num_env_steps + later.num_env_steps
        return StepResult(later.learner_results or self.learner_results, steps, timers)


class Algorithm:
    """Samples episodes, learns from them, and can be saved and continued; built by `config.build_algo()`.

    Runner and learner share one module object, so the runner acts with the learner's newest weights.

    Saving and going on. `save_to_path` changes nothing about the run that saves. Environments cannot be saved, so a
    restored run resets its environments, with the next seed of its seeded stream: everything that was learned and
    counted goes on, the running episodes do not. `save_to_path(path, end_episodes=True)` resets the environments of
    the run that saves in the same way. Then, if the config has a seed, a run that was restored in another process goes
    on exactly like the run that saved and did not stop: same batches, actions and losses, bit by bit on the same
    machine and versions.

    Args:
        config: The settings; copied, later changes to it have no effect.

    Attributes:
        pipelines: `env_to_module`, `module_to_env` and `learner`.
        episode_log: where sampled episodes are recorded, with `offline_data(output=...)`; None: nowhere.

    Raises:
        ConfigError: the config has neither an environment nor recorded episodes, its settings contradict each other, or
            one of them cannot be sent to the processes that it asks for.
        MissingExtraError: it asks for other processes, and Ray is not installed.
    """

    config_class: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    """The class of the algorithm's configs."""
    added_views: Mapping[str, View] = MappingProxyType({})
    """The views that `add_view` gave, beside those of the config that it was built with."""

    if not TYPE_CHECKING:  # names of other libraries
        learn = MovedAttribute(
            "use train() for one iteration, or iterations() until the config's stopping(...) ends it"
        )
        predict = MovedAttribute(ACT)
        compute_single_action = MovedAttribute(ACT)
        compute_actions = MovedAttribute(ACT)
        local_replay_buffer = MovedAttribute("use replay_buffer")
        save = MovedAttribute("use save_to_path(path)")
        load = MovedAttribute("use from_checkpoint(path)")
        restore = MovedAttribute("use restore_from_path(path), or Algorithm.from_checkpoint(path)")

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """A new config with the algorithm's defaults."""
        return cls.config_class()

    def __init__(self, config: AlgorithmConfig) -> None:
        config.validate()
        if config.input_ is None and (config.offline or not config.acts):
            expected, do = "an environment", 'name one: .environment("CartPole-v1")'
            if config.offline:
                expected, do = "recorded episodes", "give them: .offline_data(input_=episodes)"
            raise ConfigError(f"{type(config).__name__}.build_algo", expected=expected, found="none", do=do)
        self.config = config.copy()
        logging.getLogger("epibatch").setLevel(self.config.log_level)
        if self.config.seed is not None:
            seed_everything(self.config.seed)
        self.training_iteration = 0
        self._time_total_s = 0.0
        self._env_steps = self._steps_to_learn = 0
        self._edits_learned = 0
        self._runners_waited = 0.0
        runners = self.config if config.acts else with_spaces_of_data(self.config)
        self.episode_log = None if config.output is None else EpisodeLog(config.output, config.env)
        self.env_runner_group = (
            EnvRunnerGroup(config=runners)
            if self.episode_log is None
            else LoggedEnvRunnerGroup(self.episode_log, config=runners)
        )
        try:
            module = self.env_runner.module
            modules = dict(module.items()) if self.config.is_multi_agent else {"": module}
            for module_id, module in modules.items():
                self._check(module_id, module)
            check_sequence_settings(modules.values())
            if config.input_ is not None and not config.is_multi_agent:
                check_scale(config, self.env_runner.get_spaces()["__env_single__"][1])
            self._batches: Source = self.config.make_source(self.env_runner_group)
            check_source(self.config, self._batches)
            self.learner_group = LearnerGroup(
                self._make_learner(),
                num_learners=self.config.num_learners,
                num_cpus_per_learner=self.config.num_cpus_per_learner,
                num_gpus_per_learner=self.config.num_gpus_per_learner,
                restart_failed_learners=self.config.restart_failed_learners,
                max_num_learner_restarts=self.config.max_num_learner_restarts,
            )
            self.pipelines = {**self.env_runner.pipelines, "learner": self.learner.connector}
            self._built = {name: given_pieces(pipeline) for name, pipeline in self.env_runner.pipelines.items()}
            self._piece_metrics = MetricsLogger(times_pieces=False)
            self._watches = {name: PieceSeconds() for name in self.pipelines} if self.config.time_pieces else {}
            for name, watch in self._watches.items():
                self.pipelines[name].watch = watch
            self._share_lookback()
            self._policy: Policy | MultiAgentPolicy | None = None
            self._policy_steps: int | None = None
            self._evaluation = Evaluation(self.config)
            self._held_out = held_out_episodes(self.config)
            self._listeners = CallbackDispatcher(self.config, ALGORITHM_EVENTS)
            self.metrics = MetricsLogger(times_pieces=False)
            self._call("on_algorithm_init")
        except BaseException:
            self._stop_groups()
            raise

    @property
    def env_runner(self) -> EnvRunner[Any]:
        """The runner of this process; with `num_env_runners` it has the statistics and metrics of all."""
        return self.env_runner_group.local_env_runner

    @property
    def learner(self) -> Learner:
        """The learner of this process; with `num_learners` it has the newest state of all."""
        learner: Learner = self.learner_group.learner
        return learner

    @property
    def replay_buffer(self) -> Any:
        """The buffer of sampled steps, or without runners of recorded ones; None for an algorithm without replay."""
        return getattr(self._batches, "buffer", None)

    def _check(self, module_id: str, module: Any, config: AlgorithmConfig | None = None) -> None:
        try:
            self.check_module(module, module_id or DEFAULT_MODULE_ID, config or self.config)
        except ConfigError as error:
            if module_id:
                add_context(error, f"module {module_id!r}:")
            raise

    def check_module(self, module: Any, module_id: str, config: AlgorithmConfig) -> None:
        """Check what can be known of one of the runner's modules before it is used.

        Args:
            module: The module.
            module_id: Its id.
            config: What it is used with.

        Raises:
            ConfigError: it is recurrent without a `max_seq_len`, or its actions are never stretched to their bounds.
        """
        check_module(module, config.normalize_actions)

    def _make_learner(self) -> Learner:
        observation, action = self.env_runner.get_spaces()["__episodes__"]
        connector = self.config.build_learner_connector(observation, action, env=self.env_runner.env)
        self.config.extend_learner_connector(connector)
        if self.config.seed is not None:
            connector.seed(random_stream(self.config.seed, "learner"))
        learner = self.build_learner(self.env_runner.module.as_multi_rl_module(), connector)
        learner.acting_connector = self.env_runner.pipelines["env_to_module"]
        return learner

    def build_rule(self) -> UpdateRule:
        """Build the update rule of the algorithm, or the `loss` of the config, which takes its place."""
        config = self.config
        if config.rule is None and config.loss is None:
            raise ConfigError(
                type(config).__name__, expected="an update rule", found="none", do="set rule = MyRule on the class"
            )
        return as_loss(config.rule if config.loss is None else config.loss, config.settings.training)

    def build_learner(self, module: Any, connector: LearnerConnectorPipeline) -> Learner:
        """Build the learner with the algorithm's update rule.

        Args:
            module: The runner's modules; a single one stands under `default_policy`.
            connector: The learner pipeline, the algorithm's own pieces included.
        """
        config = self.config
        common = {name: getattr(config, name) for name in OptimizerSettings.names()}
        overrides = {key: self.learner_overrides(config.overrides_for(key)) for key in config.policies}
        return Learner(
            module=module,
            connector=connector,
            settings=LearnerSettings.check(
                **common,
                shuffle=_SHUFFLE[config.shuffle_batch_per_epoch],
                seed=config.seed,
                autocast=config.autocast,
                compile_backend=config.torch_compile_learner_dynamo_backend if config.torch_compile_learner else None,
                compile_mode=config.torch_compile_learner_dynamo_mode,
            ),
            loss=self.build_rule(),
            device=config.other_device,
            multi_agent=MultiAgentSettings(overrides, config.policies_to_train),
            columns=config.columns,
            check_first_update=config.check_first_update,
        )

    # ----------------------------------------------------------------------------------- training

    def iterations(self) -> Iterator[dict[str, Any]]:
        """Train until a rule of the config's `stop` section ends it; without one, for as long as results are asked for.

        Returns:
            The results of every iteration, as `train` gives them.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> config = PPOConfig().environment("CartPole-v1").stopping(num_env_steps_sampled_lifetime=60)
            >>> algo = config.training(train_batch_size=30, minibatch_size=30, num_epochs=1).build_algo()
            >>> [results["num_env_steps_sampled_lifetime"] for results in algo.iterations()]
            [30, 60]
            >>> algo.stop()
        """
        verdict = None
        while verdict is None:
            results = self.train()
            yield results
            verdict = judge(self.config.stop_rules, results, self.config.metrics_num_episodes_for_smoothing)

    def train(self) -> dict[str, Any]:
        """Run one iteration: a `training_step`, which samples and learns, and what is counted and reported of it.

        Returns:
            `env_runners` (returns, lengths, counts), `learners` (losses), `training_iteration`,
            `num_env_steps_sampled_lifetime` (those of finished iterations), `time_this_iter_s`, `time_total_s`,
            `timers` with the seconds of `sample` and `learn`, and of every piece if the config has `time_pieces`;
            with several processes `fault_tolerance`, counts of their failures; with processes that sample `waiting`,
            the seconds in which each of them, on average, and the learner waited for the other; what the source
            reports, such as `replay_buffer`; and `evaluation`, what `evaluate` returned, in iterations that
            `evaluation_interval` divides. If that fails, it is missing, and a warning says why. In iterations that
            `offline_evaluation_interval` divides, `offline_evaluation`: the losses of episodes that are `held_out`.

        Raises:
            RunnerError: the runner returned no steps.
        """
        interval = self.config.evaluation_interval
        evaluates = interval is not None and (self.training_iteration + 1) % interval == 0
        if evaluates and self.config.evaluation_parallel_to_training:
            self._begin_evaluation()
        start = time.perf_counter()
        try:
            step = self._step()
            while step.num_env_steps < self.config.min_env_steps_per_iteration:
                more = self._step()
                if not (more.num_env_steps or more.learner_results):
                    raise RunnerError(
                        "Algorithm.train",
                        expected=f"{self.config.min_env_steps_per_iteration} env steps of an iteration",
                        found=f"{step.num_env_steps}, and a training step without any",
                        do="let the source sample, or set min_env_steps_per_iteration = 0",
                    )
                step = step.then(more)
        except BaseException:
            if self._evaluation.has_begun:
                self._evaluation.stop()
            raise
        self._share_lookback()
        seconds = time.perf_counter() - start
        timers = dict(step.timers)
        if timers:
            timers[list(timers)[-1]] += seconds - sum(timers.values())
        self.training_iteration += 1
        self._time_total_s += seconds
        self._env_steps += step.num_env_steps
        if self.episode_log is not None:
            self.episode_log.commit()
        metrics = self.env_runner.get_metrics()
        results = {
            "env_runners": metrics,
            "learners": merge_logged(step.learner_results, self._piece_metrics, "learner"),
            "training_iteration": self.training_iteration,
            "num_env_steps_sampled_lifetime": self._env_steps,
            "time_this_iter_s": seconds,
            "time_total_s": self._time_total_s,
            "timers": {
                **timers,
                **{name: watch.take() for name, watch in self._watches.items()},
            },
        }
        if self.config.num_env_runners or self.config.num_learners:
            results["fault_tolerance"] = self._fault_report()
        if self.config.num_env_runners:
            waited, self._runners_waited = self._runners_waited, self.env_runner_group.seconds_waited
            runners_s = (self._runners_waited - waited) / self.config.num_env_runners
            results["waiting"] = {"env_runners_s": runners_s, "learner_s": timers.get("sample", 0.0)}
        if isinstance(self._batches, ReportingSource):
            results.update(self._batches.get_metrics())
        if evaluates:
            results.update(self._evaluated())
        if self._held_out and self.training_iteration % self.config.offline_evaluation_interval == 0:
            results["offline_evaluation"] = held_out_losses(self.learner, self._held_out)
        results = merge_logged(results, self.metrics, "algorithm")
        self._call("on_train_result", result=results)
        return results

    def _step(self) -> StepResult:
        step: Any = self.training_step()
        if not isinstance(step, StepResult) or step.num_env_steps < 0:
            raise ConfigError(
                f"{type(self).__name__}.training_step",
                expected="a StepResult, with the number of env steps that were sampled",
                found=f"{step.num_env_steps} steps" if isinstance(step, StepResult) else type(step).__name__,
                do="return StepResult(results, num_env_steps)",
            )
        return step

    def training_step(self) -> StepResult:
        """Sample and learn once; `train` counts, evaluates and reports.

        This one samples `train_batch_size` steps and updates the modules from them. An algorithm that learns from
        other data overrides it.

        Raises:
            RunnerError: the runner returned no steps.
        """
        start = time.perf_counter()
        episodes = self._batches.sample()
        if self._batches.is_late:
            self.learner_group.check_next_update(False)
        elif self.env_runner.num_edits != self._edits_learned:
            self.learner_group.check_next_update()
            self._edits_learned = self.env_runner.num_edits
        sampled = time.perf_counter()
        self._batches.sample_ahead()
        drawn = self._batches if isinstance(self._batches, DrawnSource) else None
        if drawn is None and self.config.input_ is not None:
            episodes = apart_from_pieces(episodes, self.learner.connector)
        num_env_steps = count_steps(episodes) if drawn is None else drawn.num_env_steps
        self._steps_to_learn += num_env_steps
        results: Mapping[str, Any] = {}
        if drawn is None or len(episodes):
            learned_from, self._steps_to_learn = self._steps_to_learn, 0
            data: dict[str, Any] = {"episodes": episodes}
            if drawn is not None and self._sends_rows():  # values of rows come back in a batch's order
                data = {"batch": self.learner.make_batch(episodes, self._piece_metrics)}
            try:
                results = self.learner_group.update(
                    **data,
                    metrics=self._piece_metrics,
                    num_env_steps=None if drawn is None else learned_from,
                )
            finally:  # an update that fails may have taken steps before
                self.env_runner.weights_updated()
            if drawn is not None:
                drawn.learned(self.learner_group.row_outputs)
        timers = {"sample": sampled - start, "learn": time.perf_counter() - sampled}
        return StepResult(results, num_env_steps, timers)

    def _sends_rows(self) -> bool:
        """True if learners in other processes give values of rows."""
        learner = self.learner
        return not self.learner_group.is_local and any(learner.loss_of(key).row_outputs for key in learner.module)

    def _fault_report(self) -> dict[str, Any]:
        """Return the number of processes, of healthy ones, and of steps and episodes that were lost so far."""
        report: dict[str, Any] = {}
        if self.config.num_env_runners:
            report.update(num_env_runners=self.config.num_env_runners, **self.env_runner_group.fault_report())
        if self.config.num_learners:
            report.update(num_learners=self.config.num_learners, **self.learner_group.fault_report())
        return report

    def _call(self, event: str, **keywords: Any) -> None:
        """Call the callbacks of an event."""
        if event in self._listeners:
            self._listeners.call(event, algorithm=self, metrics_logger=self.metrics, **keywords)

    def _checkpoint_loaded(self) -> None:
        if "on_checkpoint_loaded" in self._listeners:
            self._listeners.call("on_checkpoint_loaded", algorithm=self)

    def _evaluated(self) -> dict[str, Any]:
        """Evaluate after an iteration; the iteration's results must not be lost if an environment fails here."""
        try:
            return {"evaluation": self.evaluate()}
        except Exception as error:
            lost = self.config.evaluation_num_env_runners and isinstance(error, RunnerError)
            if not (lost or is_of_environment(error)):  # a callback, a piece or the config: the run must not go on
                raise
            warnings.warn(
                f"The evaluation after iteration {self.training_iteration} failed, so the results have no "
                f"'evaluation'; the training goes on. {type(error).__name__}: {error}",
                stacklevel=3,
            )
            return {}

    def _share_lookback(self) -> None:
        """Tell the runner how much history the learner's pieces read, so that its cuts keep it.

        What a piece reads without declaring it is known after its first call; until then all history is kept.
        """
        connector = self.learner.connector
        self.env_runner.require_lookback(connector.lookback_needed if connector.lookback_known else None)

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> Any:
        """The module that is trained."""
        return self.learner.module[module_id]

    def add_module(
        self,
        module_id: str,
        module_spec: Any = None,
        *,
        config_overrides: Mapping[str, Any] | None = None,
        new_agent_to_module_mapping_fn: Any = None,
        new_should_module_be_updated: Any = None,
    ) -> Any:
        """Add a module to those of several agents, between two iterations.

        Args:
            module_id: An id that is free.
            module_spec: An RLModuleSpec, a module, or None for the default network; spaces and settings that it leaves
                open are those that the config would give.
            config_overrides: Its own settings of the training, such as `{"lr": 1e-4}`.
            new_agent_to_module_mapping_fn: A function or table; agents that have appeared in a running episode keep
                their module until it ends. None: as it is.
            new_should_module_be_updated: From now on `policies_to_train`; None: as it is, so that a list of ids does
                not include the new module.

        Returns:
            The spec of all modules.

        Raises:
            ConfigError: the id is taken, or something does not fit; nothing was added.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> from epibatch.core.rl_module import RLModuleSpec
            >>> from epibatch.env_runner.multi_agent_env import make_multi_agent
            >>> config = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
            >>> algo = config.multi_agent(policies=["main"]).build_algo()
            >>> main = algo.get_module("main")
            >>> mapping = {"0": "main", "*": "past"}
            >>> _ = algo.add_module("past", RLModuleSpec.from_module(main), new_agent_to_module_mapping_fn=mapping)
            >>> algo.get_module("past").set_state(main.get_state())
            >>> list(algo.learner.module)
            ['main', 'past']
            >>> algo.stop()
        """
        where = f"{type(self).__name__}.add_module"
        self._check_new(where, module_id)
        spec = RLModuleSpec.from_module(module_spec) if isinstance(module_spec, RLModule) else module_spec
        policy = PolicySpec(config=config_overrides or {}, rl_module_spec=spec)
        rule = new_should_module_be_updated
        settings = self._with_policies(
            {**self.config.policies, module_id: policy}, new_agent_to_module_mapping_fn, rule
        )
        planned, pipeline = self._plan_module_change("add_module", {"multi_agent": settings})
        found = (pipeline.observation_space, pipeline.action_space)
        derived = [getattr(space, "spaces", {}).get(module_id) for space in found]
        spaces = {**self.env_runner.get_spaces(), **({} if None in derived else {module_id: tuple(derived)})}
        spec = planned.get_multi_rl_module_spec(env=self.env_runner.env, spaces=spaces)[module_id]
        module = module_spec if isinstance(module_spec, RLModule) else spec.build()
        self._check(module_id, module, planned)
        result = self.learner.add_module(
            module_id,
            module,
            config_overrides=self.learner_overrides(policy.config),
            new_should_module_be_updated=None if rule is None else planned.policies_to_train,
        )
        if _is_default(self.config, spec, module):
            default_spaces = (None, None) if None in derived else derived
            settings["policies"] = {**settings["policies"], module_id: _without_code(spec, policy, default_spaces)}
        self._apply_module_change(
            "add_module", {"multi_agent": settings}, {module_id: (spec.observation_space, spec.action_space)}
        )
        return result

    def _check_new(self, where: str, module_id: Any) -> None:
        if not self.config.is_multi_agent:
            raise ConfigError(
                where,
                expected="an algorithm of several agents",
                found="one agent",
                do="build it from a config with .multi_agent(policies=[...]), if only of one module",
            )
        exists = module_id in self.learner.module
        if not isinstance(module_id, str) or not module_id or exists:
            found = f"{module_id!r}, which is taken" if exists else repr(module_id)
            raise ConfigError(where, expected="an id that is free", found=found, do="choose another one")

    def _with_policies(self, policies: Mapping[str, PolicySpec], mapping: Any, rule: Any) -> dict[str, Any]:
        """The section `multi_agent` with other policies, and what else is given."""
        return {
            "policies": dict(policies),
            "policy_mapping_fn": self.config.policy_mapping_fn if mapping is None else mapping,
            "policies_to_train": self.config.policies_to_train if rule is None else rule,
        }

    def _plan_module_change(self, method: str, parts: Mapping[str, Any]) -> tuple[AlgorithmConfig, Any]:
        """A config with new settings, and its env-to-module pipeline: whether they fit, before anything is changed."""
        planned = self.config.copy().change(method, parts)
        planned.validate()
        runner = self.env_runner
        pipeline = planned.build_env_to_module_connector(env=runner.env, spaces=runner.get_spaces())
        built, current = {"env_to_module": pipeline}, {"env_to_module": runner.pipelines["env_to_module"]}
        check_same_pieces(built, current, f"{type(self).__name__}.{method}")
        return planned, pipeline

    def _apply_module_change(self, method: str, parts: Mapping[str, Any], spaces: Mapping[str, Any]) -> None:
        """Take over settings of other modules, which the learner has already; all parts get to know them.

        Args:
            method: The method that changes the modules, for messages.
            parts: The settings, by section.
            spaces: Module id -> its spaces, of modules that are new.
        """
        self.config.change(method, parts)
        all_spaces = self.env_runner.get_spaces()
        for module_id in [key for key in all_spaces if not key.startswith("__") and key not in self.learner.module]:
            del all_spaces[module_id]
        all_spaces.update(spaces)
        for name in ("env_to_module", "learner"):
            keeps = name in self._built and not is_edited(self.pipelines[name], self._built[name])
            self.config.update_modules(self.pipelines[name])
            if keeps:
                self._built[name] = given_pieces(self.pipelines[name])
        self.env_runner.weights_updated()
        self._modules_changed()

    def remove_module(
        self,
        module_id: str,
        *,
        new_agent_to_module_mapping_fn: Any = None,
        new_should_module_be_updated: Any = None,
    ) -> Any:
        """Remove a module, its optimiser and its settings; the runner starts new episodes.

        Args:
            module_id: The module.
            new_agent_to_module_mapping_fn: A function or table; needed if any agent has the module.
            new_should_module_be_updated: From now on `policies_to_train`; None: as it is but for the module.

        Returns:
            The spec of the modules that are left.

        Raises:
            UnknownNameError: there is no such module, or no other one.
            ConfigError: an agent is still mapped to it; nothing was removed.
        """
        config, learner, rule = self.config, self.learner, new_should_module_be_updated
        policies = {key: policy for key, policy in config.policies.items() if key != module_id}
        if module_id not in learner.module or not policies:
            alone = module_id in learner.module
            raise UnknownNameError(
                f"{type(self).__name__}.remove_module",
                expected="the id of one of several modules",
                found=f"{module_id!r}, the only one" if alone else repr(module_id),
                do="keep it" if alone else nearest(str(module_id), learner.module),
            )
        settings = self._with_policies(policies, new_agent_to_module_mapping_fn, rule)
        trained, overrides = settings["policies_to_train"], config.algorithm_config_overrides_per_module
        if isinstance(trained, list):
            settings["policies_to_train"] = [key for key in trained if key != module_id or rule is not None]
        settings["algorithm_config_overrides_per_module"] = {
            key: values for key, values in overrides.items() if key != module_id
        }
        parts = {"multi_agent": settings, **_without_spec(config, module_id)}
        planned, _ = self._plan_module_change("remove_module", parts)
        result = learner.remove_module(
            module_id, new_should_module_be_updated=None if rule is None else planned.policies_to_train
        )
        self._apply_module_change("remove_module", parts, {})
        self._begin_episodes()
        return result

    def learner_overrides(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """A module's own settings of the training as the learner knows them."""
        changes = dict(overrides)
        if "shuffle_batch_per_epoch" in changes:
            changes["shuffle"] = _SHUFFLE[changes.pop("shuffle_batch_per_epoch")]
        return changes

    def add_view(self, name: str, view: Any) -> None:
        """Let all modules have one column more, from the next batch on, for acting as well as for training.

        The config has it from then on, and so do evaluations, policies, and runs that are restored from a checkpoint,
        with whatever config. Where the view reaches back further than episodes kept, the runner starts new ones.
        Which outputs a module will give is not known beforehand: a view of a column that is not there fails in the next
        batch, and `remove_view` takes it away.

        Args:
            name: The new column.
            view: An `epibatch.connectors.views.View`, or a dict of its arguments.

        Raises:
            ConfigError: the name is taken, or the view cannot be meant; nothing was added.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> from epibatch.connectors.views import View
            >>> algo = PPOConfig().environment("CartPole-v1").build_algo()
            >>> algo.add_view("next_actions", View("actions", shift=1))
            >>> algo.pipelines["learner"](rl_module=algo.get_module(), episodes=algo.env_runner.sample(
            ...     num_timesteps=5))["next_actions"].shape[0] >= 5
            True
            >>> algo.stop()
        """
        where = f"{type(self).__name__}.add_view"
        views = as_views({name: view}, where)
        common, per_module = module_views(self.config)
        if name == "obs" or any(name in group for group in (common, *per_module.values())):
            found = f"{name!r}, which {'shapes the module' if name == 'obs' else 'the modules have already'}"
            do = "choose another name; the config takes views of 'obs': .rl_module(view_requirements=...)"
            raise ConfigError(where, expected="a new name", found=found, do=do)
        kept = self.env_runner.lookback
        self._set_added_views({**self.added_views, **views}, where)
        if views[name].lookback > kept:
            self._begin_episodes()

    def remove_view(self, name: str) -> None:
        """Take away a view that `add_view` gave, from the next batch on, as if it had not been given.

        Args:
            name: Its name.

        Raises:
            UnknownNameError: `add_view` gave no such view; nothing was removed.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> from epibatch.connectors.views import View
            >>> algo = PPOConfig().environment("CartPole-v1").build_algo()
            >>> algo.add_view("before", View("rewrds", shift=-1))
            >>> algo.remove_view("before")
            >>> algo.config.view_requirements
            {}
            >>> algo.stop()
        """
        where, added = f"{type(self).__name__}.remove_view", dict(self.added_views)
        if name not in added:
            do = f"{nearest(str(name), added)}; views of the config and its modules stay"
            raise UnknownNameError(where, expected="a view that add_view gave", found=repr(name), do=do)
        del added[name]
        self._set_added_views(added, where)

    def _set_added_views(self, data: Mapping[str, Any], where: str) -> None:
        """Let config and pipelines have these views beside the config's own; they stay as before if they cannot.

        Args:
            data: Name -> view, or its arguments.
            where: The caller, for messages.
        """
        config, added = self.config, as_views(dict(data), where)
        config_views = {name: view for name, view in config.view_requirements.items() if name not in self.added_views}
        planned = config_with_views(config, config_views, added, where)
        if planned.view_requirements != config.view_requirements:
            if not config.add_default_connectors_to_env_to_module_pipeline:
                do = "use epibatch.connectors.views.add_view with each of algo.pipelines"
                raise ConfigError(where, expected="the default pieces", found="none of them", do=do)
            planned.validate()
            module_views(planned)
            config.change("add_view", {"rl_module": {"view_requirements": planned.view_requirements}})
            for key in ("env_to_module", "learner"):
                config.update_views(self.pipelines[key])
            self._modules_changed()
            self._share_lookback()
        self.added_views = added

    def _begin_episodes(self) -> None:
        """Let the runners begin new episodes; what was sampled for a batch that is not complete is dropped."""
        self._batches.forget()
        self.env_runner_group.checkpoint_reset()

    def _modules_changed(self) -> None:
        """Rebuild the parts that depend on the modules."""
        self._evaluation.stop()
        self._policy = None

    # ------------------------------------------------------------------------------------- acting

    def evaluate(self) -> dict[str, Any]:
        """Measure the policy in environments of its own, as the `evaluation` section says.

        Weights and pipeline states are the newest, statistics are frozen, and actions are greedy unless
        `evaluation_config` says otherwise. The training goes on as if it had not happened.

        Returns:
            `env_runners`: `episode_return_mean`, `_min`, `_max`, the same of `episode_len`, `num_episodes`,
            `num_env_steps_sampled`, both with `_lifetime` over all evaluations, and `sample`, the seconds it took. With
            `evaluation_sets` this is below the name of each set.

        Raises:
            ConfigError: the evaluation environment has other spaces than the training's.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> config = PPOConfig().environment("CartPole-v1").evaluation(evaluation_duration=3)
            >>> algo = config.build_algo()
            >>> algo.evaluate()["env_runners"]["num_episodes"]
            3
            >>> algo.stop()
        """
        self.env_runner.assert_healthy()
        if not self._evaluation.has_begun:
            self._call("on_evaluate_start")
        results = self._evaluation.run(self.env_runner)
        self._call("on_evaluate_end", evaluation_metrics=results)
        return results

    def _begin_evaluation(self) -> None:
        """Let other processes evaluate with the weights from before an iteration; `evaluate` waits for them."""
        self._call("on_evaluate_start")
        try:
            self._evaluation.begin(self.env_runner)
        except Exception as error:
            if not is_of_environment(error):  # else `evaluate` tries again, and reports it
                raise

    def get_policy(self, policy_id: str | None = None) -> Any:
        """Return the policy that is trained, for custom loops: a `Policy` or a `MultiAgentPolicy`.

        It acts with the newest weights and statistics, in pipelines of its own, so acting with it does not
        change the training. It is always the same object, unless modules are added or removed. A copy or a pickle of it
        keeps the weights and statistics of that moment.

        Args:
            policy_id: Leave it out: one policy acts for all agents, and `get_module` gives single networks.

        Raises:
            UnknownNameError: an id that is not that of the only policy.
        """
        if policy_id is not None and (policy_id != DEFAULT_MODULE_ID or self.config.is_multi_agent):
            modules = list(self.learner.module)
            module = policy_id if policy_id in modules else modules[0]
            raise UnknownNameError(
                f"{type(self).__name__}.get_policy",
                expected=f"no id: one policy acts for all agents, with the modules {', '.join(modules)}",
                found=repr(policy_id),
                do=f"use get_policy(), or get_module({module!r}) for one network",
            )
        if self._policy is None:
            self._policy = self._make_policy()
        return self._policy

    def _make_policy(self) -> Policy | MultiAgentPolicy:
        """A policy with the runner's module, in pipelines of its own."""
        config, runner = self.config, self.env_runner
        spaces = runner.get_spaces()
        to_module = config.build_env_to_module_connector(env=runner.env, spaces=spaces)
        to_env = config.build_module_to_env_connector(env=runner.env, spaces=spaces)
        policy = policy_for(config, runner.module, to_module, to_env, before_acting=self._update_policy)
        built = {"env_to_module": to_module, "module_to_env": to_env}
        check_same_pieces(built, runner.pipelines, "Algorithm.get_policy")
        self._policy_steps = None
        self._update_policy(policy)
        if config.seed is not None:
            policy.seed(config.seed)
        return policy

    def _update_policy(self, policy: Policy | MultiAgentPolicy) -> None:
        """Let the policy have the runner's statistics, if the runner has sampled since the last time."""
        steps = self.env_runner.num_env_steps_sampled_lifetime
        if steps != self._policy_steps:
            pipelines = self.env_runner.pipelines
            policy.lookback = max(pipeline.lookback_needed for pipeline in pipelines.values())
            policy.set_connector_states(pipelines["env_to_module"].get_state(), pipelines["module_to_env"].get_state())
            policy.steps = self._policy_steps = steps

    def act(self, obs: Any, state: Any = None, **options: Any) -> tuple[Any, Any]:
        """The action for an observation, or the actions for a batch of them; see `Policy.act`.

        With several agents, observations and actions are dicts by agent; see `MultiAgentPolicy.act`.

        Args:
            obs: One observation, N of them stacked, or those of several agents.
            state: What the call before returned; None at the beginning.
            **options: `explore` (default False), `reward`, `info`, `starts`; with several agents `explore`, `rewards`,
                `infos`, `terminateds`, `truncateds`.
        """
        policy = self.get_policy()
        names = [name for name in inspect.signature(policy.act).parameters if name not in ("obs", "state")]
        for name in options:
            if name not in names:
                raise UnknownNameError(
                    f"{type(policy).__name__}.act",
                    expected=f"options among {', '.join(names)}",
                    found=repr(name),
                    do=nearest(name, names),
                )
        acted: tuple[Any, Any] = policy.act(obs, state, **options)
        return acted

    def inspect(self, path: str | Path | None = None, *, num_env_steps: int = 256) -> Inspection:
        """Sample some steps apart from the run, and return the facts of a page that shows how they become a batch.

        A runner of its own, with the newest weights and statistics, acts in new environments; copies of the pipelines
        run. Episodes, generators, buffers and statistics of the run stay as they are. An algorithm with a replay buffer
        draws from a small one of its own.

        Args:
            path: The HTML file to write; None: none. A file that is there is replaced.
            num_env_steps: Steps to sample, at least 1; complete episodes may have more.

        Returns:
            The facts: `data`, and `to_html(path)`.

        Raises:
            ConfigError: fewer than one step.
            RunnerError: the environments fail.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> algo = PPOConfig().environment("CartPole-v1").debugging(seed=0).build_algo()
            >>> inspection = algo.inspect(num_env_steps=20)
            >>> algo.stop()
            >>> [lane["key"] for lane in inspection.data["flow"]]
            ['env_to_module', 'module_to_env', 'learner']
            >>> inspection.data["gap"][0]  # between the observations of acting and of learning
            0.0
        """
        inspection = inspect_algorithm(self, num_env_steps)
        if path is not None:
            inspection.to_html(path)
        return inspection

    # ------------------------------------------------------------------------------------ saving

    def get_state(self, components: Any = None, *, not_components: Any = None) -> dict[str, Any]:
        """Everything that changes: module, optimiser, connectors, runner, counters, generators, views added later.

        Args:
            components: Names of parts to include; None includes all.
            not_components: Names of parts to leave out.

        Raises:
            UnknownNameError: a name that is none of the parts'.
        """
        parts = {name: read for name, (read, _) in self.state_parts().items()}
        if not self.config.num_env_runners:
            del parts["env_runner_group"]
        return select_components(parts, components, not_components, where=f"{type(self).__name__}.get_state(...)")

    def state_parts(self) -> dict[str, StatePart]:
        """Return how each part of the state is read and restored.

        A subclass with a state of its own adds a part. A checkpoint that lacks it is restored without it.

        Examples:
            >>> from epibatch.algorithms.ppo import PPO
            >>> class Counting(PPO):
            ...     calls = 0
            ...
            ...     def state_parts(self):
            ...         return {**super().state_parts(), "calls": (lambda: self.calls, self.set_calls)}
            ...
            ...     def set_calls(self, calls):
            ...         self.calls = calls
        """
        parts: dict[str, StatePart] = {
            # first: they are pieces; checkpoints of earlier versions have none
            "added_views": (
                lambda: {name: view.to_dict() for name, view in self.added_views.items()},
                lambda views: self._set_added_views(views, f"{type(self).__name__}.set_state"),
            ),
            "learner": (self.learner_group.get_state, self.learner_group.set_state),
            "counters": (self._get_counters, self._set_counters),
            "evaluation": (self._evaluation.get_state, self._evaluation.set_state),  # earlier versions have none
            "random": (get_random_state, set_random_state),
            # before the local runner's: samples that are asked for end, and count for the statistics that go
            "env_runner_group": (self.env_runner_group.get_state, self.env_runner_group.set_state),
            "env_runner": (
                lambda: self.env_runner.get_state(not_components="rl_module"),  # the learner's state has it
                self.env_runner.set_state,
            ),
        }
        if isinstance(self._batches, StatefulSource):
            parts["source"] = self._batches.get_state, self._batches.set_state
        return parts

    def _get_counters(self) -> dict[str, Any]:
        return {
            "training_iteration": self.training_iteration,
            "time_total_s": self._time_total_s,
            "num_env_steps_sampled_lifetime": self._env_steps,
            "num_env_steps_to_learn": self._steps_to_learn,
            "logged_metrics": self._piece_metrics.get_state(),
            "callback_metrics": self.metrics.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave; the runner starts new episodes.

        Raises:
            CheckpointError: a part of the state is missing, or is something else; nothing was taken over.
        """
        require_mapping(f"{type(self).__name__}.set_state", state)
        missing = [part for part in ("learner", "env_runner", "counters", "random") if part not in state]
        if missing:
            raise CheckpointError(
                f"{type(self).__name__}.set_state",
                expected="the parts learner, env_runner, counters and random",
                found=f"no {', '.join(missing)}",
                do="use a state that get_state of the same algorithm gave",
            )
        before = self.get_state(not_components="env_runner")
        with restore_on_error(lambda: self._restore_parts(before)):
            self._restore_parts(state)
        self._begin_episodes()
        self._policy_steps = None  # also if the runner has sampled as much

    def _restore_parts(self, state: Mapping[str, Any]) -> None:
        if self.config.num_env_runners:
            state = {"env_runner_group": {}, **state}  # a state of one process, or of an earlier version, has none
        parts = self.state_parts()
        parts["env_runner"] = parts.pop("env_runner")  # last: one that is refused leaves the running episodes alone
        for part in (name for name in parts if name in state):
            with restoring(f"{type(self).__name__}.set_state", part):
                parts[part][1](state[part])

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        names = ("training_iteration", "num_env_steps_sampled_lifetime", "num_env_steps_to_learn")
        counts = {"num_env_steps_to_learn": 0, **counters}  # earlier versions have none
        iteration, steps, to_learn = (check_count(f"state of an algorithm, {name!r}", counts[name]) for name in names)
        seconds = float(counters["time_total_s"])
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{seconds} seconds")
        self.training_iteration, self._env_steps, self._time_total_s = iteration, steps, seconds
        self._steps_to_learn = to_learn
        self._piece_metrics.set_state(counters["logged_metrics"])
        self.metrics.set_state(counters.get("callback_metrics", {"metrics": {}}))  # earlier versions have none

    def save_to_path(self, path: str | Path, *, end_episodes: bool = False) -> str:
        """Save everything into a folder; a checkpoint that is there already is replaced in one step.

        Saving changes nothing about this run, however often it saves. A restored run starts new episodes, because
        environments cannot be saved; so from there on its numbers differ from those of this run.

        Args:
            path: The folder.
            end_episodes: True ends the running episodes after saving. If the config has a seed, this run and a
                restored one then both start new episodes with the same seeds, and go on alike, bit for bit. Episodes
                that last longer than the time between two such saves never end, so save rarely.

        Returns:
            The folder.

        Raises:
            CheckpointError: the folder holds something other than a checkpoint.
            StorageError: the disk is full, say; the checkpoint that may be there is still whole.
        """
        saved = write_checkpoint(Path(path), describe(self.config, self.env_runner, self._built), self.get_state())
        if end_episodes:
            self._begin_episodes()
        return str(saved)

    def restore_from_path(self, path: str | Path) -> None:
        """Take over everything from a checkpoint of the same config; the runner starts new episodes.

        Args:
            path: The folder that `save_to_path` wrote, or that of a run; then its newest whole checkpoint is used.

        Raises:
            CheckpointError: the checkpoint is incomplete, damaged, or of another algorithm or network, or it has a
                view that this config has another one of by its name; nothing was taken over.
        """
        description, state = read_checkpoint(Path(path))
        _check_same_algorithm(path, description, self.config)
        self.set_state(state)
        self._checkpoint_loaded()

    @classmethod
    def from_checkpoint(
        cls: type[AlgorithmT],
        path: str | Path,
        *,
        config: AlgorithmConfig | None = None,
        allow_imports: bool = False,
    ) -> AlgorithmT:
        """Build an algorithm from a checkpoint.

        Args:
            path: The folder that `save_to_path` wrote, or that of a run; then its newest whole checkpoint is used.
            config: The original config; needed if it holds code, such as a function or a class.
            allow_imports: Whether pieces may be imported by path; importing runs code.

        Raises:
            CheckpointError: the config cannot be rebuilt from data; the message names what is code.
        """
        path, (description, state) = read_newest(path, lambda chosen: (chosen, read_checkpoint(chosen)))
        if config is not None:
            _check_same_algorithm(path, description, config)
            algorithm = config.build_algo()
        else:
            with weight_limit(arrays_size(state)):
                algorithm = config_from_checkpoint(path, description, allow_imports=allow_imports).build_algo()
        if not isinstance(algorithm, cls):
            raise CheckpointError(
                f"{cls.__name__}.from_checkpoint({str(path)!r})",
                expected=f"a checkpoint of {cls.__name__}",
                found=type(algorithm).__name__,
                do=f"use {type(algorithm).__name__}.from_checkpoint",
            )
        try:
            algorithm.set_state(state)
            algorithm._checkpoint_loaded()
        except BaseException:
            algorithm.stop()
            raise
        return algorithm

    def stop(self) -> None:
        """Close the environments and end all processes; the algorithm cannot be used afterwards."""
        self._evaluation.stop()
        self._stop_groups()

    def _stop_groups(self) -> None:
        """End what samples and what learns; the first also if the others do not end."""
        try:
            if hasattr(self, "learner_group"):  # not if the constructor failed before
                self.learner_group.stop()
        finally:
            if self.episode_log is not None:
                self.episode_log.close()
            self.env_runner_group.stop()


def _check_same_algorithm(path: str | Path, description: Mapping[str, Any], config: AlgorithmConfig) -> None:
    if description["algorithm"] != config.algorithm:
        raise CheckpointError(
            f"checkpoint {path}",
            expected=f"a checkpoint of the algorithm {config.algorithm!r}",
            found=f"one of {description['algorithm']!r}",
            do="restore it with the algorithm that saved it",
        )


def _is_default(config: AlgorithmConfig, spec: RLModuleSpec, module: Any) -> bool:
    """True if a module is the one that a config makes of the settings alone."""
    try:
        spaces = spec.observation_space, spec.action_space
        default = complete_spec(config, RLModuleSpec(), spaces, spec.model_config)
    except EpibatchError:
        return False
    return default.module_class is type(module)


def _without_code(spec: RLModuleSpec, policy: PolicySpec, derived: Sequence[Any]) -> PolicySpec:
    """A default network's policy without code: its settings, and spaces that do not follow from its agents'."""
    names = ("observation_space", "action_space")
    spaces = {name: getattr(spec, name) for name, space in zip(names, derived) if getattr(spec, name) != space}
    return PolicySpec(config=policy.config, model_config=settings_of(spec.model_config), **spaces)


def _without_spec(config: AlgorithmConfig, module_id: str) -> dict[str, Mapping[str, Any]]:
    """The section `rl_module` without a module's spec, if it has one."""
    multi_spec = config.rl_module_spec
    specs = getattr(multi_spec, "rl_module_specs", {})
    if module_id not in specs:
        return {}
    left = {key: spec for key, spec in specs.items() if key != module_id}
    return {"rl_module": {"rl_module_spec": dataclasses.replace(multi_spec, rl_module_specs=left)}}
