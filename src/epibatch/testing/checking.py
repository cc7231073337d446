"""`check_connector`: run the checks of the contract on a connector piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epibatch.core.errors import PieceCheckError
from epibatch.testing.arguments import AgentSpaces, CheckRequest, parse_request
from epibatch.testing.contract import (
    FAILED,
    NOT_APPLIED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    CheckReport,
    CheckResult,
    ContractCheck,
    ContractFault,
    Fault,
    NotApplied,
    contract_checks,
)
from epibatch.testing.harness import MultiAgentHarness, PieceHarness


def check_connector(
    piece: Any,
    *,
    spaces: Any = None,
    sides: str | Sequence[str] | None = None,
    model_config: Mapping[str, Any] | None = None,
    only: str | Sequence[str] | None = None,
    skip: Mapping[str, str] | None = None,
    **retired: Any,
) -> CheckReport:
    """Check that a piece keeps the contract of `ConnectorV2`, in the pipelines it is made for.

    New pieces are inserted where a config inserts a user's piece, or where their declarations allow it. They run on
    recorded episodes in every form that a pipeline accepts. docs/contract-checks.md lists the checks.

    Args:
        piece: The class, a function that makes a new piece, or a piece, from which new ones are made.
        spaces: Observation and action space of one environment; or only the observation space; or two dicts by agent,
            to run the piece on several agents with one module. Default: a Box of shape (3,) and Discrete(2).
        sides: Some of "env_to_module", "module_to_env", "learner"; default: those that the piece names in `pipelines`;
            for a `ColumnTransform` that names none, the learner's unless it transforms `obs` or `actions`.
            In the learner's, pieces with an argument `as_learner_connector` are made with it.
        model_config: Settings of the default module, such as {"use_lstm": True}; without settings, pieces that need no
            tensors run without a module.
        only: Names of the checks to run; default: all.
        skip: Names of checks to leave out, each with the reason, which the report prints.
        **retired: Keywords of earlier releases; they raise an error that names the new keyword.

    Returns:
        The report: `print` shows it as a table, without the checks that do not apply; `report.table(every=True)` has
            all.

    Raises:
        PieceCheckError: all faults; it is also an AssertionError. It has the report as `report`.
        PieceError: `piece` makes no piece, or an argument is invalid.

    Examples:
        >>> import gymnasium as gym
        >>> from epibatch.connectors.common import FrameStacking
        >>> report = check_connector(FrameStacking(num_frames=2), spaces=gym.spaces.Box(0, 1, (4, 1)))
        >>> report.ok, "chunks" in report.passed
        (True, True)
    """
    report = run_checks(parse_request(piece, spaces, sides, model_config, only, skip, retired))
    if not report.ok:
        raise _failed(report)
    return report


def run_checks(request: CheckRequest) -> CheckReport:
    """Run the requested checks; the report has their faults, and no error is raised."""
    results: list[CheckResult] = []
    results_of: dict[str, list[CheckResult]] = {}
    for side in request.sides:
        for result in _side(request, side):
            earlier = results_of.setdefault(result.check, [])
            if not result.side and earlier:
                if earlier[0].outcome == NOT_RUN:
                    earlier[:] = [result]
                continue
            earlier.append(result)
    for name in contract_checks():
        results += results_of.get(name, [])
    return CheckReport(request.name, tuple(results))


def _side(request: CheckRequest, side: str) -> Iterator[CheckResult]:
    harness_class = MultiAgentHarness if isinstance(request.spaces[0], AgentSpaces) else PieceHarness
    harness = harness_class(request.factory, side, request.spaces, request.model_config)
    failed: list[str] = []
    for check in contract_checks().values():
        where = "" if check.once else side
        if side not in check.sides or check.name not in request.checks:
            continue
        if check.name in request.skip:
            yield CheckResult(check.name, where, SKIPPED, request.skip[check.name])
            continue
        before = [name for name in check.after if name in failed]
        if before:
            yield CheckResult(check.name, where, NOT_RUN, f"{before[0]} failed")
            continue
        result = _run_check(check, harness, where)
        failed += [check.name] * (result.outcome == FAILED)
        yield result


def _run_check(check: ContractCheck, harness: PieceHarness, where: str) -> CheckResult:
    """Return the result of one check; it ends at the first exception, as later steps would fail in the same way."""
    faults: list[Fault] = []
    why = ""
    try:
        for fault in check.run(harness) or ():
            if fault not in faults:
                faults.append(fault)
    except NotApplied as reason:
        why = str(reason)
    except ContractFault as error:
        faults.append(error.fault)
    except Exception as error:
        faults.append(
            Fault(
                harness.name,
                f"no error: {check.sentence[0].lower()}{check.sentence[1:]}",
                f"{type(error).__name__}: {error}".replace("\n", "\n    "),
                "mend what raises it",
            )
        )
    outcome = FAILED if faults else NOT_APPLIED if why else PASSED
    return CheckResult(check.name, where, outcome, "" if faults else why, tuple(faults))


def _failed(report: CheckReport) -> PieceCheckError:
    failed = [result for result in report if result.outcome == FAILED]
    error = PieceCheckError(
        f"check_connector({report.piece})",
        expected="a piece that keeps the contract of ConnectorV2",
        found=f"{len(failed)} of {len(report)} checks failed" + f"\n{report.faults_text()}".replace("\n", "\n    "),
        do="mend them; docs/contract-checks.md says what each of them is about",
    )
    error.report = report
    return error
