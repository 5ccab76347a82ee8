"""Whether there are headers of Python."""

load("@local_python//:python.bzl", _MISSING = "MISSING")

# One sentence that says what is missing and what to do. Empty if nothing is missing.
MISSING = _MISSING
