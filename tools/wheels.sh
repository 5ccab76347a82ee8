# shellcheck shell=bash
# To be sourced. Fetches wheels of Python's registry, pinned with their hashes, once for all clones.

# If HOME is not set, ~ is the home that the system's list of users gives.
[[ -n ${HOME:-} ]] || { unset HOME; HOME=~; export HOME; }
cache="${GPIPE_CACHE:-${XDG_CACHE_HOME:-${HOME}/.cache}/gpipe}"

die() {
  printf 'GPipe: %s\n' "$@" >&2
  exit 1
}

# fetch_wheels NAME WHAT PACKAGE REQUIREMENTS HINT...: prints the cache's folder NAME, with the wheels of REQUIREMENTS,
# among them the one that has PACKAGE. The first call downloads WHAT; HINT says what else to check if that fails.
fetch_wheels() {
  local cached="${cache}/$1" package="$3"
  [[ -d ${cached} ]] || download_wheels "${cached}" "${@:2}"
  [[ -d ${cached}/${package} ]] || die "${cached}/${package} is missing: the cache is damaged." \
    "Remove the folder ${cached} and call again; it will be downloaded again."
  echo "${cached}"
}

# download_wheels FOLDER WHAT PACKAGE REQUIREMENTS HINT...: makes the folder, completely or not at
# all.
download_wheels() { # FOLDER WHAT PACKAGE REQUIREMENTS HINT...
  local cached="$1" what="$2" package="$3" requirements="$4" log="$1.log"
  python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is needed to download ${what}." \
    "Debian, Ubuntu: apt-get install python3-pip"
  mkdir -p "${cache}" 2>/dev/null || true
  { : >>"${cached}.lock"; } 2>/dev/null || die "cannot write to ${cache}." "Set GPIPE_CACHE to a folder that can be written."

  exec 9>>"${cached}.lock"
  flock 9 # Two at once: the second waits and then finds the first one's.
  [[ ! -d ${cached} ]] || return 0

  echo "GPipe: downloading ${what}, once, into ${cached}" >&2
  rm -rf "${cached}.tmp"
  mkdir -p "${cached}.tmp/tmp"
  # --target unpacks without installing, so Debian's rule about system Pythons does not apply.
  if ! TMPDIR="${cached}.tmp/tmp" python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
    --only-binary=:all: --no-compile --target "${cached}.tmp/site" -r "${requirements}" >"${log}" 2>&1; then
    tail -n 5 "${log}" >&2
    rm -rf "${cached}.tmp"
    # On a full disk the log may be cut short.
    if [[ ! -s ${log} ]] || grep -qiE 'no space left|disk quota exceeded|disk full' "${log}"; then
      die "the disk of ${cache} was full before ${what} could be unpacked." \
        "Make room, or set GPIPE_CACHE to a folder on a larger disk, and call again."
    fi
    die "${what} could not be downloaded (the whole log: ${log})." \
      "Check the network and pip's settings (PIP_INDEX_URL, proxy, certificates), and that" "${@:5}"
  fi
  [[ -d ${cached}.tmp/site/${package} ]] || die "the wheels lack the package ${package}: ${requirements} is wrong."
  mv "${cached}.tmp/site" "${cached}"
  rm -rf "${cached}.tmp" "${log}"
}
