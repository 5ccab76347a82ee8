#!/bin/bash
# Tests the whole program: mistakes, the planned rows of the smallest and the largest model, the JSON.
#   llama_memory_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "did you mean 7b-always-even?" --experiment=7b-alway-even
expect_mistake "eight devices that need not be there" --devices=cpu
expect_mistake "two steps are planned" --epochs=2
expect_mistake "rows at full size (planned) are as published" --checkpoint=never
expect_mistake "planned" --ways=measured

"$program" --experiment=7b-always-even,7b-always-exact,70b-always-even --json="$work/table.json" \
  >"$work/all.log" 2>&1 || fail "a run"
grep -q "^Planned, not run" "$work/all.log" || fail "the remark"
python3 - "$work/table.json" <<'END_OF_CHECK' || fail "the figures"
import json, sys
rows = [row for row in json.load(open(sys.argv[1]))["rows"] if row["origin"] != "not run"]
assert [row["experiment"] for row in rows] == ["7b-always-even", "7b-always-exact", "70b-always-even"], rows
assert all(row["origin"] == "planned" for row in rows)

def parameters(blocks, width, kv_width, inner):
    """Embedding and head; queries and output, keys and values, the MLP's three, two norms; the last norm."""
    return 2 * 32000 * width + blocks * (2 * width**2 + 2 * width * kv_width + 3 * width * inner + 2 * width) + width

shapes = {"7b": (32, 4096, 4096, 11008), "70b": (80, 8192, 1024, 28672)}
for row in rows:
    name, settings = row["experiment"], row["settings"]
    ours = {key: figure["ours"] for key, figure in row["figures"].items()}
    count = parameters(*shapes[name.split("-")[0]])
    assert ours["parameters"] == count, (name, ours, count)
    # Weights, gradients, two moments; two bytes each.
    assert abs(ours["model_memory"] * 2**30 - 4 * 2 * count) < 1024, (name, ours)
    peaks = [peak / 2**30 for peak in settings["peak_bytes"]]
    assert len(peaks) == len(settings["balance"]) == len(settings["reserved_bytes"]) == 8
    assert abs(max(peaks) - ours["fullest"]) < 1e-9 and abs(min(peaks) - ours["emptiest"]) < 1e-9, (name, ours)
    assert abs(sum(peaks) - ours["memory"]) < 1e-6 and ours["reserved"] >= ours["fullest"], (name, ours)
    blocks = shapes[name.split("-")[0]][0]
    assert sum(settings["balance"]) == 2 * blocks + 3, settings
    if name.endswith("-even"):
        assert ours["step_of_even"] == 1, (name, ours)
        assert settings["balance"] == [2 * blocks // 8 + 1] + 6 * [2 * blocks // 8] + [2 * blocks // 8 + 2], settings
even, exact = (next(row for row in rows if row["experiment"] == "7b-always-" + cut) for cut in ("even", "exact"))
assert exact["figures"]["fullest"]["ours"] < even["figures"]["fullest"]["ours"], (even, exact)
END_OF_CHECK
echo PASSED
