#!/usr/bin/env bash
# Python's safetensors reads the checkpoints that one process and two have saved: checkpoint_live.py, live.
#
#   checkpoint_live_test.sh PROGRAM SCRIPT LAUNCH
#
# Where there is no safetensors (tools/transformers/transformers.sh fetches it) the test is skipped, and its report says
# so.
set -euo pipefail
program="$1"
# shellcheck source=tools/testing/libtorch_python.sh
source tools/testing/libtorch_python.sh
use_libtorch_python checkpoint_live "${program}" transformers __init__.py safetensors.torch
# The test must not use another version of safetensors that this machine may have.
[[ -d ${PYTHONPATH#*:}/safetensors ]] || skip checkpoint_live "no pinned safetensors: tools/transformers/transformers.sh fetches it"

unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1
"${program}" "${TEST_TMPDIR}/one" "${TEST_TMPDIR}/one.expected"
python3 "$2" "${TEST_TMPDIR}/one" "${TEST_TMPDIR}/one.expected"
"$3" --processes=2 -- "${program}" "${TEST_TMPDIR}/two" "${TEST_TMPDIR}/two.expected"
python3 "$2" "${TEST_TMPDIR}/two" "${TEST_TMPDIR}/two.expected"
echo PASSED
