#!/usr/bin/env bash
# Prints a folder for PYTHONPATH, with what PyTorch's launcher needs beside the LibTorch that is there already
# (third_party/libtorch), of which it is a part. The first call downloads the pinned wheels (9 MB), once for all clones.
# For //examples/distributed:torchrun_test, which is skipped where they are not.
set -euo pipefail

requirements="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/requirements.txt"
# Without HOME, ~ is what the list of users says.
[[ -n ${HOME:-} ]] || { unset HOME; HOME=~; export HOME; }
cache="${GPIPE_CACHE:-${XDG_CACHE_HOME:-${HOME}/.cache}/gpipe}"

die() {
  printf 'GPipe: %s\n' "$@" >&2
  exit 1
}
cached="${cache}/torchrun-$(sha256sum "${requirements}" | cut -c1-8)"

# download: makes the folder ${cached}, completely or not at all.
download() {
  local log="${cached}.log"
  python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is needed to download what torchrun needs." \
    "Debian, Ubuntu: apt-get install python3-pip"
  mkdir -p "${cache}" 2>/dev/null || true
  { : >>"${cached}.lock"; } 2>/dev/null || die "cannot write to ${cache}." "Set GPIPE_CACHE to a folder that can be written."

  exec 9>>"${cached}.lock"
  flock 9 # Two at once: the second waits and then finds the first one's.
  [[ ! -d ${cached} ]] || return 0

  echo "GPipe: downloading what torchrun needs (9 MB), once, into ${cached}" >&2
  rm -rf "${cached}.tmp"
  # --target unpacks without installing, so Debian's rule about system Pythons does not apply.
  if ! python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
    --only-binary=:all: --no-compile --target "${cached}.tmp" -r "${requirements}" >"${log}" 2>&1; then
    tail -n 5 "${log}" >&2
    rm -rf "${cached}.tmp"
    die "what torchrun needs could not be downloaded (the whole log: ${log})." \
      "Check the network and pip's settings (PIP_INDEX_URL, proxy, certificates), and that python3" \
      "is 3.11, for which LibTorch's wheels are; then call again."
  fi
  [[ -d ${cached}.tmp/sympy ]] || die "the wheels lack sympy: ${requirements} is wrong."
  mv "${cached}.tmp" "${cached}"
  rm -f "${log}"
}

[[ -d ${cached} ]] || download
[[ -d ${cached}/sympy ]] || die "${cached}/sympy is missing: the cache is damaged." \
  "Remove the folder ${cached} and call again; it will be downloaded again."
echo "${cached}"
