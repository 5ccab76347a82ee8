#!/bin/bash
# Runs balance_main, memory_plan_main, fit_main and plan_main in programs with a model of their own:
# results, the programs' own flags, --help, mistakes.
#   own_model_main_test.sh BALANCE MEMORY_PLAN FIT PLAN
set -u
balance=$1 memory_plan=$2 fit=$3 plan=$4
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

# For each command: a flag that its --help lists, and the flags that it needs to run.
declare -A words=([balance]=--partitions [memory_plan]=--device_gib [fit]=--devices_gib [plan]=--devices)
declare -A enough=([balance]=--partitions=2 [memory_plan]="--balance=2,4" [fit]="--devices_gib=1,1" [plan]=--devices=2)

for command in balance memory_plan fit plan; do
  program=${!command}
  some=${enough[$command]}

  "$program" --help >"$work/help.log" 2>&1 || fail "--help of $command"
  grep -q -e "^  own_$command --" "$work/help.log" || fail "no example of own_$command in --help"
  for word in "${words[$command]}" --batch --width; do
    grep -q -e "^  $word" "$work/help.log" || fail "no $word in --help of $command"
  done
  for word in --model --image_size --family --step unet tools/bazel //balance; do
    if grep -q -e "$word\b" "$work/help.log"; then fail "$word in --help of $command"; fi
  done

  for flag in model=unet:1,2 image_size=32 family=unet:1,* step=2; do
    expect_mistake "there is no flag --${flag%%=*}: this program is for one model" "--$flag" "$some"
  done
  expect_mistake "did you mean --batch?" --batchh=2 "$some"
  expect_mistake "--batch=0: give a number from 1" --batch=0 "$some"
  expect_mistake "--width=0: give a number from 1 on" --width=0 "$some"
  expect_mistake "set Training::make to a function" --mistake=no_model "$some"
  expect_mistake "perceptron-16 has no layers" --mistake=null_model "$some"
  expect_mistake "perceptron-16 has no layers" --mistake=no_layers "$some"
  expect_mistake "1 layers.* the only one of this holds all" --mistake=no_sequential "$some"
  expect_mistake "make_model's Training::inputs: " --mistake=no_inputs "$some"
  expect_mistake "inputs have no rows" --mistake=no_rows "$some"
  expect_mistake "make_model's Training::inputs: .*dimension" --mistake=scalar "$some"
  expect_mistake "inputs have 8 rows, but its targets 6" --mistake=wrong_targets "$some"

  # Only running the layers finds this mistake; the message names the wrong layer.
  "$program" --mistake=wrong_shape "$some" --batch=8 >"$work/shape.log" 2>&1
  [ $? -eq 1 ] || fail "exit code of $command for inputs of a wrong shape"
  grep -q -e "layer 0 ('0')" "$work/shape.log" || fail "$command does not name the layer"
  if [ "$command" != balance ]; then
    "$program" --mistake=no_loss "$some" >"$work/loss.log" 2>&1 || fail "no loss for $command"
    grep -q "planned for the sum of the first output" "$work/loss.log" || fail "no word on the loss"
  fi
done

# balance without --batch takes the sample's 8 rows as the mini-batch. It accepts a profile of its own model only.
program=$balance
"$balance" --partitions=2 --chunks=2 --timeout=0.05 --save_profile="$work/profile.json" \
  --json="$work/cut.json" >"$work/cut.log" 2>&1 || fail "a measurement"
grep -q "measuring perceptron-16: 4 rows on cpu" "$work/cut.log" || fail "what is measured is not said"
"$balance" --partitions=2 --batch=32 --chunks=2 --timeout=0.05 >"$work/batch.log" 2>&1 || fail "--batch"
grep -q "measuring perceptron-16: 16 rows on cpu" "$work/batch.log" || fail "rows are not repeated"
"$balance" --partitions=2 --mistake=no_name --timeout=0.05 >"$work/name.log" 2>&1 || fail "no name"
grep -q "measuring the model: 1 rows on cpu" "$work/name.log" || fail "a model without a name"
"$balance" --profile="$work/profile.json" --balance=2,4 >"$work/again.log" 2>&1 || fail "a profile"
grep -q "^balance: 2,4" "$work/again.log" || fail "another cut is explained"
expect_mistake "the program's model perceptron-8: .* is a profile of perceptron-16" \
  --profile="$work/profile.json" --balance=2,4 --width=8
sed -i 's/"perceptron-16"/""/' "$work/profile.json"
expect_mistake "it has 6 layers, but perceptron-16 has 1; measure it again" \
  --profile="$work/profile.json" --partitions=1 --mistake=no_sequential
expect_mistake "which have no values to measure with" --partitions=2 --mistake=meta_inputs
expect_mistake "perceptron-16 has 6 layers only" --partitions=7

# The program of balance runs the other commands, too, if its first word names one.
for command in memory_plan fit plan; do
  diff <("$balance" $command --help | sed -n '/^Flags:/,$p') \
    <("${!command}" --help | sed -n '/^Flags:/,$p') >"$work/words.log" || fail "flags of $command"
done
"$balance" fit --devices_gib=1,1 >"$work/word.log" 2>"$work/errors.log" || fail "the word fit"
"$fit" --devices_gib=1,1 2>"$work/errors.log" | cmp - "$work/word.log" || fail "another fit"
expect_mistake "there is no flag --devices_gib" --devices_gib=1,1
expect_mistake "'fitt' is not a flag" fitt --devices_gib=1,1
expect_mistake "'fit' is not a flag" --partitions=2 fit

# memory_plan counts 4*16+16 + 2*(16*16+16) + 16*10+10 parameters. It accepts tensors on meta.
program=$memory_plan
"$memory_plan" --balance=2,4 --chunks=4 --optimizer=adam --json="$work/plan.json" \
  --svg="$work/plan.svg" --mistake=meta_inputs >"$work/plan.log" 2>&1 || fail "a memory plan"
grep -q "perceptron-16, balance 2,4, batch 8, chunks 4" "$work/plan.svg" || fail "no title"
python3 - "$work/plan.json" <<'END' || fail "the JSON of a memory plan"
import json, sys
plan = json.load(open(sys.argv[1]))
assert plan["model"] == "perceptron-16" and plan["batch"] == 8, plan
assert plan["parameters"] == 4 * 16 + 16 + 2 * (16 * 16 + 16) + 16 * 10 + 10, plan
END
expect_mistake "sums up to 7, but perceptron-16 has 6 layers" --balance=3,4

# fit is run for a model that fits, and for one that does not.
program=$fit
"$fit" --devices_gib=1,1 --json="$work/fit.json" >"$work/fit.log" 2>&1 || fail "what fits"
grep -q "^perceptron-16: 8 rows in" "$work/fit.log" || fail "no word on the rows: $(cat "$work/fit.log")"
grep -q "^balance: " "$work/fit.log" || fail "no balance"
"$fit" --devices_gib=1,1 --chunks=4 --most_batch=63 >"$work/most.log" 2>&1 || fail "the largest batch"
grep -q "^perceptron-16: 60 rows in 4 micro-batches" "$work/most.log" || fail "no multiple of the micro-batches"
expect_mistake "--most_batch and --batch" --devices_gib=1,1 --chunks=4 --most_batch=64 --batch=8
"$fit" --devices_gib=0.00001,0.00001 --width=1000 >"$work/none.log" 2>&1
[ $? -eq 1 ] || fail "exit code if nothing fits"
grep -q "perceptron-1000 does not fit: " "$work/none.log" || fail "the limit is not named"

# plan works with counted times and, with --measure=cpu, with measured ones.
program=$plan
few=(--devices=2 "--chunks=2" --stages_per_device=1 --schedules=1f1b)
"$plan" "${few[@]}" --output="$work/choice.json" >"$work/choice.log" 2>&1 || fail "a plan"
grep -q "^perceptron-16, 8 rows on 2 devices" "$work/choice.log" || fail "no word on the rows"
"$plan" "${few[@]}" --measure=cpu --timeout=0.01 >"$work/measured.log" 2>&1 || fail "measuring"
grep -q "profiled on: " "$work/measured.log" || fail "it is not said what was measured"
"$plan" "${few[@]}" --mistake=meta_inputs >"$work/meta.log" 2>&1 || fail "meta inputs"
expect_mistake "which have no values to measure with" "${few[@]}" --measure=cpu --mistake=meta_inputs
expect_mistake "save_profile=FILE" "${few[@]}" --measure=cuda
grep -q "with balance_main --device=cuda" "$work/mistake.log" ||
  fail "another command is named: $(cat "$work/mistake.log")"
echo PASSED
