#!/bin/bash
# Fine-tunes a small random Llama. The loss falls, with adapters and with all parameters. The hash
# and the folder that is written are the same in every layout, and for a run that is stopped, also
# by a signal, and goes on. The program names mistakes.
#   fine_tune_test.sh PROGRAM LAUNCH MAKE_INPUTS
set -u
program=$1
launch=$2
# shellcheck source=command/program_testing.sh
source command/program_testing.sh
"$3" "$work/in" || fail "no inputs"
tiny=(--model="$work/in/model" --data="$work/in/chats.safetensors" --validation="$work/in/held_out.safetensors"
  --length=24 --batch=6 --chunks=4 --groups=4 --steps=20 --validate_every=5 --save_every=7 --warm_up=2
  --learning_rate=0.02 --threads=1)
full=("${tiny[@]}" --nolora)
tiny+=(--lora_dropout=0.1 --rank=4 --alpha=8)

# hash_of NAME COMMAND...: runs the command and sets `hash` to the hash of the parameters that it
# prints. The command's output goes to NAME.log.
hash_of() {
  local name=$1
  shift
  "$@" >"$work/$name.log" 2>&1 || fail "$name: $*"
  hash=$(sed -n 's/^\(\[0\] \)\?parameters \([0-9a-f]*\)$/\2/p' "$work/$name.log")
  [[ $hash =~ ^[0-9a-f]{16}$ ]] || fail "$name: no hash"
  ! grep "without GPipeOptions::world" "$work/$name.log" || fail "$name warns of the pipeline that makes the result"
}
# losses NAME: prints the validation losses in the lines of the run.
losses() { sed -n 's/.*validation \([0-9.]*\).*/\1/p' "$work/$1.log"; }
expect_fallen() {
  sed -n 's/^step .*: loss \([0-9.]*\), validation \([0-9.]*\).*/\1 \2/p' "$work/$1.log" >"$work/fallen"
  awk 'NR == 1 { loss = $1; held_out = $2 } END { exit !(NR == 4 && $1 < 0.7 * loss && $2 < held_out) }' \
    "$work/fallen" || fail "$1: the loss has not fallen: $(cat "$work/fallen")"
}

compared=0
# expect_same NAME FILE: the hash, the losses and the result's FILE must be those of the run in one
# process.
expect_same() {
  [ "$hash" = "$alone" ] || fail "$1: parameters $hash instead of $alone"
  diff <(losses "$kind") <(losses "$1" | tail -n 4) || fail "$1: other losses"
  cmp "$work/$kind/$2" "$work/$1/$2" || fail "$1: another $2"
  compared=$((compared + 1))
}

for kind in lora dora full average tied; do
  all=("${tiny[@]}")
  case $kind in
  full | tied) all=("${full[@]}") ;;
  esac
  case $kind in
  lora) more=() file=adapter/adapter_model.safetensors ;;
  dora) more=(--dora "--targets=q_proj,v_proj,down_proj") file=adapter/adapter_model.safetensors ;;
  full) more=(--learning_rate=0.005) file=model/model.safetensors ;;
  average) more=(--average=0.8 --merge --learning_rate=0.05 "--targets=k_proj,up_proj") file=model/model.safetensors ;;
  tied) more=(--model="$work/in/tied" --average=0.8 --learning_rate=0.005) file=model/model.safetensors ;;
  esac
  hash_of $kind "$program" "${all[@]}" "${more[@]}" --run="$work/$kind"
  alone=$hash
  expect_fallen $kind
  [ -e "$work/$kind/$file" ] || fail "$kind: no $file"
  grep -q "wrote $work/$kind/${file%/*}" "$work/$kind.log" || fail "$kind: does not say what it wrote"

  run="$work/$kind"
  hash_of "$kind-two" "$launch" --processes=2 -- "$program" "${all[@]}" "${more[@]}" --run="$run-two"
  expect_same "$kind-two" "$file"
  hash_of "$kind-replicas" "$launch" --processes=2 -- "$program" "${all[@]}" "${more[@]}" --run="$run-replicas" \
    --replicas=2 --zero --checkpoint=always
  expect_same "$kind-replicas" "$file"
  # A run that is stopped within an epoch and between validations goes on in another layout.
  hash_of "$kind-again" "$launch" --processes=4 -- "$program" "${all[@]}" "${more[@]}" --run="$run-again" --replicas=2 \
    --zero --stop_at=8
  grep -q "the same command goes on after step 8" "$work/$kind-again.log" || fail "$kind: does not say that it goes on"
  [ ! -e "$run-again/${file%/*}" ] || fail "$kind: a result before the end"
  mv "$work/$kind-again.log" "$work/$kind-first.log"
  hash_of "$kind-again" "$program" "${all[@]}" "${more[@]}" --run="$run-again" --stages=3 --schedule=zb-h1
  grep -q "^goes on after step 8, from $run-again/last$" "$work/$kind-again.log" || fail "$kind: does not go on"
  cat "$work/$kind-first.log" "$work/$kind-again.log" >"$work/both.log"
  sed 's/^\[0\] //' "$work/both.log" >"$work/$kind-again.log"
  hash=$(sed -n 's/^parameters //p' "$work/$kind-again.log" | tail -n 1)
  expect_same "$kind-again" "$file"
done
# The five kinds of training end with five different hashes.
[ "$(cat "$work"/{lora,dora,full,average,tied}.log | sed -n 's/^parameters //p' | sort -u | wc -l)" -eq 5 ] ||
  fail "runs with the same hash"
# The program says that the model has no tokenizer only if it writes a model and not an adapter, and
# if there is none.
grep -q "has no tokenizer" "$work"/{lora,dora,tied}.log && fail "a tokenizer is told to be missing"
for kind in average full; do
  [ "$(grep -c "^it has no tokenizer, as --model=$work/in/model has none: copy one into it$" "$work/$kind.log")" -eq 1 ] ||
    fail "$kind: a missing tokenizer is not told"
done
# Flags that do nothing in a layout are named. The runs above have none.
grep -q "does nothing" "$work"/*.log && fail "flags are told to do nothing"
hash_of idle "$program" "${tiny[@]}" --run="$work/idle" --zero --resume_anyway --data="$work/in/of_tokenizer.safetensors" \
  --model="$work/in/tied" --stop_at=1
grep -q -e "^--zero does nothing without replicas" "$work/idle.log" || fail "--zero alone is not told"
grep -q -e "^--resume_anyway does nothing: there is no checkpoint in $work/idle/last" "$work/idle.log" ||
  fail "--resume_anyway alone is not told"
# Adapters leave the base's weights as they are, but the merged model must differ from the base.
cmp -s "$work/in/model/model.safetensors" "$work/average/model/model.safetensors" && fail "nothing was merged"
# With --nopacked the mini-batches differ, so the parameters must differ, too.
alone=$(sed -n 's/^parameters //p' "$work/lora.log")
hash_of apart "$program" "${tiny[@]}" --nopacked --run="$work/apart"
[ "$hash" != "$alone" ] || fail "--nopacked: the same parameters"

# --clip=0 does not mean a largest norm of 0: it must give the parameters of a run with a limit that
# is never reached.
hash_of not_clipped "$program" "${tiny[@]}" --clip=0 --run="$work/not_clipped"
not_clipped=$hash
hash_of large_clip "$program" "${tiny[@]}" --clip=1e9 --run="$work/large_clip"
[ "$hash" = "$not_clipped" ] || fail "--clip=0 is not --clip=1e9"
# LibTorch's own attention has no soft cap, so a model with one is trained without it.
hash_of capped "$program" "${tiny[@]}" --model="$work/in/capped" --steps=2 --run="$work/capped"
# The program says how many conversations have more tokens than the model has positions. With 64
# positions, as in the runs above, no conversation has.
grep -q "max_position_embeddings" "$work/lora.log" && fail "conversations are told to be too long"
hash_of beyond "$program" "${tiny[@]}" --model="$work/in/short" --steps=1 --run="$work/beyond"
grep -q "^data: [1-9][0-9]* conversations have more tokens than the model's 8 positions (max_position_embeddings)" \
  "$work/beyond.log" || fail "long conversations are not told: $(cat "$work/beyond.log")"
grep -q "; --length=8 cuts them" "$work/beyond.log" || fail "it is not said what to do"
hash_of within "$program" "${tiny[@]}" --model="$work/in/short" --steps=1 --run="$work/within" --length=8
grep -q "max_position_embeddings" "$work/within.log" && fail "conversations that are cut are told to be too long"

# A run that is over writes its result again, and trains nothing.
rm -r "$work/lora/adapter"
hash_of over "$program" "${tiny[@]}" --run="$work/lora"
[ "$hash" = "$alone" ] || fail "a run that is over goes on"
cmp "$work/lora/adapter/adapter_model.safetensors" "$work/lora-two/adapter/adapter_model.safetensors" ||
  fail "another adapter"

# With --patience=2 the run ends early and keeps the best checkpoint, because the learning rate is
# soon far too high.
hash_of early "$program" "${full[@]}" --run="$work/early" --steps=60 --patience=2 --validate_every=1 \
  --learning_rate=0.5 --warm_up=30 --clip=1000
grep -q "ends early: step [0-9]* was the best" "$work/early.log" || fail "no early end"
[ "$(losses early | tail -n 3 | sort -g | head -n 1)" = "$(losses early | sort -g | head -n 1)" ] ||
  fail "the best was not the third from the end"
hash_of early_again "$program" "${full[@]}" --run="$work/early" --steps=60 --patience=2 --validate_every=1 \
  --learning_rate=0.5 --warm_up=30 --clip=1000
grep -q "^step" "$work/early_again.log" && fail "an early end goes on"

# After a signal, all ranks save after the same step, and end.
expect_saved() { # NAME SIGNAL CODE COMMAND...
  local name=$1 signal=$2 code=$3
  shift 3
  expect_stopped_by "$signal" "$code" "step 5:" "$work/$name.log" "$@"
  grep -q "the same command goes on after step" "$work/$name.log" || fail "$name: does not say how it goes on"
  [ -e "$work/$name/last/model.safetensors" ] || [ -e "$work/$name/last/model.safetensors.index.json" ] ||
    fail "$name: nothing is saved"
}
long=("${tiny[@]}" --steps=1000000 --save_every=0)
expect_saved interrupted INT 130 "$program" "${long[@]}" --run="$work/interrupted"
expect_saved told USR1 0 "$program" "${long[@]}" --run="$work/told"
expect_saved told_two USR1 0 "$launch" --processes=2 -- "$program" "${long[@]}" --run="$work/told_two"
expect_saved interrupted_two INT 130 "$launch" --processes=2 -- "$program" "${long[@]}" --run="$work/interrupted_two"

# A loss that is not finite ends all ranks, and what was saved before stays. With the first step's
# adapters the product of the three layers is about 1e50, more than a float can hold, whatever the
# processor. Smaller values may give a uniform distribution instead, and the run goes on.
"$launch" --processes=2 -- "$program" "${tiny[@]}" --run="$work/lost" --save_every=1 --warm_up=0 --learning_rate=1e9 \
  --alpha=1e9 --targets=gate_proj,up_proj,down_proj --weight_decay=0 --steps=12 >"$work/lost.log" 2>&1
[ $? -eq 1 ] || fail "a loss that is not finite: exit code"
grep -q "error: the loss of the step after step [0-9]* is -\?nan, so this run cannot go on; $work/lost/last has step [0-9]" \
  "$work/lost.log" || fail "a loss that is not finite is not told"
[ ! -e "$work/lost/adapter" ] || fail "an adapter without values"

# The run refuses a "best" checkpoint that is missing or belongs to another step.
cp -r "$work/lora" "$work/other"
rm -r "$work/other/best"
expect_mistake "was the best so far, and $work/other/best is missing" "${tiny[@]}" --run="$work/other"
cp -r "$work/lora/last" "$work/other/best"
best=$(sed -n 's/^step \([0-9]*\):.*, the best$/\1/p' "$work/lora.log" | tail -n 1)
if [ "$best" -ne 20 ]; then
  "$program" "${tiny[@]}" --run="$work/other" >"$work/other.log" 2>&1
  [ $? -eq 1 ] || fail "another best checkpoint: exit code"
  grep -q "has step 20, and step $best was the best of this run" "$work/other.log" || fail "another best checkpoint"
fi

# Wrong usage: each mistake must end the program with a message.
new=(--run="$work/new")
expect_mistake "--model=$work/none: there is no such folder" "${tiny[@]}" "${new[@]}" --model="$work/none"
expect_mistake "--model=$work: cannot read $work/config.json" "${tiny[@]}" "${new[@]}" --model="$work"
mkdir "$work/empty"
cp "$work/in/model/config.json" "$work/empty"
expect_mistake "there is neither model.safetensors nor" "${tiny[@]}" "${new[@]}" --model="$work/empty"
expect_mistake "--data is missing" --model="$work/in/model" "${new[@]}"
expect_mistake "'ids' has 24 tokens and 'mask' 23" "${tiny[@]}" "${new[@]}" --data="$work/in/wrong_mask.safetensors"
expect_mistake "token 4 has the id 40, the model has 40" "${tiny[@]}" "${new[@]}" --data="$work/in/wrong_id.safetensors"
expect_mistake "there is no answer to learn" "${tiny[@]}" "${new[@]}" --validation="$work/in/wrong_answers.safetensors"
expect_mistake "there is no answer to learn" "${tiny[@]}" "${new[@]}" --length=2
expect_mistake "'offsets' must not fall" "${tiny[@]}" "${new[@]}" --data="$work/in/wrong_offsets.safetensors"
expect_mistake "it has no tensor 'mask'" "${tiny[@]}" "${new[@]}" --data="$work/in/wrong_names.safetensors"
expect_mistake "--data=/dev/null: " "${tiny[@]}" "${new[@]}" --data=/dev/null
expect_mistake "no layer has the name 'c_attn'" "${tiny[@]}" "${new[@]}" --targets=c_attn,q_proj
expect_mistake "--targets=lm_head: 'lm_head' is a TokenHead" "${tiny[@]}" "${new[@]}" --targets=lm_head
expect_mistake "--type=bfloat16: steps of --nolora" "${full[@]}" "${new[@]}" --type=bfloat16
expect_mistake "--rank=4, --alpha=8, --lora_dropout=0.1: with --nolora there are no adapters" "${tiny[@]}" "${new[@]}" \
  --nolora
expect_mistake "--merge=true: with --nolora .*; leave it out, or --nolora" "${full[@]}" "${new[@]}" --merge
expect_mistake "another tokenizer: tokenizer.json had 3 bytes" "${tiny[@]}" "${new[@]}" --model="$work/in/tied" \
  --validation="$work/in/wrong_tokenizer.safetensors"
expect_mistake "--patience counts validations" --model="$work/in/model" --data="$work/in/chats.safetensors" "${new[@]}" \
  --patience=2
# A run whose result would replace the model that is read is refused, and the model stays.
before=$(cksum <"$work/in/model/model.safetensors")
expect_mistake "--run=$work/in: the result would replace --model" "${full[@]}" --run="$work/in"
expect_mistake "--run=$work/in: the result would replace --model" "${tiny[@]}" --merge --run="$work/in"
[ "$before" = "$(cksum <"$work/in/model/model.safetensors")" ] || fail "the model is replaced"
expect_mistake "--clip=1e-09: give a number from 1e-06, or 0" "${tiny[@]}" "${new[@]}" --clip=1e-9
expect_mistake "--learning_rate=0: nothing would be trained" "${tiny[@]}" "${new[@]}" --learning_rate=0
expect_mistake "--alpha=0: adapters would add nothing" "${tiny[@]}" "${new[@]}" --alpha=0
expect_mistake "'all-linear' stands for all layers: give it alone" "${tiny[@]}" "${new[@]}" --targets=all-linear,q_proj
expect_mistake "--rank: 4 in the checkpoint, 5 now" "${tiny[@]}" --run="$work/lora" --rank=5
expect_mistake "give the same --data; or another --run" "${tiny[@]}" --run="$work/lora" \
  --data="$work/in/held_out.safetensors"
expect_mistake_of_ranks 2 ".*no layer has the name 'c_attn'" "$program" "${tiny[@]}" "${new[@]}" --targets=c_attn
by_rank 1 --learning_rate=0.5 "$program" "${tiny[@]}" "${new[@]}"
expect_mistake_of_ranks 2 "--learning_rate must be the same on all ranks" "${command[@]}"
[ ! -e "$work/new" ] || fail "mistakes leave a folder"
python3 tools/docs/flags_table.py "$program" examples/fine_tune/README.md || fail "the README has other flags"
[ "$compared" -eq 15 ] || fail "$compared runs were compared"
echo PASSED
