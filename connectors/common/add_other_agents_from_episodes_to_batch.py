"""Adds what the other agents saw at the same env step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError

from .._engine.agent_table import AllAgentsPiece, check_agent_ids
from .._engine.call import PipelineCall
from .._engine.columns import Batch
from ..views.other_agents import OtherAgents
from ..views.view import View

__all__ = ["AddOtherAgentsFromEpisodesToBatch"]


class AddOtherAgentsFromEpisodesToBatch(AllAgentsPiece):
    """Adds `other_obs`: for each row of an agent's the other agents' observations at its env step.

    It is what a centralised critic sees beside `obs` (Lowe et al. 2017, "Multi-agent actor-critic for mixed
    cooperative-competitive environments"; Yu et al. 2022, MAPPO). With A possible agents `other_obs` is [rows, A - 1,
    ...], the others in their fixed order, and `other_obs_mask` [rows, A - 1] says which of them observed at that very
    env step. Agents that did not (they have ended, come later, or it is not their turn) are zeros; one that ends
    without a last observation is seen with the one before again. Bootstrap rows have those at the env step of the
    agent's last observation. With `actions`, in training, `other_actions` and `other_actions_mask` are added in the
    same way: what the others did on those observations, as far as they did it before the chunk's end.

    Observations are those of the episodes: pieces that rewrite them come first when acting, and what a piece puts
    into the column `obs` only is not seen. So the columns are the same in acting and in training, and wherever
    episodes are cut: a chunk holds all that is needed (a step that was under way at the cut included), and no
    lookback is asked for.

    Args:
        input_observation_space: Dict of the agents' observation spaces, all of one shape (see `PadObservations`).
        input_action_space: Dict of the agents' action spaces.
        agent_ids: All agents that can be there, in the order that is kept; default: those of the observation spaces.
        actions: Whether to add the others' actions; for training.
        as_learner_connector: Whether the batch is for training; default: if it has actions.

    Raises:
        ConfigError: `agent_ids` is no list of agents that differ, or `actions` for acting.
        SpaceError: nothing says which agents there are.
        UnknownNameError: an agent that is not among them.
        ColumnError: agents' observations (or actions) differ in shape or nesting, or are no numbers.
        BatchLayoutError: episodes of one agent each.

    Examples:
        >>> from epibatch.episodes import MultiAgentEpisode
        >>> episode = MultiAgentEpisode(id_="e")
        >>> episode.add_env_reset(observations={"a": [1.0], "b": [2.0]})
        >>> episode.add_env_step({"a": [3.0]}, {"a": 0, "b": 0}, {"a": 0.0})
        >>> episode.add_env_step({"a": [5.0], "b": [6.0]}, {"a": 0}, {"a": 0.0, "b": 0.0})
        >>> piece = AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "b"], as_learner_connector=True)
        >>> batch = piece(batch={}, episodes=[episode])
        >>> key = ("e", "a", "default_policy")
        >>> batch["other_obs"][key][0].tolist(), batch["other_obs_mask"][key][0].tolist()
        ([[[2.0]], [[0.0]]], [[True], [False]])
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    writes: ClassVar[tuple[str, ...]] = ("other_obs", "other_obs_mask")
    multi_agent: bool = False
    agent_ids: Sequence[Any] | None = None
    actions: bool = False
    as_learner_connector: bool | None = None

    def __post_init__(self) -> None:
        """Check the arguments, and make the views of the columns."""
        if self.as_learner_connector is None:
            self.as_learner_connector = self.actions
        self._check_side()
        self.agent_ids = check_agent_ids(self, self.agent_ids)
        names = (Columns.OBS, Columns.ACTIONS) if self.actions else (Columns.OBS,)
        self._views = {f"other_{name}": View(name, agent="*") for name in names}
        self.writes = tuple(column for name in self._views for column in (name, f"{name}_mask"))  # type: ignore[misc]

    def take_side(self, training: bool) -> None:
        """See `ConnectorV2.take_side`."""
        super().take_side(training)
        self._check_side()

    def _check_side(self) -> None:
        if self.actions and not self.as_learner_connector:
            raise ConfigError(
                "AddOtherAgentsFromEpisodesToBatch.actions",
                expected="the learner's side",
                found="a piece for acting, before the agents have acted",
                do="leave actions=True out in the env-to-module pipeline",
            )

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Add the columns to every module's batch."""
        if not call.several:
            return super().run_all(batch, call)
        if not call.groups:
            return batch
        others = OtherAgents(self, call)
        for key, group in call.groups.items():
            for name, view in self._views.items():
                others.add(batch.groups.setdefault(key, {}), group, name, view)
        return batch
