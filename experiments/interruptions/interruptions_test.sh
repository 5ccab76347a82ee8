#!/bin/bash
# Tests the whole program: mistakes, both rows, the JSON.
#   interruptions_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "did you mean disk?" --experiment=disc
expect_mistake "nothing is trained" --devices=cpu
expect_mistake "nothing is trained" --schedule=gpipe
expect_mistake "--workers=0" --workers=0
expect_mistake "--takes_partner=1.5" --takes_partner=1.5
expect_mistake "--takes_partner=nan" --takes_partner=nan
expect_mistake "--snapshot_steps=0" --snapshot_steps=0
expect_mistake "--recovery_seconds=-1" --recovery_seconds=-1
expect_mistake "a step takes 6 s.*give at least 0.1" --save_minutes=0.05
expect_mistake "at most 1e+08 of both are simulated; give fewer hours or workers" --hours=1e8
expect_mistake "failures and" --workers=100000000 --worker_hours=1

"$program" --json="$work/table.json" >"$work/all.log" 2>&1 || fail "a run"
grep -q "^Simulated, not run" "$work/all.log" || fail "the remark"
grep -q "Measured here, on 4 processes" "$work/all.log" || fail "what was measured"
"$program" --json="$work/again.json" >"$work/again.log" 2>&1 || fail "the same again"
"$program" --json="$work/other.json" --seed=1 --takes_partner=1 --experiment=memory >"$work/other.log" 2>&1 ||
  fail "another seed"
python3 - "$work" <<'END_OF_CHECK' || fail "the figures"
import json, math, sys
def figures(name):
    rows = json.load(open(f"{sys.argv[1]}/{name}.json"))["rows"]
    assert all(row["origin"] in ("simulated", "not run") for row in rows), rows
    return {row["experiment"]: {key: figure["ours"] for key, figure in row["figures"].items()} for row in rows}
table = figures("table")
assert table == figures("again")
memory, disk = table["memory"], table["disk"]
failures = 10000 * 1024 * 419 / (16000 * 54 * 24)
for row in table.values():
    parts = [row[key] or 0 for key in ("repeated", "recovering", "copying", "saving")]
    assert abs(sum(parts) - row["lost"]) < 1e-6 and abs(100 - row["lost"] / 100 - row["useful"]) < 1e-9, row
    assert abs(row["interruptions"] - failures) < 4 * math.sqrt(failures), row
# A failure during a recovery has no recovery of its own.
assert memory["interruptions"] == disk["interruptions"] >= disk["from_disk"] > 0.95 * disk["interruptions"], table
assert memory["from_disk"] == 0, memory
# A restart takes 10 minutes, and half of 30 are repeated: between 12 and 18, by four standard errors.
assert 22 < 60 * disk["lost"] / disk["interruptions"] < 28, disk
assert disk["copying"] is None and memory["lost"] < disk["lost"] / 3, table
other = figures("other")["memory"]
assert other["interruptions"] >= other["from_disk"] > 0.95 * other["interruptions"], other
assert other["interruptions"] != memory["interruptions"], other
END_OF_CHECK
echo PASSED
