#!/usr/bin/env bash
# CI on a machine without a GPU. It runs the README's commands and the sanitizers in a bare machine,
# and then, on this machine, the checks that need more than a newcomer has: kernels and the browser.
# .ci/run and .github/workflows/ci.yml call it. The last line says how many tests and other checks
# passed and failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

part "bare machine" tools/ci/bare.sh
part "this machine" tools/ci/masked.sh tools/ci/here.sh

finish
