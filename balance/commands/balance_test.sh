#!/bin/bash
# Runs the command //balance: mistakes, the table, files, a short measurement, Ctrl-C.
#   balance_test.sh PROGRAM
set -u
program=$1
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

# The profile has six layers of 1 ms forward and 2 ms backward, with 1 MiB of each kind of memory,
# and one skip.
python3 - "$work/six.json" <<'END' || fail "making the profile"
import json, sys
mib = 1 << 20
layer = {"forward": 1e-3, "backward": 2e-3, "parameters": mib, "buffers": 0, "kept": mib,
         "workspace": mib, "output": mib}
json.dump({"format": "gpipe profile", "version": 1, "model": "toy", "device": "a device",
           "batch_rows": 4, "input": mib, "layers": [dict(layer, name=str(i)) for i in range(6)],
           "skips": [{"from": 0, "to": 5, "bytes": mib}]}, open(sys.argv[1], "w"))
END
six=(--profile="$work/six.json")

expect_mistake "give --model=NAME or --profile=FILE" --partitions=2
expect_mistake "did you mean --partitions?" --partition=2
expect_mistake "give --partitions=NUMBER" "${six[@]}"
expect_mistake "did you mean unet?" --model=unett:5,64 --partitions=2
expect_mistake "model 'unet:5,1': " --model=unet:5,1 --partitions=2
expect_mistake "unet:1,2 has 65 layers only" --model=unet:1,2 --partitions=66
expect_mistake "sums up to 7, but toy has 6 layers" "${six[@]}" --balance=3,4
expect_mistake "--partitions=3: --balance has 2" "${six[@]}" --balance=3,3 --partitions=3
expect_mistake "toy has 6 layers only" "${six[@]}" --partitions=7
expect_mistake "is a profile of toy" "${six[@]}" --partitions=2 --model=unet:1,2
expect_mistake "give --batch=32" "${six[@]}" --partitions=2 --batch=64
expect_mistake "cannot be cut into more" --model=unet:1,2 --partitions=2 --batch=4 --chunks=5
for flag in image_size partitions batch chunks cores threads; do
  expect_mistake "--$flag=0: give a number from 1" "${six[@]}" --balance=3,3 --$flag=0
done
expect_mistake "give always, except_last or never" "${six[@]}" --partitions=2 --checkpoint=often
expect_mistake "there is no schedule" "${six[@]}" --partitions=2 --schedule=zero
expect_mistake "has 1 numbers, but there are 2 partitions" "${six[@]}" --partitions=2 --slowness=1
expect_mistake "give numbers above 0, up to 1e+09" "${six[@]}" --partitions=2 --slowness=1,0
expect_mistake "give a number from 0 to 1e+09" "${six[@]}" --partitions=2 --bandwidth_gbps=-1
expect_mistake "bandwidth_gbps=1e+300: give a number from 0 to 1e+09" "${six[@]}" --partitions=2 --bandwidth_gbps=1e300
expect_mistake "give a number from 1 to 1e+09" "${six[@]}" --partitions=2 --contention=0.5
expect_mistake "give a number from 0 to 1e+06" "${six[@]}" --partitions=2 --param_scale=1e300
expect_mistake "No such file" --profile="$work/none.json" --partitions=2
expect_mistake "it is a folder" "${six[@]}" --partitions=2 --json="$work"
expect_mistake "leave one of them out" "${six[@]}" --partitions=2 --save_profile="$work/x.json"
for flag in image_size=64 threads=2 timeout=3 device=cpu seed=1; do
  expect_mistake "--${flag%=*} is for a profile that is measured" "${six[@]}" --partitions=2 --$flag
done
expect_mistake "--threads, --seed are for" "${six[@]}" --partitions=2 --seed=0 --threads=1
sed 's/"toy"/"unet:1,2@64"/' "$work/six.json" >"$work/small.json"
expect_mistake "is a profile of unet:1,2@64" --profile="$work/small.json" --partitions=2 --model=unet:1,2
expect_mistake "is a profile of unet:1,2@64" --profile="$work/small.json" --partitions=2 \
  --model=unet:1,2 --image_size=32
"$program" "${six[@]}" --partitions=2 --bandwidth_gbps=1e-300 >"$work/slow.log" 2>&1 &&
  fail "a link of 1e-300 Gbit/s is accepted"
grep -q "too long to be added up" "$work/slow.log" || fail "the slowest link: $(cat "$work/slow.log")"
"$program" "${six[@]}" --partitions=2 --bandwidth_gbps=1e-200 >"$work/slow.log" 2>&1 ||
  fail "a very slow link: $(cat "$work/slow.log")"
[ "$(wc -L <"$work/slow.log")" -le 100 ] || fail "a line of $(wc -L <"$work/slow.log") columns"
expect_mistake "give cpu, cuda" --model=unet:1,2 --partitions=2 --device=gpu
expect_mistake "CUDA devices" --model=unet:1,2 --partitions=2 --device=cuda:99
expect_mistake "timeout=0" --model=unet:1,2 --partitions=2 --timeout=0
echo "{" >"$work/damaged.json"
expect_mistake "is not valid JSON" --profile="$work/damaged.json" --partitions=2

"$program" --help >"$work/help.log" 2>&1 || fail "--help"
grep -q -e "--save_profile" "$work/help.log" || fail "no flags in --help"
"$program" --version >"$work/version.log" 2>&1 || fail "--version"

"$program" "${six[@]}" --partitions=2 --chunks=4 --json="$work/cut.json" >"$work/table.log" 2>"$work/errors.log" ||
  fail "a profile that was read"
diff - "$work/table.log" <<'END' || fail "the table"
balance: 3,3

                            ms per micro-batch                          MiB
part.     layers   forward  backward recompute    params    memory     sent busy
0 *          0-2      3.00      6.00      3.00      3.00      12.0     2.00  89%
1            3-5      3.00      6.00         0      3.00      12.0        0  67%

* partition 0 is busy longest: it decides how long a step takes.
Predicted for a step of 4 micro-batches of 4 rows: 54.0 ms, 22% idle, 1.33 times
  as fast as one device (72.0 ms, nothing recomputed).
Profiled on: a device; all partitions compute at once.
END
python3 - "$work/cut.json" <<'END' || fail "the JSON"
import json, sys
cut = json.load(open(sys.argv[1]))
assert cut["balance"] == [3, 3] and cut["model"] == "toy" and cut["schedule"] == "1f1b"
assert cut["partitions"][0]["sent"] == 2 << 20
END

"$program" "${six[@]}" --balance=1,5 --checkpoint=never >"$work/given.log" 2>&1 || fail "a given cut"
grep -q "^balance: 1,5" "$work/given.log" || fail "another cut is explained"
grep -q -e "--balance=3,3" "$work/given.log" || fail "the faster cut is not named"

"$program" "${six[@]}" --partitions=2 >/dev/full 2>"$work/full.log"
[ $? -eq 1 ] || fail "exit code for a full disk"

expect_mistake "is for a profile that is measured" "${six[@]}" --partitions=2 --autocast=bfloat16

# The cut from a saved profile is that of the measurement that saved it.
"$program" --model=unet:1,2 --image_size=64 --partitions=2 --batch=4 --chunks=2 --timeout=0.05 \
  --save_profile="$work/unet.json" >"$work/measured.log" 2>&1 || fail "a measurement"
grep -q '"autocast"' "$work/unet.json" && fail "there was no autocast"
grep -q "measuring unet:1,2@64: 2 rows on cpu" "$work/measured.log" || fail "what is measured is not said"
"$program" --profile="$work/unet.json" --partitions=2 --chunks=2 >"$work/again.log" 2>&1 || fail "reading it again"
grep -q "2 micro-batches of 2 rows" "$work/again.log" || fail "the batch of a profile"

"$program" --model=unet:1,2 --image_size=64 --partitions=2 --batch=4 --chunks=2 --timeout=0.05 \
  --autocast=bfloat16 --save_profile="$work/cast.json" >"$work/cast.log" 2>&1 || fail "$(cat "$work/cast.log")"
grep -q '"autocast": "bfloat16"' "$work/cast.json" || fail "the profile does not say its autocast"
tr -s '\n ' ' ' <"$work/cast.log" | grep -q ", under autocast to bfloat16;" || fail "$(cat "$work/cast.log")"

"$program" --model=unet:1,2 --image_size=64 --partitions=2 --batch=4 --chunks=2 --timeout=0.05 \
  --deferred_batch_norm --save_profile="$work/deferred.json" >"$work/deferred.log" 2>&1 || fail "$(cat "$work/deferred.log")"
grep -q '"deferred_batch_norm": true' "$work/deferred.json" || fail "the profile does not say its batch norms"
tr -s '\n ' ' ' <"$work/deferred.log" | grep -q ", batch norms deferred;" || fail "$(cat "$work/deferred.log")"
expect_mistake "--deferred_batch_norm is for a profile that is measured" --profile="$work/deferred.json" \
  --partitions=2 --deferred_batch_norm

# The profile of a model with a tied head is refused for the model with an untied one.
words=("--model=gpt2:2,12,3,16,7" --partitions=2 --batch=4 --chunks=2)
"$program" "${words[@]}" --tied --timeout=0.05 --save_profile="$work/tied.json" >"$work/tied.log" 2>&1 || fail "--tied"
grep -q "measuring gpt2:2,12,3,16,7@tied: 2 rows" "$work/tied.log" || fail "what is measured is not said"
"$program" "${words[@]}" --tied --profile="$work/tied.json" >"$work/again.log" 2>&1 || fail "reading it again"
expect_mistake "is a profile of gpt2:2,12,3,16,7@tied" "${words[@]}" --profile="$work/tied.json"

expect_stopped "measuring" "$work/stopped.log" \
  "$program" --model=unet:1,2 --image_size=64 --partitions=2 --timeout=100000
echo PASSED
