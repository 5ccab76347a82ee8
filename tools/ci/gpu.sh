#!/usr/bin/env bash
# CI on a machine with a GPU. It runs the GPU tests, none of which may skip itself there, and each
# experiment once, small. .github/workflows/ci.yml calls it on GPU runners; docs/gpu_runners.md says
# what such a machine needs. The last line says how many tests and other checks passed and failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tools/ci/checks.sh
source tools/ci/checks.sh

check "a GPU is here" nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv
check "set-up" "${bazel}" info release
check "LibTorch" "${bazel}" fetch //third_party:torch
# Tests that need two GPUs are left out on a machine with one.
filters=requires-gpu-nvidia
if [[ $(nvidia-smi -L 2>/dev/null | grep -c '^GPU') -lt 2 ]]; then
  echo "one GPU: tests tagged multi_gpu are left out"
  filters+=,-multi_gpu
fi
tests "GPU tests" . --config=gpu --test_tag_filters="${filters}" //...
note_kernels
for experiment in resnet101_speed unet_speed amoebanetd_speed; do
  # If there is one GPU, all partitions share it: the flag lists it as many times as the deepest
  # pipeline needs.
  check "${experiment} on the GPU" "${bazel}" run "${flags[@]}" "//experiments/${experiment}" -- --scale=smoke \
    --ways=measured --devices=cuda:0,cuda:0,cuda:0,cuda:0,cuda:0,cuda:0,cuda:0,cuda:0
done

finish
