#!/usr/bin/env bash
# Prints a folder for PYTHONPATH, with Python's peft and what that needs beside
# tools/transformers/transformers.sh. The first call downloads the pinned wheels (1.4 MB), once for
# all clones. //models:peft_live_test needs them, and is skipped without them.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=tools/wheels.sh
source "${here}/../wheels.sh"
requirements="${here}/requirements.txt"

fetch_wheels "peft-$(sha256sum "${requirements}" | cut -c1-8)" "Python's peft (1.4 MB)" peft \
  "${requirements}" "python3 is 3.11 on x86-64, for which these wheels are; then call again."
