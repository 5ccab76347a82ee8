#!/bin/bash
# Tests the whole program. Its bits must be the same under every cut, schedule and number of
# processes, and after a stop. It must learn, and name mistakes.
#   language_model_test.sh PROGRAM TEXT LAUNCH
set -u
program=$1
text=$2
launch=$3
# shellcheck source=command/program_testing.sh
source command/program_testing.sh
tiny=(--text="$text" --length=48 --width=16 --heads=2 --blocks=2 --batch=6 --chunks=3 --steps=24 --warm_up=4
  --dropout=0.1 --threads=1 --learning_rate=0.02 --validate_every=12 --validation_rows=6 --sample=20)

expect_mistake "did you mean --steps?" "${tiny[@]}" --step=3
expect_mistake "give a number from 0 to 24" "${tiny[@]}" --stop_at=25
expect_mistake "it is a folder" "${tiny[@]}" --text="$work"
expect_mistake "give lines or paragraphs" "${tiny[@]}" --documents=words
expect_mistake "has 1 documents (--documents=paragraphs)" "${tiny[@]}" --documents=paragraphs
expect_mistake "give llama or gpt2" "${tiny[@]}" --model=bert
expect_mistake "hidden_size must be a multiple" "${tiny[@]}" --heads=3
expect_mistake "sums up to 6, but with --blocks=2 the network has 7 layers" "${tiny[@]}" --balance=3,3
expect_mistake "such as 20,31" "${tiny[@]}" --balance=worst
expect_mistake "--balance has 2 partitions" "${tiny[@]}" --balance=3,4 --stages=3
expect_mistake "the network has 7 layers" "${tiny[@]}" --stages=8
expect_mistake "did you mean 1f1b?" "${tiny[@]}" --schedule=1f2b
expect_mistake "take 2 or 4 stages" "${tiny[@]}" --schedule=zb-v --stages=3
expect_mistake "give at most --chunks=3" "${tiny[@]}" --samples=4
expect_mistake "cannot be cut into more micro-batches" "${tiny[@]}" --chunks=7
expect_mistake "cannot share the --chunks=3 micro-batches" "${tiny[@]}" --replicas=2
expect_mistake "give a number from 1" "${tiny[@]}" --replicas=0
expect_mistake "cannot be cut into as many equal groups" "${tiny[@]}" --groups=2
expect_mistake "give a number from 1" "${tiny[@]}" --groups=0
expect_mistake "each of --replicas=3 has 1, 2, 4, 8" "${tiny[@]}" --replicas=3 --groups=1
expect_mistake "each of --replicas=2 has 1, 2, 4, 8" "${tiny[@]}" --replicas=2 --chunks=6 --groups=6
expect_mistake "--batch=5 rows have 2 rows each" "${tiny[@]}" --replicas=4 --chunks=4 --batch=5
expect_mistake "cannot be cut into more micro-batches" "${tiny[@]}" --groups=8 --chunks=8
expect_mistake "give fill-drain, or any other" "${tiny[@]}" --schedule=gpipe --groups=1
expect_mistake "first of --replicas=3, which has 1 of --chunks=3" "${tiny[@]}" --replicas=3 --samples=2
expect_mistake "leave out --replicas" "${tiny[@]}" --plain --replicas=3
expect_mistake "give always, except_last or never" "${tiny[@]}" --checkpoint=often
expect_mistake "there is no cuda:99 here" "${tiny[@]}" --devices=cpu,cuda:99
expect_mistake "there is no such folder" "${tiny[@]}" --resume="$work/none"
expect_mistake "say where, with --save=FOLDER" "${tiny[@]}" --save_every=2
expect_mistake "say from where, with --resume=FOLDER" "${tiny[@]}" --resume_anyway
expect_mistake "--resume_saved: say where, with --save=FOLDER" "${tiny[@]}" --resume_saved
expect_mistake "exists and is not a folder" "${tiny[@]}" --save="$text"
expect_mistake "is the current folder" "${tiny[@]}" --save=.
mkdir "$work/notes" && touch "$work/notes/notes.txt"
expect_mistake "there is no checkpoint in it: no progress.safetensors" "${tiny[@]}" --resume="$work/notes"
expect_mistake "is a folder with 'notes.txt', which no checkpoint has" "${tiny[@]}" --save="$work/notes"
expect_mistake "leave out --save" "${tiny[@]}" --plain --save="$work/plain"
head -c 300 "$text" >"$work/cut.data"
expect_mistake "give a longer text" "${tiny[@]}" --text="$work/cut.data"
if [ ! -e /usr/lib/bible.data ]; then expect_mistake "install Debian's package bible-kjv-text"; fi

# hash_of NAME COMMAND...: runs the command, and prints the hash of the parameters that the run
# prints.
hash_of() {
  local name=$1
  shift
  "$@" >"$work/$name.log" 2>"$work/$name.err.log" || fail "$name: $*"
  grep -o "parameters [0-9a-f]*$" "$work/$name.log" | cut -d' ' -f2
}

through=$(hash_of through "$program" "${tiny[@]}" --balance=3,4 --json="$work/through.json")
[[ ${through} =~ ^[0-9a-f]{16}$ ]] || fail "no hash: $through"
expect_same() {
  local name=$1 hash
  hash=$(hash_of "$@")
  [ "$hash" = "$through" ] || fail "$name: parameters $hash instead of $through"
}
expect_same one_stage "$program" "${tiny[@]}" --stages=1 --validate_every=5
expect_same recomputes "$program" "${tiny[@]}" --balance=1,4,2 --checkpoint=always --schedule=zb-h1
expect_same v_shape "$program" "${tiny[@]}" --stages=4 --schedule=zb-v
expect_same processes "$launch" --processes=2 -- "$program" "${tiny[@]}"

# With --resilient a run without deaths is the same, also if its checkpoint is there already.
resilient=("$launch" --processes=2 -- "$program" "${tiny[@]}" --resilient --snapshot_every=5 --save="$work/resilient")
expect_same resilient "${resilient[@]}" --json="$work/resilient.json"
expect_same resilient_again "${resilient[@]}"
grep -q "goes on from step 24 of" "$work/resilient_again.err.log" || fail "--resilient does not go on"
expect_mistake "give --threads=N" "${tiny[@]}" --resilient --threads=0
expect_mistake "give --groups=3, or a multiple" "${tiny[@]}" --resilient --replicas=3
expect_mistake "leave out --plain and --explain" "${tiny[@]}" --resilient --plain
expect_mistake "leave out --resume" "${tiny[@]}" --resilient --save="$work/resilient" --resume_saved
expect_mistake_of_ranks 2 "--snapshot_every=0" "$program" "${tiny[@]}" --resilient --snapshot_every=0

# A run that is stopped twice and goes on under other cuts, once over processes, has the same hash.
hash_of stopped "$program" "${tiny[@]}" --stop_at=7 --save="$work/run/last" >/dev/null
grep -q "go on with --resume" "$work/stopped.log" || fail "how to go on"
hash_of again "$launch" --processes=2 -- "$program" "${tiny[@]}" --resume="$work/run/last" --stop_at=15 \
  --save="$work/run/last" >/dev/null
grep -q "resumed after step 7" "$work/again.log" || fail "where it goes on"
expect_same resumed "$program" "${tiny[@]}" --resume="$work/run/last" --balance=5,2 --save="$work/end"
# A run that is started again with the same command goes on from its own checkpoint, if it has one.
hash_of first_part "$program" "${tiny[@]}" --stop_at=7 --save="$work/own" --resume_saved >/dev/null
grep -q "resumed" "$work/first_part.log" && fail "resumed from nothing"
expect_same second_part "$program" "${tiny[@]}" --save="$work/own" --resume_saved
grep -q "resumed after step 7" "$work/second_part.log" || fail "not resumed from its own checkpoint"
# A run begins anew if the folder was made for the checkpoint and has none yet.
mkdir "$work/made"
expect_same made "$program" "${tiny[@]}" --save="$work/made" --resume_saved
grep -q "resumed" "$work/made.log" && fail "resumed from an empty folder"
expect_same made_again "$program" "${tiny[@]}" --save="$work/made" --resume_saved
grep -q "resumed after step 24" "$work/made_again.log" || fail "not resumed from the folder that was made"
grep -q "no step is left to train" "$work/made_again.log" || fail "a run that has ended trains"
# Flags with which nothing was trained are not written into the checkpoint.
before=$(cat "$work/made"/* | cksum)
expect_same made_otherwise "$program" "${tiny[@]}" --save="$work/made" --resume_saved --resume_anyway --learning_rate=0.5
[ "$(cat "$work/made"/* | cksum)" = "$before" ] || fail "a checkpoint is written again with flags that trained nothing"
# With --tied the first and the last partition share a matrix, so the parameters differ from those
# without.
tied=$(hash_of tied "$program" "${tiny[@]}" --tied --balance=3,4 --json="$work/tied.json")
[[ ${tied} =~ ^[0-9a-f]{16}$ && $tied != "$through" ]] || fail "--tied: parameters $tied"
for layout in "one_tied $program" "two_tied $launch --processes=2 -- $program"; do
  read -ra words <<<"$layout"
  hash=$(hash_of "${words[@]}" "${tiny[@]}" --tied --zero)
  [ "$hash" = "$tied" ] || fail "${words[0]}: parameters $hash instead of $tied"
done
# Over processes, a mistake ends all of them, and one says why. The mistake may be in the flags, ...
expect_mistake_of_ranks 2 ".*did you mean --steps?" "$program" "${tiny[@]}" --step=3
expect_mistake_of_ranks 2 ".*give llama or gpt2" "$program" "${tiny[@]}" --model=bert
# ... or in values that do not fit the number of processes, ...
expect_mistake "--replicas=3: each has as many processes, and there is 1 process" "${tiny[@]}" --replicas=3
expect_mistake_of_ranks 2 "--replicas=3: .* there are 2 processes; start 3 or a multiple" \
  "$program" "${tiny[@]}" --replicas=3
expect_mistake_of_ranks 2 "--stages=1: .*for 1 process, and there are 2" "$program" "${tiny[@]}" --stages=1
expect_mistake_of_ranks 2 "--balance=time: several processes" "$program" "${tiny[@]}" --balance=time
expect_mistake_of_ranks 2 "--explain measures within one process" "$program" "${tiny[@]}" --explain
expect_mistake_of_ranks 2 "--plain trains a whole model in each process" "$program" "${tiny[@]}" --plain
expect_mistake_of_ranks 2 "--devices: 2 of them; several processes have one device each" \
  "$program" "${tiny[@]}" --devices=cpu,cpu
# ... or be one that only one of the processes finds.
by_rank 1 --resume="$work/none" "$program" "${tiny[@]}"
expect_mistake_of_ranks 2 "rank 1: --resume=$work/none: there is no such folder" "${command[@]}"
by_rank 0 --groups=3 "$program" "${tiny[@]}" --resume="$work/run/last"
expect_mistake_of_ranks 2 ".*must be the same on all ranks" "${command[@]}"
# Flags that are right in each process but differ are refused, because the run would train wrongly.
# bits_test tries each flag.
for flag in --learning_rate=0.5 --seed=5 --nopacked --sample=9 --plain; do
  name=${flag%%=*}
  by_rank 1 "$flag" "$program" "${tiny[@]}"
  expect_mistake_of_ranks 2 "${name/--no/--} must be the same on all ranks: rank 0 has .*, rank 1 has " "${command[@]}"
done
by_rank 2 --seed=5 "$program" "${tiny[@]}" --replicas=3
expect_mistake_of_ranks 3 "--seed must be the same on all ranks: rank 0 has 0, rank 2 has 5" "${command[@]}"

# Resuming with flags that give other bits (bits_test has each flag) is a mistake, in one process and in several.
again=("${tiny[@]}" --resume="$work/run/last")
expect_mistake "--tied: false in the checkpoint, true now" "${again[@]}" --tied
expect_mistake "--seed: 0 in the checkpoint, 1 now" "${again[@]}" --seed=1
expect_mistake "give --packed --seed=0; or --resume_anyway" "${again[@]}" --seed=1 --nopacked
expect_mistake "--groups: none in the checkpoint, 3 now" "${again[@]}" --groups=3
expect_mistake "--resume_saved, --save=$work/own: the run would go on" "${tiny[@]}" --save="$work/own" --resume_saved --seed=1
expect_mistake "--threads: 1 in the checkpoint, 2 now" "${again[@]}" --threads=2
expect_mistake "--schedule: gradients added up in the order" "${again[@]}" --schedule=gpipe
expect_mistake "--batch: 6 in the checkpoint, 3 now" "${again[@]}" --batch=3
expect_mistake "--width: 16 in the checkpoint, 32 now" "${again[@]}" --width=32
expect_mistake_of_ranks 2 ".*the run would go on with other bits" "$program" "${again[@]}" --seed=1
anyway=$(hash_of anyway "$program" "${again[@]}" --groups=3 --dropout=0 --resume_anyway)
[[ ${anyway} =~ ^[0-9a-f]{16}$ && $anyway != "$through" ]] || fail "--resume_anyway: parameters $anyway"
grep -q -e "--groups: none in the checkpoint, 3 now" "$work/anyway.log" || fail "--resume_anyway says nothing"
# These checkpoints cannot be resumed, even with --resume_anyway.
"$program" "${again[@]}" --batch=3 --resume_anyway >"$work/batch.log" 2>&1
grep -q "of another --batch" "$work/batch.log" || fail "another --batch"
"$program" "${again[@]}" --width=32 --resume_anyway >"$work/width.log" 2>&1
grep -q "and F32 \[257, 32\] in the model" "$work/width.log" || fail "another --width"
# A checkpoint without flags (the program did not always save them) is resumed, with a warning.
cp -r "$work/run/last" "$work/old"
python3 - "$work/old/progress.safetensors" <<'END' || fail "a checkpoint without flags"
import json, struct, sys, zlib
content = open(sys.argv[1], "rb").read()
size = struct.unpack("<Q", content[:8])[0]
header, generator = json.loads(content[8:8 + size]), content[8 + size:]
metadata = header["__metadata__"]
assert json.loads(metadata.pop("settings"))["seed"] == 0, metadata
of = lambda content: f"{len(content)} bytes, CRC-32 {zlib.crc32(content):08x}"
lines = lambda: "".join(f"{key}={metadata[key]}\n" for key in sorted(metadata) if key != "progress.safetensors")
metadata["progress.safetensors"] = of(lines().encode() + generator)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + generator)
END
expect_same old "$program" "${tiny[@]}" --resume="$work/old"
grep -q "warning: .*it does not say with which flags" "$work/old.err.log" || fail "no warning about an old checkpoint"

# Another seed must give another hash, because a hash that never changes would show nothing.
other=$(hash_of other "$program" "${tiny[@]}" --balance=3,4 --seed=1)
[ "$other" != "$through" ] || fail "another seed, the same parameters"

# Other ways to run give the same losses, except for rounding.
hash_of plain "$program" "${tiny[@]}" --plain --dropout=0 --json="$work/plain.json"
hash_of no_dropout "$program" "${tiny[@]}" --dropout=0 --json="$work/no_dropout.json" >/dev/null
hash_of bfloat16 "$program" "${tiny[@]}" --dropout=0 --bfloat16 --json="$work/bfloat16.json" >/dev/null
hash_of apart "$program" "${tiny[@]}" --resume="$work/end" --resume_anyway --nopacked --json="$work/apart.json" \
  --validation_rows=1000 >/dev/null
hash_of packed "$program" "${tiny[@]}" --resume="$work/end" --validation_rows=1000 --json="$work/packed.json" >/dev/null
samples=("${tiny[@]}" --resume="$work/end" --samples=3 --sample=40 --prompt="And " --temperature=1)
hash_of three "$program" "${samples[@]}" --balance=3,4 --json="$work/three.json" >/dev/null
hash_of recomputed "$program" "${samples[@]}" --nocache --json="$work/recomputed.json" >/dev/null
hash_of three_in_two "$launch" --processes=2 -- "$program" "${samples[@]}" --json="$work/three_in_two.json" >/dev/null
python3 - "$work" <<'END' || fail "the JSON"
import json, math, sys
read = lambda name: json.load(open(f"{sys.argv[1]}/{name}.json"))
through, plain, pipeline, half = map(read, ["through", "plain", "no_dropout", "bfloat16"])
assert through["pipeline"]["balance"] == [3, 4] and through["pipeline"]["chunks"] == 3
first, last = through["history"]
assert (first["step"], last["step"]) == (12, 24)
# A model that gives each byte the same probability has a loss of 5.55.
assert last["validation_loss"] < first["validation_loss"] < 4.5, through["history"]
assert last["validation_loss"] < 3.6, through["history"]
assert through["validation_loss"] == last["validation_loss"]
assert abs(through["perplexity"] - math.exp(last["validation_loss"])) < 1e-9
assert plain["pipeline"] is None
untimed = lambda run: [{key: part[key] for key in part if key != "seconds"} for part in run["history"]]
assert untimed(read("resilient")) == untimed(through) and read("resilient")["samples"] == through["samples"]
# With --tied the head's matrix is missing: 257 tokens (the bytes and the end of a document), 16 numbers each.
assert read("tied")["network"]["parameters"] == through["network"]["parameters"] - 257 * 16
for a, b, c in zip(plain["history"], pipeline["history"], half["history"]):
    assert abs(a["loss"] - b["loss"]) < 1e-3 * a["loss"], (a, b)
    assert abs(a["loss"] - c["loss"]) < 0.05 * a["loss"], (a, c)
    assert a["loss"] != c["loss"]
assert len(through["samples"]) == 1 and 1 <= len(through["samples"][0]) <= 20, through["samples"]
# A cache of keys and values does not change the samples, also if several are written at the same time.
three, again, both = read("three"), read("recomputed"), read("three_in_two")
assert len(three["samples"]) == 3 and len(set(three["samples"])) == 3, three["samples"]
assert three["samples"] == again["samples"] == both["samples"], (three["samples"], again["samples"], both["samples"])
# Documents that share a row give the same as each alone.
apart, packed = read("apart"), read("packed")
assert packed["text"]["packed"] and not apart["text"]["packed"]
assert abs(apart["validation_loss"] / packed["validation_loss"] - 1) < 1e-5, (apart, packed)
END

"$program" "${tiny[@]}" --steps=2 --validate_every=2 --balance=time --explain >"$work/explain.log" 2>&1 || fail "--explain"
grep -q "A step of 6 rows in 3 micro-batches" "$work/explain.log" || fail "nothing is explained"
grep -q "pipeline: --balance=[0-9]*,[0-9]*, 3 micro-batches" "$work/explain.log" || fail "no cut by time"
expect_stopped "training " "$work/interrupted.log" \
  "$program" "${tiny[@]}" --steps=1000000 --save="$work/interrupted"
[ -e "$work/interrupted/model.safetensors" ] || fail "nothing is saved after Ctrl-C"
"$program" --help >"$work/help.log" 2>&1 || fail "--help"
grep -q -e "--weight_decay" "$work/help.log" || fail "no flags in --help"
echo PASSED
