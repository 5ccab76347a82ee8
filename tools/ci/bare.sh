#!/usr/bin/env bash
# Types the README's commands (tools/ci/readme.sh) in a bare Debian 12, where nothing is found by
# luck (a CUDA Toolkit's header, a package installed for another purpose). Then it runs the
# sanitizers (tools/ci/sanitizers.sh), which take half of their objects from the first part. The
# last line says how many tests and other checks passed and failed.
#
# Downloads and object files are kept between runs, in a cache of its own. The bare root is made
# anew for each run, and deleted. Without root's rights, the commands are typed on this machine
# instead, and a NOTE says so. GPIPE_CI_BARE=1 says that this machine is a bare one.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

# as_before FOLDER: the downstream workspaces as they were before folders were divided into rooms, in
# FOLDER/examples_before. Other teams' workspaces look like them, so they must build and pass as they are
# (tools/ci/readme.sh). Git is not installed in the bare root, so they are taken out here.
as_before() {
  local commit=4e25bc43
  rm -rf "$1/examples_before" && mkdir -p "$1/examples_before" &&
    git archive "${commit}:examples" downstream downstream_module downstream_override 2>/dev/null |
    tar -x -C "$1/examples_before" 2>/dev/null && return
  rm -rf "$1/examples_before"
  note "downstream workspaces as they were before: left out, because the clone has no commit ${commit}"
}

in_place() {
  [[ -z $1 ]] || note "the README's commands were not typed in a bare machine: $1"
  tools/ci/rotation.py changed "${GPIPE_CI_CACHE}"
  as_before .
  trap 'rm -rf examples_before "${scratch}"' EXIT
  part "README" tools/ci/readme.sh
  part "sanitizers" tools/ci/sanitizers.sh
  finish
  exit
}

[[ -z ${GPIPE_CI_BARE:-} ]] || in_place ""
tools/ci/bare_root.sh possible || in_place "making one needs root and mount namespaces"
bash -c "source tools/packages.sh && ensure_packages tools/ci/bare-packages.txt" || in_place "no debootstrap, or no git"
# This fails for sources without .git. It also fails for a clone of another user, which git refuses
# with a reason.
reason="$(git rev-parse --git-dir 2>&1)" || in_place "this is not a clone (${reason%%$'\n'*})"

root="${GPIPE_CI_CACHE}/bare-root"
kept="${GPIPE_CI_CACHE}/bare"
mkdir -p "${kept}" || exit 1
# Only one run uses the root at a time. The lock ends with the last process that holds it, so a
# killed run leaves files, but no lock.
exec 8>"${root}.lock"
flock --nonblock 8 || { say "waiting for another run that uses ${root}"; flock 8; }
end_root() { tools/ci/bare_root.sh remove "${root}" 8>&-; }
trap 'end_root; rm -rf "${scratch}"' EXIT
check "an old root is gone" end_root
check "bare root" tools/ci/bare_root.sh make "${root}" "${kept}" 8>&-
[[ -z "$(git status --porcelain 2>/dev/null)" ]] || note "bare machine: the clone has the last commit, not what is not committed"
[[ ${failed} -gt 0 ]] || check "clone" git clone --quiet "${PWD}" "${root}/root/gpipe"
if [[ ${failed} -eq 0 ]]; then
  # Git is not installed in the bare root, so the changed files are listed here.
  tools/ci/rotation.py changed "${kept}"
  as_before "${root}/root/gpipe"
  in_root=(tools/ci/bare_root.sh run "${root}" "${kept}" env GPIPE_CI_START="${GPIPE_CI_START}" GPIPE_CI_ALL="${GPIPE_CI_ALL:-}"
    GPIPE_LIBTORCH="${GPIPE_LIBTORCH:-}" bash)
  part "README" "${in_root[@]}" gpipe/tools/ci/readme.sh 8>&-
  part "sanitizers" "${in_root[@]}" gpipe/tools/ci/sanitizers.sh 8>&-
fi
finish
