"""Write what `test_batches.py` expects again, by the code that is installed: `python tests/frozen/write_batches.py`.

Do so only where batches are meant to change, and say in the commit which columns changed and why.
"""

from __future__ import annotations

from frozen_batches.stored import write

if __name__ == "__main__":
    write()
