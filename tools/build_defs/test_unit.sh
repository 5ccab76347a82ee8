#!/usr/bin/env bash
# Prints several test sources as one (gpipe_cc_tests). The anonymous namespace of each source gets a
# name, so that equal names in two sources do not collide. Compilers and test reports still name the
# file and the line.
#   test_unit.sh FILE...
set -euo pipefail
for file in "$@"; do
  name="$(basename "${file}" .cc)"
  printf '#line 1 "%s"\n' "${file}"
  sed "s/^namespace {\$/namespace ${name}_file {} using namespace ${name}_file; namespace ${name}_file {/" "${file}"
done
