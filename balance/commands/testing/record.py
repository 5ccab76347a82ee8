#!/usr/bin/env python3
"""Records what the planning commands answer, so that a change of them can be compared.

    record.py BIN OUT

BIN has the built programs (bazel-bin). OUT gets one file for each run: its exit code, what it
prints and the files that it writes. Nothing is measured, so two records of one commit are equal
byte by byte: `diff -r` shows what a change of the commands changes.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile

MIB = 1 << 20

# Models that are counted on the meta device.
MODELS = [
    "--model=unet:1,2 --image_size=64 --batch=4",
    "--model=unet:2,8 --image_size=64 --batch=8",
    "--model=resnet:1,1,1,1 --image_size=64 --batch=6",
    "--model=resnet:50 --image_size=64 --batch=8",
    "--model=amoebanetd:3,16 --image_size=64 --batch=4",
    "--model=gpt2:2,12,3,16,7 --tied --batch=4",
    "--model=gpt2:4,16,2,16,32 --batch=8 --lora=2",
    "--model=llama:2,16,4,2,16,32 --batch=5",
    "--model=hf:experts,64 --batch=4",
    "--model=old_resnet:101 --image_size=64 --batch=4",
]

# Runs that answer. {six} and the like are files of make_files().
RUNS = [
    *(f"memory_plan {model} --chunks=2 --json=out.json --svg=out.svg" for model in MODELS),
    "memory_plan --model=resnet:1,1,1,1 --batch=7 --chunks=9 --balance=20,31 --schedule=gpipe "
    "--checkpoint=always --optimizer=adam --nozero_grad --device_gib=1 --json=out.json",
    "memory_plan --model=unet:1,2 --image_size=64 --chunks=4 --balance=[20,20,25] --device=cpu "
    "--autocast=bfloat16 --deferred_batch_norm --schedule=zb-h1 --svg=out.svg",
    *(f"fit {model} --devices_gib=0.5,0.5 --json=out.json" for model in MODELS),
    "fit --family=unet:*,8 --image_size=64 --batch=4 --devices_gib=0.05,0.05 --json=out.json",
    "fit --family=amoebanetd:*,8 --image_size=64 --batch=2 --step=3 --devices_gib=0.02,0.02 "
    "--json=out.json",
    "fit --model=unet:1,8 --image_size=64 --chunks=4 --devices_gib=0.04,0.04 --most_batch=64 "
    "--json=out.json",
    "fit --model=unet:1,2 --image_size=64 --batch=4 --devices_gib=0.001,0.001 --json=out.json",
    "fit --model=resnet:1,1,1,1 --batch=8 --chunks=2,4 --checkpoint=always --schedule=gpipe "
    "--optimizer=adam --nozero_grad --margin_gib=0.1 --devices_gib=1,1,1 --json=out.json",
    "fit --model=unet:1,2 --image_size=64 --batch=4 --autocast=bfloat16 --deferred_batch_norm "
    "--devices_gib=1,1 --json=out.json",
    *(
        f"plan {model} --devices=2 --chunks=2 --stages_per_device=1,2 --schedules=1f1b,zb-h1,zb-v "
        "--output=plan.txt --json=out.json"
        for model in MODELS
    ),
    "plan --model=unet:1,2 --image_size=64 --batch=4 --devices=2 --memory=22GiB "
    "--output=plan.json --json=out.json",
    "plan --model=unet:1,2 --image_size=64 --batch=4 --devices=2 --memory=1MiB",
    "plan --model=resnet:1,1,1,1 --batch=8 --devices=3 --memory=500mb --checkpoint=never "
    "--optimizer=momentum --tflops=3 --memory_gbps=100 --bandwidth_gbps=8 --latency_us=20 "
    "--cores=2 --autocast=float16 --deferred_batch_norm --chunks=4,8 --json=out.json",
    "plan --model=unet:1,2 --image_size=64 --batch=4 --devices=2 --profile=unet.json "
    "--schedules=zb-h1,search --stages_per_device=1 --json=out.json",
    "balance --profile=six.json --partitions=2 --chunks=4 --json=out.json",
    "balance --profile=six.json --partitions=3 --checkpoint=always --schedule=gpipe "
    "--json=out.json",
    "balance --profile=six.json --balance=1,5 --checkpoint=never --json=out.json",
    "balance --profile=six.json --balance=1,2,3 --slowness=1,1.5,2 --bandwidth_gbps=8 "
    "--latency_us=20 --overhead_us=30 --contention=1.25 --param_scale=4 --cores=2 --batch=16 "
    "--chunks=4 --json=out.json",
    "balance --profile=unet.json --model=unet:1,2 --image_size=64 --partitions=4 --chunks=3 "
    "--schedule=zb-h1 --json=out.json",
    *(
        f"balance --profile=random{k}.json --partitions={k} --chunks={2 * k} --json=out.json"
        for k in range(2, 8)
    ),
    "own_memory_plan --balance=2,4 --chunks=2 --width=8 --json=out.json",
    "own_fit --devices_gib=1,1 --batch=12 --json=out.json",
    "own_fit --devices_gib=1,1 --mistake=no_loss --json=out.json",
    "own_plan --devices=2 --chunks=2 --schedules=1f1b --output=plan.json --json=out.json",
    "own_balance --profile=six.json --balance=2,4 --json=out.json",
]

# --help, and mistakes whose messages the tests of the commands do not compare.
MISTAKES = [
    *(
        f"{name} --help"
        for name in (
            *("balance", "plan", "fit", "memory_plan", "diagnose"),
            *("own_balance", "own_plan", "own_fit", "own_memory_plan"),
        )
    ),
    *(
        f"{command} --model=unet:1,2 {mistake}"
        for command in ("balance", "plan")
        for mistake in (
            *("--batch=x", "--chunks=x", "--chunks=", "--latency_us=nan", "--latency_us=x"),
            *("--nojson", "--json=--chunks", "--deferred_batch_norm=perhaps", "--cores=0", "word"),
            *("--tied", "--lora=2", "--autocast=half", "--family=unet:*,2", "--batch"),
        )
    ),
    "balance --profile=six.json --balance=0,6",
    "balance --profile=six.json --balance=x",
    "balance --profile=six.json --partitions=2 --seed=-1",
    "balance --profile=six.json --partitions=2 --json=six.json",
    "balance --model=unet:1,2 --partitions=2 --device=cuda:-1",
    "memory_plan --model=unet:1,2 --balance=1,2",
    "memory_plan --model=unet:1,2 --device_gib=1e-10",
    "memory_plan --model=unet:1,2 --device_gib=2e6",
    "fit --model=unet:1,2 --devices_gib=1,",
    "fit --model=unet:1,2 --devices_gib=" + "1," * 64 + "1",
    "fit --model=unet:1,2 --devices_gib=1 --margin_gib=-1",
    "plan --model=unet:1,2 --devices=2 --memory=1e30GiB",
    "plan --model=unet:1,2 --devices=2 --stages_per_device=",
    "diagnose --model=unet:1,2 --partitions=2 --balance=3,62,1",
    "diagnose --model=unet:1,2 --partitions=2 --batch=4 --chunks=5",
]

PROGRAMS = {"diagnose": "diagnose/command"}
WRITTEN = ("out.json", "out.svg", "plan.json", "plan.txt")


def make_profile(model, costs, skips, rows):
    layers = [
        {
            "name": str(k),
            "forward": cost * 1e-3,
            "backward": 2 * cost * 1e-3,
            "parameters": int(cost * MIB),
            "buffers": 0,
            "kept": MIB,
            "workspace": MIB,
            "output": MIB,
        }
        for k, cost in enumerate(costs)
    ]
    return {
        "format": "gpipe profile",
        "version": 1,
        "model": model,
        "device": "a device",
        "batch_rows": rows,
        "input": MIB,
        "layers": layers,
        "skips": skips,
    }


def make_files(folder):
    skip = [{"from": 0, "to": 5, "bytes": MIB}]
    profiles = {
        "six": make_profile("toy", [1] * 6, skip, 4),
        "unet": make_profile("unet:1,2@64", [1 + k % 3 for k in range(65)], [], 2),
    }
    number = 1
    for k in range(2, 8):
        costs = []
        for _ in range(30 + k):
            number = number * 16807 % 2147483647  # the same numbers everywhere
            costs.append(1 + number % 100)
        profiles[f"random{k}"] = make_profile(f"random{k}", costs, skip, k)
    experts = {
        "model_type": "mixtral",
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 16,
    }
    os.mkdir(os.path.join(folder, "experts"))
    texts = {f"{name}.json": profile for name, profile in profiles.items()}
    texts["experts/config.json"] = experts
    for name, value in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)


def record(bin_folder, line, folder):
    """Runs a command and returns all that it says and writes."""
    name, *flags = shlex.split(line)
    program = os.path.join(bin_folder, PROGRAMS.get(name, "balance/commands/" + name))
    environment = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    environment.pop("BUILD_WORKING_DIRECTORY", None)
    done = subprocess.run(
        [program, *flags], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    # What stderr has before an error is progress, which depends on the time that a run takes.
    error = "".join(done.stderr.partition("error: ")[1:])
    parts = [line, f"exit code {done.returncode}", done.stdout, error]
    for written in WRITTEN:
        path = os.path.join(folder, written)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                parts.append(f"--- {written}\n{file.read()}")
            os.remove(path)
    return "\n".join(parts)


def main():
    bin_folder, out = (os.path.abspath(path) for path in sys.argv[1:])
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        make_files(folder)
        for k, line in enumerate(RUNS + MISTAKES):
            with open(os.path.join(out, f"{k:03}"), "w", encoding="utf-8") as file:
                file.write(record(bin_folder, line, folder))
    print(f"{len(RUNS)} runs that answer, {len(MISTAKES)} with mistakes or --help: {out}")


if __name__ == "__main__":
    main()
