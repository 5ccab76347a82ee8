#!/usr/bin/env bash
# Tests tools/ci/tidy.py in a made-up clone, with a clang-tidy that reports files that contain WRONG.
set -uo pipefail

# Sources from an archive are built and tested without git, but tidy.py is for clones. Without git
# Bazel's report says that the test was skipped, so that CI does not count it as passed.
if ! type -P git >/dev/null; then
  echo "skipped: no git here (apt-get install git)"
  if [[ -n ${XML_OUTPUT_FILE:-} ]]; then
    echo '<testsuites><testsuite name="tidy_test"><testcase name="tidy_test"><skipped message="no git"/></testcase></testsuite></testsuites>' \
      >"${XML_OUTPUT_FILE}"
  fi
  exit 0
fi

tidy="${PWD}/tools/ci/tidy.py"
scratch="$(mktemp -d)"
trap 'rm -rf "${scratch}"' EXIT
failures=0
export HOME="${scratch}" GIT_CONFIG_NOSYSTEM=1 PATH="${scratch}/bin:${PATH}"
unset GPIPE_TIDY_BASE GPIPE_TIDY_SECONDS GPIPE_TIDY_GRACE

mkdir "${scratch}/bin" "${scratch}/clone"
cat >"${scratch}/bin/clang-tidy" <<'END'
#!/usr/bin/env bash
file="${*: -1}"
[[ -z ${SLOW:-} ]] || sleep "${SLOW}" >/dev/null 2>&1
if grep -q WRONG "${file}"; then
  echo "${file}: a finding"
  exit 1
fi
END
chmod +x "${scratch}/bin/clang-tidy"

cd "${scratch}/clone" || exit 1
git init -q -b main .
git config user.email a@b.c
git config user.name a
save() { git add -A && git commit -q -m "$1"; }

# try CODE EXPECTED... -- ARGUMENTS...: runs tidy.py, which must end with CODE. Its output must have
# each text, and no !TEXT.
try() {
  local code="$1" output got text
  local -a expected=()
  shift
  while [[ $1 != -- ]]; do
    expected+=("$1")
    shift
  done
  shift
  output="$("${tidy}" "$@" 2>&1)"
  got=$?
  [[ ${got} == "${code}" ]] || { echo "FAILED: exit code ${got}, not ${code}: ${output}" && failures=$((failures + 1)); }
  for text in "${expected[@]}"; do
    if [[ ${text} == !* ]]; then
      [[ ${output} != *"${text#!}"* ]] && continue
    else
      [[ ${output} == *"${text}"* ]] && continue
    fi
    echo "FAILED: '${text}' of: ${output}"
    failures=$((failures + 1))
  done
}

# Sources own.cc, b.cc and c.cc. b.cc includes own.h, the header of own.cc; only c.cc reaches far.h, through near.h.
mkdir p
printf '#include "p/own.h"\n' >p/own.cc
cp p/own.cc p/b.cc
touch p/own.h p/far.h p/lonely.h p/unknown.cc
printf '#include "p/far.h"\n' >p/near.h
printf '#include "p/near.h"\n' >p/c.cc
export GPIPE_TIDY_DATABASE="${scratch}/database/compile_commands.json"
mkdir "${scratch}/database"
python3 - <<'END' >"${GPIPE_TIDY_DATABASE}"
import json, os
print(json.dumps([{"file": os.path.abspath("p/{}.cc".format(name))} for name in ("own", "b", "c")]))
END
save one

try 0 "no history" "nothing checked" --

echo changed >p/readme.txt
save two
try 0 "0 C++ files changed" "the last commit's parent" --

echo '// x' | tee -a p/own.h p/far.h p/lonely.h p/unknown.cc >/dev/null
save three
try 0 "4 C++ files" "own.cc (good)" "c.cc (good)" "!b.cc" "NOT CHECKED: p/lonely.h" "NOT CHECKED: p/unknown.cc" "2 of 4" --
# Changes that are not committed count, too; a deleted file does not.
echo '// WRONG' >>p/b.cc
git rm -q p/lonely.h
try 1 "b.cc (FOUND)" "a finding" "own.cc (good)" "!lonely" --
save four
try 1 "b.cc (FOUND)" "!own.cc" --
try 0 "own.cc (good)" "!b.cc" -- p/own.h
try 1 "no file that Bazel compiles" -- p/unknown.cc
try 1 "b.cc (FOUND)" -- p/b.cc

GPIPE_TIDY_BASE=HEAD~3 try 1 "b.cc (FOUND)" "own.cc (good)" "GPIPE_TIDY_BASE" --
GPIPE_TIDY_BASE=nonsense try 1 "nonsense is not a commit" --

# On a branch, all changes count that were made since it left the remote's default branch, even if
# that branch has gone on.
git clone -q . ../branch
cd ../branch || exit 1
git config user.email a@b.c
git config user.name a
sed -i "s:clone/p:branch/p:g" "${GPIPE_TIDY_DATABASE}"
try 1 "the last commit's parent" "b.cc (FOUND)" --
git checkout -q -b topic
for name in own c; do
  echo "// more" >>"p/${name}.cc"
  save "${name}"
done
try 0 "2 C++ files" "where this branch left origin/HEAD" "own.cc (good)" "c.cc (good)" "!b.cc" --

# If there is no time for a file, tidy.py names the file, and this is not a failure. Two files are
# begun at the same time.
echo '// more' | tee -a p/b.cc p/c.cc p/own.cc >/dev/null
sed -i s/WRONG// p/b.cc
SLOW=1 GPIPE_TIDY_SECONDS=0.5 try 0 "b.cc (good)" "c.cc (good)" "NOT REACHED in 0.5 s: p/own.cc" "2 of 3" --
# A clang-tidy that does not end must be ended.
SLOW=30 GPIPE_TIDY_SECONDS=0.1 GPIPE_TIDY_GRACE=0.5 try 0 "NOT REACHED" "0 of 3" --

[[ ${failures} -eq 0 ]] && echo "all good"
exit $((failures > 0))
