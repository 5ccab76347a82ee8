#!/usr/bin/env bash
# What tools/bazel does about missing packages, with a made-up apt-get.
set -uo pipefail

# shellcheck source=tools/packages.sh
source tools/packages.sh
root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
failures=0
expect() { # NAME EXPECTED ACTUAL
  [[ $3 == *"$2"* ]] && return 0
  printf 'FAILED: %s: expected "%s" in:\n%s\n' "$1" "$2" "$3" >&2
  failures=$((failures + 1))
}

for list in tools/packages.txt tools/lint-packages.txt tools/ci/browser-packages.txt; do
  expect "${list}: three columns" "" "$(awk '!/^#/ && NF != 3' "${list}")"
  [[ -z "$(awk '!/^#/ && NF != 3' "${list}")" ]] || expect "${list}" "three columns" "a line with more or less"
done

mkdir "${root}/bin"
for tool in bash cat env mktemp rm tail touch chmod; do ln -s "$(type -P "${tool}")" "${root}/bin/${tool}"; done
cat >"${root}/list" <<'EOF'
# a comment
there      build  cmd:cat
not-there  build  cmd:gpipe-not-there

some-data  data   share/gpipe/not/there
EOF
PATH="${root}/bin"

find_missing "${root}/list"
expect "missing" "not-there some-data" "${missing[*]}"
expect "needed to build" "not-there" "${missing_build[*]}"

output="$(ensure_packages "${root}/list" 2>&1)"
expect "no apt-get: fails" 1 "$?"
expect "no apt-get: says what" "install them with your package manager" "${output}"

cat >"${root}/bin/apt-get" <<EOF
#!${root}/bin/bash
echo "\$*" >>"${root}/apt.log"
[[ \$1 == update ]] && exit 0
[[ -e "${root}/broken" ]] && { echo "E: no such mirror"; exit 100; }
touch "${root}/bin/gpipe-not-there" && chmod +x "${root}/bin/gpipe-not-there"
EOF
cat >"${root}/bin/sudo" <<EOF
#!${root}/bin/bash
[[ \$1 == -n ]] && shift
[[ \$1 == true ]] || exec "\$@"
EOF
chmod +x "${root}/bin/apt-get" "${root}/bin/sudo"

output="$(GPIPE_NO_INSTALL=1 ensure_packages "${root}/list" 2>&1)"
expect "told not to install: fails" 1 "$?"
expect "told not to install: the one command" "apt-get install -y --no-install-recommends not-there some-data" "${output}"
[[ ! -e ${root}/apt.log ]] || expect "told not to install" "no call of apt-get" "$(cat "${root}/apt.log")"

touch "${root}/broken"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "apt-get fails: fails" 1 "$?"
expect "apt-get fails: its reason" "E: no such mirror" "${output}"
rm "${root}/broken"

output="$(ensure_packages "${root}/list" 2>&1)"
expect "installs: succeeds" 0 "$?"
expect "installs: says so" "GPipe: installing not-there some-data" "${output}"
expect "installs: with apt-get" "install -y --no-install-recommends not-there some-data" "$(cat "${root}/apt.log")"

rm "${root}/apt.log" "${root}/bin/apt-get"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "elsewhere, only data missing: goes on" 0 "$?"

touch "${root}/bazel-real" && chmod +x "${root}/bazel-real"
BAZEL_REAL="${root}/bazel-real" find_bazel
# shellcheck disable=SC2154
expect "the launcher's Bazel" "${root}/bazel-real" "${bazel}"

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
