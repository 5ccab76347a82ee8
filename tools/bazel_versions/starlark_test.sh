#!/usr/bin/env bash
# Tests starlark.sh with a made-up pip: the package is found, fetched once, or refused.
set -uo pipefail

script="${PWD}/tools/bazel_versions/starlark.sh"
root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
failures=0
version="$(sed -n 's/^starlark-pyo3==\([0-9.]*\).*/\1/p' tools/bazel_versions/requirements.txt)"

# A python3 that says that it is 3.7, and whose pip fails, or makes the package that PIP_MAKES
# names.
mkdir -p "${root}/bin"
cat >"${root}/bin/python3" <<'EOF'
#!/usr/bin/env bash
[[ $1 == -c ]] && { echo python3.7; exit; }
[[ $3 == --version ]] && exit "${NO_PIP:-0}"
echo "$*" >>"${ROOT}/calls"
while [[ $# -gt 0 && $1 != --target ]]; do shift; done
[[ -n ${PIP_MAKES:-} ]] || { printf %s "${PIP_SAYS-no such host}"; exit 1; }
mkdir -p "$2/${PIP_MAKES}"
EOF
chmod +x "${root}/bin/python3"

# check NAME CODE TEXT [VARIABLE=VALUE...]: the script must end with CODE and print TEXT.
check() {
  local name="$1" code="$2" text="$3" output actual
  shift 3
  output="$(env PATH="${root}/bin:/usr/bin:/bin" ROOT="${root}" GPIPE_CACHE="${root}/cache" "$@" "${script}" 2>&1)"
  actual=$?
  [[ ${actual} -eq ${code} && ${output} == *"${text}"* ]] && return 0
  printf 'FAILED: %s: exit %s, expected %s with "%s":\n%s\n' "${name}" "${actual}" "${code}" "${text}" "${output}" >&2
  failures=$((failures + 1))
}

folder="${root}/cache/starlark-pyo3-${version}-python3.7"
check "no pip" 1 "apt-get install python3-pip" NO_PIP=1
check "no network" 1 "no such host"
check "no network: what to do" 1 "Check the network"
check "a disk that fills" 1 "the disk of ${root}/cache was full" PIP_SAYS="OSError: [Errno 28] No space left on device"
check "a disk that fills: not even a log" 1 "set GPIPE_CACHE to a folder on a larger disk" PIP_SAYS=
check "a cache that cannot be" 1 "Set GPIPE_CACHE" GPIPE_CACHE=/proc/none
check "a wheel without it" 1 "requirements.txt is wrong" PIP_MAKES=other
check "downloaded" 0 "${folder}" PIP_MAKES=starlark
[[ -d ${folder}/starlark ]] || { echo "FAILED: content"; failures=$((failures + 1)); }
grep -q -- --require-hashes "${root}/calls" || { echo "FAILED: hashes are not asked for"; failures=$((failures + 1)); }
rm "${root}/calls"
check "found" 0 "${folder}"
[[ ! -e ${root}/calls ]] || { echo "FAILED: downloaded again"; failures=$((failures + 1)); }
rmdir "${folder}/starlark"
check "damaged" 1 "is damaged"

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
