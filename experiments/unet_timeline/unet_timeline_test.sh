#!/bin/bash
# Tests the whole program: mistakes, the three ways of each row, the timeline.
#   unet_timeline_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "did you mean dep-str-ptl?" --experiment=dep-str-pt
expect_mistake "sums up to 241, but" --balance=34,76,70,61 --ways=measured
expect_mistake "is for 2 partitions" --balance=34,35
expect_mistake "needs 4 devices" --devices=cpu,cpu --ways=measured
expect_mistake "is for measured pipelines" --ways=planned --trace="$work/trace.json"
expect_mistake "is for measured rows" --ways=simulated --steps=5
expect_mistake "--steps=0: give a number from 1" --steps=0
[ "$("$program" --steps=0 2>&1 | grep -c -e "--steps=0")" -eq 1 ] || fail "--steps=0 is refused more than once"
expect_mistake "is for simulated rows" --ways=measured,planned --link_latency=1e-3
expect_mistake "cannot read" --profile="$work/none.json"

"$program" --ways=measured,simulated --steps=1 --epochs=2 --json="$work/table.json" \
  --trace="$work/trace.json" >"$work/all.log" 2>&1 || fail "a run"
"$program" --ways=planned --experiment=dep-str-ptl --json="$work/planned.json" \
  >"$work/planned.log" 2>&1 || fail "a plan"
for row in baseline dep-x-x dep-str-x dep-str-ptl; do
  grep -q "^$row  *measured " "$work/all.log" || fail "no measured row $row"
  [ -s "$work/trace.$row.json" ] || fail "no trace of $row"
done
python3 - "$work/table.json" "$work/planned.json" "$work" <<'END' || fail "the figures"
import json, sys
def figures(path):
    return {(row["experiment"], row["way"]): {key: of["ours"] for key, of in row["figures"].items()}
            for row in json.load(open(path))["rows"]}
ours = figures(sys.argv[1])
names = ["baseline", "dep-x-x", "dep-str-x", "dep-str-ptl"]
for name in names:
    assert ours[name, "measured"]["throughput"] > 0, name
    assert 0 < ours[name, "measured"]["utilization"] <= 100, name
    assert 0 < ours[name, "measured"]["memory"] < 1, name
# Each optimization makes the simulated step faster.
simulated = [ours[name, "simulated"]["throughput"] for name in names]
assert simulated == sorted(simulated) and simulated[0] < simulated[3], simulated
assert 10 < figures(sys.argv[2])["dep-str-ptl", "planned"]["memory"] < 40
# Without direct skips the trace has more transfers, because each skip goes through every partition. Early recomputes
# come in one piece: the baseline has a single recompute on the last worker.
def events(name, phase):
    trace = json.load(open(f"{sys.argv[3]}/trace.{name}.json"))
    # The measured step; its simulation is the second process.
    first = min(event["pid"] for event in trace["traceEvents"])
    return [event for event in trace["traceEvents"] if event["ph"] == phase and event["pid"] == first]
assert len(events("dep-str-x", "s")) > len(events("dep-str-ptl", "s"))
def recomputes(name):
    return len([event for event in events(name, "X")
                if event["cat"] == "recompute" and event["tid"] == 3])
assert recomputes("baseline") == 1 and recomputes("dep-x-x") == 7, recomputes("dep-x-x")
END
# The table must have remarks on the ways that were used, and on no others.
grep -q "Simulated: at full" "$work/all.log" || fail "no remark on simulations"
grep -q "Planned: at full" "$work/all.log" && fail "a remark on plans, of which there are none"
grep -q "Planned: at full" "$work/planned.log" || fail "no remark on plans"
grep -q "Measured: --scale" "$work/planned.log" && fail "a remark on measurements, of which there are none"
grep -q "recomputes ahead of" "$work/all.log" || fail "the note of the baseline"
echo PASSED
