#!/bin/bash
# Tests the command //diagnose:command with a network of the zoo, with a folder that has only a
# config, and with a folder that has weights.
#   command_test.sh PROGRAM
set -u
program=$(realpath "$1")
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

tiny=("--model=gpt2:2,12,3,16,7" --batch=4 --chunks=2 --seconds=0.01)
expect_mistake "give --model=NAME" --partitions=2
expect_mistake "give --partitions=NUMBER, or a cut" "${tiny[@]}"
expect_mistake "--partitions=8: gpt2:2,12,3,16,7 has 7 layers only" "${tiny[@]}" --partitions=8
expect_mistake "--partitions=3: --balance has 2" "${tiny[@]}" --partitions=3 --balance=3,4
expect_mistake "sums up to 8, but gpt2:2,12,3,16,7 has 7 layers" "${tiny[@]}" --balance=4,4
expect_mistake "--chunks=5: a mini-batch of 4 rows cannot be cut into more" "${tiny[@]}" --partitions=2 --chunks=5
expect_mistake "--batch=0: give a number from 1" "${tiny[@]}" --partitions=2 --batch=0
expect_mistake "there is no schedule" "${tiny[@]}" --partitions=2 --schedule=zero
expect_mistake "--seconds=0: give a number from 0.001" "${tiny[@]}" --partitions=2 --seconds=0
expect_mistake "--seconds=nan: give a number from 0.001" "${tiny[@]}" --partitions=2 --seconds=nan
expect_mistake "it is a folder" "${tiny[@]}" --partitions=2 --json="$work"
expect_mistake "model 'hf:$work': " --model="hf:$work" --partitions=2

# told NAME ARGS...: makes a diagnosis, and expects that the text is about the pipeline, and that
# the JSON has a step and two partitions.
told() {
  local name=$1
  shift
  "$program" "$@" --json="$work/$name.json" >"$work/$name.log" 2>"$work/errors.log" ||
    fail "$name: $(cat "$work/errors.log")"
  grep -q "^A step of 4 rows in 2 micro-batches takes" "$work/$name.log" || fail "$name: $(cat "$work/$name.log")"
  awk 'length($0) > 80 {exit 1}' "$work/$name.log" || fail "$name: more than 80 columns"
  python3 - "$work/$name.json" <<'PYTHON' || fail "$name: the JSON"
import json, sys
diagnosis = json.load(open(sys.argv[1]))
assert diagnosis["step"] > 0 and len(diagnosis["partitions"]) == 2, diagnosis
PYTHON
}
told zoo "${tiny[@]}" --partitions=2
grep -q "weights" "$work/zoo.log" && fail "a model of the zoo has no files"
told cut "${tiny[@]}" --balance=3,4 --checkpoint=never --schedule=zb-h1 --threads=1
grep -q "Setup: balance {3, 4}, chunks 2, checkpoint never, schedule zb-h1" "$work/cut.log" || fail "$(cat "$work/cut.log")"

# The command accepts a folder with a config alone, one with experts, and one with weights, which it reads.
config='"vocab_size": 7, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4'
cd "$work" || fail "no folder"
mkdir llama experts
echo "{\"model_type\": \"llama\", $config}" >llama/config.json
echo "{\"model_type\": \"mixtral\", $config, \"num_key_value_heads\": 2, \"num_local_experts\": 4}" \
  >experts/config.json
small=(--batch=4 --chunks=2 --seconds=0.01 --partitions=2)
told llama --model=hf:llama,8 "${small[@]}"
tr -s '\n ' ' ' <"$work/llama.log" | grep -q "Its weights are random, as the folder has none: times are those of the real ones\." ||
  fail "not told that weights are random: $(cat "$work/llama.log")"
told experts --model=hf:experts,8 "${small[@]}"
tr -s '\n ' ' ' <"$work/experts.log" | grep -q "a trained router sends its tokens to other experts" ||
  fail "not told of the router: $(cat "$work/experts.log")"
told lora --model=hf:llama,8 --lora=2 "${small[@]}"
echo "not weights" >llama/model.safetensors
"$program" --model=hf:llama,8 "${small[@]}" >"$work/damaged.log" 2>&1 && fail "damaged weights are taken"
grep -q "model.safetensors" "$work/damaged.log" || fail "damaged weights: $(cat "$work/damaged.log")"
python3 - llama <<'PYTHON' || fail "no weights"
import json, struct, sys
E, F, V = 16, 24, 7
shapes = {"model.embed_tokens.weight": [V, E], "model.norm.weight": [E], "lm_head.weight": [V, E]}
for k in range(2):
    layer = f"model.layers.{k}."
    for name in "q", "k", "v", "o":
        shapes[f"{layer}self_attn.{name}_proj.weight"] = [E, E]
    for name in "gate", "up":
        shapes[f"{layer}mlp.{name}_proj.weight"] = [F, E]
    shapes[f"{layer}mlp.down_proj.weight"] = [E, F]
    for name in "input", "post_attention":
        shapes[f"{layer}{name}_layernorm.weight"] = [E]
header, offset, data = {}, 0, b""
for name, shape in shapes.items():
    count = 1
    for side in shape:
        count *= side
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + 4 * count]}
    offset += 4 * count
    data += struct.pack("<f", 0.125) * count
text = json.dumps(header).encode()
open(sys.argv[1] + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON
told weights --model=hf:llama,8 "${small[@]}"
tr -s '\n ' ' ' <"$work/weights.log" | grep -q "Its weights are the folder's\." ||
  fail "not told which weights: $(cat "$work/weights.log")"
# Ctrl-C ends the command while it looks for a cut (--partitions), and while it measures steps
# (--balance).
for cut in --partitions=2 --balance=3,4; do
  expect_stopped "^measuring" "$work/stopped.log" "$program" "${tiny[@]}" "$cut" --seconds=1000
done
echo PASSED
