#!/usr/bin/env bash
# The part of CI that a bare machine cannot do, because it uses programs of this machine.
# tools/ci/cpu.sh calls it through tools/ci/masked.sh. The last line says how many tests and other
# checks passed and failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

[[ -z ${GPIPE_NOT_MASKED:-} ]] ||
  note "/usr/local/include is not empty, and hiding it needs root: a header there may be what this build needs"
# What the bare machine has compiled is found here, too, if the same compiler would make the same file
# here. It gets second links, so that nothing that is compiled here is found there.
kept="${GPIPE_CI_CACHE}/bare/ci-objects${of_version}"
[[ -z ${cache} || ! -d ${kept} ]] || cp --archive --link --no-clobber "${kept}/." "${cache}/"

# A Bazel server that was started before would see the files that masked.sh hides.
"${bazel}" shutdown
check "set-up" "${bazel}" info release
check "LibTorch" "${bazel}" fetch //third_party:torch
check "browser" bash -c "source tools/packages.sh && ensure_packages tools/ci/browser-packages.txt"

# A GPU test that is not in the bundle does not run on a machine that has only the bundle. Bazel
# cannot query this within a test.
# shellcheck disable=SC2016 # the inner shell replaces them
check "GPU tests of the bundle" bash -c 'missing="$("$1" query "$2")" && echo "missing: ${missing:-none}" && [[ -z ${missing} ]]' check "${bazel}" \
  'attr(tags, requires-gpu-nvidia, kind(cc_test, //...)) except deps(//tools/gpu_bundle)'

# The browser's test is skipped if there is no browser. Kernels are compiled by nvcc, if there is
# one. Lint follows.
if in_time 11 "browser"; then
  seconds="$(seconds_until_left 9)" tests "browser" . //experiments/report:browser_test
fi
if in_time 8 "kernels"; then
  check "kernels" "${bazel}" build "${flags[@]}" //gpipe/testing/spin_kernel/...
  note_kernels
fi
"${bazel}" shutdown

finish
