#!/bin/bash
# One run, one hash: parameters, losses, validation and sample are the same, to the last bit, for any number of
# stages, replicas, processes and threads, under every schedule that promises it, with mini-batches that do not
# divide and shorter last ones, and for a run that is stopped and goes on in another layout.
#   one_hash_test.sh PROGRAM TEXT LAUNCH [all]
# With `all` the test makes 200 steps in every layout of 1, 2 and 4 stages in 1, 2 and 4 replicas.
# Without `all` each number of stages, number of replicas and schedule is in some layout, and there
# are fewer steps with a shorter text.
set -u
program=$1
text=$2
launch=$3
how=${4:-some}
# shellcheck source=command/program_testing.sh
source command/program_testing.sh
steps=20 lines=24
[ "$how" = some ] || steps=200 lines=102
head -n "$lines" "$text" >"$work/text.txt"
# 15 rows are cut into 8 micro-batches: seven of 2 rows and one of 1. At the end of an epoch there are so few rows that
# a replica may have none.
tiny=(--text="$work/text.txt" --length=48 --width=16 --heads=2 --blocks=3 --batch=15 --short_last --chunks=8 --groups=4
  "--steps=$steps" --warm_up=4 --dropout=0.1 --threads=1 --learning_rate=0.02 --clip=0.5
  "--validate_every=$((steps / 2))" --validation_rows=5 --samples=2 --sample=30 --temperature=1)

runs=0
# run NAME PROCESSES FLAG...: runs the program over PROCESSES processes. Its output goes to
# $work/NAME.log and NAME.json.
run() {
  local name=$1 processes=$2
  shift 2
  local -a command=("$program")
  [ "$processes" -eq 1 ] || command=("$launch" "--processes=$processes" -- "$program")
  "${command[@]}" "${tiny[@]}" "--json=$work/$name.json" "$@" >"$work/$name.log" 2>"$work/$name.err.log" ||
    fail "$name: $*"
  hash=$(sed -n 's/^\(\[0\] \)\?parameters \([0-9a-f]*\)$/\2/p' "$work/$name.log")
  [[ $hash =~ ^[0-9a-f]{16}$ ]] || fail "$name: no hash"
}

run alone 1 --stages=1
alone=$hash
echo "alone: $alone"
expect_same() {
  run "$@"
  [ "$hash" = "$alone" ] || fail "$*: parameters $hash instead of $alone"
  runs=$((runs + 1))
  echo "$*: the same"
}

# Layouts: the numbers of processes, of replicas and of stages, and the schedule.
layouts=("1 1 4 zb-v" "1 1 4 sequential" "1 1 2 fill-drain" "2 1 2 zb-h2" "2 1 4 looped-bfs" "4 1 4 zb-h1"
  "2 2 1 1f1b" "2 2 4 zb-interleaved" "4 2 2 1f1b" "4 2 4 dualpipe-v" "4 2 4 v-min" "4 4 1 1f1b" "4 4 2 interleaved"
  "4 4 4 v-half")
# add REPLICAS STAGES WORKERS SCHEDULE...: adds a layout for each number of processes among which
# the workers can be shared.
add() {
  local schedule each
  for schedule in "${@:4}"; do
    for each in 1 2 4; do
      [ $(($3 % each)) -ne 0 ] || layouts+=("$(($1 * each)) $1 $2 $schedule")
    done
  done
}
if [ "$how" = all ]; then
  layouts=()
  for replicas in 1 2 4; do
    for stages in 1 2 4; do
      add "$replicas" "$stages" "$stages" fill-drain 1f1b zb-h1 zb-h2
      add "$replicas" "$stages" 1 sequential
      [ "$stages" -eq 1 ] ||
        add "$replicas" "$stages" "$((stages / 2))" interleaved looped-bfs zb-interleaved zb-v v-half v-min dualpipe-v
    done
  done
fi

# Each schedule that the program knows must be in a layout.
"$program" "${tiny[@]}" --schedule=? 2>&1 | grep -o "there are .*" | sed 's/there are //' | tr -d ' ' | tr ',' '\n' |
  sort >"$work/schedules"
printf '%s\n' "${layouts[@]}" gpipe | awk '{ print $NF }' | sort -u | diff "$work/schedules" - ||
  fail "schedules that are in no layout, or none"

for layout in "${layouts[@]}"; do
  read -r processes replicas stages schedule <<<"$layout"
  zero=--nozero
  # Half of the runs, with all numbers of replicas, shard the optimizer.
  [ $(((processes + stages + runs) % 2)) -eq 0 ] || zero=--zero
  expect_same "${layout// /_}" "$processes" "--replicas=$replicas" "--stages=$stages" "--schedule=$schedule" "$zero"
done

# Runs that are stopped, within an epoch or between two epochs, go on in another layout. The
# optimizer's states are saved in one piece or in shares of the replicas.
run from_replicas 4 --replicas=2 --schedule=zb-h1 --zero "--stop_at=$((steps * 7 / 20))" --save="$work/first"
run through_threads 1 --stages=4 --schedule=zb-v "--stop_at=$((steps * 13 / 20))" --resume="$work/first" \
  --save="$work/first"
grep -q "resumed after step $((steps * 7 / 20))" "$work/through_threads.log" || fail "where it goes on"
"$program" "${tiny[@]}" --noshort_last --resume="$work/first" >"$work/filled.log" 2>&1
grep -q -e "--short_last: true in the checkpoint, false now" "$work/filled.log" || fail "resumed with other mini-batches"
expect_same to_replicas 4 --replicas=4 --zero --resume="$work/first"
run from_one 1 --stages=1 "--stop_at=$((steps * 11 / 20))" --save="$work/second"
expect_same to_pipelines 4 --replicas=2 --balance=3,6 --checkpoint=always --resume="$work/second"

# Fewer steps, another number of groups, and no short mini-batches must give other hashes, because a
# hash that never changes would show nothing.
expect_other() {
  run "$@"
  [ "$hash" != "$alone" ] || fail "$*: the same parameters"
}
expect_other fewer_steps 1 --stages=1 "--stop_at=$((steps - 1))"
expect_other one_group 1 --stages=1 --groups=1
expect_other filled_batches 1 --stages=1 --noshort_last

python3 - "$work" "$runs" <<'END' || fail "the JSON"
import glob, json, sys
read = {path: json.load(open(path)) for path in glob.glob(f"{sys.argv[1]}/*.json")}
alone = read[f"{sys.argv[1]}/alone.json"]
of = lambda run: [(part["step"], part["loss"], part["validation_loss"], part["tokens"]) for part in run["history"]]
compared = 0
for path, run in read.items():
    if run["parameter_hash"] != alone["parameter_hash"] or run is alone:
        continue
    compared += 1
    assert run["validation_loss"] == alone["validation_loss"], path
    assert run["samples"] == alone["samples"], path
    # A resumed run ("/to_") has only a part of the history, so only its last entry is compared.
    assert of(run) == of(alone) or "/to_" in path, (path, of(run), of(alone))
    assert of(run)[-1][:1] == of(alone)[-1][:1], path
assert compared == int(sys.argv[2]), (compared, sys.argv[2])
END
echo "PASSED: $runs runs, all with the parameters, losses, validation and sample of the first"
