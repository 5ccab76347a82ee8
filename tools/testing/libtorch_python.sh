# shellcheck shell=bash
# Tests source this file to run the Python of the LibTorch that a program is linked with, if that
# LibTorch has one.

# skip NAME REASON: ends the test, and its report says so: tools/ci counts it as neither passed nor failed.
skip() {
  echo "SKIPPED: $2"
  [[ -z ${XML_OUTPUT_FILE:-} ]] ||
    printf '<testsuites><testsuite><testcase name="%s" status="notrun"><skipped message="%s"/></testcase></testsuite></testsuites>\n' \
      "$1" "$2" >"${XML_OUTPUT_FILE}"
  exit 0
}

# wheels_of WHEELS: prints the folder that tools/WHEELS/WHEELS.sh fetches. To be called after use_libtorch_python.
wheels_of() {
  echo "${wheels_root}/$1-$(sha256sum "tools/$1/requirements.txt" | cut -c1-8)"
}

# use_libtorch_python NAME PROGRAM WHEELS FILE IMPORT: sets PYTHONPATH, so that python3 finds the torch of the program's
# LibTorch, if that came as wheels, and the wheels fetched by tools/WHEELS/WHEELS.sh. The test needs that folder's
# requirements.txt as data. Skips the test NAME if torch has no FILE, or IMPORT cannot be imported.
use_libtorch_python() {
  local name="$1" program="$2" wheels="$3" file="$4" library site
  library="$(ldd "${program}" | awk '$1 == "libtorch_cpu.so" { print $3 }')"
  site="$(dirname "$(dirname "$(dirname "$(realpath "${library}")")")")"
  [[ -f ${site}/torch/${file} ]] || skip "${name}" "the LibTorch of ${site} did not come with its Python"
  wheels_root="${GPIPE_CACHE:-$(dirname "${site}")}"
  PYTHONPATH="${site}:$(wheels_of "${wheels}")"
  export PYTHONPATH
  # The wheels are not compiled, and in a sandbox compiled files cannot be written beside them. Compiling them takes
  # most of the time.
  export PYTHONPYCACHEPREFIX="${TEST_TMPDIR}/compiled"
  python3 -c "import $5" >"${TEST_TMPDIR}/import" 2>&1 || {
    cat "${TEST_TMPDIR}/import"
    skip "${name}" "this Python cannot import $5 of ${site}; tools/${wheels}/${wheels}.sh fetches what it needs"
  }
}
