#!/bin/bash
# Tests the whole program: both editions, planned and measured rows, the JSON.
#   amoebanetd_memory_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "2019-06" --edition=2019-07
expect_mistake "naive-1" --edition=2019-06 --experiment=baseline
expect_mistake "is for measured rows" --ways=planned --experiment=pipeline-2 --batch_size=4

# Plans the first rows of both tables, which are the cheapest. The baseline does not fit the
# published device.
"$program" --ways=planned --experiment=baseline --json="$work/planned.json" >"$work/planned.log" 2>&1 ||
  fail "a plan"
"$program" --edition=2019-06 --ways=planned --experiment=naive-1 --json="$work/old.json" >"$work/old.log" 2>&1 ||
  fail "a plan of the older edition"
"$program" --ways=measured --json="$work/measured.json" >"$work/measured.log" 2>&1 || fail "a run"
for row in baseline pipeline-1 pipeline-2 pipeline-4 pipeline-8; do
  grep -q "^$row  *measured " "$work/measured.log" || fail "no measured row $row"
done
"$program" --edition=2019-06 --ways=measured --experiment=naive-1,pipeline-2 >"$work/old_measured.log" 2>&1 ||
  fail "a run of the older edition"
grep -q "^pipeline-2  *measured " "$work/old_measured.log" || fail "no measured row of the older edition"
grep -q "assumed: " "$work/old_measured.log" || fail "what is assumed is not said"
python3 - "$work/planned.json" "$work/old.json" "$work/measured.json" <<'END' || fail "the JSON"
import json, sys
reports = [json.load(open(path)) for path in sys.argv[1:]]
assert [report["edition"] for report in reports] == ["", "2019-06", ""]
planned, old, measured = ({row["experiment"]: row for row in report["rows"]} for report in reports)
row = planned["baseline"]
assert row["figures"]["parameters"]["ours"] == 81505540 and row["origin"] == "planned"
assert row["figures"]["activation_memory"]["ours"] is None and row["note"].startswith("out of memory")
assert row["figures"]["activation_memory"]["published"]["torchgpipe"] == "Out of memory"
assert abs(row["figures"]["model_memory"]["ours"] * 2**30 - 12 * 81505540) < 1
assert old["naive-1"]["figures"]["parameters"]["ours"] == 89745302
row = measured["pipeline-2"]
assert row["figures"]["activation_memory"]["ours"] > 0 and row["settings"]["balance"] == [6, 3]
END
echo PASSED
