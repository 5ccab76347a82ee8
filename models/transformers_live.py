"""Python's transformers and //models:hugging_face read each other's models: transformers_live.py PROGRAM

PROGRAM is transformers_live_program. Models of several kinds are made here with random values, read there, and
compared by what they compute; what is written there is read here. Then the reverse: values are drawn there.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from make_golden import CASES

ROWS, TOKENS = 3, 7
# These models are larger than those whose files are in the repository, and have other shapes.
SIZES = {
    "gpt2": {"vocab_size": 29, "n_positions": 12, "n_embd": 24, "n_layer": 3, "n_head": 3},
    "llama": {"vocab_size": 31, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
              "num_attention_heads": 6},
}
# Logits, loss and gradients are of order one; see hugging_face_test.cc.
BOUNDS = {torch.float64: 1e-12, torch.float32: 5e-6}

program = pathlib.Path(sys.argv[1]).resolve()
failures = []
figures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print("FAILED:", what)


def expect_close(have, want, bound, what):
    """The bound is relative to the largest value, if that is above one, because rounding errors grow with it."""
    apart = (have - want).abs().max().item() / max(1, want.abs().max().item())
    expect(have.shape == want.shape and have.dtype == want.dtype and apart <= bound,
           f"{what}: {have.dtype} {tuple(have.shape)}, wanted {want.dtype} {tuple(want.shape)}; "
           f"they differ by {apart:.1e}, allowed is {bound}")
    return apart


def run(model, inputs, out, *seed):
    subprocess.run([program, model, inputs, out, *map(str, seed)], check=True)


def read(folder):
    """A model as transformers reads it, all of it and nothing else."""
    model, told = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
    for kind, keys in told.items():
        expect(not keys, f"{folder}: {kind}: {keys}")
    return model


def compare(name, model, inputs, out):
    """What `model` computes, and what PROGRAM has."""
    ours = load_file(out / "outputs.safetensors")
    apart = {}
    model.eval()  # no dropout
    for dtype, bound in BOUNDS.items():
        model.to(dtype)
        model.zero_grad()
        logits = model(inputs["ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["targets"].flatten())
        prefix = str(dtype).removeprefix("torch.")
        expect(logits.std() > 0.1, f"{name}: logits that say nothing")
        apart[prefix] = expect_close(ours[prefix + ".logits"], logits.detach(), bound, f"{name}: {prefix} logits")
        expect_close(ours[prefix + ".loss"], loss.detach(), bound, f"{name}: {prefix} loss")
        if dtype != torch.float64:
            continue
        loss.backward()
        gradients = load_file(out / "gradients" / "model.safetensors")
        expected = {key: parameter.grad for key, parameter in model.named_parameters()}
        expect(gradients.keys() == expected.keys(), f"{name}: gradients {sorted(gradients.keys() ^ expected.keys())}")
        expect(max(grad.abs().max() for grad in expected.values()) > 0.01, f"{name}: gradients that say nothing")
        apart["gradients"] = max(expect_close(gradients[key], expected[key], bound, f"{name}: gradient of {key}")
                                 for key in gradients.keys() & expected.keys())
    figures.append(f"{name:28}" + "".join(f"  {what} {value:.1e}" for what, value in apart.items()))
    model.to(torch.float32)


def expect_same_config(name, folder, out):
    """Compares what both files say, and what transformers makes of them."""
    theirs, ours = (json.loads((path / "config.json").read_text()) for path in (folder, out))
    expect(len(theirs.keys() & ours.keys()) > 12, f"{name}: {sorted(ours)}")
    for key in theirs.keys() & ours.keys() - {"dtype"}:
        expect(theirs[key] is None or theirs[key] == ours[key], f"{name}: {key}: {theirs[key]} became {ours[key]}")
    theirs, ours = (AutoConfig.from_pretrained(path) for path in (folder, out))
    expect(type(theirs) is type(ours), f"{name}: {type(ours)}")


def exchange(name, seed, dtype, work):
    make, changes, _, shard = CASES[name]
    folder, out, made = (work / each for each in ("theirs", "written", "made"))
    torch.manual_seed(seed)
    model = make(**{**changes, **SIZES["gpt2" if name.startswith("gpt2") else "llama"]})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms of one and biases of zero would hide mistakes
                parameter.add_(torch.rand_like(parameter) - 0.5)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    # The model is loaded anew, because the conversion has also rounded what is not a parameter.
    model = read(folder)
    vocabulary = model.config.vocab_size
    inputs = {key: torch.randint(vocabulary, (ROWS, TOKENS)) for key in ("ids", "targets")}
    save_file(inputs, work / "inputs.safetensors")
    label = name + ("" if dtype == torch.float32 else " (bfloat16)")

    run(folder, work / "inputs.safetensors", out)
    compare(label + ", read", model, inputs, out)
    expect_same_config(label, folder, out)
    back = read(out)
    expect(len(list(out.glob("model*.safetensors"))) > 1, f"{label}: it is not in several files")
    values, theirs = back.state_dict(), model.state_dict()
    expect(values.keys() == theirs.keys() and all(torch.equal(values[key], theirs[key]) for key in values),
           f"{label}: other values than those that were read")

    run(folder, work / "inputs.safetensors", made, seed)
    drawn = read(made)
    compare(label + ", drawn there", drawn, inputs, made)
    first = next(iter(theirs))
    expect(not torch.equal(drawn.state_dict()[first], theirs[first]), f"{label}: nothing was drawn")


def main():
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    for number, name in enumerate(CASES):
        for dtype in (torch.float32, torch.bfloat16)[:2 if name in ("gpt2", "llama") else 1]:
            with tempfile.TemporaryDirectory() as work:
                exchange(name, 100 + number, dtype, pathlib.Path(work))
    print("largest differences, of values of order one:", *figures, sep="\n")
    if failures:
        sys.exit(1)
    print("PASSED")


if __name__ == "__main__":
    main()
