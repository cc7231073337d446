from . import command as command
from .checking import check_connector as check_connector
from .contract import CheckReport as CheckReport, CheckResult as CheckResult, contract_checks as contract_checks
from .env_checking import EnvReport as EnvReport, check_env as check_env
from .env_rollouts import EnvFinding as EnvFinding
from .small_envs import SpokenWords as SpokenWords, StatelessPendulum as StatelessPendulum, TicTacToe as TicTacToe
