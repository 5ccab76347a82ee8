#!/usr/bin/env python3
"""A small random Llama 3 to try //examples/fine_tune with: tiny.py FOLDER

FOLDER gets model, with a tokenizer (each byte is a token) and a chat template, and chats.jsonl and held_out.jsonl, in
which a color is asked for. Needs Python's transformers, not torch.
"""

import json
import pathlib
import sys

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

SPECIAL = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TEMPLATE = (
    "{{ '<|begin_of_text|>' }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] }}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
COLORS = ["red", "green", "blue", "pink"]
LAYERS, WIDTH, HEADS, KV_HEADS, MLP = 2, 32, 4, 2, 64


def make_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={letter: k for k, letter in enumerate(alphabet)}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token=SPECIAL[0], eos_token=SPECIAL[3])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(folder):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64, "rope_theta": 500000.0}
    LlamaConfig(vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=MLP, num_hidden_layers=LAYERS,
                num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=512,
                rope_parameters=scaling, dtype="float32", architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    draw = numpy.random.default_rng(1)
    keys = WIDTH // HEADS * KV_HEADS
    weights = {"model.norm.weight": numpy.ones(WIDTH, numpy.float32)}
    shapes = {"model.embed_tokens": (len(tokenizer), WIDTH), "lm_head": (len(tokenizer), WIDTH)}
    for k in range(LAYERS):
        layer = f"model.layers.{k}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{norm}.weight"] = numpy.ones(WIDTH, numpy.float32)
        for name, rows in (("q", WIDTH), ("k", keys), ("v", keys), ("o", WIDTH)):
            shapes[f"{layer}self_attn.{name}_proj"] = (rows, WIDTH)
        for name, shape in (("gate", (MLP, WIDTH)), ("up", (MLP, WIDTH)), ("down", (WIDTH, MLP))):
            shapes[f"{layer}mlp.{name}_proj"] = shape
    for name, shape in shapes.items():
        weights[name + ".weight"] = draw.normal(0, 0.1, shape).astype(numpy.float32)
    save_file(weights, pathlib.Path(folder) / "model.safetensors", metadata={"format": "pt"})
    return tokenizer


def write_chats(path, first, count):
    with open(path, "w", encoding="utf-8") as file:
        for k in range(first, first + count):
            color = COLORS[k % 4]
            messages = [{"role": "user", "content": f"{color}{k}?"}, {"role": "assistant", "content": f"{color}!"},
                        {"role": "user", "content": "Again…"}, {"role": "assistant", "content": color}]
            file.write(json.dumps({"messages": messages}) + "\n")


def make_all(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_chats(folder / "chats.jsonl", 0, 64)
    write_chats(folder / "held_out.jsonl", 64, 8)
    return make_model(folder / "model")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    make_all(sys.argv[1])
