#!/bin/bash
# Tests that commands let their waiting threads sleep: OMP_WAIT_POLICY and GOMP_SPINCOUNT are set
# when OpenMP's library is loaded, and nothing else changes.
#   wait_policy_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh
unset OMP_WAIT_POLICY GOMP_SPINCOUNT

# expect WORDS LOG: expects that a line of the log is WORDS.
expect() { grep -q -x -e "$1" "$2" || fail "no line '$1'"; }

# With OMP_DISPLAY_ENV, OpenMP's library prints its settings whenever it is loaded. It is loaded
# twice here, because the program executes itself again with the variables set. The last output
# counts.
OMP_DISPLAY_ENV=verbose "$program" --word="two words" --code=7 >"$work/plain.log" 2>&1
[ $? -eq 7 ] || fail "the exit code of the work"
expect "policy passive" "$work/plain.log"
expect "spins 1000" "$work/plain.log"
expect "word two words" "$work/plain.log"
grep "OMP_WAIT_POLICY = " "$work/plain.log" | tail -n 1 | grep -q -i "passive" || fail "OpenMP's library did not read it"
grep "GOMP_SPINCOUNT = " "$work/plain.log" | tail -n 1 | grep -q "'1000'" || fail "OpenMP's library did not read the count"

# The program that is started again has the name and the process id of the first one.
bash -c 'echo "pid $$" >"$1"; exec -a "another name" "$2"' - "$work/pid" "$program" >"$work/name.log" 2>&1 ||
  fail "under another name"
expect "name another name" "$work/name.log"
expect "$(cat "$work/pid")" "$work/name.log"
expect "policy passive" "$work/name.log"

# If the user has set one of the variables, neither is changed. A signal that is ignored stays
# ignored.
OMP_WAIT_POLICY=active "$program" >"$work/active.log" 2>&1 || fail "with a policy"
expect "policy active" "$work/active.log"
expect "spins none" "$work/active.log"
GOMP_SPINCOUNT=77 "$program" >"$work/count.log" 2>&1 || fail "with a count"
expect "policy none" "$work/count.log"
expect "spins 77" "$work/count.log"
expect "ignores a closed terminal 0" "$work/active.log"
(
  trap '' HUP
  "$program"
) >"$work/nohup.log" 2>&1 || fail "under nohup"
expect "policy passive" "$work/nohup.log"
expect "ignores a closed terminal 1" "$work/nohup.log"

"$program" --no-such-flag >"$work/mistake.log" 2>&1
[ $? -eq 2 ] || fail "the exit code of a mistake"
expect_stopped "waiting" "$work/stopped.log" "$program" --wait
echo PASSED
