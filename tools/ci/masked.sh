#!/usr/bin/env bash
# Runs a command where /usr/local/include is empty. gcc searches that folder by itself, and files in it (such as links
# into a CUDA Toolkit) let sources compile here that compile nowhere else. Only this command sees the folder empty.
#   tools/ci/masked.sh COMMAND...
set -euo pipefail
if [[ -z "$(ls -A /usr/local/include 2>/dev/null)" ]]; then exec "$@"; fi
if ! tools/ci/bare_root.sh possible; then
  export GPIPE_NOT_MASKED=1
  exec "$@"
fi
# shellcheck disable=SC2016 # expanded by that bash
exec unshare --mount --propagation private -- bash -c 'mount -t tmpfs tmpfs /usr/local/include && exec "$@"' bash "$@"
