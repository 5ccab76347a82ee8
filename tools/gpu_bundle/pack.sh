#!/usr/bin/env bash
# Packs programs, with the shared libraries that they need except LibTorch's, into one archive for a GPU machine that
# has neither Bazel nor a network. Called by `tools/bazel run //tools/gpu_bundle -- --output=FILE`.
#
#   pack.sh [--output=FILE.tar.xz] [--most_mib=60] RUN_SCRIPT KIND:PROGRAM...
#
# KIND is test, gpu_test (one that needs a GPU), multi_gpu (one that needs two), benchmark, program, or file: a script
# that stands beside run.sh. README.md in this folder says how the archive is used.
set -euo pipefail

output="gpipe_gpu.tar.xz"
most_mib=60
arguments=()
for word; do
  case "${word}" in
    --output=*) output="${word#*=}" ;;
    --most_mib=*) most_mib="${word#*=}" ;;
    --help)
      echo "usage: tools/bazel run //tools/gpu_bundle -- [--output=FILE.tar.xz] [--most_mib=60]"
      exit 0
      ;;
    -*)
      echo "error: unknown flag ${word}; there are --output=FILE.tar.xz and --most_mib=N" >&2
      exit 2
      ;;
    *) arguments+=("${word}") ;;
  esac
done
[[ ${output} == /* ]] || output="${BUILD_WORKING_DIRECTORY:-${PWD}}/${output}"
if [[ ${output} != *.tar.xz || ! -d $(dirname "${output}") || ! -w $(dirname "${output}") || -d ${output} ]]; then
  echo "error: --output=${output}: give a name that ends in .tar.xz, in a folder that can be written" >&2
  exit 2
fi
[[ ${most_mib} =~ ^[1-9][0-9]*$ ]] || { echo "error: --most_mib=${most_mib}: give a whole number" >&2 && exit 2; }

without_kernels=0 programs=0
scratch="$(mktemp -d)"
trap 'rm -rf "${scratch}"' EXIT
root="${scratch}/gpipe_gpu"
mkdir -p "${root}/lib"

run_script="${arguments[0]}"
install -m 755 "${run_script}" "${root}/run.sh"

# The version of LibTorch for which the programs are made, and for which run.sh looks. It comes from
# the files of wheels or of an unpacked archive.
library="$(ldd "${arguments[1]#*:}" | awk '$1 == "libtorch.so" { print $3 }')"
version=""
for file in "${library%/lib/libtorch.so}"/{build-version,version.py}; do
  [[ -n ${version} || ! -r ${file} ]] || version="$(sed -n 's/^[^0-9]*\([0-9]*\.[0-9]*\.[0-9]*[a-z0-9.+]*\).*/\1/p' "${file}" | sed -n 1p)"
done
if [[ -z ${version} ]]; then
  echo "error: the LibTorch of ${arguments[1]#*:}, ${library:-which is not found}, has no build-version and no version.py: nothing says which one it is" >&2
  exit 1
fi
echo "${version}" >"${root}/libtorch_version"

# Libraries that every Linux has are not packed. LibTorch's are not packed, either, because the
# other machine has them in one folder.
system='^(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt|libutil|libresolv)\.so'
for argument in "${arguments[@]:1}"; do
  kind="${argument%%:*}" program="${argument#*:}"
  if [[ ${kind} == file ]]; then
    install -m 755 "${program}" "${root}/${program##*/}"
    continue
  fi
  programs=$((programs + 1))
  # The names of tests have their path, because several folders have a device_cuda_test.
  if [[ ${kind} == *test || ${kind} == multi_gpu ]]; then name="${program//\//_}"; else name="${program##*/}"; fi
  name="${kind}/${name}"
  if [[ -e ${root}/${name} ]]; then
    echo "error: two programs are called ${name}" >&2
    exit 1
  fi
  # A program that contains this text of spin_kernel_stub.cc has no kernels. Then all tests of the
  # order of kernels would fail.
  if grep -qF 'without a CUDA Toolkit, so it has no kernels' "${program}"; then without_kernels=$((without_kernels + 1)); fi
  install -D -m 755 "${program}" "${root}/${name}"
  strip --strip-unneeded "${root}/${name}"
  while read -r library _ path _; do
    if [[ ${path} == not ]]; then
      echo "error: ${program} needs ${library}, which is not here" >&2
      exit 1
    fi
    [[ ${library} =~ ${system} || ${path} == */torch/lib/* || ${path} == */nvidia/* || ${path} != /* ]] && continue
    [[ -e ${root}/lib/${library} ]] || install -m 644 "$(readlink -f "${path}")" "${root}/lib/${library}"
  done < <(ldd "${program}")
done

tar -C "${scratch}" --owner=0 --group=0 --sort=name --mtime='2019-11-28 00:00Z' -cf - gpipe_gpu |
  xz -6 -T 0 >"${scratch}/archive"
bytes="$(stat -c %s "${scratch}/archive")"
if [[ ${bytes} -gt $((most_mib << 20)) ]]; then
  echo "error: the archive has $(((bytes + (1 << 20) - 1) >> 20)) MiB, more than --most_mib=${most_mib}; the largest:" >&2
  du -ak "${root}" | sort -rn | sed -n '2,12p' >&2
  exit 1
fi
mv "${scratch}/archive" "${output}"
printf 'written: %s, %d.%d MiB, %d programs for LibTorch %s\n' "${output}" $((bytes >> 20)) \
  $(((bytes & 1048575) * 10 >> 20)) "${programs}" "${version}"
if [[ ${without_kernels} -gt 0 ]]; then
  echo "note: no CUDA Toolkit compiled the kernels of ${without_kernels} programs. Their tests of order, which must keep a stream busy, will fail on a GPU: set CUDA_HOME, or put nvcc on PATH, and pack again (docs/gpu_runners.md)"
fi
