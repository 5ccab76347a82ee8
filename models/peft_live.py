"""Python's peft and //models:lora read each other's adapters: peft_live.py PROGRAM

PROGRAM is peft_live_program. Adapters of several kinds are made here with random values, and computed, written back and
merged there: what is written must be what was read, and what is merged must have the bits of merge_and_unload.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from make_golden import CASES

LLAMA = {
    "two": {"target_modules": ["q_proj", "v_proj"], "r": 2, "lora_alpha": 3},
    "all, stabilized": {"target_modules": "all-linear", "r": 4, "lora_alpha": 8, "use_rslora": True, "lora_dropout": 0.1},
    "pattern": {"target_modules": r".*\.1\..*\.(k|down)_proj", "r": 3},
    "dora": {"target_modules": ["k_proj", "o_proj", "gate_proj"], "r": 2, "use_dora": True},
}
GPT2 = {
    "two": {"target_modules": ["c_attn", "c_fc"], "r": 2, "lora_alpha": 3},
    "all": {"target_modules": "all-linear", "r": 3, "exclude_modules": ["h.0.mlp.c_proj"]},
    "dora": {"target_modules": ["c_attn", "c_proj"], "r": 2, "use_dora": True},
}
# Logits and gradients are of order one, so the bound is absolute.
BOUND = 1e-11

program = pathlib.Path(sys.argv[1]).resolve()
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print("FAILED:", what)


def expect_same(name, ours, theirs):
    """Bit for bit."""
    expect(ours.keys() == theirs.keys(), f"{name}: {sorted(ours.keys() ^ theirs.keys())}")
    for key in ours.keys() & theirs.keys():
        expect(ours[key].dtype == theirs[key].dtype and torch.equal(ours[key], theirs[key]), f"{name}: {key} differs")


def expect_close(name, ours, theirs):
    apart = (ours - theirs).abs().max().item()
    expect(ours.shape == theirs.shape and apart <= BOUND * max(1, theirs.abs().max().item()), f"{name}: {apart:.1e}")


def read(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


def exchange(kind, name, settings, dtype, work):
    label = f"{kind}, {name}, {dtype}"
    make, changes, _, _ = CASES[kind]
    base, adapter, out, merged = (work / each for each in ("base", "adapter", "out", "merged"))
    out.mkdir()
    make(**changes).to(dtype).save_pretrained(base)
    model = get_peft_model(read(base, dtype), LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_magnitude" in key:
                parameter.mul_(1 + 0.1 * torch.rand_like(parameter))
            elif "lora_" in key:
                parameter.normal_(0, 0.3)
    model.save_pretrained(adapter)
    theirs = load_file(adapter / "adapter_model.safetensors")
    expect(len(theirs) > 2, f"{label}: few tensors")
    inputs = {key: torch.randint(model.config.vocab_size, (3, 7)) for key in ("ids", "targets")}
    save_file(inputs, work / "inputs.safetensors")
    subprocess.run([program, base, adapter, work / "inputs.safetensors", out], check=True)

    # The program must write the adapter as it was read, and peft must be able to read it.
    expect_same(label + ", written", load_file(out / "adapter" / "adapter_model.safetensors"), theirs)
    back = PeftModel.from_pretrained(read(base, dtype), out / "adapter")
    expect_same(label + ", read again", dict(back.state_dict()), dict(model.state_dict()))
    have, want = (json.loads((path / "adapter_config.json").read_text()) for path in (out / "adapter", adapter))
    for key in have.keys() & want.keys():
        lists = isinstance(want[key], list)
        expect(sorted(have[key]) == sorted(want[key]) if lists else have[key] == want[key],
               f"{label}: {key}: {want[key]} became {have[key]}")

    # Compares the logits and the gradients with those that peft computes.
    model.eval()
    model.double()
    logits = model(inputs["ids"]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["targets"].flatten()).backward()
    expect_close(label + ", logits", load_file(out / "outputs.safetensors")["logits"], logits.detach())
    plain = read(base, dtype).double()(inputs["ids"]).logits
    expect((plain - logits).abs().max() > 0.01, f"{label}: an adapter that changes nothing")
    gradients = load_file(out / "gradients" / "adapter_model.safetensors")
    largest = 0.0
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            name_in_file = key.replace(".default", "").replace("magnitude_vector.weight", "magnitude_vector")
            expect_close(f"{label}, gradient of {key}", gradients.pop(name_in_file), parameter.grad)
            largest = max(largest, parameter.grad.abs().max().item())
    expect(not gradients and largest > 0.01, f"{label}: gradients {list(gradients)}, the largest {largest}")

    # Compares the merged weights with peft's, bit for bit.
    PeftModel.from_pretrained(read(base, dtype), adapter).merge_and_unload().save_pretrained(merged)
    ours = load_file(out / "merged" / "model.safetensors")
    expect_same(label + ", merged", ours, load_file(merged / "model.safetensors"))
    unmerged = load_file(base / "model.safetensors")
    expect(any(not torch.equal(ours[key], unmerged[key]) for key in ours), f"{label}: nothing was merged")


def main():
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    for kind, variants in (("llama", LLAMA), ("gpt2", GPT2)):
        for name, settings in variants.items():
            for dtype in (torch.float32, torch.bfloat16):
                with tempfile.TemporaryDirectory() as work:
                    exchange(kind, name, settings, dtype, pathlib.Path(work))
                    print(f"{kind}, {name}, {dtype}: done", flush=True)
    if failures:
        sys.exit(1)
    print("PASSED")


if __name__ == "__main__":
    main()
