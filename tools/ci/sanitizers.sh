#!/usr/bin/env bash
# The tests under sanitizers, after the README's (tools/ci/readme.sh), in the same clone: the tests' own objects are the
# same. The last line says how many tests and other checks passed and failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

keep_results

# Data races in the code that runs threads and needs no LibTorch.
tests "tsan" . --config=tsan //gpipe/schedule/... //gpipe/runtime/... //gpipe/testing/fake_accelerator:without_torch
# Memory errors, leaks and undefined behavior, in one build: compiling against LibTorch is what costs. CI has 90
# minutes, and lint and kernels are still to come: at minute 68 it is stopped, so that a slow machine still ends with a
# count.
seconds=$((68 * 60 - $(elapsed)))
# Whole, it takes 36 GiB: each of its programs has 20 to 130 MB, twice, here and where results are kept. Where less is free,
# it is stopped, too: others need some of it.
least_gib=3
make_room 40
free="$(free_gib .)"
if [[ ${seconds} -lt 60 ]]; then
  note "asan and ubsan: no time was left"
elif [[ ${free:-99} -lt 10 ]]; then
  note "asan and ubsan: not run: only ${free} GiB of disk are free"
else
  # In the folder of the plain build, where the tests' objects are.
  tests "asan and ubsan" . --config=asan --config=ubsan --platform_suffix= //...
fi
"${bazel}" shutdown

finish
