#!/bin/bash
# Tests the whole program: mistakes, rows that are predicted and measured.
#   unet_schedules_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "did you mean zb-h1?" --experiment=zb-h2
expect_mistake "the rows are the schedules" --schedule=zb-v
expect_mistake "those of --scale" --batch_size=4
expect_mistake "--trace" --trace="$work/trace.json"

"$program" --json="$work/table.json" >"$work/all.log" 2>&1 || fail "a run"
python3 - "$work/table.json" <<'END' || fail "the figures"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
ours = {(row["experiment"], row["way"]): {key: of["ours"] for key, of in row["figures"].items()} for row in rows}
names = ["1f1b", "zb-h1", "interleaved", "zb-v"]
assert set(ours) == {(name, way) for name in names for way in ("measured", "simulated")}, set(ours)
for name in names:
    measured, simulated = ours[name, "measured"], ours[name, "simulated"]
    assert measured["step"] > 0 and 0 <= simulated["idle"] < 100, (name, ours)
    ratio = measured["step"] / simulated["step"]
    assert abs(measured["of_predicted"] - ratio) < 1e-6 * ratio, (name, ours)
    assert abs(measured["relative"] * ours["1f1b", "measured"]["step"] / measured["step"] - 1) < 1e-6, (name, ours)
    assert len(next(row for row in rows if row["experiment"] == name)["settings"]["balance"]) == \
        (4 if name in ("interleaved", "zb-v") else 2)
END
grep -q "None of this was published" "$work/all.log" || fail "the remark"
echo PASSED
