#!/usr/bin/env bash
# Prints a folder for PYTHONPATH, with Python's transformers and what that needs beside the LibTorch
# that is there already (third_party/libtorch), which is its torch. The first call downloads the
# pinned wheels (54 MB), once for all clones. //models:transformers_live_test and
# //gpipe/saving:checkpoint_live_test (safetensors) need them, and are skipped without them.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=tools/wheels.sh
source "${here}/../wheels.sh"
requirements="${here}/requirements.txt"

fetch_wheels "transformers-$(sha256sum "${requirements}" | cut -c1-8)" "Python's transformers (54 MB)" transformers \
  "${requirements}" "python3 is 3.11 on x86-64, for which these wheels are; then call again."
