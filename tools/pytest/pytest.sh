#!/usr/bin/env bash
# Prints a folder for PYTHONPATH, with pytest and what torch needs beside the LibTorch that is there
# already (third_party/libtorch), which is its torch. The first call downloads the pinned wheels (11
# MB), once for all clones. The tests of //python need them, and are skipped without them.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=tools/wheels.sh
source "${here}/../wheels.sh"
requirements="${here}/requirements.txt"

fetch_wheels "pytest-$(sha256sum "${requirements}" | cut -c1-8)" "pytest (11 MB)" pytest "${requirements}" \
  "python3 is 3.11, for which LibTorch's wheels are; then call again."
