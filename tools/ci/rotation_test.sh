#!/usr/bin/env bash
# Tests sanitizers.sh and rotation.py in a made-up clone of nine tests, run after run: which tests
# they run, in which order, and what they say of the others.
set -uo pipefail

root="$(mktemp -d)"
trap 'rm -rf "${root}"' EXIT
unset GPIPE_CACHE GPIPE_CI_ALL GPIPE_TIDY_BASE
export GPIPE_CI_CACHE="${root}/cache" PATH="${root}/bin:${PATH}"
failures=0

mkdir -p "${root}"/{bin,cache,clone/tools/ci}
cp tools/ci/{checks.sh,sanitizers.sh,count_tests.py,rotation.py,tidy.py} "${root}/clone/tools/ci"
# made_up FILE: makes a script from stdin.
made_up() {
  { echo '#!/usr/bin/env bash' && cat; } >"${root}/$1"
  chmod +x "${root}/$1"
}
echo 'echo this' | made_up clone/tools/ci/machine.sh
# shellcheck disable=SC2016 # expanded by that script
printf '#!/usr/bin/env bash\nprintf "Avail\\n%%s\\n" "${FREE:-99000000}"\n' >"${root}/bin/df"
chmod +x "${root}/bin/df"
# A made-up git, which prints the commit and the changed files from files.
made_up bin/git <<END
case "\$1" in
  rev-parse) name="\${*: -1}"; name="\${name%^*}"; [[ \${name} != HEAD ]] || name="\$(cat "${root}/commit")"; echo "\${name}" ;;
  diff) cat "${root}/diff" ;;
esac
END
# Tests pass, except those in the file \`bad\`. Those in \`slow\` are not reached, because Bazel is
# interrupted.
made_up clone/tools/bazel <<END
case "\$1" in
  query)
    for word; do [[ \${word} != --query_file=* ]] || query="\$(<"\${word#*=}")"; done
    case "\${query}" in
      *"set(p/c.cc)"*", 4)"*) printf '%s\n' //p:c //p:d ;;
      *"set(p/c.cc)"*) printf '%s\n' //p:c //p:d //q:z ;;
      *rdeps*) ;;
      *) [[ -n \${NO_QUERY:-} ]] || printf '%s\n' //p:{a,b,c,d,e,f} //q:{x,y,z} ;;
    esac ;;
  test)
    code=0
    for word; do
      case "\${word}" in
        --build_event_json_file=*) events="\${word#*=}" ;;
        --target_pattern_file=*) batch="\${word#*=}" ;;
      esac
    done
    [[ -n \${batch:-} ]] || exit 0  # tsan
    echo "bazel: \$(tr '\n' ' ' <"\${batch}")"
    while read -r label; do
      status=PASSED
      ! grep -q "^\${label}\$" "${root}/slow" || { code=8; continue; }
      ! grep -q "^\${label}\$" "${root}/bad" || status=FAILED code=3
      printf '{"id": {"testResult": {"label": "%s"}}, "testResult": {"status": "%s", "cachedLocally": true}}\n' "\${label}" "\${status}"
    done <"\${batch}" >"\${events}"
    exit "\${code}" ;;
esac
END
touch "${root}"/{bad,slow,diff}

# try NAME COMMIT MINUTE TEXT...: makes a run that starts the sanitizers at that minute. Its output
# must have each TEXT, and no !TEXT.
try() {
  local name="$1" minute="$3" output text
  echo "$2" >"${root}/commit"
  shift 3
  output="$(cd "${root}/clone" && tools/ci/rotation.py changed "${GPIPE_CI_CACHE}" 2>&1
    GPIPE_CI_START=$(($(date +%s) - minute * 60)) bash tools/ci/sanitizers.sh 2>&1)"
  for text; do
    if [[ ${text} == !* ]]; then
      [[ ${output} != *"${text#!}"* ]] && continue
    else
      [[ ${output} == *"${text}"* ]] && continue
    fi
    printf 'FAILED: %s: "%s" of:\n%s\n' "${name}" "${text}" "${output}" >&2
    failures=$((failures + 1))
  done
}

try "no record, and no time for a part" one 41 "part 1: not begun, because no time was left" "!bazel: " \
  "NOTE: asan and ubsan: 0 of 9 tests were seen in this run, 9 in none of the last three" "NOT SEEN: //p: a b c d e f" \
  "NOT SEEN: //q: x y z"
echo p/c.cc >"${root}/diff"
try "tests near the change get more time, but a limited one" one 61 "tests near the change: not begun, because no time was left" "!bazel: "
try "the nearest only" one 41 "bazel: //p:c //p:d " "part 1: not begun, because" "2 of 9 tests were seen in this run, 7 in none"
# From here on, git is asked for the changes since the last run.
: >"${root}/diff"
try "a third, the longest unseen first" one 5 "since one (the last that sanitizers saw)" "bazel: //p:a //p:b //p:e " "!bazel: //p:f" \
  "3 of 9 tests were seen in this run, 4 in none of the last three" "NOT SEEN: //p: f" "NOT SEEN: //q: x y z"
try "the next" one 5 "bazel: //p:f //q:x //q:y " "1 in none of the last three, listed" "NOT SEEN: //q: z"
try "and the last: all are seen" one 5 "bazel: //q:z //p:c //p:d " "3 of 9 tests were seen in this run, 0 in none" "!NOT SEEN"
try "around" one 5 "bazel: //p:a //p:b //p:e " "0 in none" "!NOT SEEN"

# After a change, the tests near the change come first. Then come tests that the change reaches, and
# a third of all tests. Among these, tests that were not run for longest come first.
echo p/c.cc >"${root}/diff"
echo //p:d >"${root}/bad"
try "a change, and a test that fails" two 5 "1 C++ files changed since one (the" "bazel: //p:c //p:d " "bazel: //p:f //q:x //q:y " "bazel: //q:z " \
  "FAILED: asan and ubsan, tests near the change: //p:d FAILED" "5 of 9 tests were seen in this run, 0 in none"
: >"${root}/bad"
try "the change has not been seen whole" three 5 "1 C++ files changed since one (the" "bazel: //p:c //p:d "
: >"${root}/diff"
try "now it has" four 5 "0 C++ files changed since three (the" "!//p:c //p:d"

printf '//p:%s\n' a b c d e f >"${root}/slow"
printf '//q:%s\n' x y z >>"${root}/slow"
for _ in 1 2; do try "nothing is reached" four 5 "0 of 9 tests were seen in this run"; done
try "unseen for three runs" four 5 "9 in none of the last three"
: >"${root}/slow"
FREE=5000000 try "no disk" four 5 "part 1: not begun, because only 4 GiB of disk are free" "!bazel: "
NO_QUERY=1 try "Bazel does not know its tests" four 5 "FAILED: asan and ubsan: which tests" "!bazel: "
rm "${root}/cache/sanitizers-seen.json"
echo "half a rec" >"${root}/cache/sanitizers-seen.json"
try "a broken record is none" four 5 "bazel: //p:a //p:b //p:c " "3 of 9 tests were seen in this run, 6 in none"
cp "${root}/cache/sanitizers-seen.json" "${root}/good.json"
for record in '{}' null '[]' 7 '"x"' '{"run": 3, "commit": "four", "seen": {"//p:a": {}}}'; do
  echo "${record}" >"${root}/cache/sanitizers-seen.json"
  try "a record that is ${record} is none" four 5 "bazel: //p:a //p:b //p:c " "3 of 9 tests were seen in this run, 6 in none"
done
cp "${root}/good.json" "${root}/cache/sanitizers-seen.json"
python3 - "${root}/cache/sanitizers-seen.json" <<'END' || failures=$((failures + 1))
import json, sys
seen = json.load(open(sys.argv[1]))["seen"]["//p:a"]
if (seen["run"], seen["commit"]) != (1, "four") or len(seen["date"]) != len("2026-11-27"):
    sys.exit("FAILED: recorded: {}".format(seen))
END

# Whatever changes from run to run, three complete runs must see all tests.
mkdir -p "${root}/free/lists"
python3 - "${root}/clone/tools/ci" "${root}/free" <<'END' || failures=$((failures + 1))
import contextlib, io, json, random, sys
sys.path.insert(0, sys.argv[1])
import rotation
folder, lists = sys.argv[2], sys.argv[2] + "/lists"
draw = random.Random(1)
every = ["//p:{:02}".format(number) for number in range(50)]
runs = []
for run in range(40):
    for name, labels in (("all", every), ("near", draw.sample(every, draw.choice((0, 0, 3, 25)))), ("reached", [])):
        rotation.write("\n".join(labels), lists, name)
    with contextlib.redirect_stdout(io.StringIO()):
        rotation.plan(folder, lists)
    batches = [rotation.lines(lists, "0"), rotation.lines(lists, "1")]
    rotation.write("".join(json.dumps({"id": {"testResult": {"label": label}}, "testResult": {"status": "PASSED"}}) + "\n"
                           for label in sum(batches, [])), folder, "events")
    rotation.seen(folder, lists, folder + "/events")
    runs.append(set(sum(batches, [])))
for three in zip(runs, runs[1:], runs[2:]):
    if len(set().union(*three)) != len(every):
        sys.exit("FAILED: three runs have not seen {}".format(sorted(set(every) - set().union(*three))))
END

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
