"""`Algorithm`: a runner and a learner, tied together."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.errors import CheckpointError, ConfigError, explain
from epibatch.core.state_codec import state_parts

from ..episodes.episode_facts import count_steps
from .algorithm_callbacks import AlgorithmCallbacks
from .checkpoint import config_data, config_from_checkpoint, read_checkpoint, taking_over, write_checkpoint
from .evaluation import Evaluation
from .learner_group import LearnerGroup
from .module_specs import check_module
from .piece_reports import PieceReports
from .policy_checkpoint import acting_data
from .random_state import get_random_state, seed_everything, set_random_state
from .stop_rules import judge
from .train_batch import sample_train_batch

if TYPE_CHECKING:
    from ..connectors.learner import LearnerConnectorPipeline
    from ..learner import Learner
    from .algorithm_config import AlgorithmConfig
    from .live_policy import LivePolicy
    from .policy import Policy, PolicyState

__all__ = ["Algorithm"]

AlgorithmT = TypeVar("AlgorithmT", bound="Algorithm")


class Algorithm(ABC):
    """Samples episodes, learns from them, and can be saved and continued.

    Runner and learner share one module object, so the runner acts with the learner's newest weights.

    Saving and going on. Environments cannot be saved, so a save ends all ongoing episodes: after `save_to_path`
    and after `restore_from_path` alike, the runner resets its environments with the next seed of its seeded
    stream. A run that was restored in another process therefore goes on exactly like the run that saved and
    did not stop: same batches, actions and losses, bit by bit on the same machine and versions.

    Args:
        config: the settings; copied, later changes to it have no effect.

    Attributes:
        pipelines: `env_to_module`, `module_to_env` and `learner`.

    Raises:
        ConfigError: the config has no environment, or its settings contradict each other.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        config.validate()
        if config.env is None:
            raise ConfigError(
                explain(
                    f"{type(config).__name__}.build_algo",
                    expected="an environment",
                    found="none",
                    do='name one: .environment("CartPole-v1")',
                )
            )
        from ..env_runner.single_agent_env_runner import SingleAgentEnvRunner

        self.config = config.copy()
        logging.getLogger("epibatch").setLevel(self.config.log_level)
        if self.config.seed is not None:
            seed_everything(self.config.seed)
        self.training_iteration = 0
        self._time_total_s = 0.0
        self._env_steps = 0
        self.env_runner = SingleAgentEnvRunner(config=self.config, worker_index=0)
        try:
            self.check_module(self.env_runner.module)
            self.learner = self._make_learner()
            self.pipelines = {**self.env_runner.pipelines, "learner": self.learner.connector}
            self._reports = PieceReports(self.pipelines, time_pieces=self.config.time_pieces)
            self._share_lookback()
            self._live_policy: LivePolicy | None = None
            self._evaluation = Evaluation(self.config)
            self._callbacks = AlgorithmCallbacks(self)
            self.metrics = self._callbacks.logged
            self._callbacks.call("on_algorithm_init")
        except BaseException:
            self.env_runner.stop()
            raise

    def check_module(self, module: Any) -> None:
        """Check what can be known of the runner's module before it is used.

        Raises:
            ConfigError: it is recurrent without a `max_seq_len`, or its actions are never stretched to their bounds.
        """
        check_module(module, self.config.normalize_actions)

    def _make_learner(self) -> Learner:
        observation, action = self.env_runner.get_spaces()["__episodes__"]
        connector = self.config.build_learner_connector(observation, action, env=self.env_runner.env)
        self.config.extend_learner_connector(connector)
        if self.config.seed is not None:
            connector.seed(self.config.seed)
        return self.build_learner(self.env_runner.module.as_multi_rl_module(), connector)

    @abstractmethod
    def build_learner(self, module: Any, connector: LearnerConnectorPipeline) -> Learner:
        """Build the learner with the algorithm's loss.

        Args:
            module: the `MultiRLModule` that holds the runner's module under `default_policy`.
            connector: the learner pipeline, the algorithm's own pieces included.
        """

    # ----------------------------------------------------------------------------------- training

    def iterations(self) -> Iterator[dict[str, Any]]:
        """Train until a rule of the config's `stop` section ends it; without one, for as long as results are asked for.

        Returns:
            The results of every iteration, as `train` gives them.

        Example:
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
        """Run one iteration: sample `train_batch_size` env steps, update the module.

        Returns:
            `env_runners` (returns, lengths, counts), `learners` (losses), `training_iteration`,
            `num_env_steps_sampled_lifetime` (those of finished iterations), `time_this_iter_s`, `time_total_s`,
            `timers` with the seconds of `sample` and `learn`, and of every piece if the config has `time_pieces`; and
            `evaluation`, what `evaluate` returned, in iterations that `evaluation_interval` divides.

        Raises:
            RunnerError: the runner returned no steps.
        """
        start = time.perf_counter()
        episodes = sample_train_batch(self.env_runner, self.config.total_train_batch_size)
        steps = count_steps(episodes)
        sampled = time.perf_counter()
        learner_results = self.learner.update(episodes=episodes, metrics=self._reports.logged)
        self.env_runner.weights_updated()
        self._share_lookback()
        end = time.perf_counter()
        self.training_iteration += 1
        self._time_total_s += end - start
        self._env_steps += steps
        metrics = self.env_runner.get_metrics()
        results = {
            "env_runners": metrics,
            "learners": self._reports.learners(learner_results),
            "training_iteration": self.training_iteration,
            "num_env_steps_sampled_lifetime": self._env_steps,
            "time_this_iter_s": end - start,
            "time_total_s": self._time_total_s,
            "timers": {"sample": sampled - start, "learn": end - sampled, **self._reports.timers()},
        }
        interval = self.config.evaluation_interval
        if interval is not None and self.training_iteration % interval == 0:
            results["evaluation"] = self.evaluate()
        return self._callbacks.train_result(results)

    def _share_lookback(self) -> None:
        """Tell the runner how much history the learner's pieces read, so that its cuts keep it.

        What a piece reads without declaring it is known after its first call; until then all history is kept.
        """
        connector = self.learner.connector
        self.env_runner.require_lookback(connector.lookback_needed if connector.lookback_known else None)

    @property
    def learner_group(self) -> LearnerGroup:
        """The learner as a group of one, for code that knows RLlib's groups."""
        return LearnerGroup(self.learner)

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> Any:
        """The module that is trained."""
        return self.learner.module[module_id]

    # ------------------------------------------------------------------------------------- acting

    def evaluate(self) -> dict[str, Any]:
        """Measure the policy in environments of its own, as the `evaluation` section says.

        Weights and pipeline states are the newest, statistics are frozen, and actions are greedy unless
        `evaluation_config` says otherwise. The training goes on as if it had not happened.

        Returns:
            `env_runners`: `episode_return_mean`, `_min`, `_max`, the same of `episode_len`, `num_episodes`,
            `num_env_steps_sampled`, both with `_lifetime` over all evaluations, and `sample`, the seconds it took.

        Raises:
            ConfigError: the evaluation environment has other spaces than the training's.

        Example:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> config = PPOConfig().environment("CartPole-v1").evaluation(evaluation_duration=3)
            >>> algo = config.build_algo()
            >>> algo.evaluate()["env_runners"]["num_episodes"]
            3
            >>> algo.stop()
        """
        self._callbacks.call("on_evaluate_start")
        results = self._evaluation.run(self.env_runner)
        self._callbacks.call("on_evaluate_end", evaluation_metrics=results)
        return results

    def get_policy(self) -> Policy:
        """The policy as it is trained, for environments of one's own; always the same object.

        It acts with the newest weights and statistics, in pipelines of its own: what it is given and draws does not
        change the training.
        """
        if self._live_policy is None:
            from .live_policy import LivePolicy

            self._live_policy = LivePolicy(self.config, self.env_runner)
        return self._live_policy.policy

    def act(self, obs: Any, state: PolicyState | None = None, **options: Any) -> tuple[Any, PolicyState]:
        """The action for an observation, or the actions for a batch of them; see `Policy.act`.

        Args:
            obs: one observation, or N of them stacked.
            state: what the call before returned; None at the beginning.
            **options: `explore` (default False), `reward`, `info`, `starts`.
        """
        return self.get_policy().act(obs, state, **options)

    def stop(self) -> None:
        """Close the environments; the algorithm cannot be used afterwards."""
        self._evaluation.stop()
        self.env_runner.stop()

    # ----------------------------------------------------------------------------- saving, restoring

    def get_state(self) -> dict[str, Any]:
        """Everything that training changes: module, optimiser, connectors, runner, counters, generators."""
        return {
            "learner": self.learner.get_state(),
            "env_runner": self.env_runner.get_state(not_components="rl_module"),  # the learner's state has it
            "counters": {
                "training_iteration": self.training_iteration,
                "time_total_s": self._time_total_s,
                "num_env_steps_sampled_lifetime": self._env_steps,
                "logged_metrics": self._reports.logged.get_state(),
                "callback_metrics": self.metrics.get_state(),
            },
            "evaluation": self._evaluation.get_state(),
            "random": get_random_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave; the runner starts new episodes.

        Raises:
            CheckpointError: a part of the state is missing, or is something else.
        """
        state_parts(f"{type(self).__name__}.set_state", state)
        missing = [part for part in ("learner", "env_runner", "counters", "random") if part not in state]
        if missing:
            raise CheckpointError(
                explain(
                    f"{type(self).__name__}.set_state",
                    expected="the parts learner, env_runner, counters and random",
                    found=f"no {', '.join(missing)}",
                    do="use a state that get_state of the same algorithm gave",
                )
            )
        takers = {
            "env_runner": self.env_runner.set_state,
            "learner": self.learner.set_state,
            "counters": self._set_counters,
            "evaluation": self._evaluation.set_state,  # checkpoints of earlier versions have none
            "random": set_random_state,
        }
        for part in (name for name in takers if name in state):
            with taking_over(f"{type(self).__name__}.set_state", part):
                takers[part](state[part])
        self.env_runner.checkpoint_reset()
        if self._live_policy is not None:
            self._live_policy.forget()

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        iteration, steps = int(counters["training_iteration"]), int(counters["num_env_steps_sampled_lifetime"])
        seconds = float(counters["time_total_s"])
        if min(iteration, steps) < 0 or not seconds >= 0:
            raise ValueError(f"{iteration} iterations, {steps} steps, {seconds} seconds")
        self.training_iteration, self._env_steps, self._time_total_s = iteration, steps, seconds
        self._reports.logged.set_state(counters["logged_metrics"])
        self.metrics.set_state(counters.get("callback_metrics", {"metrics": {}}))  # earlier versions have none

    def save_to_path(self, path: str | Path, *, end_episodes: bool = True) -> str:
        """Save everything into a folder; a checkpoint that is there already is replaced in one step.

        Args:
            path: the folder.
            end_episodes: start new episodes afterwards, so that this run and one that is restored go on alike
                (see the class). False leaves the running episodes alone: saving then changes nothing about this
                run, and a restored one goes another way, as it begins new episodes.

        Returns:
            The folder.

        Raises:
            CheckpointError: the folder holds something other than a checkpoint.
            StorageError: the disk is full, say; the checkpoint that may be there is still whole.
        """
        saved = write_checkpoint(Path(path), self._description(), self.get_state())
        if end_episodes:
            self.env_runner.checkpoint_reset()
        return str(saved)

    def _description(self) -> dict[str, Any]:
        """What a checkpoint says about itself: the config as data, or why it is none."""
        runner = self.env_runner
        spaces = runner.get_spaces()
        data, not_data = config_data(self.config, runner.env, spaces)
        acting = acting_data(spaces["__env_single__"], runner.pipelines, runner.module)
        return {"algorithm": self.config.algorithm, "config": data, "not_data": not_data, "acting": acting}

    def restore_from_path(self, path: str | Path) -> None:
        """Take over everything from a checkpoint of the same config; the runner starts new episodes.

        Args:
            path: the folder that `save_to_path` wrote, or that of a run, whose newest whole checkpoint is taken.

        Raises:
            CheckpointError: the checkpoint is incomplete, damaged, or of another algorithm or network.
        """
        description, state = read_checkpoint(Path(path))
        if description["algorithm"] != self.config.algorithm:
            raise CheckpointError(
                explain(
                    f"checkpoint {path}",
                    expected=f"one of {self.config.algorithm!r}",
                    found=repr(description["algorithm"]),
                    do="restore it with the algorithm that saved it",
                )
            )
        self.set_state(state)
        self._callbacks.checkpoint_loaded()

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
            path: the folder that `save_to_path` wrote, or that of a run, whose newest whole checkpoint is taken.
            config: the original config; needed if it holds code, such as a function or a class.
            allow_imports: whether pieces may be imported by path; importing runs code.

        Raises:
            CheckpointError: the config cannot be rebuilt from data; the message names what is code.
        """
        description, state = read_checkpoint(Path(path))
        original = config or config_from_checkpoint(Path(path), description, allow_imports=allow_imports)
        algorithm = original.build_algo()
        if not isinstance(algorithm, cls):
            raise CheckpointError(
                explain(
                    f"{cls.__name__}.from_checkpoint({str(path)!r})",
                    expected=f"a checkpoint of {cls.__name__}",
                    found=type(algorithm).__name__,
                    do=f"use {type(algorithm).__name__}.from_checkpoint",
                )
            )
        try:
            algorithm.set_state(state)
            algorithm._callbacks.checkpoint_loaded()
        except BaseException:
            algorithm.stop()
            raise
        return algorithm
