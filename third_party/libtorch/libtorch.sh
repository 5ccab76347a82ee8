#!/usr/bin/env bash
# Finds or fetches the pinned LibTorch.
#
#   libtorch.sh find    prints "torch=DIR" (has include/ and lib/) and "nvidia=DIR" (may be empty), or
#                       exits 3 when there is none yet, 1 when what was asked for cannot be used
#   libtorch.sh fetch   downloads the wheels of requirements.txt into the cache, once for all clones
#
# Looked at in this order: $LIBTORCH_ROOT, python3 on PATH, the cache.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
requirements="${GPIPE_LIBTORCH_REQUIREMENTS:-${here}/requirements.txt}"
version="$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "${requirements}")"
cache="${GPIPE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/gpipe}"
cached="${cache}/libtorch-${version}"

die() {
  printf 'GPipe: %s\n' "$@" >&2
  exit 1
}

# version_of DIR: the version of the LibTorch whose include/ is in DIR, nothing if it cannot be told.
version_of() {
  local file="$1/include/torch/headeronly/version.h"
  [[ -f ${file} ]] || file="$1/include/torch/csrc/api/include/torch/version.h"
  [[ -f ${file} ]] || return 0
  sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\).*/\2/p' "${file}" | paste -sd.
}

# missing_in DIR: the first file that a usable LibTorch would have and this one has not.
missing_in() {
  local file
  for file in include/ATen/core/Tensor.h include/torch/csrc/api/include/torch/torch.h \
    lib/libtorch.so lib/libtorch_cpu.so lib/libc10.so; do
    [[ -e $1/${file} ]] || { echo "${file}"; return 0; }
  done
}

# report DIR SITE: DIR holds include/ and lib/, SITE may hold nvidia/.
report() {
  echo "torch=$1"
  if [[ -d $2/nvidia ]]; then echo "nvidia=$2/nvidia"; else echo "nvidia="; fi
}

find_it() {
  local root site torch found absent
  if [[ -n ${LIBTORCH_ROOT:-} ]]; then
    root="${LIBTORCH_ROOT%/}"
    [[ -d ${root} ]] || die "LIBTORCH_ROOT=${root} is not a folder." \
      "Set it to a LibTorch ${version} (has include/ and lib/) or to a site-packages (has torch/), or unset it."
    torch="${root}" site="$(dirname "${root}")"
    if [[ -d ${root}/torch/lib ]]; then torch="${root}/torch" site="${root}"; fi
    found="$(version_of "${torch}")"
    [[ -n ${found} ]] || die "LIBTORCH_ROOT=${root} holds no LibTorch (no include/torch, no torch/include/torch)." \
      "Set it to a LibTorch ${version} or to a site-packages that has torch ${version}, or unset it."
    [[ ${found} == "${version}" ]] || die "LIBTORCH_ROOT=${root} is LibTorch ${found}, but GPipe needs ${version}." \
      "Set it to LibTorch ${version}, or unset it to let GPipe download that once into ${cached}."
    absent="$(missing_in "${torch}")"
    [[ -z ${absent} ]] || die "LIBTORCH_ROOT=${root}: ${torch}/${absent} is missing." \
      "Unpack LibTorch ${version} again, or unset LIBTORCH_ROOT."
    report "${torch}" "${site}"
    return 0
  fi

  # find_spec does not import torch: that would take seconds.
  if torch="$(python3 -c 'import importlib.util as u
s = u.find_spec("torch")
print(s.submodule_search_locations[0] if s and s.origin else "")' 2>/dev/null)" &&
    [[ -n ${torch} && "$(version_of "${torch}")" == "${version}" && -z "$(missing_in "${torch}")" ]]; then
    report "${torch}" "$(dirname "${torch}")"
    return 0
  fi

  if [[ -d ${cached} ]]; then
    absent="$(missing_in "${cached}/torch")"
    [[ -z ${absent} ]] || die "${cached}/torch/${absent} is missing: the cache is damaged." \
      "Remove the folder ${cached} and build again; it will be downloaded again."
    report "${cached}/torch" "${cached}"
    return 0
  fi
  return 3
}

fetch_it() {
  local log free absent
  [[ "$(uname -sm)" == "Linux x86_64" ]] || die "there are pinned wheels for Linux x86_64 only, this is $(uname -sm)." \
    "Set LIBTORCH_ROOT to a LibTorch ${version} made for this machine."
  python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is needed to download LibTorch ${version}." \
    "Debian, Ubuntu: apt-get install python3-pip. Or set LIBTORCH_ROOT to a LibTorch ${version}."
  mkdir -p "${cache}" 2>/dev/null || true
  [[ -w ${cache} ]] || die "cannot write to ${cache}." \
    "Set GPIPE_CACHE to a folder that can be written, or LIBTORCH_ROOT to a LibTorch ${version}."

  exec 9>"${cache}/libtorch-${version}.lock"
  flock 9  # Two builds at once: the second waits and then finds the first one's.
  [[ ! -d ${cached} ]] || return 0

  free="$(df -Pk "${cache}" | awk 'NR == 2 { print int($4 / 1048576) }')"
  [[ ${free} -ge 9 ]] || die "LibTorch ${version} needs 9 GB while it is unpacked, ${cache} has ${free} GB." \
    "Make room, or set GPIPE_CACHE to a folder on a larger disk."

  echo "GPipe: downloading LibTorch ${version} (2.6 GB, once) into ${cached}" >&2
  rm -rf "${cached}.tmp"
  mkdir -p "${cached}.tmp/tmp"
  log="${cache}/libtorch-${version}.log"
  # With --platform, pip takes the tags literally: every one up to that of torch itself.
  local tag
  local -a platforms=()
  for tag in {28..5}; do platforms+=(--platform "manylinux_2_${tag}_x86_64"); done
  platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
  # --target unpacks without installing, so Debian's rule about system Pythons does not apply; the
  # Python version is that of the pinned files and need not be the one that runs pip.
  if ! TMPDIR="${cached}.tmp/tmp" python3 -m pip install --no-cache-dir --disable-pip-version-check \
    --no-deps --require-hashes --only-binary=:all: --python-version 3.11 --implementation cp \
    "${platforms[@]}" --no-compile \
    --target "${cached}.tmp/site" -r "${requirements}" >"${log}" 2>&1; then
    tail -n 5 "${log}" >&2
    rm -rf "${cached}.tmp"
    die "LibTorch ${version} could not be downloaded (the whole log: ${log})." \
      "Check the network and pip's settings (PIP_INDEX_URL, proxy) and build again," \
      "or set LIBTORCH_ROOT to a LibTorch ${version} that is already on this machine."
  fi
  absent="$(missing_in "${cached}.tmp/site/torch")"
  [[ -z ${absent} ]] || die "the downloaded wheels lack torch/${absent}: requirements.txt is wrong."
  mv "${cached}.tmp/site" "${cached}"
  rm -rf "${cached}.tmp" "${log}"
}

case "${1:-}" in
  find) find_it ;;
  fetch) fetch_it ;;
  *) die "usage: libtorch.sh find|fetch" ;;
esac
