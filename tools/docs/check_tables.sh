#!/usr/bin/env bash
# Checks the tables of docs/design: all rows must be there, in order, and every test that a row
# names must exist in the sources of the target that it names. Prints how many rows there are of
# each kind. It reads BUILD files and sources, so nothing needs to be built and no target to be
# visible. Part of tools/lint.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

scratch="$(mktemp -d)"
trap 'rm -rf "${scratch}"' EXIT
failures=0
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  failures=$((failures + 1))
}

# index_of FOLDER TARGET...: prints "//gpipe:x_test Suite.Test" for each test of these targets of the workspace in
# FOLDER.
index_of() {
  local folder="$1" target package source
  local -a sources
  shift
  for target in "$@"; do
    package="${target#//}"
    package="${folder}/${package%%:*}"
    # The .cc files of the rule with that name. If there is no such rule, the name is that of a file in a
    # gpipe_cc_tests() rule.
    mapfile -t sources < <(awk -v name="\"${target#*:}\"" '
      /^[a-z_]+\($/ { rule = "" }
      { rule = rule $0 "\n" }
      /^\)/ && index(rule, "name = " name ",") {
        while (match(rule, /"[a-z0-9_]+\.cc"/)) {
          print substr(rule, RSTART + 1, RLENGTH - 2)
          rule = substr(rule, RSTART + RLENGTH)
        }
      }' "${package}/BUILD.bazel" 2>/dev/null)
    if [[ ${#sources[@]} -eq 0 ]] && awk -v source="\"${target#*:}.cc\"," '
      /^gpipe_cc_tests\($/ { unit = 1 }
      unit && index($0, source) { found = 1 }
      /^\)/ { unit = 0 }
      END { exit !found }' "${package}/BUILD.bazel" 2>/dev/null; then
      sources=("${target#*:}.cc")
    fi
    [[ ${#sources[@]} -gt 0 ]] || fail "no such test: ${target}"
    for source in "${sources[@]}"; do
      # A long name may stand on the macro's second line.
      sed 's://.*::' "${package}/${source}" | tr '\n' ' ' |
        grep -oE '\bTEST(_F|_P)?\( *[A-Za-z0-9_]+, *[A-Za-z0-9_]+ *\)' |
        sed -E "s#.*\( *([A-Za-z0-9_]+), *([A-Za-z0-9_]+) *\)#${target} \1.\2#" || fail "no tests in ${source}"
    done
  done
}

# check INDEX ROWS TESTS_COLUMN NOTE_COLUMN KINDS KINDS_WITHOUT_TESTS FILE...: checks one table, in one page or in
# several. A note begins with one of the kinds, "a|b|c"; a row whose kind is in the second list need not name a test.
check() {
  awk -v rows="$2" -v tests="$3" -v note="$4" -v kinds="^($5):" -v excuses="^($6):" '
    function wrong(text) { print FILENAME ":" FNR ": " text; bad = 1 }
    NR == FNR { exists[$0]; next }
    /^\| *[0-9]+ *\|/ {
      cells = split($0, cell, "|")
      if (cells != 6) wrong("not 4 columns")
      number = cell[2] + 0
      if (number != seen + 1) wrong("row " number " follows row " seen + 0)
      seen = number
      target = ""
      named = 0
      words = split(cell[tests + 1], word, /[ ,;]+/)
      for (k = 1; k <= words; ++k) {
        if (word[k] == "" || word[k] == "—") continue
        if (word[k] ~ /^\/\//) { target = word[k]; continue }
        ++named
        if (!((target " " word[k]) in exists)) wrong("no such test: " target " " word[k])
      }
      text = cell[note + 1]
      sub(/^ +/, "", text)
      if (cell[3] ~ /^ *$/) wrong("row " number " does not say what it is about")
      if (!named && text !~ excuses) wrong("row " number " names no test and does not say why")
      kind = "shown"
      if (text ~ kinds) kind = substr(text, 1, index(text, ":") - 1)
      ++count[kind]
    }
    END {
      if (seen != rows) wrong("the last row is " seen + 0 ", not " rows)
      for (kind in count) print "  " count[kind] " " kind
      exit bad
    }' "$1" "${@:7}"
}

# First a test with a made-up table: the check must find the mistakes in it.
mkdir "${scratch}/a"
cat >"${scratch}/a/BUILD.bazel" <<'END'
gpipe_cc_test(
    name = "other_test",
    srcs = ["other_test.cc"],
)

gpipe_cc_test(
    name = "some_test",
    srcs = [
        "some_more_test.cc",
        "some_test.cc",
    ],
)
END
cat >"${scratch}/a/some_test.cc" <<'END'
TEST(Suite, One) {}
// TEST(Suite, Three) {}
END
cat >"${scratch}/a/some_more_test.cc" <<'END'
TEST_P(Suite,
       Two) {}
END
cat >>"${scratch}/a/BUILD.bazel" <<'END'
gpipe_cc_tests(
    name = "unit_tests",
    srcs = [
        "first_test.cc",
    ],
)
END
echo 'TEST(First, Five) {}' >"${scratch}/a/first_test.cc"
index_of "${scratch}" //a:some_test //a:first_test >"${scratch}/index"
echo 'TEST(Suite, Four) {}' >"${scratch}/a/orphan_test.cc"
for target in //a:orphan_test //b:some_test; do
  before="${failures}"
  index_of "${scratch}" "${target}" 2>"${scratch}/said"
  if [[ ${failures} -gt ${before} ]]; then failures="${before}"; else fail "accepted: ${target}"; fi
done
try() { # EXPECTED ROW...
  local expected="$1" output code
  shift
  printf '%s\n' "$1" >"${scratch}/table.md"
  printf '%s\n' "${@:2}" >"${scratch}/more.md"
  output="$(check "${scratch}/index" 2 3 4 'not yet|partly' 'not yet' "${scratch}/table.md" "${scratch}/more.md")"
  code=$?
  [[ ${output} == *"${expected}"* ]] || fail "expected '${expected}' of '$*', got: ${output}"
  # The counts come first only if there are no mistakes.
  if [[ ${expected} == ' '* ]]; then
    [[ ${code} == 0 ]] || fail "refused: $*"
  else
    [[ ${code} == 1 ]] || fail "accepted: $*"
  fi
}
try "  2 shown" '| 1 | a | //a:some_test Suite.One, Suite.Two | |' '| 2 | b | //a:some_test Suite.Two | note |'
try "  2 shown" '| 1 | a | //a:first_test First.Five | |' '| 2 | b | //a:some_test Suite.Two | |'
try "  1 not yet" '| 1 | a | //a:some_test Suite.One | |' '| 2 | b | — | not yet: later |'
try "no such test: //a:some_test Suite.Three" '| 1 | a | //a:some_test Suite.Three | |' '| 2 | b | — | not yet: x |'
try "no such test: //b:some_test Suite.One" '| 1 | a | //b:some_test Suite.One | |' '| 2 | b | — | not yet: x |'
try "no such test:  Suite.One" '| 1 | a | Suite.One | |' '| 2 | b | — | not yet: x |'
try "names no test" '| 1 | a | — | partly: x |' '| 2 | b | — | not yet: x |'
try "the last row is 1" '| 1 | a | — | not yet: x |'
try "row 2 follows row 0" '| 2 | a | — | not yet: x |'
try "row 2 follows row 2" '| 1 | a | — | not yet: x |' '| 2 | a | — | not yet: x |' '| 2 | a | — | not yet: x |'
try "not 4 columns" '| 1 | a | — |' '| 2 | b | — | not yet: x |'
try "does not say what it is about" '| 1 | | — | not yet: x |' '| 2 | b | — | not yet: x |'

parity=(docs/design/torchgpipe_parity.md docs/design/torchgpipe_parity_parts.md)
faults=docs/design/torchgpipe_faults.md
mapfile -t targets < <(grep -h '^| *[0-9]' "${parity[@]}" "${faults}" | grep -oE '//[a-z_/]+:[a-z_0-9]+_test' | sort -u)
index_of . "${targets[@]}" >"${scratch}/index"
echo "$(wc -l <"${scratch}/index") tests in ${#targets[@]} targets"
echo "Cases:"
check "${scratch}/index" 167 3 4 'private|partly|py-only|GPU|not yet' 'py-only|not yet' "${parity[@]}" || fail "torchgpipe_parity.md"
echo "Faults:"
check "${scratch}/index" 37 4 3 'partly|not yet|design|not done' 'not yet|design|not done' "${faults}" || fail "torchgpipe_faults.md"

[[ ${failures} -eq 0 ]] && echo "all good"
exit $((failures > 0))
