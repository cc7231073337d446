"""Train batches of several modules are the same rows wherever episodes were cut, with the same recurrent states.

Only an agent that ends without another step, in a later chunk than its last step, is not known to have ended there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from fixture_cases import random_examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    AgentToModuleMapping,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec, TorchRLModule
from epibatch.episodes import MultiAgentEpisode
from oracle.agents import Schedule, schedules
from oracle.teams import ACTIONS, SPACES, STATE, fitted, keywords, module_of

INITIAL = -7.0


class Module(TorchRLModule):
    """A module with a state of some entries, or none."""

    def setup(self) -> None:
        pass

    def get_initial_state(self) -> Any:
        size = self.model_config["state"]
        return {"h": np.full(size, INITIAL, np.float32)} if size else {}

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {}


AGENT_OF = {module_of(agent): agent for agent in SPACES}
MODULES = MultiRLModule(
    rl_module_specs={
        name: RLModuleSpec(
            module_class=Module,
            observation_space=SPACES[AGENT_OF[name]],
            action_space=ACTIONS,
            model_config={"state": state, "max_seq_len": 3},
        )
        for name, state in STATE.items()
    }
)


def chunks_of(schedule: Schedule, cuts: list[bool]) -> list[MultiAgentEpisode]:
    """The episode in the chunks that the cuts leave; each keeps one step of each agent's own."""
    episode = MultiAgentEpisode(id_="e", **keywords())
    episode.add_env_reset(**schedule.reset)
    chunks = [episode]
    for step, cut in zip(schedule.steps, [*cuts, *[False] * len(schedule.steps)]):
        if cut:
            chunks.append(chunks[-1].cut(agent_steps=1))
        chunks[-1].add_env_step(**step)
    return chunks


def train_rows(episodes: list[MultiAgentEpisode]) -> tuple[dict[str, Any], dict[float, Any]]:
    """Unmasked rows by module, sorted by their observations, which differ; and the state each sequence starts with."""
    pieces = [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        AddStatesFromEpisodesToBatch(as_learner_connector=True),
        AgentToModuleMapping(as_learner_connector=True),
        BatchIndividualItems(),
    ]
    spaces = keywords()
    pipeline = LearnerConnectorPipeline(spaces["observation_space"], spaces["action_space"], connectors=pieces)
    rows: dict[str, Any] = {}
    states: dict[float, Any] = {}
    for name, columns in pipeline(rl_module=MODULES, episodes=episodes, batch={}).items():
        starts = columns.pop("state_in", None)
        mask = columns.pop("loss_mask", None)
        columns.pop("seq_lens", None)
        if starts is not None:
            states.update(zip(columns["obs"][:, 0, 0].tolist(), starts["h"].tolist()))
        flat = columns if mask is None else {key: column[mask] for key, column in columns.items()}
        order = np.argsort(flat["obs"][:, 0])
        rows[name] = {key: column[order] for key, column in flat.items()}
    return rows, states


ENDS = ("terminateds", "truncateds")


def ends_behind_a_cut(whole: MultiAgentEpisode, parts: list[MultiAgentEpisode]) -> list[float]:
    """First entries of the observations at which agents acted last that ended later on, without a step, behind a cut.

    Nobody can know at the cut that the step was their last: their flags look ahead.
    """
    starts = [chunk.env_t_started for chunk in parts[1:]]
    late = []
    for segment in whole.segments:
        end, last = segment.ended_at, segment.steps[-1]
        if end is not None and len(segment.episode) and any(last <= start < end for start in starts):
            late.append(float(segment.episode.get_observations(-2)[0]))
    return late


@given(schedule=schedules(agents=4, length=12).map(fitted), cuts=st.lists(st.booleans(), max_size=12))
@settings(max_examples=random_examples(30), deadline=None, suppress_health_check=list(HealthCheck))
def test_cut_or_not_the_rows_are_the_same(schedule: Schedule, cuts: list[bool]) -> None:
    whole, parts = chunks_of(schedule, []), chunks_of(schedule, cuts)
    if not any(len(segment.episode) for segment in whole[0].segments):
        return
    expected, _ = train_rows(whole)
    found, states = train_rows(parts)
    assert found.keys() == expected.keys()
    late = ends_behind_a_cut(whole[0], parts)
    for name, columns in expected.items():
        assert found[name].keys() == columns.keys()
        known = ~np.isin(columns["obs"][:, 0], late)
        for key, column in columns.items():
            rows, own = (column, found[name][key]) if key not in ENDS else (column[known], found[name][key][known])
            assert own.dtype == rows.dtype
            assert np.array_equal(own, rows), (name, key)
    before = {}
    for segment in whole[0].segments:
        if STATE[module_of(segment.agent_id)] and len(segment.episode):
            recorded = segment.episode.get_extra_model_outputs("state_out")["h"].tolist()
            first_entries = segment.episode.get_observations()[:-1, 0].tolist()
            before.update(zip(first_entries, [[INITIAL] * 2, *recorded]))
    assert all(before[first] == state for first, state in states.items())
    assert bool(states) == bool(before)
