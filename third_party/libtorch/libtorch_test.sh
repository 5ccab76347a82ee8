#!/usr/bin/env bash
# Tests every way in which LibTorch is found, fetched or refused, with made-up folders and a made-up
# pip.
set -uo pipefail

script="${PWD}/third_party/libtorch/libtorch.sh"
root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
failures=0

# make_torch DIR VERSION: makes the files that the script looks for in a LibTorch, one with the new ABI.
make_torch() {
  local -a parts
  IFS=. read -r -a parts <<<"$2"
  mkdir -p "$1"/include/{ATen/core,torch/headeronly,torch/csrc/api/include/torch} "$1/lib"
  printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH %s\n' \
    "${parts[@]}" >"$1/include/torch/headeronly/version.h"
  touch "$1/include/ATen/core/Tensor.h" "$1/include/torch/csrc/api/include/torch/torch.h" \
    "$1/lib/libtorch.so"
  printf 'version %s\n' "$2" >"$1/lib/libtorch_cpu.so"
  printf 'a name\n_ZNSt7__cxx1112basic_string\n' >"$1/lib/libc10.so"
}

# check NAME CODE TEXT [VARIABLE=VALUE...] COMMAND: the script must end with CODE and print TEXT.
# With !TEXT it must not print TEXT.
check() {
  local name="$1" code="$2" text="$3" output actual
  shift 3
  output="$(env -u LIBTORCH_ROOT -u GPIPE_LIBTORCH -u GPIPE_LIBTORCH_VERSIONS PATH="${root}/bin:/usr/bin:/bin" HOME="${root}/home" \
    GPIPE_CACHE="${root}/cache" CUDA_HOME="${root}/no-toolkit" "${@:1:$#-1}" "${script}" "${@: -1}" 2>&1)"
  actual=$?
  if [[ ${actual} -ne ${code} || (${text} != !* && ${output} != *"${text}"*) || (${text} == !* && ${output} == *"${text#!}"*) ]]; then
    printf 'FAILED: %s: exit %s, expected %s with "%s":\n%s\n' "${name}" "${actual}" "${code}" "${text}" "${output}" >&2
    failures=$((failures + 1))
  fi
}

# The list's versions, and the default one, which is the first.
mapfile -t versions < <(awk '$1 == "version" { print $2 }' third_party/libtorch/versions.txt)
version="${versions[0]}" another="${versions[-1]}"
in_words="$(printf ', %s' "${versions[@]}")"
in_words="${in_words:2}"
mkdir -p "${root}/bin" "${root}/home" "${root}/empty"
make_torch "${root}/plain" "${version}"
make_torch "${root}/site/torch" "${version}"
make_torch "${root}/my torch" "${version}"
mkdir -p "${root}"/site/nvidia/{cu13,nccl}/include "${root}"/{pinned,half}/nvidia/cu13/include/crt \
  "${root}"/pinned/nvidia/cu13/include/cccl/thrust "${root}"/toolkit/include/{crt,cccl/thrust} "${root}"/old-toolkit/include/{crt,thrust}
touch "${root}/site/torch/lib/libtorch_cuda.so" "${root}/site/nvidia/cu13/include/cuda_runtime_api.h" \
  "${root}/site/nvidia/nccl/include/nccl.h" "${root}"/{pinned,half}/nvidia/cu13/include/crt/host_defines.h \
  "${root}/pinned/nvidia/cu13/include/cccl/thrust/tuple.h" \
  "${root}"/toolkit/include/{cuda_runtime_api.h,crt/host_defines.h,cccl/thrust/tuple.h} \
  "${root}"/old-toolkit/include/{cuda_runtime_api.h,crt/host_defines.h,thrust/tuple.h}
make_torch "${root}/zip" "${version}" # as unpacked from a zip: for CUDA, with no wheels beside it
touch "${root}/zip/lib/libtorch_cuda.so"
make_torch "${root}/another" "${another}"
make_torch "${root}/old" 2.9.1
make_torch "${root}/broken" "${version}"
rm "${root}/broken/lib/libtorch_cpu.so"
make_torch "${root}/bare" "${version}" # as the CPU wheels of 2.11
rm -r "${root}/bare/include"
make_torch "${root}/old-abi" "${version}"
echo _ZNSs >"${root}/old-abi/lib/libc10.so"
# Libraries for CUDA 13, one beside headers of CUDA 12 and one beside headers of CUDA 13. A library
# may contain the name of the runtime library several times, also as a part of its code.
for each in 12 13; do
  make_torch "${root}/beside-${each}/torch" "${version}"
  touch "${root}/beside-${each}/torch/lib/libtorch_cuda.so"
  for _ in {1..2000}; do printf '\0libcudart.so.13\0cudaMalloc libcudart.so.13\n'; done >"${root}/beside-${each}/torch/lib/libc10_cuda.so"
  mkdir -p "${root}/beside-${each}/nvidia/cu13/include/"{crt,cccl/thrust}
  { printf '#define CUDART_VERSION  %s020\n' "${each}"; yes '#define __CUDART_API_VERSION CUDART_VERSION' | head -n 5000; } \
    >"${root}/beside-${each}/nvidia/cu13/include/cuda_runtime_api.h"
  touch "${root}/beside-${each}/nvidia/cu13/include/"{crt/host_defines.h,cccl/thrust/tuple.h}
done

# A python3 that has no torch and whose pip fails; PYTHON_TORCH and PIP_MAKES change that.
cat >"${root}/bin/python3" <<'EOF'
#!/usr/bin/env bash
if [[ $1 == -c ]]; then
  echo "${PYTHON_TORCH:-}"
  exit 0
fi
[[ $3 == --version ]] && exit "${NO_PIP:-0}"
while [[ $# -gt 0 && $1 != --target ]]; do shift; done
[[ -z ${HANGS:-} ]] || { touch "${HANGS}" && exec sleep 60; }
[[ -z ${SLOW:-} || -e ${SLOW} ]] || { touch "${SLOW}" && sleep 3; }
echo "${PIP_SAYS-no such host}" >&2
makes="${PIP_MAKES:-}"
[[ ${!#} == */headers.txt ]] && makes="${PIP_MAKES_CUDA:-}"
[[ -z ${PINS:-} ]] || cat "${!#}" >>"${PINS}"
[[ -n ${makes} ]] || exit 1
mkdir -p "$2" && cp -r "${makes}/." "$2"
EOF
chmod +x "${root}/bin/python3"

check "LIBTORCH_ROOT, a LibTorch" 0 "torch=${root}/plain" LIBTORCH_ROOT="${root}/plain" find
check "a LibTorch without CUDA needs no headers of it" 0 $'cuda=\n' LIBTORCH_ROOT="${root}/plain" find
check "LIBTORCH_ROOT beats Python" 0 "torch=${root}/plain" LIBTORCH_ROOT="${root}/plain" \
  PYTHON_TORCH="${root}/site/torch" find
check "wheels take crt/ and CCCL from the pinned files, never from a toolkit" 3 "" LIBTORCH_ROOT="${root}/site" \
  CUDA_HOME="${root}/toolkit" find
check "no wheels: the toolkit's headers" 0 "cuda=${root}/toolkit/include" LIBTORCH_ROOT="${root}/zip" \
  CUDA_HOME="${root}/toolkit" find
check "no wheels: the toolkit's crt/" 0 "crt=${root}/toolkit/include/crt" LIBTORCH_ROOT="${root}/zip" \
  CUDA_HOME="${root}/toolkit" find
check "no wheels: the toolkit's CCCL" 0 "cccl=${root}/toolkit/include/cccl" LIBTORCH_ROOT="${root}/zip" \
  CUDA_HOME="${root}/toolkit" find
check "no wheels: CCCL of a toolkit before 13" 0 "cccl=${root}/old-toolkit/include" LIBTORCH_ROOT="${root}/zip" \
  CUDA_HOME="${root}/old-toolkit" find
check "no wheels and no toolkit" 1 "no cuda_runtime_api.h was found" LIBTORCH_ROOT="${root}/zip" find
check "no such folder" 1 "is not a folder" LIBTORCH_ROOT="${root}/nowhere" find
check "no LibTorch" 1 "holds no LibTorch" LIBTORCH_ROOT="${root}/empty" find
check "a version that is not in the list" 1 "is LibTorch 2.9.1, which this GPipe does not support: ${in_words}." LIBTORCH_ROOT="${root}/old" find
check "missing file" 1 "lib/libtorch_cpu.so is missing" LIBTORCH_ROOT="${root}/broken" find
check "no headers" 1 "is a LibTorch without headers" LIBTORCH_ROOT="${root}/bare" find
check "another ABI" 1 "was built with the old C++ ABI" LIBTORCH_ROOT="${root}/old-abi" find
check "CUDA of another major version" 1 "is a LibTorch for CUDA 13, but the headers in ${root}/beside-12/nvidia/cu13/include are of CUDA 12" \
  LIBTORCH_ROOT="${root}/beside-12" find
check "CUDA of the same major version" 0 "cuda=${root}/beside-13/nvidia/cu13/include" LIBTORCH_ROOT="${root}/beside-13" find
check "Python has it, but the CUDA headers are to be fetched" 3 "" PYTHON_TORCH="${root}/site/torch" find
check "Python has another version" 3 "GPipe: note: python3's torch ${another} in ${root}/another is passed over: LibTorch ${version} is asked for." \
  PYTHON_TORCH="${root}/another" find
check "Python has one without headers" 3 "GPipe: note: python3's torch in ${root}/bare is passed over: it has no headers" \
  PYTHON_TORCH="${root}/bare" find
check "Python has half of one" 3 "GPipe: note: python3's torch ${version} in ${root}/broken is passed over: it has no lib/libtorch_cpu.so" \
  PYTHON_TORCH="${root}/broken" find
check "nothing is passed over" 3 "!note" find

# Each version of the list can be chosen, and others are refused.
check "the default" 0 "${version}" default
for each in "${versions[@]}"; do
  make_torch "${root}/each" "${each}"
  check "LIBTORCH_ROOT, ${each}" 0 $'version='"${each}"$'\ncxx=' LIBTORCH_ROOT="${root}/each" find
  check "${each} is chosen: Python has it" 0 $'version='"${each}"$'\ncxx=' GPIPE_LIBTORCH="${each}" PYTHON_TORCH="${root}/each" find
done
check "the C++ standard, of the list's first" 0 $'cxx=20\n' LIBTORCH_ROOT="${root}/plain" find
check "the C++ standard, of its last" 0 $'cxx=17\n' LIBTORCH_ROOT="${root}/another" find
check "the C++ standard alone" 0 20 cxx
check "the C++ standard alone, of its last" 0 17 GPIPE_LIBTORCH="${another}" cxx
check "two versions in one variable" 1 "is not a LibTorch version" GPIPE_LIBTORCH="${version}"$'\n'"${another}" find
make_torch "${root}/two" "${version}"
echo "version 1.0.0" >"${root}/two/lib/libtorch_cpu.so"
check "headers of one version, libraries of another" 1 "libtorch_cpu.so is of another version" LIBTORCH_ROOT="${root}/two" find
check "the C++ standard alone, of none" 1 "GPIPE_LIBTORCH=1.0 is not a" GPIPE_LIBTORCH=1.0 cxx
check "a chosen version: Python has the default" 3 "torch ${version} in ${root}/plain is passed over: LibTorch ${another} is asked for." \
  GPIPE_LIBTORCH="${another}" PYTHON_TORCH="${root}/plain" find
check "a chosen version that is not in the list" 1 "GPIPE_LIBTORCH=2.9.1 is not a LibTorch version that this GPipe supports: ${in_words}." \
  GPIPE_LIBTORCH=2.9.1 find
check "a chosen version that is not in the list: what to do" 1 "tools/libtorch_try 2.9.1" GPIPE_LIBTORCH=2.9.1 fetch
check "half a version" 1 "GPIPE_LIBTORCH=${version%.*} is not a" GPIPE_LIBTORCH="${version%.*}" find
check "a pattern" 1 "GPIPE_LIBTORCH=2.* is not a" GPIPE_LIBTORCH='2.*' find
check "LIBTORCH_ROOT beats GPIPE_LIBTORCH" 0 $'\ntorch='"${root}/plain" LIBTORCH_ROOT="${root}/plain" GPIPE_LIBTORCH="${another}" find
check "LIBTORCH_ROOT beats GPIPE_LIBTORCH, and says so" 0 \
  "GPipe: note: GPIPE_LIBTORCH=${another} is passed over: LIBTORCH_ROOT=${root}/plain is LibTorch ${version}." \
  LIBTORCH_ROOT="${root}/plain" GPIPE_LIBTORCH="${another}" find
check "LIBTORCH_ROOT agrees with GPIPE_LIBTORCH" 0 "!note" LIBTORCH_ROOT="${root}/plain" GPIPE_LIBTORCH="${version}" find
check "a chosen version is fetched: its pins" 0 "downloading LibTorch ${another}" GPIPE_LIBTORCH="${another}" GPIPE_CACHE="${root}/chosen" \
  PIP_MAKES="${root}/site" PIP_MAKES_CUDA="${root}/pinned" PINS="${root}/pins" fetch
# The pins must be all of that version's section, and nothing else.
if [[ "$(<"${root}/pins")" != "$(awk -v version="${another}" '$1 == "version" { inside = $2 == version }
    inside && /^(wheel|header) / { print $2, $3 }' third_party/libtorch/versions.txt)" ]]; then
  printf 'FAILED: the pins of %s:\n%s\n' "${another}" "$(<"${root}/pins")" >&2
  failures=$((failures + 1))
fi
check "a chosen version is found" 0 "torch=${root}/chosen/libtorch-${another}/torch"$'\n' GPIPE_LIBTORCH="${another}" GPIPE_CACHE="${root}/chosen" find
check "the default is not what was fetched" 3 "" GPIPE_CACHE="${root}/chosen" find
check "what is passed over is said once while it is fetched" 0 $'asked for.\nGPipe: downloading LibTorch '"${version}" \
  GPIPE_CACHE="${root}/chosen" PYTHON_TORCH="${root}/another" PIP_MAKES="${root}/site" PIP_MAKES_CUDA="${root}/pinned" fetch

# The script takes another list of versions, too (GPIPE_LIBTORCH_VERSIONS).
printf '%s\n' "# A list" "" "version 9.9.0 cxx=23 cuda=14.1 nccl=3 tested=whole" "wheel torch==9.9.0 --hash=sha256:a" \
  "header nvidia-cuda-cccl-cu14==14.1.1 --hash=sha256:b" >"${root}/list.txt"
make_torch "${root}/new" 9.9.0
check "another list: its default" 0 "9.9.0" GPIPE_LIBTORCH_VERSIONS="${root}/list.txt" default
check "another list: its version" 0 $'version=9.9.0\ncxx=23\n' GPIPE_LIBTORCH_VERSIONS="${root}/list.txt" LIBTORCH_ROOT="${root}/new" find
check "another list: not ours" 1 "which this GPipe does not support: 9.9.0." GPIPE_LIBTORCH_VERSIONS="${root}/list.txt" \
  LIBTORCH_ROOT="${root}/plain" find
check "no list" 1 "the list of LibTorch versions ${root}/nowhere.txt (GPIPE_LIBTORCH_VERSIONS) cannot be read" \
  GPIPE_LIBTORCH_VERSIONS="${root}/nowhere.txt" find
check "no command" 1 "usage: libtorch.sh find|fetch|torch|default|cxx|tags" neither
check "pip's options" 0 $'--python-version=3.11\n--implementation=cp\n--platform=manylinux_2_28_x86_64\n' tags
# Each section of the list has what the script reads from it.
while read -r line; do
  [[ ${line} =~ ^version\ [0-9.]+\ cxx=(17|20)\ cuda=[0-9.]+\ nccl=[0-9.]+\ tested=(whole|exactness|no)$ ]] ||
    check "a line of the list: ${line}" 0 "version, cxx, cuda, nccl, tested" default
done < <(grep '^version' third_party/libtorch/versions.txt)

check "nothing yet" 3 "" find
check "no pip" 1 "apt-get install python3-pip" NO_PIP=1 fetch
check "cache not writable" 1 "cannot write to /proc/nowhere" GPIPE_CACHE=/proc/nowhere fetch
check "no network" 1 "no such host" fetch
check "no network, what to do" 1 "LIBTORCH_ROOT" fetch
check "an interrupted download is not a LibTorch" 3 "" find
check "a disk that fills" 1 "the disk of ${root}/cache was full" PIP_SAYS="OSError: [Errno 28] No space left on device" fetch
# shellcheck disable=SC2016 # expanded by that script
printf '#!/usr/bin/env bash\n[[ -e %q ]] && free=0\nprintf "a b c d\\n1 2 3 %%s\\n" "${free:-99999999}"\n' \
  "${root}/cache/libtorch-${version}.tmp" >"${root}/bin/df"
chmod +x "${root}/bin/df"
mkdir "${root}/cache/libtorch-${version}.tmp"
check "what is left of an interrupted download takes no room" 1 "no such host" fetch
rm "${root}/bin/df"
check "a cache that depends on the folder" 1 "does not begin with a /" GPIPE_CACHE=cache fetch
check "a LIBTORCH_ROOT that depends on the folder" 1 "does not begin with a /" LIBTORCH_ROOT=torch find
check "a LIBTORCH_ROOT with a space" 0 "torch=${root}/my torch"$'\n' LIBTORCH_ROOT="${root}/my torch" find
check "a GPIPE_CACHE with a space" 0 "downloading LibTorch ${version}" GPIPE_CACHE="${root}/my cache" \
  PIP_MAKES="${root}/site" PIP_MAKES_CUDA="${root}/pinned" fetch
check "a GPIPE_CACHE with a space: found" 0 "torch=${root}/my cache/libtorch-${version}/torch"$'\n' \
  GPIPE_CACHE="${root}/my cache" find
check "a GPIPE_CACHE with a space: CCCL found" 0 "cccl=${root}/my cache/cuda-cccl-" GPIPE_CACHE="${root}/my cache" find
check "no HOME" 1 "once into $(unset HOME && echo ~)/.cache/gpipe/libtorch" \
  env -u HOME -u GPIPE_CACHE -u XDG_CACHE_HOME LIBTORCH_ROOT="${root}/old" find

# start VARIABLE=VALUE...: starts `fetch` in the background, and waits until its pip has begun.
start() {
  env -u GPIPE_LIBTORCH -u GPIPE_LIBTORCH_VERSIONS PATH="${root}/bin:/usr/bin:/bin" HOME="${root}/home" CUDA_HOME="${root}/no-toolkit" "$@" "${script}" fetch >/dev/null 2>&1 &
  until [[ -e ${root}/begun ]]; do sleep 0.05; done
}
# If a build is killed while it downloads, pip, which has the lock, must end with it.
start HANGS="${root}/begun" GPIPE_CACHE="${root}/cache"
kill -KILL $!
wait $! 2>/dev/null
begin="${SECONDS}"
check "killed, and again" 1 "no such host" fetch
[[ $((SECONDS - begin)) -lt 45 ]] || check "killed, and again: does not wait for the killed one" 0 "no waiting" find
rm "${root}/begun"
# If two processes fetch at the same time, the second one waits for the first.
start SLOW="${root}/begun" GPIPE_CACHE="${root}/two" PIP_MAKES="${root}/site" PIP_MAKES_CUDA="${root}/pinned"
check "two at once: the second says that it waits, and has no need of pip" 0 "waiting for it" GPIPE_CACHE="${root}/two" \
  PIP_MAKES_CUDA="${root}/pinned" fetch
wait
check "a list that lacks CCCL" 1 "crt/ or CCCL is not in" PIP_MAKES="${root}/site" PIP_MAKES_CUDA="${root}/half" fetch
check "a damaged cache of CUDA's headers" 1 "Remove the folder ${root}/cache/cuda-cccl-" PIP_MAKES="${root}/site" fetch
rm -r "${root}"/cache/{libtorch,cuda-cccl}-*
check "fetched" 0 "downloading LibTorch ${version}" PIP_MAKES="${root}/site" PIP_MAKES_CUDA="${root}/pinned" fetch
check "found after fetching" 0 "torch=${root}/cache/libtorch-${version}/torch" find
check "crt/ found after fetching" 0 "crt=${root}/cache/cuda-cccl-" find
check "CCCL found after fetching" 0 "/nvidia/cu13/include/cccl" find
check "the wheels' headers beat the toolkit's" 0 "cuda=${root}/cache/libtorch-${version}/nvidia/cu13/include" \
  CUDA_HOME="${root}/toolkit" find
check "NCCL" 0 "nccl=${root}/site/nvidia/nccl/include" LIBTORCH_ROOT="${root}/site/" find
check "LIBTORCH_ROOT, a site-packages" 0 "torch=${root}/site/torch" LIBTORCH_ROOT="${root}/site/" find
check "a second clone downloads nothing" 0 "" fetch
check "Python's torch, CCCL of the cache" 0 "cccl=${root}/cache/cuda-cccl-" PYTHON_TORCH="${root}/site/torch" find
rm "${root}/cache/libtorch-${version}/torch/lib/libtorch.so"
check "damaged cache" 1 "Remove the folder" find

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
