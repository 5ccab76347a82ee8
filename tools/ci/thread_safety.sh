#!/usr/bin/env bash
# Runs clang's analysis of which lock guards what (gpipe/runtime/mutex.h) on all files of the
# folders that do not need LibTorch and have such locks. For other changed files the analysis is one
# of clang-tidy's checks. tools/lint runs this script in the clone's root.
set -euo pipefail

# The second check is there because clang-tidy refuses to run with diagnostics alone.
analyze() {
  clang-tidy --quiet --checks='-*,clang-diagnostic-thread-safety*,modernize-use-nullptr' --warnings-as-errors='*' "$@" \
    -- -std=c++17 -I. -Wthread-safety 2>&1
}

# First an unguarded access is planted and must be found. Otherwise it would prove nothing that none
# is found below.
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

mapfile -t files < <(git ls-files --cached --others --exclude-standard 'gpipe/runtime/*.cc' 'gpipe/distributed/control/*.cc' |
  grep -v '_test\.cc$')
analyze "${files[@]}"
