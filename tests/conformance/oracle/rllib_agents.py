"""The slow model of several agents with RLlib's faults, each under its row of the page of differences.

Without that row the fault is not in the model, and RLlib no longer does what the model says.
"""

from __future__ import annotations

import copy
from typing import Any

from oracle.cases import differences_met
from oracle.differences import IDS
from oracle.slow_agents import SlowAgents
from oracle.slow_episode import SlowEpisode


class Refused(Exception):
    """RLlib raises here."""


def listed(identity: str) -> bool:
    """Whether the page has the row; if so, it is counted as met."""
    if identity in IDS:
        differences_met[identity] += 1
        return True
    return False


class FaultyAgents(SlowAgents):
    """What RLlib makes of a schedule.

    Attributes:
        terminated, truncated: the episode's flags.
        early: rewards that came before an agent's first observation.
        doubled: agents whose end is twice in RLlib's map, and the env step of the entry too many.
        unseen: agents without an observation since the cut that the chunk begins with.
        wrong: whether anything is different from what the rules say.
    """

    def __init__(self, schedule: Any, until: int | None = None) -> None:
        self.terminated = self.truncated = self.wrong = False
        self.early: dict[str, float] = {}
        self.doubled: dict[str, int] = {}
        self.unseen: set[str] = set()
        super().__init__(schedule, until)

    @classmethod
    def going_on(cls, slow: SlowEpisode) -> FaultyAgents:
        """What RLlib holds of a chunk, as far as it can: agents' latest lives, and no infos that wait."""
        model = cls.__new__(cls)
        model.terminated = model.truncated = model.wrong = False
        held = copy.deepcopy(slow)
        model.lives = {agent: lives[-1:] for agent, lives in held.lives.items()}
        model.open, model.left, model.doubled, model.t = held.open, {}, {}, held.t
        since = slow.start or -1
        model.unseen = {agent for agent, lives in model.lives.items() if lives[-1]["at"][-1] <= since}
        model.infos = {} if listed("waiting-infos") else held.infos
        model.rewards = {agent: reward for agent, reward in held.rewards.items() if agent in held.lives}
        model.early = {agent: reward for agent, reward in held.rewards.items() if agent not in held.lives}
        return model

    def fault(self, identity: str) -> bool:
        """Whether a fault shows here."""
        found = listed(identity)
        self.wrong = self.wrong or found
        return found

    def add(self, step: dict[str, Any]) -> None:
        if self.terminated or self.truncated:
            raise Refused
        self._refuse_late_data(step)
        every = [bool(step[name].get("__all__")) for name in ("terminateds", "truncateds")]
        self._end_of_all(step, every)
        given = {a for name in ("observations", "actions", "rewards", "terminateds", "truncateds") for a in step[name]}
        if step["terminateds"].get("__all__") or step["truncateds"].get("__all__"):
            given |= set(self.lives)
        for agent in sorted(given - {"__all__"}):
            flags = [
                bool(step[name].get(agent)) or whole
                for name, whole in (("terminateds", self.terminated), ("truncateds", self.truncated))
            ]
            self._agent(agent, step, flags)
        for agent in step["infos"]:
            if agent not in step["observations"] and not self.fault("waiting-infos"):
                self.infos[agent] = {**self.infos.get(agent, {}), **step["infos"][agent]}

    def _refuse_late_data(self, step: dict[str, Any]) -> None:
        for agent in self.lives:
            names = ("observations", "actions", "rewards", "infos")
            in_loop = any(agent in step[name] for name in (*names[:3], "terminateds", "truncateds"))
            if self.living(agent) is None and in_loop and any(agent in step[name] for name in names):
                if agent in step["observations"] and not self.fault("agents-return"):
                    continue
                raise Refused

    def _end_of_all(self, step: dict[str, Any], every: list[bool]) -> None:
        """The episode's flags in this step."""
        self.terminated, self.truncated = every
        flagged = {a for name in ("terminateds", "truncateds") for a, flag in step[name].items() if flag}
        ended = {agent for agent in self.lives if self.living(agent) is None} | flagged
        if not set(self.lives) <= ended:
            return
        new = set(step["observations"]) - set(self.lives)
        if not self.lives:
            self.terminated = self.terminated or self.fault("O57")
        elif new - flagged:
            self.terminated = self.terminated or self.fault("O14")
        elif every[1]:
            self.terminated = self.terminated or self.fault("O51")
        elif every == [False, False]:
            how = [lives[-1]["flags"] for agent, lives in self.lives.items() if self.living(agent) is None]
            how += [(bool(step["terminateds"].get(a)), False) for a in flagged & set(self.lives) if self.living(a)]
            if any(terminated for terminated, _ in how):
                self.terminated = True
                truncated_now = [a for a in step["truncateds"] if a in self.lives and not step["terminateds"].get(a)]
                if truncated_now and not self.fault("O14"):
                    self.terminated = False
            else:
                self.truncated = not self.fault("O14")
                self.terminated = not self.truncated

    def _agent(self, agent: str, step: dict[str, Any], flags: list[bool]) -> None:
        life, reward = self.living(agent), step["rewards"].get(agent, 0.0)
        observed, acted, ends = agent in step["observations"], agent in step["actions"], any(flags)
        if agent in self.lives and life is None:
            return
        if life is None:
            self._unborn(agent, step, reward, ends)
            return
        stuck = 0.0
        if acted:
            waited = self.rewards.pop(agent, 0.0)
            if waited and self.fault("O56"):
                stuck = waited
            else:
                reward += waited
            self.rewards[agent] = reward
            self.open[agent] = {"action": step["actions"][agent], "outputs": step["extra_model_outputs"][agent]}
            if self.early.get(agent) and not life["actions"] and not self.fault("O15"):
                self.rewards[agent] += self.early.pop(agent)
        elif agent in self.rewards or agent in step["rewards"] or not (observed or ends):
            self.rewards[agent] = self.rewards.get(agent, 0.0) + reward
        if observed:
            if agent not in self.open:
                raise Refused
            self.infos[agent] = {**self.infos.get(agent, {}), **step["infos"].get(agent, {})}
            self.observe(agent, step["observations"][agent])
            if stuck:
                self.rewards[agent] = stuck
        elif ends and agent in self.open:
            if flags[1] and listed("ended-both-ways"):
                raise Refused
            if agent in self.unseen and self.fault("O52"):
                for waiting in (self.open, self.rewards, self.early):
                    waiting.pop(agent, None)
                return
            self.infos[agent] = life["infos"][-1]
            self.observe(agent, life["obs"][-1])
            if listed("O52"):
                self.doubled[agent] = self.t
        elif ends and self.fault("O15"):  # idle: it neither ends nor keeps its rewards
            self.rewards.pop(agent, None)
            self.early.pop(agent, None)
            return
        if ends and self.early.pop(agent, 0.0):
            self.fault("O15")
        if ends:
            life["flags"], life["ended"] = tuple(flags), self.t
            self.rewards.pop(agent, None)

    def _unborn(self, agent: str, step: dict[str, Any], reward: float, ends: bool) -> None:
        if agent not in step["observations"]:
            if ends:
                lost = self.early.pop(agent, 0.0) or reward
                self.wrong = self.wrong or bool(lost and self.fault("O15"))
            elif agent in step["rewards"]:
                self.early[agent] = self.early.get(agent, 0.0) + reward
            return
        flagged = any(step[name].get(one) for name in ("terminateds", "truncateds") for one in (agent, "__all__"))
        if ends and self.fault("born-ended" if flagged else "O14" if self.lives else "O57"):
            self.early.pop(agent, None)
            return
        if agent in step["rewards"]:
            self.early[agent] = self.early.get(agent, 0.0) + reward
        self.begin(agent, step["observations"][agent], step["infos"].get(agent, {}))
