"""`AlgorithmConfig`: settings of a training run, and what is built from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym

from epibatch.core.errors import NotAvailableError

from .evaluation_config import EVALUATED, note_overrides
from .fluent_settings import FluentSettings
from .module_specs import burns_in
from .module_views import module_views
from .multi_agent_config import check_agents, module_spaces, specs_by_module
from .pipelines import add_burn_in, single_spaces, user_pieces
from .settings import Problems

if TYPE_CHECKING:
    from ..connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
    from ..connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
    from .algorithm import Algorithm

__all__ = ["AlgorithmConfig"]

ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")


class AlgorithmConfig(FluentSettings):
    """Settings of a training run, and builders of its pipelines, network and Algorithm.

    Use the config of an algorithm, such as `PPOConfig`.
    """

    # ------------------------------------------------------------------------------------ building

    def build_env_to_module_connector(
        self, env: Any = None, spaces: Mapping[str, Any] | None = None, device: Any = None
    ) -> EnvToModulePipeline:
        """Build the pipeline from episodes to the module's input.

        Args:
            env: the (vector) environment, passed to the hook.
            spaces: `{"__env__": (obs, act), "__env_single__": (obs, act)}`; taken from `env` if left out.
            device: torch device of the tensors; default: the config's.
        """
        from ..connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline, default_pipeline

        device = device or self.other_device
        pieces = self.user_pieces("env_to_module", (env, spaces, device), env)
        observation, action = self._single_spaces(spaces, env)
        if self.is_multi_agent and isinstance(observation, gym.spaces.Dict):
            check_agents(self.policy_mapping_fn, observation.spaces, self._module_ids())
        if not self.add_default_connectors_to_env_to_module_pipeline:
            return EnvToModulePipeline(observation, action, connectors=pieces)
        views, per_module = module_views(self)
        return default_pipeline(
            observation,
            action,
            connectors=pieces,
            device=device,
            views=views,
            views_per_module=per_module,
            **self._agents(),
        )

    def build_module_to_env_connector(
        self, env: Any = None, spaces: Mapping[str, Any] | None = None
    ) -> ModuleToEnvPipeline:
        """Build the pipeline from the module's output to the environments' actions; arguments as above."""
        from ..connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline, default_pipeline

        pieces = self.user_pieces("module_to_env", (env, spaces), env)
        observation, action = self._single_spaces(spaces, env)
        if not self.add_default_connectors_to_module_to_env_pipeline:
            return ModuleToEnvPipeline(observation, action, connectors=pieces)
        return default_pipeline(
            observation,
            action,
            connectors=pieces,
            normalize_actions=self.normalize_actions,
            clip_actions=self.clip_actions,
            **self._agents(),
        )

    def build_learner_connector(
        self, input_observation_space: Any = None, input_action_space: Any = None, device: Any = None, env: Any = None
    ) -> LearnerConnectorPipeline:
        """Build the pipeline from episodes to a train batch, without what the algorithm itself adds.

        Args:
            input_observation_space: space of the episodes' observations: one environment's, as changed by
                env-to-module pieces that rewrite them.
            input_action_space: one environment's action space.
            device: torch device of the tensors; default: the config's.
            env: passed to a hook with a single parameter.
        """
        from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline, default_pipeline

        pieces = self.user_pieces("learner", (input_observation_space, input_action_space), env)
        spaces = (input_observation_space, input_action_space)
        if not self.add_default_connectors_to_learner_pipeline:
            return LearnerConnectorPipeline(*spaces, connectors=pieces)
        views, per_module = module_views(self)
        return default_pipeline(
            *spaces,
            connectors=pieces,
            advantages=False,
            burn_in=burns_in(self._model_configs()),
            device=device or self.other_device,
            views=views,
            views_per_module=per_module,
            **self._agents(),
        )

    def update_views(self, pipeline: Any) -> None:
        """Let a pipeline for this config have the views that its modules declare; unless its default pieces are off."""
        name = "learner" if pipeline.training else "env_to_module"
        if not getattr(self, f"add_default_connectors_to_{name}_pipeline"):
            return
        views, per_module = module_views(self)
        if views or per_module or any(getattr(piece, "declared", False) for piece in pipeline):
            from ..connectors.views.declared_views import declare_views

            declare_views(pipeline, views, per_module)

    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Put the algorithm's own pieces into a learner pipeline; none here."""

    def update_modules(self, pipeline: Any) -> None:
        """Let a pipeline that was built know the modules of this config, which have changed."""
        from ..connectors.common.agent_to_module_mapping import AgentToModuleMapping

        agents = self._agents()
        for place, piece in enumerate(pipeline.connectors):
            if agents and type(piece) is AgentToModuleMapping:  # a subclass is the user's
                training = piece.get_ctor_args_and_kwargs()[1].get("as_learner_connector", False)
                pipeline.connectors[place] = AgentToModuleMapping(**agents, as_learner_connector=training)
        if "numpy_to_tensor" in pipeline.names and pipeline.training and burns_in(self._model_configs()):
            add_burn_in(pipeline)
        self.update_views(pipeline)
        pipeline.plan()

    def user_pieces(self, name: str, arguments: tuple[Any, ...], env: Any) -> list[Any]:
        """The user's pieces of one pipeline (env_to_module, module_to_env, learner), newly made."""
        return user_pieces(name, self._pipelines[name], arguments, env, allow_imports=self._allow_imports)

    def _module_spaces(self, observation: Any, action: Any) -> dict[str, tuple[Any, Any]]:
        """Module id -> the spaces that follow from those of the agents; one space is that of all."""
        agents = self._agents()
        if agents:
            from ..connectors.common.agent_to_module_mapping import AgentToModuleMapping

            piece = AgentToModuleMapping(**agents)
            piece.input_observation_space, piece.input_action_space = observation, action
            observation, action = piece.observation_space, piece.action_space

        def of(space: Any, module_id: str) -> Any:
            several = bool(agents) and isinstance(space, gym.spaces.Dict)
            return space.spaces.get(module_id) if several else space

        return {each: (of(observation, each), of(action, each)) for each in self._module_ids()}

    def _model_configs(self) -> list[Any]:
        """Every model_config that a module may have parts of."""
        specs = [self.rl_module_spec, *specs_by_module(self._settings).values()]
        own = [getattr(spec, "model_config", None) for spec in specs]
        return [self.model_config, *own, *(policy.model_config for policy in self.policies.values())]

    def _module_ids(self) -> list[str]:
        return list(module_spaces(self._settings))

    def _agents(self) -> dict[str, Any]:
        """Arguments of default pipelines for several agents; empty if there is one agent."""
        if not self.is_multi_agent:
            return {}
        return {
            "rl_module_specs": module_spaces(self._settings),
            "agent_to_module_mapping_fn": self.policy_mapping_fn,
        }

    def _single_spaces(self, spaces: Mapping[str, Any] | None, env: Any) -> tuple[Any, Any]:
        return single_spaces(spaces, env, (self.observation_space, self.action_space))

    def get_rl_module_spec(self, env: Any = None, spaces: Mapping[str, Any] | None = None) -> Any:
        """The network's spec: the user's, or the default one for the spaces; of several modules if there are several.

        Args:
            env: the (vector) environment, asked for its spaces if there are no `spaces`.
            spaces: as for the pipelines, and under `default_policy` the env-to-module pipeline's output
                observation space with the action space.
        """
        if self.is_multi_agent:
            return self.get_multi_rl_module_spec(env=env, spaces=spaces)
        from .module_specs import module_spec_for

        found = None if spaces is None else spaces.get("default_policy")
        observation, action = self._single_spaces(spaces, env) if found is None else found
        return module_spec_for(self.rl_module_spec, observation, action, self.model_config)

    def get_multi_rl_module_spec(
        self, *, env: Any = None, spaces: Mapping[str, Any] | None = None, inference_only: bool = False
    ) -> Any:
        """The spec of all modules, each with its spaces and settings.

        Args:
            env: the (vector) environment, asked for its agents' spaces if there are no `spaces`.
            spaces: module id -> the env-to-module pipeline's output observation space and the action space; or as for
                the pipelines. What is missing follows from the agents' spaces and the mapping.
            inference_only: build for acting only, without modules that only learners need.

        Raises:
            ConfigError: a module has no spaces.
            SpaceError: the agents of a module have different spaces.
        """
        from .module_specs import multi_module_spec

        found = dict(spaces or {})
        policies = self.policies
        if not all(each in found for each in self._module_ids()):
            environment = found if "__env_single__" in found else None
            found = {**self._module_spaces(*self._single_spaces(environment, env)), **found}
        return multi_module_spec(self.rl_module_spec, policies, found, self.model_config, inference_only)

    def build_algo(self) -> Algorithm:
        """Build environment, pipelines, module and learner.

        Raises:
            ConfigError: the config has no environment, or its settings contradict each other.
        """
        raise NotAvailableError(
            f"{type(self).__name__}.build_algo",
            expected="the config of an algorithm",
            found="the general config",
            do="use PPOConfig",
        )

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """Settings for `evaluation_config` or `algorithm_config_overrides_per_module`, checked at once.

        Args:
            **settings: of the sections `environment` and `env_runners`, or of `training`.

        Raises:
            ConfigError: unknown settings, those of other sections, or unfitting values.

        Example:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> PPOConfig().evaluation(evaluation_config=PPOConfig.overrides(explore=True)).evaluation_config
            {'explore': True}
        """
        problems = Problems()
        note_overrides(settings, cls, problems, path="", sections=(*EVALUATED, "training"))
        problems.raise_if_any(f"{cls.__name__}.overrides")
        return settings

    # --------------------------------------------------------------------------------------- files

    @classmethod
    def from_dict(cls: type[ConfigT], data: Mapping[str, Any], *, allow_imports: bool = False) -> ConfigT:
        """Read a config from nested dicts, the form that `to_dict` gives.

        Args:
            data: sections (`environment`, `env_runners`, `learners`, `training`, `rl_module`, `debugging`,
                `reporting`, `checkpointing`, `stop`), the pipelines `env_to_module`, `module_to_env`, `learner` as
                lists of piece specs, and `algorithm`.
            allow_imports: whether pieces and environments may be named by import path; importing runs code.

        Raises:
            ConfigError: everything that is wrong, each with its path.

        Example:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> PPOConfig.from_dict({"environment": {"env": "CartPole-v1"}, "training": {"lr": 0.01}}).lr
            0.01
        """
        from .config_files import config_from_dict

        return config_from_dict(cls, data, allow_imports=allow_imports)

    def to_dict(self) -> dict[str, Any]:
        """The config as nested dicts of plain data.

        Raises:
            ConfigError: something in it is code (a function, a class, a space); each is named.
        """
        from .config_files import config_to_dict

        return config_to_dict(self)

    @classmethod
    def from_yaml(cls: type[ConfigT], source: str | Path, *, allow_imports: bool = False) -> ConfigT:
        """Read a config from YAML.

        Args:
            source: a path, or the text itself.
            allow_imports: as in `from_dict`.
        """
        from .config_files import config_from_dict
        from .config_io import read_yaml, yaml_name

        data, name = read_yaml(source), yaml_name(source)
        return config_from_dict(cls, data, allow_imports=allow_imports, where=f"{cls.__name__} from {name}")

    def to_yaml(self) -> str:
        """The config as YAML text; `from_yaml` reads it back."""
        from .config_io import to_yaml_text

        return to_yaml_text(self.to_dict())
