#!/usr/bin/env bash
# Tests the programs as users start them: from the workspace's runfiles, and from any other folder.
set -uo pipefail

root="${PWD}"
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
unset BUILD_WORKING_DIRECTORY
failures=0

# check NAME CODE TEXT COMMAND...: the command must end with CODE and print TEXT.
check() {
  local name="$1" code="$2" text="$3" output actual
  shift 3
  output="$("$@" 2>&1)"
  actual=$?
  [[ ${actual} -eq ${code} && ${output} == *"${text}"* ]] && return 0
  printf 'FAILED: %s: exit %s, expected %s with "%s":\n%s\n' "${name}" "${actual}" "${code}" "${text}" "${output}" >&2
  failures=$((failures + 1))
}

check "list" 0 "unet_memory" experiments/report/report --list
check "help" 0 "Ctrl-C" experiments/report/report --help
check "wrong usage" 2 "--output=DIR is missing" experiments/report/report
check "a page" 1 "written: ${work}/page/index.html" experiments/report/report --output="${work}/page" --minutes=0
grep -q 'id="plotly"' "${work}/page/index.html" || { echo "FAILED: no library in the page"; failures=$((failures + 1)); }
check "a folder relative to the user's" 1 "written: ${work}/here/index.html" \
  env BUILD_WORKING_DIRECTORY="${work}" experiments/report/report --output=here --minutes=0

# The program of the rivals finds the files that it needs: it comes as far as a mistake in its
# flags.
check "rivals" 2 "--json: /no/such/folder/file cannot be written" \
  experiments/rivals/rivals --json=/no/such/folder/file

# The report is started by its path in bazel-bin, where the runfiles lie beside it.
mkdir -p "${work}/bin"
cp experiments/report/report "${work}/bin/report"
mkdir "${work}/bin/report.runfiles"
ln -s "${root}" "${work}/bin/report.runfiles/gpipe"
ln -s "${root}/../plotly" "${work}/bin/report.runfiles/plotly"
cd "${work}" || exit 1
check "from elsewhere" 0 "unet_memory" bin/report --list
rm -r bin/report.runfiles
check "without its files" 2 "start it with tools/bazel run //experiments/report" bin/report --list

cd "${root}" || exit 1
mkdir "${work}/path" # a Python, but no browser
for tool in bash env python3; do ln -s "$(type -P "${tool}")" "${work}/path/${tool}"; done
check "pictures without a browser" 1 "apt-get install chromium" env PATH="${work}/path" \
  experiments/report/pictures --page=none --output=x.png
check "pictures: wrong usage" 2 "--page" experiments/report/pictures

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
