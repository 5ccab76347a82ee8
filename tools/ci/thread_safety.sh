#!/usr/bin/env bash
# clang's analysis of which lock guards what (gpipe/runtime/mutex.h), for the whole of the rooms without LibTorch that
# have such locks. For other files that changed it is one of clang-tidy's checks. Run by tools/lint, in the clone's root.
set -euo pipefail

# The second check is one that clang-tidy counts as a check: it refuses to run with diagnostics alone.
analyze() {
  clang-tidy --quiet --checks='-*,clang-diagnostic-thread-safety*,modernize-use-nullptr' --warnings-as-errors='*' "$@" \
    -- -std=c++17 -I. -Wthread-safety 2>&1
}

# An unguarded access, on purpose, is found: otherwise the silence below would say nothing.
planted="$(mktemp --suffix=.cc)"
trap 'rm -f "${planted}"' EXIT
cat >"${planted}" <<'END'
#include "gpipe/runtime/mutex.h"
struct Counter {
  int get() { return count; }
  gpipe::internal::Mutex mutex;
  int count GPIPE_GUARDED_BY(mutex) = 0;
};
int use(Counter& counter) { return counter.get(); }
END
if said="$(analyze "${planted}")" || [[ ${said} != *"requires holding mutex 'mutex'"* ]]; then
  printf 'thread_safety.sh: an unguarded access is not found. clang-tidy said:\n%s\n' "${said}" >&2
  exit 1
fi

# exception_text.cc alone includes LibTorch.
mapfile -t files < <(git ls-files --cached --others --exclude-standard 'gpipe/runtime/*.cc' 'gpipe/distributed/control/*.cc' |
  grep -vE '(_test|/exception_text)\.cc$')
analyze "${files[@]}"
