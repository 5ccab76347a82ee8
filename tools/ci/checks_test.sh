#!/usr/bin/env bash
# Tests, with made-up steps, that the last line of CI (tools/ci/checks.sh) is true.
set -uo pipefail

checks="${PWD}/tools/ci/checks.sh"
count="${PWD}/tools/ci/count_tests.py"
root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
export GPIPE_CACHE="${root}/cache"
unset GPIPE_CI_CACHE GPIPE_CI_ALL GPIPE_LIBTORCH
failures=0

# A clone whose Bazel passes one test, or has kept the result of an earlier run.
mkdir -p "${root}/clone/tools/ci"
cp "${checks}" "${count}" "${root}/clone/tools/ci/"
cat >"${root}/report.xml" <<'END'
<testsuites><testsuite><testcase name="a"/><testcase name="b"/></testsuite></testsuites>
END
cat >"${root}/clone/tools/bazel" <<END
#!/usr/bin/env bash
[[ \$1 != info ]] || { echo "${root}/base"; exit 0; }
echo "bazel \$*"
[[ \$1 != help || -z "\${OLD:-}" ]] || echo "  --[no]incompatible_exclusive_test_sandboxed (a boolean; default: false)"
[[ \$1 == test ]] || exit 0
for word; do [[ \${word} != --build_event_json_file=* ]] || events="\${word#*=}"; done
[[ -z "\${LONG:-}" ]] || { trap 'echo "{\"id\": {\"targetConfigured\": {\"label\": \"//a\"}}, \"configured\": {\"targetKind\": \"cc_test rule\"}}" >"\${events}"; exit 8' INT; while :; do sleep 0.1; done; }
printf '{"id": {"testResult": {"label": "//a"}}, "testResult": {"status": "PASSED", %s "testActionOutput": [{"name": "test.xml", "uri": "file://${root}/report.xml"}]}}\n' "\${KEPT:-}" >"\${events}"
printf '{"id": {"targetConfigured": {"label": "//g"}}, "configured": {"targetKind": "cc_test rule", "tag": ["requires-gpu-nvidia"]}}\n' >>"\${events}"
printf '{"id": {"targetCompleted": {"label": "//g"}}, "completed": {"success": true}}\n' >>"\${events}"
exit "\${BAZEL_CODE:-0}"
END
chmod +x "${root}/clone/tools/bazel"
# A made-up machine.sh prints the file `machine`.
printf '#!/usr/bin/env bash\ncat "%s"\n' "${root}/machine" >"${root}/clone/tools/ci/machine.sh"
chmod +x "${root}/clone/tools/ci/machine.sh"
echo this >"${root}/machine"

# try NAME CODE LAST_LINE [TEXT]: runs the steps on stdin as a script.
try() {
  local code
  { printf 'cd %q || exit 9\nsource tools/ci/checks.sh\n' "${root}/clone"; cat; echo finish; } >"${root}/script.sh"
  bash "${root}/script.sh" >"${root}/log" 2>&1
  code=$?
  if [[ ${code} -ne $2 || "$(tail -n 1 "${root}/log")" != "$3" ]] || ! grep -qF -- "${4:-}" "${root}/log"; then
    printf 'FAILED: %s: exit code %s:\n' "$1" "${code}" >&2
    cat "${root}/log" >&2
    failures=$((failures + 1))
  fi
}
script() { # NAME LINES...: a part
  printf '%s\n' '#!/usr/bin/env bash' "${@:2}" >"${root}/$1"
  chmod +x "${root}/$1"
}

try "all is well" 0 "3 passed, 0 failed" <<<'check "a" true; tests "t" . //...'
try "one fails, the next still runs" 1 "1 passed, 1 failed" "FAILED: a" <<<'check "a" false; check "b" true'
BAZEL_CODE=3 try "bazel's exit code counts" 1 "2 passed, 1 failed" "bazel ended with 3" <<<'tests "t" . //...'
BAZEL_CODE=137 try "Bazel was killed, and not for lack of time" 1 "2 passed, 1 failed" "bazel ended with 137" <<<'tests "t" . //...'
try "times are told at the end" 0 "1 passed, 0 failed" "NOTE: times: a 0m0" <<<'check "a" sleep 1.1'
try "a timed step keeps its code" 0 "1 passed, 0 failed" "code 7" <<<'check "a" true; timed "b" bash -c "exit 7"; echo "code $?"'
try "beside: it counts, and its words are shown" 0 "2 passed, 0 failed" "42 words" <<<'beside "b" printf "%s words\n" 42; check "a" true'
try "beside: it fails" 1 "1 passed, 1 failed" "FAILED: b" <<<'beside "b" false; check "a" true'
# shellcheck disable=SC2016 # expanded by that script
script kills 'kill -9 "${PPID}"'
script waits "for ((tries = 0; tries < 600; ++tries)); do [[ ! -e ${root}/now ]] || exit 0; sleep 0.05; done; exit 1"
try "beside: at the same time" 0 "2 passed, 0 failed" "NOTE: times: a 0m0" <<<"beside b ${root}/waits; check a touch ${root}/now; joined"
try "beside: a second one waits for the first" 1 "2 passed, 1 failed" "FAILED: one" <<<'beside one false; beside two true; check a true'
try "beside: it was killed" 1 "1 passed, 1 failed" "FAILED: b" <<<"beside b ${root}/kills; check a true; joined"
try "nothing was done" 1 "0 passed, 0 failed" </dev/null

try "GPU tests are seen, and count for nothing" 0 "2 passed, 0 failed" "NOTE: 1 GPU tests compiled, not run: no GPU" \
  <<<'tests "t" . //...; note_gpu_tests'
try "no nvcc" 0 "1 passed, 0 failed" "NOTE: CUDA kernels: not compiled" <<<'check "a" true; note_kernels'
mkdir -p "${root}/base/external/local_cuda" "${root}/cuda/bin"
printf 'CUDA_TOOLKIT = "%s"\nCUDA_ARCHITECTURES = ["80"]\n' "${root}/cuda" >"${root}/base/external/local_cuda/cuda.bzl"
printf '#!/usr/bin/env bash\necho "Cuda compilation tools, release 13.0, V13.0.88"\n' >"${root}/cuda/bin/nvcc"
chmod +x "${root}/cuda/bin/nvcc"
try "nvcc" 0 "1 passed, 0 failed" "CUDA kernels: compiled by nvcc 13.0.88 of ${root}/cuda" <<<'check "a" true; note_kernels'

# The made-up Bazel has kept the result of an earlier run, so its test does not count as passed.
export KEPT='"cachedLocally": true,'
try "what was not run is not counted" 0 "1 passed, 0 failed" \
  "NOTE: t: 1 programs with 2 cases were not run again: they have passed before on this machine" <<<'check "a" true; tests "t" . //...'
try "all is kept" 0 "0 passed, 0 failed" "NOTE: t: 1 programs" <<<'tests "t" . //...'
BAZEL_CODE=3 try "all is kept, and Bazel failed" 1 "0 passed, 1 failed" "bazel ended with 3" <<<'tests "t" . //...'
unset KEPT
try "nothing is kept" 0 "2 passed, 0 failed" "0 notes" <<<"tests t . //...; echo \"\${#notes[@]} notes\""

# Checks which kept results Bazel may use: those of this machine, since the last run of all tests.
result="--test_env=GPIPE_CI_MACHINE"
try "always run" 0 "2 passed, 0 failed" "--nocache_test_results" <<<'tests "t" . //...'
try "kept" 0 "2 passed, 0 failed" "--cache_test_results=auto --flaky_test_attempts=1 ${result}=this --" <<<'keep_results; tests "t" . //...'
OLD=1 try "kept, also of exclusive tests" 0 "2 passed, 0 failed" "${result}=this --incompatible_exclusive_test_sandboxed" \
  <<<'keep_results; tests "t" . //...'
GPIPE_CI_START=7 GPIPE_CI_ALL=1 try "all, once" 0 "2 passed, 0 failed" "${result}=this-7 --" <<<'keep_results; tests "t" . //...'
try "what was kept before a run of all counts never again" 0 "2 passed, 0 failed" "${result}=this-7 --" <<<'keep_results; tests "t" . //...'
GPIPE_CI_START=8 GPIPE_CI_ALL=1 try "all, again" 0 "2 passed, 0 failed" "${result}=this-8 --" <<<'keep_results; tests "t" . //...'
echo that >"${root}/machine"
try "another machine" 0 "2 passed, 0 failed" "${result}=that-8 --" <<<'keep_results; tests "t" . //...'
rm "${root}/machine"
try "a machine that nobody knows" 0 "2 passed, 0 failed" "--nocache_test_results" <<<'keep_results; tests "t" . //...'
echo this >"${root}/machine"
touch "${root}/no-folder"
GPIPE_CI_CACHE="${root}/no-folder" try "no objects are kept" 0 "2 passed, 0 failed" "--nocache_test_results" <<<'keep_results; tests "t" . //...'

# CI under another version of LibTorch passes that version's flags to Bazel. It keeps the compiled
# objects and the test results of each version apart.
mkdir -p "${root}/clone/third_party/libtorch"
cat >"${root}/clone/third_party/libtorch/libtorch.sh" <<'END'
#!/usr/bin/env bash
[[ ${GPIPE_LIBTORCH:-} != 1.0 ]] || { echo "GPipe: 1.0 is unknown" >&2; exit 1; }
case "$1" in
  default) echo 3.0 ;;
  cxx) [[ ${GPIPE_LIBTORCH:-} == 2.0 ]] && echo 17 || echo 20 ;;
esac
END
chmod +x "${root}/clone/third_party/libtorch/libtorch.sh"
objects="--disk_cache=${root}/cache/ci-objects"
try "the default version" 0 "2 passed, 0 failed" "bazel test --config=ci ${objects} --" <<<'tests "t" . //...'
GPIPE_LIBTORCH=3.0 try "the default version, by its name" 0 "2 passed, 0 failed" "bazel test --config=ci ${objects} --" <<<'tests "t" . //...'
GPIPE_LIBTORCH=2.0 try "another version, which needs C++17" 0 "2 passed, 0 failed" \
  "bazel test --config=ci --config=cxx17 ${objects}-libtorch-2.0 --" <<<'tests "t" . //...'
GPIPE_LIBTORCH=2.5 try "another version, which needs C++20" 0 "2 passed, 0 failed" \
  "bazel test --config=ci ${objects}-libtorch-2.5 --" <<<'tests "t" . //...'
# shellcheck disable=SC2016 # expanded by that script
GPIPE_LIBTORCH=2.5 try "another version: its parts know" 0 "1 passed, 0 failed" "LibTorch 2.5." \
  <<<'check "a" bash -c "echo LibTorch \${GPIPE_LIBTORCH}."'
GPIPE_LIBTORCH=2.5 GPIPE_CI_START=9 GPIPE_CI_ALL=1 try "another version: all, once" 0 "2 passed, 0 failed" "${result}=this-9 --" \
  <<<'keep_results; tests "t" . //...'
try "another version: what the default's results are is as before" 0 "2 passed, 0 failed" "${result}=this-8 --" \
  <<<'keep_results; tests "t" . //...'
GPIPE_LIBTORCH=1.0 try "a version that is not in the list" 1 "GPipe: 1.0 is unknown" <<<'check "a" true'

# A disk with 1500 KiB less than 1 GiB free, and kept files on it of 1 MiB each.
mkdir -p "${root}/disk"
printf '#!/usr/bin/env bash\n[[ $* == *1K* ]] && printf "Avail\\n1047076\\n" || printf "Avail\\n    0\\n"\n' >"${root}/disk/df"
chmod +x "${root}/disk/df"
on_disk() { # NAME LEFT COMMANDS
  rm -rf "${GPIPE_CACHE:?}"
  mkdir -p "${GPIPE_CACHE}"/{,bare/}ci-objects "${GPIPE_CACHE}"/{libtorch,bare/ci-objects-libtorch-2.0}
  local file days
  while read -r days file; do
    head --bytes=1M /dev/zero >"${GPIPE_CACHE}/${file}"
    touch --date="${days} days ago" "${GPIPE_CACHE}/${file}"
  done <<<$'9 bare/ci-objects-libtorch-2.0/a\n6 bare/ci-objects/b 2\n3 ci-objects/c\n1 ci-objects/d\n9 libtorch/e'
  PATH="${root}/disk:${PATH}" try "$1" 0 "1 passed, 0 failed" "left: $2;" \
    <<<"check a true; $3; echo \"left: \$(find ${GPIPE_CACHE} -type f -printf '%f\n' | sort | tr '\n' ' ');\""
}
# This file was written long ago, but read today.
reads="touch --no-create --time=atime '${GPIPE_CACHE}/bare/ci-objects-libtorch-2.0/a'"
on_disk "there is room" "a b 2 c d e " "make_room 0"
on_disk "the oldest go" "c d e " "make_room 1"
on_disk "what the last days used stays, and what nobody else has" "d e " "make_room 5"
on_disk "what was read lately stays" "a d e " "${reads}; make_room 5"
# shellcheck disable=SC2016 # expanded by that script
PATH="${root}/disk:${PATH}" try "free GiB" 0 "1 passed, 0 failed" "free: 0;" <<<'check "a" true; echo "free: $(free_gib .);"'

LONG=1 PATH="${root}/disk:${PATH}" try "stopped before the disk is full" 0 "1 passed, 0 failed" \
  "NOTE: t: stopped for lack of disk: 1 test programs were not run" <<<'check "a" true; least_gib=1; tests "t" . //...'
LONG=1 try "stopped when its time is over" 0 "1 passed, 0 failed" \
  "NOTE: t: stopped for lack of time: 1 test programs were not run" <<<'check "a" true; seconds=1; tests "t" . //...'
# shellcheck disable=SC2016 # expanded by that script
late='GPIPE_CI_START=$(($(date +%s) - 80 * 60)); '
try "a step that would end too late" 0 "1 passed, 0 failed" "NOTE: t: left out, because no time was left" \
  <<<"${late}"'check "a" true; ! in_time 11 "t" || tests "t" . //...'
try "all is left out" 0 "0 passed, 0 failed" "NOTE: t: left out" <<<"${late}"'in_time 11 "t"'
# shellcheck disable=SC2016
try "a step for which there is time" 0 "2 passed, 0 failed" "until: 5" \
  <<<"${late}"'! in_time 9 "t" || tests "t" . //...; echo "until: $(seconds_until_left 1)"'
# shellcheck disable=SC2016
try "a time that is over" 0 "1 passed, 0 failed" "until: 1;" <<<"${late}"'check "a" true; echo "until: $(seconds_until_left 20);"'
PATH="${root}/disk:${PATH}" try "a full disk is none of the watch's business" 0 "2 passed, 0 failed" <<<'tests "t" . //...'

script good 'echo "7 passed, 0 failed"'
script bad 'echo "FAILED: Build did NOT complete"' 'echo "=== [1m02s] done"' 'echo "FAILED: a test"' 'echo "5 passed, 2 failed"' 'exit 1'
script noted 'echo "NOTE: no GPU"' 'echo "1 passed, 0 failed"'
script kept 'echo "NOTE: t: 1 programs"' 'echo "0 passed, 0 failed"'
script nothing 'echo "0 passed, 0 failed"' 'exit 1'
script died 'echo "halfway"' 'exit 137'
script liar 'echo "4 passed, 0 failed"' 'exit 1'
try "parts add up" 1 "12 passed, 2 failed" "FAILED: two: a test" <<<"part one ${root}/good; part two ${root}/bad"
try "a part's own failures are those of its end" 1 "12 passed, 2 failed" "0 lines of Bazel's" \
  <<<"part one ${root}/good; part two ${root}/bad; echo \"\$(printf '%s\n' \"\${failures[@]}\" | grep -c Build) lines of Bazel's\""
try "a part's notes" 0 "1 passed, 0 failed" "NOTE: three: no GPU" <<<"part three ${root}/noted"
try "a part of which all is kept" 0 "0 passed, 0 failed" "NOTE: four: t: 1 programs" <<<"part four ${root}/kept"
try "a part that did nothing" 1 "0 passed, 1 failed" "FAILED: five: exit code 1" <<<"part five ${root}/nothing"
try "a part without a count" 1 "7 passed, 1 failed" "two: it ended without a count (exit code 137)" \
  <<<"part one ${root}/good; part two ${root}/died"
try "a part whose exit code contradicts its count" 1 "4 passed, 1 failed" "exit code 1" <<<"part one ${root}/liar"

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
