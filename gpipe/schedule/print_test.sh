#!/bin/bash
# Tests that the program prints a schedule's text, drawing and facts, and refuses unknown flags and values.
set -eu

print=$1

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

expect() {  # <what it printed> <a whole line of it>
  grep -qxF -- "$2" <<<"$1" || fail "no line '$2' in:
$1"
}

out=$("$print" --schedule=1f1b --stages=2 --micro_batches=3)
expect "$out" 'worker 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2'
expect "$out" '0: F0 F1 .. B0 F2 B1 .. B2'
expect "$out" 'with every action taking one unit: makespan 8, bubble 25 %'
expect "$out" 'peak live micro-batches per stage: 2 1'
expect "$out" 'and per worker: 2 1'
expect "$out" 'sums in one order: yes'
expect "$out" 'actions by which receives must be posted ahead: 0'
expect "$out" 'sends that wait for their receiver: fine'

expect "$("$print" --schedule=gpipe --stages=1 --micro_batches=2 --backward_cost=2)" '0: F0 F1 B1--- B0---'

file=$TEST_TMPDIR/schedule.txt
printf 'stages 1\nmicro_batches 1\nworker 0: F0.0 I0.0 W0.0\n' >"$file"
expect "$("$print" --file="$file")" '0: F0 I0 W0'
expect "$(BUILD_WORKING_DIRECTORY=$TEST_TMPDIR "$print" --file=schedule.txt)" '0: F0 I0 W0'

refuse() {  # <part of the message> <arguments>
  local part=$1 out
  shift
  local code=0
  out=$("$print" "$@" 2>&1) || code=$?
  [[ $code == 2 ]] || fail "$*: exit code $code"
  grep -qF -- "$part" <<<"$out" || fail "$*: no '$part' in: $out"
}

refuse "--schedule=zbv: there is no schedule 'zbv' (did you mean zb-v?)" --schedule=zbv
refuse '--schedule=zb-v: the schedule zb-v with 2 stages per worker needs a multiple' --schedule=zb-v --stages=3
refuse "--schedule=x: y: there is no schedule 'x: y'; there are gpipe, fill-drain" --schedule='x: y'
refuse '--schedule=zb-h1: at most 2^24 cells' --schedule=zb-h1 --stages=2 --micro_batches=99999999
refuse '--stages=0: give a whole number of at least 1' --stages=0
refuse '--micro_batches=0: give a whole number of at least 1' --micro_batches=0
refuse '--stages_per_worker=-1: give a whole number of at least 0' --stages_per_worker=-1
for flag in forward_cost backward_cost input_gradient_cost weight_gradient_cost; do
  refuse "--$flag=0: give a whole number of at least 1" "--$flag=0"
done
refuse "'zb-v' is not a flag; --help lists the flags" zb-v
refuse 'there is no flag --stage; did you mean --stages?' --stage=3
refuse '--file=/nowhere/x: cannot read /nowhere/x: No such file or directory' --file=/nowhere/x
refuse 'it is a folder' --file="$TEST_TMPDIR"
# The program reads the tables of torch.distributed.pipelining if the file's name ends in .csv.
printf '0F0,0SEND_F0,,0RECV_B0,0BW0\n1RECV_F0,1F0,1B0,1SEND_B0,1W0\n' >"$TEST_TMPDIR/table.csv"
expect "$("$print" --file="$TEST_TMPDIR/table.csv")" 'worker 1: F1.0 I1.0 W1.0'
cp "$TEST_TMPDIR/table.csv" "$TEST_TMPDIR/table.txt"
refuse 'from a file whose name ends in .csv' --file="$TEST_TMPDIR/table.txt"
refuse "there is no schedule '1f\\x0a1b'" --schedule=$'1f\n1b'
printf 'stages 1\nmicro_batches 1\nworker 0: B0.0 F0.0\n' >"$file"
refuse 'B0.0 (worker 0 at position 0) comes before F0.0' --file="$file"
echo PASSED
