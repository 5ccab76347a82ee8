#!/usr/bin/env bash
# Runs the README's two commands, word for word, and then the steps of another team that uses this
# project. It is for a machine that has nothing but a clone (tools/ci/bare.sh; the container of
# .github/workflows/ci.yml). The last line says how many tests and other checks passed and failed.
#
# Bazel's settings for CI go into the clone's .bazelrc.user, so that the commands stay as they are; an existing file is
# put back at the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

settings=.bazelrc.user
# The existing file is kept beside the new one, so that it is not lost even if this script is killed.
[[ -e ${settings}.kept || ! -e ${settings} ]] || mv "${settings}" "${settings}.kept"
restore() {
  rm -f "${settings}"
  [[ ! -e ${settings}.kept ]] || mv "${settings}.kept" "${settings}"
  rm -rf "${scratch}"
}
trap restore EXIT
printf 'build %s\n' "${flags[@]}" >"${settings}"

# command_under HEADING: prints the command that stands alone in a block under that heading of the
# README.
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

# A shell runs both commands, so their words are split as in a newcomer's shell.
main_job="$(command_under "The main job")"
test_command="$(command_under "Tests")"

check "the README's main job" bash -c "${main_job}"

# If objects are kept, tests that have passed on this machine are not run again. On a machine
# without kept objects, such as the one that decides whether a change lands, all tests are run. This
# is called only here, because the main job has installed packages.
always=("${cached_results[@]}")
keep_results
echo "test ${cached_results[*]} --build_event_json_file=${scratch}/events" >>"${settings}"
# Results are kept only for the README's command. The tests below are run each time.
cached_results=("${always[@]}")

say "the README's tests: ${test_command}"
# Lint and the parts of here.sh follow.
seconds="$(seconds_until_left 16)" counted "the README's tests" . bash -c "${test_command}"
note_gpu_tests

# These launchers belong to other projects, and a newcomer need not have them. Without them their
# tests were skipped above.
if in_time 18 "launchers"; then
  check "torchrun" tools/torchrun/torchrun.sh
  check "mpirun" bash -c "source tools/packages.sh && ensure_packages tools/ci/launcher-packages.txt"
  tests "launchers" . //examples/distributed:torchrun_test //examples/distributed:torchrun_restart_test \
    //examples/distributed:mpirun_test
fi

# This test builds a program with CMake, which people who build with Bazel need not have.
if in_time 17 "installed for CMake"; then
  check "cmake" bash -c "source tools/packages.sh && ensure_packages tools/ci/cmake-packages.txt"
  tests "installed for CMake" . //tools/install:install_test
fi

# Python's transformers come as pinned wheels for one version of Python and one kind of processor.
# If they cannot be installed, these tests do not count.
say "transformers: tools/transformers/transformers.sh"
reason=""
if ! in_time 18 "transformers"; then
  :
elif timed "transformers' wheels" tools/transformers/transformers.sh; then
  timed "peft's wheels" tools/peft/peft.sh || note "adapters were not exchanged with Python's peft: its wheels cannot be installed here"
  # Without peft's wheels, peft's test is skipped, and the others run.
  tests "transformers" . //models:transformers_live_test //models:transformers_families_test //models:peft_live_test \
    //gpipe/saving:checkpoint_live_test //gpipe/optim:fused_live_test //examples/fine_tune:fine_tune_live_test
  reason="$(sed -n 's/^SKIPPED: //p' bazel-testlogs/models/transformers_live_test/test.log)"
else
  reason="their wheels cannot be installed here"
fi
[[ -z ${reason} ]] || note "models were not exchanged with Python's transformers: ${reason}"

# The Python package needs Python's headers, and is tested with a pinned pytest. If these cannot be
# installed, its tests do not count. They take up to a quarter of an hour.
say "pytest: tools/pytest/pytest.sh"
reason=""
if ! in_time 40 "the Python package"; then
  :
elif timed "pytest's wheels" tools/pytest/pytest.sh &&
  timed "Python's headers" bash -c "source tools/packages.sh && ensure_packages tools/ci/python-packages.txt"; then
  # A Bazel that runs keeps what it has found: no headers (third_party/python/workspace.bzl).
  "${bazel}" shutdown
  seconds="$(seconds_until_left 18)" tests "Python" . //python/...
  reason="$(sed -n 's/^SKIPPED: //p' bazel-testlogs/python/pipeline_test/test.log)"
else
  reason="pytest's wheels, or Python's headers, cannot be installed here"
fi
[[ -z ${reason} ]] || note "the Python package was not tested: ${reason}"

# The next workspaces are one of another team, and one that brings its own GoogleTest and glog. They
# do not read our .bazelrc.
rm "${settings}"
# The workspaces are built without optimization, as other teams may do. So they compile faster, and
# assertions are on. LibTorch's headers are precompiled, because otherwise this would take a quarter
# of an hour.
flags=("${flags[@]/--config=ci/--curses=no}" --compilation_mode=fastbuild --define=gpipe_precompiled=on)
# These workspaces do not have our --config=cxx17, but a standard of their own. The flag that comes
# last wins.
flags=("${flags[@]/--config=cxx17/--cxxopt=-std=c++17}")
# They are compiled on their own, which takes up to a quarter of an hour.
if in_time 32 "downstream workspaces"; then
  seconds="$(seconds_until_left 18)" tests "downstream" examples/downstream //...
  (cd examples/downstream && "${bazel}" shutdown)
  # Where they are known as they were before (tools/ci/bare.sh), the program and the override are
  # those.
  folder=examples
  if [[ -d examples_before ]] && in_time 19 "downstream as before"; then
    folder=examples_before
    seconds="$(seconds_until_left 18)" tests "downstream as before" examples_before/downstream //...
  fi
  if in_time 19 "downstream program, downstream override"; then
    check "downstream program" bash -c "cd ${folder}/downstream && '${bazel}' run ${flags[*]} //:main"
    (cd "${folder}/downstream" && "${bazel}" shutdown)
    seconds="$(seconds_until_left 17)" tests "downstream override" "${folder}/downstream_override" //...
    (cd "${folder}/downstream_override" && "${bazel}" shutdown)
  fi
fi
"${bazel}" shutdown

finish
