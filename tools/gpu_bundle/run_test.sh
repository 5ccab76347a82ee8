#!/usr/bin/env bash
# Tests that a run.sh that is ended, by a signal or by day.sh's time limit, ends its test too, which may be over several
# processes, and says what it saw. The tests of this bundle are scripts.
#   run_test.sh run.sh
set -uo pipefail
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
bundle="${work}/bundle"
mkdir -p "${bundle}/test" "${work}/libtorch/lib"
install -m 755 "$1" "${bundle}/run.sh"
echo 9.8.7+cpu | tee "${bundle}/libtorch_version" >"${work}/libtorch/build-version"
touch "${work}/libtorch/lib/libtorch.so"
export LIBTORCH_ROOT="${work}/libtorch" PIDS="${work}/pids"
failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

cat >"${bundle}/test/a_good" <<'END'
#!/bin/sh
echo '{"tests": 2, "failures": 0, "disabled": 0, "errors": 0}' >"${1#--gtest_output=json:}"
END
cat >"${bundle}/test/b_hangs" <<'END'
#!/bin/bash
grep -q '^SigIgn:.*[2367abef]$' /proc/self/status && echo "SIGINT is ignored"
sleep 100 & # another rank
echo $$ $! >"${PIDS}.new" && mv "${PIDS}.new" "${PIDS}"
wait
END
cp "${bundle}/test/a_good" "${bundle}/test/c_good"
chmod +x "${bundle}"/test/*

# gone: whether the test's processes end within 5 s.
gone() {
  local pid tries
  for pid in $(<"${PIDS}"); do
    for ((tries = 0; tries < 50; ++tries)); do
      kill -0 "${pid}" 2>/dev/null || continue 2
      sleep 0.1
    done
    kill -KILL "${pid}"
    return 1
  done
}
# check WHAT CODE EXPECTED: what all these runs must have left.
check() {
  [[ $2 -eq $3 ]] || fail "$1: exit code $2, expected $3"
  gone || fail "$1: the test's processes go on"
  grep -qF "error: ended by SIGTERM" "${work}/log" || fail "$1: nothing says that it was ended"
  grep -qF '"program": "b_hangs", "kind": "test", "device": "cpu", "exit_code": 143' "${work}/out/summary.json" || fail "$1: no line of the test that was ended"
  grep -qF '"summary": true, "device": "cpu", "gpus"' "${work}/out/summary.json" || fail "$1: no summary"
  grep -qF '"programs": 2, "passed": 2, "failed": 1, "skipped": 0' "${work}/out/summary.json" || fail "$1: another summary"
  grep -qF "SIGINT is ignored" "${work}/out/b_hangs.log" && fail "$1: tests ignore SIGINT"
  [[ ${failures} -eq 0 ]] || cat "${work}/log" "${work}"/out/*.log >&2
  rm -rf "${work}/out" "${PIDS}"
}
run=("${bundle}/run.sh" --device=cpu "--output=${work}/out")

# By a signal to the script alone.
"${run[@]}" >"${work}/log" 2>&1 &
for ((tries = 0; tries < 200; ++tries)); do
  [[ ! -e ${PIDS} ]] || break
  sleep 0.1
done
kill -TERM $!
wait $!
check "a signal" $? 1

# By a `timeout` around it, as of day.sh, which signals the script's whole group.
timeout --kill-after=10 3 "${run[@]}" >"${work}/log" 2>&1
check "a time limit around it" $? 124

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
