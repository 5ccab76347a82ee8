#!/usr/bin/env bash
# CI on a machine without a GPU: set-up, all tests, sanitizers, downstream workspaces. Called by .ci/run and by
# .github/workflows/ci.yml. The last line says how many tests and other checks passed and failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

# Installs Bazel and the rest; LibTorch follows with the first build.
check "set-up" "${bazel}" info release
check "LibTorch" "${bazel}" fetch //third_party:torch
# For //experiments/report:browser_test, which is skipped elsewhere.
check "browser" bash -c "source tools/packages.sh && ensure_packages tools/ci/browser-packages.txt"

# The README's command.
tests "tests" . //...
note_gpu_tests
note_kernels

# Data races in the code that runs threads and needs no LibTorch.
tests "tsan" . --config=tsan //gpipe/schedule/... //gpipe/runtime/... //gpipe/testing/fake_accelerator:without_torch
# Memory errors, leaks and undefined behavior, in one build: with LibTorch each file costs half a
# minute. Without a cache the whole tree would take longer than the 90 minutes that CI has: what is nearest to
# memory goes first, and at minute 64 it ends.
for folders in "//interception/... //skip/... //gpipe/internal/... //gpipe/runtime/... //gpipe/schedule/..." \
  "//gpipe:all //gpipe/testing/..." "//balance/... //meta/... //models/..." \
  "//... -//interception/... -//skip/... -//gpipe/... -//balance/... -//meta/... -//models/..."; do
  seconds=$((64 * 60 - $(elapsed)))
  if [[ ${seconds} -lt 60 ]]; then
    echo "asan and ubsan: no time for ${folders}"
    continue
  fi
  # shellcheck disable=SC2086 # a list
  tests "asan and ubsan" . --config=asan --config=ubsan -- ${folders}
done
seconds=100000

# Another team's workspace, and one that brings its own GoogleTest and glog. They do not read our
# .bazelrc.
flags=("${flags[@]/--config=ci/--curses=no}")
tests "downstream" examples/downstream //...
check "downstream program" bash -c "cd examples/downstream && '${bazel}' run ${flags[*]} //:main"
(cd examples/downstream && "${bazel}" shutdown)
tests "downstream override" examples/downstream_override //...
(cd examples/downstream_override && "${bazel}" shutdown)

finish
