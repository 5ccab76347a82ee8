#!/usr/bin/env bash
# Tests what tools/bazel does about missing packages, with a made-up apt-get.
set -uo pipefail

packages="${PWD}/tools/packages.sh"
# shellcheck source=tools/packages.sh
source "${packages}"
unset XDG_CACHE_HOME
user=0 # Root, whichever user runs the test.
root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
failures=0
expect() { # NAME EXPECTED ACTUAL
  [[ $3 == *"$2"* ]] && return 0
  printf 'FAILED: %s: expected "%s" in:\n%s\n' "$1" "$2" "$3" >&2
  failures=$((failures + 1))
}

for list in tools/packages.txt tools/lint-packages.txt tools/ci/{browser,cmake,launcher,python}-packages.txt; do
  wrong="$(awk '!/^#/ && ($2 == "data" ? NF < 5 : NF != 3)' "${list}")"
  [[ -z ${wrong} ]] || expect "${list}" "three columns, and of data what is lost without it" "${wrong}"
done

mkdir "${root}/bin"
for tool in bash cat env grep mktemp mv rm sleep tail touch chmod; do ln -s "$(type -P "${tool}")" "${root}/bin/${tool}"; done
cat >"${root}/list" <<'EOF'
# a comment
there      build  cmd:cat
not-there  build  cmd:gpipe-not-there

some-data  data   share/gpipe/not/there  no pictures are drawn
EOF
path="${PATH}"
PATH="${root}/bin"
unfinished="${root}/unfinished"
unknown="${root}/unknown"

find_missing "${root}/list"
expect "missing" "not-there some-data" "${missing[*]}"
expect "needed to build" "not-there" "${missing_build[*]}"

output="$(ensure_packages "${root}/list" 2>&1)"
expect "no apt-get: fails" 1 "$?"
expect "no apt-get: says what" "install them with your package manager" "${output}"

cat >"${root}/bin/apt-get" <<EOF
#!${root}/bin/bash
echo "\$*" >>"${root}/apt.log"
if [[ \$1 == update && -e "${root}/locked" ]]; then
  rm "${root}/locked"
  echo "E: Could not get lock /var/lib/apt/lists/lock"
  exit 100
fi
[[ \$1 == update ]] && exit "\${UPDATE_CODE:-0}"
[[ -e "${root}/broken" ]] && { echo "E: no such mirror"; exit 100; }
touch "${root}/bin/gpipe-not-there"
[[ -z \${DIES:-} ]] || kill -KILL "\${PPID}" \$\$
chmod +x "${root}/bin/gpipe-not-there"
EOF
cat >"${root}/bin/sudo" <<EOF
#!${root}/bin/bash
echo "sudo \${*:2}" >>"${root}/sudo.log"
[[ \$1 == -n && ! -e "${root}/asks" ]] || exit 1
[[ \$2 == true ]] || exec "\${@:2}"
EOF
chmod +x "${root}/bin/apt-get" "${root}/bin/sudo"

output="$(GPIPE_NO_INSTALL=1 ensure_packages "${root}/list" 2>&1)"
expect "told not to install: fails" 1 "$?"
expect "told not to install: the one command" "apt-get install -y --no-install-recommends not-there"$'\n' "${output}"
expect "told not to install: what is not needed stands apart" "apt-get install -y --no-install-recommends some-data"$'\n' "${output}"
expect "told not to install: what is lost" "Without some-data: no pictures are drawn" "${output}"
expect "told not to install: a fresh system has no lists" "apt-get update && apt-get install" "${output}"
[[ ! -e ${root}/apt.log ]] || expect "told not to install" "no call of apt-get" "$(cat "${root}/apt.log")"

touch "${root}/broken"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "apt-get fails: fails" 1 "$?"
expect "apt-get fails: its reason" "E: no such mirror" "${output}"
expect "apt-get fails before it begins: no set-up to finish" "gone" "$([[ -e ${unfinished} ]] || echo gone)"
rm "${root}/broken"

TMPDIR=/proc/nowhere
export TMPDIR
output="$(ensure_packages "${root}/list" 2>&1)"
expect "full disk: fails" 1 "$?"
expect "full disk: says where" "nothing can be written to /proc/nowhere" "${output}"
unset TMPDIR

# If apt-get is killed between unpacking and setting up, the packages must not be taken for
# installed.
output="$(DIES=1 bash -c 'source "$1"; unfinished="$2"; ensure_packages "$3"' bash "${packages}" "${unfinished}" "${root}/list" 2>&1)"
rm -f "${root}/bin/dpkg"
printf '#!%s/bin/bash\necho "dpkg $*" >>"%s/apt.log"\n' "${root}" "${root}" >"${root}/bin/dpkg"
chmod +x "${root}/bin/dpkg" "${root}/bin/gpipe-not-there"
output="$(GPIPE_NO_INSTALL=1 ensure_packages "${root}/list" 2>&1)"
expect "interrupted, told not to install: fails" 1 "$?"
expect "interrupted, told not to install: says what to type" "dpkg --configure -a && apt-get" "${output}"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "interrupted: finished" 0 "$?"
expect "interrupted: says so" "finishing an interrupted set-up" "${output}"
expect "interrupted: sets up what is unpacked" "dpkg --configure -a" "$(cat "${root}/apt.log")"
expect "interrupted: finished once" "gone" "$([[ -e ${unfinished} ]] || echo gone)"
rm "${root}/unknown-some-data" # This apt-get does not bring it; below.

# If only data is missing, the build goes on, and the message says what is lost.
output="$(GPIPE_NO_INSTALL=1 ensure_packages "${root}/list" 2>&1)"
expect "only data missing, told not to install: goes on" 0 "$?"
expect "only data missing, told not to install: says so" "that no build needs" "${output}"
expect "only data missing, told not to install: what is lost" "Without some-data: no pictures are drawn" "${output}"
touch "${root}/broken"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "only data missing, apt-get fails: goes on" 0 "$?"
rm "${root}/broken"

# If apt-get takes the package for installed, but its files are gone, the build goes on.
output="$(ensure_packages "${root}/list" 2>&1)"
expect "files that are gone: goes on" 0 "$?"
expect "files that are gone: which, and what is lost" "there is no /usr/share/gpipe/not/there. Without it:
  no pictures are drawn" "${output}"
expect "files that are gone: what to do" "  apt-get install --reinstall -y some-data" "${output}"
expect "files that are gone: until when it is not asked for" "until ${root}/unknown-some-data is removed" "${output}"
rm "${root}/apt.log"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "files that are gone: said once, and apt-get left alone" "0 none" "$? ${output}$([[ -e ${root}/apt.log ]] || echo none)"
rm "${root}/unknown-some-data" "${root}/bin/gpipe-not-there"

# The user is not root. There is a sudo that asks for no password, a sudo that asks for one, or no
# sudo.
# shellcheck disable=SC2034
user=1000
touch "${root}/apt.log"
output="$(GPIPE_NO_INSTALL=1 ensure_packages "${root}/list" 2>&1)"
expect "not root, told not to install: by sudo" "  sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends not-there'" "${output}"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "not root, sudo without a password: installs" "0 GPipe: installing not-there some-data" "$? ${output}"
expect "not root, files that are gone: by sudo, too" "  sudo sh -c 'apt-get install --reinstall -y some-data'" "${output}"
expect "not root, sudo without a password: all by sudo" "sudo env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 apt-get" \
  "$(grep -m 1 install "${root}/sudo.log")"
rm "${root}/unknown-some-data" "${root}/bin/gpipe-not-there" "${root}/apt.log"
touch "${root}/asks"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "not root, sudo with a password: fails" 1 "$?"
expect "not root, sudo with a password: is not tried" "GPipe needs packages that are missing here" "${output%%$'\n'*}"
expect "not root, sudo with a password: what to type" "  sudo sh -c 'apt-get update && apt-get install" "${output}"
mv "${root}/bin/sudo" "${root}/no-sudo"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "not root, no sudo: fails" 1 "$?"
expect "not root, no sudo: what to type" \
  "  su - -c 'apt-get update && apt-get install -y --no-install-recommends not-there'     (or let whoever" "${output}"
[[ ! -e ${root}/apt.log ]] || expect "not root, and no right to install" "no call of apt-get" "$(cat "${root}/apt.log")"
mv "${root}/no-sudo" "${root}/bin/sudo"
rm "${root}/asks"
# shellcheck disable=SC2034
user=0

# Another program holds apt's lock for a while, and an unrelated package source is gone: the packages are installed all
# the same.
touch "${root}/locked"
output="$(UPDATE_CODE=100 ensure_packages "${root}/list" 2>&1)"
expect "locked lists, and a source that is gone: succeeds" 0 "$?"
expect "locked lists: waits" "gone" "$([[ -e ${root}/locked ]] || echo gone)"
rm "${root}/bin/gpipe-not-there" "${root}/unknown-some-data"

output="$(ensure_packages "${root}/list" 2>&1)"
expect "installs: succeeds" 0 "$?"
expect "installs: says so" "GPipe: installing not-there some-data" "${output}"
expect "installs: with apt-get" "install -y --no-install-recommends not-there some-data" "$(cat "${root}/apt.log")"
rm "${root}/unknown-some-data"

# On another Debian the package with the data does not exist (apt-cache does not know it).
rm "${root}/bin/gpipe-not-there"
cat >"${root}/bin/apt-cache" <<EOF
#!${root}/bin/bash
[[ \$2 != some-data ]]
EOF
chmod +x "${root}/bin/apt-cache"
rm "${root}/apt.log"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "unknown data: the rest is installed" 0 "$?"
expect "unknown data: is left out" "recommends not-there" "$(cat "${root}/apt.log")"
[[ "$(cat "${root}/apt.log")" != *some-data* ]] || expect "unknown data" "none" "$(cat "${root}/apt.log")"
rm "${root}/apt.log"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "unknown data: not asked for again" "0 none" "$? $([[ -e ${root}/apt.log ]] || echo none)"
rm "${root}/unknown-some-data" "${root}/bin/apt-cache"

touch "${root}/apt.log"
rm "${root}/apt.log" "${root}/bin/apt-get"
output="$(ensure_packages "${root}/list" 2>&1)"
expect "elsewhere, only data missing: goes on" 0 "$?"

touch "${root}/bazel-real" && chmod +x "${root}/bazel-real"
BAZEL_REAL="${root}/bazel-real" find_bazel
# shellcheck disable=SC2154
expect "the launcher's Bazel" "${root}/bazel-real" "${bazel}"

# Debian's Bazel gets other folders if paths have spaces. shellcheck does not see that these
# variables are used.
# shellcheck disable=SC2034
choose() { # FOLDER BAZEL ARGUMENTS...
  bazel="$2"
  (cd "$1" && choose_options "${@:3}" && echo "options: ${options[*]}") 2>&1
}
PATH="${path}"
without_spaces="${root}/bazel"
mkdir "${root}/my project"
expect "sources in a path with spaces: says what to do" "mv '${root}/my project' /var/tmp/gpipe" \
  "$(choose "${root}/my project" /usr/bin/bazel-4 build //...)"
expect "sources in a path with spaces, another Bazel" "options: " "$(choose "${root}/my project" /usr/local/bin/bazel test)"
expect "a home with spaces" "options: --output_user_root=${root}/bazel" \
  "$(HOME="${root}/my home" choose "${root}" /usr/bin/bazel-4 build)"
expect "a home with spaces, where the user has chosen" "none" \
  "$(HOME="${root}/my home" choose "${root}" /usr/bin/bazel-4 --output_base=/x build | sed 's/^options: $/none/')"
expect "no spaces" "none" "$(HOME=/root choose "${root}" /usr/bin/bazel-4 build | sed 's/^options: $/none/')"

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
