#!/usr/bin/env bash
# Tests the example over two machines, which are two network namespaces with two ranks each, over a
# line that delays each packet by 5 ms and loses one of a hundred. The parameters must be those of
# one process. If a rank is killed (-9), all others must name it within seconds. If a rank is
# stopped (-STOP), they must name it once it has been silent for as long as is allowed (30 s). When
# the stopped rank goes on, it must end, too. If the line is cut, each machine must name the ranks
# that it has lost, after the same time.
#
#   two_machines_test.sh TRAIN TEXT LINK
set -euo pipefail
train="${PWD}/$1"
options=("--text=${PWD}/$2")
link="${PWD}/$3"
# shellcheck source=examples/distributed/two_machines.sh
source examples/distributed/two_machines.sh
make_two_machines "${link}" 1

# start ARGUMENTS...: starts ranks 0 and 1 on the first machine, and 2 and 3 on the second.
start() {
  local rank
  ranks=()
  for rank in 0 1 2 3; do
    # This does not use at(), because the process that is killed must be the rank and not a shell
    # that waits for it.
    nsenter --target "${machines[rank / 2]}" --net env RANK="${rank}" WORLD_SIZE=4 LOCAL_RANK="$((rank % 2))" LOCAL_WORLD_SIZE=2 \
      MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 OMP_NUM_THREADS=1 "${train}" "${options[@]}" "$@" \
      >"${TEST_TMPDIR}/out${rank}" 2>"${TEST_TMPDIR}/err${rank}" &
    ranks+=("$!")
    started+=("$!")
  done
}
show() { tail -n 5 "${TEST_TMPDIR}"/err[0-3]; }

failed=0
alone="$(OMP_NUM_THREADS=1 "${train}" --stages=1 --steps=6 "${options[@]}" | tail -n 1)"
[[ ${alone} =~ ^parameters\ [0-9a-f]{16}$ ]] || { echo "no hash: ${alone}"; exit 1; }
for layout in "" "--replicas=2"; do
  begin=${SECONDS}
  start --steps=6 ${layout:+"${layout}"}
  for rank in 0 1 2 3; do
    wait "${ranks[rank]}" || { echo "rank ${rank} failed"; failed=1; show; }
  done
  found="$(tail -n 1 "${TEST_TMPDIR}/out0")"
  echo "two machines, 4 processes ${layout}: ${found} (alone: ${alone}), $((SECONDS - begin)) s"
  [[ ${found} == "${alone}" ]] || failed=1
done

# begin_endless: starts a run without an end, and waits until it is in the middle of its steps.
begin_endless() {
  local tries
  start --steps=1000000
  for ((tries = 0; tries < 1800; ++tries)); do
    ! grep -q "step 50: " "${TEST_TMPDIR}/out0" || return 0
    kill -0 "${ranks[0]}" 2>/dev/null || break
    sleep 0.1
  done
  echo "no 50 steps without a fault"
  show
  exit 1
}
milliseconds() { date +%s%3N; }
# ends_naming WHAT RANK LEAST MOST TEXT...: the rank must end with an error that has each TEXT,
# between LEAST and MOST milliseconds after `begin`.
ends_naming() {
  local what="$1" rank="$2" least="$3" most="$4" code=0 took said text
  shift 4
  wait "${ranks[rank]}" || code=$?
  took=$(($(milliseconds) - begin))
  said="$(tr '\n' ' ' <"${TEST_TMPDIR}/err${rank}")"
  for text in "$@"; do
    [[ ${said} =~ ${text} ]] || code="without '${text}'"
  done
  if [[ ${code} == 1 && ${took} -ge ${least} && ${took} -le ${most} ]]; then
    echo "${what}: rank ${rank} names it after ${took} ms"
  else
    echo "${what}: rank ${rank} ended (${code}) after ${took} ms and said: ${said}"
    failed=1
  fi
}

# One rank of each machine is killed in turn. The others notice it soon, because the killed rank's
# system closes its connections, also those over the line.
for killed in 1 2; do
  begin_endless
  begin="$(milliseconds)"
  kill -KILL "${ranks[killed]}"
  for rank in 0 1 2 3; do
    [[ ${rank} -eq ${killed} ]] || ends_naming "rank ${killed} killed" "${rank}" 0 5000 "rank ${killed} \([^)]*\) is gone"
  done
done

# A rank is stopped, so its connections stay open and nothing comes from it. The others must give it
# up after 30 s.
begin_endless
begin="$(milliseconds)"
kill -STOP "${ranks[3]}"
for rank in 0 1 2; do
  ends_naming "rank 3 stopped" "${rank}" 25000 45000 "rank 3 \([^)]*\) is silent"
done
kill -0 "${ranks[3]}" || { echo "the stopped rank has ended by itself"; failed=1; }
# When the rank goes on, it must find that the others have given it up.
begin="$(milliseconds)"
kill -CONT "${ranks[3]}"
ends_naming "rank 3 goes on" 3 0 5000 "rank 3 \([^)]*\) is silent"

# The line is cut, so each machine must name the ranks of the other one.
begin_endless
begin="$(milliseconds)"
at 0 ip link set line down
for rank in 0 1 2 3; do
  lost=$((2 - rank / 2 * 2))
  ends_naming "the cut from ranks ${lost} and $((lost + 1))" "${rank}" 25000 45000 "rank ${lost} [^;]*is silent" \
    "rank $((lost + 1)) [^;]*is silent"
done
exit "${failed}"
