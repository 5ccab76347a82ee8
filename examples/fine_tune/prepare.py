#!/usr/bin/env python3
"""Conversations as token ids, for //examples/fine_tune: prepare.py MODEL CHATS OUT

MODEL: a folder of Python's transformers with a tokenizer that has a chat template. CHATS: a file of JSON lines,

    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}]}

OUT is a file of safetensors: `ids` (tokens, int32) of all conversations, one behind the other; `mask` (tokens, uint8), 1
for the tokens of the assistant's answers, with what the template ends them by; `offsets` (conversations + 1, int64),
where each begins and ends. Its metadata has the checksums of the tokenizer's files, which the training compares with
those of its own folder.

If the template marks its answers ({% generation %}), these are the answers. Otherwise an answer is what the template
puts behind the conversation that asks for it (add_generation_prompt); a template for which a conversation does not
begin as its first messages do is refused.
"""

import argparse
import json
import pathlib
import sys
import zlib

import numpy
from jinja2 import TemplateError
from safetensors.numpy import save_file
from transformers import AutoTokenizer


# The files by which tokenizers are told apart (tokenizer.cc).
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tekken.json")


def wrong(what):
    print(f"error: {what}", file=sys.stderr)
    sys.exit(2)


def conversations(path):
    """The messages of each line."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = list(file)
    except (OSError, UnicodeDecodeError) as error:
        wrong(f"cannot read {path}: {error}")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            messages = json.loads(line)["messages"]
            roles = [message["role"] for message in messages]
            if not all(isinstance(message["content"], str) for message in messages):
                raise TypeError("content")
        except (ValueError, KeyError, TypeError) as error:
            wrong(f'{where}: give {{"messages": [{{"role": ..., "content": "..."}}, ...]}}; '
                  f"{type(error).__name__}: {error}")
        if "assistant" not in roles:
            wrong(f'{where}: there is no answer to learn, a message with the role "assistant"')
        yield where, messages


def ids_of(tokenizer, messages, **options):
    return list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options))


def marked(tokenizer, messages):
    """Ids, and where the template itself says that answers are."""
    both = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return list(both["input_ids"]), list(both["assistant_masks"])


def found(tokenizer, messages, where):
    """Ids, and the tokens that come behind each question."""
    ids = ids_of(tokenizer, messages)
    mask = [0] * len(ids)
    for k, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = ids_of(tokenizer, messages[:k], add_generation_prompt=True) if k > 0 else []
        behind = ids_of(tokenizer, messages[:k + 1])
        if ids[:len(before)] != before or ids[:len(behind)] != behind:
            wrong(f"{where}: with this chat template a conversation does not begin with the tokens of its first "
                  f"{k + 1} messages, so the answer cannot be found; mark answers in the template with "
                  "{% generation %} and {% endgeneration %}")
        mask[len(before):len(behind)] = [1] * (len(behind) - len(before))
    return ids, mask


def made_by(folder):
    """{file: bytes and checksum}, as examples/common/bits.h writes them."""
    paths = [pathlib.Path(folder) / name for name in TOKENIZER_FILES]
    contents = {path.name: path.read_bytes() for path in paths if path.is_file()}
    return {name: f"{len(content)} bytes, CRC-32 {zlib.crc32(content):08x}" for name, content in contents.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "chats", "out"):
        parser.add_argument(name)
    given = parser.parse_args()
    try:
        tokenizer = AutoTokenizer.from_pretrained(given.model)
    except (OSError, ValueError) as error:
        wrong(f"cannot read the tokenizer of {given.model}: {error}")
    template = tokenizer.chat_template
    if template is None:
        wrong(f"the tokenizer of {given.model} has no chat template: take a model that was tuned to converse, or put a "
              "chat_template.jinja into the folder")
    ids, mask, offsets = [], [], [0]
    for where, messages in conversations(given.chats):
        try:
            if "generation %}" in template or "generation -%}" in template:
                own_ids, own_mask = marked(tokenizer, messages)
            else:
                own_ids, own_mask = found(tokenizer, messages, where)
        except TemplateError as error:  # e.g. roles that do not alternate
            wrong(f"{where}: the chat template refuses the conversation: {error}")
        if 1 not in own_mask:
            wrong(f"{where}: the chat template gives no token of an answer")
        ids += own_ids
        mask += own_mask
        offsets.append(len(ids))
    if not ids:
        wrong(f"{given.chats} has no conversation")
    save_file({"ids": numpy.array(ids, numpy.int32), "mask": numpy.array(mask, numpy.uint8),
               "offsets": numpy.array(offsets, numpy.int64)}, given.out, metadata=made_by(given.model))
    print(f"{len(offsets) - 1} conversations, {len(ids)} tokens, {sum(mask)} of them in answers: {given.out}")


if __name__ == "__main__":
    main()
