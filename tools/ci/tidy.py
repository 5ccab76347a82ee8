#!/usr/bin/env python3
"""clang-tidy with the flags of Bazel's own compilation, which tools/compile_commands has written. Behind
`tools/lint --tidy`.

  tidy.py FILE...   these files
  tidy.py           the C++ files changed since a base: $GPIPE_TIDY_BASE if set, else where this branch left the
                    remote's default branch, else the last commit's parent

A header is checked through a source that includes it. Two files at a time. After $GPIPE_TIDY_SECONDS (480; no limit
for files that are named) no other is begun, after $GPIPE_TIDY_GRACE more (120) none goes on, and those not reached are
listed. Exit code 1 if something was found.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

BUDGET = 480  # seconds
GRACE = 120
JOBS = 2


def git(*arguments):
    """The output of git, or None if git fails or is missing."""
    try:
        run = subprocess.run(["git", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
    except FileNotFoundError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def commit(name):
    return git("rev-parse", "--verify", "--quiet", name + "^{commit}")


def base():
    """Returns the commit to compare with, or None, and a text that says which one it is."""
    chosen = os.environ.get("GPIPE_TIDY_BASE")
    if chosen:
        found = commit(chosen)
        if not found:
            sys.exit("tidy: GPIPE_TIDY_BASE={} is not a commit of this clone".format(chosen))
        return found, "GPIPE_TIDY_BASE"
    for remote in (git("remote") or "").split():
        for branch in ("HEAD", "main", "master"):
            name = "{}/{}".format(remote, branch)
            if not commit("refs/remotes/" + name):
                continue
            found = git("merge-base", "HEAD", "refs/remotes/" + name)
            # If HEAD is on that branch itself, this is not the base: the last commit counts as new
            # (see below).
            if found and found != commit("HEAD"):
                return found, "where this branch left " + name
            break
    return commit("HEAD~1"), "the last commit's parent"


def is_cxx(path):
    return path.endswith((".h", ".cc"))


def changed(since):
    """Changed C++ files, those that git does not know yet included. Libraries before tests."""
    names = (git("diff", "--name-only", "--diff-filter=d", since) or "").splitlines()
    names += (git("ls-files", "--others", "--exclude-standard") or "").splitlines()
    return sorted({name for name in names if is_cxx(name)}, key=lambda name: (name.endswith("_test.cc"), name))


class Includes:
    """Finds the source of the compilation database that reaches a header."""

    def __init__(self, sources):
        self.sources = sorted(sources)
        self.includers = {}
        for path in (git("ls-files", "--cached", "--others", "--exclude-standard", "*.h", "*.cc") or "").splitlines():
            try:
                text = pathlib.Path(path).read_text(encoding="utf-8")
            except OSError:
                continue  # the file was deleted
            for included in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
                self.includers.setdefault(included, []).append(path)

    def source_of(self, header):
        """The header's own source or test if it has one, else the nearest source; None if there is none."""
        seen, level = {header}, [header]
        while level:
            after = sorted({user for each in level for user in self.includers.get(each, [])} - seen)
            users = [user for user in after if user in self.sources]
            if users:
                stem = header[:-len(".h")]
                own = [user for user in (stem + ".cc", stem + "_test.cc") if user in users]
                return (own + users)[0]
            seen.update(after)
            level = after
        return None


def database():
    """The path of the compilation database, and the sources in it."""
    path = os.environ.get("GPIPE_TIDY_DATABASE") or "compile_commands.json"
    with open(path, encoding="utf-8") as file:
        return path, {os.path.relpath(entry["file"]) for entry in json.load(file)}


def tidy(source, files, folder, deadline):
    """Runs clang-tidy on a source that stands for `files`. Returns (seconds, its text, whether it found something), or
    None if the time was over before it began or ended."""
    begin = time.monotonic()
    if deadline is not None and begin > deadline:
        return None
    command = ["clang-tidy", "--quiet", "--extra-arg=-Wthread-safety", "-p", folder]
    if all(name.endswith(("_test.cc", "_benchmark.cc")) for name in files):
        command.append("--checks=-performance-*")  # A test may copy if that reads better.
    try:
        run = subprocess.run(
            command + [os.path.abspath(source)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
            timeout=None if deadline is None else deadline + float(os.environ.get("GPIPE_TIDY_GRACE") or GRACE) - begin)
    except subprocess.TimeoutExpired:
        return None
    text = run.stdout.strip()
    if run.returncode != 0 and not text:
        text = run.stderr.strip()
    return time.monotonic() - begin, text, run.returncode != 0


def main(arguments):
    root = git("rev-parse", "--show-toplevel")
    if root is None:
        sys.exit("tidy: not in a clone")
    if arguments:
        files = [os.path.relpath(os.path.abspath(name), root) for name in arguments]
        os.chdir(root)
        budget = os.environ.get("GPIPE_TIDY_SECONDS")
    else:
        os.chdir(root)
        since, why = base()
        if since is None:
            print("tidy: no history here (a shallow clone?), so nothing that changed is known: nothing checked. "
                  "GPIPE_TIDY_BASE=COMMIT names a base.")
            return 0
        files = changed(since)
        print("tidy: {} C++ files changed since {} ({})".format(len(files), since[:10], why))
        budget = os.environ.get("GPIPE_TIDY_SECONDS") or BUDGET
    if not files:
        return 0

    path, sources = database()
    includes = Includes(sources)
    reasons = {}  # source: the files that are checked through it
    failed = False
    for name in files:
        source = name if name in sources else includes.source_of(name) if name.endswith(".h") else None
        if source is not None:
            reasons.setdefault(source, []).append(name)
        elif arguments:
            print("tidy: {}: no file that Bazel compiles, or includes".format(name))
            failed = True
        else:
            print("tidy: NOT CHECKED: {}: Bazel compiles nothing here that includes it".format(name))

    begin = time.monotonic()
    deadline = begin + float(budget) if budget else None
    not_reached = []
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        folder = os.path.dirname(os.path.abspath(path))
        running = [(source, pool.submit(tidy, source, reasons[source], folder, deadline)) for source in reasons]
        for source, future in running:
            result = future.result()
            if result is None:
                not_reached += reasons[source]
                continue
            seconds, text, found = result
            print("tidy: {} ({}) {:.0f} s".format(source, "FOUND" if found else "good", seconds), flush=True)
            if found:
                print(text, flush=True)
                failed = True
    print("tidy: {} of {} files checked in {:.0f} s".format(
        sum(map(len, reasons.values())) - len(not_reached), len(files), time.monotonic() - begin))
    for name in not_reached:
        print("tidy: NOT REACHED in {} s: {}".format(budget, name))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
