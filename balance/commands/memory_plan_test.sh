#!/bin/bash
# Runs the command //balance:memory_plan: mistakes, the table, files.
#   memory_plan_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

small=("--model=unet:1,8" --image_size=32)
expect_mistake "give --model=NAME"
expect_mistake "did you mean unet?" --model=unett:5,64
expect_mistake "did you mean --balance?" --balances=2 "${small[@]}"
expect_mistake "sums up to 7, but unet:1,8 has 65 layers" "${small[@]}" --balance=3,4
expect_mistake "give always, except_last or never" "${small[@]}" --checkpoint=often
expect_mistake "there is no schedule" "${small[@]}" --schedule=zero
expect_mistake "needs a multiple of that, got 3 stages" "${small[@]}" --schedule=zb-v --balance=30,30,5
expect_mistake "give none, sgd, momentum" "${small[@]}" --optimizer=adamm
expect_mistake "--image_size=0: give a number from 1" --model=unet:1,8 --image_size=0
expect_mistake "--batch=0: give a number from 1" "${small[@]}" --batch=0
expect_mistake "--chunks=0: give a number from 1" "${small[@]}" --chunks=0
expect_mistake "--device_gib=-1: give a number from 0" "${small[@]}" --device_gib=-1
expect_mistake "less than a byte" "${small[@]}" --device_gib=1e-12
expect_mistake "it is a folder" "${small[@]}" --svg="$work"
expect_mistake "give cuda or cpu" "${small[@]}" --device=tpu
expect_mistake "model 'unet:1,8' has no embedding" "${small[@]}" --tied
expect_mistake "--lora=8: unet:1,8 has no layers that take adapters" "${small[@]}" --lora=8
expect_mistake "--lora=0: give a number from 1" --model=llama:2,16,2,1,8 --lora=0

"$program" "${small[@]}" --balance=30,35 --batch=8 --chunks=4 --optimizer=adam \
  --json="$work/plan.json" --svg="$work/plan.svg" >"$work/out" 2>"$work/err" ||
  fail "the plan: $(cat "$work/err")"
grep -q "^dev\. layers" "$work/out" || fail "no table: $(cat "$work/out")"
grep -q "^1    30-64" "$work/out" || fail "no row of device 1: $(cat "$work/out")"
grep -q "^<svg .*" "$work/plan.svg" || fail "no picture"
python3 - "$work/plan.json" <<'END' || fail "the JSON"
import json, sys
plan = json.load(open(sys.argv[1]))
assert plan["model"] == "unet:1,8" and plan["batch"] == 8 and plan["optimizer"] == "adam", plan
assert plan["total_bytes"] == sum(d["total_bytes"] for d in plan["devices"]), plan
assert plan["parameters"] == sum(d["parameters"] for d in plan["devices"]), plan
for device in plan["devices"]:
    assert device["parameter_bytes"] == 4 * device["parameters"], device
    assert device["optimizer_state_bytes"] == 2 * device["parameter_bytes"], device
    assert device["total_bytes"] == sum(device["peak"]["bytes"].values()), device
END

grep -q "Links between" "$work/out" && fail "links, unasked"
grep -q '"links"' "$work/plan.json" && fail "links in the JSON, unasked"
"$program" "${small[@]}" --balance=30,35 --batch=8 --chunks=4 --links --json="$work/links.json" >"$work/links" 2>&1 ||
  fail "--links"
grep -q "^Links between GPUs" "$work/links" || fail "no links: $(cat "$work/links")"
python3 - "$work/links.json" <<'END' || fail "the links in the JSON"
import json, sys
first, last = json.load(open(sys.argv[1]))["links"]
assert first["message_bytes"] > 0 and last["message_bytes"] > 0, (first, last)
# Each end of the two edges, one for each direction, has buffers of its own.
assert first["buffer_bytes"] == last["buffer_bytes"] == (24 + 40) * 2**20, (first, last)
END

grep -q "^Planned for CUDA devices" "$work/out" || fail "not for which devices: $(cat "$work/out")"
"$program" "${small[@]}" --device=cpu >"$work/cpu" 2>&1 || fail "a plan for the CPU"
grep -q "^Planned for the CPU" "$work/cpu" || fail "not for the CPU: $(cat "$work/cpu")"
grep -q "^Uncertain by convolutions" "$work/cpu" || fail "nothing is uncertain: $(cat "$work/cpu")"

# Under an autocast guard the plan also has copies of the convolutions' weights.
expect_mistake "--links with --device=cpu" "${small[@]}" --links --device=cpu
expect_mistake "give bfloat16 or float16" "${small[@]}" --autocast=fp8
"$program" "${small[@]}" --device=cpu --autocast=bfloat16 --json="$work/cast.json" >"$work/cast" 2>&1 ||
  fail "--autocast: $(cat "$work/cast")"
grep -q "^Planned for the CPU, under autocast to bfloat16" "$work/cast" || fail "$(cat "$work/cast")"
grep -q '"autocast": "bfloat16"' "$work/cast.json" || fail "no autocast in the JSON"
cmp -s "$work/cast" "$work/cpu" && fail "--autocast makes no difference"

# With deferred batch norms the plan also has the norms' moments, which live until the end of the step.
"$program" "${small[@]}" --device=cpu --deferred_batch_norm --json="$work/deferred.json" >"$work/deferred" 2>&1 ||
  fail "--deferred_batch_norm: $(cat "$work/deferred")"
grep -q "^Planned for the CPU, batch norms deferred" "$work/deferred" || fail "$(cat "$work/deferred")"
grep -q '"deferred_batch_norm": true' "$work/deferred.json" || fail "not in the JSON"

# If a device is too small, the command says so as its result. This is not an error.
"$program" "${small[@]}" --device_gib=0.001 >"$work/out" 2>&1 || fail "too small a device"
grep -q "no room" "$work/out" || fail "no 'no room': $(cat "$work/out")"

# The same holds for a device of about ten bytes.
"$program" "${small[@]}" --device_gib=1e-8 >"$work/out" 2>&1 || fail "a device of ten bytes"
grep -q "no room" "$work/out" || fail "a device of ten bytes has room: $(cat "$work/out")"

# Adagrad, which makes its state in its constructor, can be planned, too.
"$program" "${small[@]}" --balance=30,35 --optimizer=adagrad >"$work/out" 2>&1 ||
  fail "adagrad: $(cat "$work/out")"

# A head that is tied to the embedding has no matrix of its own, so there are fewer parameters.
words=("--model=gpt2:2,12,3,16,7" "--balance=3,4" --batch=4 --chunks=2)
"$program" "${words[@]}" --json="$work/untied.json" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
"$program" "${words[@]}" --tied --json="$work/tied.json" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
python3 - "$work" <<'END' || fail "--tied"
import json, sys
untied, tied = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ["untied", "tied"])
assert tied["parameters"] == untied["parameters"] - 7 * 12, (tied["parameters"], untied["parameters"])
END

# With --lora only the adapters are trained. Each of two blocks has adapters for q, k, v and o, of
# 16, 8, 8 and 16 rows, and for the three matrices of the MLP between 16 and 256.
words=("--model=llama:2,16,2,1,8,7" "--balance=3,4" --batch=4 --chunks=2 --optimizer=adam)
"$program" "${words[@]}" --json="$work/full.json" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
"$program" "${words[@]}" --lora=2 --json="$work/lora.json" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
python3 - "$work" <<'END' || fail "--lora"
import json, sys
full, lora = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ["full", "lora"])
trained = 2 * 2 * (2 * (16 + 16) + 2 * (16 + 8) + 3 * (16 + 256))
assert lora["parameters"] == full["parameters"] + trained, (lora["parameters"], full["parameters"], trained)
states = [sum(d["optimizer_state_bytes"] for d in plan["devices"]) for plan in (full, lora)]
assert states == [2 * 4 * full["parameters"], 2 * 4 * trained], states
END

# If --chunks is more than there are rows, as many micro-batches as rows are made.
"$program" "${small[@]}" --batch=2 --chunks=8 >"$work/out" 2>&1 || fail "$(cat "$work/out")"

# The worst case of experts is in the JSON, too.
mkdir "$work/experts"
echo '{"model_type": "mixtral", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 512,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 16}' \
  >"$work/experts/config.json"
"$program" --model="hf:$work/experts,64" --batch=4 --chunks=2 --json="$work/experts.json" >"$work/out" 2>&1 ||
  fail "$(cat "$work/out")"
grep -q "^All experts get as many tokens in this plan" "$work/out" || fail "no worst case"
python3 - "$work/experts.json" <<'END' || fail "the worst case in the JSON"
import json, sys
plan = json.load(open(sys.argv[1]))
assert list(plan["worst_case"]) == ["plan"], plan["worst_case"]
assert plan["worst_case"]["plan"]["total_bytes"] > plan["total_bytes"], plan
END
echo PASSED
