#!/bin/bash
# The program prints a table, best first, and writes files; it refuses what makes no sense.
set -eu

compare=$1

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

out=$("$compare" --workers=2 --micro_batches=4 --memory=2 --budget=1000000 \
  --svg="$TEST_TMPDIR/a.svg" --json="$TEST_TMPDIR/a.json")
grep -qE '^schedule +makespan +bubble +peak +splits +transfers +slack$' <<<"$out" || fail "$out"
grep -qE '^1f1b +15\.00 +20\.0 % +2\.00 +0 +4 +[0-9.]+$' <<<"$out" || fail "no 1f1b in: $out"
grep -qE '^fill-drain .* does not fit$' <<<"$out" || fail "fill-drain fits: $out"
grep -q '^0: F' <<<"$out" || fail "nothing is drawn: $out"
grep -q '</svg>' "$TEST_TMPDIR/a.svg" || fail "no picture"
grep -q '"name": "zb-v"' "$TEST_TMPDIR/a.json" || fail "no zb-v in the file"
BUILD_WORKING_DIRECTORY=$TEST_TMPDIR "$compare" --workers=2 --micro_batches=2 --nosearch \
  --json=b.json >/dev/null
[[ -s $TEST_TMPDIR/b.json ]] || fail "the file is not where the user is"
out=$("$compare" --workers=0 2>&1) && fail "accepted no workers"
grep -q 'at least 1, got 0' <<<"$out" || fail "$out"
echo PASSED
