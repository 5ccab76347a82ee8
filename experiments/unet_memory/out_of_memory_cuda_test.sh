#!/bin/bash
# Tests the program when a GPU's memory runs out: the row must say so, and the other row must stay.
#   out_of_memory_cuda_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

# The parameters and gradients of pipeline-8 alone take 118 GiB. The baseline with one image takes
# some 4 GiB.
"$program" --ways=measured --scale=full --experiment=pipeline-8,baseline --batch_size=1 \
  --devices=cuda:0,cuda:0,cuda:0,cuda:0,cuda:0,cuda:0,cuda:0,cuda:0 --json="$work/full.json" >"$work/full.log" 2>&1
code=$?
python3 - "$work/full.json" <<'END' || fail "the rows"
import json, sys
rows = {row["experiment"]: row for row in json.load(open(sys.argv[1]))["rows"]}
baseline, deep = rows["baseline"], rows["pipeline-8"]
assert baseline["origin"] == "measured" and baseline["figures"]["memory"]["ours"] > 1, baseline
# On a GPU with more than 118 GiB pipeline-8 fits and is measured. On a smaller one it must fail for lack of memory.
assert deep["origin"] == "measured" or deep["origin"] == "failed" and deep["note"].startswith("out of memory: "), deep
END
if grep -q "^pipeline-8: out of memory: " "$work/full.log"; then
  [ "$code" -eq 1 ] || fail "exit code $code after running out of memory"
else
  [ "$code" -eq 0 ] || fail "exit code $code"
fi
echo PASSED
