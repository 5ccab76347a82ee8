#!/bin/bash
# Tests that the program prints a table, best first, and writes files, and that it refuses options
# that make no sense.
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
# The first worker takes 1 + 2 for each of the 4 micro-batches, and the second twice as long. So the
# second is idle only while the first runs its first forward and its last backward. The makespan is
# 4 * 6 + 1 + 2 = 27.
out=$("$compare" --workers=2 --micro_batches=4 --slowness=1,2 --nosearch)
grep -qE '^1f1b +27\.00 ' <<<"$out" || fail "not slower: $out"
# A --backward of 0 is used as given, and is not replaced by the sum of the halves.
out=$("$compare" --workers=2 --micro_batches=4 --backward=0 --nosearch)
grep -qE '^1f1b +5\.00 ' <<<"$out" || fail "not a backward of 0: $out"
# Numbers that are too wide for a column are shortened, so that no line is longer than 100
# characters.
out=$("$compare" --workers=2 --micro_batches=2 --forward=1e300 --nosearch --nodraw)
awk 'length > 100 { exit 1 }' <<<"$out" || fail "lines of more than a screen: $out"

refuse() {  # <part of the message> <arguments>
  local part=$1 out
  shift
  local code=0
  out=$("$compare" "$@" 2>&1) || code=$?
  [[ $code == 2 ]] || fail "$*: exit code $code"
  grep -qF -- "$part" <<<"$out" || fail "$*: no '$part' in: $out"
}
# Each mistake is reported with the name of its flag.
refuse '--workers=0: give a whole number of at least 1' --workers=0
refuse '--micro_batches=-3: give a whole number of at least 1' --micro_batches=-3
refuse '--budget=-1: give a whole number of at least 0' --budget=-1
refuse '--budget=1: give at least 384, the actions of the largest schedule, or 0' --budget=1
for flag in forward input weight backward transfer memory tolerance; do
  refuse "--$flag=-1: give a finite number of at least 0" "--$flag=-1" --workers=2 --nosearch
  refuse "--$flag=nan: give a finite number of at least 0" "--$flag=nan" --workers=2
done
for list in 1 1,1,1 1,0 1,-1 1,nan 1,inf '1,,' 1,x; do
  refuse "--slowness=$list: " --workers=2 --slowness="$list" --nosearch
done
refuse "--slowness=1,1,1: it has 3 numbers; give 2, one for each of --workers" --workers=2 --slowness=1,1,1
refuse "--slowness=1,nan: 'nan' is not a finite number above 0" --workers=2 --slowness=1,nan
refuse '--memory=0.5: none of these schedules fits; give 1' --workers=2 --memory=0.5 --nosearch
refuse '--workers=4000000 --micro_batches=4000000: give smaller ones' --workers=4000000 \
  --micro_batches=4000000
refuse "'workers=8' is not a flag; did you mean --workers?" workers=8
refuse "there is no flag --worker; did you mean --workers?" --worker=8
# Mistakes in the names of files are reported before the searches, which would take hours here.
refuse "--svg=$TEST_TMPDIR cannot be written: it is a folder" --svg="$TEST_TMPDIR" --budget=1000000000000
refuse "--svg=$TEST_TMPDIR/one and --json=$TEST_TMPDIR/one are the same file: give each its own" \
  --svg="$TEST_TMPDIR/one" --json="$TEST_TMPDIR/one" --budget=1000000000000
refuse '--json=--nosearch: its file is missing' --json --nosearch
refuse "'false' is not a flag" --search false
echo PASSED
