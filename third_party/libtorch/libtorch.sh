#!/usr/bin/env bash
# Finds or fetches a LibTorch of versions.txt, and the headers of CUDA that its own headers include.
#
#   libtorch.sh find    prints the lines below, or exits 3 when something has to be fetched first, or
#                       exits 1 when what was asked for cannot be used:
#                         version=VERSION  of the LibTorch, such as 2.15.0
#                         cxx=STANDARD     the C++ standard that its headers need, such as 20
#                         torch=DIR   has include/ and lib/
#                         cuda=DIR    has cuda_runtime_api.h, empty if this LibTorch knows no CUDA
#                         crt=DIR     has host_defines.h, empty likewise
#                         cccl=DIR    has nv/target and thrust/, empty likewise
#                         nccl=DIR    has nccl.h, empty if there is none
#                       A line on stderr that begins with "GPipe: note: " says what was passed over.
#   libtorch.sh fetch   downloads the pinned wheels into the cache, once for all clones
#   libtorch.sh torch   prints the first three of find's lines; code without CUDA's headers needs no more
#   libtorch.sh default prints the default version
#   libtorch.sh tags    prints the options by which pip takes the wheels of the list, whichever Python runs it
#   libtorch.sh cxx     prints the C++ standard that $GPIPE_LIBTORCH, or the default version, needs, such as 20
#
# $LIBTORCH_ROOT is taken if it is set, whichever version of the list it has. Else the version is $GPIPE_LIBTORCH or the
# list's first, looked for in python3 on PATH, then in the cache. GPIPE_LIBTORCH_VERSIONS names another list
# (tools/libtorch_try).
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
list="${GPIPE_LIBTORCH_VERSIONS:-${here}/versions.txt}"
# If HOME is not set, ~ is the home that the system's list of users gives.
[[ -n ${HOME:-} ]] || { unset HOME; HOME=~; export HOME; }
cache="${GPIPE_CACHE:-${XDG_CACHE_HOME:-${HOME}/.cache}/gpipe}"
die() {
  printf 'GPipe: %s\n' "$@" >&2
  exit 1
}
# note TEXT: prints TEXT once, however often the same is found.
noted=""
note() {
  [[ ${noted} != *"$1"* ]] || return 0
  noted+="$1"
  printf 'GPipe: note: %s\n' "$1" >&2
}
[[ ${cache} == /* ]] || die "the cache ${cache} (GPIPE_CACHE) does not begin with a /: Bazel calls this in another folder." \
  "Set it to the whole path, such as ${HOME}/my-cache."

# listed: the versions of the list, the default first.
listed() { sed -n 's/^version \([^ ]*\).*/\1/p' "${list}"; }
default_version() { sed -n '/^version /{s/^version \([^ ]*\).*/\1/p;q}' "${list}"; }
# in_words: all versions of the list, for a message.
in_words() { listed | paste -sd, | sed 's/,/, /g'; }
# property NAME: the value that versions.txt has under NAME for the chosen version.
property() { sed -n "s/^version ${version//./\\.} .*\\b$1=\\([^ ]*\\).*/\\1/p" "${list}"; }
# pins KIND: the `wheel` or `header` lines of the chosen version, as pip reads them.
pins() {
  awk -v kind="$1" -v version="${version}" '$1 == "version" { inside = $2 == version } inside && $1 == kind { print $2, $3 }' "${list}"
}
# choose VERSION: everything below uses that version. The names of pinned files, such as
# cuda-cccl-13.0.85-cuda-crt-13.0.88, are a part of the folder's name, so another pin is another
# download.
choose() {
  version="$1"
  cached="${cache}/libtorch-${version}"
  cached_cuda="${cache}/$(pins header | sed -n 's/^nvidia-\([a-z0-9-]*\)==\([0-9.]*\).*/\1-\2/p' | sort | paste -sd-)"
}
[[ -r ${list} ]] || die "the list of LibTorch versions ${list} (GPIPE_LIBTORCH_VERSIONS) cannot be read."
# The version that is taken unless LIBTORCH_ROOT is set.
wanted="${GPIPE_LIBTORCH:-$(default_version)}"
# The first test refuses line ends, because grep takes each line of a pattern for a pattern of its
# own.
{ [[ ${wanted} != *[!0-9.]* ]] && grep -qxF -- "${wanted}" <(listed); } || die "GPIPE_LIBTORCH=${wanted} is not a LibTorch version that this GPipe supports: $(in_words)." \
  "Give one of these, or try this one: tools/libtorch_try ${wanted}"
choose "${wanted}"

# version_of DIR: the version of the LibTorch whose include/ is in DIR; nothing if it is unknown.
version_of() {
  local file="$1/include/torch/headeronly/version.h"
  [[ -f ${file} ]] || file="$1/include/torch/csrc/api/include/torch/version.h"
  [[ -f ${file} ]] || return 0
  sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\).*/\2/p' "${file}" | paste -sd.
}

# missing_in DIR: the first file that a usable LibTorch has and this one does not.
missing_in() {
  local file
  for file in include/ATen/core/Tensor.h include/torch/csrc/api/include/torch/torch.h \
    lib/libtorch.so lib/libtorch_cpu.so lib/libc10.so; do
    [[ -e $1/${file} ]] || { echo "${file}"; return 0; }
  done
}

# find_torch: sets `torch` (has include/ and lib/) and `site` (may hold nvidia/); both are empty if
# there is none.
find_torch() {
  local root found absent
  if [[ -n ${LIBTORCH_ROOT:-} ]]; then
    root="${LIBTORCH_ROOT%/}"
    [[ ${root} == /* || -z ${root} ]] || die "LIBTORCH_ROOT=${LIBTORCH_ROOT} does not begin with a /: Bazel calls this in another folder." \
      "Set it to the whole path, or unset it."
    [[ -d ${root} ]] || die "LIBTORCH_ROOT=${root} is not a folder." \
      "Set it to a LibTorch (has include/ and lib/) or to a site-packages (has torch/), or unset it."
    torch="${root}" site="$(dirname "${root}")"
    if [[ -d ${root}/torch/lib ]]; then torch="${root}/torch" site="${root}"; fi
    found="$(version_of "${torch}")"
    [[ -n ${found} || ! -e ${torch}/lib/libc10.so ]] || die "LIBTORCH_ROOT=${root} is a LibTorch without headers: ${torch} has lib/ but no include/torch." \
      "Set it to one with headers (the wheels of the list have them), or unset it to let GPipe download LibTorch ${version}."
    [[ -n ${found} ]] || die "LIBTORCH_ROOT=${root} holds no LibTorch (no include/torch, no torch/include/torch)." \
      "Set it to a LibTorch or to a site-packages that has one, or unset it. Supported versions: $(in_words)."
    grep -qxF -- "${found}" <(listed) || die "LIBTORCH_ROOT=${root} is LibTorch ${found}, which this GPipe does not support: $(in_words)." \
      "Set it to one of these, or unset it to let GPipe download LibTorch ${version} once into ${cached}."
    [[ -z ${GPIPE_LIBTORCH:-} || ${found} == "${GPIPE_LIBTORCH}" ]] ||
      note "GPIPE_LIBTORCH=${GPIPE_LIBTORCH} is passed over: LIBTORCH_ROOT=${root} is LibTorch ${found}."
    choose "${found}"
    absent="$(missing_in "${torch}")"
    [[ -z ${absent} ]] || die "LIBTORCH_ROOT=${root}: ${torch}/${absent} is missing." \
      "Unpack LibTorch ${version} again, or unset LIBTORCH_ROOT."
    # A folder may have been put together from two versions. The library contains its version as a
    # text.
    grep -aqF -- "${version}" "${torch}/lib/libtorch_cpu.so" || die "LIBTORCH_ROOT=${root} has headers of LibTorch ${version}, but ${torch}/lib/libtorch_cpu.so is of another version." \
      "Unpack one version into a folder of its own and set LIBTORCH_ROOT to that, or unset it."
    # In the new ABI, the names of strings and lists contain __cxx11.
    grep -q __cxx11 "${torch}/lib/libc10.so" || die "LIBTORCH_ROOT=${root} was built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), which GPipe is not." \
      "Set it to a LibTorch with the new ABI (\"cxx11 ABI\"; all of 2.7 and later are), or unset it."
    return 0
  fi

  # find_spec does not import torch, which would take seconds.
  if torch="$(python3 -c 'import importlib.util as u
s = u.find_spec("torch")
print(s.submodule_search_locations[0] if s and s.origin else "")' 2>/dev/null)" &&
    [[ -n ${torch} ]]; then
    found="$(version_of "${torch}")"
    absent="$(missing_in "${torch}")"
    if [[ ${found} == "${version}" && -z ${absent} ]]; then
      site="$(dirname "${torch}")"
      return 0
    elif [[ -z ${found} ]]; then
      note "python3's torch in ${torch} is passed over: it has no headers (include/torch)."
    elif [[ ${found} == "${version}" ]]; then
      note "python3's torch ${found} in ${torch} is passed over: it has no ${absent}."
    else
      note "python3's torch ${found} in ${torch} is passed over: LibTorch ${version} is asked for."
    fi
  fi

  torch="" site=""
  if [[ -d ${cached} ]]; then
    absent="$(missing_in "${cached}/torch")"
    [[ -z ${absent} ]] || die "${cached}/torch/${absent} is missing: the cache is damaged." \
      "Remove the folder ${cached} and build again; it will be downloaded again."
    torch="${cached}/torch" site="${cached}"
  fi
}

# first_with FILE DIR...: the first folder that has the file.
first_with() {
  local file="$1" folder
  shift
  for folder in "$@"; do
    [[ -e ${folder}/${file} ]] && { echo "${folder}"; return 0; }
  done
  return 0
}

# find_cuda: sets `cuda`, `crt`, `cccl`, `nccl`. The wheels that LibTorch comes with have the headers of the CUDA
# runtime except crt/ and CCCL's, so code that uses c10/cuda and ATen/cuda compiles where there is no CUDA Toolkit.
# Those two come from the pinned wheels, on a machine with a toolkit as on one without: headers that only some
# machines have break the build of the others unseen. A toolkit serves a LibTorch that has no wheels beside it.
find_cuda() {
  local found needed toolkit="${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}" pinned="${cached_cuda}/nvidia/cu13/include"
  cuda="" crt="" cccl="" nccl=""
  [[ -e ${torch}/lib/libtorch_cuda.so ]] || return 0
  cuda="$(first_with cuda_runtime_api.h "${site}/nvidia/cu13/include" "${site}/nvidia/cuda_runtime/include" \
    "${toolkit}/include")"
  [[ -n ${cuda} ]] || die "${torch} is a LibTorch for CUDA, but no cuda_runtime_api.h was found beside it or in ${toolkit}." \
    "Install the CUDA Toolkit or set CUDA_HOME; or take the LibTorch wheels (unset LIBTORCH_ROOT)."
  # The CUDA of the headers must be that of the library. Otherwise a program would load two
  # runtimes, each with its own state.
  found="$(sed -n '/^#define CUDART_VERSION /{s/.* \([0-9]*\)[0-9]\{3\}.*/\1/p;q}' "${cuda}/cuda_runtime_api.h")"
  # The library's file may be missing, and may contain the name of the runtime never, once or
  # several times. The first name counts.
  needed="$({ grep -aoE 'libcudart\.so\.[0-9]+' "${torch}/lib/libc10_cuda.so" 2>/dev/null || true; } | sed -n 's/.*\.//;1p')"
  [[ -z ${found} || -z ${needed} || ${found} == "${needed}" ]] ||
    die "${torch} is a LibTorch for CUDA ${needed}, but the headers in ${cuda} are of CUDA ${found}." \
      "Set CUDA_HOME to a CUDA Toolkit ${needed}, or take the LibTorch wheels (unset LIBTORCH_ROOT)."
  crt="$(first_with host_defines.h "${cuda}/crt" "${pinned}/crt")"
  # Toolkits before 13 have these headers among the others. Toolkits from 13 on and the wheels have
  # them in a folder of their own.
  cccl="$(first_with thrust/tuple.h "${cuda}/cccl" "${cuda}" "${pinned}/cccl")"
  nccl="$(first_with nccl.h "${site}/nvidia/nccl/include")"
}

print_torch() {
  [[ -n ${torch} ]] || return 3
  printf '%s\n' "version=${version}" "cxx=$(property cxx)" "torch=${torch}"
}

find_all() {
  find_torch
  [[ -n ${torch} ]] || return 3
  find_cuda
  [[ -z ${cuda} || (-n ${crt} && -n ${cccl}) ]] || return 3
  print_torch
  printf '%s\n' "cuda=${cuda}" "crt=${crt}" "cccl=${cccl}" "nccl=${nccl}"
}

# tags: prints pip's options, one in a line. With --platform, pip takes the tags literally, so all
# tags up to that of torch itself are listed. The Python version is that of the pinned files and
# need not be the one that runs pip.
tags() {
  printf '%s\n' --only-binary=:all: --python-version=3.11 --implementation=cp
  printf -- '--platform=manylinux_2_%s_x86_64\n' {28..5}
  printf -- '--platform=%s_x86_64\n' manylinux2014 manylinux2010 manylinux1
}

# download KIND PROOF INTO WHAT GIGABYTES: unpacks the pinned wheels of that kind, completely or not at all.
download() {
  local kind="$1" proof="$2" into="$3" what="$4" need="$5" log="$3.log" free
  local -a tags=()
  [[ "$(uname -sm)" == "Linux x86_64" ]] || die "there are pinned wheels for Linux x86_64 only, this is $(uname -sm)." \
    "Set LIBTORCH_ROOT to a LibTorch ${version} made for this machine."
  python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is needed to download ${what}." \
    "Debian, Ubuntu: apt-get install python3-pip. Or set LIBTORCH_ROOT to a LibTorch ${version}."
  mkdir -p "${cache}" 2>/dev/null || true
  # The lock file may belong to another user.
  { : >>"${into}.lock"; } 2>/dev/null || die "cannot write to ${cache}." \
    "Set GPIPE_CACHE to a folder that can be written, or LIBTORCH_ROOT to a LibTorch ${version}."

  # If two builds download at once, the second waits, and then finds what the first has downloaded.
  exec 9>>"${into}.lock"
  flock --nonblock 9 || {
    echo "GPipe: another build is downloading ${what} into ${into}: waiting for it" >&2
    flock 9
  }
  [[ ! -d ${into} ]] || return 0

  rm -rf "${into}.tmp" # What an interrupted download has left takes room.
  free="$(df -Pk "${cache}" | awk 'NR == 2 { print int($4 / 1048576) }')"
  [[ ${free} -ge ${need} ]] || die "${what} needs ${need} GB while it is unpacked, ${cache} has ${free} GB." \
    "Make room, or set GPIPE_CACHE to a folder on a larger disk."

  echo "GPipe: downloading ${what}, once, into ${into}" >&2
  mkdir -p "${into}.tmp/tmp"
  pins "${kind}" >"${into}.tmp/${kind}s.txt"
  mapfile -t tags < <(tags)
  # If this script is killed, as Bazel does at Ctrl-C, pip must end, too, because it holds the lock.
  local -a dying=(setpriv --pdeathsig KILL)
  "${dying[@]}" true 2>/dev/null || dying=()
  # --target unpacks without installing, so Debian's rule about system Pythons does not apply.
  if ! TMPDIR="${into}.tmp/tmp" "${dying[@]}" python3 -m pip install --no-cache-dir --disable-pip-version-check \
    --no-deps --require-hashes "${tags[@]}" --no-compile --target "${into}.tmp/site" -r "${into}.tmp/${kind}s.txt" >"${log}" 2>&1; then
    tail -n 5 "${log}" >&2
    rm -rf "${into}.tmp"
    # On a full disk the log may be cut short.
    if [[ ! -s ${log} ]] || grep -qiE 'no space left|disk quota exceeded' "${log}"; then
      die "${what}: the disk of ${cache} was full before all was unpacked; ${need} GB are needed." \
        "Make room, or set GPIPE_CACHE to a folder on a larger disk, and build again."
    fi
    die "${what} could not be downloaded (the whole log: ${log})." \
      "Check the network and pip's settings (PIP_INDEX_URL, proxy, certificates) and build again," \
      "or set LIBTORCH_ROOT to a LibTorch ${version} that is already on this machine."
  fi
  [[ -e ${into}.tmp/site/${proof} ]] || die "the downloaded wheels lack ${proof}: the section ${version} of ${list} is wrong."
  mv "${into}.tmp/site" "${into}"
  rm -rf "${into}.tmp" "${log}"
  exec 9>&-
}

fetch_all() {
  local had_cuda=""
  find_torch
  if [[ -z ${torch} ]]; then
    download wheel torch/lib/libtorch.so "${cached}" "LibTorch ${version} (2.6 GB)" 9
    find_torch
  fi
  [[ ! -d ${cached_cuda} ]] || had_cuda=yes
  find_cuda
  if [[ -n ${cuda} && (-z ${crt} || -z ${cccl}) ]]; then
    download header nvidia/cu13/include/crt/host_defines.h "${cached_cuda}" \
      "the CUDA headers that LibTorch's wheels lack (3 MB)" 1
    find_cuda
    [[ (-n ${crt} && -n ${cccl}) || -z ${had_cuda} ]] || die "crt/ or CCCL is missing in ${cached_cuda}: the cache is damaged." \
      "Remove the folder ${cached_cuda} and build again; it will be downloaded again."
    [[ -n ${crt} && -n ${cccl} ]] || die "the section ${version} of ${list} lacks a header: crt/ or CCCL is not in ${cached_cuda}." \
      "This is a mistake in the repository; a CUDA Toolkit (CUDA_HOME) does not help here."
  fi
}

case "${1:-}" in
  find) find_all ;;
  fetch) fetch_all ;;
  torch) find_torch && print_torch ;;
  default) default_version ;;
  cxx) property cxx ;;
  tags) tags ;;
  *) die "usage: libtorch.sh find|fetch|torch|default|cxx|tags" ;;
esac
