#!/usr/bin/env bash
# Runs the programs of this bundle (tools/gpu_bundle/README.md in GPipe for C++) on a machine that has the LibTorch that
# they were built with.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# The version that pack.sh noted, such as 2.15.0+cu132. Programs run with any patch release of it.
if ! built_with="$(cat "${here}/libtorch_version" 2>/dev/null)"; then
  echo "error: ${here}/libtorch_version, which says for which LibTorch this bundle is, is missing: unpack the archive again" >&2
  exit 2
fi
version="$(grep -oE '^[0-9]+\.[0-9]+' <<<"${built_with}")"

usage() {
  cat <<END
usage: run.sh [--list] [--device=cuda|cpu] [--only=PATTERN]... [--benchmarks] [--output=DIR] [--timeout=SECONDS]
       run.sh [--device=cuda|cpu] [--timeout=SECONDS] NAME ARGUMENTS...

Without a name it runs the tests, with --benchmarks the benchmarks too, and prints a line of JSON for each and one at
the end: {"summary": true, "passed": ..., "failed": ..., "skipped": ...}. Its exit code is 0 if nothing failed.
With a name it runs that program, such as \`run.sh resnet101_speed --devices=cuda:0 --scale=small\`; a test under the same
rules, such as \`run.sh gpipe_tests_graphs_graphs_cuda_test --gtest_filter='Graphs.*' --gtest_repeat=5\`.

  --list            the programs in here
  --device=cuda     where tests run. On cuda a skipped test is a failure; cpu shows that the bundle is whole: tests that
                    need a GPU start there, list their cases and count them as skipped
  --only=PATTERN    of them only those whose names match, such as '*device*'; of several patterns those of the first one
                    run first, and no program twice
  --output=DIR      logs and the tests' reports go here, and the lines of JSON, which replace those of a run before;
                    default: results beside this script
  --timeout=SECONDS of each program; default 600, for a program by its name none

LibTorch ${version} (these programs were built with ${built_with}) is taken from LIBTORCH_ROOT (an unpacked LibTorch or a
site-packages folder), else from the first of \`python3\` and \`python\` that has torch ${version}.
END
}

fail() {
  echo "error: $*" >&2
  exit 2
}

# library_folder: the folder of libtorch.so under a LibTorch or a site-packages folder.
library_folder() {
  local folder
  for folder in "$1/lib" "$1/torch/lib"; do
    [[ -e ${folder}/libtorch.so ]] && echo "${folder}" && return 0
  done
  return 1
}

# version_of FOLDER: prints the version of the LibTorch in a folder of libtorch.so, like
# "2.11.0+cu130"; nothing if it is unknown.
version_of() {
  local file
  for file in "$1/../build-version" "$1/../version.py"; do
    [[ -r ${file} ]] || continue
    grep -m 1 -oE '[0-9]+\.[0-9]+\.[0-9]+[a-z0-9.+]*' "${file}" && return 0
  done
}

find_torch() {
  local python root
  if [[ -n ${LIBTORCH_ROOT:-} ]]; then
    torch="$(library_folder "${LIBTORCH_ROOT}")" || fail "LIBTORCH_ROOT=${LIBTORCH_ROOT} has no lib/libtorch.so and no torch/lib/libtorch.so"
    found="$(version_of "${torch}")"
    [[ ${found} == "${version}".* ]] || fail "LIBTORCH_ROOT=${LIBTORCH_ROOT} is LibTorch ${found:-of an unknown version}; this bundle was built with ${built_with}: give it a LibTorch ${version}, or pack one for yours"
    return
  fi
  local seen=()
  for python in python3 python; do
    type -P "${python}" >/dev/null || continue
    # This only looks for torch, because importing it would take seconds.
    root="$("${python}" -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null)"
    [[ -n ${root} ]] || { seen+=("${python}: no torch") && continue; }
    torch="$(library_folder "${root}")" || continue
    found="$(version_of "${torch}")"
    [[ ${found} == "${version}".* ]] && return
    seen+=("${python}: torch ${found:-of an unknown version}")
  done
  fail "no LibTorch ${version} here (${seen[*]:-no python3}), with which this bundle was built: set LIBTORCH_ROOT, or pack one for yours"
}

# need_cuda: refuses a LibTorch for the CPU. Such a LibTorch may have the same version, but with it
# all tests would fail.
need_cuda() {
  [[ -e ${torch}/libtorch_cuda.so ]] ||
    fail "LibTorch ${found} in ${torch} has no libtorch_cuda.so, it is for the CPU only: set LIBTORCH_ROOT to one for CUDA, or give --device=cpu"
}

list=0 device=cuda only=() benchmarks=0 output="${here}/results" timeout="" name=""
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help) usage && exit 0 ;;
    --list) list=1 ;;
    --device=*) device="${1#*=}" ;;
    --only=*) only+=("${1#*=}") ;;
    --benchmarks) benchmarks=1 ;;
    --output=*) output="${1#*=}" ;;
    --timeout=*) timeout="${1#*=}" ;;
    -*) fail "unknown flag $1; --help lists them" ;;
    *)
      name="$1"
      shift
      break
      ;;
  esac
  shift
done
[[ ${device} == cuda || ${device} == cpu ]] || fail "--device=${device}: give cuda or cpu"
[[ ${timeout:-1} =~ ^[1-9][0-9]*$ ]] || fail "--timeout=${timeout}: give seconds"
[[ ${#only[@]} -gt 0 ]] || only=('*')

[[ ${output} == /* ]] || output="${PWD}/${output}"
cd "${here}" || exit 1
shopt -s nullglob
if [[ ${list} -eq 1 ]]; then
  printf '%s\n' test/* gpu_test/* multi_gpu/* benchmark/* program/*
  exit 0
fi

find_torch
# LibTorch's own folder comes first, because it has the libstdc++ that LibTorch needs.
export LD_LIBRARY_PATH="${torch}:${here}/lib${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}"

# Sets the variables by which tests choose the device and forbid skips.
under_rules() {
  export GPIPE_TEST_DEVICE="${device}"
  if [[ ${device} == cuda ]]; then export GPIPE_FORBID_SKIPS=1; else unset GPIPE_FORBID_SKIPS; fi
}

if [[ -n ${name} ]]; then
  for program in {program,benchmark,test,gpu_test,multi_gpu}/"${name##*/}"; do
    [[ -x ${program} ]] && break
  done
  if [[ -x ${program} ]]; then
    [[ ${program} != *test/* && ${program} != multi_gpu/* ]] || under_rules
    cd "${OLDPWD}" || exit 1
    [[ -z ${timeout} ]] || exec timeout --kill-after=5 "${timeout}" "${here}/${program}" "$@"
    exec "${here}/${program}" "$@"
  fi
  fail "there is no program ${name}: $(printf '%s ' test/* gpu_test/* multi_gpu/* benchmark/* program/*)"
fi
timeout="${timeout:-600}"

[[ ${device} != cuda ]] || need_cuda
mkdir -p "${output}" || fail "--output=${output} cannot be written"
output="$(cd "${output}" && pwd)"
under_rules

# field FILE KEY: prints the number after the first "KEY": in a report of GoogleTest.
field() { grep -m 1 -oE "\"$2\": [0-9]+" "$1" | grep -oE '[0-9]+$'; }
quoted() {
  local text="${1//\\/\\\\}"
  printf '"%s"' "${text//\"/\\\"}"
}

# matches PATTERN KIND/NAME: whether the pattern matches KIND/NAME, or NAME alone.
# shellcheck disable=SC2053 # a pattern
matches() { [[ $2 == $1 || ${2#*/} == $1 ]]; }

# limited LOG COMMAND...: runs a command for the time limit at most. `timeout` makes a process group
# of its own, so a signal that ends this script would leave the command running, on the GPU too.
# Therefore the signal is passed on, and then only the summary follows.
ended="" child=""
# shellcheck disable=SC2317 # the traps call it
end() {
  ended="$1"
  [[ -z ${child} ]] || kill -TERM "${child}" 2>/dev/null
}
trap 'end SIGTERM' TERM
trap 'end SIGINT' INT
trap 'end SIGHUP' HUP
limited() {
  local log="$1" code
  # Bash has commands that it runs in the background ignore SIGINT.
  env --default-signal=INT,QUIT timeout --kill-after=5 "${timeout}" "${@:2}" >"${log}" 2>&1 &
  child=$!
  [[ -z ${ended} ]] || kill -TERM "${child}"
  wait "${child}"
  code=$?
  # A signal interrupts `wait`.
  while kill -0 "${child}" 2>/dev/null; do
    wait "${child}"
    code=$?
  done
  child=""
  return "${code}"
}

passed=0 failed=0 skipped=0 ran=0
run_one() { # KIND PROGRAM ARGUMENTS...
  local kind="$1" program="$2" label report log code begin good bad left
  shift 2
  label="$(basename "${program}")" report="${output}/${label}.json" log="${output}/${label}.log"
  rm -f "${report}"
  begin="$(date +%s)"
  limited "${log}" "${program}" "$@"
  code=$?
  good=0 bad=0 left=0
  if [[ ${kind} == test && -s ${report} ]]; then
    left="$(grep -c '"result": "SKIPPED"' "${report}")"
    bad=$(($(field "${report}" failures) + $(field "${report}" errors)))
    good=$(($(field "${report}" tests) - $(field "${report}" disabled) - bad - left))
  elif [[ ${code} -eq 0 && ${kind} != test ]]; then
    good=1
  fi
  # Any other exit code means a crash, a time-out, or a skipped test where skips are forbidden.
  [[ ${code} -eq 0 || ${bad} -gt 0 ]] || bad=1
  # A test without a report has not shown anything, and counts as failed.
  [[ ${kind} != test || -s ${report} ]] || bad=$((bad > 0 ? bad : 1))
  passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + left)) ran=$((ran + 1))
  printf '{"program": %s, "kind": "%s", "device": "%s", "exit_code": %d, "seconds": %d, "passed": %d, "failed": %d, "skipped": %d, "log": %s}\n' \
    "$(quoted "${label}")" "${kind}" "${device}" "${code}" $(($(date +%s) - begin)) "${good}" "${bad}" "${left}" "$(quoted "${log}")"
}

# list_one: without a GPU, checks that the test starts, for which it needs all its libraries, and
# counts its cases as skipped.
list_one() { # PROGRAM
  local label log code begin left=0 bad=0
  label="$(basename "$1")" log="${output}/$(basename "$1").log"
  begin="$(date +%s)"
  limited "${log}" "./$1" --gtest_list_tests
  code=$?
  left="$(grep -c '^  ' "${log}")"
  [[ ${code} -eq 0 && ${left} -gt 0 ]] || bad=1 left=0
  failed=$((failed + bad)) skipped=$((skipped + left)) ran=$((ran + 1))
  printf '{"program": %s, "kind": "test", "device": "none", "exit_code": %d, "seconds": %d, "passed": 0, "failed": %d, "skipped": %d, "log": %s}\n' \
    "$(quoted "${label}")" "${code}" $(($(date +%s) - begin)) "${bad}" "${left}" "$(quoted "${log}")"
}

gpu_count="$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')"
run_any() { # KIND/NAME
  local kind="${1%%/*}"
  if [[ ${kind} == benchmark ]]; then
    run_one benchmark "./$1" --benchmark_format=json
  elif [[ ${kind} != test && ${device} == cpu ]]; then
    echo "$1 is not run: what it tests needs a GPU" >&2
    list_one "$1"
  elif [[ ${kind} == multi_gpu && ${gpu_count} -lt 2 ]]; then
    # On one GPU the test cannot test anything. A message says so, and it does not count as a
    # failure.
    echo "$1 is left out: it needs two GPUs, and nvidia-smi lists ${gpu_count}" >&2
    ran=$((ran + 1)) skipped=$((skipped + 1))
  else
    run_one test "./$1" "--gtest_output=json:${output}/$(basename "$1").json"
  fi
}

all=(test/* gpu_test/* multi_gpu/*)
[[ ${benchmarks} -eq 0 ]] || all+=(benchmark/*)
{
  declare -A done_already
  for pattern in "${only[@]}"; do
    before="${ran}"
    for program in "${all[@]}"; do
      [[ -z ${ended} ]] || break 2
      if matches "${pattern}" "${program}"; then
        [[ -n ${done_already[${program}]:-} ]] || run_any "${program}"
        done_already[${program}]=1 before=-1
      fi
    done
    [[ ${before} -lt 0 ]] || { echo "error: no program matches --only=${pattern}; --list shows them" >&2 && failed=$((failed + 1)); }
  done
  gpus="$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c | awk '{$1 = $1 " x"; print}' | paste -sd ',')"
  printf '{"summary": true, "device": "%s", "gpus": %s, "libtorch": "%s", "programs": %d, "passed": %d, "failed": %d, "skipped": %d}\n' \
    "${device}" "$(quoted "${gpus}")" "${found}" "${ran}" "${passed}" "${failed}" "${skipped}"
  [[ ${device} == cpu || -n ${gpus} ]] ||
    echo "error: nvidia-smi lists no GPU, and on cuda a skipped test is a failure; --device=cpu shows that the bundle is whole" >&2
  [[ -z ${ended} ]] || echo "error: ended by ${ended}; what did not run is not in the summary" >&2
  [[ ${failed} -eq 0 && -z ${ended} ]]
} > >(trap '' TERM INT HUP && exec tee "${output}/summary.json")
code=$?
wait
exit "${code}"
