#!/usr/bin/env python3
"""Makes the folders beside this file: small random language models as `transformers` saves them, and what it computes.

    PYTHONPATH="LIBTORCH:$(tools/transformers/transformers.sh)" ATEN_CPU_CAPABILITY=default \\
        python3 models/testdata/transformers/make_golden.py

LIBTORCH is the unpacked LibTorch of this repository (what is here was made by torch 2.11.0; 2.15.0 rounds a few values
otherwise); the test runs under the same ATEN_CPU_CAPABILITY, because Llama's float32 sums depend on how wide the CPU's
vectors are, also in a model of float64.

A folder has the model, and golden.safetensors: `ids`, `targets`, and for float64 and float32 the logits, the mean cross
entropy and its gradients under the names of the model's tensors. Attention is transformers' "eager".
"""

import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent
VOCABULARY = 13
ROWS, TOKENS = 2, 6


def gpt2(**changes):
    settings = dict(vocab_size=VOCABULARY, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
                    initializer_range=0.3, attn_implementation="eager")
    return GPT2LMHeadModel(GPT2Config(**{**settings, **changes}))


def llama(**changes):
    settings = dict(vocab_size=VOCABULARY, hidden_size=8, intermediate_size=12, num_hidden_layers=2,
                    num_attention_heads=4, max_position_embeddings=16, initializer_range=0.3,
                    attn_implementation="eager")
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))


CASES = {
    # The weights of "gpt2" are as transformers initializes them, in files of at most four kilobytes.
    "gpt2": (gpt2, {}, False, "4KB"),
    "gpt2_untied": (gpt2, {"tie_word_embeddings": False, "n_inner": 20, "layer_norm_epsilon": 1e-3}, True, "5GB"),
    "llama": (llama, {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
              True, "4KB"),
    "llama_tied": (llama, {"num_key_value_heads": 1, "head_dim": 6, "tie_word_embeddings": True, "rms_norm_eps": 1e-2},
                   False, "5GB"),
}


def main():
    for seed, (name, (make, changes, perturbed, shard)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        model = make(**changes)
        if perturbed:  # norms of one and biases of zero would hide mistakes
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() == 1:
                        parameter.add_(torch.rand_like(parameter) - 0.5)
        shutil.rmtree(HERE / name, ignore_errors=True)
        model.save_pretrained(HERE / name, max_shard_size=shard)
        (HERE / name / "generation_config.json").unlink()

        golden = {
            "ids": torch.randint(VOCABULARY, (ROWS, TOKENS)),
            "targets": torch.randint(VOCABULARY, (ROWS, TOKENS)),
        }
        model.eval()  # no dropout
        for type in (torch.float64, torch.float32):
            model.to(type)
            model.zero_grad()
            logits = model(golden["ids"]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), golden["targets"].flatten())
            loss.backward()
            prefix = str(type).removeprefix("torch.") + "."
            golden[prefix + "logits"] = logits.detach()
            golden[prefix + "loss"] = loss.detach()
            for key, parameter in model.named_parameters():
                golden[prefix + "grad." + key] = parameter.grad.clone()
        save_file(golden, HERE / name / "golden.safetensors")
        for file in (HERE / name).iterdir():
            file.chmod(0o644)


if __name__ == "__main__":
    main()
