"""`Algorithm`: a runner and a learner, tied together."""

from __future__ import annotations

import logging
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.errors import ConfigError, add_context
from epibatch.core.lazy import Elsewhere

from ..env_runner.made_env import is_of_environment
from .algorithm_callbacks import AlgorithmCallbacks
from .evaluation import Evaluation
from .learner_group import LearnerGroup
from .live_policy import LivePolicy, check_options, check_policy_id
from .module_changes import added, removed
from .module_specs import check_module, check_sequence_settings
from .module_views import added_view, removed_view
from .other_libraries import ACT
from .piece_reports import PieceReports
from .random_state import seed_everything
from .runners import make_runner, modules_of
from .saved_algorithm import SavedAlgorithm
from .stop_rules import judge
from .train_batch import count_agent_steps, count_steps, sample_train_batch

if TYPE_CHECKING:
    from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
    from ..learner.learner import Learner
    from .algorithm_config import AlgorithmConfig

__all__ = ["Algorithm"]


class Algorithm(SavedAlgorithm):
    """Samples episodes, learns from them, and can be saved and continued.

    Runner and learner share one module object, so the runner acts with the learner's newest weights.

    Saving and going on. `save_to_path` changes nothing about the run that saves. Environments cannot be saved, so a
    restored run resets its environments, with the next seed of its seeded stream: everything that was learned and
    counted goes on, the running episodes do not. `save_to_path(path, end_episodes=True)` resets the environments of
    the run that saves in the same way. Then, if the config has a seed, a run that was restored in another process goes
    on exactly like the run that saved and did not stop: same batches, actions and losses, bit by bit on the same
    machine and versions.

    Args:
        config: the settings; copied, later changes to it have no effect.

    Attributes:
        pipelines: `env_to_module`, `module_to_env` and `learner`.

    Raises:
        ConfigError: the config has no environment, or its settings contradict each other.
    """

    if not TYPE_CHECKING:  # names of other libraries
        learn = Elsewhere("use train() for one iteration, or iterations() until the config's stopping(...) ends it")
        predict = Elsewhere(ACT)
        compute_single_action = Elsewhere(ACT)
        compute_actions = Elsewhere(ACT)
        save = Elsewhere("use save_to_path(path)")
        load = Elsewhere("use from_checkpoint(path)")
        restore = Elsewhere("use restore_from_path(path), or Algorithm.from_checkpoint(path)")

    def __init__(self, config: AlgorithmConfig) -> None:
        config.validate()
        if config.env is None:
            raise ConfigError(
                f"{type(config).__name__}.build_algo",
                expected="an environment",
                found="none",
                do='name one: .environment("CartPole-v1")',
            )
        self.config = config.copy()
        logging.getLogger("epibatch").setLevel(self.config.log_level)
        if self.config.seed is not None:
            seed_everything(self.config.seed)
        self.training_iteration = 0
        self._time_total_s = 0.0
        self._env_steps = 0
        self._edits_learned = 0
        self.env_runner = make_runner(self.config, 0)
        try:
            modules = modules_of(self.env_runner.module)
            for module_id, module in modules.items():
                self._check(module_id, module)
            check_sequence_settings(modules.values())
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
            module: the module.
            module_id: its id.
            config: what it is used with.

        Raises:
            ConfigError: it is recurrent without a `max_seq_len`, or its actions are never stretched to their bounds.
        """
        check_module(module, config.normalize_actions)

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
            module: the runner's modules; a single one stands under `default_policy`.
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
        """Run one iteration: sample `train_batch_size` steps, update the modules.

        Returns:
            `env_runners` (returns, lengths, counts), `learners` (losses), `training_iteration`,
            `num_env_steps_sampled_lifetime` (those of finished iterations), `time_this_iter_s`, `time_total_s`,
            `timers` with the seconds of `sample` and `learn`, and of every piece if the config has `time_pieces`; and
            `evaluation`, what `evaluate` returned, in iterations that `evaluation_interval` divides. If
            that fails, it is missing, and a warning says why.

        Raises:
            RunnerError: the runner returned no steps.
        """
        start = time.perf_counter()
        by_agent = self.config.is_multi_agent and self.config.count_steps_by == "agent_steps"
        count = count_agent_steps if by_agent else count_steps
        episodes = sample_train_batch(self.env_runner, self.config.total_train_batch_size, count)
        steps = count_steps(episodes)
        if self.env_runner.num_edits != self._edits_learned:
            self.learner.check_next_update()
            self._edits_learned = self.env_runner.num_edits
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
            results.update(self._evaluated())
        return self._callbacks.train_result(results)

    def _evaluated(self) -> dict[str, Any]:
        """Evaluate after an iteration, whose results must not be lost if an environment fails in it."""
        try:
            return {"evaluation": self.evaluate()}
        except Exception as error:
            if not is_of_environment(error):  # a callback, a piece or the config: the run must not go on
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

    @property
    def learner_group(self) -> LearnerGroup:
        """The learner as a group of one, for code that knows RLlib's groups."""
        return LearnerGroup(self.learner)

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
            module_id: an id that is free.
            module_spec: an RLModuleSpec, a module, or None for the default network; spaces and settings that it leaves
                open are those that the config would give.
            config_overrides: its own settings of the training, such as `{"lr": 1e-4}`.
            new_agent_to_module_mapping_fn: a function or table; agents that have appeared in a running episode keep
                their module until it ends. None: as it is.
            new_should_module_be_updated: from now on `policies_to_train`; None: as it is, so that a list of ids does
                not include the new module.

        Returns:
            The spec of all modules.

        Raises:
            ConfigError: the id is taken, or something does not fit; nothing was added.

        Example:
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
        return added(
            self,
            module_id,
            module_spec,
            config_overrides,
            new_agent_to_module_mapping_fn,
            new_should_module_be_updated,
        )

    def remove_module(
        self,
        module_id: str,
        *,
        new_agent_to_module_mapping_fn: Any = None,
        new_should_module_be_updated: Any = None,
    ) -> Any:
        """Remove a module, its optimiser and its settings; the runner starts new episodes.

        Args:
            module_id: the module.
            new_agent_to_module_mapping_fn: a function or table; needed if any agent has the module.
            new_should_module_be_updated: from now on `policies_to_train`; None: as it is but for the module.

        Returns:
            The spec of the modules that are left.

        Raises:
            UnknownNameError: there is no such module, or no other one.
            ConfigError: an agent is still mapped to it; nothing was removed.
        """
        return removed(self, module_id, new_agent_to_module_mapping_fn, new_should_module_be_updated)

    def learner_overrides(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """A module's own settings of the training as the learner knows them."""
        return dict(overrides)

    def add_view(self, name: str, view: Any) -> None:
        """Let all modules have one column more, from the next batch on, for acting as well as for training.

        The config has it from then on, and so do evaluations, policies, and runs that are restored from a checkpoint,
        with whatever config. Where the view reaches back further than episodes kept, the runner starts new ones.
        Which outputs a module will give is not known beforehand: a view of a column that is not there fails in the next
        batch, and `remove_view` takes it away.

        Args:
            name: the new column.
            view: an `epibatch.connectors.views.View`, or a dict of its arguments.

        Raises:
            ConfigError: the name is taken, or the view cannot be meant; nothing was added.

        Example:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> from epibatch.connectors.views import View
            >>> algo = PPOConfig().environment("CartPole-v1").build_algo()
            >>> algo.add_view("next_actions", View("actions", shift=1))
            >>> algo.pipelines["learner"](rl_module=algo.get_module(), episodes=algo.env_runner.sample(
            ...     num_timesteps=5))["next_actions"].shape[0] >= 5
            True
            >>> algo.stop()
        """
        added_view(self, name, view)

    def remove_view(self, name: str) -> None:
        """Take away a view that `add_view` gave, from the next batch on, as if it had not been given.

        Args:
            name: its name.

        Raises:
            UnknownNameError: `add_view` gave no such view; nothing was removed.

        Example:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> from epibatch.connectors.views import View
            >>> algo = PPOConfig().environment("CartPole-v1").build_algo()
            >>> algo.add_view("before", View("rewrds", shift=-1))
            >>> algo.remove_view("before")
            >>> algo.config.view_requirements
            {}
            >>> algo.stop()
        """
        removed_view(self, name)

    def _modules_changed(self) -> None:
        """Let what was built for other modules be built anew."""
        self._evaluation.stop()
        self._live_policy = None

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

    def get_policy(self, policy_id: str | None = None) -> Any:
        """The policy as it is trained, for environments of one's own: a `Policy` or a `MultiAgentPolicy`.

        It acts with the newest weights and statistics, in pipelines of its own: what it is given and draws does not
        change the training. It is always the same object, unless modules are added or removed.

        Args:
            policy_id: leave it out: one policy acts for all agents, and `get_module` gives single networks.

        Raises:
            UnknownNameError: an id that is not that of the only policy.
        """
        check_policy_id(self, policy_id)
        if self._live_policy is None:
            self._live_policy = LivePolicy(self.config, self.env_runner)
        return self._live_policy.policy

    def act(self, obs: Any, state: Any = None, **options: Any) -> tuple[Any, Any]:
        """The action for an observation, or the actions for a batch of them; see `Policy.act`.

        With several agents, observations and actions are dicts by agent; see `MultiAgentPolicy.act`.

        Args:
            obs: one observation, N of them stacked, or those of several agents.
            state: what the call before returned; None at the beginning.
            **options: `explore` (default False), `reward`, `info`, `starts`; with several agents `explore`, `rewards`,
                `infos`, `terminateds`, `truncateds`.
        """
        policy = self.get_policy()
        check_options(policy, options)
        acted: tuple[Any, Any] = policy.act(obs, state, **options)
        return acted

    def _forget_policy(self) -> None:
        if self._live_policy is not None:
            self._live_policy.forget()

    def stop(self) -> None:
        """Close the environments; the algorithm cannot be used afterwards."""
        self._evaluation.stop()
        self.env_runner.stop()
