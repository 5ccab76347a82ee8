#!/usr/bin/env bash
# What the scripts of CI share: steps that pass or fail, and an honest count. To be sourced from the root of the
# clone. A failed step does not stop the next one; `finish` prints the last line, "N passed, N failed".
#
# GPIPE_CI_START: when CI began, in seconds since 1970, where this script is a part of it; GPIPE_CI_CACHE: the folder for
# what outlives a run, GPIPE_CACHE if that is set.

bazel="${PWD}/tools/bazel"
ci_root="${PWD}"
exec </dev/null
export CI=true

passed=0 failed=0
failures=() notes=() times=()
scratch="$(mktemp -d)"
trap 'rm -rf "${scratch}"' EXIT
: "${GPIPE_CI_START:=$(date +%s)}"

# Since CI began.
elapsed() { echo $(($(date +%s) - GPIPE_CI_START)); }
say() {
  local seconds
  seconds="$(elapsed)"
  printf '\n=== [%dm%02ds] %s\n' $((seconds / 60)) $((seconds % 60)) "$*"
}

# timed NAME COMMAND...: a step, whose time the end will tell.
timed() {
  local name="$1" begin code
  shift
  begin="$(date +%s)"
  "$@"
  code=$?
  local spent=$(($(date +%s) - begin))
  times+=("${name} $((spent / 60))m$(printf "%02d" $((spent % 60)))s")
  return "${code}"
}

# Bazel's cache of object files, which outlives the clone. Bazel renews the date of what it uses. CI has one of its own:
# that of a person may hold what only a toolkit's headers let compile.
flags=(--config=ci)
: "${GPIPE_CI_CACHE:=${GPIPE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/gpipe}}"
export GPIPE_CI_CACHE
cache="${GPIPE_CI_CACHE}/ci-objects"
# What the bare machine (tools/ci/bare.sh) has fetched serves this one, too: wheels are the same files for all.
[[ ! -d ${GPIPE_CI_CACHE}/bare ]] || export GPIPE_CACHE="${GPIPE_CI_CACHE}/bare"
if mkdir -p "${cache}" 2>/dev/null && [[ -w ${cache} ]]; then
  flags+=("--disk_cache=${cache}")
  find "${cache}" -type f -mtime +30 -delete
fi

# Results of an earlier run prove nothing about this machine.
cached_results=(--nocache_test_results)

# check NAME COMMAND...: one thing that passes or fails as a whole.
check() {
  local name="$1"
  shift
  say "${name}: $*"
  if timed "${name}" "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1)) failures+=("${name}")
  fi
}

# count_events NAME CODE [--stopped]: each test case of the `bazel test` counts that has just ended with that exit code,
# or because it was stopped.
count_events() {
  local name="$1" code="$2" counts good bad skipped
  counts="$(python3 "${ci_root}/tools/ci/count_tests.py" ${3:+"$3"} "${scratch}/events" "${code}")" || counts=""
  read -r good bad skipped <<<"${counts:-0 1 0}"
  passed=$((passed + good)) failed=$((failed + bad))
  while read -r line; do [[ -z ${line} ]] || failures+=("${name}: ${line}"); done < <(tail -n +2 <<<"${counts:-
tools/ci/count_tests.py failed}")
  echo "${name}: ${good} passed, ${bad} failed, ${skipped} skipped"
}

bazel_test() { # FOLDER ARGUMENTS...
  (cd "$1" && timeout --signal=INT --kill-after=60 "${seconds}" "${bazel}" test "${flags[@]}" "${cached_results[@]}" \
    --build_event_json_file="${scratch}/events" "${@:2}")
}

# tests NAME FOLDER ARGUMENTS...: `bazel test` in a workspace; each test case counts. After ${seconds} seconds it
# is stopped: what has not been run by then is neither passed nor failed, and a NOTE says so.
seconds=100000
tests() {
  local name="$1" folder="$2" code begin stopped=""
  shift 2
  say "${name}: bazel test $*"
  rm -f "${scratch}/events"
  begin="$(elapsed)"
  timed "${name}" bazel_test "${folder}" "$@"
  code=$?
  # Bazel may also be killed by somebody else, say for want of memory.
  if [[ ${code} -eq 124 || ${code} -eq 137 ]] && [[ $(($(elapsed) - begin)) -ge ${seconds} ]]; then
    stopped=--stopped
    note "${name}: stopped for lack of time: not all was run"
  fi
  count_events "${name}" "${code}" ${stopped:+"${stopped}"}
  local again
  again="$(python3 "${ci_root}/tools/ci/count_tests.py" --cached "${scratch}/events" 2>/dev/null)"
  [[ ${again:-0} -eq 0 ]] || note "${name}: ${again} test programs have passed before on this machine, as they are, and were not run again"
}

# note TEXT: what is neither passed nor failed, but should be seen; also before the last line.
note() {
  echo "$*"
  notes+=("$*")
}

# Notes how many GPU tests the last `tests` has compiled, and could not run.
note_gpu_tests() {
  local count
  count="$(python3 "${ci_root}/tools/ci/count_tests.py" --compiled=requires-gpu-nvidia "${scratch}/events")"
  note "${count:-0} GPU tests compiled, not run: no GPU"
}

# Notes whether CUDA kernels (.cu) are compiled here, or stubs stand for them (third_party/cuda).
note_kernels() {
  local toolkit
  toolkit="$(sed -n 's/^CUDA_TOOLKIT = "\(.*\)"$/\1/p' "$("${bazel}" info output_base 2>/dev/null)/external/local_cuda/cuda.bzl" 2>/dev/null)"
  if [[ -n ${toolkit} ]]; then
    note "CUDA kernels: compiled by nvcc $("${toolkit}/bin/nvcc" --version | sed -n 's/.*release .*, V\([0-9.]*\).*/\1/p') of ${toolkit}"
  else
    note "CUDA kernels: not compiled, stubs stand for them: no nvcc"
  fi
}

run_part() {
  GPIPE_CI_START="${GPIPE_CI_START}" "$@" 2>&1 | tee "${scratch}/part"
  return "${PIPESTATUS[0]}"
}

# part NAME SCRIPT...: another script that ends with such a line; its counts are added. One that ends without a
# line has failed.
part() {
  local name="$1" last good bad
  shift
  say "${name}: $*"
  timed "${name}" run_part "$@"
  local code=$?
  last="$(tail -n 1 "${scratch}/part")"
  if [[ ${last} =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    good="${BASH_REMATCH[1]}" bad="${BASH_REMATCH[2]}"
  else
    good=0 bad=1
    failures+=("${name}: it ended without a count (exit code ${code})")
  fi
  if [[ ${code} -ne 0 && ${bad} -eq 0 ]]; then
    bad=1
    failures+=("${name}: exit code ${code}")
  fi
  passed=$((passed + good)) failed=$((failed + bad))
  # What it says at its end. Bazel has such lines, too, and so has a part within it.
  tac "${scratch}/part" | sed '/^=== .* done$/q' >"${scratch}/end"
  while read -r line; do failures+=("${name}: ${line#FAILED: }"); done < <(tac "${scratch}/end" | grep '^FAILED: ')
  while read -r line; do notes+=("${name}: ${line#NOTE: }"); done < <(tac "${scratch}/end" | grep '^NOTE: ')
}

# The exit code is 0 if nothing failed and something passed.
finish() {
  say "done"
  [[ ${#times[@]} -eq 0 ]] || note "times: $(printf '%s, ' "${times[@]}" | sed 's/, $//')" >/dev/null
  [[ ${#notes[@]} -eq 0 ]] || printf 'NOTE: %s\n' "${notes[@]}"
  [[ ${#failures[@]} -eq 0 ]] || printf 'FAILED: %s\n' "${failures[@]}"
  echo "${passed} passed, ${failed} failed"
  [[ ${failed} -eq 0 && ${passed} -gt 0 ]]
}
