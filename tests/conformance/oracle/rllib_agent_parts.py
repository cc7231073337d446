"""Parts of episodes of several agents: in which situations RLlib's are others than the slow model says, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oracle.agent_content import agent_map
from oracle.compare import Mismatch, Outcome
from oracle.differences import difference
from oracle.rllib_episode import built, holds
from oracle.slow_episode import SlowEpisode

BY_AGENT = ("agents", "maps", "modules", "pending actions", "pending outputs", "rewards since")
MISSING = "missing"


@dataclass(frozen=True)
class PartOfAgents:
    """An operation that gives a part of an episode, or puts two parts together.

    Attributes:
        name: `cut`, `slice`, `join` or `state`.
        before: the episode.
        after: what comes of it.
        k: lookback asked for.
        span: bounds of a slice, counted from the episode's start.
        right: the chunk that is put behind.
    """

    name: str
    before: SlowEpisode = field(repr=False)
    after: SlowEpisode = field(repr=False)
    k: int = 0
    span: tuple[int, int] = (0, 0)
    right: SlowEpisode | None = field(default=None, repr=False)

    @property
    def waiting(self) -> dict[str, Any]:
        """Lives of agents that observed, and did not act on it at once."""
        return {
            agent: lives[-1]
            for agent, lives in self.before.lives.items()
            if lives[-1]["ended"] is None and agent not in self.before.open and lives[-1]["at"][-1] < self.before.t
        }

    def pending(self) -> dict[str, float]:
        """Sums of rewards that wait for agents that observed before."""
        rewards = self.before.rewards.items()
        return {agent: reward for agent, reward in rewards if reward and agent in self.before.lives}

    def unborn(self, slow: SlowEpisode) -> dict[str, float]:
        """Rewards of agents that did not observe yet."""
        return {agent: reward for agent, reward in slow.rewards.items() if reward and agent not in slow.lives}

    @property
    def reach(self) -> int:
        """The lookback of RLlib's cut: it goes back from the first env step asked for to one in which the agent saw."""
        slow, reach = self.before, self.k
        for agent in slow.open:
            row = agent_map(slow, agent, 1)
            for i in range(self.k, len(row) + 1):
                at = slow.lookback if i == 0 else len(row) - i  # RLlib's index 0 is the chunk's first env step
                if row[at] != "S":
                    reach = max(reach, i - 1)
                    break
        return reach

    def seen(self, life: dict[str, Any], reach: int) -> int:
        """How many of a life's rows a cut with this lookback has."""
        return sum(at >= self.before.t - reach for at in life["at"])


def held(part: SlowEpisode) -> dict[str, Any]:
    """What RLlib's episode has to hold."""
    return holds(built(part, {}))


def each_section(theirs: dict[str, Any], ours: dict[str, Any]) -> list[Mismatch]:
    """Mismatches by section, and by agent where a section goes by agent; what is not there is `MISSING`."""
    found = []
    for name in ours:
        if name not in BY_AGENT:
            pairs: list[tuple[tuple[Any, ...], Any, Any]] = [((name,), theirs[name], ours[name])]
        else:
            agents = sorted({*theirs[name], *ours[name]})
            pairs = [((name, a), theirs[name].get(a, MISSING), ours[name].get(a, MISSING)) for a in agents]
        found += [Mismatch(path, "value", a, b) for path, a, b in pairs if a != b]
    return found


def explains(identity: str, *names: str) -> Callable[[Any], Any]:
    """An explanation for operations of these names; it gets operation, section, agent or None, and both sides."""

    def decorate(function: Callable[..., bool]) -> Callable[..., bool]:
        @difference(identity, PartOfAgents)
        def explanation(operation: PartOfAgents, mismatch: Mismatch) -> bool:
            if operation.name not in names:
                return False
            section, agent = (*mismatch.path, None, None)[:2] if mismatch.kind != "error" else ("error", None)
            return function(operation, section, agent, mismatch.theirs, mismatch.ours)

        return function

    return decorate


def _kind(theirs: Any) -> str:
    return Outcome(error=theirs).kind if isinstance(theirs, Exception) else ""


# -- cuts ----------------------------------------------------------------------------------------


@explains("O15", "cut")
def rewards_before_are_lost(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    if section == "rewards before":
        return theirs == op.pending() and ours == op.unborn(op.before) != {}
    life = op.before.living(agent) if agent else None
    new = life is not None and agent not in op.before.open and life["at"] == [op.before.t]
    return section == "rewards since" and theirs == MISSING and new


@explains("O16", "cut")
def pending_rewards_are_doubled(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    if section == "rewards before":
        return theirs == op.pending() != {} and ours == op.unborn(op.before) == {}
    if agent in op.before.open and op.seen(op.before.lives[agent][-1], op.reach) == 0:
        return theirs == MISSING
    return False


@explains("O56", "cut")
def waiting_agents_end(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    life = op.waiting.get(agent)
    if life is None:
        return False
    if section == "rewards since" or op.seen(life, op.reach) < 2:
        return theirs == MISSING
    if section == "agents":
        return theirs["flags"] == [True, False] and ours["flags"] == [False, False]
    newest = [step for step in ours[0] if step != "S"][-1:]  # the map stops there: the agent has ended
    return section == "maps" and theirs[1] == op.reach and theirs[0][-1:] == newest


@explains("cut-ended", "cut")
def ended_agents_go_along(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    lives = op.before.lives.get(agent)
    if lives is None or lives[-1]["ended"] is None or ours != MISSING or op.seen(lives[-1], op.reach) < 2:
        return False
    return section in ("maps", "modules") or (section == "agents" and theirs["flags"] == list(lives[-1]["flags"]))


@explains("cut-lookback", "cut")
def env_steps_that_are_not_there(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    """RLlib's lookback is what was asked for, or longer or shorter than it has to be for pending actions."""
    if op.reach == op.after.lookback or theirs == MISSING or ours == MISSING:
        return False
    if section == "maps":
        there = min(op.reach, op.after.lookback) + 1
        return theirs[1] == op.reach and ours[1] == op.after.lookback and theirs[0][-there:] == ours[0][-there:]
    if section == "agents":
        names = ("flags", "t_started")
        rows = theirs["rows"]["observations"], ours["rows"]["observations"]
        there = min(map(len, rows))
        return rows[0][-there:] == rows[1][-there:] and all(theirs[name] == ours[name] for name in names)
    return False


# -- joining -------------------------------------------------------------------------------------


@explains("O55", "join")
def outputs_behind_no_step(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    assert op.right is not None
    return _kind(theirs) == "AssertionError" and any(
        op.before.living(agent) and not lives[-1]["actions"] and op.right.lives[agent][0]["actions"]
        for agent, lives in op.before.lives.items()
        if op.before.living(agent)
    )


@explains("O56", "join")
def a_newcomer_that_waits(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    right = op.right
    assert right is not None
    new = [one for one in right.lives if one not in op.before.lives and one in right.rewards]
    return _kind(theirs) == "KeyError" and any(one not in right.open for one in new)


@explains("O16", "join")
def pending_values_stay(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    """What was pending on the left stays where nothing is pending on the right."""
    right = op.right
    assert right is not None
    if agent is None or agent in right.open or agent not in op.before.lives:
        return False
    if section == "rewards since":
        return theirs == op.before.rewards.get(agent, MISSING) or (theirs == MISSING and agent in right.rewards)
    if section == "pending actions":
        return agent in op.before.open and theirs == op.before.open[agent]["action"] and ours == MISSING
    return section == "pending outputs" and agent in op.before.open and ours == MISSING


@explains("O15", "join")
def rewards_of_the_unborn_stay(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    return section == "rewards before" and theirs == op.unborn(op.before)


@explains("ended-both-ways", "join")
def one_flag_is_dropped(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    if section == "agents" and MISSING not in (theirs, ours):
        return {**theirs, "flags": [True, True]} == ours and theirs["flags"] == [True, False]
    return section == "ends" and (theirs, ours) == ([True, False], [True, True])


@explains("O53", "join")
def newcomers_have_short_maps(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    """RLlib takes the map as it is on the right, where it begins with its lookback; those of ended ones stay short."""
    right = op.right
    assert right is not None
    if section != "maps" or (agent in right.lives) == (agent in op.before.lives):
        return False
    side = right if agent in right.lives else op.before
    return theirs == [agent_map(side, agent, 1), side.lookback]


@explains("agents-return", "join")
def later_lives_are_left_out(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    right, lives = op.right, op.before.lives.get(agent)
    assert right is not None
    if section == "error":
        returned = any(op.before.living(one) and len(right.lives[one]) > 1 for one in right.lives)
        return _kind(theirs) == "AssertionError" and returned
    if lives is None or lives[-1]["ended"] is None or agent not in right.lives:
        return False
    return theirs == held(op.before)[section].get(agent, MISSING)


# -- states --------------------------------------------------------------------------------------


@explains("state-no-steps", "state")
def outputs_without_rows(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    lives = [held_[-1] for held_ in op.before.lives.values()]
    return _kind(theirs) == "AssertionError" and any(
        life["actions"] and len(life["actions"]) == op.before.kept(life) for life in lives
    )


# -- slices --------------------------------------------------------------------------------------


def regular(op: PartOfAgents, agent: str) -> bool:
    """Whether RLlib slices an agent as it should: one that observes at the start, and acts on all it observes."""
    slow, (low, high) = op.before, op.span
    begin, end = slow.start + low, slow.start + high
    (life, *more) = slow.lives[agent]
    if more or life["skipped"] or slow.start != slow.lookback or begin not in life["at"]:
        return False
    if life["ended"] is not None and min(life["ended"], life["at"][-1]) <= end:
        return False
    newest = max(i for i, at in enumerate(life["at"]) if at <= end)
    acted = newest < len(life["actions"]) or agent in slow.open
    return (acted or life["at"][newest] == end) and _their_lookback(op) == op.after.lookback


def _their_lookback(op: PartOfAgents) -> int:
    """RLlib counts the first agent's own steps as env steps there are."""
    start, kept = op.span[0], next(op.before.kept(lives[-1]) for lives in op.before.lives.values())
    return kept + start if op.k > start and kept < op.k - start else op.k


def _their_ends(op: PartOfAgents) -> list[bool]:
    """RLlib's slice is done if each agent's last observation is at its stop, and by the same flag."""
    slow, flags = op.before, []
    for agent, lives in slow.lives.items():
        life, row = lives[-1], agent_map(slow, agent, 1)
        step = row[slow.lookback + op.span[1]]
        there = step != "S" and step == len(life["actions"]) - slow.kept(life)
        flags.append(life["flags"] if there else (False, False))
    return [all(terminated for terminated, _ in flags), all(truncated for _, truncated in flags)]


@explains("O18", "slice")
def infos_and_custom_data_are_lost(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    if section == "custom data":
        return theirs == {} and ours == op.before.custom
    if section != "agents" or MISSING in (theirs, ours) or not regular(op, agent):
        return False
    without = {**ours["rows"], "infos": [{}] * len(ours["rows"]["infos"])}
    return theirs == {**ours, "rows": without}


@explains("O15", "slice")
def slices_lose_rewards_before(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    return section == "rewards before" and theirs == {} and ours == op.unborn(op.after)


@explains("O56", "slice")
def slices_lose_rewards_of_waiting_agents(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    return section == "rewards since" and agent not in op.after.open and theirs == MISSING


@explains("agent-slices", "slice")
def agents_are_not_regular(op: PartOfAgents, section: str, agent: Any, theirs: Any, ours: Any) -> bool:
    lives = op.before.lives
    if section == "error" and not lives:
        return True
    if section == "error":
        return (
            not all(regular(op, one) for one in lives) or len({op.before.kept(life[-1]) for life in lives.values()}) > 1
        )
    if section == "ends":
        return theirs == _their_ends(op) != ours
    return section in BY_AGENT and agent in lives and not regular(op, agent)
