#!/usr/bin/env bash
# Tests .ci/run with made-up parts: its options, and which steps it runs at the same time.
set -uo pipefail

clone="$(mktemp -d)"
trap 'rm -rf "${clone}"' EXIT
failures=0
mkdir -p "${clone}"/{.ci,tools/ci,third_party/libtorch,cache/bare/libtorch-9.1.0/torch}
cp .ci/run "${clone}/.ci"
cp tools/ci/checks.sh "${clone}/tools/ci"
cp third_party/libtorch/libtorch.sh "${clone}/third_party/libtorch"
# The first version is the default.
printf 'version %s cuda=13.0 nccl=2.30.7 tested=whole\n' "9.2.0 cxx=20" "9.1.0 cxx=17" >"${clone}/third_party/libtorch/versions.txt"

# made_up FILE: makes a script from stdin.
made_up() {
  { echo '#!/usr/bin/env bash' && cat; } >"${clone}/$1"
  chmod +x "${clone}/$1"
}
made_up tools/ci/cpu.sh <<'END'
echo "cpu: LibTorch <${GPIPE_LIBTORCH:-}>"
echo "1 passed, 0 failed"
END
made_up tools/ci/lint.sh <<'END'
echo "lint.sh $*: LibTorch <${GPIPE_LIBTORCH:-}>"
echo "1 passed, 0 failed"
END
made_up tools/ci/masked.sh <<'END'
exec "$@"
END
made_up tools/lint <<'END'
echo "tools/lint: LibTorch <${GPIPE_LIBTORCH:-}>"
END
made_up tools/bazel <<'END'
END
# This df tells of 99 GiB free, whatever this machine has.
mkdir "${clone}/bin"
made_up bin/df <<'END'
printf "Avail\n%s\n" "${FREE_KIB:-103809024}"
END

# check NAME CODE TEXT... -- [VARIABLE=VALUE...] -- [OPTION...]: .ci/run must end with CODE, and
# print each TEXT, and no !TEXT.
check() {
  local name="$1" code="$2" output actual text
  local -a texts=() variables=()
  shift 2
  while [[ $1 != -- ]]; do texts+=("$1") && shift; done
  shift
  while [[ $1 != -- ]]; do variables+=("$1") && shift; done
  shift
  output="$(env -u GPIPE_LIBTORCH -u GPIPE_LIBTORCH_VERSIONS -u LIBTORCH_ROOT PATH="${clone}/bin:${PATH}" \
    GPIPE_CI_CACHE="${clone}/cache" "${variables[@]}" \
    bash "${clone}/.ci/run" "$@" 2>&1)"
  actual=$?
  for text in "exit ${code}"$'\n' "${texts[@]}"; do
    if [[ ${text} == !* ]]; then
      [[ ${output} != *"${text#!}"* ]] && continue
    else
      [[ "exit ${actual}"$'\n'"${output}"$'\n' == *"${text}"* ]] && continue
    fi
    printf 'FAILED: %s: "%s" of: exit %s\n%s\n' "${name}" "${text}" "${actual}" "${output}" >&2
    failures=$((failures + 1))
  done
}

check "the default version, which is to be downloaded" 0 "cpu: LibTorch <>" "lint.sh : LibTorch <>" "!tools/lint:" "!NOTE: LibTorch" -- --
check "another version, which is at hand: lint runs beside" 0 "cpu: LibTorch <9.1.0>" "tools/lint: LibTorch <9.1.0>" \
  "lint.sh --tidy: LibTorch <9.1.0>" "NOTE: LibTorch 9.1.0, which is not the default" -- -- --libtorch=9.1.0
check "the variable is the same" 0 "cpu: LibTorch <9.1.0>" "NOTE: LibTorch 9.1.0" -- GPIPE_LIBTORCH=9.1.0 --
check "the option wins over it" 0 "cpu: LibTorch <9.1.0>" -- GPIPE_LIBTORCH=9.2.0 -- --libtorch=9.1.0
check "the default version, by its name" 0 "cpu: LibTorch <>" "!NOTE: LibTorch" -- -- --libtorch=9.2.0
[[ -d ${clone}/cache/ci-objects && -d ${clone}/cache/ci-objects-libtorch-9.1.0 && ! -e ${clone}/cache/ci-objects-libtorch-9.2.0 ]] || {
  echo "FAILED: where objects are kept: $(ls "${clone}/cache")" >&2
  failures=$((failures + 1))
}
check "too little disk" 1 "NOTE: disk: 14 GiB were free at the start" "FAILED: 15 GiB of disk are free" -- FREE_KIB=15728639 --
# Each mistake must be reported in one line, before anything is done.
check "an unknown version" 2 $'exit 2\n.ci/run: GPipe: GPIPE_LIBTORCH=9.0.0 is not a LibTorch version that this GPipe supports: 9.2.0, 9.1.0.\n' \
  "!===" -- -- --libtorch=9.0.0
for option in --libtorch --libtorch= --quick 9.1.0 ""; do
  check "an unknown option" 2 $'exit 2\n.ci/run: '"${option} is not a valid option: give --libtorch=VERSION"$', or nothing for the default version\n' \
    "!===" -- -- "${option}"
done
check "LIBTORCH_ROOT has another version" 2 $'exit 2\n.ci/run: LIBTORCH_ROOT=/nowhere is not LibTorch 9.1.0: unset it' "!===" \
  -- LIBTORCH_ROOT=/nowhere -- --libtorch=9.1.0

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
