#!/usr/bin/env bash
# Every way in which LibTorch is found, fetched or refused, with made-up folders and a made-up pip.
set -uo pipefail

script="${PWD}/third_party/libtorch/libtorch.sh"
root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
failures=0

# make_torch DIR VERSION: makes the files that the script looks for in a LibTorch.
make_torch() {
  local -a parts
  IFS=. read -r -a parts <<<"$2"
  mkdir -p "$1"/include/{ATen/core,torch/headeronly,torch/csrc/api/include/torch} "$1/lib"
  printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH %s\n' \
    "${parts[@]}" >"$1/include/torch/headeronly/version.h"
  touch "$1/include/ATen/core/Tensor.h" "$1/include/torch/csrc/api/include/torch/torch.h" \
    "$1"/lib/lib{torch,torch_cpu,c10}.so
}

# check NAME CODE TEXT [VARIABLE=VALUE...] COMMAND: the script ends with CODE and prints TEXT.
check() {
  local name="$1" code="$2" text="$3" output actual
  shift 3
  output="$(env -u LIBTORCH_ROOT PATH="${root}/bin:/usr/bin:/bin" HOME="${root}/home" \
    GPIPE_CACHE="${root}/cache" CUDA_HOME="${root}/no-toolkit" "${@:1:$#-1}" "${script}" "${@: -1}" 2>&1)"
  actual=$?
  if [[ ${actual} -ne ${code} || ${output} != *"${text}"* ]]; then
    printf 'FAILED: %s: exit %s, expected %s with "%s":\n%s\n' "${name}" "${actual}" "${code}" "${text}" "${output}" >&2
    failures=$((failures + 1))
  fi
}

version="$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' third_party/libtorch/requirements.txt)"
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
make_torch "${root}/old" 2.9.1
make_torch "${root}/broken" "${version}"
rm "${root}/broken/lib/libc10.so"

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
[[ ${!#} == *-cuda.txt ]] && makes="${PIP_MAKES_CUDA:-}"
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
check "wrong version" 1 "is LibTorch 2.9.1, but GPipe needs ${version}" LIBTORCH_ROOT="${root}/old" find
check "missing file" 1 "lib/libc10.so is missing" LIBTORCH_ROOT="${root}/broken" find
check "Python has it, but the CUDA headers are to be fetched" 3 "" PYTHON_TORCH="${root}/site/torch" find
check "Python has another version" 3 "" PYTHON_TORCH="${root}/old" find
check "nothing yet" 3 "" find
check "no pip" 1 "apt-get install python3-pip" NO_PIP=1 fetch
check "cache not writable" 1 "cannot write to /proc/nowhere" GPIPE_CACHE=/proc/nowhere fetch
check "no network" 1 "no such host" fetch
check "no network, what to do" 1 "LIBTORCH_ROOT" fetch
check "an interrupted download is no LibTorch" 3 "" find
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

# start VARIABLE=VALUE...: `fetch` in the background, until its pip has begun.
start() {
  env PATH="${root}/bin:/usr/bin:/bin" HOME="${root}/home" CUDA_HOME="${root}/no-toolkit" "$@" "${script}" fetch >/dev/null 2>&1 &
  until [[ -e ${root}/begun ]]; do sleep 0.05; done
}
# A build that is killed while it downloads: pip, which has the lock, ends with it.
start HANGS="${root}/begun" GPIPE_CACHE="${root}/cache"
kill -KILL $!
wait $! 2>/dev/null
begin="${SECONDS}"
check "killed, and again" 1 "no such host" fetch
[[ $((SECONDS - begin)) -lt 45 ]] || check "killed, and again: does not wait for the killed one" 0 "no waiting" find
rm "${root}/begun"
# Two at once.
start SLOW="${root}/begun" GPIPE_CACHE="${root}/two" PIP_MAKES="${root}/site" PIP_MAKES_CUDA="${root}/pinned"
check "two at once: the second says that it waits, and has no need of pip" 0 "waiting for it" GPIPE_CACHE="${root}/two" \
  PIP_MAKES_CUDA="${root}/pinned" fetch
wait
check "a list that lacks CCCL" 1 "crt/ or CCCL is not in" PIP_MAKES="${root}/site" PIP_MAKES_CUDA="${root}/half" fetch
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
