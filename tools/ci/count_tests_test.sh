#!/usr/bin/env bash
# Tests tools/ci/count_tests.py on made-up build events.
set -uo pipefail
# Without this, a check at the end of a pipe would count its failure in a subshell, and the count
# would be lost.
shopt -s lastpipe

script="${PWD}/tools/ci/count_tests.py"
root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
failures=0

# result LABEL STATUS [XML]: prints the event of a test that ran.
result() {
  local output=""
  [[ -z ${3:-} ]] || output="{\"name\": \"test.xml\", \"uri\": \"file://$3\"}"
  printf '{"id": {"testResult": {"label": "%s"}}, "testResult": {"status": "%s", "testActionOutput": [%s]}}\n' \
    "$1" "$2" "${output}"
}

# check NAME EXPECTED EXIT_CODE [--stopped]: counts the events on stdin. The counts must be
# EXPECTED.
check() {
  local output
  cat >"${root}/events"
  output="$(python3 "${script}" ${4:+"$4"} "${root}/events" "$3")"
  [[ ${output} == "$2"* ]] && return 0
  printf 'FAILED: %s: expected "%s" in:\n%s\n' "$1" "$2" "${output}" >&2
  failures=$((failures + 1))
}

cat >"${root}/good.xml" <<'EOF'
<testsuites><testsuite><testcase name="a" status="run"/><testcase name="b" status="run" result="completed"/>
<testcase name="c" status="run" result="skipped"><skipped/></testcase></testsuite></testsuites>
EOF
cat >"${root}/bad.xml" <<'EOF'
<testsuites><testsuite><testcase name="a"/><testcase classname="S" name="b"><failure message="no"/></testcase></testsuite></testsuites>
EOF

{ result //a PASSED "${root}/good.xml"; result //b PASSED "${root}/good.xml"; } | check "all pass" "4 0 2" 0
{ result //a FAILED "${root}/bad.xml"; } | check "one case fails" $'1 1 0\n//a S.b' 3
{ result //a TIMEOUT "${root}/good.xml"; } | check "a time-out is a failure" $'2 1 1\n//a TIMEOUT' 3
{ result //a FAILED; } | check "a crash without a report" "0 1 0" 3
{ result //a PASSED; } | check "no report" "0 1 0" 0
{
  result //a PASSED "${root}/good.xml"
  echo '{"id": {"targetCompleted": {"label": "//c"}}, "aborted": {"reason": "INCOMPLETE"}}'
} | check "could not be built" $'2 1 1\n//c could not be built' 1
{ result //a PASSED "${root}/good.xml"; } | check "unexplained exit code" $'2 1 1\nbazel ended with 36' 36
{
  result //a PASSED "${root}/good.xml"
  result //b INCOMPLETE
  echo '{"id": {"targetCompleted": {"label": "//c"}}, "aborted": {"reason": "INCOMPLETE"}}'
  echo '{"id": {"targetCompleted": {"label": "//d"}}, "completed": {"failureDetail": {"message": "build interrupted"}}}'
} | check "stopped for lack of time" "2 0 1" 124 --stopped
{ result //a FAILED "${root}/bad.xml"; } | check "a failure before it was stopped" $'1 1 0\n//a S.b' 124 --stopped
{
  result //a PASSED "${root}/good.xml"
  echo '{"id": {"targetCompleted": {"label": "//c"}}, "completed": {"failureDetail": {"message": "gcc failed"}}}'
} | check "what could not be built before it was stopped" $'2 1 1\n//c could not be built' 124 --stopped
{ result //a PASSED "${root}/good.xml"; } | check "Bazel was killed, and not for lack of time" "2 1 1" 137
{
  result //a PASSED "${root}/good.xml"
  printf '{"id": {"targetCompl'
} | check "half a line at the end" "2 1 1" 137
check "nothing ran" "0 1 0" 0 </dev/null
{
  for label in a b c d; do
    printf '{"id": {"targetConfigured": {"label": "//%s"}}, "configured": {"targetKind": "cc_test rule", "tag": ["gpu", "x"]}}\n' "${label}"
  done
  echo '{"id": {"targetConfigured": {"label": "//library"}}, "configured": {"targetKind": "cc_library rule", "tag": ["gpu"]}}'
  echo '{"id": {"targetConfigured": {"label": "//untagged"}}, "configured": {"targetKind": "cc_test rule"}}'
  for label in a b c library untagged; do
    printf '{"id": {"targetCompleted": {"label": "//%s"}}, "completed": {"success": true}}\n' "${label}"
  done
  echo '{"id": {"targetCompleted": {"label": "//d"}}, "completed": {}}'
  result //c PASSED "${root}/good.xml"
} >"${root}/events"
output="$(python3 "${script}" --compiled=gpu "${root}/events")"
[[ ${output} == 2 ]] || { echo "FAILED: compiled, not run: ${output}, not a and b" >&2 && failures=$((failures + 1)); }
# kept LABEL STATUS XML HOW: prints the event of a test for which Bazel has the result of an earlier
# run.
kept() {
  printf '{"id": {"testResult": {"label": "%s"}}, "testResult": {"status": "%s", "testActionOutput": [{"name": "test.xml", "uri": "file://%s"}], %s}}\n' "$@"
}
locally='"cachedLocally": true' remotely='"executionInfo": {"cachedRemotely": true}'
{
  result //a PASSED "${root}/good.xml"
  kept //b PASSED "${root}/good.xml" "${locally}"
  kept //c PASSED "${root}/good.xml" "${remotely}"
  kept //c PASSED "${root}/good.xml" "${remotely}" # another shard
  kept //d PASSED "${root}/none.xml" "${remotely}"
} >"${root}/kept"
output="$(python3 "${script}" --cached "${root}/kept")"
[[ ${output} == "2 6" ]] || { echo "FAILED: kept: ${output}, not b and c with two cases each time, and d, which showed nothing" >&2 && failures=$((failures + 1)); }
check "what is kept has not passed in this run" "2 0 1" 0 <"${root}/kept"
sed 1d "${root}/kept" | check "all is kept" "0 0 0" 0
{ kept //a FAILED "${root}/bad.xml" "${locally}"; } | check "a failure that is kept is one" $'1 1 0\n//a S.b' 3
rm "${root}/events"
[[ "$(python3 "${script}" "${root}/events" 1)" == "0 1 0"* ]] || failures=$((failures + 1))

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
