#!/bin/bash
# Tests the whole program: mistakes, Ctrl-C, resuming, damaged images.
#   resnet101_accuracy_test.sh PROGRAM WRITE_IMAGES
set -u
program=$1
write_images=$2
# shellcheck source=command/program_testing.sh
source command/program_testing.sh
# The flags of a training that takes seconds.
tiny=(--data=fake --batch_size=16 --limit_train=160 --epochs=3)

expect_mistake "did you mean pipeline-256?" --experiment=pipeline-25
expect_mistake "there is no folder /nowhere/train" --experiment=naive-128 --data=imagenet:/nowhere
expect_mistake "sums up to 50, but" --experiment=pipeline-256 --balance=20,30
expect_mistake "sums up to 50, but" --balance=20,30 "${tiny[@]}"
expect_mistake "needs 8 devices" --experiment=pipeline-1k --devices=cpu,cpu "${tiny[@]}"
expect_mistake "needs the --checkpoint_dir" --resume
expect_mistake "from 0 to 1024" --workers=100000
expect_mistake "--limit_train=0: give a number from 1" --limit_train=0
expect_mistake "no files can be written there" --checkpoint_dir=/proc/here
expect_mistake "has none of these experiments to resume" --checkpoint_dir="$work/typo" --resume
expect_mistake "overwrite needs the --checkpoint_dir" --overwrite
expect_mistake "checkpoint_dir= has no value" --checkpoint_dir=
expect_mistake "cannot be cut into more micro-batches" --experiment=pipeline-256 "${tiny[@]}" --chunks=17
expect_mistake "is for 3 partitions" --experiment=pipeline-256 --balance=20,30,1
expect_mistake "did you mean --epochs?" --epoch=3
"$program" --help >"$work/help.log" || fail "--help"
grep -q -e "--checkpoint_dir" "$work/help.log" || fail "no flag in --help"

# figure_of FILE EXPERIMENT KEY: prints a figure of a row of the JSON in FILE.
figure_of() {
  python3 -c 'import json, sys
rows = {row["experiment"]: row for row in json.load(open(sys.argv[1]))["rows"]}
print(rows[sys.argv[2]]["figures"][sys.argv[3]]["ours"])' "$@"
}
error_of() { figure_of "$1" "$2" top1_error_percent; }

run=("$program" --experiment=gpipe-256 "${tiny[@]}")
"${run[@]}" --json="$work/whole.json" --trace="$work/trace.json" >"$work/whole.log" 2>&1 || fail "uninterrupted run"
grep -q "3/3 epoch | lr:" "$work/whole.log" || fail "no line for the last epoch"
grep -q "^pipeline-256  *measured " "$work/whole.log" || fail "no measured row"
grep -q "the last whole step; a step: " "$work/whole.log" || fail "where the time goes"
grep -q '"name":"F1.0"' "$work/trace.json" || fail "no trace"
grep -q "21.99±0.13" "$work/whole.log" || fail "no published figure"
grep -q "^pipeline-256  *published  *- .*21.99±0.13" "$work/whole.log" ||
  fail "a published figure must not stand beside one of another size"
grep -q "^Not run: naive-128, " "$work/whole.log" || fail "a row that was not run must say so"
[ "$(error_of "$work/whole.json" pipeline-256)" != None ] || fail "no error in the JSON"
sed -n '/^ResNet-101 accuracy/,/^LibTorch/p' "$work/whole.log" | awk 'length > 82' | grep -q . &&
  fail "a line of the table is too long"

# The run is interrupted in its second epoch.
expect_stopped "1/3 epoch" "$work/stopped.log" "${run[@]}" --checkpoint_dir="$work/checkpoints"
grep -q "stopped after epoch [12] of 3" "$work/stopped.log" || fail "what was reached is not said"
grep -q "^pipeline-256  *interrupted " "$work/stopped.log" || fail "no table after Ctrl-C"

# Without --resume the run would begin anew and lose the saved one, so it is refused.
expect_mistake "resume goes on" --experiment=gpipe-256 "${tiny[@]}" --checkpoint_dir="$work/checkpoints"
# With another number of epochs the learning rates would be others, so the saved run must not be
# resumed.
expect_mistake "belongs to a run of 3 epochs" --experiment=gpipe-256 "${tiny[@]}" --epochs=9 \
  --checkpoint_dir="$work/checkpoints" --resume

# A run that is resumed with another balance has the same error as the uninterrupted run.
"${run[@]}" --balance=30,21 --checkpoint_dir="$work/checkpoints" --resume \
  --json="$work/resumed.json" >"$work/resumed.log" 2>&1 || fail "resumed run"
grep -q "resumed after epoch [12] of 3" "$work/resumed.log" || fail "not resumed"
[ "$(error_of "$work/whole.json" pipeline-256)" = "$(error_of "$work/resumed.json" pipeline-256)" ] ||
  fail "the resumed run ended elsewhere"
expect_mistake "seed: saved with 0, now 1" --experiment=gpipe-256 "${tiny[@]}" --seed=1 \
  --checkpoint_dir="$work/checkpoints" --resume

# Before, a run was saved in a file.
mkdir "$work/old" && echo "gpipe training state" >"$work/old/pipeline-256.checkpoint"
expect_mistake "an older version saved a run" --experiment=gpipe-256 "${tiny[@]}" \
  --checkpoint_dir="$work/old" --resume

# An experiment that fails keeps what it reached, and the others run. (A limit on file sizes acts
# like a full disk: nothing can be saved after the first epoch.)
(
  trap '' XFSZ
  ulimit -f 16
  "$program" --experiment=naive-128,pipeline-256 "${tiny[@]}" --checkpoint_dir="$work/full" 2>&1
) | cat >"$work/failed.log"
[ "${PIPESTATUS[0]}" -eq 1 ] || fail "exit code of a run that failed"
grep -q "^naive-128  *failed  *[0-9]" "$work/failed.log" || fail "what was reached is lost"
grep -q "^pipeline-256  *failed  *[0-9]" "$work/failed.log" || fail "the rest did not go on"
grep -q "File too large" "$work/failed.log" || fail "the reason is not told"
[ -z "$(ls "$work/full")" ] || fail "half a file stays"

# Training on photographs of which one is damaged goes on, with a warning that names the file.
"$write_images" "$work/images" || fail "write_images"
"$program" --experiment=naive-128 --data=imagenet:"$work/images" --batch_size=8 --epochs=1 \
  --workers=2 >"$work/images.log" 2>&1 || fail "images"
grep -q "warning: 1 of the images for training could not be read" "$work/images.log" ||
  fail "no warning of the damaged image"
grep -q "red/3.JPEG" "$work/images.log" || fail "the damaged image is not named"
mkdir -p "$work/images/train/empty" "$work/images/val/empty"
expect_mistake "train/empty holds no .jpg" --experiment=naive-128 --data=imagenet:"$work/images"
echo PASSED
