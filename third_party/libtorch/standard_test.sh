#!/usr/bin/env bash
# If a source is compiled for an older C++ than LibTorch needs, the compiler must say one sentence
# and stop. With a newer C++ it must go on to LibTorch's own header.
set -uo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "${folder}"' EXIT
failures=0
mkdir -p "${folder}"/{standard,torch}/c10/macros
sed 's/%{cplusplus}/202002L/; s/%{version}/9.1.0/g; s/%{cxx}/20/g' third_party/libtorch/standard.h.tpl \
  >"${folder}/standard/c10/macros/Export.h"
echo '#define FOUND_LIBTORCH 1' >"${folder}/torch/c10/macros/Export.h"
printf '#include <c10/macros/Export.h>\n#if !FOUND_LIBTORCH\n#error LibTorch was not found\n#endif\nint answer() { return 1 }\n' \
  >"${folder}/source.cc"

# check NAME STANDARD TEXT ABSENT: the compiler's messages about the source must have TEXT, and not
# ABSENT.
check() {
  local output
  output="$(LC_ALL=C "${CXX:-g++}" "-std=$2" "-I${folder}/standard" "-I${folder}/torch" -fsyntax-only "${folder}/source.cc" 2>&1)"
  [[ ${output} == *"$3"* && ${output} != *"$4"* ]] && return
  printf 'FAILED: %s: expected "%s" and not "%s":\n%s\n' "$1" "$3" "$4" "${output}" >&2
  failures=$((failures + 1))
}
check "an older standard" c++17 "LibTorch 9.1.0 needs C++20: compile with -std=c++20" "expected ';'"
check "the standard" c++20 "expected ';'" "needs C++20"

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
