#!/usr/bin/env bash
# Tests a run that loses a process halfway (kill -9) and is started again. It must go on from its
# last checkpoint and end with the parameters of an undisturbed run.
#
#   restart_test.sh launch|torchrun LANGUAGE_MODEL TEXT LAUNCH
#
# With `launch`, our own launcher, the test gives the same command again. torchrun restarts by
# itself (--max-restarts). If there is no torchrun the test is skipped, and its report says so.
set -euo pipefail
launcher="$1"
program="${PWD}/$2"
launch="${PWD}/$4"
steps=200
work="${TEST_TMPDIR:=$(mktemp -d)}"
options=("--text=${PWD}/$3" --length=48 --width=16 --heads=2 --blocks=2 --batch=6 --chunks=3 "--steps=${steps}"
  --warm_up=4 --dropout=0.1 --threads=1 --learning_rate=0.02 --validate_every=1000 --validation_rows=3 --sample=0)

# shellcheck source=tools/testing/libtorch_python.sh
source tools/testing/libtorch_python.sh
[[ ${launcher} != torchrun ]] ||
  use_libtorch_python torchrun_restart "${program}" torchrun distributed/run.py torch.distributed.run
# These variables may belong to a run of which this test is a part.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT
export OMP_NUM_THREADS=1

fail() {
  echo "FAILED: $*"
  tail -n 30 "${work}"/*.log
  exit 1
}
hash_of() { grep -o 'parameters [0-9a-f]\{16\}$' "$1" | cut -d' ' -f2; }

"${program}" "${options[@]}" --stages=2 >"${work}/alone.log" 2>&1 || fail "alone"
alone="$(hash_of "${work}/alone.log")" || fail "no hash"
echo "undisturbed: ${alone}"

# The command is a file and not `bash -c`, because torchrun replaces $$ and the like in arguments.
cat >"${work}/each.sh" <<'EACH'
echo $$ >>"$1.${RANK}.pids"
exec "${@:2}"
EACH
# run NAME: runs two processes, each of which leaves its number in NAME.RANK.pids.
run() {
  local -a each=(bash "${work}/each.sh" "${work}/$1" "${program}" "${options[@]}" "--save=${work}/$1/last" --save_every=5
    --resume_saved)
  case "${launcher}" in
    launch) "${launch}" --processes=2 -- "${each[@]}" ;;
    torchrun)
      python3 -m torch.distributed.run --no-python --standalone --nproc-per-node=2 --max-restarts=2 "${each[@]}"
      ;;
  esac
}

# is_saved NAME LAUNCHER_PID: waits for a checkpoint of the run. Fails if the run ends before there
# is one.
is_saved() {
  local tries
  for ((tries = 0; tries < 12000; ++tries)); do
    [[ ! -e ${work}/$1/last/progress.safetensors ]] || return 0
    kill -0 "$2" 2>/dev/null || return 1
    sleep 0.01
  done
  return 1
}

# lose RANK: makes a run in which that rank is killed after the first checkpoint.
lose() {
  local name="lose$1" code=0 runner after
  rm -rf "${work:?}/${name}"*
  mkdir -p "${work}/${name}"
  run "${name}" >"${work}/${name}.log" 2>&1 &
  runner=$!
  is_saved "${name}" "${runner}" || fail "no checkpoint"
  kill -KILL "$(cat "${work}/${name}.$1.pids")" || fail "rank $1 has ended before it could be killed"
  wait "${runner}" || code=$?
  if [[ ${launcher} == launch ]]; then
    # The launcher must name the killed rank. Then the test gives the same command again.
    [[ ${code} -eq 137 ]] || fail "exit code ${code} instead of 128 + SIGKILL"
    grep -q "the failure began with rank $1" "${work}/${name}.log" || fail "the launcher does not name rank $1"
    grep -q "rank $1 .* is gone" "${work}/${name}.log" || fail "the other rank does not name rank $1"
    run "${name}" >"${work}/${name}.again.log" 2>&1 || fail "the second start"
    cat "${work}/${name}.again.log" >>"${work}/${name}.log"
  else
    [[ ${code} -eq 0 ]] || fail "torchrun ends with ${code}"
  fi
  [[ $(cat "${work}/${name}".{0,1}.pids | sort -u | wc -l) -eq 4 ]] || fail "not two processes, twice"
  after="$(grep -o 'resumed after step [0-9]*' "${work}/${name}.log" | cut -d' ' -f4)" || fail "not resumed"
  [[ ${after} -ge 5 && ${after} -lt ${steps} ]] || fail "resumed after step ${after}"
  [[ $(hash_of "${work}/${name}.log") == "${alone}" ]] ||
    fail "resumed after step ${after}: parameters $(hash_of "${work}/${name}.log") instead of ${alone}"
  echo "${launcher}, rank $1 killed, resumed after step ${after}: the same"
}
lose 1
lose 0
echo PASSED
