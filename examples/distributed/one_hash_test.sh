#!/usr/bin/env bash
# Tests "one run, one hash": the parameters must be the same, to the last bit, after training over
# one or several threads, processes or replicas, under every schedule.
set -euo pipefail
launch="$1"
train="$2"
options=(--steps=20 "--text=$3")

last_line() { tail -n 1 | sed 's/^\[0\] //'; }
alone="$("${train}" --stages=1 "${options[@]}" | last_line)"
[[ ${alone} =~ ^parameters\ [0-9a-f]{16}$ ]] || { echo "no hash: ${alone}"; exit 1; }

failed=0
expect_same() {
  local what="$1" hash="$2"
  echo "${what}: ${hash}"
  [[ ${hash} == "${alone}" ]] || failed=1
}
expect_same "alone" "${alone}"
for schedule in 1f1b zb-h1 zb-v; do
  expect_same "4 stages, ${schedule}" \
    "$("${train}" --stages=4 "--schedule=${schedule}" "${options[@]}" | last_line)"
done
layouts=("2 1 2 1f1b" "2 1 4 zb-v" "2 1 6 interleaved" "2 1 4 zb-h1" "4 1 4 1f1b" "4 1 8 zb-v" "3 1 3 zb-h2"
  "2 2 1 1f1b" "2 2 4 zb-h2" "4 4 1 1f1b" "4 4 3 zb-h1" "4 2 2 1f1b" "4 2 4 zb-v" "4 2 6 interleaved")
for layout in "${layouts[@]}"; do
  read -r processes replicas stages schedule <<<"${layout}"
  expect_same "${processes} processes, ${replicas} replicas, ${stages} stages, ${schedule}" \
    "$("${launch}" "--processes=${processes}" -- "${train}" "--replicas=${replicas}" "--stages=${stages}" \
      "--schedule=${schedule}" "${options[@]}" | last_line)"
done

# The trace must have the workers of all processes.
trace="${TEST_TMPDIR:-/tmp}/trace.json"
"${launch}" --processes=4 -- "${train}" --replicas=2 --steps=1 "--text=$3" "--trace=${trace}" >/dev/null
for what in '"replica 0"' '"replica 1"' '"worker 0"' '"worker 1"' '"F0.0"' '"B1.1"'; do
  grep -q "${what}" "${trace}" || { echo "the trace lacks ${what}"; failed=1; }
done

# With another number of steps the hash must differ, because a hash that never changes would prove
# nothing.
other="$("${train}" --stages=1 --steps=19 "--text=$3" | last_line)"
[[ ${other} != "${alone}" ]] || { echo "19 steps give the hash of 20"; failed=1; }
exit "${failed}"
