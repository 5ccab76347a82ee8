#!/usr/bin/env bash
# Starts report.py or pictures.py, depending on the name under which this script is called.
set -euo pipefail

program="${0##*/}"
root="${PWD}" # of `bazel run`
[[ ! -d $0.runfiles/gpipe ]] || root="$(cd "$0.runfiles/gpipe" && pwd)"
here="${root}/experiments/report"
if [[ ! -f ${here}/${program}.py ]]; then
  echo "${program}: start it with tools/bazel run //experiments/report:${program} -- --help" >&2
  exit 2
fi
# shellcheck source=experiments/report/python.sh
source "${here}/python.sh"
export GPIPE_REPORT_ROOT="${root}" GPIPE_REPORT_PLOTLY="${root}/../plotly/plotly.min.js"
exec "${python}" "${here}/${program}.py" "$@"
