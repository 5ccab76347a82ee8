#!/usr/bin/env python3
"""Runs torchgpipe's own tests against gpipe.torchgpipe: tools/bazel run //python:torchgpipe_tests -- CHECKOUT

CHECKOUT is torchgpipe's repository at its tag v0.0.7; its folder `tests` runs twice, once with the
package `torchgpipe` that is there and once with ours under that name. python3 must find torch,
pytest and gpipe (its wheel). Prints the counts, and each test that passes with torchgpipe alone, with
the reason if it is known; exits with 1 if it is not.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Why tests that pass with torchgpipe may fail here. A name without its parameters stands for all.
KNOWN = {
    "tests/skip/test_leak.py::test_delete_portal_tensor": "counts the uses left of a portal in GPipe, "
    "which has none: skips go from stage to stage in its engine, and are freed as early",
    "tests/test_balance.py::test_deprecated_torchgpipe_balancing": "a module of the name that "
    "torchgpipe.balance had before 0.0.5, which raises ImportError; it is torchgpipe's file",
    "tests/test_gpipe.py::test_checkpoint_mode": "counts CheckpointBackward in the output's graph, "
    "which is one node here",
    "tests/test_gpipe.py::test_checkpoint_eval": "as test_checkpoint_mode",
    "tests/test_gpipe.py::test_exception_early_stop_asap": "a race here: it wants 2 calls before the "
    "failure, which stops the pipeline after 1 or 2",
    "tests/test_inplace.py::test_inplace_on_requires_grad": "the forward refuses here what the "
    "backward refuses there",
}


def put_in_place():
    """Has `import torchgpipe` and imports of its submodules give the ones of gpipe.torchgpipe."""
    import importlib
    import pkgutil

    import gpipe.torchgpipe

    for module in pkgutil.walk_packages(gpipe.torchgpipe.__path__, "gpipe.torchgpipe."):
        importlib.import_module(module.name)
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith("gpipe.torchgpipe."):
            sys.modules[name.removeprefix("gpipe.")] = module
    # Where torchgpipe is installed, its other module does not count as ours.
    sys.modules["torchgpipe_balancing"] = None


# pytest gets this file as a plugin.


def pytest_configure(config):
    if os.environ["TORCHGPIPE"] == "gpipe":
        put_in_place()


def pytest_collectreport(report):
    if report.failed:
        _outcomes[report.nodeid] = "failed"


def pytest_runtest_logreport(report):
    # A test that is skipped or fails in its setup has no call; one that fails in its teardown has
    # failed, too.
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_unconfigure():
    pathlib.Path(os.environ["OUTCOMES"]).write_text(json.dumps(_outcomes))


_outcomes = {}


def run(package, checkout, folder, arguments):
    """The outcome of each test with `package`, "torchgpipe" or "gpipe"."""
    paths = [str(checkout)] if package == "torchgpipe" else []
    outcomes = folder / f"{package}.json"
    environment = dict(os.environ, TORCHGPIPE=package, OUTCOMES=str(outcomes))
    environment["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", "-q"]
    command += ["--continue-on-collection-errors", "tests", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True)
    (folder / f"{package}.log").write_text(done.stdout + done.stderr)
    if done.returncode not in (0, 1):
        sys.exit(f"pytest did not run with {package}:\n{done.stdout}{done.stderr}")
    return json.loads(outcomes.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("--log", type=pathlib.Path, help="a file for pytest's output with gpipe")
    parser.add_argument("pytest", nargs="*", help="more arguments of pytest, e.g. -- -k skip")
    arguments = parser.parse_args()
    # `bazel run` starts it in another folder than the user's.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    checkout = arguments.checkout.resolve()
    if not (checkout / "tests" / "test_gpipe.py").exists():
        parser.error(f"{checkout} is not a checkout of torchgpipe: it has no tests/test_gpipe.py")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # In a folder of their own the tests do not find the package beside them, and this file does
        # not find the package without its extension.
        shutil.copy(__file__, folder / "plugin.py")
        shutil.copytree(checkout / "tests", folder / "tests")
        theirs, ours = (run(p, checkout, folder, arguments.pytest) for p in ("torchgpipe", "gpipe"))
        if arguments.log:
            shutil.copy(folder / "gpipe.log", arguments.log)
    passing = [test for test, outcome in theirs.items() if outcome == "passed"]
    differing = [test for test in passing if ours.get(test) != "passed"]
    for test in differing:
        reason = KNOWN.get(test.partition("[")[0], "NOT KNOWN")
        print(f"{ours.get(test, 'not run')}: {test}\n    {reason}")
    for test, outcome in ours.items():
        if outcome == "passed" and theirs.get(test) == "failed":
            print(f"passes here alone: {test}")
    print(f"{len(passing)} pass with torchgpipe, {len(passing) - len(differing)} of them with gpipe")
    return int(any(test.partition("[")[0] not in KNOWN for test in differing))


if __name__ == "__main__":
    sys.exit(main())
