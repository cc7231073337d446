"""What a schedule of several agents comes to, worked out slowly and by its rules: lists of lives, row by row."""

from __future__ import annotations

from typing import Any

from oracle.agents import Schedule

AT_WHICH = {"observations": "obs", "infos": "infos", "actions": "actions", "rewards": "rewards"}


class SlowAgents:
    """What each agent saw, did and got, as lists of lives with a row per observation or step."""

    def __init__(self, schedule: Schedule, until: int | None = None) -> None:
        self.lives: dict[str, list[dict[str, Any]]] = {}
        self.open: dict[str, dict[str, Any]] = {}
        self.rewards: dict[str, float] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        self.left: dict[str, float] = {}
        self.t = 0
        for agent, obs in schedule.reset["observations"].items():
            self.begin(agent, obs, schedule.reset["infos"].get(agent, {}))
        for step in schedule.steps[:until]:
            self.t += 1
            self.add(step)

    def begin(self, agent: str, obs: Any, info: dict[str, Any]) -> None:
        life: dict[str, Any] = {"obs": [obs], "infos": [info], "at": [self.t], "actions": [], "rewards": []}
        life.update(outputs=[], ended=None, flags=(False, False))
        self.lives.setdefault(agent, []).append(life)

    def living(self, agent: str) -> dict[str, Any] | None:
        lives = self.lives.get(agent)
        return lives[-1] if lives and lives[-1]["ended"] is None else None

    def add(self, step: dict[str, Any]) -> None:
        ends = [step["terminateds"], step["truncateds"]]
        for agent in sorted({*self.lives, *(a for rows in step.values() for a in rows if a != "__all__")}):
            if agent in step["rewards"]:
                self.rewards[agent] = self.rewards.get(agent, 0.0) + step["rewards"][agent]
            if agent in step["actions"]:
                self.open[agent] = {"action": step["actions"][agent], "outputs": step["extra_model_outputs"][agent]}
            if agent in step["infos"]:
                self.infos[agent] = {**self.infos.get(agent, {}), **step["infos"][agent]}
        for agent, obs in step["observations"].items():
            self.observe(agent, obs)
        for agent in [*self.lives]:
            flags = tuple(bool(end.get(agent) or end.get("__all__")) for end in ends)
            life = self.living(agent)
            if life is not None and any(flags):
                if agent in self.open:
                    self.infos.setdefault(agent, life["infos"][-1])
                    self.observe(agent, life["obs"][-1])
                life["flags"], life["ended"] = flags, self.t
                self.left[agent] = self.left.get(agent, 0.0) + self.rewards.pop(agent, 0.0)

    def observe(self, agent: str, obs: Any) -> None:
        info, life = self.infos.pop(agent, {}), self.living(agent)
        if life is None:
            self.begin(agent, obs, info)
            return
        taken = self.open.pop(agent)
        life["obs"].append(obs)
        life["infos"].append(info)
        life["at"].append(self.t)
        life["actions"].append(taken["action"])
        life["rewards"].append(self.rewards.pop(agent, 0.0))
        life["outputs"].append(taken["outputs"])

    def at(self, name: str, agent: str) -> dict[int, Any]:
        """The rows of a column by env step, the open step's included."""
        rows: dict[int, Any] = {}
        for life in self.lives.get(agent, []):
            rows.update(zip(life["at"], life[AT_WHICH.get(name, "outputs")]))
        life = self.living(agent)
        if life is not None and agent in self.open and name not in ("observations", "infos"):
            pending = {"actions": self.open[agent]["action"], "rewards": self.rewards.get(agent, 0.0)}
            rows[life["at"][-1]] = pending.get(name, self.open[agent]["outputs"])
        return rows
