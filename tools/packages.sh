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

# The user whose rights this has; a test plays a user who is not root.
user="${EUID}"

# choose_options ARGUMENTS...: sets `options` to what `bazel` must be given besides. Debian's Bazel 4 fails in paths that
# have spaces: what it keeps for itself can lie elsewhere, the sources cannot.
without_spaces="/var/tmp/bazel-${EUID}"
# shellcheck disable=SC2034 # tools/bazel reads `options`
choose_options() {
  local folder clone
  options=()
  [[ ${bazel} == /usr/bin/bazel-[0-9]* ]] || return 0
  # The usual case runs no program.
  if [[ ${PWD} == *" "* && "$(pwd -P)" == *" "* ]]; then
    folder="$(pwd -P)" clone="$(cd "${BASH_SOURCE[0]%/*}/.." && pwd -P)"
    [[ ${folder}/ != "${clone}"/* ]] || folder="${clone}"
    {
      echo "GPipe: Debian's Bazel cannot build in a folder whose path has spaces. Move it and call again there, such as:"
      echo "  mv '${folder}' /var/tmp/gpipe && cd /var/tmp/gpipe"
    } >&2
    return 1
  fi
  if [[ ${XDG_CACHE_HOME:-${HOME:-}} == *" "* && " $*" != *" --output_user_root"* && " $*" != *" --output_base"* ]]; then
    mkdir -m 700 "${without_spaces}" 2>/dev/null || true
    if [[ -d ${without_spaces} && -O ${without_spaces} ]]; then options=("--output_user_root=${without_spaces}"); fi
  fi
}

# has PROOF
has() {
  case "$1" in
    bazel) find_bazel; [[ -n ${bazel} ]] ;;
    cmd:*) type -P "${1#cmd:}" >/dev/null ;;
    *) [[ -e /usr/$1 || -e /usr/local/$1 ]] ;;
  esac
}

# Before the name of a package that is not needed to build, and that apt-get of this machine has never heard of (another
# Debian): it is not asked for again. In a file that anybody may remove.
unknown=/var/tmp/gpipe-unknown-package

# find_missing LIST: sets the arrays `missing` (all packages), `missing_build` (those without which nothing can be built)
# and `missing_data` (the others), and for these `proofs` (package -> what shows that it is there) and `lost` (package ->
# what there is not without it).
find_missing() {
  local package kind proof what
  missing=() missing_build=() missing_data=()
  declare -gA proofs=() lost=()
  while read -r package kind proof what; do
    [[ -z ${package} || ${package} == \#* ]] && continue
    # An official Bazel brings or downloads what Debian's takes from packages.
    if [[ ${kind} == debian ]]; then
      find_bazel
      [[ -z ${bazel} || ${bazel} == /usr/bin/bazel-[0-9]* ]] || continue
    fi
    has "${proof}" && continue
    [[ ${kind} != data || ! -e "${unknown}-${package}" ]] || continue
    missing+=("${package}")
    if [[ ${kind} == data ]]; then
      missing_data+=("${package}")
      proofs[${package}]="${proof}" lost[${package}]="${what}"
    else
      missing_build+=("${package}")
    fi
  done <"$1"
}

# Exists from before the first package is unpacked until the last one is set up, so that neither an interrupted set-up
# nor one that another clone is at is taken for a finished one: files are there before they work.
unfinished=/var/tmp/gpipe-packages-unfinished

# typed COMMAND: the line that runs it as root.
typed() {
  if [[ ${user} -eq 0 ]]; then
    echo "  $1"
  elif [[ -n "$(type -P sudo)" ]]; then
    echo "  sudo sh -c '$1'"
  else
    echo "  su - -c '$1'     (or let whoever administers this machine type what stands in '')"
  fi
}

# by_hand: the line to type for what is needed, and one for the rest, with what is lost without. One line for both would
# install nothing where one of the rest cannot be had.
by_hand() {
  local install="apt-get update && apt-get install -y --no-install-recommends" package
  if [[ -e ${unfinished} ]]; then
    # What an interrupted one has left must be set up first.
    typed "dpkg --configure -a && ${install/ -y/ -f -y}${missing_build[*]:+ ${missing_build[*]}} && rm -f ${unfinished}"
  elif [[ ${#missing_build[@]} -gt 0 ]]; then
    typed "${install} ${missing_build[*]}"
  fi
  [[ ${#missing_data[@]} -gt 0 ]] || return 0
  [[ ${#missing_build[@]} -eq 0 && ! -e ${unfinished} ]] || echo "GPipe: and this, if you want what it brings:"
  typed "${install} ${missing_data[*]}"
  for package in "${missing_data[@]}"; do echo "  Without ${package}: ${lost[${package}]}"; done
}

# find_root: sets `as_root`, the words that a command of root's begins with.
find_root() {
  as_root=()
  [[ ${user} -eq 0 ]] || as_root=(sudo -n)
  as_root+=(env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8)
}

# leave_out_unknown LIST: apt-get installs all or nothing, and one unknown name would be nothing.
leave_out_unknown() {
  local package
  [[ -n "$(type -P apt-cache)" ]] || return 0
  for package in "${missing_data[@]}"; do
    apt-cache show "${package}" || "${as_root[@]}" touch "${unknown}-${package}"
  done
  find_missing "$1"
}

# run_apt LIST: with all output on stderr or nowhere, for stdout belongs to Bazel (`bazel query`), and not with our stdin.
run_apt() {
  local -a repair=()
  local tries before
  if [[ -e ${unfinished} ]]; then
    # Fails while another set-up is at work, for which the rest waits.
    "${as_root[@]}" dpkg --configure -a
    repair=(-f)
  else
    "${as_root[@]}" touch "${unfinished}"
  fi
  # Debian updates itself in the background, and there may be another clone: lists have a lock that apt-get does not
  # wait for. What else fails here (a package source of another owner that is gone) may not matter.
  for ((tries = 0; tries < 150; ++tries)); do
    : >"${log}"
    if "${as_root[@]}" apt-get update; then
      # It is content, too, where there was no network: then its lists tell nothing.
      [[ "$(<"${log}")" == *"Failed to fetch"* || "$(<"${log}")" == *"index files failed"* ]] || leave_out_unknown "$1"
      break
    fi
    [[ "$(<"${log}")" == *"Could not get lock"* ]] || break
    sleep 2
  done
  if "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${repair[@]}" "${missing[@]}"; then
    "${as_root[@]}" rm -f "${unfinished}"
    return 0
  fi
  # Failed before it has unpacked anything: no set-up was begun.
  before="${missing[*]}"
  find_missing "$1"
  [[ ${#repair[@]} -gt 0 || ${before} != "${missing[*]}" ]] || "${as_root[@]}" rm -f "${unfinished}"
  return 1
}

# ensure_packages LIST: installs what is missing. If it cannot, it says what to do and returns 1. Data alone is worth a
# word, but is not a failure: what reads it will miss it.
ensure_packages() {
  local log package needed
  local -a as_root
  find_missing "$1"
  # Whether nothing can be built as it is.
  needed=${#missing_build[@]}
  [[ ! -e ${unfinished} || -z "$(type -P apt-get)" ]] || needed=1
  [[ ${#missing[@]} -eq 0 && ${needed} -eq 0 ]] && return 0

  if [[ -z "$(type -P apt-get)" ]]; then
    [[ ${needed} -eq 0 ]] && return 0
    {
      echo "GPipe needs, under the names that these have in Debian: ${missing_build[*]}"
      echo "There is no apt-get here: install them with your package manager (found when headers lie"
      echo "under /usr/include or /usr/local/include and commands on PATH), and call this again."
    } >&2
    return 1
  fi
  if [[ -n ${GPIPE_NO_INSTALL:-} ]] || { [[ ${user} -ne 0 ]] && ! sudo -n true 2>/dev/null; }; then
    {
      if [[ ${needed} -eq 0 ]]; then
        echo "GPipe: packages are missing that no build needs. Type this if you want what they bring:"
      elif [[ -e ${unfinished} ]]; then
        echo "GPipe: the packages of this machine are being set up, or that was interrupted. Call again, or type this:"
      else
        echo "GPipe needs packages that are missing here. Type this and call again:"
      fi
      by_hand
    } >&2
    [[ ${needed} -eq 0 ]]
    return
  fi

  if [[ -e ${unfinished} ]]; then
    echo "GPipe: finishing an interrupted set-up, or waiting for one that is at work" >&2
  else
    echo "GPipe: installing ${missing[*]}" >&2
  fi
  if ! log="$(mktemp)"; then
    echo "GPipe: nothing can be written to ${TMPDIR:-/tmp}. Make room there, or set TMPDIR to another folder." >&2
    [[ ${needed} -eq 0 ]]
    return
  fi
  find_root
  if ! run_apt "$1" >>"${log}" 2>&1 </dev/null; then
    tail -n 20 "${log}" >&2
    {
      [[ -s ${log} ]] || echo "GPipe: nothing could be written to ${log}: is that disk full?"
      echo "GPipe: apt-get failed (its whole output: ${log}). Once it is repaired, call this again, or type:"
      by_hand
    } >&2
    [[ ${#missing_build[@]} -eq 0 ]]
    return
  fi
  rm -f "${log}"
  hash -r
  find_missing "$1"
  # Somebody has deleted its files, or dpkg was told to leave them out: to apt-get it is installed, and would be for ever.
  for package in "${missing_data[@]}"; do
    "${as_root[@]}" touch "${unknown}-${package}"
    {
      echo "GPipe: apt-get was content with ${package}, but there is no /usr/${proofs[${package}]}. Without it:"
      echo "  ${lost[${package}]}"
      echo "GPipe: it is not asked for again until ${unknown}-${package} is removed. To have its files again:"
      typed "apt-get install --reinstall -y ${package}"
    } >&2
  done
  [[ ${#missing_build[@]} -eq 0 ]] && return 0
  echo "GPipe: apt-get was content, but these are still not found: ${missing_build[*]}" >&2
  return 1
}
