"""Whether there are headers of Python."""

load("@local_python//:python.bzl", _MISSING = "MISSING")

# What is missing and what to do, as one sentence; empty: nothing is.
MISSING = _MISSING
