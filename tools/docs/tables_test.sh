#!/usr/bin/env bash
# tables_test.sh {//PACKAGE:TEST SOURCE...}...
# Checks the tables of docs/design: all rows are there, in order, and every test that a row names exists in
# the sources of the target it names. Prints how many rows there are of each kind.
set -uo pipefail

scratch="$(mktemp -d)"
trap 'rm -rf "${scratch}"' EXIT
failures=0
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  failures=$((failures + 1))
}

# "//gpipe:x_test Suite.Test", a line each.
index_of() {
  local target="" argument
  for argument in "$@"; do
    if [[ ${argument} == //* ]]; then
      target="${argument}"
    else
      # A long name may stand on the macro's second line.
      sed 's://.*::' "${argument}" | tr '\n' ' ' |
        grep -oE '\bTEST(_F|_P)?\( *[A-Za-z0-9_]+, *[A-Za-z0-9_]+ *\)' |
        sed -E "s#.*\( *([A-Za-z0-9_]+), *([A-Za-z0-9_]+) *\)#${target} \1.\2#" || fail "no tests in ${argument}"
    fi
  done
}

# check INDEX FILE ROWS TESTS_COLUMN NOTE_COLUMN KINDS KINDS_WITHOUT_TESTS
# Kinds are what a note may begin with, "a|b|c"; those of the second list excuse a row from naming a test.
check() {
  awk -v rows="$3" -v tests="$4" -v note="$5" -v kinds="^($6):" -v excuses="^($7):" '
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
    }' "$1" "$2"
}

# First that the check finds what it is to find.
cat >"${scratch}/some_test.cc" <<'END'
TEST(Suite, One) {}
TEST_P(Suite,
       Two) {}
// TEST(Suite, Three) {}
END
index_of //a:some_test "${scratch}/some_test.cc" >"${scratch}/index"
try() { # EXPECTED ROW...
  local expected="$1" output code
  shift
  printf '%s\n' "$@" >"${scratch}/table.md"
  output="$(check "${scratch}/index" "${scratch}/table.md" 2 3 4 'not yet|partly' 'not yet')"
  code=$?
  [[ ${output} == *"${expected}"* ]] || fail "expected '${expected}' of '$*', got: ${output}"
  # Only what is well begins with the counts.
  if [[ ${expected} == ' '* ]]; then
    [[ ${code} == 0 ]] || fail "refused: $*"
  else
    [[ ${code} == 1 ]] || fail "accepted: $*"
  fi
}
try "  2 shown" '| 1 | a | //a:some_test Suite.One, Suite.Two | |' '| 2 | b | //a:some_test Suite.Two | note |'
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

index_of "$@" >"${scratch}/index"
echo "$(wc -l <"${scratch}/index") tests in the sources given"
echo "Cases:"
check "${scratch}/index" docs/design/torchgpipe_parity.md 167 3 4 \
  'private|partly|py-only|GPU|later|not yet' 'py-only|later|not yet' || fail "torchgpipe_parity.md"
echo "Faults:"
check "${scratch}/index" docs/design/torchgpipe_faults.md 31 4 3 \
  'partly|not yet|design|not done' 'not yet|design|not done' || fail "torchgpipe_faults.md"

[[ ${failures} -eq 0 ]] && echo "all good"
exit $((failures > 0))
