#!/bin/bash
# Tests the whole program: mistakes, a measured and a simulated table, the JSON.
#   amoebanetd_speed_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh
tiny=(--batch_size=4 --samples=4)

expect_mistake "did you mean n2m4?" --experiment=n2n4
expect_mistake "there is no 'baseline'" --experiment=baseline
expect_mistake "needs 4 devices" --experiment=n4m4 --devices=cpu,cpu

"$program" --experiment=n2m1,n8m4 "${tiny[@]}" --rounds=1 --epochs=1 --ways=measured >"$work/measured.log" 2>&1 ||
  fail "a measured run"
for row in n2m1 n8m4; do
  grep -q "^$row  *measured " "$work/measured.log" || fail "no measured row $row"
done
grep -q "checkpoint always, 1f1b" "$work/measured.log" || fail "one micro-batch is checkpointed"

"$program" --ways=simulated --json="$work/table.json" >"$work/simulated.log" 2>&1 || fail "a simulated run"
python3 - "$work/table.json" <<'END' || fail "the JSON"
import json, sys
table = json.load(open(sys.argv[1]))
rows = {row["experiment"]: row for row in table["rows"]}
assert len(rows) == 9 and table["ratio"]["reference"] == "n2m1"
for name, row in rows.items():
    assert row["way"] == "simulated", row
    assert 0.4 < row["figures"]["speed_up"]["compared"] < 2.5, (name, row["figures"])
assert abs(rows["n2m1"]["figures"]["throughput"]["ours"] - 26.733) < 1e-4
assert rows["n2m1"]["figures"]["speed_up"]["ours"] == 1
assert rows["n8m32"]["figures"]["speed_up"]["published"] == {"torchgpipe": 4.953, "Huang et al.": 3.48}
assert [step["times"] for step in rows["n4m32"]["settings"]["steps"]] == [8, 1]
END
echo PASSED
