# shellcheck shell=bash
# Two machines for tests, which are two network namespaces with a line between them. Tests source
# this file. Needs root and network namespaces, and /dev/net/tun if the kernel has no netem. Without
# them the test is skipped, and its report says so.

: "${TEST_TMPDIR:=$(mktemp -d)}"

skip() {
  echo "SKIPPED: $1"
  [[ -z ${XML_OUTPUT_FILE:-} ]] ||
    printf '<testsuites><testsuite><testcase name="two_machines" status="notrun"><skipped message="%s"/></testcase></testsuite></testsuites>\n' \
      "$1" >"${XML_OUTPUT_FILE}"
  exit 0
}

started=()       # processes that end with the test
line_program=""  # the process that is the line, if netem is not
# shellcheck disable=SC2317 # the trap calls it
end_all() {
  local pid
  for pid in "${started[@]}"; do kill -KILL "${pid}" 2>/dev/null || true; done
}

# at MACHINE COMMAND...: runs a command on machine 0 or 1.
at() { nsenter --target "${machines[$1]}" --net --uts "${@:2}"; }

# Lays the line between the machines with netem. Fails if the kernel does not have netem.
lay_netem() {
  local machine
  ip link add gpipe-line-a type veth peer name gpipe-line-b || return 1
  ip link set gpipe-line-a netns "${machines[0]}" name line && ip link set gpipe-line-b netns "${machines[1]}" name line || return 1
  for machine in 0 1; do
    at "${machine}" tc qdisc add dev line root netem delay 5ms loss "$1%" || return 1
  done
}

# cut_line: no packet arrives any more, and both machines still have their interface. mend_line LOSS:
# packets arrive again.
cut_line() {
  local machine
  if [[ -n ${line_program} ]]; then kill -STOP "${line_program}"; return; fi
  for machine in 0 1; do at "${machine}" tc qdisc change dev line root netem loss 100%; done
}
mend_line() {
  local machine
  if [[ -n ${line_program} ]]; then kill -CONT "${line_program}"; return; fi
  for machine in 0 1; do at "${machine}" tc qdisc change dev line root netem delay 5ms loss "$1%"; done
}

# make_two_machines LINK LOSS: the machines have the addresses 10.77.0.1 and 10.77.0.2 on the
# interface `line`, which delays each packet by 5 ms and loses LOSS of a hundred. LINK: link.py.
make_two_machines() {
  local program machine tries
  [[ ${EUID} -eq 0 ]] || skip "network namespaces need root"
  for program in ip nsenter unshare; do
    [[ -n "$(type -P "${program}")" ]] || skip "no ${program} on PATH (Debian: iproute2, util-linux)"
  done
  unshare --net --uts true 2>/dev/null || skip "no network namespace can be made here"

  # Each machine is the namespace of a process that sleeps.
  trap end_all EXIT
  machines=()
  for machine in 0 1; do
    unshare --net --uts sleep 1000 &
    machines+=("$!")
    started+=("$!")
  done
  for machine in 0 1; do
    for ((tries = 0; tries < 500; ++tries)); do
      [[ "$(readlink "/proc/${machines[machine]}/ns/uts")" == "$(readlink /proc/self/ns/uts)" ]] || break
      sleep 0.01
    done
    at "${machine}" ip link set lo up
    at "${machine}" hostname "machine-${machine}"
  done
  if (lay_netem "$2") 2>"${TEST_TMPDIR}/netem"; then
    echo "the line: netem, 5 ms, $2 % lost"
  else
    at 0 ip link delete line 2>/dev/null || true
    [[ -e /dev/net/tun ]] || skip "the kernel has neither netem nor /dev/net/tun: $(tail -n 1 "${TEST_TMPDIR}/netem")"
    python3 "$1" "${machines[@]}" 5 "0.0$2" >"${TEST_TMPDIR}/link" 2>&1 &
    line_program="$!"
    started+=("$!")
    for ((tries = 0; tries < 500; ++tries)); do
      grep -q ready "${TEST_TMPDIR}/link" && break
      sleep 0.02
    done
    grep -q ready "${TEST_TMPDIR}/link" || skip "no interface of /dev/net/tun: $(tail -n 1 "${TEST_TMPDIR}/link")"
    echo "the line: a program, 5 ms, $2 % lost (no netem: $(tail -n 1 "${TEST_TMPDIR}/netem"))"
  fi
  for machine in 0 1; do
    at "${machine}" ip address add "10.77.0.$((machine + 1))/24" dev line
    at "${machine}" ip link set line up
  done
}
