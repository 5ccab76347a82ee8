#!/bin/bash
# Tests the whole program: mistakes, planned and measured rows, the JSON.
#   unet_memory_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "did you mean pipeline-2?" --experiment=baseline,pipline-2
expect_mistake "sums up to 50, but" --ways=measured --experiment=pipeline-2 --balance=20,30
expect_mistake "is for measured rows" --ways=planned --experiment=pipeline-2 --chunks=4
expect_mistake "needs 8 devices" --experiment=pipeline-8 --devices=cpu,cpu
expect_mistake "not for baseline" --experiment=baseline --chunks=4
expect_mistake "trains two steps" --epochs=3
expect_mistake "is for measured pipelines" --ways=planned --trace="$work/trace.json"

# At full size the baseline takes 21 GiB. The machine may have less, so the row is planned and not
# measured.
"$program" --ways=planned --experiment=baseline --json="$work/planned.json" >"$work/planned.log" 2>&1 ||
  fail "a plan"
grep -q "^baseline  *planned " "$work/planned.log" || fail "no planned row"
"$program" --ways=measured --json="$work/measured.json" >"$work/measured.log" 2>&1 || fail "a run"
for row in baseline pipeline-1 pipeline-2 pipeline-4 pipeline-8; do
  grep -q "^$row  *measured " "$work/measured.log" || fail "no measured row $row"
done
"$program" --ways=measured --experiment=pipeline-2 --explain --trace="$work/trace.json" >"$work/why.log" 2>&1 ||
  fail "a run with a trace"
grep -q "pipeline-2, why it is slow" "$work/why.log" || fail "no explanation"
[ -s "$work/trace.json" ] || fail "no trace"
# The table must have remarks on the ways that were used, and on no others.
grep -q "Planned: the published" "$work/planned.log" || fail "no remark on plans"
grep -q "Measured: --scale" "$work/planned.log" && fail "a remark on measurements, of which there are none"
grep -q "Measured: --scale" "$work/measured.log" || fail "no remark on measurements"
grep -q "Planned: the published" "$work/measured.log" && fail "a remark on plans, of which there are none"
sed -n '/^U-Net memory/,/^LibTorch/p' "$work/measured.log" >"$work/table.txt"
grep -q . "$work/table.txt" || fail "no table"
awk 'length > 80' "$work/table.txt" | grep -q . && fail "a line of the table is too long"
python3 - "$work/planned.json" "$work/measured.json" <<'END' || fail "the JSON"
import json, sys
planned, measured = ({row["experiment"]: row for row in json.load(open(path))["rows"]} for path in sys.argv[1:])
row = planned["baseline"]
figures = {key: figure["ours"] for key, figure in row["figures"].items()}
assert figures["parameters"] == 362157516
assert abs(figures["model_memory"] * 2**30 - 8 * 362157516) < 1
assert abs(figures["model_memory"] + figures["activation_memory"] - figures["memory"]) < 1e-9
assert 20 < figures["memory"] < 22.4 and row["figures"]["memory"]["published"]["torchgpipe"] == 20.3
assert abs(row["figures"]["memory"]["compared"] * 20.3 - figures["memory"]) < 1e-9
for name, partitions in [("baseline", 1), ("pipeline-4", 4), ("pipeline-8", 8)]:
    row = measured[name]
    assert len(row["settings"]["peak_bytes"]) == 1  # one CPU
    assert row["figures"]["memory"]["ours"] > row["figures"]["model_memory"]["ours"] > 0
    assert row["figures"]["memory"]["compared"] is None  # another network on another machine
    assert len(row["settings"].get("balance", [1])) == partitions
assert measured["pipeline-8"]["settings"]["checkpoint"] == "always"
assert planned["baseline"]["settings"]["scale"] == "full"
for name, devices in [("baseline", "cpu"), ("pipeline-2", "cpu,cpu")]:
    settings = measured[name]["settings"]
    assert [settings[key] for key in ("scale", "devices", "seed")] == ["smoke", devices, 0], settings
END
echo PASSED
