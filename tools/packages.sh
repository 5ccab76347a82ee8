# shellcheck shell=bash
# Sourced by tools/bazel and tools/lint: finds what a list such as packages.txt names and this
# machine lacks, and installs it. Finding takes a few milliseconds: it runs no program but the
# shell.

# find_bazel: sets `bazel` to a Bazel that is not a wrapper of this repository; empty if there is
# none.
find_bazel() {
  local candidate folder
  bazel="${BAZEL_REAL:-}"
  [[ -n ${bazel} && -x ${bazel} ]] && return 0
  bazel=""
  for folder in /usr/local/bin /usr/bin; do
    for candidate in "${folder}/bazel-${USE_BAZEL_VERSION:-none}" "${folder}"/bazel-real "${folder}"/bazel-[0-9]*; do
      # The last one is the newest. Must not be a folder, nor something like bazel-4.bash.
      [[ -f ${candidate} && -x ${candidate} ]] && bazel="${candidate}"
      [[ ${bazel} == *"-${USE_BAZEL_VERSION:-none}" ]] && return 0
    done
    [[ -n ${bazel} ]] && return 0
  done
  # Bazelisk, or an official Bazel. Either it calls tools/bazel again with BAZEL_REAL set, or it is
  # the real one.
  for candidate in bazelisk bazel; do
    bazel="$(type -P "${candidate}" || true)"
    [[ -n ${bazel} && ! ${bazel} -ef "${BASH_SOURCE[0]%/*}/bazel" ]] && return 0
  done
  bazel=""
}

# has PROOF
has() {
  case "$1" in
    bazel) find_bazel; [[ -n ${bazel} ]] ;;
    cmd:*) type -P "${1#cmd:}" >/dev/null ;;
    *) [[ -e /usr/$1 || -e /usr/local/$1 ]] ;;
  esac
}

# find_missing LIST: sets the arrays `missing` (all packages) and `missing_build` (those without
# which nothing can be built).
find_missing() {
  local package kind proof
  missing=() missing_build=()
  while read -r package kind proof; do
    [[ -z ${package} || ${package} == \#* ]] && continue
    # An official Bazel brings or downloads what Debian's takes from packages.
    if [[ ${kind} == debian ]]; then
      find_bazel
      [[ -z ${bazel} || ${bazel} == /usr/bin/bazel-[0-9]* ]] || continue
    fi
    has "${proof}" && continue
    missing+=("${package}")
    [[ ${kind} == data ]] || missing_build+=("${package}")
  done <"$1"
}

# ensure_packages LIST: installs what is missing. If it cannot, it says what to do and returns 1.
ensure_packages() {
  local -a as_root=()
  find_missing "$1"
  [[ ${#missing[@]} -eq 0 ]] && return 0

  if [[ -z "$(type -P apt-get)" ]]; then
    [[ ${#missing_build[@]} -eq 0 ]] && return 0  # Whoever needs the data will say so.
    {
      echo "GPipe needs, under the names that these have in Debian: ${missing_build[*]}"
      echo "There is no apt-get here: install them with your package manager (found when headers lie"
      echo "under /usr/include or /usr/local/include and commands on PATH), and call this again."
    } >&2
    return 1
  fi
  [[ ${EUID} -eq 0 ]] || as_root=(sudo)
  if [[ -n ${GPIPE_NO_INSTALL:-} ]] || { [[ ${EUID} -ne 0 ]] && ! sudo -n true 2>/dev/null; }; then
    {
      echo "GPipe needs packages that are missing here. Type this and call again:"
      echo "  ${as_root[*]:+${as_root[*]} }apt-get install -y --no-install-recommends ${missing[*]}"
    } >&2
    return 1
  fi

  echo "GPipe: installing ${missing[*]}" >&2
  local log
  log="$(mktemp)"
  # All output goes to stderr or nowhere: stdout belongs to Bazel (`bazel query`). stdin is not
  # ours.
  if ! {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update &&
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"
  } >"${log}" 2>&1 </dev/null; then
    tail -n 20 "${log}" >&2
    {
      echo "GPipe: apt-get failed (its whole output: ${log}). Once it is repaired, call this again, or type:"
      echo "  ${as_root[*]:+${as_root[*]} }apt-get install -y --no-install-recommends ${missing[*]}"
    } >&2
    return 1
  fi
  rm -f "${log}"
  hash -r
  find_missing "$1"
  [[ ${#missing_build[@]} -eq 0 ]] && return 0
  echo "GPipe: apt-get was content, but these are still not found: ${missing_build[*]}" >&2
  return 1
}
