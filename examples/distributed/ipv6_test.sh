#!/usr/bin/env bash
# Tests the example on a machine without IPv4, which is a network namespace that has ::1 alone.
# Under our launcher, and if the variables are set by hand, the parameters must be those of one
# process. An address that the machine does not have must be named in the error.
#
#   ipv6_test.sh TRAIN LAUNCH TEXT
#
# Needs network namespaces, as root or by a user namespace. Without them the test is skipped, and
# its report says so.
set -euo pipefail
train="${PWD}/$1"
launch="${PWD}/$2"
options=("--text=${PWD}/$3" --steps=2)
: "${TEST_TMPDIR:=$(mktemp -d)}"

skip() {
  echo "SKIPPED: $1"
  [[ -z ${XML_OUTPUT_FILE:-} ]] ||
    printf '<testsuites><testsuite><testcase name="ipv6" status="notrun"><skipped message="%s"/></testcase></testsuite></testsuites>\n' \
      "$1" >"${XML_OUTPUT_FILE}"
  exit 0
}

if [[ -z ${GPIPE_TEST_INSIDE:-} ]]; then
  for program in ip unshare; do
    [[ -n "$(type -P "${program}")" ]] || skip "no ${program} on PATH (Debian: iproute2, util-linux)"
  done
  new=(unshare --net)
  "${new[@]}" true 2>/dev/null || new=(unshare --map-root-user --net)
  "${new[@]}" true 2>/dev/null || skip "no network namespace can be made here"
  has_ipv6='ip link set lo up && ip address delete 127.0.0.1/8 dev lo && ip -6 -brief address show dev lo | grep -q ::1/128'
  "${new[@]}" sh -c "${has_ipv6}" 2>/dev/null || skip "the kernel has no IPv6"
  GPIPE_TEST_INSIDE=1 exec "${new[@]}" "$0" "$@"
fi
ip link set lo up
ip address delete 127.0.0.1/8 dev lo

fail() {
  echo "FAILED: $1" >&2
  cat "${TEST_TMPDIR}"/out* >&2
  exit 1
}
hash_in() { grep -o 'parameters [0-9a-f]*' "$1" | sort -u; }

"${train}" "${options[@]}" --stages=2 >"${TEST_TMPDIR}/out" 2>&1 || fail "one process"
want="$(hash_in "${TEST_TMPDIR}/out")"
[[ ${want} == parameters* ]] || fail "no hash"

"${launch}" --processes=2 -- "${train}" "${options[@]}" >"${TEST_TMPDIR}/out" 2>&1 || fail "the launcher"
[[ "$(hash_in "${TEST_TMPDIR}/out")" == "${want}" ]] || fail "the launcher: other parameters"
grep -q 'store is at \[::1\]:' "${TEST_TMPDIR}/out" || fail "the launcher: the address is not told"

# rank MASTER_ADDR GPIPE_INTERFACE RANK: starts a rank by hand. Each meeting has a port of its own.
port=29500
rank() {
  local setting=()
  [[ -z $2 ]] || setting=("GPIPE_INTERFACE=$2")
  env "RANK=$3" WORLD_SIZE=2 "LOCAL_RANK=$3" LOCAL_WORLD_SIZE=2 OMP_NUM_THREADS=1 "MASTER_ADDR=$1" \
    "MASTER_PORT=${port}" "${setting[@]}" "${train}" "${options[@]}" >"${TEST_TMPDIR}/out$3" 2>&1
}
for given in "::1 " "[::1] lo" "127.0.0.1 [::1]"; do
  address="${given% *}"
  interface="${given#* }"
  port=$((port + 1))
  rank "${address}" "${interface}" 1 &
  other=$!
  rank "${address}" "${interface}" 0 || fail "MASTER_ADDR=${address} GPIPE_INTERFACE=${interface}, rank 0"
  wait "${other}" || fail "MASTER_ADDR=${address} GPIPE_INTERFACE=${interface}, rank 1"
  cat "${TEST_TMPDIR}/out0" "${TEST_TMPDIR}/out1" >"${TEST_TMPDIR}/out"
  [[ "$(hash_in "${TEST_TMPDIR}/out")" == "${want}" ]] || fail "MASTER_ADDR=${address}: other parameters"
done

! rank ::1 127.0.0.1 0 || fail "GPIPE_INTERFACE=127.0.0.1 went well"
grep -q "GPIPE_INTERFACE='127.0.0.1' is not an interface or an address of this machine. It has lo (::1)" "${TEST_TMPDIR}/out0" ||
  fail "GPIPE_INTERFACE=127.0.0.1: neither named"
echo "PASSED"
