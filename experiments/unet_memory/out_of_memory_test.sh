#!/bin/bash
# Tests the program with limited memory: a row must say that memory ran out, and the next row must
# still run.
#   out_of_memory_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

# Networks of the published sizes do not fit 2 GB. Both rows must fail and say why.
(
  ulimit -d 2000000
  "$program" --ways=measured --scale=full --experiment=pipeline-1,pipeline-2 --batch_size=1 --devices=cpu,cpu \
    --json="$work/full.json"
) >"$work/full.log" 2>&1
[ $? -eq 1 ] || fail "exit code after running out of memory"
for row in pipeline-1 pipeline-2; do
  grep -q "^$row: out of memory: " "$work/full.log" || fail "$row does not say that memory ran out"
  grep -q "^$row  *failed " "$work/full.log" || fail "$row is not labeled as failed"
done
python3 - "$work/full.json" <<'END' || fail "the JSON"
import json, sys
rows = {row["experiment"]: row for row in json.load(open(sys.argv[1]))["rows"]}
for name in ("pipeline-1", "pipeline-2"):
    row = rows[name]
    assert row["origin"] == "failed" and row["note"].startswith("out of memory: "), row
    assert all(figure["ours"] is None for figure in row["figures"].values()), row
END
echo PASSED
