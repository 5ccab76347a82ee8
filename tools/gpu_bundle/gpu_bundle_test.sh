#!/usr/bin/env bash
# Tests the bundle: packs it, unpacks it elsewhere, and runs its programs on the CPU.
#   gpu_bundle_test.sh pack.sh RUN_SCRIPT KIND:PROGRAM...
set -uo pipefail
packer="${PWD}/$1"
programs=("${@:2}")
torch="$(ldd "${3#*:}" | awk '$1 == "libtorch.so" {print $3}')"
torch="${torch%/lib/libtorch.so}"
# The full version and the short one, such as 2.15.0+cu132 and 2.15.
full="$(cat "${torch}"/{build-version,version.py} 2>/dev/null | grep -m 1 -oE '[0-9]+\.[0-9]+\.[0-9]+[a-z0-9.+]*')"
version="$(grep -oE '^[0-9]+\.[0-9]+' <<<"${full}")"
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}
# expect CODE TEXT COMMAND...: the command must end with CODE and print TEXT.
expect() {
  local code
  "${@:3}" >"${work}/log" 2>&1
  code=$?
  [[ ${code} -eq $1 ]] && grep -qF -- "$2" "${work}/log" && return
  fail "exit code ${code}, expected $1 and '$2': ${*:3}"
  cat "${work}/log" >&2
}

# shellcheck disable=SC2317 # `expect` calls it
pack() { "${packer}" "$@" "${programs[@]}"; }
expect 2 "unknown flag --ouput" pack --ouput=x.tar.xz
expect 2 "give a name that ends in .tar.xz" pack --output="${work}"
expect 2 "--most_mib=no" pack --output="${work}/x.tar.xz" --most_mib=no
# Packs only three programs, because packing takes most of this test's time. They already take more
# than 1 MiB.
expect 1 "more than --most_mib=1" "${packer}" --output="${work}/x.tar.xz" --most_mib=1 "${programs[@]:0:4}"
[[ ! -e ${work}/x.tar.xz ]] || fail "an archive that is too large was written"
expect 0 "written: ${work}/gpu.tar.xz" pack --output="${work}/gpu.tar.xz"
grep -qF " programs for LibTorch ${full}" "${work}/log" || fail "nothing tells for which LibTorch it is: ${full}"
# Kernels must be noted as missing if nvcc compiled none, and only then.
for program in "${programs[@]}"; do [[ ${program} != *spin_kernel_cuda_test ]] || spins="${program#*:}"; done
noted="$(grep -c 'no CUDA Toolkit compiled the kernels' "${work}/log")"
compiled="$(readelf --section-headers --wide "${spins}" | grep -c ' \.nv_fatbin ')"
[[ $((noted + compiled)) -eq 1 ]] || fail "kernels compiled: ${compiled}, noted as missing: ${noted}"
tar -C "${work}" -xf "${work}/gpu.tar.xz" || fail "the archive cannot be unpacked"
run="${work}/gpipe_gpu/run.sh"
compgen -G "${work}/gpipe_gpu/lib/*torch*" >/dev/null && fail "LibTorch was packed"

expect 0 "program/resnet101_speed" "${run}" --list
expect 0 "LibTorch ${version} (these programs were built with ${full})" "${run}" --help
expect 2 "--device=gpu: give cuda or cpu" "${run}" --device=gpu
expect 2 "has no lib/libtorch.so" env LIBTORCH_ROOT="${work}" "${run}" --device=cpu
mkdir -p "${work}/old/lib" && touch "${work}/old/lib/libtorch.so" && echo 2.5.1+cpu >"${work}/old/build-version"
expect 2 "is LibTorch 2.5.1+cpu; this bundle was built with ${full}: give it a LibTorch ${version}" env LIBTORCH_ROOT="${work}/old" "${run}" --device=cpu
echo "${version}.0+cpu" >"${work}/old/build-version"
expect 2 "LibTorch ${version}.0+cpu in ${work}/old/lib has no libtorch_cuda.so" env LIBTORCH_ROOT="${work}/old" "${run}"
expect 2 "set LIBTORCH_ROOT" env -u LIBTORCH_ROOT PATH="${work}/nothing:/bin" /bin/bash -c "hash -r; mkdir -p '${work}/bin'
  for tool in bash dirname cat sed grep; do ln -sf /bin/\${tool} '${work}/bin/'; done; PATH='${work}/bin' '${run}' --device=cpu"

mv "${work}/gpipe_gpu/libtorch_version" "${work}/libtorch_version"
expect 2 "libtorch_version, which says for which LibTorch this bundle is, is missing" "${run}" --device=cpu
# A bundle for another version of LibTorch must be refused.
echo 1.2.3+cu90 >"${work}/gpipe_gpu/libtorch_version"
expect 2 "is LibTorch ${full}; this bundle was built with 1.2.3+cu90: give it a LibTorch 1.2" env LIBTORCH_ROOT="${torch}" "${run}" --device=cpu
mv "${work}/libtorch_version" "${work}/gpipe_gpu/libtorch_version"

export LIBTORCH_ROOT="${torch}"
expect 0 '"program": "gpipe_testing_bitwise_cuda_test", "kind": "test", "device": "cpu", "exit_code": 0' \
  "${run}" --device=cpu --only='*bitwise*' --output="${work}/results"
expect 0 '"failed": 0' grep '"summary": true' "${work}/results/summary.json"
grep -q '"passed": 0' "${work}/results/summary.json" && fail "no test passed"
python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "${work}/results/summary.json" ||
  fail "the summary is not JSON"
# Runs the tests as README.md shows it. No test may fail, and tests that need a GPU must be named.
expect 0 '"program": "gpipe_internal_graphs_device_graph_cuda_test", "kind": "test", "device": "none", "exit_code": 0' \
  "${run}" --device=cpu --output="${work}/results" --only='*device_graph*' --only='gpu_test/*' --only='*peer_access*' --only='*bitwise*'
grep -qF "gpu_test/gpipe_tests_graphs_graph_failure_cuda_test is not run: what it tests needs a GPU" "${work}/log" ||
  fail "nothing tells of a test that needs a GPU"
expect 0 '"programs": 10' grep '"summary": true' "${work}/results/summary.json"
expect 0 '"failed": 0' grep '"summary": true' "${work}/results/summary.json"
grep -q '"skipped": 0' <(grep '"summary": true' "${work}/results/summary.json") && fail "nothing was left out"
# The programs must run in the order of the patterns, each once.
expect 0 "device_graph" grep -m 1 '"program"' "${work}/results/summary.json"
expect 0 "1" grep -c device_graph_cuda_test.log "${work}/results/summary.json"
expect 1 "no program matches --only=quux" "${run}" --device=cpu --only='*bitwise*' --only=quux --output="${work}/results"
expect 1 "no program matches --only=quux" "${run}" --device=cpu --only=quux --output="${work}/results"
expect 0 "measured" "${run}" resnet101_speed --experiment=pipeline-2 --devices=cpu,cpu --samples=8 --batch_size=4 --epochs=1
expect 2 "there is no program quux" "${run}" quux
# A program can be named as --list prints it.
expect 0 "exit code 124" bash -c "'${run}' --timeout=1 resnet101_speed --devices=cpu,cpu --scale=smoke; echo exit code \$?"
expect 2 "--timeout=0: give seconds" "${run}" --timeout=0
# A test that is called by its name obeys the same rules.
expect 0 "[  PASSED  ]" "${run}" --device=cpu gpipe_testing_bitwise_cuda_test
if ! nvidia-smi >/dev/null 2>&1; then
  expect 1 "this machine has no GPU" "${run}" gpipe_internal_graphs_device_graph_cuda_test --gtest_filter='*RecordingRunsNothing'
fi
expect 0 "Google Test" "${run}" test/gpipe_testing_bitwise_cuda_test --help
expect 0 '"program": "gpipe_testing_bitwise_cuda_test"' "${run}" --device=cpu --only='test/*bitwise*' --output="${work}/results"
if ! nvidia-smi >/dev/null 2>&1; then
  # A test that finds no GPU has shown nothing, so it must count as failed.
  expect 1 '"failed": 1' "${run}" --only='*bitwise*' --output="${work}/results"
fi

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
