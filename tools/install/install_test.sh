#!/usr/bin/env bash
# Installs GPipe, moves the folder, and builds programs with it as users of CMake and of pkg-config
# would. Then makes the mistakes that such users make. Without CMake the test is skipped, and its
# report says so.
set -uo pipefail
# shellcheck source=tools/testing/libtorch_python.sh
source tools/testing/libtorch_python.sh
[[ -n "$(type -P cmake)" ]] || skip install_test "no cmake on PATH (tools/ci/cmake-packages.txt)"
unset LIBTORCH_ROOT GPIPE_LIBTORCH CMAKE_PREFIX_PATH CMAKE_BUILD_TYPE CMAKE_GENERATOR CXXFLAGS LDFLAGS PKG_CONFIG_PATH
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1 BUILD_WORKING_DIRECTORY="${TEST_TMPDIR}"
files="${PWD}"
failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}
# expect CODE TEXT COMMAND...: the command must end with CODE and print TEXT. CMake breaks lines, so
# the output is compared as one line.
expect() {
  local code
  "${@:3}" >"${TEST_TMPDIR}/log" 2>&1
  code=$?
  [[ ${code} -eq $1 && "$(tr -s ' \n' ' ' <"${TEST_TMPDIR}/log")" == *"$2"* ]] && return
  fail "exit code ${code}, expected $1 and '$2': ${*:3}"
  tail -n 40 "${TEST_TMPDIR}/log" >&2
}
# project NAME LINE...: makes a folder with a CMakeLists.txt of these lines.
project() {
  mkdir -p "${TEST_TMPDIR}/$1"
  { echo "cmake_minimum_required(VERSION 3.24)"; printf '%s\n' "${@:2}"; } >"${TEST_TMPDIR}/$1/CMakeLists.txt"
}

expect 2 "the following arguments are required: --prefix" tools/install/install.py
touch "${TEST_TMPDIR}/file"
expect 1 "file cannot be written (Not a directory" tools/install/install.py --prefix=file
expect 0 "installed: ${TEST_TMPDIR}/first" tools/install/install.py --prefix=first
touch "${TEST_TMPDIR}/first/include/gpipe/older.h"
expect 0 "installed: ${TEST_TMPDIR}/first" tools/install/install.py --prefix=first
[[ ! -e ${TEST_TMPDIR}/first/include/gpipe/older.h ]] || fail "a header of an older installation is still there"
prefix="${TEST_TMPDIR}/moved here"
mv "${TEST_TMPDIR}/first" "${prefix}"
version="$(sed -n 's/^version \([^ ]*\) .*/\1/p' "${prefix}/lib/cmake/gpipe/versions.txt")"
torch="$(sed -n 's/^libtorch=//p' "${prefix}/lib/pkgconfig/gpipe.pc")"
[[ -n ${version} && -e ${torch}/lib/libtorch.so ]] || fail "LibTorch ${version} is not in '${torch}'"
du -sm "${prefix}" | cut -f1 | sed 's/$/ MB are installed/'
cd "${TEST_TMPDIR}" || exit 1

# The program of examples/cmake must build, and give the same hash over one process and over two.
mkdir example
cp "${files}"/examples/cmake/{CMakeLists.txt,train.cc} example
expect 0 "Build files have been written" cmake -S example -B example/build -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=${prefix}" "-DLIBTORCH_ROOT=${torch}"
expect 0 "Built target train" cmake --build example/build
example/build/train >alone || fail "train alone: exit code $?"
"${prefix}/bin/launch" --processes=2 -- example/build/train >together || fail "train over two processes: exit code $?"
[[ "$(<alone)" == *"processes 1"* && "$(<together)" == *"processes 2"* ]] || fail "other processes: $(cat alone together)"
[[ "$(sed -n 's/.*hash //p' alone)" == "$(sed -n 's/.*hash //p' together)" ]] || fail "other hashes: $(cat alone together)"
# Objects that only register something must be linked, although nothing refers to them.
object="$(nm "${prefix}/lib/libgpipe_registered.a" | sed -n 's/.* t \(_GLOBAL__sub_I_.*\)/\1/p')"
[[ -z ${object} ]] || grep -qF "${object}" <(nm example/build/train) || fail "${object} was not linked"

# The guide must show the example's CMakeLists.txt.
# shellcheck disable=SC2016
diff <(sed -n '/^```cmake/,/^```$/{/^```/d;p}' "${files}/docs/guide/38-cmake.md") example/CMakeLists.txt || fail "chapter 38 shows another CMakeLists.txt"

# The README's program must build without optimization and with assertions, and so must all public
# headers with all libraries.
project programs 'project(programs CXX)' 'find_package(gpipe 0.1 REQUIRED COMPONENTS balance)' \
  'add_executable(quickstart quickstart.cc)' 'target_link_libraries(quickstart gpipe::gpipe)' \
  'add_executable(headers headers.cc)' \
  'target_link_libraries(headers gpipe::balance gpipe::diagnose gpipe::meta gpipe::models gpipe::safetensors gpipe::skip)' \
  'enable_testing()' 'add_test(NAME quickstart COMMAND quickstart)' \
  'add_test(NAME processes COMMAND gpipe::launch --processes=2 -- $<TARGET_FILE:headers>)'
cp "${files}/examples/quickstart/quickstart.cc" programs
{
  cat "${files}/examples/downstream/public_headers.cc"
  cat <<'END'
int main() {
  const auto world = gpipe::World::from_environment();
  const auto model = gpipe::models::unet(gpipe::models::UNetOptions().depth(2));
  return world.size() == 2 && !model->is_empty() ? 0 : 1;
}
END
} >programs/headers.cc
expect 0 "Build files have been written" cmake -S programs -B programs/build -DCMAKE_BUILD_TYPE=Debug -DGPIPE_MALLOC=system "-DCMAKE_PREFIX_PATH=${prefix}" "-DLIBTORCH_ROOT=${torch}"
expect 0 "Built target headers" cmake --build programs/build
expect 0 "100% tests passed" ctest --test-dir programs/build --output-on-failure
grep -q tcmalloc <(ldd example/build/train) || fail "train is without tcmalloc"
! grep -q tcmalloc <(ldd programs/build/quickstart) || fail "GPIPE_MALLOC=system links tcmalloc"

# A program must build with pkg-config. Its paths cannot have spaces, so the installed folder is
# moved.
if [[ -n "$(type -P pkg-config)" ]]; then
  mv "${prefix}" pkg
  read -r -a options < <(PKG_CONFIG_PATH=pkg/lib/pkgconfig pkg-config --cflags --libs gpipe)
  expect 0 "" c++ "${files}/examples/quickstart/quickstart.cc" -o quickstart "${options[@]}"
  expect 0 "loss 0.0" ./quickstart
  mv pkg "${prefix}"
fi

# Mistakes of users. refused TEXT PROJECT ARGUMENTS...: CMake must fail and print TEXT.
refused() {
  rm -rf wrong-build
  expect 1 "$1" env HOME="${TEST_TMPDIR}/nobody" GPIPE_CACHE="${TEST_TMPDIR}/no-cache" PATH="${TEST_TMPDIR}/bin:${PATH}" \
    cmake -S "$2" -B wrong-build "-DCMAKE_PREFIX_PATH=${prefix}" "${@:3}"
  [[ $(grep -c "^CMake Error" log) -eq 1 ]] || fail "more than one error: $(cat log)"
}
make_torch() { # FOLDER VERSION
  local -a parts
  IFS=. read -r -a parts <<<"$2"
  mkdir -p "$1"/{lib,include/{ATen/core,torch/headeronly,torch/csrc/api/include/torch}}
  printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH %s\n' \
    "${parts[@]}" >"$1/include/torch/headeronly/version.h"
  touch "$1/include/ATen/core/Tensor.h" "$1/include/torch/csrc/api/include/torch/torch.h" "$1/lib/libtorch.so"
  echo "$2" >"$1/lib/libtorch_cpu.so"
  echo __cxx11 >"$1/lib/libc10.so"
}
# This python3 prints the path of a torch if the test has made one, otherwise nothing.
mkdir bin
printf '#!/bin/sh\ncat "%s/python-torch" 2>/dev/null\n' "${TEST_TMPDIR}" >bin/python3
chmod +x bin/python3
make_torch another 9.8.7
make_torch same "${version}"
ours="this gpipe was built for LibTorch ${version}, which was not found."
advice="Give -DLIBTORCH_ROOT= an unpacked LibTorch ${version} or a site-packages folder that has torch ${version}, or put a python3 that has it on PATH."
project simple 'project(simple CXX)' 'find_package(gpipe REQUIRED)'
refused "${ours} ${advice}" simple
refused "${ours} LIBTORCH_ROOT=${TEST_TMPDIR}/another is LibTorch 9.8.7, which this GPipe does not support: ${version}. ${advice}" simple "-DLIBTORCH_ROOT=${TEST_TMPDIR}/another"
refused "${ours} LIBTORCH_ROOT=${TEST_TMPDIR}/wrong-build/nowhere is not a folder. ${advice}" simple -DLIBTORCH_ROOT=nowhere
refused "${TEST_TMPDIR}/example holds no LibTorch" simple "-DLIBTORCH_ROOT=${TEST_TMPDIR}/example"
echo "${TEST_TMPDIR}/another" >python-torch
refused "${ours} python3's torch 9.8.7 in ${TEST_TMPDIR}/another is passed over: LibTorch ${version} is asked for. ${advice}" simple
if [[ -e ${torch}/lib/libtorch_cuda.so ]]; then
  refused "this gpipe was built for a LibTorch for CUDA, and that of ${TEST_TMPDIR}/same is for the CPU only. ${advice}" simple "-DLIBTORCH_ROOT=${TEST_TMPDIR}/same"
fi
echo "${torch}" >python-torch
project old-compiler 'project(old CXX)' 'set(CMAKE_CXX_COMPILER_VERSION 5.4.0)' 'find_package(gpipe REQUIRED)'
refused "is gcc 5.4.0, whose standard library is older: give -DCMAKE_CXX_COMPILER=" old-compiler
project no-language 'project(no NONE)' 'find_package(gpipe REQUIRED)'
refused "gpipe is C++: call project(NAME CXX) before find_package(gpipe)" no-language
project no-component 'project(component CXX)' 'find_package(gpipe REQUIRED COMPONENTS models unet)'
refused "gpipe has no component unet: there are balance diagnose gpipe meta models safetensors skip, which" no-component
project later-version 'project(later CXX)' 'find_package(gpipe 7 REQUIRED)'
refused 'compatible with requested version "7"' later-version
project no-library 'project(library CXX)' 'set(CMAKE_FIND_LIBRARY_SUFFIXES .none)' 'find_package(gpipe REQUIRED)'
refused "gpipe needs the library absl_strings, which was not found. Debian: apt-get install libabsl-dev" no-library
# The torch of python3 is found without an option.
expect 0 "Build files have been written" env PATH="${TEST_TMPDIR}/bin:${PATH}" GPIPE_CACHE="${TEST_TMPDIR}/no-cache" cmake -S simple -B simple/build "-DCMAKE_PREFIX_PATH=${prefix}"
# If a program insists on an older C++ standard, the compiler must say one sentence.
echo '#include "gpipe/gpipe.h"' >old.cc
expect 1 "LibTorch ${version} needs C++" c++ -fsyntax-only -std=c++14 -isystem "${prefix}/include/gpipe" \
  -isystem "${torch}/include" -isystem "${torch}/include/torch/csrc/api/include" old.cc

[[ ${failures} -eq 0 ]] || { echo "${failures} failed" && exit 1; }
