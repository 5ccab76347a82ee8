#!/bin/bash
# Tests the whole program: mistakes, then a small recording, replayed and compared.
#   libtorch_versions_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "give one of --record=FILE, --replay=FILE, --compare=FILE,FILE and --hashes=FILE"
expect_mistake "give one of" --record="$work/a" --replay="$work/a"
expect_mistake "say with --results=FILE" --replay="$work/a"
expect_mistake "'two' is not a number" --replay="$work/a" --results="$work/b" --threads=two
expect_mistake "threads" --replay="$work/a" --results="$work/b" --threads=0
expect_mistake "3 files were given" --compare=a,b,c

"$program" --record="$work/calls.pt" --most_calls=1 --programs=3 >"$work/record.log" 2>&1 || fail "record"
"$program" --replay="$work/calls.pt" --results="$work/a.pt" --threads=1,2 >"$work/replay.log" 2>&1 || fail "replay"
"$program" --compare="$work/a.pt,$work/a.pt" --all --json="$work/table.json" >"$work/compare.log" 2>&1 || fail "compare"
"$program" --compare="$work/a.pt" >"$work/threads.log" 2>&1 || fail "compare threads"
grep -q "^2 threads: .* operators" "$work/threads.log" || fail "the threads' table"
"$program" --compare="$work/calls.pt" >"$work/wrong.log" 2>&1 && fail "a recording compared"
grep -q "is not a file that --results writes" "$work/wrong.log" || fail "the message"
python3 - "$work/table.json" <<'END_OF_CHECK' || fail "the table"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
# A replay is equal to itself, in all of what the steps must meet.
assert all(row["differ"] == 0 and row["elements_differ"] == 0 for row in rows)
assert not [row for row in rows if row["why"]], [row for row in rows if row["why"]]
calls = {(row["operator"], row["type"]) for row in rows}
for kind in ("float32", "float64", "bfloat16"):
    for name in ("aten::addmm", "aten::mm", "aten::native_batch_norm_backward", "aten::convolution_backward",
                 "aten::_softmax", "aten::native_layer_norm", "aten::gelu_backward", "aten::addcdiv_"):
        assert (name, kind) in calls, (name, kind, sorted(calls))
END_OF_CHECK
"$program" --hashes="$work/once.txt" --programs=4 >"$work/hashes.log" 2>&1 || fail "hashes"
"$program" --hashes="$work/twice.txt" --programs=4 >"$work/hashes.log" 2>&1 || fail "hashes, again"
cmp -s "$work/once.txt" "$work/twice.txt" || fail "hashes that do not repeat"
[[ $(grep -cE '^[1-4] ([0-9a-f]{16}|invalid:) .*seed [1-4] .*$' "$work/once.txt") -eq 4 ]] || fail "a line for each program"
[[ $(cut -d' ' -f2 "$work/once.txt" | sort -u | wc -l) -gt 1 ]] || fail "hashes that are all the same"
echo PASSED
