#!/usr/bin/env bash
# Tests bare.sh with made-up parts: with a bare machine, and if a bare machine cannot be made.
set -uo pipefail

clone="$(mktemp -d)"
trap 'rm -rf "${clone}"' EXIT
failures=0
mkdir -p "${clone}/tools/ci" "${clone}/bin" "${clone}/cache"
cp tools/ci/bare.sh tools/ci/checks.sh "${clone}/tools/ci"
# shellcheck disable=SC2016 # expanded by bare.sh
echo 'ensure_packages() { [[ -z ${NO_PACKAGES:-} ]]; }' >"${clone}/tools/packages.sh"

# made_up FILE: makes a script from stdin.
made_up() {
  { echo '#!/usr/bin/env bash' && cat; } >"${clone}/$1"
  chmod +x "${clone}/$1"
}
made_up tools/ci/bare_root.sh <<'END'
case "$1" in
  possible) [[ -z ${NOT_POSSIBLE:-} ]] ;;
  run) echo "in the root: $*"; echo "1 passed, 0 failed" ;;
  *) echo "$1" ;;
esac
END
made_up tools/ci/readme.sh <<'END'
echo "in place: readme"
ls examples_before 2>/dev/null
echo "2 passed, 0 failed"
END
made_up tools/ci/sanitizers.sh <<'END'
echo "in place: sanitizers"
echo "3 passed, 0 failed"
END
mkdir -p "${clone}/third_party/libtorch"
made_up third_party/libtorch/libtorch.sh <<'END'
echo 20
END
made_up tools/ci/rotation.py <<'END'
echo "rotation: $*"
END
made_up bin/git <<'END'
[[ $1 != rev-parse || -z ${NO_CLONE:-} ]] || { printf 'fatal: not a git repository\nand more\n' >&2; exit 128; }
[[ $1 != archive || -z ${HAS_BEFORE:-} ]] || { mkdir -p downstream_as_before && tar -c downstream_as_before; }
END

# check NAME CODE TEXT... -- [VARIABLE=VALUE...]: bare.sh must end with CODE, and print each TEXT.
check() {
  local name="$1" code="$2" output actual text
  local -a texts=()
  shift 2
  while [[ $1 != -- ]]; do
    texts+=("$1")
    shift
  done
  output="$(env -u GPIPE_CI_BARE -u GPIPE_LIBTORCH PATH="${clone}/bin:${PATH}" GPIPE_CI_CACHE="${clone}/cache" GPIPE_CI_START="$(date +%s)" \
    "${@:2}" bash "${clone}/tools/ci/bare.sh" 2>&1)"
  actual=$?
  for text in "exit ${code}" "${texts[@]}"; do
    [[ "exit ${actual}"$'\n'"${output}"$'\n' == *"${text}"* ]] && continue
    printf 'FAILED: %s: no "%s" in: exit %s\n%s\n' "${name}" "${text}" "${actual}" "${output}" >&2
    failures=$((failures + 1))
  done
}

in_place="NOTE: the README's commands were not typed in a bare machine:"
check "all tests are asked for in the bare machine, too" 0 "GPIPE_CI_ALL=yes GPIPE_LIBTORCH= bash gpipe/tools/ci/readme.sh" \
  "GPIPE_CI_ALL=yes GPIPE_LIBTORCH= bash gpipe/tools/ci/sanitizers.sh" -- GPIPE_CI_ALL=yes
check "another LibTorch is asked for in the bare machine, too" 0 "GPIPE_LIBTORCH=2.0 bash gpipe/tools/ci/readme.sh" \
  "GPIPE_LIBTORCH=2.0 bash gpipe/tools/ci/sanitizers.sh" -- GPIPE_LIBTORCH=2.0
check "what changed is known to the sanitizers, there" 0 "rotation: changed ${clone}/cache/bare"$'\n' --
check "and in place" 0 "rotation: changed ${clone}/cache"$'\n' -- GPIPE_CI_BARE=1
# The sum has 5 passed checks: one of each of the two scripts, and three of bare.sh itself (the old root, the new one,
# the clone).
check "in a bare machine" 0 "in the root: run ${clone}/cache/bare-root" "gpipe/tools/ci/readme.sh" "gpipe/tools/ci/sanitizers.sh" \
  $'\n5 passed, 0 failed\n' --
check "its parts have the names that they have in place" 0 "] README: tools/ci/bare_root.sh" \
  "] sanitizers: tools/ci/bare_root.sh" --
check "the clone has older downstream workspaces" 0 $'\ndownstream_as_before\n' -- GPIPE_CI_BARE=1 HAS_BEFORE=1
check "it has none" 0 "as they were before: left out" -- GPIPE_CI_BARE=1
check "no root" 0 "${in_place} making one needs root" "] README: tools/ci/readme.sh" "] sanitizers: tools/ci/sanitizers.sh" \
  $'\n5 passed, 0 failed\n' -- NOT_POSSIBLE=1
check "no packages" 0 "${in_place} no debootstrap, or no git" "in place: readme" -- NO_PACKAGES=1
check "no clone" 0 "${in_place} this is not a clone (fatal: not a git repository)" "in place: readme" "in place: sanitizers" \
  -- NO_CLONE=1

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
