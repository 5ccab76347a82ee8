#!/usr/bin/env bash
# A bare Debian 12 in a folder: what a newcomer's machine has, and nothing of this one but apt's sources, certificates
# and pip's settings. Needs root and debootstrap.
#
#   bare_root.sh make ROOT CACHE               makes it; packages are kept in CACHE/apt
#   bare_root.sh run ROOT CACHE COMMAND...     runs a command in it, as root, with CACHE as ~/.cache/gpipe
#   bare_root.sh remove ROOT                   deletes it
#   bare_root.sh possible                      exits 0 where `run` can work
#
# `run` mounts everything in a mount namespace of its own and starts the command in a process namespace of its own:
# with the command, however it ends, its last process and its last mount are gone. No mount is ever seen outside, so
# that nothing of this machine can be deleted through one.
set -euo pipefail

die() {
  printf 'bare_root.sh: %s\n' "$@" >&2
  exit 2
}

# Settings by which a package manager finds its registry; nothing else of the environment comes along.
passed_variables() {
  env | grep -E '^(PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT|CERT)|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY)=' || true
}

make_root() {
  local root="$1" cache="$2" mirror file
  [[ ! -e ${root} ]] || die "${root} exists. Give a folder that does not, or remove it: bare_root.sh remove ${root}"
  mirror="$(grep -hE '^URIs:' /etc/apt/sources.list.d/debian.sources 2>/dev/null | awk 'NR == 1 { print $2 }')"
  mkdir -p "${root}" "${cache}/apt"
  if ! debootstrap --variant=minbase --include=ca-certificates --cache-dir="$(realpath "${cache}")/apt" \
    bookworm "${root}" ${mirror:+"${mirror}"} >"${root}.log" 2>&1; then
    tail -n 5 "${root}.log" >&2
    die "debootstrap failed (its whole output: ${root}.log)."
  fi
  rm "${root}.log"
  if [[ -f /etc/apt/sources.list.d/debian.sources ]]; then
    rm -f "${root}/etc/apt/sources.list"
    cp /etc/apt/sources.list.d/debian.sources "${root}/etc/apt/sources.list.d/"
  fi
  for file in /etc/apt/apt.conf.d/99*; do
    [[ ! -f ${file} ]] || cp "${file}" "${root}/etc/apt/apt.conf.d/"
  done
  cp /etc/ssl/certs/ca-certificates.crt "${root}/etc/ssl/certs/"
  cp /etc/resolv.conf /etc/hosts "${root}/etc/"
  for file in /etc/pip.conf "${HOME:-/root}/.config/pip/pip.conf" "${HOME:-/root}/.pip/pip.conf"; do
    [[ ! -f ${file} ]] || { cat "${file}"; echo; } >>"${root}/etc/pip.conf"
  done
}

# Runs in the new namespaces: ROOT CACHE COMMAND...
enter() {
  local root="$1" cache="$2" node
  local -a variables=()
  shift 2
  mount --bind "${root}" "${root}"
  mkdir -p "${root}"/{proc,sys,dev,root/.cache/gpipe,var/cache/apt/archives}
  mount -t proc proc "${root}/proc"
  mount -t sysfs -o ro sysfs "${root}/sys"
  mount -t tmpfs -o mode=755 tmpfs "${root}/dev"
  mkdir "${root}"/dev/{pts,shm}
  mount -t tmpfs -o mode=1777 tmpfs "${root}/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "${root}/dev/pts"
  for node in null zero full random urandom tty; do
    touch "${root}/dev/${node}"
    mount --bind "/dev/${node}" "${root}/dev/${node}"
  done
  ln -s pts/ptmx "${root}/dev/ptmx"
  ln -s /proc/self/fd "${root}/dev/fd"
  for node in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${node%:*}" "${root}/dev/${node#*:}"; done
  mount --bind "${cache}" "${root}/root/.cache/gpipe"
  mount --bind "${cache}/apt" "${root}/var/cache/apt/archives"
  mapfile -t variables < <(passed_variables)
  # Not chroot: in one, the kernel refuses the user namespaces of Bazel's sandbox.
  cd "${root}"
  mkdir -p .old
  pivot_root . .old
  exec env -i "${variables[@]}" HOME=/root USER=root TERM=dumb LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /bin/bash -c 'umount -l /.old && rmdir /.old && cd && exec "$@"' bash "$@"
}

run_in() {
  local root="$1" cache="$2"
  shift 2
  [[ -x ${root}/bin/bash ]] || die "${root} is no root: bare_root.sh make ${root} ${cache}"
  mkdir -p "${cache}/apt"
  exec unshare --mount --propagation private --pid --fork --kill-child -- \
    "${BASH_SOURCE[0]}" enter "$(realpath "${root}")" "$(realpath "${cache}")" "$@"
}

remove() {
  [[ -d $1 ]] || return 0
  [[ -d $1/etc && -d $1/usr ]] || die "$1 does not look like a root."
  ! grep -qF " $(realpath "$1")/" /proc/self/mounts || die "something is mounted below $1: not deleted."
  rm -rf --one-file-system "$1"
}

verb="${1:-}"
[[ $# -eq 0 ]] || shift
case "${verb}:$#" in
  make:2) make_root "$@" ;;
  run:[3-9] | run:[1-9][0-9]) run_in "$@" ;;
  enter:[3-9] | enter:[1-9][0-9]) enter "$@" ;;
  remove:1) remove "$@" ;;
  possible:0) [[ ${EUID} -eq 0 ]] && unshare --mount --pid --fork --propagation private mount -t tmpfs tmpfs /mnt 2>/dev/null ;;
  *) die "usage: bare_root.sh make ROOT CACHE | run ROOT CACHE COMMAND... | remove ROOT | possible" ;;
esac
