#!/usr/bin/env bash
# Prints the path of plotly.min.js, the library that draws the plots of //experiments/report. The first call takes it
# out of the pinned wheel, which it downloads (10 MB), once for all clones.
set -euo pipefail

requirements="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/requirements.txt"
version="$(sed -n 's/^plotly==\([0-9.]*\).*/\1/p' "${requirements}")"
# If HOME is not set, ~ is the home that the system's list of users gives.
[[ -n ${HOME:-} ]] || { unset HOME; HOME=~; export HOME; }
cache="${GPIPE_CACHE:-${XDG_CACHE_HOME:-${HOME}/.cache}/gpipe}"
cached="${cache}/plotly-${version}"
member="plotly/package_data/plotly.min.js"

die() {
  printf 'GPipe: %s\n' "$@" >&2
  exit 1
}
[[ ${cache} == /* ]] || die "the cache ${cache} (GPIPE_CACHE) does not begin with a /: Bazel calls this in another folder." \
  "Set it to the whole path, such as ${HOME}/my-cache."

# disk_full: ends with a message if a full disk was the cause of a failure. The log may then be cut short.
disk_full() {
  [[ -s ${cached}.log ]] && ! grep -qiE 'no space left|disk quota exceeded|disk full' "${cached}.log" && return 0
  die "the disk of ${cache} is full: Plotly needs 40 MB there." \
    "Make room, or set GPIPE_CACHE to a folder on a larger disk, and build again."
}

# download: makes the folder ${cached}, completely or not at all.
download() {
  local log="${cached}.log"
  python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is needed to download Plotly." \
    "Debian, Ubuntu: apt-get install python3-pip"
  mkdir -p "${cache}" 2>/dev/null || true
  { : >>"${cached}.lock"; } 2>/dev/null || die "cannot write to ${cache}." "Set GPIPE_CACHE to a folder that can be written."

  exec 9>"${cached}.lock"
  flock 9 # Two builds at once: the second waits and then finds the first one's.
  [[ ! -d ${cached} ]] || return 0

  echo "GPipe: downloading Plotly ${version} (10 MB), once, into ${cached}" >&2
  rm -rf "${cached}.tmp"
  mkdir -p "${cached}.tmp/file"
  if ! TMPDIR="${cached}.tmp" python3 -m pip download --no-cache-dir --disable-pip-version-check --no-deps \
    --require-hashes --only-binary=:all: --dest "${cached}.tmp" -r "${requirements}" >"${log}" 2>&1; then
    tail -n 5 "${log}" >&2
    rm -rf "${cached}.tmp"
    disk_full
    die "Plotly ${version} could not be downloaded (the whole log: ${log})." \
      "Check the network and pip's settings (PIP_INDEX_URL, proxy, certificates) and build again."
  fi
  unzip -q -j "${cached}.tmp"/plotly-*.whl "${member}" -d "${cached}.tmp/file" >"${log}" 2>&1 || {
    disk_full
    die "the wheel lacks ${member}: ${requirements} is wrong."
  }
  mv "${cached}.tmp/file" "${cached}"
  rm -rf "${cached}.tmp" "${log}"
}

[[ -d ${cached} ]] || download
[[ -s ${cached}/plotly.min.js ]] || die "${cached}/plotly.min.js is missing: the cache is damaged." \
  "Remove the folder ${cached} and build again; it will be downloaded again."
echo "${cached}/plotly.min.js"
