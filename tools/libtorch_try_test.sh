#!/usr/bin/env bash
# Tests tools/libtorch_try in a made-up clone, with a made-up pip that knows a few wheels and a made-up Bazel that fails
# on demand.
set -uo pipefail

root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
failures=0
clone="${root}/clone" list="third_party/libtorch/versions.txt"
mkdir -p "${clone}"/{tools,examples/downstream,third_party/libtorch} "${root}/bin"
cp tools/libtorch_try "${clone}/tools"
cp third_party/libtorch/libtorch.sh "${clone}/third_party/libtorch"
cat >"${clone}/${list}" <<'END'
# A list

version 2.15.0 cxx=20 cuda=13.2 nccl=2.30.7 tested=whole
wheel torch==2.15.0 --hash=sha256:15
# In between
header nvidia-cuda-cccl==13.2.86 --hash=sha256:86

version 2.11.0 cxx=17 cuda=13.0 nccl=2.28.9 tested=whole
wheel torch==2.11.0 --hash=sha256:11
header nvidia-cuda-cccl==13.0.85 --hash=sha256:85
END

# pip: resolves torch 2.12.3, 2.16.0 and 3.1.0 (for CUDA 14) and their dependencies; unpacks empty files.
real_python="$(type -P python3)"
export real_python
cat >"${root}/bin/python3" <<'END'
#!/usr/bin/env bash
[[ $1 == -m ]] || { [[ $1 == - ]] && exec "${real_python}" "$@"; exit 0; }
[[ $3 == --version ]] && exit 0
wheel() { # NAME VERSION
  printf '{"metadata": {"name": "%s", "version": "%s"}, "download_info": {"url": "x", "archive_info": {"hashes": {"sha256": "%s"}}}}' "$1" "$2" "$1"
}
report="" target=""
for ((i = 1; i <= $#; ++i)); do
  next=$((i + 1))
  [[ ${!i} != --report ]] || report="${!next}"
  [[ ${!i} != --target ]] || target="${!next}"
done
if [[ -z ${report} ]]; then
  # Makes the wheels, but not the headers, which are not needed without libtorch_cuda.so.
  version="$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "${!#}")"
  mkdir -p "${target}"/torch/{include/ATen/core,include/torch/csrc/api/include/torch,include/torch/headeronly,lib}
  touch "${target}"/torch/{include/ATen/core/Tensor.h,include/torch/csrc/api/include/torch/torch.h,lib/lib{torch,torch_cpu,c10}.so}
  IFS=. read -r a b c <<<"${version}"
  printf '#define TORCH_VERSION_%s\n' "MAJOR ${a}" "MINOR ${b}" "PATCH ${c}" >"${target}/torch/include/torch/headeronly/version.h"
  exit 0
fi
[[ $* == *"--python-version=3.11"* ]] || exit 1
case "${!#}" in
  torch==2.12.3 | torch==2.16.0) found=("$(wheel typing_extensions 4.16.0)" "$(wheel nvidia-nccl-cu13 2.31.1)" "$(wheel nvidia-cuda-runtime 13.4.55)" "$(wheel torch "${!#}")" "$(wheel NVIDIA_cublas 13.9)") ;;
  torch==3.1.0) found=("$(wheel torch "${!#}")" "$(wheel nvidia-cuda-runtime 14.0.1)") ;;
  nvidia-cuda-crt==13.4.\*) found=("$(wheel nvidia-cuda-crt 13.4.60)" "$(wheel nvidia-cuda-cccl 13.4.58)") ;;
  *) echo "ERROR: No matching distribution found for ${!#}" >&2; exit 1 ;;
esac
found=("${found[@]//torch==/}")
(IFS=,; echo "{\"install\": [${found[*]}]}") >"${report}"
END
# This Bazel records its arguments and the list in use. It fails in the step that FAILS names, with
# the text of a file.
cat >"${clone}/tools/bazel" <<'END'
#!/usr/bin/env bash
echo "${PWD##*/}: bazel $* (GPIPE_LIBTORCH=${GPIPE_LIBTORCH} LIBTORCH_ROOT=${LIBTORCH_ROOT:-none})" | sed "s:$(dirname "${GPIPE_LIBTORCH_VERSIONS}"):FOLDER:" | tee -a "${CALLS}"
mkdir -p "${1#*=}"
head -n 1 "${GPIPE_LIBTORCH_VERSIONS}" >>"${CALLS}"
case "$2" in
  build) [[ ${PWD} != */downstream ]] || exit 0 ;;
  test) echo "Executed 3 out of 3 tests: 3 tests pass." ;;
esac
[[ ${FAILS:-} != "$2" ]] || { cat "${SAYS}"; exit 1; }
END
chmod +x "${root}/bin/python3" "${clone}/tools/bazel"
export CALLS="${root}/calls" SAYS="${root}/says"

# check NAME CODE TEXT... -- [VARIABLE=VALUE...] -- ARGUMENT...: libtorch_try must end with CODE.
# Its output and Bazel's calls must have each TEXT, and no !TEXT.
check() {
  local name="$1" code="$2" output actual text
  local -a texts=() variables=()
  shift 2
  while [[ $1 != -- ]]; do texts+=("$1") && shift; done
  shift
  while [[ $1 != -- ]]; do variables+=("$1") && shift; done
  shift
  : >"${CALLS}"
  output="$(env -u LIBTORCH_ROOT -u GPIPE_LIBTORCH -u GPIPE_LIBTORCH_VERSIONS PATH="${root}/bin:/usr/bin:/bin" HOME="${root}" \
    GPIPE_CACHE="${root}/cache" CUDA_HOME="${root}/none" "${variables[@]}" "${clone}/tools/libtorch_try" "$@" 2>&1)"
  actual=$?
  output="exit ${actual}"$'\n'"${output}"$'\n'"$(<"${CALLS}")"$'\n'
  for text in "exit ${code}"$'\n' "${texts[@]}"; do
    if [[ ${text} == !* ]]; then
      [[ ${output} != *"${text#!}"* ]] && continue
    else
      [[ ${output} == *"${text}"* ]] && continue
    fi
    printf 'FAILED: %s: "%s" of:\n%s\n' "${name}" "${text}" "${output}" >&2
    failures=$((failures + 1))
  done
}

check "help" 0 "usage: tools/libtorch_try VERSION" -- -- --help
check "no version" 2 "no version is given" -- --
check "two versions" 2 "two versions are given, 2.16.0 and 2.17.0" -- -- 2.16.0 2.17.0
check "half a version" 2 "2.16 is not a valid version" -- -- 2.16
check "an unknown option" 2 "--all is not a valid option" -- -- 2.16.0 --all
check "an unknown standard" 2 "--cxx=14 is not a valid option" -- -- 2.16.0 --cxx=14
check "no such wheels" 2 "No matching distribution found for torch==9.9.9" "pip finds no wheels for torch==9.9.9" "!bazel" -- -- 9.9.9
check "another CUDA" 2 "the wheels of torch 3.1.0 are not for CUDA 13" "wheel nvidia-cuda-runtime==14.0.1" "!bazel" -- -- 3.1.0

section="version 2.16.0 cxx=20 cuda=13.4 nccl=2.31.1 tested=exactness
wheel torch==2.16.0 --hash=sha256:torch
wheel nvidia-cublas==13.9 --hash=sha256:NVIDIA_cublas
wheel nvidia-cuda-runtime==13.4.55 --hash=sha256:nvidia-cuda-runtime
wheel nvidia-nccl-cu13==2.31.1 --hash=sha256:nvidia-nccl-cu13
header nvidia-cuda-cccl==13.4.58 --hash=sha256:nvidia-cuda-cccl
header nvidia-cuda-crt==13.4.60 --hash=sha256:nvidia-cuda-crt
"
check "a section" 0 "${section}" "!typing" "!bazel" -- -- 2.16.0 --section
check "a section, by C++17" 0 "version 2.16.0 cxx=17 cuda=13.4" -- -- 2.16.0 --section --cxx=17
check "a section of an older version" 0 "version 2.12.3 cxx=17 cuda=13.4" -- -- 2.12.3 --section
check "a section of the list" 0 $'exit 0\nversion 2.11.0 cxx=17 cuda=13.0 nccl=2.28.9 tested=whole\nwheel torch==2.11.0 --hash=sha256:11\nheader nvidia-cuda-cccl==13.0.85 --hash=sha256:85\n\n' \
  "!pip" -- -- 2.11.0 --section

flags="--curses=no --color=no --show_progress_rate_limit=60 --keep_going --disk_cache="
check "a version that is not in the list" 0 "${section}" "downloading LibTorch 2.16.0" \
  "clone: bazel --output_base=FOLDER/bazel build ${flags} -- //... (GPIPE_LIBTORCH=2.16.0 LIBTORCH_ROOT=none)"$'\nversion 2.16.0 cxx=20' \
  "downstream: bazel --output_base=FOLDER/bazel-downstream build ${flags} --cxxopt=-std=c++20 --output_groups=compilation_outputs //:public_headers" \
  "clone: bazel --output_base=FOLDER/bazel test ${flags} //gpipe/tests/exactness/..." \
  "bazel --output_base=FOLDER/bazel shutdown" "bazel --output_base=FOLDER/bazel-downstream shutdown" \
  "LibTorch 2.16.0: //... compile." "LibTorch 2.16.0: the public headers, under C++20, compile." \
  "LibTorch 2.16.0: the tests of exactness pass." $'\nExecuted 3 out of 3 tests' -- LIBTORCH_ROOT=/nowhere -- 2.16.0
check "a version of the list" 0 "clone: bazel --output_base=FOLDER/bazel build ${flags} --config=cxx17 -- //..." $'\nversion 2.11.0 cxx=17' \
  "--cxxopt=-std=c++17 --output_groups" "test ${flags} --config=cxx17 //gpipe/tests" "!asking pip" -- -- 2.11.0
check "a version of the list, by another standard" 0 "build ${flags} -- //..." $'\nversion 2.11.0 cxx=20' "--cxxopt=-std=c++20" \
  -- -- 2.11.0 --cxx=20
check "less" 0 "build ${flags} -- //gpipe:gpipe //balance/..." "test ${flags} //gpipe/tests/exactness/..." "!public_headers" \
  "LibTorch 2.15.0: //gpipe:gpipe //balance/... compile." -- -- 2.15.0 --only=//gpipe:gpipe,//balance/...

# This is the output of a failed build. Only the first error of an action must be reported, and an
# error of several files only once.
cat >"${SAYS}" <<'END'
[1 / 9] 1 action running
ERROR: /somewhere/clone/gpipe/BUILD.bazel:3:11: Compiling gpipe/a.cc failed: (Exit 1): gcc failed: error executing command /usr/bin/gcc -U_FORTIFY_SOURCE
In file included from gpipe/a.cc:1:
external/libtorch/include/c10/x.h:2:9: error: no x
external/libtorch/include/c10/x.h:3:9: error: nor y
ERROR: /somewhere/clone/gpipe/BUILD.bazel:9:11: Compiling gpipe/b.cc failed: (Exit 1): linux-sandbox failed: error executing command
  (exec env -)
gpipe/b.cc:7:1: warning: odd
gpipe/b.cc:8:1: fatal error: nowhere.h: No such file or directory
ERROR: /somewhere/clone/gpipe/BUILD.bazel:12:11: Compiling gpipe/c.cc failed: (Exit 1): gcc failed: error executing command /usr/bin/gcc
external/libtorch/include/c10/x.h:2:9: error: no x
ERROR: /somewhere/clone/gpipe/BUILD.bazel:15:11: Linking gpipe/d failed: (Exit 1): gcc failed: error executing command /usr/bin/gcc
/usr/bin/ld: d.o: in function `main': d.cc:(.text+0x1): undefined reference to `f()'
END
check "files that do not compile" 1 "LibTorch 2.15.0: not all of //... compile. The first error of each file:
external/libtorch/include/c10/x.h:2:9: error: no x  [gpipe/a.cc and 1 more]
gpipe/b.cc:8:1: fatal error: nowhere.h: No such file or directory
/usr/bin/ld: d.o: in function \`main': d.cc:(.text+0x1): undefined reference to \`f()'  [Linking gpipe/d]
" "!nor y" "!odd" "the tests of exactness pass" -- FAILS=build -- 2.15.0
echo "ERROR: no such package" >"${SAYS}"
check "Bazel fails by itself" 1 $'The first error of each file:\n' $'\nERROR: no such package\n' -- FAILS=build -- 2.15.0
printf '%s\n' "//gpipe/tests/exactness:a_test      FAILED in 3.0s" "//gpipe/tests/exactness:b_test      PASSED in 3.0s" >"${SAYS}"
check "tests that fail" 1 $'LibTorch 2.15.0: not all tests of exactness pass:\n//gpipe/tests/exactness:a_test      FAILED in 3.0s\nExecuted' \
  "!b_test" -- FAILS=test -- 2.15.0

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
