#!/usr/bin/env bash
# Tests that bare_root.sh never leaves anything mounted, and never deletes files that are not its
# own. The root is made up of a few files. A mistake could harm only that root and the test's own
# mount namespace. Skipped without the rights to mount.
set -uo pipefail

script="${PWD}/tools/ci/bare_root.sh"
if ! "${script}" possible; then
  echo "SKIPPED: making mounts needs root's rights and namespaces"
  [[ -z ${XML_OUTPUT_FILE:-} ]] ||
    printf '<testsuites><testsuite><testcase name="%s" status="notrun"><skipped message="%s"/></testcase></testsuite></testsuites>\n' \
      "bare_root_test" "needs root and namespaces" >"${XML_OUTPUT_FILE}"
  exit 0
fi
if [[ ${1:-} != inside ]]; then
  exec unshare --mount --propagation private -- bash "${BASH_SOURCE[0]}" inside
fi

folder="$(mktemp -d)"
trap 'rm -rf --one-file-system "${folder}"' EXIT
failures=0
expect() { # NAME EXPECTED ACTUAL
  [[ $3 == *"$2"* ]] && return 0
  printf 'FAILED: %s: expected "%s" in:\n%s\n' "$1" "$2" "$3" >&2
  failures=$((failures + 1))
}
mounted() { grep -F "$(basename "${folder}")" /proc/self/mountinfo; }
# until_true COMMAND...: waits until the command succeeds, at most half a minute.
until_true() {
  local tries
  for ((tries = 0; tries < 600; ++tries)); do
    "$@" && return 0
    sleep 0.05
  done
  return 1
}

# A root with a space in its name, and with the programs that the commands below need.
root="${folder}/my root" cache="${folder}/my cache"
mkdir -p "${root}"/{bin,mnt,tmp,var/log} "${cache}"
for tool in bash env flock mkdir mount realpath rm rmdir sleep touch umount; do
  cp -L "$(type -P "${tool}")" "${root}/bin"
  ldd "$(type -P "${tool}")" | grep -oE '/[^ ]+' | while read -r library; do
    mkdir -p "${root}$(dirname "${library}")" && cp -Lu "${library}" "${root}${library}"
  done
done
cp "${script}" "${root}/bin/bare_root.sh"
touch "${root}/var/log/bootstrap.log" # debootstrap's
run() { "${script}" run "${root}" "${cache}" "$@"; }

# A command in the root sees its own files, and what it leaves in the cache is in this machine's
# cache.
expect "run" "3 inside" "$(run bash -c 'touch /tmp/inside /root/.cache/gpipe/kept; exit 3'; echo "$? $(ls "${root}/tmp")")"
expect "run: the cache is this machine's" "kept" "$(ls "${cache}")"
expect "run: nothing of this machine is seen" "no such folder" "$(run bash -c "[[ -e '${folder}' ]] || echo no such folder")"
[[ -z "$(mounted)" ]] || expect "run" "nothing mounted" "$(mounted)"
expect "what run calls in namespaces of its own" "is what this script calls" "$("${script}" enter "${root}" "${cache}" true 2>&1)"

# start: starts `run` in the background, and waits until its command has begun. The command is known
# by its words.
words="command of $(basename "${folder}")"
start() {
  rm -f "${cache}/begun"
  # A shell that is not interactive makes its background processes ignore INT.
  env --default-signal=INT "${script}" run "${root}" "${cache}" \
    bash -c 'touch /root/.cache/gpipe/begun; while sleep 1; do :; done' "${words}" &
  running=$!
  until_true test -e "${cache}/begun" || expect "start" "a command that has begun" "nothing"
}
# The pattern is on grep's stdin, so that grep does not find its own command line.
# shellcheck disable=SC2062
at_work() { grep -lsaF --file=- /proc/[0-9]*/cmdline <<<"${words}"; }
ended() { [[ -z "$(at_work)" ]]; }
for signal in KILL TERM INT; do
  start
  [[ -z "$(mounted)" ]] || expect "at work" "no mount outside" "$(mounted)"
  ! ended || expect "at work" "the command's process" "none"
  expect "at work: is not removed" "is in use" "$("${script}" remove "${root}" 2>&1)"
  kill "-${signal}" "${running}"
  wait "${running}" 2>/dev/null
  until_true ended || expect "ended by ${signal}" "no process" "$(at_work)"
  [[ -z "$(mounted)" ]] || expect "ended by ${signal}" "nothing mounted" "$(mounted)"
  rest="$(find "${root}/proc" "${root}/sys" "${root}/dev" "${root}/root/.cache/gpipe" -mindepth 1)"
  [[ -z ${rest} ]] || expect "ended by ${signal}" "empty folders" "${rest}"
done
[[ -e ${cache}/kept ]] || expect "ended: the cache is as it was" "${cache}/kept" "none"

# `remove` must refuse these folders. The test with / runs inside the root.
refused() { # NAME WHY FOLDER FILE: FILE is still there.
  local output
  output="$("${script}" remove "$3" 2>&1)"
  expect "$1: fails" 2 "$?"
  expect "$1: says why" "$2" "${output}"
  [[ -e $4 ]] || expect "$1" "$4 is still there" "it is not"
}
expect "this machine" "2 bare_root.sh: / was not made by bare_root.sh" \
  "$(run bash -c 'bash /bin/bare_root.sh remove / >/tmp/said 2>&1; echo "$? $(</tmp/said)"' 2>&1)"
expect "this machine, by another name" "2 bare_root.sh: /mnt was not made by bare_root.sh" \
  "$(run bash -c 'mount --bind / /mnt && { bash /bin/bare_root.sh remove /mnt >/tmp/said 2>&1; echo "$? $(</tmp/said)"; }' 2>&1)"
[[ -e ${root}/bin/bare_root.sh ]] || expect "this machine" "${root}/bin/bare_root.sh is still there" "it is not"
mkdir -p "${folder}/foreign"
touch "${folder}/foreign/file"
refused "a folder of somebody else's" "foreign was not made by bare_root.sh" "${folder}/foreign" "${folder}/foreign/file"
ln -s "${folder}/foreign" "${folder}/link"
refused "a link to a folder of somebody else's" "foreign was not made by bare_root.sh" "${folder}/link" "${folder}/foreign/file"
mkdir "${root}/mnt/a b"
mount --bind "${folder}/foreign" "${root}/mnt/a b"
refused "something is mounted" "${root}/mnt/a b is mounted" "${root}" "${root}/bin/bash"
refused "something is mounted: what is mounted" "is not deleted" "${root}" "${folder}/foreign/file"
umount "${root}/mnt/a b"
mkdir -p "${folder}/other.making/proc"
mount --bind "${folder}/foreign" "${folder}/other.making/proc"
refused "something is mounted where make was at work" "is not deleted" "${folder}/other" "${folder}/foreign/file"
umount "${folder}/other.making/proc"
if [[ -n "$(type -P debootstrap)" ]]; then
  expect "make: not over what is there" "exists. Give a folder that does not" "$("${script}" make "${root}" "${cache}" 2>&1)"
fi

# `remove` must delete these folders.
"${script}" remove "${folder}/other" || expect "what make has left" 0 1
[[ ! -e ${folder}/other.making ]] || expect "what make has left" "nothing" "$(ls "${folder}/other.making")"
"${script}" remove "${root}" || expect "a root" 0 1
[[ ! -e ${root} ]] || expect "a root" "nothing" "$(ls "${root}")"
[[ -e ${cache}/kept ]] || expect "a root: its cache stays" "${cache}/kept" "none"

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
