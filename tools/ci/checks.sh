#!/usr/bin/env bash
# The common part of the scripts of CI: steps that pass or fail, and an honest count of them. Source
# it from the root of the clone. A failed step does not stop the next one; `finish` prints the last
# line, "N passed, N failed".
#
# GPIPE_CI_START: when CI began, in seconds since 1970, if this script is a part of it. It has 90
# minutes. A machine without kept objects needs most of them for the README's tests. So a step that
# can be missed is begun only if it is likely to end in time (`in_time`), and a long one is stopped
# (`seconds_until_left`). A NOTE says what was left out.
# GPIPE_CI_CACHE: the folder for files that outlive a run, by default GPIPE_CACHE. GPIPE_CI_ALL=1:
# tests that have passed before are run, too. GPIPE_LIBTORCH: a version of
# third_party/libtorch/versions.txt (`.ci/run --libtorch=VERSION`), with objects and results of its
# own if it is not the default one.

bazel="${PWD}/tools/bazel"
ci_root="${PWD}"
exec </dev/null
export CI=true

# `not_run` counts programs with results of an earlier run, whose cases are not part of `passed`, and
# steps that were left out.
passed=0 failed=0 not_run=0
failures=() notes=() times=()
scratch="$(mktemp -d)"
trap 'rm -rf "${scratch}"' EXIT
: "${GPIPE_CI_START:=$(date +%s)}"

# The seconds since CI began.
elapsed() { echo $(($(date +%s) - GPIPE_CI_START)); }
say() {
  local seconds
  seconds="$(elapsed)"
  printf '\n=== [%dm%02ds] %s\n' $((seconds / 60)) $((seconds % 60)) "$*"
}

# seconds_until_left MINUTES: the seconds from now until so many of CI's 90 minutes are left, at least
# one.
seconds_until_left() {
  local seconds=$(((90 - $1) * 60 - $(elapsed)))
  echo $((seconds < 1 ? 1 : seconds))
}

# in_time MINUTES NAME: whether more than so many of CI's minutes are left; otherwise a NOTE says that
# the step is left out.
in_time() {
  [[ "$(seconds_until_left "$1")" -le 1 ]] || return 0
  note "$2: left out, because no time was left"
  not_run=$((not_run + 1))
  return 1
}

# timed NAME COMMAND...: runs a step; `finish` prints its time.
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

# Bazel's cache of object files outlives the clone. Debian's Bazel does not renew a file's dates
# when it uses the file, but the system updates the time of reading at least once a day. CI has a
# cache of its own, because a person's cache may hold objects that compile only with a toolkit's
# headers.
flags=(--config=ci)
of_version=""
if [[ -n ${GPIPE_LIBTORCH:-} ]]; then
  libtorch_cxx="$(third_party/libtorch/libtorch.sh cxx)" || exit 1
  [[ ${libtorch_cxx} != 17 ]] || flags+=(--config=cxx17)
  if [[ ${GPIPE_LIBTORCH} == "$(third_party/libtorch/libtorch.sh default)" ]]; then
    unset GPIPE_LIBTORCH
  else
    export GPIPE_LIBTORCH
    of_version="-libtorch-${GPIPE_LIBTORCH}"
  fi
fi
: "${GPIPE_CI_CACHE:=${GPIPE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/gpipe}}"
export GPIPE_CI_CACHE
cache="${GPIPE_CI_CACHE}/ci-objects${of_version}"
# Downloads of the bare machine (tools/ci/bare.sh) are used here, too, because wheels are the same
# files on all machines.
[[ ! -d ${GPIPE_CI_CACHE}/bare ]] || export GPIPE_CACHE="${GPIPE_CI_CACHE}/bare"
if mkdir -p "${cache}" 2>/dev/null && [[ -w ${cache} ]]; then
  flags+=("--disk_cache=${cache}")
  find "${cache}" -type f -mtime +30 -atime +30 -delete
else
  cache=""
fi

# free_gib FOLDER: the whole GiB that are free on its disk.
free_gib() { free_kib "$1" | awk '{ print int($1 / 1048576) }'; }
free_kib() { df --output=avail --block-size=1K "$1" | awk 'NR == 2 { print $1 }'; }

# make_room GIB: deletes kept objects and results that no run of the last two days has used, the
# oldest first, until GIB of disk are free.
make_room() {
  local folder size links file folders=()
  for folder in "${GPIPE_CI_CACHE}"/{,bare/}ci-objects{,-libtorch-*}; do
    [[ ! -d ${folder} ]] || folders+=("${folder}")
  done
  [[ ${#folders[@]} -gt 0 ]] || return 0
  local free missing
  free="$(free_kib "${GPIPE_CI_CACHE}")"
  [[ -n ${free} ]] || return 0
  missing=$(($1 * 1024 * 1024 - free))
  find "${folders[@]}" -type f -mtime +1 -atime +1 -printf '%A@ %k %n %p\0' | sort -zn | while IFS=' ' read -r -d '' _ size links file; do
    [[ ${missing} -gt 0 ]] || break
    printf '%s\0' "${file}"
    missing=$((missing - size / links))  # tools/ci/here.sh makes second links
  done | xargs -0 -r rm -f
}

# Bazel's flags for results of earlier runs. They do not count, unless a script calls keep_results.
cached_results=(--nocache_test_results)

# keep_results: from here on, if objects are kept, a test that has passed on this machine with the
# same inputs is not run again. A test that failed is run again. No test is tried twice in a run.
# With GPIPE_CI_ALL=1 everything is run, and older results never count again, so that a test that
# fails now cannot hide behind one. Call it after everything that tests may find is installed.
keep_results() {
  local since="" machine
  if [[ -z ${cache} ]] || ! machine="$(tools/ci/machine.sh)"; then
    cached_results=(--nocache_test_results)
    return
  fi
  [[ -z ${GPIPE_CI_ALL:-} ]] || echo "${GPIPE_CI_START}" >"${GPIPE_CI_CACHE}/ci-results-since${of_version}"
  [[ ! -f ${GPIPE_CI_CACHE}/ci-results-since${of_version} ]] || since="-$(<"${GPIPE_CI_CACHE}/ci-results-since${of_version}")"
  # Tests do not read this variable. It makes Bazel find only results of this machine.
  cached_results=(--cache_test_results=auto --flaky_test_attempts=1 "--test_env=GPIPE_CI_MACHINE=${machine}${since}")
  # Debian's Bazel runs exclusive tests without a sandbox, and does not keep their results. From
  # version 6 on Bazel can run them in one.
  if "${bazel}" help test --short 2>/dev/null | grep -q incompatible_exclusive_test_sandboxed; then
    cached_results+=(--incompatible_exclusive_test_sandboxed)
  fi
}

# check NAME COMMAND...: runs a step that passes or fails as a whole.
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

# beside NAME COMMAND...: runs a check at the same time as the next steps; `joined` waits for it and
# shows its output. It is for a check that needs one core, beside a step that needs one.
beside_name="" beside_process=""
beside() {
  joined
  beside_name="$1"
  shift
  say "${beside_name}: $* (beside what follows)"
  # The time goes to a file, because variables of a background process are lost.
  (
    begin="$(date +%s)"
    "$@"
    code=$?
    echo $(($(date +%s) - begin)) >"${scratch}/beside-time"
    exit "${code}"
  ) >"${scratch}/beside" 2>&1 &
  beside_process=$!
}
joined() {
  local code spent
  [[ -n ${beside_process} ]] || return 0
  wait "${beside_process}"
  code=$?
  beside_process=""
  say "${beside_name}, which has run beside"
  cat "${scratch}/beside"
  spent="$(cat "${scratch}/beside-time" 2>/dev/null)"
  times+=("${beside_name} $((${spent:-0} / 60))m$(printf "%02d" $((${spent:-0} % 60)))s beside others")
  if [[ ${code} -eq 0 ]]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1)) failures+=("${beside_name}")
  fi
}

# count_events NAME CODE [--stopped]: counts the test cases of the last `bazel test`, which ended
# with that exit code or was stopped. Cases that it did not run do not count; a NOTE says how many
# there are.
count_events() {
  local name="$1" code="$2" counts good bad skipped programs cases
  counts="$(python3 "${ci_root}/tools/ci/count_tests.py" ${3:+"$3"} "${scratch}/events" "${code}")" || counts=""
  read -r good bad skipped <<<"${counts:-0 1 0}"
  passed=$((passed + good)) failed=$((failed + bad))
  while read -r line; do [[ -z ${line} ]] || failures+=("${name}: ${line}"); done < <(tail -n +2 <<<"${counts:-
tools/ci/count_tests.py failed}")
  echo "${name}: ${good} passed, ${bad} failed, ${skipped} skipped"
  read -r programs cases < <(python3 "${ci_root}/tools/ci/count_tests.py" --cached "${scratch}/events" 2>/dev/null)
  [[ ${programs:-0} -gt 0 ]] || return 0
  not_run=$((not_run + programs))
  note "${name}: ${programs} programs with ${cases} cases were not run again: they have passed before on this machine, as they are (GPIPE_CI_ALL=1 runs all)"
}

# Interrupts the process whose number is in ${scratch}/test when less than ${least_gib} GiB of disk
# are free. 0 means never.
least_gib=0
watch_disk() {
  local free
  while sleep 1; do
    free="$(free_gib "${ci_root}")"
    [[ -n ${free} && ${free} -lt ${least_gib} && -s ${scratch}/test ]] || continue
    touch "${scratch}/full"
    kill -INT "$(<"${scratch}/test")" && return
  done
}

# limited FOLDER COMMAND...: runs a command there, and stops it after ${seconds} seconds, or when less
# than ${least_gib} GiB of disk are free. Both may be given for one call: seconds=60 tests ...
seconds=100000
limited() {
  local watch="" code
  rm -f "${scratch}/test"
  if [[ ${least_gib} -gt 0 ]]; then
    watch_disk &
    watch=$!
  fi
  # shellcheck disable=SC2016 # expanded by that shell
  (cd "$1" && exec bash -c 'echo $$ >"$0"; exec "$@"' "${scratch}/test" timeout --signal=INT --kill-after=60 "${seconds}" "${@:2}")
  code=$?
  [[ -z ${watch} ]] || kill "${watch}" 2>/dev/null
  return "${code}"
}

not_reached() { python3 "${ci_root}/tools/ci/count_tests.py" --not_reached "${scratch}/events"; }

# counted NAME FOLDER COMMAND...: runs a command that ends in a `bazel test` with
# --build_event_json_file=${scratch}/events, within the limits of `limited`; each test case counts. A
# test that has not been run by the end has neither passed nor failed, and a NOTE says so.
counted() {
  local name="$1" code begin stopped=""
  shift
  rm -f "${scratch}/events" "${scratch}/full"
  begin="$(elapsed)"
  timed "${name}" limited "$@"
  code=$?
  # The system may also kill Bazel, for example for lack of memory.
  if [[ ${code} -eq 124 || ${code} -eq 137 ]] && [[ $(($(elapsed) - begin)) -ge ${seconds} ]]; then
    stopped=--stopped
    note "${name}: stopped for lack of time: $(not_reached) test programs were not run"
  elif [[ -e ${scratch}/full && ${code} =~ ^(8|124|130|137)$ ]]; then  # it did not end by itself
    stopped=--stopped
    note "${name}: stopped for lack of disk: $(not_reached) test programs were not run"
  fi
  count_events "${name}" "${code}" ${stopped:+"${stopped}"}
}

# tests NAME FOLDER ARGUMENTS...: runs `bazel test` in a workspace, and counts.
tests() {
  say "$1: bazel test ${*:3}"
  counted "$1" "$2" "${bazel}" test "${flags[@]}" "${cached_results[@]}" --build_event_json_file="${scratch}/events" "${@:3}"
}

# note TEXT: prints something that has neither passed nor failed but should be seen, now and before the last line.
note() {
  echo "$*"
  notes+=("$*")
}

# Notes how many GPU tests the last `tests` has compiled but could not run.
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

# part NAME SCRIPT...: runs another script that ends with a line of counts, and adds its counts. A
# script without such a line counts as failed.
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
  # Success without a passed test means that all results were kept, or that all was left out;
  # otherwise the exit code would be another.
  [[ ${code} -ne 0 || ${good} -gt 0 || ${bad} -gt 0 ]] || not_run=$((not_run + 1))
  passed=$((passed + good)) failed=$((failed + bad))
  # Takes only the lines at the part's end, because Bazel, and a part within the part, print lines
  # like these, too.
  tac "${scratch}/part" | sed '/^=== .* done$/q' >"${scratch}/end"
  while read -r line; do failures+=("${name}: ${line#FAILED: }"); done < <(tac "${scratch}/end" | grep '^FAILED: ')
  while read -r line; do notes+=("${name}: ${line#NOTE: }"); done < <(tac "${scratch}/end" | grep '^NOTE: ')
}

# finish: waits for the check that runs beside. The exit code is 0 if nothing failed, and something
# passed, now or in the run whose results were kept, or was left out.
finish() {
  joined
  say "done"
  [[ ${#times[@]} -eq 0 ]] || note "times: $(printf '%s, ' "${times[@]}" | sed 's/, $//')" >/dev/null
  [[ ${#notes[@]} -eq 0 ]] || printf 'NOTE: %s\n' "${notes[@]}"
  [[ ${#failures[@]} -eq 0 ]] || printf 'FAILED: %s\n' "${failures[@]}"
  echo "${passed} passed, ${failed} failed"
  [[ ${failed} -eq 0 && $((passed + not_run)) -gt 0 ]]
}
