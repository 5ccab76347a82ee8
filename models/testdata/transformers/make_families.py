#!/usr/bin/env python3
"""Makes families.json: a small model of each family as transformers computes it, for families_test.cc.

    PYTHONPATH="LIBTORCH:$(tools/transformers/transformers.sh):models" ATEN_CPU_CAPABILITY=default \\
        python3 models/testdata/transformers/make_families.py - models/testdata/transformers/published.json

The configs are published ones, shrunk. Weights come from models/hash_fill.h's numbers, by the place of a tensor's name in
their order, so that no file has them. The logits and gradients, in float64, are multiplied by such numbers and added up:
one sum for each token, and one of all gradients.
"""

import json
import pathlib
import tempfile

import numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging
from transformers_families import TOKENS, cases, in_order

NAMES = ["distilgpt2", "gpt-bigcode", "llama-3.1-70b", "llama-2-7b", "mistral, window", "qwen2, windows",
         "qwen3, windows, biases", "llama, dynamic", "llama, yarn, mscale", "phi-4", "olmo2, shared heads", "gemma-2b",
         "gemma-2-2b", "gemma3, linear", "neox, partial", "starcoder2", "stablelm, biases", "smollm3, windows",
         "neox, parallel", "mixtral, window", "qwen2 moe, windows", "qwen3 moe, dense"]
# These fields change nothing, so they are left out here. Another test shows that.
USELESS = ("_name_or_path", "architectures", "auto_map", "transformers_version", "use_cache", "task_specific_params",
           "bos_token_id", "eos_token_id", "initializer_range", "_num_labels", "id2label", "label2id", "_commit_hash")


def hash_values(k, count):
    """models/hash_fill.h's hash_value(k, 0 .. count - 1)."""
    h = numpy.arange(count, dtype=numpy.uint32) + numpy.uint32(k * 0x9E3779B9 % 2**32)
    for factor, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        h ^= h >> numpy.uint32(shift)
        h *= numpy.uint32(factor)
    h ^= h >> numpy.uint32(16)
    return torch.from_numpy(2 * (h / 4294967296.0 - 0.5))


def in_files(values):
    """Tensors by the names that published files have: views of one expert each, in their order."""
    result = {}
    for key, value in values.items():
        prefix, experts, name = key.partition(".experts.")
        if not experts:
            result[key] = value
            continue
        for number, expert in enumerate(value):
            parts = zip(("gate_proj", "up_proj"), expert.chunk(2)) if name == "gate_up_proj" else [(name, expert)]
            for part, matrix in parts:
                result[f"{prefix}.experts.{number}.{part}.weight"] = matrix
    return dict(sorted(result.items()))


def published(config, values):
    """As in_files(), of this config's model."""
    values = in_files(values)
    if config["model_type"] != "mixtral":
        return values
    names = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    renamed = {}
    for key, value in values.items():
        if ".mlp.experts." in key:
            *rest, name, weight = key.split(".")
            key = ".".join([*rest, names[name], weight])
        renamed[key.replace(".mlp.", ".block_sparse_moe.")] = value
    return dict(sorted(renamed.items()))


def main():
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    result = []
    for name, config in cases():
        if name not in NAMES:
            continue
        config = {key: value for key, value in config.items()
                  if key not in USELESS and not key.startswith("summary_")}
        config["pad_token_id"] = None
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            read = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForCausalLM.from_config(read, attn_implementation="eager", dtype=torch.float32)
        model.eval()
        in_order(model)
        with torch.no_grad():
            for k, parameter in enumerate(published(config, dict(model.named_parameters())).values()):
                values = hash_values(k, parameter.numel()).view(parameter.shape)
                scale = (3 / parameter.shape[-1]) ** 0.5
                parameter.copy_(scale * values if parameter.dim() > 1 else parameter + 0.3 * values)
        model.to(torch.float64)
        ids = torch.arange(TOKENS).mul(7).remainder(29).unsqueeze(0)
        logits = model(ids).logits
        words = hash_values(1000, 29)
        sums = logits[0] @ words
        (sums * hash_values(2000, TOKENS)).sum().backward()
        gradients = published(config, {key: parameter.grad for key, parameter in model.named_parameters()})
        gradient = sum((each.flatten() * hash_values(k + 3000, each.numel())).sum()
                       for k, each in enumerate(gradients.values()))
        result.append({"name": name, "config": config, "logits": sums.tolist(), "gradient": gradient.item()})
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in result)
    (pathlib.Path(__file__).parent / "families.json").write_text(f"[\n{lines}\n]\n")
    assert len(result) == len(NAMES), sorted(set(NAMES) - {each["name"] for each in result})


if __name__ == "__main__":
    main()
