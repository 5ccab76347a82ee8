#!/usr/bin/env bash
# Prints several test sources as one (gpipe_cc_tests). The anonymous namespace of each gets a name, so that what one
# declares in it does not meet what another does; compilers and test reports still name the file and the line.
#   test_unit.sh FILE...
set -euo pipefail
for file in "$@"; do
  name="$(basename "${file}" .cc)"
  printf '#line 1 "%s"\n' "${file}"
  sed "s/^namespace {\$/namespace ${name}_file {} using namespace ${name}_file; namespace ${name}_file {/" "${file}"
done
