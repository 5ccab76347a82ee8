"""Loads the extension, after torch, which must be the one that it was built for."""

import atexit
import importlib.util
import pathlib
import re

import torch


def _check_torch(given: str) -> None:
    """With another torch than that of its build, loading the extension would fail, or crash."""
    spec = importlib.util.find_spec("gpipe._gpipe")
    if spec is None or spec.origin is None:
        raise ImportError(
            "gpipe's extension is missing: install the wheel of `tools/bazel run //python:wheel`"
        )
    content = pathlib.Path(spec.origin).read_bytes()
    built_for = re.search(rb"gpipe-built-for-torch ([0-9.]+)", content).group(1).decode()
    if given.split("+")[0] != built_for:
        raise ImportError(
            f"this gpipe was built for torch {built_for}, and torch {given} is installed: install "
            f"that torch, or a gpipe that was built for this one"
        )


_check_torch(torch.__version__)

from gpipe import _gpipe as extension  # noqa: E402: it needs torch's libraries, loaded above

# Workers must not ask for the GIL when the interpreter has begun to end: it would end them in the
# middle of their C++ functions, and with them the process.
atexit.register(extension.shut_at_exit)
