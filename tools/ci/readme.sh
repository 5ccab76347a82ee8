#!/usr/bin/env bash
# The README's two commands, cut out of it and typed as they stand there, then what another team does with this
# project. For a machine that has nothing but a clone (tools/ci/bare.sh; the container of .github/workflows/ci.yml).
# The last line says how many tests and other checks passed and failed.
#
# Bazel's settings for CI go into the clone's .bazelrc.user, so that the commands need no word more; one that exists is
# put back at the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

settings=.bazelrc.user
# Beside it, so that no kind of end can lose it.
[[ -e ${settings}.kept || ! -e ${settings} ]] || mv "${settings}" "${settings}.kept"
restore() {
  rm -f "${settings}"
  [[ ! -e ${settings}.kept ]] || mv "${settings}.kept" "${settings}"
  rm -rf "${scratch}"
}
trap restore EXIT
printf 'build %s\n' "${flags[@]}" >"${settings}"

# command_under HEADING: the one command that stands in a block of its own under a heading of the README.
command_under() {
  local found
  found="$(awk -v heading="## $1" '
    /^## / { inside = $0 == heading; next }
    inside && /^```$/ { block = !block; if (!block) exit; next }
    inside && block' README.md)"
  if [[ ${found} != tools/bazel\ * || ${found} == *$'\n'* ]]; then
    echo "README.md: no single tools/bazel command stands under \"$1\"" >&2
    echo false
  else
    echo "${found}"
  fi
}

# Both are words that a newcomer's shell splits.
main_job="$(command_under "The main job")"
test_command="$(command_under "Tests")"

check "the README's main job" bash -c "${main_job}"

# What has passed on this machine as it is, is not run again where objects are kept: on a machine that has none, such as
# the one that decides whether a change lands, all is run. Only now, since the main job has installed what there is.
always=("${cached_results[@]}")
keep_results
echo "test ${cached_results[*]} --build_event_json_file=${scratch}/events" >>"${settings}"
# The typed command's. The others below are run each time.
cached_results=("${always[@]}")

say "the README's tests: ${test_command}"
timed "the README's tests" bash -c "${test_command}"
count_events "the README's tests" $?
note_gpu_tests

# What a newcomer need not have: launchers of others. Without them their tests were skipped above.
check "torchrun" tools/torchrun/torchrun.sh
check "mpirun" bash -c "source tools/packages.sh && ensure_packages tools/ci/launcher-packages.txt"
tests "launchers" . //examples/distributed:torchrun_test //examples/distributed:torchrun_restart_test \
  //examples/distributed:mpirun_test

# Nor Python's transformers, which are for one Python and one processor. Where they cannot be installed nothing has passed.
say "transformers: tools/transformers/transformers.sh"
if timed "transformers' wheels" tools/transformers/transformers.sh; then
  timed "peft's wheels" tools/peft/peft.sh || note "adapters were not exchanged with Python's peft: its wheels cannot be installed here"
  # Without peft's wheels its test is skipped, and the others run.
  tests "transformers" . //models:transformers_live_test //models:transformers_families_test //models:peft_live_test \
    //gpipe/saving:checkpoint_live_test //examples/fine_tune:fine_tune_live_test
  reason="$(sed -n 's/^SKIPPED: //p' bazel-testlogs/models/transformers_live_test/test.log)"
else
  reason="their wheels cannot be installed here"
fi
[[ -z ${reason} ]] || note "models were not exchanged with Python's transformers: ${reason}"

# Another team's workspace, and one that brings its own GoogleTest and glog. They do not read our .bazelrc.
rm "${settings}"
# Not optimized: it is quicker to compile, and some would build it so; what NDEBUG takes away is there. LibTorch's
# headers are precompiled, as they may: without, this would take a quarter of an hour.
flags=("${flags[@]/--config=ci/--curses=no}" --compilation_mode=fastbuild --define=gpipe_precompiled=on)
# Nor have they our --config=cxx17, but a standard of their own, over which the last one wins.
flags=("${flags[@]/--config=cxx17/--cxxopt=-std=c++17}")
tests "downstream" examples/downstream //...
check "downstream program" bash -c "cd examples/downstream && '${bazel}' run ${flags[*]} //:main"
(cd examples/downstream && "${bazel}" shutdown)
tests "downstream override" examples/downstream_override //...
(cd examples/downstream_override && "${bazel}" shutdown)
"${bazel}" shutdown

finish
