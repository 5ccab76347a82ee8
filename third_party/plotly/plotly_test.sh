#!/usr/bin/env bash
# Tests plotly.sh with a made-up pip: the library is found, fetched once, or refused.
set -uo pipefail

script="${PWD}/third_party/plotly/plotly.sh"
root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
failures=0
version="$(sed -n 's/^plotly==\([0-9.]*\).*/\1/p' third_party/plotly/requirements.txt)"

# A python3 whose pip fails, or makes a wheel with the file ${PIP_MAKES}.
mkdir -p "${root}/bin" "${root}/wheel"
cat >"${root}/bin/python3" <<'EOF'
#!/usr/bin/env bash
[[ $3 == --version ]] && exit "${NO_PIP:-0}"
echo called >>"${ROOT}/calls"
while [[ $# -gt 0 && $1 != --dest ]]; do shift; done
[[ -n ${PIP_MAKES:-} ]] || { echo "${PIP_SAYS:-no such host}"; exit 1; }
exec /usr/bin/env -i PATH=/usr/bin:/bin python3 -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/plotly-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr(sys.argv[2], "draw()")' "$2" "${PIP_MAKES}"
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

file="${root}/cache/plotly-${version}/plotly.min.js"
check "no pip" 1 "apt-get install python3-pip" NO_PIP=1
check "no network" 1 "no such host"
check "no network: what to do" 1 "Check the network"
check "a disk that fills" 1 "the disk of ${root}/cache is full" PIP_SAYS="OSError: [Errno 28] No space left on device"
check "a cache that depends on the folder" 1 "does not begin with a /" GPIPE_CACHE=cache
check "a cache that cannot be" 1 "Set GPIPE_CACHE" GPIPE_CACHE=/proc/none
check "a wheel without it" 1 "requirements.txt is wrong" PIP_MAKES=plotly/other.js
check "downloaded" 0 "${file}" PIP_MAKES=plotly/package_data/plotly.min.js
[[ "$(<"${file}")" == "draw()" ]] || { echo "FAILED: content"; failures=$((failures + 1)); }
rm "${root}/calls"
check "found" 0 "${file}"
[[ ! -e ${root}/calls ]] || { echo "FAILED: downloaded again"; failures=$((failures + 1)); }
rm "${file}"
check "damaged" 1 "is damaged"

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
