#!/usr/bin/env bash
# python_test.sh NAME EXTENSION FILE LAUNCH: runs pytest on FILE with the package as it is in the
# wheel.
#
# The test is skipped, and its report says so, if the extension could not be built or
# tools/pytest/pytest.sh has not been called.
set -euo pipefail
# shellcheck source=tools/testing/libtorch_python.sh
source tools/testing/libtorch_python.sh
name="$1" extension="$2" file="$3"
export GPIPE_LAUNCH="${PWD}/$4"
[[ "$(head -c4 "${extension}" | tail -c3)" == ELF ]] || skip "${name}" "$(<"${extension}")"
use_libtorch_python "${name}" "${extension}" pytest __init__.py torch,pytest
# hugging_face_test and a part of guide_test need transformers.
PYTHONPATH+=":$(wheels_of transformers)"
if [[ ${name} == hugging_face_test ]]; then
  python3 -c "import transformers" 2>"${TEST_TMPDIR}/import" || skip "${name}" "tools/transformers/transformers.sh fetches what it needs"
fi

python3 python/wheel.py --out="${TEST_TMPDIR}/wheel" >"${TEST_TMPDIR}/log"
python3 -m zipfile -e "$(<"${TEST_TMPDIR}/log")" "${TEST_TMPDIR}/site"
export PYTHONPATH="${TEST_TMPDIR}/site:${PYTHONPATH}"
python3 -m pytest -q -p no:cacheprovider --basetemp="${TEST_TMPDIR}/pytest" -W error::pytest.PytestUnraisableExceptionWarning \
  --rootdir="$(dirname "${file}")" "${file}"
