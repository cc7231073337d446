"""Reading and writing source files in their own encoding and newlines."""

from __future__ import annotations

import io
import os
import tokenize
from pathlib import Path
from typing import NamedTuple

from epibatch.core.errors import PortingError, StorageError
from epibatch.core.files import replace_file, storing


class SourceFile(NamedTuple):
    """A source file's text, with its newlines, and its encoding."""

    path: Path
    text: str
    encoding: str


def read_source(path: str | os.PathLike[str]) -> SourceFile:
    """Read a Python file in the encoding that it declares; UTF-8 by default.

    Raises:
        PortingError: it is no file, a notebook, or not in the encoding that it declares.
    """
    path = Path(path)
    if path.is_dir():
        raise _refused(path, "a folder", f"name its files: epibatch port {path}/*.py")
    if not path.exists():
        raise _refused(path, "nothing there", f"check the path; the current folder is {Path.cwd()}")
    if path.suffix == ".ipynb":
        do = f"make a script of it, `jupyter nbconvert --to script {path}`, and port that"
        raise _refused(path, "a notebook", do)
    try:
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return SourceFile(path, content.decode(encoding), encoding)
    except OSError as error:
        raise _refused(path, f"{type(error).__name__}: {error.strerror}", "make it readable") from error
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        do = "save it as UTF-8, or declare its encoding in the first line: # -*- coding: latin-1 -*-"
        raise _refused(path, f"bytes that are no such text ({error})", do) from error


def write_source(file: SourceFile, text: str) -> None:
    """Replace a file's text atomically: write a temporary file beside it, and rename that over it.

    Permissions stay, and a link still points to its file.

    Args:
        file: The file as returned by `read_source`.
        text: The new text.

    Raises:
        StorageError: it cannot be written; the file is unchanged.
    """
    target = file.path.resolve()
    if not os.access(target, os.W_OK):
        do = f"make it writable: chmod u+w {file.path}"
        raise StorageError(str(file.path), expected="a file that can be written", found="read-only", do=do)
    with storing(str(file.path), "make its folder writable, or leave out --write and apply the diff yourself"):
        replace_file(target, text.encode(file.encoding))


def _refused(path: Path, found: str, do: str) -> PortingError:
    return PortingError(str(path), expected="a file with Python source", found=found, do=do)
