"""The contract of connector pieces, as checks for the tests of whoever writes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from epibatch.testing.checking import check_connector
    from epibatch.testing.contract import contract_checks
    from epibatch.testing.report import CheckReport, CheckResult

__all__ = ["CheckReport", "CheckResult", "check_connector", "contract_checks"]

__getattr__, __dir__ = lazy_exports(__name__)
