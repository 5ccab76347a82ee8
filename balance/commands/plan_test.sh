#!/bin/bash
# Runs the command //balance:plan: mistakes, a choice, its files, limits, profiles, measuring,
# Ctrl-C.
#   plan_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

tiny=("--model=unet:1,2" --image_size=64 --batch=4)

expect_mistake "give --model=NAME" --devices=2
expect_mistake "did you mean unet?" --model=unett:5,64 --devices=2
expect_mistake "give --devices=NUMBER" "${tiny[@]}"
expect_mistake "did you mean --devices?" "${tiny[@]}" --devicess=2
expect_mistake "--devices=0: give a number from 1" "${tiny[@]}" --devices=0
expect_mistake "--devices=65: give a number from 1 to 64" "${tiny[@]}" --devices=65
expect_mistake "resnet:1,1,1,1 has 51 layers only" --model=resnet:1,1,1,1 --devices=52
for wrong in 0 -1 6 nan 22Gigs GiB; do
  expect_mistake "give a size such as 22GiB" "${tiny[@]}" --devices=2 --memory=$wrong
done
expect_mistake "'5' is not a number from 1 to 4" "${tiny[@]}" --devices=2 --chunks=2,5
expect_mistake "give always, except_last or never" "${tiny[@]}" --devices=2 --checkpoint=often
expect_mistake "--schedules=1f1b,zbv: there is no schedule 'zbv' (did you mean zb-v?)" "${tiny[@]}" --devices=2 \
  --schedules=1f1b,zbv
expect_mistake "give one beside it" "${tiny[@]}" --devices=2 --schedules=search
expect_mistake "'0' is not a number from 1 to 64" "${tiny[@]}" --devices=2 --stages_per_device=0
expect_mistake "give none, sgd, momentum" "${tiny[@]}" --devices=2 --optimizer=sdg
expect_mistake "give cpu" "${tiny[@]}" --devices=2 --measure=cuda
expect_mistake "--timeout is for --measure=cpu" "${tiny[@]}" --devices=2 --timeout=3
expect_mistake "--tflops is for times that are counted" "${tiny[@]}" --devices=2 --measure=cpu --tflops=3
expect_mistake "leave one of them out" "${tiny[@]}" --devices=2 --measure=cpu --profile=x.json
expect_mistake "No such file" "${tiny[@]}" --devices=2 --profile="$work/none.json"
expect_mistake "give a number from 0 to 1e+09" "${tiny[@]}" --devices=2 --bandwidth_gbps=-1
expect_mistake "a file name is missing next to a comma" "${tiny[@]}" --devices=2 --profile=,
expect_mistake "are the same file: give each its own" "${tiny[@]}" --devices=2 --output="$work/one" --json="$work/one"
expect_mistake "give a number from 0 to 1e+09" "${tiny[@]}" --devices=2 --bandwidth_gbps=1e300
expect_mistake "give --host_gbps, too" "${tiny[@]}" --devices=2 --offload_percent=5
expect_mistake "--devices_per_host_link: offloads need" "${tiny[@]}" --devices=2 --devices_per_host_link=2
expect_mistake "--offload: offloads need" "${tiny[@]}" --devices=2 --offload=8GiB
expect_mistake "--offload=8: give a size such as" "${tiny[@]}" --devices=2 --host_gbps=20 --offload=8
expect_mistake "or auto; for no offloads leave out --host_gbps" "${tiny[@]}" --devices=2 --host_gbps=20 --offload=none
expect_mistake "nothing can wait there" "${tiny[@]}" --devices=2 --measure=cpu --host_gbps=20
expect_mistake "tflops=0: give a number from 1e-09 to 1e+09" "${tiny[@]}" --devices=2 --tflops=0
expect_mistake "it is a folder" "${tiny[@]}" --devices=2 --json="$work"

"$program" --help >"$work/help.log" 2>&1 || fail "--help"
grep -q -e "--stages_per_device" "$work/help.log" || fail "no flags in --help"

quick=("${tiny[@]}" "--chunks=2,4" --stages_per_device=1 "--schedules=1f1b,zb-h1")
"$program" "${quick[@]}" --devices=2 --memory=22GiB --output="$work/plan.json" \
  --json="$work/all.json" >"$work/plan.log" 2>"$work/errors.log" ||
  fail "a plan: $(cat "$work/errors.log")"
for part in "^unet:1,2@64, 4 rows on 2 devices of 22.00 GiB" "^  balance " "^The next best" \
  "^The choice with one thing replaced" "^  no deadlock, .*: yes" "^  device 1: .* live"; do
  grep -q -e "$part" "$work/plan.log" || fail "no '$part' in $(cat "$work/plan.log")"
done
awk 'length($0) > 80 {exit 1}' "$work/plan.log" || fail "more than 80 columns"
"$program" "${quick[@]}" --devices=2 --memory=22GiB --output="$work/plan.txt" >"$work/again.log" \
  2>"$work/errors.log" || fail "the same again"
cmp "$work/plan.log" "$work/again.log" || fail "another choice than before"
grep -q "^gpipe plan 1$" "$work/plan.txt" || fail "no text of the plan"
python3 - "$work/plan.json" "$work/all.json" "$work/plan.txt" <<'END' || fail "the JSON"
import json, sys
plan, everything = (json.load(open(name)) for name in sys.argv[1:3])
assert plan["format"] == "gpipe plan" and plan["model"] == "unet:1,2@64", plan
assert sum(plan["balance"]) == 65 and plan["rows"] == 4, plan
assert everything["plan"] == plan
assert everything["others"] and everything["alternatives"]
assert all(other["step"] >= plan["step"] * 0.999999 for other in everything["others"])
assert plan["lower_bound"] <= plan["step"] == everything["proof"]["step"] or \
    abs(plan["step"] / everything["proof"]["step"] - 1) < 1e-9
for device in plan["devices"]:
    assert 0 < device["live"] <= device["reserved"] <= device["limit"] == 22 << 30, device
text = open(sys.argv[3]).read()
assert plan["schedule"] in text and f'chunks {plan["chunks"]}\n' in text
END

# If the memory is too small, the exit code is 1, and the memory that the message names is enough.
"$program" "${quick[@]}" --devices=2 --memory=1MiB >"$work/none.log" 2>&1
[ $? -eq 1 ] || fail "exit code if nothing fits"
needed=$(tr -s '\n ' ' ' <"$work/none.log" | sed -n 's/.*at least that (\([0-9]*\) *bytes).*/\1/p')
[ -n "$needed" ] || fail "the nearest is not named: $(cat "$work/none.log")"
"$program" "${quick[@]}" --devices=2 --memory="$needed" >"$work/near.log" 2>&1 ||
  fail "$needed bytes do not work: $(cat "$work/near.log")"

# The nearest choice by the profile needs 1.28 GiB when its memory is planned; another choice fits.
"$program" --model=unet:5,64 --devices=2 --memory=1.25GiB >"$work/another.log" 2>&1 ||
  fail "what fits is not found: $(cat "$work/another.log")"

# A profile without measured halves of backwards is accepted. The output says that halves are derived, and how far such
# predictions were off.
python3 - "$work/old.json" <<'END' || fail "making the profile"
import json, sys
layer = {"forward": 1e-3, "backward": 2e-3, "parameters": 1 << 20, "buffers": 0, "kept": 1 << 20,
         "workspace": 1 << 20, "output": 1 << 20}
json.dump({"format": "gpipe profile", "version": 1, "model": "toy", "device": "a device",
           "batch_rows": 2, "input": 1 << 20,
           "layers": [dict(layer, name=str(i)) for i in range(65)], "skips": []},
          open(sys.argv[1], "w"))
END
expect_mistake "is a profile of toy" "${tiny[@]}" --devices=2 --profile="$work/old.json"
sed -i 's/"toy"/"unet:1,2@64"/' "$work/old.json"
expect_mistake "leave --chunks out" "${tiny[@]}" --devices=2 --profile="$work/old.json" --chunks=4
"$program" "${tiny[@]}" --devices=2 --profile="$work/old.json" --schedules=zb-h1 --stages_per_device=1 \
  >"$work/old.log" 2>&1 || fail "a profile that was read: $(cat "$work/old.log")"
tr -s '\n ' ' ' <"$work/old.log" | grep -q "halves of split backwards were not measured" ||
  fail "it is not said that halves are derived"
tr -s '\n ' ' ' <"$work/old.log" | grep -q "were 1.01 to 1.10 of real steps with split backwards" ||
  fail "it is not said how far predictions of split backwards were off"

# A profile is accepted only for the kind of training that it was made for.
# only_with TEXT LINE FLAG...: without FLAG the profile is refused with TEXT; with FLAG it is
# accepted, and the plan has LINE.
only_with() {
  local text=$1 line=$2
  shift 2
  "$program" "${tiny[@]}" --devices=2 --profile="$work/old.json" >"$work/mixed.log" 2>&1 &&
    fail "a profile of another training was taken, which is for $*"
  tr -s '\n ' ' ' <"$work/mixed.log" | grep -q -e "$text" || fail "it is not said what to do: $(cat "$work/mixed.log")"
  "$program" "${tiny[@]}" --devices=2 --profile="$work/old.json" --schedules=1f1b --stages_per_device=1 "$@" \
    >"$work/with.log" 2>&1 || fail "$(cat "$work/with.log")"
  grep -q "$line" "$work/with.log" || fail "$(cat "$work/with.log")"
}
sed -i 's/"batch_rows"/"autocast": "bfloat16", "batch_rows"/' "$work/old.json"
only_with "--autocast=bfloat16 in the command" "^  autocast *bfloat16" --autocast=bfloat16
sed -i 's/"autocast": "bfloat16"/"deferred_batch_norm": true/' "$work/old.json"
only_with "(--deferred_batch_norm in the command)" "^  batch norms *deferred" --deferred_batch_norm \
  --output="$work/deferred.txt"
grep -q "^deferred_batch_norm true" "$work/deferred.txt" || fail "$(cat "$work/deferred.txt")"

"$program" "${tiny[@]}" --devices=2 --measure=cpu --timeout=0.01 --chunks=2 --schedules=1f1b \
  --stages_per_device=1 >"$work/measured.log" 2>&1 || fail "measuring: $(cat "$work/measured.log")"
grep -q "profiled on: " "$work/measured.log" || fail "it is not said what was measured"
tr -s '\n ' ' ' <"$work/measured.log" | grep -q "were 0.85 to 1.10 of real steps (of four networks, with whole backwards)" ||
  fail "it is not said how far such predictions were off"

# A mixture of experts is planned once more, with all tokens at the same experts.
mkdir "$work/experts"
echo '{"model_type": "mixtral", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 512,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 16}' \
  >"$work/experts/config.json"
"$program" --model="hf:$work/experts,64" --batch=4 --devices=2 --chunks=2 --schedules=1f1b --stages_per_device=1 --memory=1GiB \
  --json="$work/experts.json" >"$work/experts.log" 2>&1 || fail "experts: $(cat "$work/experts.log")"
grep -q "^All experts get as many tokens in this plan" "$work/experts.log" || fail "no worst case"
grep -q "That does not fit" "$work/experts.log" && fail "it does fit"
python3 - "$work/experts.json" <<'END' || fail "the worst case in the JSON"
import json, sys
plan = json.load(open(sys.argv[1]))
worst = plan["worst_case"]
assert worst["fits"] and worst["room_bytes"] == [1 << 30, 1 << 30], worst
assert [d["reserved_bytes"] for d in worst["plan"]["devices"]] == worst["needed_bytes"], worst
assert worst["plan"]["total_bytes"] > sum(plan["proof"]["traced_live"]), worst
END

"$program" "--model=gpt2:2,12,3,16,7" --tied --batch=4 --devices=2 --chunks=2 --schedules=1f1b --stages_per_device=1 \
  >"$work/tied.log" 2>&1 || fail "--tied: $(cat "$work/tied.log")"
expect_stopped "measuring" "$work/stopped.log" "$program" "${tiny[@]}" --devices=2 --measure=cpu \
  --timeout=100000
echo PASSED
