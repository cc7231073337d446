from . import command as command
from .checking import check_connector as check_connector
from .contract import CheckReport as CheckReport, CheckResult as CheckResult, contract_checks as contract_checks
