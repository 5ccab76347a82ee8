#!/usr/bin/env bash
# Makes a bare Debian 12 in a folder: like a newcomer's machine, and with nothing of this machine
# except apt's sources, certificates and pip's settings. Needs root and debootstrap.
#
#   bare_root.sh make ROOT CACHE               makes it; packages are kept in CACHE/apt
#   bare_root.sh run ROOT CACHE COMMAND...     runs a command in it, as root, with CACHE as ~/.cache/gpipe
#   bare_root.sh remove ROOT                   deletes it
#   bare_root.sh possible                      exits 0 where `run` can work
#
# `run` mounts everything in a mount namespace of its own and starts the command in a process namespace of its own: when
# the command ends, by whatever cause, its processes and mounts end, too. No mount is ever seen outside, so that nothing
# of this machine can be deleted through one. `make` does the same for debootstrap. This protects against accidents, not
# against malice: root inside is root of this machine.
set -euo pipefail

die() {
  printf 'bare_root.sh: %s\n' "$@" >&2
  exit 2
}

# The settings by which a package manager finds its registry. No other variables are passed on.
passed_variables() {
  env | grep -E '^(PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT|CERT)|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY)=' || true
}

# in_namespaces VERB ARGUMENTS...: calls this script again, in new namespaces. A signal that ends this process ends that
# call, too; unshare alone ignores INT and TERM.
in_namespaces() {
  local child
  # A shell that is not interactive makes its background processes ignore INT.
  env --default-signal=INT,QUIT setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child -- "${self}" "$@" <&0 &
  child=$!
  trap 'kill -KILL "${child}" 2>/dev/null; exit 143' TERM HUP
  trap 'kill -KILL "${child}" 2>/dev/null; exit 130' INT
  wait "${child}"
}

# one_at_a_time LOCK FOLDER: locks the folder until this script and all processes that it starts have ended.
one_at_a_time() {
  exec 7<"$2"
  flock --nonblock "$1" 7 || die "$2 is in use: another make or run of bare_root.sh is at work in it."
}

# nothing_mounted FOLDER: fails if something is mounted in it. The kernel writes a space in a name as \040.
nothing_mounted() {
  local point
  while read -r _ _ _ _ point _; do
    printf -v point '%b' "${point//\\/\\0}"
    [[ ${point} != "$1" && ${point} != "$1"/* ]] || die "${point} is mounted: $1 is not deleted."
  done </proc/self/mountinfo
}

# Makes the root under another name first, so that a half-made one is never taken for a whole one.
make_root() {
  local root cache="$2" making
  [[ ${EUID} -eq 0 ]] || die "this needs root's rights."
  [[ -n "$(type -P debootstrap)" ]] || die "there is no debootstrap: apt-get install debootstrap"
  root="$(realpath -m "$1")"
  making="${root}.making"
  [[ ! -e ${root} ]] || die "${root} exists. Give a folder that does not, or remove it: bare_root.sh remove '${root}'"
  mkdir -p "${making}" "${cache}/apt"
  chmod 755 "${making}"
  one_at_a_time --exclusive "${making}"
  nothing_mounted "${making}"
  find "${making}" -xdev -mindepth 1 -delete
  # debootstrap mounts /proc and /sys in the folder.
  if ! in_namespaces bootstrap "${making}" "$(realpath "${cache}")/apt" >"${root}.log" 2>&1; then
    tail -n 5 "${root}.log" >&2
    die "debootstrap failed (its whole output: ${root}.log)."
  fi
  rm "${root}.log"
  copy_settings "${making}"
  mv -T "${making}" "${root}"
}

# bootstrap FOLDER PACKAGES: runs debootstrap. Called in the new namespaces.
bootstrap() {
  local mirror
  mirror="$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)"
  debootstrap --variant=minbase --include=ca-certificates --cache-dir="$2" bookworm "$1" ${mirror:+"${mirror}"}
}

copy_settings() {
  local root="$1" file
  if [[ -f /etc/apt/sources.list.d/debian.sources ]]; then
    rm -f "${root}/etc/apt/sources.list"
    cp /etc/apt/sources.list.d/debian.sources "${root}/etc/apt/sources.list.d/"
  fi
  for file in /etc/apt/apt.conf.d/99*; do
    [[ ! -f ${file} ]] || cp "${file}" "${root}/etc/apt/apt.conf.d/"
  done
  for file in /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf /etc/hosts \
    "${SSL_CERT_FILE:-}" "${PIP_CERT:-}" "${REQUESTS_CA_BUNDLE:-}"; do
    [[ ! -f ${file} ]] || install -D -m 644 "$(realpath "${file}")" "${root}$(realpath -ms "${file}")"
  done
  for file in /etc/pip.conf "${HOME:-/root}/.config/pip/pip.conf" "${HOME:-/root}/.pip/pip.conf"; do
    [[ ! -f ${file} ]] || { cat "${file}"; echo; } >>"${root}/etc/pip.conf"
  done
}

# enter ROOT CACHE COMMAND...: runs the command in the root. Called in the new namespaces.
enter() {
  local root="$1" cache="$2" node number
  local -a variables=()
  shift 2
  # A link made by an earlier command could lead out of the root.
  for node in proc sys dev root/.cache/gpipe var/cache/apt/archives; do
    [[ "$(realpath -m "${root}/${node}")" == "${root}/${node}" ]] || die "${root}/${node} is a link. Make the root anew."
  done
  mount --bind "${root}" "${root}"
  mkdir -p "${root}"/{proc,sys,dev,root/.cache/gpipe,var/cache/apt/archives}
  mount -t proc proc "${root}/proc"
  mount -t sysfs -o ro sysfs "${root}/sys"
  mount -t tmpfs -o mode=755 tmpfs "${root}/dev"
  mkdir "${root}"/dev/{pts,shm,.old}
  mount -t tmpfs -o mode=1777 tmpfs "${root}/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "${root}/dev/pts"
  # The root has its own device nodes, because a chmod inside must not change this machine's. If mknod fails, this
  # machine's are mounted.
  for node in null:3 zero:5 full:7 random:8 urandom:9 tty:0; do
    number="${node#*:}" node="${root}/dev/${node%:*}"
    mknod -m 666 "${node}" c "$((number == 0 ? 5 : 1))" "${number}" 2>/dev/null &&
      { [[ ${number} -eq 0 ]] || : 2>/dev/null >"${node}"; } && continue
    rm -f "${node}"
    touch "${node}"
    mount --bind "/dev/${node##*/}" "${node}"
  done
  ln -s pts/ptmx "${root}/dev/ptmx"
  ln -s /proc/self/fd "${root}/dev/fd"
  for node in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${node%:*}" "${root}/dev/${node#*:}"; done
  mount --bind "${cache}" "${root}/root/.cache/gpipe"
  mount --bind "${cache}/apt" "${root}/var/cache/apt/archives"
  mapfile -t variables < <(passed_variables)
  # This is not chroot, because in one the kernel refuses the user namespaces of Bazel's sandbox.
  # The old root goes to a folder in /dev: each run has its own /dev, so another run in the same
  # root does not see the folder.
  cd "${root}"
  pivot_root . dev/.old
  # A shell stays as process 1, because the kernel does not end process 1 by INT, and because a
  # shell waits for orphans.
  exec env -i "${variables[@]}" HOME=/root USER=root TERM=dumb LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /bin/bash -c 'umount -l /dev/.old && rmdir /dev/.old && cd && { "$@"; exit; }' bash "$@"
}

run_in() {
  local root cache="$2"
  root="$(realpath -m "$1")"
  shift 2
  [[ -x ${root}/bin/bash ]] || die "${root} is not a root: bare_root.sh make '${root}' '${cache}'"
  mkdir -p "${cache}/apt"
  one_at_a_time --shared "${root}"
  in_namespaces enter "${root}" "$(realpath "${cache}")" "$@"
}

# Deletes the root, and the half-made root of an interrupted `make`.
remove() {
  local root folder
  root="$(realpath -m "$1")"
  for folder in "${root}.making" "${root}"; do
    [[ -d ${folder} ]] || continue
    # Only a folder with debootstrap's log is deleted, and never / itself.
    if [[ ${folder} -ef / || (${folder} != *.making && ! -f ${folder}/var/log/bootstrap.log) ]]; then
      die "${folder} was not made by bare_root.sh, or a command in it has deleted its log: not deleted."
    fi
    one_at_a_time --exclusive "${folder}"
    nothing_mounted "${folder}"
    rm -rf --one-file-system "${folder}"
  done
  rm -f "${root}.log"
}

# Whether this machine allows the namespaces and mounts that `run` needs.
possible() {
  [[ ${EUID} -eq 0 && -n "$(type -P setpriv)" ]] && unshare --mount --propagation private --pid --fork --kill-child -- \
    bash -c 'mount -t tmpfs tmpfs /mnt && mkdir /mnt/{proc,sys,pts} && mount -t proc proc /mnt/proc &&
      mount -t sysfs -o ro sysfs /mnt/sys && mount -t devpts -o newinstance devpts /mnt/pts' 2>/dev/null
}

self="$(realpath "${BASH_SOURCE[0]}")"
verb="${1:-}"
[[ $# -eq 0 ]] || shift
case "${verb}:$#" in
  make:2) make_root "$@" ;;
  run:[0-2]) die "usage: bare_root.sh run ROOT CACHE COMMAND..." ;;
  run:*) run_in "$@" ;;
  remove:1) remove "$@" ;;
  possible:0) possible ;;
  bootstrap:2 | enter:*)
    # If this were called without a new namespace, it would mount on this machine itself.
    [[ $$ -eq 1 ]] || die "${verb} is what this script calls in namespaces of its own."
    "${verb}" "$@"
    ;;
  *) die "usage: bare_root.sh make ROOT CACHE | run ROOT CACHE COMMAND... | remove ROOT | possible" ;;
esac
