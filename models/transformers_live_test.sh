#!/usr/bin/env bash
# Python's transformers reads what //models:hugging_face writes, and the reverse: transformers_live.py, or
# transformers_families.py, live.
#
#   transformers_live_test.sh PROGRAM SCRIPT FILE [ARGUMENT...]
#
# FILE lies beside what the script imports. With WHEELS=peft in the environment it may import that, too.
#
# Where there is no transformers (tools/transformers/transformers.sh fetches it) the test is skipped, and its report says
# so.
set -euo pipefail
# shellcheck source=tools/testing/libtorch_python.sh
source tools/testing/libtorch_python.sh
use_libtorch_python transformers_live "$1" transformers __init__.py transformers
# The test takes the pinned transformers, not another version that this machine has.
[[ -d ${PYTHONPATH#*:}/transformers ]] || skip transformers_live "no pinned transformers: tools/transformers/transformers.sh fetches it"

if [[ -n ${WHEELS:-} ]]; then
  more="$(wheels_of "${WHEELS}")"
  [[ -d ${more} ]] || skip transformers_live "no pinned ${WHEELS}: tools/${WHEELS}/${WHEELS}.sh fetches it"
  PYTHONPATH+=":${more}"
fi
PYTHONPATH+=":$(dirname "$3")"
# Llama's sums in float32 depend on how wide the CPU's vectors are, so LibTorch takes the
# instructions that all CPUs have.
export ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1
# Python must find no folders of Hugging Face's libraries but those that it is given.
export HF_HUB_OFFLINE=1 HF_HOME="${TEST_TMPDIR}/home"
python3 "$2" "$1" "${@:3}"
