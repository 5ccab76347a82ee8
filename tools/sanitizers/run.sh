#!/usr/bin/env bash
# Runs a test with the sanitizers' options (--config=asan, ubsan, tsan). Each sanitizer reads its
# own variable.
set -euo pipefail

# Tests start in their runfiles. The path is made absolute, because a test may change its folder.
here="${PWD}/tools/sanitizers"
[[ -f ${here}/lsan.txt ]] || here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# detect_odr_violation is off, because LibTorch's libraries define some variables more than once, on
# purpose.
#
# alloc_dealloc_mismatch and new_delete_type_mismatch are off, because memory crosses into LibTorch,
# which has its own operator new.
#
# allocator_may_return_null is on, so that an allocation that is too large fails as without a
# sanitizer.
export ASAN_OPTIONS="allocator_may_return_null=1:detect_odr_violation=0:alloc_dealloc_mismatch=0:new_delete_type_mismatch=0:detect_leaks=1:${ASAN_OPTIONS:-}"
export LSAN_OPTIONS="suppressions=${here}/lsan.txt:print_suppressions=0:${LSAN_OPTIONS:-}"
export UBSAN_OPTIONS="suppressions=${here}/ubsan.txt:print_stacktrace=1:halt_on_error=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="suppressions=${here}/tsan.txt:halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"
exec "$@"
