# Written by `make generated`: the source without bodies, with the settings of the models.

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import gymnasium as gym
from typing_extensions import Self

from epibatch.core.rl_module.rl_module import Heads, RLModuleSpec

from ..connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from ..connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from .algorithm import Algorithm
from .config.config_io import ConfigDocument
from .config.settings import (
    AlgorithmSettings,
    StopSettings,
    TrainingSettings,
)
from .policy_spec import PolicySpec
from .sources import Source

__all__ = ["AlgorithmConfig"]
ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")
__all__ = ["AlgorithmConfig"]

class AlgorithmConfig:
    """Settings of a training run, and builders of its pipelines, network and Algorithm.

    Use the config of an algorithm, such as `PPOConfig`. Every section has a method, which changes this config and
    returns it. Settings are read flat, as attributes (`config.lr`, `config.num_envs_per_env_runner`), and stand in
    sections in files (`to_yaml`). A wrong name or value raises at once, with all that is wrong in the call.

    Args:
        allow_imports: True if pieces and callbacks may be named by an import path; importing runs code.

    Raises:
        ConfigError: unknown settings or values that do not fit, all of them in one message.

    Examples:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> config = PPOConfig().environment("CartPole-v1").training(lr=3e-4, gamma=0.98)
        >>> config.lr, config.num_epochs
        (0.0003, 30)
    """

    model: ClassVar[type[AlgorithmSettings]]
    training_model: ClassVar[type[TrainingSettings]]
    rule: ClassVar[Any]
    min_env_steps_per_iteration: ClassVar[int]
    heads: ClassVar[Heads]
    offline: ClassVar[bool]
    algorithm_class: ClassVar[str]
    @classmethod
    def use_settings(cls, model: type[AlgorithmSettings]) -> None:
        """Let the settings be those of a model, and make their typed methods."""
        ...
    @classmethod
    @cache
    def get_algorithm_class(cls) -> type[Algorithm]:
        """The class whose `training_step` runs the algorithm; without an `algorithm_class`, one made for this config.

        Raises:
            NotAvailableError: this is the general config.
        """
        ...
    def __init__(self, *, allow_imports: bool = False) -> None: ...
    def api_stack(self: ConfigT, **switches: bool) -> ConfigT:
        """Warn that there is one API stack; RLlib's switches `enable_...` change nothing.

        Raises:
            ConfigError: a switch turns the stack of RLModules and connectors off.
        """
        ...
    def framework(self: ConfigT, framework: str | None = "torch", **options: Any) -> ConfigT:
        """Warn that networks are always PyTorch's; RLlib's options change nothing.

        Raises:
            ConfigError: the framework is another one.
        """
        ...
    def resources(self: ConfigT, **settings: Any) -> ConfigT:
        """Set the `placement_strategy`; warn that RLlib's other settings change nothing.

        Args:
            **settings: RLlib's, such as `num_cpus_for_main_process`.
        """
        ...
    def change(self: ConfigT, method: str, parts: Mapping[str, Mapping[str, Any]]) -> ConfigT:
        """Check new settings of some sections together; adopt all of them or none.

        Args:
            method: The caller, for messages.
            parts: Section -> its new settings.
        """
        ...
    def copy(self: ConfigT) -> ConfigT:
        """A config of its own with the same settings; dicts and lists in them are copied."""
        ...
    @property
    def samples(self) -> bool:
        """True if runners sample what is learned from; False if recorded episodes take their place."""
        ...
    @property
    def acts(self) -> bool:
        """True if there is something to act in: an environment, or simulators that a runner class waits for."""
        ...
    def validate(self) -> None:
        """Check what no single setting can show.

        Raises:
            ConfigError: settings that contradict each other, all of them in one message.
        """
        ...
    @property
    def settings(self) -> AlgorithmSettings:
        """All settings, in sections."""
        ...
    @property
    def num_changes(self) -> Counter[str]:
        """Number of changes of each section that was changed."""
        ...
    @property
    def in_evaluation(self) -> bool:
        """True for the config of the environments that `evaluate` measures in."""
        ...
    @property
    def allows_imports(self) -> bool:
        """True if pieces and callbacks may be named by an import path."""
        ...
    @property
    def stop_rules(self) -> StopSettings:
        """The `stop` section."""
        ...
    @property
    def is_multi_agent(self) -> bool:
        """True if there are other modules than the default one, as RLlib sees it."""
        ...
    @property
    def keep_actions_for_env(self) -> bool:
        """True if runners store `actions_for_env` with the other outputs of each step: what they sample is recorded."""
        ...
    @property
    def policies(self) -> dict[str, PolicySpec]:
        """Module id -> what is different about it."""
        ...
    @property
    def policy_mapping_fn(self) -> Any:
        """The mapping from agents to modules, called as `fn(agent_id, episode)`; None if it is not set."""
        ...
    def overrides_for(self, module_id: str) -> dict[str, Any]:
        """The settings of the training that a module has of its own."""
        ...
    def get_config_for_module(self: ConfigT, module_id: str) -> ConfigT:
        """The config as it is for one module: its own settings in place of the common ones."""
        ...
    def get_evaluation_config_object(self: ConfigT, name: str = "") -> ConfigT:
        """Return the config of evaluation: greedy actions by default, and at most one environment per episode.

        Its episodes are truncated at the `horizon`, and the first ones are not shortened, unless `evaluation_config`
        says so.

        `env_config` is merged into that of the training; every other setting replaces the training's. With
        "vector_entry_point" the number of environments stays, as the entry point may only support that number.

        Args:
            name: One of `evaluation_sets`; its settings replace those of `evaluation_config` in the same way. "": none.

        Raises:
            KeyError: there is no such set.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=64)
            >>> evaluation = config.evaluation(evaluation_duration=5).get_evaluation_config_object()
            >>> evaluation.num_envs_per_env_runner, evaluation.explore
            (5, False)
        """
        ...
    @property
    def other_device(self) -> str | None:
        """The `device`, or None for the CPU, where tensors are made anyway."""
        ...
    @property
    def total_train_batch_size(self) -> int:
        """Env steps of one training iteration, over all learners."""
        ...
    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps that each environment of a runner contributes to one `sample()`, at least 1.

        With "auto", all runners together cover the train batch in one `sample()` each.

        Args:
            worker_index: The runner's number; RLlib's argument.
        """
        ...
    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """Settings for `evaluation_config` or `algorithm_config_overrides_per_module`, checked at once.

        Args:
            **settings: Of the sections `environment` and `env_runners`, or of `training`.

        Raises:
            ConfigError: unknown settings, those of other sections, or values that do not fit.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> PPOConfig().evaluation(evaluation_config=PPOConfig.overrides(explore=True)).evaluation_config
            {'explore': True}
        """
        ...
    @classmethod
    def from_dict(cls: type[ConfigT], data: Mapping[str, Any], *, allow_imports: bool = False) -> ConfigT:
        """Read a config from nested dicts, the form that `to_dict` gives.

        Args:
            data: Sections (`environment`, `env_runners`, `learners`, `training`, `rl_module`, `debugging`,
                `reporting`, `checkpointing`, `stop`), the pipelines `env_to_module`, `module_to_env`, `learner` as
                lists of piece specs, and `algorithm`.
            allow_imports: True if pieces and environments may be named by import path; importing runs code.

        Raises:
            ConfigError: everything that is wrong, each with its path.

        Examples:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> PPOConfig.from_dict({"environment": {"env": "CartPole-v1"}, "training": {"lr": 0.01}}).lr
            0.01
        """
        ...
    @classmethod
    def from_yaml(cls: type[ConfigT], source: str | Path, *, allow_imports: bool = False) -> ConfigT:
        """Read a config from YAML.

        Args:
            source: A path, or the text itself.
            allow_imports: As in `from_dict`.
        """
        ...
    @classmethod
    def from_document(
        cls: type[ConfigT], document: ConfigDocument, *, allow_imports: bool = False, complete: bool = False
    ) -> ConfigT:
        """Read a config from data whose errors have lines.

        Args:
            document: The data.
            allow_imports: As in `from_dict`.
            complete: True if `algorithm` and an environment have to be given.
        """
        ...
    @classmethod
    def class_in(cls: type[ConfigT], document: ConfigDocument, *, allow_imports: bool = False) -> type[ConfigT]:
        """Return the config class of the algorithm that a document names, if that is a subclass of this one.

        Args:
            document: The data.
            allow_imports: True if it may name the class by its import path.

        Raises:
            ConfigError: there is no such algorithm, or it may not be imported; with line and column.
        """
        ...
    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of config files, by which editors complete and check them."""
        ...
    def to_dict(self) -> dict[str, Any]:
        """The config as nested dicts of plain data.

        Raises:
            ConfigError: something in it is code (a function, a class, a space); each is named.
        """
        ...
    def to_yaml(self) -> str:
        """The config as YAML text; `from_yaml` reads it back."""
        ...
    def build_env_to_module_connector(
        self, env: Any = None, spaces: Mapping[str, Any] | None = None, device: Any = None
    ) -> EnvToModulePipeline:
        """Build the pipeline from episodes to the module's input.

        Args:
            env: The (vector) environment, passed to the hook.
            spaces: `{"__env__": (obs, act), "__env_single__": (obs, act)}`; taken from `env` if left out.
            device: torch device of the tensors; default: the config's.
        """
        ...
    def build_module_to_env_connector(
        self, env: Any = None, spaces: Mapping[str, Any] | None = None
    ) -> ModuleToEnvPipeline:
        """Build the pipeline from the module's output to the environments' actions; arguments as above."""
        ...
    def build_learner_connector(
        self, input_observation_space: Any = None, input_action_space: Any = None, device: Any = None, env: Any = None
    ) -> LearnerConnectorPipeline:
        """Build the pipeline from episodes to a train batch, without what the algorithm itself adds.

        Args:
            input_observation_space: Space of the episodes' observations: one environment's, as changed by
                env-to-module pieces that rewrite them.
            input_action_space: One environment's action space.
            device: torch device of the tensors; default: the config's.
            env: Passed to a hook with a single parameter.
        """
        ...
    def update_views(self, pipeline: Any) -> None:
        """Let a pipeline for this config have the views that its modules declare; unless its default pieces are off."""
        ...
    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Put the algorithm's own pieces into a learner pipeline; none here."""
        ...
    def update_modules(self, pipeline: Any) -> None:
        """Let a pipeline that was built know the modules of this config, which have changed."""
        ...
    def user_pieces(self, name: str, arguments: tuple[Any, ...], env: Any) -> list[Any]:
        """The user's pieces of one pipeline (env_to_module, module_to_env, learner), newly made."""
        ...
    def get_rl_module_spec(self, env: Any = None, spaces: Mapping[str, Any] | None = None) -> Any:
        """The network's spec: the user's, or the default one for the spaces; of several modules if there are several.

        Args:
            env: The (vector) environment, asked for its spaces if there are no `spaces`.
            spaces: As for the pipelines, and under `default_policy` the env-to-module pipeline's output
                observation space with the action space.
        """
        ...
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return a spec with the class of all networks that the config gives none, and options for these.

        Without a class `heads` decides; options in `model_config` win.

        An algorithm with a network of its own overrides it.
        """
        ...
    def get_multi_rl_module_spec(
        self, *, env: Any = None, spaces: Mapping[str, Any] | None = None, inference_only: bool = False
    ) -> Any:
        """The spec of all modules, each with its spaces and settings.

        Args:
            env: The (vector) environment, asked for its agents' spaces if there are no `spaces`.
            spaces: Module id -> the env-to-module pipeline's output observation space and the action space; or as for
                the pipelines. What is missing follows from the agents' spaces and the mapping.
            inference_only: Build for acting only, without modules that only learners need.

        Raises:
            ConfigError: a module has no spaces.
            SpaceError: the agents of a module have different spaces.
        """
        ...
    def make_source(self, env_runner_group: Any) -> Source:
        """Return where the train batches come from: the recorded episodes if there are any, else the runners.

        Args:
            env_runner_group: The runners; with recorded episodes they only have spaces, pipelines and module.
        """
        ...
    def build_algo(self) -> Algorithm:
        """Build environment, pipelines, module and learner.

        Raises:
            ConfigError: the config has neither an environment nor recorded episodes, or its settings contradict each
                other.
        """
        ...
    def environment(
        self,
        env: str | type[Any] | Callable[..., Any] | None = None,
        *,
        env_config: dict[str, Any] = ...,
        wrappers: Sequence[str | Mapping[str, Any] | Callable[..., Any]] = ...,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        normalize_actions: bool = True,
        clip_actions: bool = False,
    ) -> Self:
        """Set what is acted in, and how actions reach it.

        Args:
            env: A name known to Gymnasium or given to `register_env`, an environment class, or a function of the
                `env_config` dict.
            env_config: Keywords for the constructor of a Gymnasium id; the dict that a function or class is called
                with.
            wrappers: Gymnasium's wrappers around each environment, the innermost first: names, `{"wrapper": name,
                ...}`, functions.
            observation_space: The space, where there is no environment to ask.
            action_space: The space, where there is no environment to ask.
            normalize_actions: True if modules act in [-1, 1], and actions are stretched to the bounds of a Box.
            clip_actions: True if actions are clipped to the bounds of a Box; for actions that are not normalised.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def env_runners(
        self,
        *,
        num_env_runners: int = 0,
        num_cpus_per_env_runner: float = 1.0,
        num_gpus_per_env_runner: float = 0.0,
        custom_resources_per_env_runner: dict[str, float] = ...,
        placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] | None = None,
        sample_timeout_s: float | None = 60.0,
        max_requests_in_flight_per_env_runner: int = 1,
        max_bytes_in_flight: int | None = None,
        sample_while_learning: bool = False,
        merge_env_runner_states: Literal["training_only"] | bool = "training_only",
        broadcast_env_runner_states: bool = True,
        env_runner_cls: type[Any] | str | None = None,
        num_envs_per_env_runner: int = 1,
        gym_env_vectorize_mode: Literal["sync", "async", "vector_entry_point"] = "sync",
        num_envs_per_worker: int = 1,
        gym_env_batch_size: int | None = None,
        gym_env_autoreset_mode: Literal["next_step", "same_step", "disabled"] | None = None,
        env_resets_itself: bool = False,
        missing_final_obs: float | Literal["nan", "zero", "keep"] | None = None,
        add_default_connectors_to_env_to_module_pipeline: bool = True,
        add_default_connectors_to_module_to_env_pipeline: bool = True,
        rollout_fragment_length: int | Literal["auto"] = "auto",
        batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes",
        keep_running_episodes: bool = False,
        horizon: int | None = None,
        soft_horizon: bool = False,
        no_done_at_end: bool = False,
        random_first_horizon: int | None = None,
        explore: bool = True,
        episode_lookback_horizon: int = 1,
        env_to_module_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        module_to_env_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        update_worker_filter_stats: bool = True,
    ) -> Self:
        """Set how environments step, how episodes are cut, and the pieces of the two acting pipelines.

        Args:
            num_env_runners: Processes that sample, as Ray actors; 0: this process samples, without Ray.
            num_cpus_per_env_runner: Cores that Ray reserves for each of these processes; fractions are allowed.
            num_gpus_per_env_runner: GPUs that Ray reserves for each of them.
            custom_resources_per_env_runner: Ray's custom resources for each of them: name -> amount.
            placement_strategy: How Ray places the processes on nodes, as a placement group; None: wherever there is
                room.
            sample_timeout_s: Seconds without a step after which a process is taken to hang, and is replaced; None:
                no limit.
            max_requests_in_flight_per_env_runner: Samples that each process is asked for before earlier ones were
                taken; more than 1 needs `sample_while_learning`, or IMPALA or APPO, whose default is 2.
            max_bytes_in_flight: Bytes of samples that were asked for and not taken, of all processes together;
                None: no limit but `max_requests_in_flight_per_env_runner`.
            sample_while_learning: True: the next batch is sampled while the modules learn from this one, so it is
                one update older.
            merge_env_runner_states: False: statistics of connectors are not merged, so that each process has its
                own.
            broadcast_env_runner_states: False: merged statistics are not sent to the processes, which go on with
                their own.
            env_runner_cls: A subclass of `SingleAgentEnvRunner` or `TensorEnvRunner`, with policies of
                `MultiAgentEnvRunner`, or its import path; those of epibatch need no `allow_imports`.
            num_envs_per_env_runner: Environments that step together.
            gym_env_vectorize_mode: "async" steps them in worker processes; "vector_entry_point" takes the id's own
                vector version.
            num_envs_per_worker: Environments of each worker process, with "async".
            gym_env_batch_size: With "async": the runner acts once this many environments have answered, and does
                not wait for slow ones; None: it waits for all.
            gym_env_autoreset_mode: When reset observations come; None: as the vector environment does by itself.
            env_resets_itself: True if `step` of the environment resets it, and returns the next episode's first
                observation with an end.
            missing_final_obs: Last observation of an episode whose terminal one the environment does not give:
                "nan", "zero" or a number in every entry, or "keep" for the observation before; None: this is an
                error. Training reads the one before.
            add_default_connectors_to_env_to_module_pipeline: False: the pipeline has only your pieces.
            add_default_connectors_to_module_to_env_pipeline: False: the pipeline has only your pieces.
            rollout_fragment_length: Steps of each environment in a sample; "auto" covers `train_batch_size`, and
                with a replay buffer about 16 steps of all environments of a runner.
            batch_mode: Samples cut running episodes, or consist of whole ones.
            keep_running_episodes: True: when whole episodes are sampled, running ones go on in the next sample;
                False: all environments reset.
            horizon: Steps after which an episode is truncated, in place of a lower `TimeLimit`; None: as the
                environment ends it.
            soft_horizon: True: at the `horizon` an episode ends without flag or reset, and the next one goes on
                from there.
            no_done_at_end: True: train batches have no flags of ends, so that the value of the last observation
                always counts.
            random_first_horizon: Each environment's first episode is truncated after a random number of steps, 1 to
                this; None: it is not.
            explore: True if actions are drawn from the distribution, False if its most likely ones are taken.
            episode_lookback_horizon: Steps that a chunk keeps from before a cut, at least; pieces that read further
                back get more.
            env_to_module_connector: Your pieces from episodes to the module: `lambda env, spaces, device: ...`, or
                a list of piece specs.
            module_to_env_connector: Your pieces from the module to the environments: `lambda env, spaces: ...`, or
                a list of piece specs.
            update_worker_filter_stats: False: merged statistics are not sent to the processes, which go on with
                their own.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def learners(
        self,
        *,
        num_learners: int = 0,
        num_cpus_per_learner: float | Literal["auto"] = "auto",
        num_gpus_per_learner: float = 0.0,
        num_aggregator_actors_per_learner: int = 0,
        device: str | Any = "cpu",
        add_default_connectors_to_learner_pipeline: bool = True,
        columns: Literal["all", "auto"] = "all",
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        num_aggregator_actors: int = 0,
    ) -> Self:
        """Set the learner's pipeline, and where the network lives.

        Args:
            num_learners: Processes that learn together, as Ray actors, each from its share of the batch; 0: this
                process learns.
            num_cpus_per_learner: Cores that Ray reserves for each of them; "auto": 1, or none beside a GPU.
            num_gpus_per_learner: GPUs that Ray reserves for each of them; with at least one, its modules are there.
            num_aggregator_actors_per_learner: Must be 0: each learner makes its own batches.
            device: Device of the network and of all tensors that it is given: "cpu", "cuda", "cuda:0".
            add_default_connectors_to_learner_pipeline: False: the pipeline has only your pieces, and none of the
                algorithm's.
            columns: "auto": train batches omit columns that are not read.
            learner_connector: Your pieces from episodes to train batches: `lambda obs_space, act_space: ...`, or a
                list of piece specs.
            num_aggregator_actors: Must be 0: each learner makes its own batches.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def training(
        self,
        *,
        lr: float | Sequence[Sequence[float]] = 0.001,
        gamma: float = 0.99,
        train_batch_size: int = 4000,
        minibatch_size: int | None = None,
        num_epochs: int = 1,
        shuffle_batch_per_epoch: bool = True,
        optimizer: str | Mapping[str, Any] | Callable[..., Any] = "adam",
        grad_clip: float | None = None,
        grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm",
        loss: Callable[..., Any] | str | None = None,
        train_batch_size_per_learner: int = 4000,
        model: dict[str, Any] = ...,
        learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None = None,
        add_default_connectors_to_learner_pipeline: bool = True,
    ) -> Self:
        """Set learning rate, batch sizes, optimiser and loss.

        Args:
            lr: Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps learned
                from.
            gamma: Discount.
            train_batch_size: Environment steps of an iteration, at least.
            minibatch_size: Timesteps of a minibatch; None: the whole batch.
            num_epochs: Passes through each batch.
            shuffle_batch_per_epoch: False: the batch is shuffled once.
            optimizer: A name such as "adamw", a class, or its import path; with keywords: `{"optimizer": "adamw",
                "eps": 1e-5}`.
            grad_clip: Bound of the gradients; None for none.
            grad_clip_by: "global_norm" scales all gradients of a module by one factor, "norm" each parameter's
                gradient by its own, "value" clips every entry.
            loss: A function `(batch, outputs, distribution_class) -> (loss, metrics)`, a `Loss`, a class of one, or
                the import path of these; None: the algorithm's.
            train_batch_size_per_learner: Environment steps of an iteration, at least.
            model: Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a `DefaultModelConfig`.
            learner_connector: Your pieces from episodes to train batches: `lambda obs_space, act_space: ...`, or a
                list of piece specs.
            add_default_connectors_to_learner_pipeline: False: the pipeline has only your pieces, and none of the
                algorithm's.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def offline_data(
        self, *, input_: Any = None, output: str | None = None, held_out: float = 0.0, input: Any = None
    ) -> Self:
        """Set recorded episodes, which take the place of sampled ones, and where sampled ones are recorded.

        Args:
            input_: The path of a data set, an `EpisodeDataset`, a list of episodes, or another sequence of them
                that a learner pipeline takes; None: episodes are sampled.
            output: Folder of a data set, to which every episode that is sampled for training is written, with its
                model outputs and with the actions as the environment gets them (`actions_for_env`); a relative one
                lies in the run's folder.
            held_out: Share of the recorded episodes that is not learned from, but measured: the losses of its steps
                are `offline_evaluation` in the results.
            input: The path of a data set, an `EpisodeDataset`, a list of episodes, or another sequence of them that
                a learner pipeline takes; None: episodes are sampled.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def rl_module(
        self,
        *,
        model_config: dict[str, Any] = ...,
        rl_module_spec: Any = None,
        view_requirements: Mapping[str, Any] = ...,
        model_config_dict: dict[str, Any] = ...,
        algorithm_config_overrides_per_module: dict[str, dict[str, Any]] = ...,
    ) -> Self:
        """Choose the network.

        Args:
            model_config: Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a
                `DefaultModelConfig`.
            rl_module_spec: A network of your own (`RLModuleSpec`), or several (`MultiRLModuleSpec`).
            view_requirements: Columns of other steps that all modules get: name -> `View`, or its arguments.
            model_config_dict: Options of the default network, such as `{"fcnet_hiddens": [64, 64]}`, or a
                `DefaultModelConfig`.
            algorithm_config_overrides_per_module: Module id -> settings of the training that it has of its own.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def multi_agent(
        self,
        *,
        policies: Collection[str] | Mapping[str, Any] | None = None,
        policy_mapping_fn: Callable[..., str] | Mapping[Any, str] | None = None,
        policies_to_train: Callable[..., bool] | Collection[str] | None = None,
        count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps",
        episode_end: Literal["all", "any"] = "all",
        algorithm_config_overrides_per_module: dict[str, dict[str, Any]] = ...,
    ) -> Self:
        """Set which modules there are, which agents each decides for, and which of them learn.

        Args:
            policies: Module ids; or id -> None, `PolicySpec`, its fields as a dict, or `RLModuleSpec`; None: those
                of the table.
            policy_mapping_fn: A function `(agent_id, episode, **kwargs) -> module id`, or a table of agents or
                patterns (`AgentMapping`).
            policies_to_train: Ids of the modules that learn, or a function `(module_id, batch) -> bool`; None: all.
            count_steps_by: What `train_batch_size` counts.
            episode_end: Without `__all__`, an episode ends when the flags of all agents are set, or that of any
                agent.
            algorithm_config_overrides_per_module: Module id -> settings of the training that it has of its own.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def evaluation(
        self,
        *,
        evaluation_interval: int | None = None,
        evaluation_duration: int = 10,
        evaluation_duration_unit: Literal["episodes", "timesteps"] = "episodes",
        evaluation_config: dict[str, Any] = ...,
        evaluation_sets: dict[str, dict[str, Any]] = ...,
        evaluation_num_env_runners: int = 0,
        evaluation_parallel_to_training: bool = False,
        evaluation_sample_timeout_s: float | None = 120.0,
        evaluation_force_reset_envs_before_iteration: Literal[True] = True,
        offline_evaluation_interval: int = 1,
    ) -> Self:
        """Set when and how long the policy is measured apart from the training, which it does not change.

        Args:
            evaluation_interval: Iterations from one evaluation to the next; None: only when `algo.evaluate()` is
                called.
            evaluation_duration: How much is sampled for one evaluation.
            evaluation_duration_unit: What the duration counts.
            evaluation_config: Settings of `environment` and `env_runners` that differ, such as `{"explore": True}`.
            evaluation_sets: Name -> settings in which a set of environments differs from `evaluation_config`, such
                as `{"hard": {"env_config": {"level": 9}}}`. Each set is evaluated, and has its results below its
                name.
            evaluation_num_env_runners: Processes that evaluate, as Ray actors, for each set; 0: this process
                evaluates.
            evaluation_parallel_to_training: True: these processes evaluate while an iteration samples and learns,
                with the weights from before it.
            evaluation_sample_timeout_s: Seconds without a step after which one of these processes is taken to hang,
                and is replaced; None: no limit.
            evaluation_force_reset_envs_before_iteration: Must be True: each evaluation begins new episodes.
            offline_evaluation_interval: Iterations from one measurement of the losses of episodes that are
                `held_out` to the next.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def callbacks(
        self,
        callbacks_class: type[Any] | str | Sequence[type[Any] | str] | None = None,
        *,
        on_algorithm_init: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_train_result: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_evaluate_start: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_evaluate_end: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_checkpoint_loaded: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_environment_created: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_episode_created: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_episode_start: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_episode_step: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_episode_end: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        on_sample_end: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
    ) -> Self:
        """Set functions of your own that are called when something happens.

        Each is a function, its import path `module:function` (which needs `allow_imports`), or a list of these.
        The methods of `Callbacks` have their arguments.

        Args:
            callbacks_class: A subclass of `Callbacks`, or a list of them; runner and algorithm make their own
                objects.
            on_algorithm_init: The algorithm is built.
            on_train_result: An iteration has its results.
            on_evaluate_start: An evaluation begins.
            on_evaluate_end: An evaluation has its results.
            on_checkpoint_loaded: The algorithm was restored.
            on_environment_created: A runner made its environments.
            on_episode_created: An episode was made and is not reset yet.
            on_episode_start: An episode was reset.
            on_episode_step: An episode got a step.
            on_episode_end: An episode ended.
            on_sample_end: A sample is complete.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def fault_tolerance(
        self,
        *,
        restart_failed_sub_environments: bool = False,
        max_sub_environment_restarts_per_sample: int = 100,
        max_sub_environment_restarts: int | None = None,
        sub_environment_timeout_s: float | None = None,
        failed_episodes: Literal["truncate", "drop"] = "truncate",
        restart_failed_env_runners: bool = True,
        ignore_env_runner_failures: bool = False,
        max_num_env_runner_restarts: int = 1000,
        num_consecutive_env_runner_failures_tolerance: int = 100,
        env_runner_health_probe_timeout_s: float = 30.0,
        restart_failed_learners: bool = True,
        max_num_learner_restarts: int = 100,
    ) -> Self:
        """Set what happens if an environment fails: raises, breaks its contract, hangs, or loses its process.

        Args:
            restart_failed_sub_environments: True if a failed environment is made again, with a new seed, while the
                others go on; False: `sample()` raises.
            max_sub_environment_restarts_per_sample: Restarts of one environment in one call of `sample()`, which
                then raises.
            max_sub_environment_restarts: Restarts of all environments of a runner, over its lifetime; None: no
                limit.
            sub_environment_timeout_s: Seconds after which a worker process ("async") that does not answer is
                killed; None: no limit.
            failed_episodes: "truncate" ends the episode of a failed environment before the failed step, "drop"
                forgets it.
            restart_failed_env_runners: True if a process that samples is replaced when it dies or hangs; only with
                `num_env_runners`.
            ignore_env_runner_failures: True: without restarts the others go on, as long as there is one; False:
                `train()` raises.
            max_num_env_runner_restarts: Restarts of each process that samples.
            num_consecutive_env_runner_failures_tolerance: Failures in a row of one process that samples, without a
                sample between them. Unless it is set, losing each 10 times ends the run too, if none of them
                samples in between.
            env_runner_health_probe_timeout_s: Seconds in which a process must say how far it is, when its sample is
                late.
            restart_failed_learners: True if processes that learn are replaced when one dies; the update that it was
                in is made again.
            max_num_learner_restarts: Restarts of the processes that learn, which are replaced together.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def debugging(
        self,
        *,
        seed: int | None = None,
        log_level: Literal["DEBUG", "INFO", "WARN", "ERROR"] = "WARN",
        time_pieces: bool = False,
        check_first_update: Literal["warn", "error", "off"] = "warn",
    ) -> Self:
        """Set the seed, and what is logged and checked.

        Args:
            seed: Seed of environments, network and minibatches.
            log_level: Level of the logger.
            time_pieces: True if the results of each iteration have the seconds of every connector piece.
            check_first_update: What follows if a module computes something else in its first gradient step than was
                recorded while it acted.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def reporting(
        self,
        *,
        metrics_num_episodes_for_smoothing: int = 100,
        loggers: Sequence[Any] = ...,
        curve: str = "env_runners/episode_return_mean",
    ) -> Self:
        """Set over how many episodes returns are averaged, and where a run's results go.

        Args:
            metrics_num_episodes_for_smoothing: Ended episodes that `episode_return_mean` and the like are about.
            loggers: Names of `LOGGERS`, and objects with a method `log(results)`, for `epibatch train` and
                `TrainingRun`.
            curve: Result that the learning curve shows, such as `env_runners/module_episode_returns_mean/main`.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def checkpointing(
        self,
        *,
        checkpoint_frequency: int = 0,
        checkpoint_interval_s: float | None = 60.0,
        num_to_keep: int | None = 2,
        checkpoint_score_attribute: str | None = None,
        checkpoint_score_order: Literal["max", "min"] = "max",
        end_episodes: bool = False,
    ) -> Self:
        """Set when `epibatch train` saves while it runs, and how many checkpoints it keeps.

        Args:
            checkpoint_frequency: Iterations between two saves; 0: none for that reason.
            checkpoint_interval_s: Seconds between two saves; None: none for that reason.
            num_to_keep: Newest checkpoints that are kept; None: all.
            checkpoint_score_attribute: Result, such as `evaluation/env_runners/episode_return_mean`, by which the
                best checkpoint is kept too, as `checkpoints/best`; None: no best one.
            checkpoint_score_order: "min": the lowest value is the best.
            end_episodes: True if a save ends the running episodes, so that a resumed run goes on bit for bit like
                this one.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    def stopping(
        self,
        *,
        episode_return_mean: float | None = None,
        evaluation_return_mean: float | None = None,
        results: dict[str, float] = ...,
        num_env_steps_sampled_lifetime: int | None = None,
        training_iteration: int | None = None,
        time_total_s: float | None = None,
    ) -> Self:
        """Set when `epibatch train` stops: goals to reach, and limits on the way to them.

        Args:
            episode_return_mean: Goal: mean return of the latest episodes.
            evaluation_return_mean: Goal: mean return of an evaluation.
            results: Goals: result -> value that it has to reach or exceed, such as
                `{"env_runners/module_episode_returns_mean/main": 100}`; a result that has to fall can be no goal.
            num_env_steps_sampled_lifetime: Limit of environment steps.
            training_iteration: Limit of iterations.
            time_total_s: Limit of seconds.

        Raises:
            ConfigError: unknown settings or values that do not fit, all of them in one message.
        """
    algorithm: str
    env: str | type[Any] | Callable[..., Any] | None
    env_config: dict[str, Any]
    wrappers: Sequence[str | Mapping[str, Any] | Callable[..., Any]]
    observation_space: gym.Space[Any] | None
    action_space: gym.Space[Any] | None
    normalize_actions: bool
    clip_actions: bool
    num_env_runners: int
    num_cpus_per_env_runner: float
    num_gpus_per_env_runner: float
    custom_resources_per_env_runner: dict[str, float]
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] | None
    sample_timeout_s: float | None
    max_requests_in_flight_per_env_runner: int
    max_bytes_in_flight: int | None
    sample_while_learning: bool
    merge_env_runner_states: Literal["training_only"] | bool
    broadcast_env_runner_states: bool
    env_runner_cls: type[Any] | str | None
    num_envs_per_env_runner: int
    gym_env_vectorize_mode: Literal["sync", "async", "vector_entry_point"]
    num_envs_per_worker: int
    gym_env_batch_size: int | None
    gym_env_autoreset_mode: Literal["next_step", "same_step", "disabled"] | None
    env_resets_itself: bool
    missing_final_obs: float | Literal["nan", "zero", "keep"] | None
    add_default_connectors_to_env_to_module_pipeline: bool
    add_default_connectors_to_module_to_env_pipeline: bool
    rollout_fragment_length: int | Literal["auto"]
    batch_mode: Literal["truncate_episodes", "complete_episodes"]
    keep_running_episodes: bool
    horizon: int | None
    soft_horizon: bool
    no_done_at_end: bool
    random_first_horizon: int | None
    explore: bool
    episode_lookback_horizon: int
    env_to_module_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None
    module_to_env_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None
    update_worker_filter_stats: bool
    num_learners: int
    num_cpus_per_learner: float | Literal["auto"]
    num_gpus_per_learner: float
    num_aggregator_actors_per_learner: int
    device: str | Any
    add_default_connectors_to_learner_pipeline: bool
    columns: Literal["all", "auto"]
    learner_connector: Callable[..., Any] | Sequence[str | Mapping[str, Any]] | None
    num_aggregator_actors: int
    lr: float | Sequence[Sequence[float]]
    gamma: float
    train_batch_size: int
    minibatch_size: int | None
    num_epochs: int
    shuffle_batch_per_epoch: bool
    optimizer: str | Mapping[str, Any] | Callable[..., Any]
    grad_clip: float | None
    grad_clip_by: Literal["global_norm", "norm", "value"]
    loss: Callable[..., Any] | str | None
    train_batch_size_per_learner: int
    input_: Any
    output: str | None
    held_out: float
    input: Any
    model_config: dict[str, Any]
    rl_module_spec: Any
    view_requirements: Mapping[str, Any]
    model_config_dict: dict[str, Any]
    algorithm_config_overrides_per_module: dict[str, dict[str, Any]]
    policies_to_train: Callable[..., bool] | Collection[str] | None
    count_steps_by: Literal["env_steps", "agent_steps"]
    episode_end: Literal["all", "any"]
    evaluation_interval: int | None
    evaluation_duration: int
    evaluation_duration_unit: Literal["episodes", "timesteps"]
    evaluation_config: dict[str, Any]
    evaluation_sets: dict[str, dict[str, Any]]
    evaluation_num_env_runners: int
    evaluation_parallel_to_training: bool
    evaluation_sample_timeout_s: float | None
    evaluation_force_reset_envs_before_iteration: Literal[True]
    offline_evaluation_interval: int
    callbacks_class: type[Any] | str | Sequence[type[Any] | str] | None
    on_algorithm_init: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_train_result: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_evaluate_start: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_evaluate_end: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_checkpoint_loaded: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_environment_created: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_episode_created: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_episode_start: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_episode_step: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_episode_end: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    on_sample_end: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None
    restart_failed_sub_environments: bool
    max_sub_environment_restarts_per_sample: int
    max_sub_environment_restarts: int | None
    sub_environment_timeout_s: float | None
    failed_episodes: Literal["truncate", "drop"]
    restart_failed_env_runners: bool
    ignore_env_runner_failures: bool
    max_num_env_runner_restarts: int
    num_consecutive_env_runner_failures_tolerance: int
    env_runner_health_probe_timeout_s: float
    restart_failed_learners: bool
    max_num_learner_restarts: int
    seed: int | None
    log_level: Literal["DEBUG", "INFO", "WARN", "ERROR"]
    time_pieces: bool
    check_first_update: Literal["warn", "error", "off"]
    metrics_num_episodes_for_smoothing: int
    loggers: Sequence[Any]
    curve: str
    checkpoint_frequency: int
    checkpoint_interval_s: float | None
    num_to_keep: int | None
    checkpoint_score_attribute: str | None
    checkpoint_score_order: Literal["max", "min"]
    end_episodes: bool
    episode_return_mean: float | None
    evaluation_return_mean: float | None
    results: dict[str, float]
    num_env_steps_sampled_lifetime: int | None
    training_iteration: int | None
    time_total_s: float | None
