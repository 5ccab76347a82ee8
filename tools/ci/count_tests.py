"""Counts the test cases of one `bazel test` truthfully.

usage: count_tests.py [--stopped] BUILD_EVENTS_JSON BAZEL_EXIT_CODE
       count_tests.py --compiled=TAG BUILD_EVENTS_JSON
       count_tests.py --cached BUILD_EVENTS_JSON
       count_tests.py --not_reached BUILD_EVENTS_JSON

Prints "passed failed skipped", then one line per failure. A case is counted once per run (shards and repeats
apart), and only if it ran in this one: what Bazel has kept from an earlier run is not counted. A test target that ended badly without a failed case (crash, time-out, no report) counts as one failure,
so does a test that could not be built, and so does an exit code that nothing else explains. With --stopped Bazel was
stopped because its time was over: tests that had not ended by then are not counted.

With --compiled it prints how many test targets with that tag were built and not run, because --test_tag_filters
leaves them out; with --cached "programs cases": how many were not run again, because they have passed before; with
--not_reached how many test targets have no result, because Bazel was stopped.
"""

import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree


# What Bazel says of a test that has ended by itself.
ENDED = ("PASSED", "FLAKY", "FAILED", "TIMEOUT")


def cases_of(path):
    """Returns (passed, [failed names], skipped) of a test.xml, or None if it is not a report."""
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return None
    passed, failed, skipped = 0, [], 0
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append("{}.{}".format(case.get("classname", ""), case.get("name", "")))
        elif case.find("skipped") is not None or case.get("result") in ("skipped", "suppressed"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def events_of(lines):
    """The events; the last line of a Bazel that was killed may be half a line."""
    broken = None
    for line in lines:
        if broken:
            raise broken
        try:
            event = json.loads(line)
        except ValueError as error:
            broken = error
            continue
        yield event


def report_of(result):
    """Like cases_of, for the test.xml of this result; None if there is none."""
    report = None
    for output in result.get("testActionOutput", []):
        if output.get("name") == "test.xml":
            report = cases_of(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path))
    return report


def is_kept(result):
    """Whether this result is of an earlier run. Bazel keeps only good results; a bad one counts as failed all the same."""
    earlier = result.get("cachedLocally") or result.get("executionInfo", {}).get("cachedRemotely")
    return bool(earlier) and result.get("status") == "PASSED"


def failed_to_build(event, stopped):
    """Whether this event says that a target has failed. A target that was not built because Bazel was stopped has not."""
    if event.get("completed", {}).get("success"):
        return False
    detail = json.dumps(event.get("completed", {}).get("failureDetail", {}))
    return not stopped or (detail != "{}" and "interrupt" not in detail.lower())


def count(lines, exit_code, stopped=False):
    passed, failures, skipped = 0, [], 0
    ran, not_built = set(), {}
    for event in events_of(lines):
        name = event.get("id", {})
        if "testResult" in name and "testResult" in event:
            label = name["testResult"]["label"]
            result = event["testResult"]
            if stopped and result.get("status") not in ENDED:
                continue
            ran.add(label)
            if is_kept(result):
                continue
            report = report_of(result)
            if report:
                passed += report[0]
                failures += ["{} {}".format(label, case) for case in report[1]]
                skipped += report[2]
            if result.get("status") not in ("PASSED", "FLAKY"):
                if not report or not report[1]:
                    failures.append("{} {}".format(label, result.get("status", "no status")))
            elif not report:
                failures.append("{} passed, but left no report".format(label))
        elif "targetCompleted" in name:
            if failed_to_build(event, stopped):
                not_built[name["targetCompleted"]["label"]] = True
        elif "testSummary" in name and not stopped:
            if event.get("testSummary", {}).get("overallStatus") == "NO_STATUS":
                not_built[name["testSummary"]["label"]] = True
    failures += ["{} could not be built".format(label) for label in sorted(not_built) if label not in ran]
    if stopped:
        return passed, failures, skipped
    if exit_code and not failures:
        failures.append("bazel ended with {}".format(exit_code))
    if not exit_code and not ran:
        failures.append("no test was run")
    return passed, failures, skipped


def targets(lines):
    """The test targets of these events: a dictionary of their tags, the set of those built, the set of those with a result."""
    tags, built, ran = {}, set(), set()
    for event in events_of(lines):
        name = event.get("id", {})
        if "targetConfigured" in name:
            target = event.get("configured", {})
            if target.get("targetKind", "").endswith("_test rule"):
                tags[name["targetConfigured"]["label"]] = target.get("tag", [])
        elif "targetCompleted" in name and event.get("completed", {}).get("success"):
            built.add(name["targetCompleted"]["label"])
        elif event.get("testResult", {}).get("status") in ENDED:
            ran.add(name["testResult"]["label"])
    return tags, built, ran


def compiled(lines, tag):
    tags, built, ran = targets(lines)
    return len({label for label in built - ran if tag in tags.get(label, [])})


def not_reached(lines):
    """Tests for GPUs are built and never run (.bazelrc), so they are left out."""
    tags, _, ran = targets(lines)
    return len({label for label, own in tags.items() if "requires-gpu-nvidia" not in own} - ran)


def cached(lines):
    programs, cases = set(), 0
    for event in events_of(lines):
        if "testResult" in event and is_kept(event["testResult"]):
            here = (report_of(event["testResult"]) or (0,))[0]
            cases += here
            # If all cases of a result were skipped, it does not count.
            if here:
                programs.add(event["id"]["testResult"]["label"])
    return len(programs), cases


def read(events):
    if not os.path.exists(events):
        return []
    with open(events, encoding="utf-8") as file:
        return [line for line in file if line.strip()]


def main():
    if sys.argv[1].startswith("--compiled="):
        print(compiled(read(sys.argv[2]), sys.argv[1].split("=", 1)[1]))
        return
    if sys.argv[1] == "--cached":
        print(*cached(read(sys.argv[2])))
        return
    if sys.argv[1] == "--not_reached":
        print(not_reached(read(sys.argv[2])))
        return
    stopped = sys.argv[1] == "--stopped"
    events, exit_code = sys.argv[2:] if stopped else sys.argv[1:]
    passed, failures, skipped = count(read(events), int(exit_code), stopped)
    print(passed, len(failures), skipped)
    for failure in failures:
        print(failure)


if __name__ == "__main__":
    main()
