#!/usr/bin/env bash
# CI's checks that do not run tests: tools/lint and clang-tidy. .ci/run and .github/workflows/ci.yml
# call this script. The last line says how many checks passed and failed.
#   tools/ci/lint.sh           both
#   tools/ci/lint.sh --tidy    clang-tidy alone
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

[[ ${1:-} == --tidy ]] || check "lint" tools/lint
# clang-tidy checks the C++ files of the last commits, and says which it did not reach. It has five
# minutes, or less if the other steps took long: CI has 90.
if in_time 5 "clang-tidy"; then
  tidy_seconds="$(seconds_until_left 15)"
  tidy_seconds=$((tidy_seconds < 60 ? 60 : tidy_seconds > 300 ? 300 : tidy_seconds))
  check "clang-tidy" env GPIPE_TIDY_SECONDS="${tidy_seconds}" GPIPE_TIDY_GRACE=60 tools/lint --tidy
fi

finish
