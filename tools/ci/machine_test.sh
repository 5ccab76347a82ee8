#!/usr/bin/env bash
# Tests machine.sh on a made-up machine: the hash must change with everything that a test may read,
# and with nothing else.
set -uo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "${folder}"' EXIT
failures=0
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  failures=$((failures + 1))
}

mkdir -p "${folder}"/sys/fs/cgroup "${folder}"/{clone/tools/ci,clone/third_party/libtorch,bin,proc/driver/nvidia,torch/lib}
cp tools/ci/machine.sh "${folder}/clone/tools/ci"
# Made-up programs, each of which prints a file.
for program in bin/uname bin/nproc bin/dpkg-query bin/python3 clone/third_party/libtorch/libtorch.sh; do
  printf '#!/usr/bin/env bash\ncat "%s.says"\n' "${folder}/${program}" >"${folder}/${program}"
  chmod +x "${folder}/${program}"
done
says() { printf '%s\n' "${@:2}" >"${folder}/$1.says"; }
says bin/uname "Linux 6.1 x86_64"
says bin/nproc 2
says bin/dpkg-query "ii  bash 5.2" "ii  gcc 12.2"
says bin/python3 "numpy 1.24"
says clone/third_party/libtorch/libtorch.sh "torch=${folder}/torch" "cuda=/cuda"
echo one >"${folder}/torch/lib/libtorch.so"
cpu() { printf 'processor\t: 0\nmodel name\t: %s\ncpu MHz\t\t: %s\nflags\t\t: %s\n\nprocessor\t: 1\nmodel name\t: %s\n' "$1" "$2" "$3" "$1" >"${folder}/proc/cpuinfo"; }
memory() { printf 'MemTotal:       %s kB\nMemFree: %s kB\n' "$1" "$2" >"${folder}/proc/meminfo"; }
cpu "A processor" 2000 "sse avx"
memory 16000000 1000

machine() { SYSTEM="${folder}" PATH="${folder}/bin:${PATH}" bash "${folder}/clone/tools/ci/machine.sh" "$@"; }
before="$(machine)"
[[ ${before} =~ ^[0-9a-f]{16}$ ]] || fail "no hash: ${before}"
same() {
  local now
  now="$(machine)"
  [[ ${now} == "${before}" ]] || fail "$1: another hash: $(machine --facts)"
}
changed() {
  local now
  now="$(machine)"
  [[ ${now} =~ ^[0-9a-f]{16}$ && ${now} != "${before}" ]] || fail "$1: ${now} as before: $(machine --facts)"
  before="${now}"
}
same "nothing"
cpu "A processor" 3000 "sse avx"
same "the frequency of the moment"
memory 16000400 500
same "a little memory, and what is free of it"
says bin/dpkg-query "ii  gcc 12.2" "ii  bash 5.2"
same "another order"

cpu "Another processor" 3000 "sse avx"
changed "processor"
cpu "Another processor" 3000 "sse avx avx512f"
changed "its flags"
memory 32000000 500
changed "memory"
says bin/nproc 4
changed "cores"
says bin/uname "Linux 6.2 x86_64"
changed "kernel"
for limit in cpu memory; do
  echo "200000 100000" >"${folder}/sys/fs/cgroup/${limit}.max"
  changed "what a container may use: ${limit}"
done
says bin/dpkg-query "ii  gcc 12.2" "ii  bash 5.3"
changed "a package's version"
says bin/dpkg-query "ii  gcc 12.2" "ii  bash 5.3" "ii  openmpi-bin 4.1"
changed "one package more"
says bin/python3 "numpy 2.0"
changed "a package of Python's"
says clone/third_party/libtorch/libtorch.sh "torch=${folder}/torch" "cuda=/cuda13"
changed "another folder of LibTorch"
echo another >"${folder}/torch/lib/libtorch.so"
changed "another LibTorch in the same folder"
echo "NVRM version: 580" >"${folder}/proc/driver/nvidia/version"
changed "a GPU's driver"
# A machine may lack these programs. If the first half of a pipe fails, the script must not end.
for program in dpkg-query python3; do
  printf '#!/usr/bin/env bash\nexit 1\n' >"${folder}/bin/${program}"
  changed "no ${program}"
done
printf '#!/usr/bin/env bash\nexit 3\n' >"${folder}/clone/third_party/libtorch/libtorch.sh"
changed "no LibTorch"
[[ "$(machine --facts)" == *"cores: 4"* ]] || fail "facts: $(machine --facts)"
machine --wrong 2>/dev/null && fail "a wrong option"

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
