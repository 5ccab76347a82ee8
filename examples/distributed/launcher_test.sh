#!/usr/bin/env bash
# The example under a launcher of others ends with the parameters of one process.
#
#   launcher_test.sh torchrun|mpirun TRAIN TEXT
#
# Where there is no such launcher the test is skipped, and its report says so: tools/ci counts it as
# neither passed nor failed.
set -euo pipefail
launcher="$1"
train="${PWD}/$2"
options=(--steps=6 "--text=${PWD}/$3")

skip() {
  echo "SKIPPED: $1"
  [[ -z ${XML_OUTPUT_FILE:-} ]] ||
    printf '<testsuites><testsuite><testcase name="%s" status="notrun"><skipped message="%s"/></testcase></testsuite></testsuites>\n' \
      "${launcher}" "$1" >"${XML_OUTPUT_FILE}"
  exit 0
}

# PyTorch's launcher is a part of the LibTorch that the program is linked with, if that came as wheels.
# tools/torchrun/torchrun.sh fetches what its Python needs besides.
prepare_torchrun() {
  local library site
  library="$(ldd "${train}" | awk '$1 == "libtorch_cpu.so" { print $3 }')"
  site="$(dirname "$(dirname "$(dirname "$(realpath "${library}")")")")"
  [[ -f ${site}/torch/distributed/run.py ]] || skip "no torchrun: the LibTorch of ${site} did not come with its Python"
  PYTHONPATH="${site}"
  local -a fetched
  shopt -s nullglob
  fetched=("${GPIPE_CACHE:-$(dirname "${site}")}"/torchrun-*[0-9a-f])
  [[ ${#fetched[@]} -eq 0 ]] || PYTHONPATH+=":${fetched[0]}"
  export PYTHONPATH
  # The wheels are not compiled, and cannot be in a sandbox: that takes longer than all the rest.
  export PYTHONPYCACHEPREFIX="${TEST_TMPDIR}/compiled"
  python3 -c 'import torch.distributed.run' >"${TEST_TMPDIR}/import" 2>&1 || {
    cat "${TEST_TMPDIR}/import"
    skip "no torchrun: this Python cannot run that of ${site}; tools/torchrun/torchrun.sh fetches what it needs"
  }
}

run() { # PROCESSES ARGUMENTS...
  local processes="$1"
  shift
  case "${launcher}" in
    torchrun)
      # Its store listens at a port that it finds by itself.
      python3 -m torch.distributed.run --no-python --standalone "--nproc-per-node=${processes}" "${train}" "$@"
      ;;
    mpirun)
      # Root must ask, and more ranks than cores must be allowed.
      mpirun --allow-run-as-root --oversubscribe --bind-to none -n "${processes}" "${train}" "$@"
      ;;
  esac
}

case "${launcher}" in
  torchrun) prepare_torchrun ;;
  mpirun) [[ -n "$(type -P mpirun)" ]] || skip "no mpirun on PATH (Debian: openmpi-bin)" ;;
  *) echo "no launcher ${launcher}"; exit 1 ;;
esac
# Of a run in which this test itself is.
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

# All fail, and the launcher says so. torchrun also says why: each process has left it the reason.
if run 2 "${options[@]}" --text=/nonexistent >"${TEST_TMPDIR}/out" 2>"${TEST_TMPDIR}/err"; then
  echo "${launcher} hides that processes fail"
  failed=1
fi
if run 2 "${options[@]}" --stages=1 >"${TEST_TMPDIR}/out" 2>"${TEST_TMPDIR}/err"; then
  echo "${launcher} hides that a pipeline cannot be made"
  failed=1
fi
[[ ${launcher} != torchrun ]] || expect grep -q 'traceback : .*process' "${TEST_TMPDIR}/err"
tail -n 25 "${TEST_TMPDIR}/err"
exit "${failed}"
