#!/bin/bash
# Runs the command //balance:fit: mistakes, one model, a family, JSON, Ctrl-C.
#   fit_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

net=("--model=unet:1,2" --image_size=64)
tiny=("${net[@]}" --batch=4)

expect_mistake "give --model=NAME, or --family=NAME" --devices_gib=1
expect_mistake "not both" --model=unet:1,2 --family='unet:*,2' --devices_gib=1
expect_mistake "give one \* for the number that grows" --family=unet:1,2 --devices_gib=1
expect_mistake "did you mean unet?" --model=unett:5,64 --devices_gib=1
expect_mistake "give --devices_gib=22,22" "${tiny[@]}"
expect_mistake "did you mean --devices_gib?" "${tiny[@]}" --device_gib=1
for wrong in 0 -1 nan inf; do
  expect_mistake "is not a valid amount of memory; give numbers above 0" "${tiny[@]}" --devices_gib="1,$wrong"
done
expect_mistake "'x' is not a number" "${tiny[@]}" --devices_gib=1,x
expect_mistake "must be smaller than every device" "${tiny[@]}" --devices_gib=1,2 --margin_gib=1
expect_mistake "is not a number from 1 to the 4 rows" "${tiny[@]}" --devices_gib=1 --chunks=2,5
expect_mistake "give always, except_last or never" "${tiny[@]}" --devices_gib=1 --checkpoint=often
expect_mistake "there is no schedule" "${tiny[@]}" --devices_gib=1 --schedule=zero
# Several stages on a device would be planned as if each had a device of its own.
for several in zb-v interleaved sequential; do
  expect_mistake "--schedule=$several: it has several stages on a device, and fit plans one on each device" \
    "${tiny[@]}" --devices_gib=1,1 --schedule="$several"
done
expect_mistake "give gpipe, fill-drain, 1f1b, zb-h1, zb-h2, or use the command plan with --schedules=zb-v" \
  "${tiny[@]}" --devices_gib=1,1,1 --schedule=zb-v
# The command plan has no schedule of one worker.
expect_mistake "give gpipe, fill-drain, 1f1b, zb-h1, zb-h2" "${tiny[@]}" --devices_gib=1,1 --schedule=sequential
if grep -q "command plan" "$work/mistake.log"; then fail "plan has no schedule sequential"; fi
expect_mistake "it has several stages on a device" --family='unet:*,2' --devices_gib=1,1 --schedule=v-half
expect_mistake "give none, sgd, momentum" "${tiny[@]}" --devices_gib=1 --optimizer=sdg
expect_mistake "is for --family" "${tiny[@]}" --devices_gib=1 --step=2
expect_mistake "--step=0: give a number from 1" --family='unet:*,2' --devices_gib=1 --step=0
expect_mistake "--image_size=0: give a number from 1" "${tiny[@]}" --devices_gib=1 --image_size=0
expect_mistake "devices, but resnet:1,1,1,1 has 51 layers" --model=resnet:1,1,1,1 \
  --devices_gib="$(printf '1,%.0s' $(seq 59))1"
expect_mistake "give one number of micro-batches" "${net[@]}" --devices_gib=1 --most_batch=64
expect_mistake "give one number of micro-batches" "${net[@]}" --devices_gib=1 --most_batch=64 --chunks=2,4
expect_mistake "is not a number from 1 to the 4 of --most_batch" "${net[@]}" --devices_gib=1 --most_batch=4 --chunks=8
expect_mistake "--most_batch=0: give a number from 1" "${net[@]}" --devices_gib=1 --most_batch=0 --chunks=1
expect_mistake "--most_batch and --batch" "${tiny[@]}" --devices_gib=1 --most_batch=8 --chunks=2
expect_mistake "is for one model" --family='unet:*,2' --devices_gib=1 --most_batch=8 --chunks=2
expect_mistake "it is a folder" "${tiny[@]}" --devices_gib=1 --json="$work"

"$program" --help >"$work/help.log" 2>&1 || fail "--help"
grep -q -e "--devices_gib" "$work/help.log" || fail "no flags in --help"

"$program" "${tiny[@]}" --devices_gib=1,1 --json="$work/one.json" >"$work/one.log" 2>"$work/errors.log" ||
  fail "a model that fits"
grep -q "^balance: " "$work/one.log" || fail "no balance"
awk 'length($0) > 80 {exit 1}' "$work/one.log" || fail "more than 80 columns"
python3 - "$work/one.json" <<'END' || fail "the JSON"
import json, sys
fit = json.load(open(sys.argv[1]))
answer = fit["answer"]
assert fit["batch"] == 4 and answer["fits"] and answer["checkpoint"] == "never"
assert sum(answer["plan"]["balance"]) == 65 and len(answer["needed_bytes"]) == 2
assert all(n <= r for n, r in zip(answer["needed_bytes"], answer["room_bytes"]))
END

"$program" "${tiny[@]}" --devices_gib=1,1 --schedule=zb-h1 >"$work/split.log" 2>&1 || fail "--schedule=zb-h1"
grep -q "checkpoint never, zb-h1" "$work/split.log" || fail "not zb-h1: $(cat "$work/split.log")"
"$program" "${tiny[@]}" --devices_gib=1 --schedule=sequential >"$work/plain.log" 2>&1 ||
  fail "one device: $(cat "$work/plain.log")"

# Under autocast the plan's text names the guard.
"$program" "${tiny[@]}" --devices_gib=1,1 --autocast=bfloat16 >"$work/cast.log" 2>&1 || fail "--autocast"
grep -q "under autocast to bfloat16" "$work/cast.log" || fail "not under autocast: $(cat "$work/cast.log")"

"$program" "${tiny[@]}" --devices_gib=1,1 --deferred_batch_norm >"$work/deferred.log" 2>&1 ||
  fail "--deferred_batch_norm"
grep -q "batch norms deferred" "$work/deferred.log" || fail "not deferred: $(cat "$work/deferred.log")"

"$program" "${tiny[@]}" --devices_gib=0.001,0.001 >"$work/none.log" 2>&1
[ $? -eq 1 ] || fail "exit code if nothing fits"
grep -q "unet:1,2 does not fit: " "$work/none.log" || fail "the limit is not named"

"$program" --family='unet:*,8' --image_size=64 --batch=4 --devices_gib=0.05,0.05 \
  --json="$work/family.json" >"$work/family.log" 2>&1 || fail "a family"
python3 - "$work/family.json" <<'END' || fail "the JSON of a family"
import json, sys
fit = json.load(open(sys.argv[1]))
number = lambda item: int(item["model"].split(":")[1].split(",")[0])
assert fit["answer"]["fits"] and not fit["next"]["fits"]
assert number(fit["next"]) == number(fit["answer"]) + 1 > 2
assert "too little" in fit["next"]["limit"]
END

# The largest mini-batch fits when it is asked for alone, and the next one does not.
small=("--model=unet:1,8" --image_size=64 --chunks=4 "--devices_gib=0.04,0.04")
"$program" "${small[@]}" --most_batch=4096 --json="$work/batch.json" >"$work/batch.log" 2>&1 || fail "a batch"
rows=$(sed -n 's/^unet:1,8: \([0-9]*\) rows in 4 micro-batches.*/\1/p' "$work/batch.log")
next=$(sed -n 's/^unet:1,8 with \([0-9]*\) rows does not fit: .*/\1/p' "$work/batch.log")
[ "${rows:-0}" -gt 4 ] || fail "largest batch $rows"
[ "$next" -eq $((rows + 4)) ] || fail "largest batch $rows, next $next"
python3 -c 'import json, sys; fit = json.load(open(sys.argv[1])); assert fit["answer"]["batch"] == int(sys.argv[2])' \
  "$work/batch.json" "$rows" || fail "the JSON of a batch"
"$program" "${small[@]}" --batch="$rows" >"$work/fits.log" 2>&1 || fail "$rows rows do not fit alone"
"$program" "${small[@]}" --batch="$next" >"$work/none.log" 2>&1
[ $? -eq 1 ] || fail "$next rows fit alone"

# A mixture of experts is planned once more, with all tokens at the same experts.
mkdir "$work/experts"
echo '{"model_type": "mixtral", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 512,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 16}' \
  >"$work/experts/config.json"
"$program" --model="hf:$work/experts,64" --batch=4 --devices_gib=1,1 \
  --json="$work/experts.json" >"$work/experts.log" 2>&1 || fail "experts: $(cat "$work/experts.log")"
grep -q "^All experts get as many tokens in this plan" "$work/experts.log" || fail "no worst case"
grep -q "That does not fit" "$work/experts.log" && fail "it does fit"
python3 - "$work/experts.json" <<'END' || fail "the worst case in the JSON"
import json, sys
answer = json.load(open(sys.argv[1]))["answer"]
worst = answer["worst_case"]
assert worst["fits"] and worst["room_bytes"] == answer["room_bytes"], worst
assert worst["needed_bytes"] == [d["reserved_bytes"] for d in worst["plan"]["devices"]], worst
assert worst["plan"]["total_bytes"] > answer["plan"]["total_bytes"], worst
END

"$program" "--model=gpt2:2,12,3,16,7" --tied --batch=4 --chunks=2 --devices_gib=0.1,0.1 >"$work/tied.log" 2>&1 ||
  fail "--tied: $(cat "$work/tied.log")"
expect_stopped "member" "$work/stopped.log" "$program" --family='unet:*,64' --devices_gib=22,22,22,22
echo PASSED
