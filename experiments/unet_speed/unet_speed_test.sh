#!/bin/bash
# Tests the whole program: mistakes, a measured and a simulated table, the JSON.
#   unet_speed_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh
tiny=(--batch_size=8 --samples=8)

expect_mistake "did you mean pipeline-2?" --experiment=pipline-2
expect_mistake "needs 8 devices" --experiment=pipeline-8 --devices=cpu,cpu
expect_mistake "is for measured rows" --ways=simulated --balance=120,121
expect_mistake "there is no 'planned'" --ways=planned
expect_mistake "give a number from 0 to 1e+30" --link_bandwidth=-1
expect_mistake "cannot read" --profile="$work/none.json"

"$program" "${tiny[@]}" --rounds=1 --epochs=1 --json="$work/table.json" >"$work/all.log" 2>&1 || fail "a run"
for row in baseline pipeline-1 pipeline-2 pipeline-4 pipeline-8; do
  grep -q "^$row  *measured " "$work/all.log" || fail "no measured row $row"
  grep -q "^$row  *simulated " "$work/all.log" || fail "no simulated row $row"
done
python3 - "$work/table.json" <<'END' || fail "the JSON"
import json, sys
table = json.load(open(sys.argv[1]))
assert table["name"] == "unet_speed", table["name"]
rows = {(row["experiment"], row["way"]): row for row in table["rows"]}
published = {"baseline": 28.5, "pipeline-1": 24.456, "pipeline-2": 35.502, "pipeline-4": 67.042,
             "pipeline-8": 88.497}
for name, throughput in published.items():
    figures = rows[name, "simulated"]["figures"]
    assert figures["throughput"]["published"]["torchgpipe"] == throughput, name
    # Simulated and published speed-up differ by less than a factor of two, because the simulation is of the published
    # run.
    assert 0.5 < figures["speed_up"]["compared"] < 2, (name, figures)
    assert rows[name, "measured"]["figures"]["throughput"]["ours"] > 0
assert abs(rows["baseline", "simulated"]["figures"]["throughput"]["ours"] - 28.5) < 1e-4
steps = rows["pipeline-2", "simulated"]["settings"]["steps"]
assert [step["micro_batches"] for step in steps] == [32, 31], steps
assert steps[1]["checkpoint"] == "always"
END
echo PASSED
