#!/usr/bin/env bash
# Prints a folder for PYTHONPATH, with what PyTorch's launcher needs beside the LibTorch that is
# there already (third_party/libtorch), of which it is a part. The first call downloads the pinned
# wheels (9 MB), once for all clones. //examples/distributed:torchrun_test needs them, and is
# skipped without them.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=tools/wheels.sh
source "${here}/../wheels.sh"
requirements="${here}/requirements.txt"

fetch_wheels "torchrun-$(sha256sum "${requirements}" | cut -c1-8)" "what torchrun needs (9 MB)" sympy "${requirements}" \
  "python3 is 3.11, for which LibTorch's wheels are; then call again."
