#!/usr/bin/env bash
# Tests precompile.sh on a small header. gcc must take the precompiled header. The stamp must change
# with everything that the header was made of, and with nothing else. compiler.sh must tell one
# compiler from another.
set -uo pipefail

here="${PWD}/third_party/precompiled"
folder="$(mktemp -d)"
trap 'rm -rf "${folder}"' EXIT
cd "${folder}" || exit 1
failures=0
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  failures=$((failures + 1))
}

printf '#include "included.h"\n#include <vector>\n#pragma gpipe_instantiate\n' >header.h
echo 'inline int one() { return 1; }' >included.h
echo 'int two(std::vector<int>& numbers) { return one() + numbers.at(0); }' >source.cc
cp "${here}/instantiate.cc" .
"${here}/compiler.sh" g++ >compiler.txt

precompile() {
  "${here}/precompile.sh" instantiate.cc compiler.txt h.stamp g++ -std=c++17 -O1 -I. "$@" -x c++-header -c header.h \
    -o h.h.gch 2>said || fail "precompile.sh: $(cat said)"
}
precompile
stamp="$(cat h.stamp)"
[[ ${stamp} =~ ^//\ [0-9a-f]{64}$ ]] || fail "the stamp is not a comment with a hash: ${stamp}"

# The command has the options that tools/build_defs/cc.bzl adds.
compile=(g++ -std=c++17 -O1 -I. -include h.h -include h.stamp -Winvalid-pch -MD -MF depends -c source.cc -o source.o)
"${compile[@]}" 2>said || fail "gcc does not take the header: $(cat said)"
grep -q 'h\.stamp' depends || fail "gcc's list of what a source has read lacks the stamp: $(cat depends)"

precompile
[[ "$(cat h.stamp)" == "${stamp}" ]] || fail "another stamp for the same"
# changed WHAT ARGUMENTS...: the stamp must differ from the one before.
changed() {
  local before="${stamp}"
  precompile "${@:2}"
  stamp="$(cat h.stamp)"
  [[ ${stamp} != "${before}" ]] || fail "the same stamp, and another: $1"
}
changed "option" -DOPTION
echo 'inline int three() { return 3; }' >>included.h
changed "included header"
echo '#define FOUR 4' >>included.h
changed "macro of an included header"
echo '// more' >>instantiate.cc
changed "plugin"
echo 'another' >>compiler.txt
changed "compiler"

# compiler.sh must tell apart compilers of other versions, of the same version (after an update of
# Debian's), and with headers for plugins.
mkdir -p plugin/include
# shellcheck disable=SC2016 # expanded by that script
printf '#!/bin/sh\ncase "$1" in\n--version) cat version ;;\n-print-prog-name=cc1plus) echo ./cc1plus ;;\n*) echo ./plugin ;;\nesac\n' >cc
chmod +x cc
echo "cc 1" >version
echo "program" >cc1plus
identity="$("${here}/compiler.sh" ./cc)"
[[ ${identity} == *"cc 1"* && ${identity} == *"without headers for plugins"* ]] || fail "compiler.sh: ${identity}"
[[ "$("${here}/compiler.sh" ./cc)" == "${identity}" ]] || fail "the same compiler, and another identity"
other() {
  local before="${identity}"
  identity="$("${here}/compiler.sh" ./cc)"
  [[ ${identity} != "${before}" ]] || fail "another compiler ($1), and the same identity: ${identity}"
}
echo "cc 2" >version
other "version"
echo "program with a fix" >cc1plus
other "program"
touch plugin/include/gcc-plugin.h
other "headers for plugins"
[[ -n "$("${here}/compiler.sh" ./no-such-compiler)" ]] || fail "no compiler: no identity"

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
