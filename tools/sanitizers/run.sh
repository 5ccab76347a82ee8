#!/usr/bin/env bash
# Runs a test with the sanitizers' options (--config=asan, ubsan, tsan); each sanitizer reads its
# own.
set -euo pipefail

# The path is absolute; tests start in their runfiles.
here="${PWD}/tools/sanitizers"
[[ -f ${here}/lsan.txt ]] || here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# odr: LibTorch's libraries define some variables more than once, on purpose.
#
# alloc_dealloc_mismatch, new_delete: memory that crosses into LibTorch, which has its own operator
# new.
#
# allocator_may_return_null: what is too large is out of memory, as it is without a sanitizer.
export ASAN_OPTIONS="allocator_may_return_null=1:detect_odr_violation=0:alloc_dealloc_mismatch=0:new_delete_type_mismatch=0:detect_leaks=1:${ASAN_OPTIONS:-}"
export LSAN_OPTIONS="suppressions=${here}/lsan.txt:print_suppressions=0:${LSAN_OPTIONS:-}"
export UBSAN_OPTIONS="suppressions=${here}/ubsan.txt:print_stacktrace=1:halt_on_error=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="suppressions=${here}/tsan.txt:halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"
exec "$@"
