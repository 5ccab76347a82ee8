#!/bin/bash
# Tests the whole program without a rival: mistakes, the table, the JSON, Ctrl-C.
#   rivals_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

expect_mistake "there is no 'vgg'; there are unet, amoebanetd, resnet, gpt2" --networks=resnet,vgg
expect_mistake "there is no '3'; there are 1, 2, 4" --stages=3
expect_mistake "there is no 'sometimes'" --modes=sometimes
expect_mistake "--rounds must be positive" --rounds=0
expect_mistake "is not a program" --rivals="$work/python"
expect_mistake "is not a program" --beside="$work/other"
expect_mistake "cannot be written" --json="$work"
expect_mistake "unrecognized arguments" --round=1
expect_mistake "invalid choice: 'gpu'" --device=gpu
expect_mistake "there is no '2'; there are 1, 4, 8" --scale=gpu --stages=2
expect_mistake "own_cuts: the sides' tools measure on the CPU" --device=cuda --own_cuts
expect_mistake "processes: ours over processes is for the CPU" --device=cuda --processes
expect_mistake "processes: all sides with a process per stage have the same cut" --own_cuts --processes
expect_mistake "processes: a single stage is in one process anyway" --stages=1 --processes

tiny=(--scale=tiny --rounds=1 --steps=1 --json="$work/table.json")
"$program" "${tiny[@]}" --stages=2 --modes=never >"$work/all.log" 2>&1 || fail "a run without rivals"
grep -q "^ResNet \[1, 1\], 2 stages, checkpoint never" "$work/all.log" || fail "no ResNet"
grep -q "no Python was given (--rivals=PYTHON)" "$work/all.log" || fail "no reason"
awk 'length > 90' "$work/all.log" | grep -q . && fail "a line of the table is too long"

# New cells are added to the table, and a cell that is there already is replaced. A Python without torch is not a
# failure.
"$program" "${tiny[@]}" --networks=resnet --stages=2 --modes=never,always --rivals="$(type -P true)" \
  >"$work/more.log" 2>&1 || fail "a run with a rival that fails"
python3 - "$work/table.json" <<'END' || fail "the JSON"
import collections, json, sys
document = json.load(open(sys.argv[1]))
assert document["title"] and document["environment"]["cores"] > 0 and not document["interrupted"]
rows = document["rows"]
keys = {"network", "stages", "mode", "who", "version", "step_seconds", "round_seconds",
        "peak_bytes", "note", "environment"}
assert all(set(row) == keys for row in rows), rows
cells = collections.Counter((row["network"], row["stages"], row["mode"]) for row in rows)
assert list(cells) == [("U-Net (1, 2)", 2, "never"), ("AmoebaNet-D (0, 8)", 2, "never"),
                       ("ResNet [1, 1]", 2, "never"), ("ResNet [1, 1]", 2, "always"),
                       ("GPT-2 (1, 8)", 2, "never")], cells
for row in rows:
    if row["who"].startswith(("ours", "LibTorch")):
        assert row["step_seconds"] > 0 and row["peak_bytes"] > 0 and row["version"].startswith("LibTorch "), row
    else:
        assert row["step_seconds"] is None and row["peak_bytes"] is None and row["note"], row
notes = {row["note"] for row in rows if row["who"] == "torchgpipe" and row["network"].startswith("ResNet")}
assert notes == {"ended with exit code 0"}, notes
END

# Each cell says in which environment and with how many rounds it was measured, also beside cells of an earlier run.
"$program" "${tiny[@]}" --networks=resnet --stages=2 --modes=always --rounds=2 >"$work/again.log" 2>&1 ||
  fail "a cell that is measured again"
python3 - "$work/table.json" <<'END' || fail "the environments in the JSON"
import json, sys
document = json.load(open(sys.argv[1]))
rounds = {(row["network"], row["mode"]): row["environment"]["rounds"] for row in document["rows"]}
assert rounds == {("U-Net (1, 2)", "never"): 1, ("AmoebaNet-D (0, 8)", "never"): 1, ("ResNet [1, 1]", "never"): 1,
                  ("ResNet [1, 1]", "always"): 2, ("GPT-2 (1, 8)", "never"): 1}, rounds
assert document["environment"]["rounds"] == [1, 2], document["environment"]
END
# The output is wrapped at 80 columns, and where it breaks depends on the processor's name. So the lines are joined.
grep -q "2 rounds of 1 step: ResNet" <<<"$(tr -s '\n ' ' ' <"$work/again.log")" ||
  fail "no line on the other environment"
sed 's/"environment"/"old"/' "$work/table.json" >"$work/old.json"
expect_mistake "do not say in which environment" --json="$work/old.json"

# Our pipeline with a process per stage gives the result of the first side that runs. A side that gives another result
# would not be measured. The new cells are added to those of the earlier --json file.
"$program" "${tiny[@]}" --networks=unet,resnet --stages=1,2 --modes=always --processes >"$work/processes.log" 2>&1 ||
  fail "processes"
grep -q "^  ours, a process per stage" "$work/processes.log" || fail "no row over processes"
python3 - "$work/table.json" <<'END' || fail "the rows over processes"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
found = {(row["network"], row["stages"], row["mode"]): row for row in rows if row["who"] == "ours, a process per stage"}
assert set(found) == {("U-Net (1, 2)", 2, "always"), ("ResNet [1, 1]", 2, "always")}, found
for row in found.values():
    assert row["step_seconds"] > 0 and row["peak_bytes"] > 0 and "a process per stage, Gloo" in row["note"], row
assert ("U-Net (1, 2)", 2, "never") in {(row["network"], row["stages"], row["mode"]) for row in rows}, rows
END

# A GPU's rows have a file of their own. A side that cannot run has a row with the reason. Here that
# is every side, because there is no GPU. A program of a bundle is started by the bundle's script.
mkdir -p "$work/bin" "$work/broken" "$work/bundle/program"
printf '#!/bin/sh\necho "NVIDIA G 80GB, 580.1"\n' >"$work/bin/nvidia-smi"
printf '#!/bin/sh\nexit 9\n' >"$work/broken/nvidia-smi"
printf '#!/bin/sh\necho "the script of $*" >&2\nexit 2\n' >"$work/bundle/run.sh"
touch "$work/bundle/program/ours"
chmod +x "$work"/*/nvidia-smi "$work/bundle/run.sh" "$work/bundle/program/ours"
gpu=(--device=cuda --networks=resnet --stages=2 --modes=never)
PATH="$work/broken:$PATH" expect_mistake "nvidia-smi finds no GPU" "${gpu[@]}" --scale=tiny
PATH="$work/bin:$PATH" expect_mistake "its rows were measured with --device=cpu, but this run has --device=cuda; remove it, or name another" \
  "${tiny[@]}" "${gpu[@]}"
PATH="$work/bin:$PATH" "$program" --scale=tiny --json="$work/gpu.json" --ours="$work/bundle/program/ours" "${gpu[@]}" \
  >"$work/gpu.log" 2>&1
[ $? -eq 1 ] || fail "exit code where our own side fails"
expect_mistake "its rows were measured with --device=cuda, but this run has --device=cpu" --json="$work/gpu.json"
python3 - "$work/gpu.json" <<'END' || fail "the rows of a GPU"
import json, sys
rows = {row["who"]: row for row in json.load(open(sys.argv[1]))["rows"]}
assert rows["ours, graphs"]["environment"]["gpu"] == "NVIDIA G 80GB, driver 580.1", rows
assert rows["ours"]["environment"]["device"] == "cuda", rows
assert rows["ours"]["note"].startswith("the script of ours --model=resnet:1,1 "), rows
assert "a GPU for each process" in rows["torch.distributed.pipelining 1F1B"]["note"], rows
assert all(row["step_seconds"] is None for row in rows.values()), rows
END

# With --beside another build of our program takes part wherever ours does.
ln -s "$PWD/experiments/rivals/ours" "$work/other"
"$program" "${tiny[@]}" --json="$work/beside.json" --networks=unet --stages=1 --modes=never --beside="$work/other" \
  >"$work/beside.log" 2>&1 || fail "another build"
python3 - "$work/beside.json" <<'END' || fail "the rows of another build"
import json, sys
rows = {row["who"]: row for row in json.load(open(sys.argv[1]))["rows"]}
for who in ("ours", "LibTorch, plain"):
    assert rows[f"beside: {who}"]["step_seconds"] > 0 and rows[f"beside: {who}"]["note"] == rows[who]["note"], rows
END

# With --own_cuts each side cuts the network by its own tool, and our row says the balance.
"$program" --scale=tiny --rounds=1 --steps=1 --networks=unet --stages=2 --modes=never --own_cuts \
  >"$work/own.log" 2>&1 || fail "own cuts"
grep -qE "balance \[[0-9]+,[0-9]+\]" "$work/own.log" || fail "no balance of our own"

# After Ctrl-C the exit code is 130, and the JSON says that the run was interrupted. (Background
# jobs of a shell ignore SIGINT unless it has job control.)
set -m
"$program" --scale=tiny --rounds=100000 --networks=unet --stages=1 --modes=never --json="$work/stopped.json" \
  >"$work/stopped.log" 2>&1 &
pid=$!
set +m
sleep 5
kill -INT $pid
wait $pid
[ $? -eq 130 ] || fail "exit code after Ctrl-C"
grep -q '"interrupted": true' "$work/stopped.json" || fail "the JSON does not say that it was interrupted"

# The sides cannot run here, because they need torch. They must at least be valid Python.
for side in experiments/rivals/sides/*.py; do
  python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$side" || fail "$side"
done
echo PASSED
