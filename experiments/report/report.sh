#!/usr/bin/env bash
# Starts report.py with a Python that has Jinja, which Debian installs for its own Python only.
set -euo pipefail

if [[ -d ${BASH_SOURCE[0]}.runfiles/gpipe ]]; then
  root="$(cd "${BASH_SOURCE[0]}.runfiles/gpipe" && pwd)"
else
  root="${PWD}" # of `bazel run` and of tests
fi
here="${root}/experiments/report"
[[ -f ${here}/report.py ]] || {
  echo "report: start it with tools/bazel run //experiments/report -- --output=DIR" >&2
  exit 2
}
for python in python3 /usr/bin/python3; do
  "${python}" -c "import jinja2" 2>/dev/null || continue
  export GPIPE_REPORT_ROOT="${root}" GPIPE_REPORT_PLOTLY="${root}/../plotly/plotly.min.js" PYTHONDONTWRITEBYTECODE=1
  exec "${python}" "${here}/report.py" "$@"
done
echo "report: no python3 with Jinja. Debian, Ubuntu: apt-get install python3-jinja2 (tools/bazel does this by itself)" >&2
exit 1
