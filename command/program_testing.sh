# shellcheck shell=bash
# Functions for tests that run commands as programs. Tests source this file. Requires: $program, the
# program to test.
work=${TEST_TMPDIR:-$(mktemp -d)}
unset BUILD_WORKING_DIRECTORY
# Each program has one thread, because tests run in parallel and threads that spin while they wait
# for a core would cost minutes.
export OMP_NUM_THREADS=1

fail() {
  echo "FAILED: $*"
  for log in "$work"/*.log; do echo "--- $log"; cat "$log"; done
  exit 1
}

# expect_mistake TEXT FLAG...: expects that $program with these flags ends with exit code 2 and a
# message with TEXT, before anything is trained.
expect_mistake() {
  local text=$1
  shift
  "${program:?}" "$@" >"$work/mistake.log" 2>&1
  [ $? -eq 2 ] || fail "exit code for $*"
  grep -q -e "$text" "$work/mistake.log" || fail "no '$text' for $*"
  if grep -q "samples/sec" "$work/mistake.log"; then fail "something ran for $*"; fi
}

# expect_mistake_of_ranks PROCESSES TEXT COMMAND...: expects a usage mistake, as expect_mistake
# does, of a command that $launch starts in PROCESSES processes. Only one of them reports the
# mistake.
expect_mistake_of_ranks() {
  local processes=$1 text=$2 ranks
  shift 2
  "${launch:?}" "--processes=$processes" -- "$@" >"$work/mistake.log" 2>&1
  [ $? -eq 2 ] || fail "exit code of $processes processes for $*"
  ranks=$(grep -c '^launch: rank [0-9]* (process [0-9]*) ended with exit code 2' "$work/mistake.log")
  [ "$ranks" -eq "$processes" ] || fail "$ranks of $processes processes end with exit code 2 for $*"
  [ "$(grep -c 'error: ' "$work/mistake.log")" -eq 1 ] || fail "not one error for $*"
  grep -q -e "^\[0\] error: $text" "$work/mistake.log" || fail "no 'error: $text' for $*"
  # The launcher's last line tells where to find the reason. It is a message about the rank that
  # ended first, which may be any.
  tail -n 1 "$work/mistake.log" | grep -q -F "output of rank 0, [0], says why
its output, [0], says why" || fail "the last line for $*"
}

# by_rank RANK FLAG COMMAND...: sets `command` to a command for expect_mistake_of_ranks that gives
# one process another flag.
by_rank() {
  # shellcheck disable=SC2016 # expanded in each process
  # shellcheck disable=SC2034 # used by the script that sources this
  command=(bash -c 'if [ "$RANK" = "$1" ]; then exec "${@:3}" "$2"; fi; exec "${@:3}"' bash "$@")
}

# expect_stopped TEXT LOG COMMAND...: waits until TEXT is in the LOG of the command, and expects
# that Ctrl-C then ends the command with exit code 130 within seconds.
expect_stopped() { expect_stopped_by INT 130 "$@"; }

# expect_stopped_by SIGNAL CODE TEXT LOG COMMAND...: does what expect_stopped does, for another
# signal and exit code.
expect_stopped_by() {
  local signal=$1 code=$2 text=$3 log=$4 pid got
  shift 4
  # Job control is on (set -m), because without it a shell's background jobs ignore SIGINT.
  set -m
  "$@" >"$log" 2>&1 &
  pid=$!
  set +m
  for _ in $(seq 1200); do
    grep -q -e "$text" "$log" && break
    sleep 0.05
  done
  SECONDS=0
  kill "-$signal" "$pid"
  wait "$pid"
  got=$?
  [ "$got" -eq "$code" ] || fail "exit code $got after SIG$signal"
  [ "$SECONDS" -lt 30 ] || fail "SIG$signal took $SECONDS seconds"
}
