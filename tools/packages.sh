# shellcheck shell=bash
# tools/bazel and tools/lint source this file. It finds the packages of a list such as packages.txt
# that this machine lacks, and installs them. Finding takes a few milliseconds, because it runs no
# program besides the shell.

# find_bazel: sets `bazel` to a Bazel that is not a wrapper of this repository; empty if there is
# none.
find_bazel() {
  local candidate folder
  bazel="${BAZEL_REAL:-}"
  [[ -n ${bazel} && -x ${bazel} ]] && return 0
  bazel=""
  for folder in /usr/local/bin /usr/bin; do
    for candidate in "${folder}/bazel-${USE_BAZEL_VERSION:-none}" "${folder}"/bazel-real "${folder}"/bazel-[0-9]*; do
      # The last match is the newest. Folders and files like bazel-4.bash are left out.
      [[ -f ${candidate} && -x ${candidate} ]] && bazel="${candidate}"
      [[ ${bazel} == *"-${USE_BAZEL_VERSION:-none}" ]] && return 0
    done
    [[ -n ${bazel} ]] && return 0
  done
  # Looks for Bazelisk or an official Bazel. It either calls tools/bazel again with BAZEL_REAL set, or is the real one.
  for candidate in bazelisk bazel; do
    bazel="$(type -P "${candidate}" || true)"
    [[ -n ${bazel} && ! ${bazel} -ef "${BASH_SOURCE[0]%/*}/bazel" ]] && return 0
  done
  bazel=""
}

# The user that runs this; tests set it to one that is not root.
user="${EUID}"

# choose_options ARGUMENTS...: sets `options` to the additional options of `bazel`. Debian's Bazel 4 fails in paths that
# have spaces: its own files can be elsewhere, the sources cannot.
without_spaces="/var/tmp/bazel-${EUID}"
# shellcheck disable=SC2034 # tools/bazel reads `options`
choose_options() {
  local folder clone
  options=()
  [[ ${bazel} == /usr/bin/bazel-[0-9]* ]] || return 0
  # In the usual case, without spaces in PWD, this runs no program.
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

# has PROOF: whether this machine has what proves that a package is installed.
has() {
  case "$1" in
    bazel) find_bazel; [[ -n ${bazel} ]] ;;
    cmd:*) type -P "${1#cmd:}" >/dev/null ;;
    *) [[ -e /usr/$1 || -e /usr/local/$1 ]] ;;
  esac
}

# A file with this prefix and a package's name says that apt-get does not know the package, as in another Debian. If the
# package is not needed to build, it is not asked for again. Any user may remove the file.
unknown=/var/tmp/gpipe-unknown-package

# find_missing LIST: sets the arrays `missing` (all missing packages), `missing_build` (those without which nothing can
# be built) and `missing_data` (the others), and for the others `proofs` (package -> the file that shows that it is
# there) and `lost` (package -> what does not work without it).
find_missing() {
  local package kind proof what
  missing=() missing_build=() missing_data=()
  declare -gA proofs=() lost=()
  while read -r package kind proof what; do
    [[ -z ${package} || ${package} == \#* ]] && continue
    # Debian's Bazel needs these packages. An official Bazel brings or downloads their contents.
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

# This file exists from before the first package is unpacked until the last one is set up, because files are there
# before they work. So neither an interrupted installation nor one that another clone runs is taken for a finished one.
unfinished=/var/tmp/gpipe-packages-unfinished

# typed COMMAND: prints the line that runs it as root.
typed() {
  if [[ ${user} -eq 0 ]]; then
    echo "  $1"
  elif [[ -n "$(type -P sudo)" ]]; then
    echo "  sudo sh -c '$1'"
  else
    echo "  su - -c '$1'     (or let whoever administers this machine type what stands in '')"
  fi
}

# by_hand: prints the line to type for the needed packages, and one for the others, with what does not work without
# them. One line for both would install nothing if one of the others does not exist.
by_hand() {
  local install="apt-get update && apt-get install -y --no-install-recommends" package
  if [[ -e ${unfinished} ]]; then
    # Packages of an interrupted installation must be set up first.
    typed "dpkg --configure -a && ${install/ -y/ -f -y}${missing_build[*]:+ ${missing_build[*]}} && rm -f ${unfinished}"
  elif [[ ${#missing_build[@]} -gt 0 ]]; then
    typed "${install} ${missing_build[*]}"
  fi
  [[ ${#missing_data[@]} -gt 0 ]] || return 0
  [[ ${#missing_build[@]} -eq 0 && ! -e ${unfinished} ]] || echo "GPipe: and this, if you want what it brings:"
  typed "${install} ${missing_data[*]}"
  for package in "${missing_data[@]}"; do echo "  Without ${package}: ${lost[${package}]}"; done
}

# find_root: sets `as_root`, the beginning of a command that runs as root.
find_root() {
  as_root=()
  [[ ${user} -eq 0 ]] || as_root=(sudo -n)
  as_root+=(env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8)
}

# leave_out_unknown LIST: leaves out packages that apt-get does not know: with one unknown name it would install
# nothing.
leave_out_unknown() {
  local package
  [[ -n "$(type -P apt-cache)" ]] || return 0
  for package in "${missing_data[@]}"; do
    apt-cache show "${package}" || "${as_root[@]}" touch "${unknown}-${package}"
  done
  find_missing "$1"
}

# run_apt LIST: installs `missing`. To be called with all output on stderr or discarded, because stdout belongs to Bazel
# (`bazel query`), and without our stdin.
run_apt() {
  local -a repair=()
  local tries before
  if [[ -e ${unfinished} ]]; then
    # This fails while another installation runs. The commands below wait for the other
    # installation.
    "${as_root[@]}" dpkg --configure -a
    repair=(-f)
  else
    "${as_root[@]}" touch "${unfinished}"
  fi
  # Debian's own updates or another clone may hold the lock of the package lists, for which apt-get does not wait. Other
  # failures, such as an unrelated package source that is gone, may not matter.
  for ((tries = 0; tries < 150; ++tries)); do
    : >"${log}"
    if "${as_root[@]}" apt-get update; then
      # apt-get update also succeeds without a network. Then its lists do not show which packages
      # are unknown.
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
  # If apt-get failed before it unpacked anything, no installation was begun.
  before="${missing[*]}"
  find_missing "$1"
  [[ ${#repair[@]} -gt 0 || ${before} != "${missing[*]}" ]] || "${as_root[@]}" rm -f "${unfinished}"
  return 1
}

# ensure_packages LIST: installs missing packages. If it cannot, it says what to do and returns 1. If only data is
# missing, it says so and returns 0: the programs that read it will report it.
ensure_packages() {
  local log package needed
  local -a as_root
  find_missing "$1"
  # `needed` is above 0 if nothing can be built as it is.
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
  # Data may be missing although apt-get takes the package for installed: its files were deleted, or
  # dpkg was told to leave them out. apt-get would never bring them back, so the package is not
  # asked for again.
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
