#!/usr/bin/env bash
# Prints the folder that has starlark-pyo3, a Starlark interpreter for Python. The first call downloads the pinned wheel
# (3.5 MB), once for all clones; each version of Python has its own.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=tools/wheels.sh
source "${here}/../wheels.sh"
requirements="${here}/requirements.txt"
version="$(sed -n 's/^starlark-pyo3==\([0-9.]*\).*/\1/p' "${requirements}")"
python="$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null)" ||
  die "python3 is needed." "Debian, Ubuntu: apt-get install python3-pip"

fetch_wheels "starlark-pyo3-${version}-${python}" "starlark-pyo3 ${version} (3.5 MB)" starlark "${requirements}" \
  "${requirements} has a wheel for ${python}; then call again."
