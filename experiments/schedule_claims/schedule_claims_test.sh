#!/bin/bash
# Tests the whole program: mistakes, all rows, the JSON.
#   schedule_claims_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "did you mean 1.5b-zb-h1?" --experiment=1.5b-zb-h11
expect_mistake "nothing is run here" --devices=cpu
expect_mistake "choose some of them with --experiment" --schedule=gpipe
expect_mistake "nothing is trained" --epochs=2
expect_mistake "simulated" --ways=measured

"$program" --json="$work/table.json" >"$work/all.log" 2>&1 || fail "a run"
grep -q "^Simulated, not run" "$work/all.log" || fail "the remark"
python3 - "$work/table.json" <<'END_OF_CHECK' || fail "the figures"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert len(rows) == 43, len(rows)
differ = set()
for row in rows:
    name = row["experiment"]
    assert row["origin"] == "simulated" and "Condition: " in row["note"], row
    ours = {key: figure["ours"] for key, figure in row["figures"].items() if figure["ours"] is not None}
    texts = [text for figure in row["figures"].values() for text in (figure.get("published_text") or {}).values()]
    assert ("difference" in ours) == (len(texts) == 1), row
    if texts:
        (key,) = [key for key in ("idle", "step") if key in ours]
        assert abs(100 * (ours[key] - float(texts[0])) - ours["difference"]) <= 0.00501, row
        if ours["difference"]:
            differ.add(name)
    assert ("step" in ours) == (row["settings"].get("rank") in range(1, 8)), row
assert differ == {"dualpipe-equal-apart", "dualpipe-uneven-apart", "dualpipe-overlap", "gpipe-slow",
                  *(size + "b-interleaved" for size in ("1.5", "6.2", "14.6", "28.3"))}, differ
END_OF_CHECK
echo PASSED
