"""Libraries of environments: which are installed, and how a config names one of their environments."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from rich.table import Table

__all__ = ["LIBRARIES", "EnvLibrary", "describe_libraries", "libraries_table", "libraries_text"]


class EnvLibrary(NamedTuple):
    """A library of environments.

    Args:
        library: Its name.
        packages: The distributions that it needs; the version is that of the first.
        env: The setting `env` that makes one of its environments; in brackets, what a function given as `env` returns.
        settings: Other settings that it needs, as in a file.
        install: What `pip install` needs, if that is more than the packages.
    """

    library: str
    packages: tuple[str, ...]
    env: str
    settings: str = ""
    install: str = ""


_VECTOR = "gym_env_vectorize_mode: vector_entry_point"
_ADAPTER = "[class of 20 lines, as in docs/environment-libraries.md]"
_POLICIES = "policies, policy_mapping_fn; env_to_module for games:"

LIBRARIES = (
    EnvLibrary("Gymnasium", ("gymnasium",), "CartPole-v1"),
    EnvLibrary("MuJoCo", ("mujoco",), "HalfCheetah-v5", install="'gymnasium[mujoco]'"),
    EnvLibrary("ALE", ("ale-py",), "ale_py:ALE/Pong-v5"),
    EnvLibrary(
        "DMControl",
        ("dm-control", "shimmy"),
        "shimmy:dm_control/walker-walk-v0",
        install="'shimmy[dm-control]' 'mujoco<4'",
    ),
    EnvLibrary("MO-Gymnasium", ("mo-gymnasium",), "mo_gymnasium:deep-sea-treasure-v0", "linearise_rewards"),
    EnvLibrary("EnvPool", ("envpool",), "envpool:make_gymnasium", f"env_config: {{task_id: CartPole-v1}}, {_VECTOR}"),
    EnvLibrary("VMAS", ("vmas",), _ADAPTER, _VECTOR),
    EnvLibrary("Brax and MJX", ("brax",), _ADAPTER, _VECTOR),
    EnvLibrary(
        "PettingZoo",
        ("pettingzoo",),
        "pettingzoo/classic/tictactoe_v3",
        f"{_POLICIES} [action_mask]",
        install="'pettingzoo[classic]'",
    ),
    EnvLibrary(
        "OpenSpiel",
        ("open-spiel", "shimmy"),
        "[PettingZooEnv(OpenSpielCompatibilityV0(game_name='chess'))]",
        f"{_POLICIES} [{{piece: action_mask, source: infos/action_mask}}]",
        install="'shimmy[pettingzoo]' open-spiel",
    ),
    EnvLibrary("old gym", ("gym", "shimmy"), "shimmy:GymV26Environment-v0", "env_config: {env_id: CartPole-v1}"),
)


def describe_libraries() -> list[dict[str, Any]]:
    """Return each library as data; `version` is None if one of its packages is not installed.

    Examples:
        >>> describe_libraries()[0]["env"]
        'CartPole-v1'
    """
    return [_described(library) for library in LIBRARIES]


def _described(library: EnvLibrary) -> dict[str, Any]:
    try:
        found: str | None = {package: version(package) for package in library.packages}[library.packages[0]]
    except PackageNotFoundError:
        found = None
    install = f"pip install {library.install or ' '.join(library.packages)}"
    return {**library._asdict(), "version": found, "install": install}


def libraries_table(libraries: list[dict[str, Any]]) -> Table:
    """Return a table of the libraries: first the installed ones, then how to install the others.

    Args:
        libraries: The result of `describe_libraries`.
    """
    table = Table("library", "version", "env", "with", box=None, header_style="bold")
    for row in _rows(libraries):
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    return table


def libraries_text(libraries: list[dict[str, Any]]) -> str:
    """Return the same with a line for each cell, for terminals in which the table would cut names that are copied.

    Args:
        libraries: The result of `describe_libraries`.

    Examples:
        >>> print(libraries_text([{"library": "Mine", "version": "1.2", "env": "mine:Env-v0", "settings": ""}]))
        Mine  1.2
          env   mine:Env-v0
    """
    lines = []
    for library, version_or_install, env, settings in _rows(libraries):
        lines += [f"{library}  {version_or_install}", f"  env   {env}", *([f"  with  {settings}"] if settings else [])]
    return "\n".join(lines)


def _rows(libraries: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    ordered = sorted(libraries, key=lambda facts: facts["version"] is None)
    return [(row["library"], row["version"] or row["install"], row["env"], row["settings"]) for row in ordered]
