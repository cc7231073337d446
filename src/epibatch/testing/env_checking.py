"""`check_env`: roll an environment out, and report what breaks its contract."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from epibatch.core.errors import (
    ConfigError,
    EnvironmentCheckError,
    RunnerError,
)
from epibatch.core.settings import Count, Positive, PositiveNumber, SettingsModel
from epibatch.env_runner.envs.env_workers import LocalEnvs, WorkerEnvs
from epibatch.env_runner.envs.make_env import make_any_env
from epibatch.testing.env_rollouts import ERROR, NOT_MADE, EnvFinding, EnvRollouts, Progress, raised_text


@dataclass(frozen=True)
class EnvReport:
    """All faults of one environment.

    Args:
        environment: Its name.
        findings: The faults, each once, in the order in which they were found.
        num_steps: Steps that were compared with the spaces.
        num_episodes: Episodes that ended in them.

    Examples:
        >>> print(EnvReport("Corridor", (), 100, 20))
        Corridor: no errors, no warnings; 100 steps, 20 episodes ended
    """

    environment: str
    findings: tuple[EnvFinding, ...]
    num_steps: int
    num_episodes: int

    def __iter__(self) -> Iterator[EnvFinding]:
        return iter(self.findings)

    @property
    def errors(self) -> tuple[EnvFinding, ...]:
        """The findings that are errors."""
        return tuple(finding for finding in self.findings if finding.level == ERROR)

    @property
    def ok(self) -> bool:
        """True if no finding is an error."""
        return not self.errors

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each finding."""
        return [asdict(finding) for finding in self.findings]

    def __str__(self) -> str:
        errors = len(self.errors)
        counts = [_counted(errors, "error"), _counted(len(self.findings) - errors, "warning")]
        ended = f"{_counted(self.num_steps, 'step')}, {_counted(self.num_episodes, 'episode')} ended"
        return "\n\n".join([f"{self.environment}: {', '.join(counts)}; {ended}", *map(str, self.findings)])


def _counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'s' * (count != 1)}"


class CheckEnvSettings(SettingsModel):
    """The numbers that `check_env` takes."""

    num_steps: Positive
    seed: Count
    timeout_s: PositiveNumber | None


def check_env(
    env: Any,
    *,
    env_config: dict[str, Any] | None = None,
    num_steps: int = 200,
    seed: int = 0,
    timeout_s: float | None = 60.0,
) -> EnvReport:
    """Check that an environment keeps the contract of `gymnasium.Env`, `VectorEnv` or `MultiAgentEnv`.

    Random steps compare every value with the declared spaces: nesting, shapes, types, bounds, NaN, rewards, flags and
    infos. The same seed and actions must lead to the same steps, also beside a second environment. The counterpart of
    Gymnasium's and RLlib's `check_env` and TorchRL's `check_env_specs`. Warnings are infinity in a Box without bounds,
    an observation that a later call overwrites, and a vector environment that resets in the same step without
    `final_obs`.

    Args:
        env: As in a config: a Gymnasium id, an import path `module:Class`, a name given to `register_env`, a class, or
            a function that makes one. One with a parameter `num_envs` makes a vector environment. Or an environment
            itself, of PettingZoo too: then this process checks it, without a time limit and a second environment.
        env_config: Passed to the environment, as in a config.
        num_steps: Steps to compare with the spaces; the check takes up to four times as many.
        seed: Of the first reset, and of the actions.
        timeout_s: Seconds that a call of the environment may take. The check runs in another process, which is killed
            then. None: no limit, in this process, for debuggers and environments that start processes themselves.

    Returns:
        The report, which may have warnings; print it to read them.

    Raises:
        EnvironmentCheckError: all errors and warnings; it is also an AssertionError. It has the report as `report`.
        ConfigError: no environment, a wrong `env_config`, or settings out of range.
        UnknownNameError: an id that Gymnasium does not know.

    Examples:
        >>> report = check_env("CartPole-v1", num_steps=50)
        >>> report.ok, report.num_steps
        (True, 50)
    """
    report = report_on(env, env_config=env_config, num_steps=num_steps, seed=seed, timeout_s=timeout_s)
    if report.ok:
        return report
    error = EnvironmentCheckError(
        f"check_env({report.environment})",
        expected="an environment that keeps its contract",
        found=str(report).replace("\n", "\n    "),
        do="mend the errors; docs/environments.md says what an environment returns",
    )
    error.report = report
    raise error


def report_on(
    env: Any, *, env_config: dict[str, Any] | None, num_steps: int, seed: int, timeout_s: float | None
) -> EnvReport:
    """Return the report of `check_env`, also if it has errors."""
    settings = CheckEnvSettings(num_steps=num_steps, seed=seed, timeout_s=timeout_s)
    given = not isinstance(env, (str, type)) and hasattr(env, "reset")
    if given and env_config:
        do = "pass the class or function that makes it"
        raise ConfigError("check_env(env_config=...)", expected="none with a made environment", found="one", do=do)
    name = env if isinstance(env, str) else getattr(env, "__name__", type(getattr(env, "unwrapped", env)).__name__)
    make = partial(_the_same, env) if given else partial(make_any_env, env, env_config)
    rollouts: list[Any] = [partial(EnvRollouts, make, name, settings.num_steps, settings.seed, given=given)]
    envs: Any = LocalEnvs(rollouts) if given or timeout_s is None else WorkerEnvs(rollouts, timeout=settings.timeout_s)
    progress, findings = Progress(), dict[tuple[str, ...], EnvFinding]()
    try:
        _, failures = envs.start()
        while not failures and progress.call:
            answers, failures = envs.ask({0: ("advance",)})
            progress = answers.get(0, progress)
            for finding in progress.findings if not failures else ():
                key = (finding.level, finding.path, finding.expected, finding.do)
                first = findings.setdefault(key, replace(finding, times=0))
                findings[key] = replace(first, times=first.times + 1)
        for error in failures.values():
            if isinstance(error, NOT_MADE):
                raise error
            findings["last",] = _ended_by(error, progress)
    finally:
        envs.close()
    return EnvReport(name, tuple(findings.values()), progress.num_steps, progress.num_episodes)


def _the_same(env: Any) -> Any:
    return env


def _ended_by(error: Exception, progress: Progress) -> EnvFinding:
    """Return the finding about a call after which the worker process is gone: it hangs, or has ended the process."""
    expected, found = "an answer", raised_text(error)
    if isinstance(error, RunnerError) and error.expected is not None:
        expected, found = str(error.expected).partition(",")[0], str(error.found)
    do = "find the cause with timeout_s=None, which makes the check in this process"
    return EnvFinding(ERROR, progress.call, progress.step, progress.episode, None, expected, found, do)
