#!/usr/bin/env bash
# Tests that the example under torchrun or mpirun ends with the parameters of one process.
#
#   launcher_test.sh torchrun|mpirun TRAIN TEXT
#
# Without such a launcher the test is skipped, and its report says so: tools/ci counts it as
# neither passed nor failed.
set -euo pipefail
launcher="$1"
train="${PWD}/$2"
options=(--steps=6 "--text=${PWD}/$3")

# shellcheck source=tools/testing/libtorch_python.sh
source tools/testing/libtorch_python.sh

run() { # PROCESSES ARGUMENTS...
  local processes="$1"
  shift
  case "${launcher}" in
    torchrun)
      # The launcher's store listens at a port that the launcher finds by itself.
      python3 -m torch.distributed.run --no-python --standalone "--nproc-per-node=${processes}" "${train}" "$@"
      ;;
    mpirun)
      # Without these flags mpirun refuses root, and more ranks than cores.
      mpirun --allow-run-as-root --oversubscribe --bind-to none -n "${processes}" "${train}" "$@"
      ;;
  esac
}

case "${launcher}" in
  # PyTorch's launcher comes with the LibTorch that the program is linked with, if that LibTorch
  # came as wheels.
  torchrun) use_libtorch_python torchrun "${train}" torchrun distributed/run.py torch.distributed.run ;;
  mpirun) [[ -n "$(type -P mpirun)" ]] || skip mpirun "no mpirun on PATH (Debian: openmpi-bin)" ;;
  *) echo "no launcher ${launcher}"; exit 1 ;;
esac
# These variables may belong to a run of which this test is a part.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1

hash_of() { sed -n 's/^parameters \([0-9a-f]\{16\}\)$/\1/p'; }
alone="$("${train}" --stages=1 "${options[@]}" | hash_of)"
[[ ${#alone} -eq 16 ]] || { echo "no hash: ${alone}"; exit 1; }
echo "alone: ${alone}"

failed=0
expect() {
  if ! "$@"; then
    echo "FAILED: $*"
    failed=1
  fi
}
for layout in "2" "4 --replicas=2"; do
  read -ra words <<<"${layout}"
  run "${words[0]}" "${words[@]:1}" "${options[@]}" >"${TEST_TMPDIR}/out" 2>"${TEST_TMPDIR}/err" || {
    cat "${TEST_TMPDIR}/err"
    failed=1
  }
  found="$(hash_of <"${TEST_TMPDIR}/out")"
  echo "${launcher}, ${layout} processes: ${found}"
  expect [ "${found}" = "${alone}" ]
  expect grep -q "started by .*${launcher}: rank 0" "${TEST_TMPDIR}/err"
done

# fails TEXT ARGUMENTS...: the launcher must report the failure, and TEXT must be said once.
fails() {
  local text="$1"
  shift
  if run 2 "${options[@]}" "$@" >"${TEST_TMPDIR}/out" 2>"${TEST_TMPDIR}/err"; then
    echo "${launcher} hides that it fails: $*"
    failed=1
  fi
  expect [ "$(grep -c -e "error: ${text}" "${TEST_TMPDIR}/err")" -eq 1 ]
}
# Only one process finds this mistake, after the training.
fails "--trace=/nonexistent/trace: cannot be written" --trace=/nonexistent/trace
# All processes find this wrong usage. torchrun also says why in its summary, because each process
# has left it the reason.
fails "--text=/nonexistent: cannot read /nonexistent: No such file" --text=/nonexistent
fails "--stages=1: .* for 1 process, and there are 2" --stages=1
[[ ${launcher} != torchrun ]] || expect grep -q 'traceback : --stages=1: .*process' "${TEST_TMPDIR}/err"
tail -n 25 "${TEST_TMPDIR}/err"
exit "${failed}"
