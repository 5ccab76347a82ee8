#!/usr/bin/env bash
# Prints the folder that has starlark-pyo3, a Starlark interpreter for Python. The first call downloads the pinned wheel
# (3.5 MB), once for all clones; each version of Python has its own.
set -euo pipefail

requirements="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/requirements.txt"
version="$(sed -n 's/^starlark-pyo3==\([0-9.]*\).*/\1/p' "${requirements}")"
# Without HOME, ~ is what the list of users says.
[[ -n ${HOME:-} ]] || { unset HOME; HOME=~; export HOME; }
cache="${GPIPE_CACHE:-${XDG_CACHE_HOME:-${HOME}/.cache}/gpipe}"

die() {
  printf 'GPipe: %s\n' "$@" >&2
  exit 1
}
python="$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null)" ||
  die "python3 is needed." "Debian, Ubuntu: apt-get install python3-pip"
cached="${cache}/starlark-pyo3-${version}-${python}"

# download: makes the folder ${cached}, completely or not at all.
download() {
  local log="${cached}.log"
  python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is needed to download starlark-pyo3." \
    "Debian, Ubuntu: apt-get install python3-pip"
  mkdir -p "${cache}" 2>/dev/null || true
  { : >>"${cached}.lock"; } 2>/dev/null || die "cannot write to ${cache}." "Set GPIPE_CACHE to a folder that can be written."

  exec 9>>"${cached}.lock"
  flock 9 # Two at once: the second waits and then finds the first one's.
  [[ ! -d ${cached} ]] || return 0

  echo "GPipe: downloading starlark-pyo3 ${version} (3.5 MB), once, into ${cached}" >&2
  rm -rf "${cached}.tmp"
  # --target unpacks without installing, so Debian's rule about system Pythons does not apply.
  if ! python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
    --only-binary=:all: --no-compile --target "${cached}.tmp" -r "${requirements}" >"${log}" 2>&1; then
    tail -n 5 "${log}" >&2
    rm -rf "${cached}.tmp"
    die "starlark-pyo3 ${version} for ${python} could not be downloaded (the whole log: ${log})." \
      "Check the network and pip's settings (PIP_INDEX_URL, proxy, certificates), and that ${requirements}" \
      "has a wheel for ${python}; then call again."
  fi
  [[ -d ${cached}.tmp/starlark ]] || die "the wheel lacks the package starlark: ${requirements} is wrong."
  mv "${cached}.tmp" "${cached}"
  rm -f "${log}"
}

[[ -d ${cached} ]] || download
[[ -d ${cached}/starlark ]] || die "${cached}/starlark is missing: the cache is damaged." \
  "Remove the folder ${cached} and call again; it will be downloaded again."
echo "${cached}"
