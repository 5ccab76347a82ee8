#!/bin/bash
# Tests our side from outside: mistakes, and its answers.
#   ours_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "must be pipeline, plain or data_parallel" --trainer=naive
expect_mistake "there is no model" --model=vgg:16
expect_mistake "--balance has 3 partitions, but --stages is 2" --balance=10,10,9
expect_mistake "sometimes" --checkpoint=sometimes
expect_mistake "chunks" --rows=4 --chunks=5
expect_mistake "device must be cpu or cuda, got 'gpu'" --device=gpu
expect_mistake "graphs needs --device=cuda" --graphs
expect_mistake "graphs needs --trainer=pipeline, not --trainer=plain" --graphs --trainer=plain
if ! nvidia-smi >/dev/null 2>&1; then
  expect_mistake "device=cuda: LibTorch finds no GPU here" --device=cuda
fi
expect_mistake "processes needs --trainer=pipeline, not --trainer=plain" --processes --trainer=plain
expect_mistake "processes needs --balance" --processes
expect_mistake "processes with --stages=1" --processes --stages=1
expect_mistake "takes tokens, no images" --model=gpt2:1,8,2,16 --image_size=64

tiny=(--rows=4 --chunks=2 --stages=2)
ask() { # COMMANDS FLAG...
  local commands=$1
  shift
  printf '%b' "$commands" | "$program" "${tiny[@]}" "$@" >>"$work/answers.log" 2>"$work/errors.log"
}
ask 'check\nsteps 3\n' --model=unet:1,2 --image_size=64 --balance=33,32 || fail "U-Net"
ask 'check\n' --model=unet:1,2 --image_size=64 --trainer=plain || fail "plain U-Net"
ask 'check\n' --model=unet:1,2 --image_size=64 --trainer=data_parallel || fail "data-parallel U-Net"
ask 'check\n' --model=resnet:1,1 --image_size=32 --checkpoint=always --schedule=gpipe || fail "ResNet, own cut"
ask 'check\n' --model=resnet:1,1 --image_size=32 --balance=10,19 || fail "ResNet"
gpt2=("--model=gpt2:1,8,2,16,32")
ask 'check\nsteps 1\n' "${gpt2[@]}" --balance=3,2 || fail "GPT-2"
ask 'check\n' "${gpt2[@]}" --checkpoint=always --schedule=gpipe || fail "GPT-2, own cut"
ask 'check\n' "${gpt2[@]}" --trainer=plain || fail "plain GPT-2"
ask 'check\n' "${gpt2[@]}" --trainer=data_parallel || fail "data-parallel GPT-2"
python3 - "$work/answers.log" <<'END' || fail "the answers"
import json, sys
answers = [json.loads(line) for line in open(sys.argv[1])]
unet, check, steps, plain, plain_check, parallel, parallel_check, resnet, recomputed, resnet2, kept = answers[:11]
gpt2, tokens, token_steps, gpt2_recomputed, recomputed_tokens, _, plain_tokens, _, parallel_tokens = answers[11:]
assert unet["balance"] == [33, 32] and unet["version"].startswith("LibTorch 2."), unet
assert unet["parameters"] == plain["parameters"] == parallel["parameters"] == 27667, unet
assert len(steps["seconds"]) == 3 and min(steps["seconds"]) > 0 and steps["peak_bytes"] > 0, steps
def close(a, b): return abs(a - b) < 1e-5 * abs(b)
# Instance norms do not mix rows, so the whole mini-batch must give what micro-batches give.
assert 0.6 < check["loss"] < 0.8
assert close(check["loss"], plain_check["loss"]) and close(check["gradient"], plain_check["gradient"]), plain_check
# Dropout is switched off in the first replica only, which is the trainer's module. The dropout of
# the other replicas changes the loss a little.
assert abs(parallel_check["loss"] / check["loss"] - 1) < 0.02, parallel_check
# Another cut, schedule and checkpoint mode must give the same loss and gradient.
assert sum(resnet["balance"]) == 29 and len(resnet["balance"]) == 2, resnet
assert close(recomputed["loss"], kept["loss"]) and close(recomputed["gradient"], kept["gradient"]), (recomputed, kept)
# The parameters are those of the embeddings and the head, of a block (four matrices with biases,
# and two norms), and of the last norm.
assert gpt2["parameters"] == (2 * 32 + 16) * 8 + 12 * 8 * 8 + 13 * 8 + 2 * 8, gpt2
assert sum(gpt2_recomputed["balance"]) == 5 and len(token_steps["seconds"]) == 1, gpt2_recomputed
for other in (recomputed_tokens, plain_tokens, parallel_tokens):
    assert close(other["loss"], tokens["loss"]) and close(other["gradient"], tokens["gradient"]), (other, tokens)
END

# With a process for each stage the parameters and the gradients of all processes add up to those of the whole network.
# Skips go from process to process. With the same number of threads the loss has the same bits.
commands='check\nsteps 2\ncheck\n'
compare() { # MODES FLAG...
  local modes=$1 mode
  shift
  ask "$commands" "$@" || fail "$*"
  for mode in $modes; do
    ask "$commands" "$@" --checkpoint="$mode" --processes || fail "$* over processes, $mode"
  done
}
: >"$work/answers.log"
compare "never except_last always" --model=unet:1,2 --image_size=64 --stages=4 --balance=16,17,16,16
compare always --model=resnet:1,1 --image_size=32 --balance=10,19
compare never --model=amoebanetd:0,8 --balance=3,3 --schedule=gpipe
compare never "${gpt2[@]}" --balance=2,3
python3 - "$work/answers.log" <<'END' || fail "the answers over processes"
import json, sys
answers = iter([json.loads(line) for line in open(sys.argv[1])])
def take(): return [next(answers) for _ in range(4)]
for modes in (3, 1, 1, 1):
    ready, check, steps, again = take()
    for _ in range(modes):
        its_ready, its_check, its_steps, its_again = take()
        assert its_ready == ready, (its_ready, ready)
        for its, other in ((its_check, check), (its_again, again)):
            assert its["loss"] == other["loss"], (its, other)
            assert abs(its["gradient"] / other["gradient"] - 1) < 1e-9, (its, other)
        assert set(its_steps) == set(steps) and its_steps["peak_bytes"] > 0, its_steps
        assert len(its_steps["seconds"]) == 2 and min(its_steps["seconds"]) > 0, its_steps
assert next(answers, None) is None
END

# If the process of one stage ends, the message names it, and no other process waits for it.
mkfifo "$work/commands"
"$program" "${tiny[@]}" "${gpt2[@]}" --stages=3 --balance=2,2,1 --processes \
  <"$work/commands" >"$work/lost.log" 2>"$work/lost_errors.log" &
first=$!
exec 3>"$work/commands"
for _ in $(seq 1200); do
  grep -q parameters "$work/lost.log" && break
  sleep 0.05
done
mapfile -t others <"/proc/$first/task/$first/children"
read -ra others <<<"${others[*]}"
[ ${#others[@]} -eq 2 ] || fail "2 further processes, not ${#others[@]}"
kill -9 "${others[1]}"
SECONDS=0
echo check >&3
wait $first
[ $? -eq 1 ] || fail "exit code where a process is lost"
[ "$SECONDS" -lt 20 ] || fail "a lost process took $SECONDS seconds"
exec 3>&-
grep -q "error: rank 2 " "$work/lost_errors.log" || fail "nobody names the lost rank"
for other in "${others[@]}"; do
  kill -0 "$other" 2>/dev/null && fail "process $other is left"
done

ask 'steps none\n' --model=unet:1,2 --image_size=64 --balance=33,32 && fail "a wrong command"
grep -q "commands are 'check' and 'steps N' with a positive N, got 'steps none'" "$work/errors.log" ||
  fail "no message for a wrong command"
echo PASSED
