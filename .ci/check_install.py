"""Check that the epibatch which is installed for this Python works, without extras and away from the source tree.

Runs each Python block of the README by itself, makes a new project and trains in it.

Usage: PYTHON .ci/check_install.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
PLACE = "import epibatch, sys; sys.exit(not epibatch.__file__.startswith(sys.prefix) and epibatch.__file__)"


def main() -> int:
    """Run one command after the other, and stop at the first that fails."""
    command = Path(sys.executable).with_name("epibatch")  # beside the Python of an environment
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    train = [command, "train", "train.yaml", "--allow-imports", "--run", "run", "--iterations", "2"]
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        steps = {"the place of the package": ([sys.executable, "-c", PLACE], folder)}
        steps |= {f"README, block {n}": ([sys.executable, "-c", block], folder) for n, block in enumerate(blocks, 1)}
        steps["epibatch new"] = ([command, "new", project.name], folder)
        steps["epibatch train"] = (train, project)
        for name, (words, place) in steps.items():
            print(f"== {name}", flush=True)
            if code := subprocess.run(words, cwd=place, check=False).returncode:
                print(f"{name}: exit code {code}")
                return 1
    print("the installed package works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
