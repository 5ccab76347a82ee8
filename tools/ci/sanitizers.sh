#!/usr/bin/env bash
# Runs the tests under sanitizers. Call it after tools/ci/readme.sh in the same clone, because the
# tests' own objects are the same. The last line says how many tests and other checks passed and
# failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

keep_results

# Looks for data races in the code that runs threads and does not need LibTorch.
if in_time 16 "tsan"; then
  seconds="$(seconds_until_left 14)" tests "tsan" . --config=tsan //gpipe/schedule/... //gpipe/runtime/... \
    //gpipe/testing/fake_accelerator:without_torch
fi
# Looks for memory errors, leaks and undefined behavior in one build, because compiling against
# LibTorch takes the most time. First come the tests nearest to the changes, until minute 60: CI has
# 90, and lint and kernels follow. Then, until minute 40, come other tests that a change reaches,
# and a third of all in turns (tools/ci/rotation.py). If results are kept, each program is kept,
# too. If little disk is free, the tests are not begun, or are stopped, because other jobs need some
# disk.
least_gib=3
make_room 40
kept="${cache:+${GPIPE_CI_CACHE}}"
kept="${kept:-${scratch}}"
lists="${scratch}/lists"
rotation() { python3 tools/ci/rotation.py "$1" "${kept}" "${lists}" "${@:2}"; }
# Builds in the folder of the plain build, where the tests' objects are.
sanitized=(--config=asan --config=ubsan --platform_suffix=)

query() {
  echo "$1" >"${scratch}/query"
  "${bazel}" query --noshow_progress --keep_going --query_file="${scratch}/query" 2>/dev/null
}
# A test is near a changed file if it is at most four steps away: file, library, unit of tests,
# test. One more step is allowed for a file of tests (its unit's source is generated) and for a user
# of the library. A file that Bazel does not know reaches no test.
plan() {
  local changed tests='(tests(//...) except attr(tags, "no-sanitizer|requires-gpu-nvidia|manual", tests(//...)))'
  changed="set($(tail -n +2 "${kept}/sanitizers-changed${of_version}" 2>/dev/null))"
  mkdir -p "${lists}"
  query "${tests}" >"${lists}/all"
  query "rdeps(//..., ${changed}, 4) intersect ${tests}" >"${lists}/near"
  query "rdeps(//..., ${changed}) intersect ${tests}" >"${lists}/reached"
  rotation plan
}
check "asan and ubsan: which tests" plan

for batch in "${lists}"/[0-9]; do
  name="asan and ubsan, part ${batch##*/}" end=40
  [[ ${batch} != */0 ]] || name="asan and ubsan, tests near the change" end=60
  [[ -s ${batch} ]] || continue
  seconds=$((end * 60 - $(elapsed)))
  free="$(free_gib .)"
  if [[ ${seconds} -lt 60 ]]; then
    note "${name}: not begun, because no time was left"
  elif [[ ${free:-99} -lt 10 ]]; then
    note "${name}: not begun, because only ${free} GiB of disk are free"
  else
    tests "${name}" . "${sanitized[@]}" --target_pattern_file="${batch}"
    rotation seen "${scratch}/events"
  fi
done
left="$(rotation left)"
tail -n +2 <<<"${left}"
note "asan and ubsan: ${left%%$'\n'*}"
"${bazel}" shutdown

finish
