#!/usr/bin/env python3
"""Which tests AddressSanitizer and UndefinedBehaviorSanitizer see in a run of CI, and when they saw each last. Behind
tools/ci/sanitizers.sh. FOLDER is what a machine keeps from run to run.

  rotation.py changed FOLDER             writes FOLDER/sanitizers-changed: this commit, then the C++ files changed since
                                         the last commit of which all nearest tests were seen here, else since the base
                                         of tools/ci/tidy.py
  rotation.py plan FOLDER LISTS          a run begins. LISTS/all, near and reached have labels, one in a line; it writes
                                         LISTS/0, the near ones, and LISTS/1, 2, 3: the other reached ones and a third
                                         of all, the longest unseen first. So three runs that are not cut see all
  rotation.py seen FOLDER LISTS EVENTS   records what has passed in Bazel's EVENTS, also as the result of an earlier run
  rotation.py left FOLDER LISTS          names the tests that none of the last three runs has seen

The record is FOLDER/sanitizers-seen.json: of each test the number, the commit and the date of the run. Another
LibTorch than the default (GPIPE_LIBTORCH) has files of its own, with its version behind the name.
"""

import datetime
import json
import os
import sys

import count_tests
import tidy


def lines(*path):
    """The file's lines; none if there is no file."""
    try:
        with open(os.path.join(*path), encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []


def write(text, *path):
    path = os.path.join(*path)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


# The suffix of the files that tools/ci/checks.sh keeps. checks.sh unsets the variable for the
# default version, so that has no suffix.
OF_VERSION = "-libtorch-" + os.environ["GPIPE_LIBTORCH"] if os.environ.get("GPIPE_LIBTORCH") else ""
RECORD = "sanitizers-seen" + OF_VERSION + ".json"
CHANGED = "sanitizers-changed" + OF_VERSION


def load(folder):
    """The record; an empty one if there is none, or a damaged one, which the next run replaces."""
    try:
        record = json.loads("\n".join(lines(folder, RECORD)))
        return {
            "run": int(record["run"]),
            "commit": str(record["commit"]),
            "seen": {label: {**seen, "run": int(seen["run"])} for label, seen in record["seen"].items()},
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        return {"run": 0, "commit": "", "seen": {}}


def save(folder, record):
    write(json.dumps(record, indent=1, sort_keys=True), folder, RECORD)


def age(record, label):
    """The number of the run that saw the test last, or 0."""
    return record["seen"].get(label, {"run": 0})["run"]


def changed(folder):
    last = load(folder)["commit"]
    since, why = (last, "the last that sanitizers saw") if last and tidy.commit(last) else tidy.base()
    files = (tidy.git("diff", "--name-only", "--diff-filter=d", since, "HEAD") or "").splitlines() if since else []
    files = [name for name in files if tidy.is_cxx(name)]
    write("\n".join([tidy.commit("HEAD") or "", *files]), folder, CHANGED)
    print("sanitizers: {} C++ files changed since {} ({})".format(len(files), since or "?", why))


def plan(folder, lists):
    record = load(folder)
    every, near, reached = (set(lines(lists, name)) for name in ("all", "near", "reached"))
    if not every:
        sys.exit("rotation.py: Bazel names no test")
    record["run"] += 1
    record["seen"] = {label: seen for label, seen in record["seen"].items() if label in every}
    save(folder, record)
    third = -(-len(every) // 3)
    others = sorted(every - near, key=lambda label: (age(record, label), label))
    others = others[:third] + [label for label in others[third:] if label in reached]
    batches = [sorted(near)] + [others[begin:begin + third] for begin in range(0, len(others), third)]
    for number, batch in enumerate(batches):
        write("".join(label + "\n" for label in batch), lists, str(number))
    print("run {}: {} tests, {} of them near the change, {} reached; to be seen: {}".format(
        record["run"], len(every), len(near), len(reached), len(near) + len(others)))


def seen(folder, lists, events):
    record = load(folder)
    commit = (lines(folder, CHANGED) or [""])[0]
    passed, failed = set(), set()
    for event in count_tests.events_of(count_tests.read(events)):
        if "testResult" in event:
            good = event["testResult"].get("status") == "PASSED"
            (passed if good else failed).add(event["id"]["testResult"]["label"])
    date = datetime.date.today().isoformat()
    for label in passed - failed:
        record["seen"][label] = {"run": record["run"], "commit": commit, "date": date}
    if all(age(record, label) == record["run"] for label in lines(lists, "near")):
        record["commit"] = commit
    save(folder, record)


def left(folder, lists):
    record = load(folder)
    every = lines(lists, "all")
    now = sum(age(record, label) == record["run"] for label in every)
    unseen = {}
    for label in sorted(every):
        if age(record, label) <= max(0, record["run"] - 3):
            package, name = label.split(":")
            unseen.setdefault(package, []).append(name)
    print("{} of {} tests were seen in this run, {} in none of the last three{}".format(
        now, len(every), sum(map(len, unseen.values())), ", listed above" if unseen else ""))
    for package, names in unseen.items():
        print("NOT SEEN: {}: {}".format(package, " ".join(names)))


if __name__ == "__main__":
    {"changed": changed, "plan": plan, "seen": seen, "left": left}[sys.argv[1]](*sys.argv[2:])
