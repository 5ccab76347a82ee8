#!/usr/bin/env bash
# Tests a ResilientRun over two machines, which are two network namespaces with two processes each,
# over a line that loses two of a hundred packets. The launcher is on the first machine. Losses and
# hash must be those of a run on one machine
#
# - if nothing happens, and if a process of the second machine is killed;
# - if the line is cut: the processes of the first machine go on alone, and those of the second one
#   end with a sentence;
# - if the second machine loses its interface: the same.
#
#   cut_line_test.sh LAUNCH WATCHED_RUN LINK RELAY
set -euo pipefail
launch="${PWD}/$1"
program="${PWD}/$2"
link="${PWD}/$3"
relay="${PWD}/$4"
# shellcheck source=examples/distributed/two_machines.sh
source examples/distributed/two_machines.sh
make_two_machines "${link}" 2
export OMP_NUM_THREADS=1

# Ranks 0 and 1 are on the first machine. The second one reaches the meeting place by the relay, over
# the line, as it would reach a launcher on the first machine.
place="${TEST_TMPDIR}/place"
on_first=(nsenter --target "${machines[0]}" --net --uts)  # not at(), so that $! is the program
"${on_first[@]}" python3 "${relay}" 10.77.0.1 29600 "${place}" &
started+=("$!")
rank_on_its_machine="${TEST_TMPDIR}/rank"
cat >"${rank_on_its_machine}" <<END_OF_RANK
#!/usr/bin/env bash
export MASTER_ADDR=10.77.0.1 GPIPE_INTERFACE=line LOCAL_RANK=\$((RANK % 2)) LOCAL_WORLD_SIZE=2
[[ \${RANK} -ge 2 ]] || exec "\$@"
echo "\${GPIPE_MEETING_PLACE%/*}" >"${place}.\${RANK}" && mv "${place}.\${RANK}" "${place}"
export GPIPE_MEETING_PLACE=10.77.0.1:29600/\${GPIPE_MEETING_PLACE##*/}
exec nsenter --target ${machines[1]} --net --uts "\$@"
END_OF_RANK
chmod +x "${rank_on_its_machine}"

readonly kSteps=100 kSilence=5
log=""
fail() {
  echo "FAILED: $1"
  grep -v "event begins\|event ends" "${log}" | tail -n 60
  exit 1
}
# The losses, and the hash of the parameters.
results() { grep -o "step [0-9]* loss .*\|parameters [0-9a-f]*" "${log}" | sort -u; }
# begin NAME PAUSE_MS FLAGS...: starts a run that pauses so long after each step.
begin() {
  local pause="$2"
  log="${TEST_TMPDIR}/$1"
  "${on_first[@]}" "${launch}" --processes=4 "${@:3}" -- "${rank_on_its_machine}" "${program}" \
    "${kSteps}" 10 "${kSilence}" "" "${pause}" >"${log}" 2>&1 &
  run="$!"
  started+=("${run}")
}
# wait_for TEXT: waits until the log has the text.
wait_for() {
  local tries
  for ((tries = 0; tries < 1200; ++tries)); do
    ! grep -q "$1" "${log}" || return 0
    sleep 0.1
  done
  fail "no '$1' after 120 s"
}
# ends_as_alone WHAT: the run ends with 0, and its losses and hash are those on one machine.
ends_as_alone() {
  local code=0
  wait "${run}" || code=$?
  [[ ${code} -eq 0 ]] || fail "$1: exit code ${code}"
  [[ "$(results)" == "${alone}" ]] || fail "$1: other losses, or another hash"
  echo "$1: losses and hash are equal, recoveries: $(grep -c "goes on with [0-9]" "${log}" || true), $((SECONDS - since)) s"
}

log="${TEST_TMPDIR}/alone"
"${launch}" --processes=4 -- "${program}" "${kSteps}" 10 30 >"${log}" 2>&1 || fail "one machine"
alone="$(results)"
[[ "$(wc -l <<<"${alone}")" -eq $((kSteps + 1)) ]] || fail "one machine: not all losses and a hash"

since=${SECONDS}
begin lost_packets 0
ends_as_alone "2 % of the packets lost"

since=${SECONDS}
begin killed 0 --restarts=1
wait_for "step 25 loss"
kill -KILL "$(sed -n 's/^\[3\] event starts \([0-9]*\) at .*/\1/p' "${log}")"
ends_as_alone "process 3 killed on the second machine"
[[ "$(grep -c "goes on with 4 processes" "${log}")" -eq 1 ]] || fail "not one recovery"

# The pauses let the first machine train for longer than the second one tries to reach the launcher.
# `way`: the line carries nothing, or the second machine has lost its interface.
for way in line interface; do
  since=${SECONDS}
  begin "cut_${way}" 700
  wait_for "step 12 loss"
  if [[ ${way} == line ]]; then cut_line; else at 1 ip link set line down; fi
  cut_at="$(date +%s%3N)"
  wait_for "goes on with 2 processes"
  echo "cut ${way}: the first machine goes on after $(($(date +%s%3N) - cut_at)) ms"
  for rank in 2 3; do
    wait_for "\[${rank}\] over: .* at 10.77.0.1:29600 could not be reached for $((kSilence + 5)) s"
    wait_for "rank ${rank} (process [0-9]*) ended with exit code 3"
  done
  echo "cut ${way}: the second machine has ended after $(($(date +%s%3N) - cut_at)) ms"
  [[ "$(grep -c "goes on with [0-9]" "${log}")" -eq 1 ]] || fail "cut ${way}: not one recovery"
  ends_as_alone "cut ${way}"
  if [[ ${way} == line ]]; then mend_line 2; else at 1 ip link set line up; fi
done
