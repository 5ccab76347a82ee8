#!/usr/bin/env bash
# Runs a test that is written in Python: py_test.sh FILE [ARGUMENT...].
set -euo pipefail

# shellcheck source=experiments/report/python.sh
source experiments/report/python.sh
unset BUILD_WORKING_DIRECTORY
PYTHONPATH="${PWD}/experiments/report" exec "${python}" "$@"
