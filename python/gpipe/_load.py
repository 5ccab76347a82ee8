"""Loads the extension, after torch. Python and torch must be those that it was built for."""

import atexit
import importlib.machinery
import pathlib
import re
import sys

import torch


def _find_extension(folder: pathlib.Path) -> pathlib.Path:
    """The extension's file. Raises ImportError if there is none, or only that of another Python."""
    built = sorted(folder.glob("_gpipe*.so"))
    for path in built:
        if path.name.removeprefix("_gpipe") in importlib.machinery.EXTENSION_SUFFIXES:
            return path
    if built:
        raise ImportError(
            f"this gpipe was built for {built[0].name.split('.')[1]}, and this Python is "
            f"{sys.implementation.cache_tag}: use that Python, or install a gpipe that was built "
            f"for this one"
        )
    raise ImportError(
        "gpipe's extension is missing: install the wheel of `tools/bazel run //python:wheel`"
    )


def _check_torch(given: str) -> None:
    """With another torch than that of its build, loading the extension would fail, or crash."""
    content = _find_extension(pathlib.Path(__file__).parent).read_bytes()
    built_for = re.search(rb"gpipe-built-for-torch ([0-9.]+)", content).group(1).decode()
    if given.split("+")[0] != built_for:
        raise ImportError(
            f"this gpipe was built for torch {built_for}, and torch {given} is installed: install "
            f"that torch, or a gpipe that was built for this one"
        )


_check_torch(torch.__version__)

from gpipe import _gpipe as extension  # noqa: E402: it needs torch's libraries, loaded above

# Workers must not ask for the GIL when the interpreter has begun to end, because it would end them
# in the middle of their C++ functions, and with them the process.
atexit.register(extension.shut_at_exit)
