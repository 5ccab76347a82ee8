"""Fine-tuning between Python's transformers and peft: fine_tune_live.py PROGRAM PREPARE LOGITS

tiny.py makes a small random Llama 3 with a tokenizer and a chat template. PREPARE (prepare.py) writes conversations,
PROGRAM (//examples/fine_tune) trains on them. Python reads what comes out, and computes the same. LOGITS:
transformers_live_program.
"""

import contextlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import prepare as prepare_module
from tiny import COLORS, TEMPLATE, make_all

program, prepare, live = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
# TEMPLATE with marks that say where its answers are (generation).
MARKED = TEMPLATE.replace(
    "{{ message['content'] }}{{ '<|eot_id|>' }}",
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|eot_id|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|eot_id|>' }}{% endif %}")
# This template writes a message otherwise if it is the last one.
FORGETFUL = TEMPLATE.replace("{{ message['content'] }}", "{% if loop.last %}{{ message['content'] }}{% else %}-{% endif %}")

failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print("FAILED:", what)


def run_prepare(*arguments):
    return subprocess.run([sys.executable, prepare, *arguments], capture_output=True, text=True, check=False)


def check_prepared(tokenizer, path, count):
    data = load_file(path)
    ids, mask, offsets = data["ids"], data["mask"], data["offsets"]
    expect((ids.dtype, mask.dtype, offsets.dtype) == (torch.int32, torch.uint8, torch.int64), "types")
    expect(len(offsets) == count + 1 and offsets[-1] == len(ids) == len(mask), f"{path}: lengths")
    for k in range(count):
        own = slice(offsets[k], offsets[k + 1])
        color = COLORS[k % 4]
        learned = tokenizer.decode(ids[own][mask[own] == 1])
        expect(learned == f"{color}!<|eot_id|>{color}<|eot_id|>", f"conversation {k} learns {learned}")
        expect(tokenizer.decode(ids[own]).startswith("<|begin_of_text|><|start_header_id|>user"), "the begin")
    return ids, mask, offsets


def train(work, name, *flags):
    """What it printed, the validation losses and the hash."""
    command = [program, f"--model={work}/model", f"--data={work}/chats.safetensors", f"--run={work}/{name}",
               f"--validation={work}/held_out.safetensors", "--length=96", "--batch=8", "--steps=30", "--warm_up=3",
               "--validate_every=10", "--threads=1", "--learning_rate=0.01", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"{command}: {done.stdout}{done.stderr}")
    return [float(loss) for loss in re.findall(r"validation (\S+?)(?:,|\n)", done.stdout)], \
        "".join(re.findall(r"^parameters (\w+)$", done.stdout, re.MULTILINE))


def loss_of(model, data):
    """The mean over the answers' tokens, conversation by conversation."""
    ids, mask, offsets = data
    total = count = 0
    for begin, end in zip(offsets[:-1], offsets[1:]):
        own = ids[begin:end].long()
        targets = own[1:].masked_fill(mask[begin + 1:end] == 0, -100)
        with torch.no_grad():
            logits = model(own[None, :-1]).logits[0]
        total += torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum").item()
        count += (targets != -100).sum().item()
    return total / count


def read(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def check_templates(work, tokenizer):
    """If the template itself says where its answers are, prepare.py finds the same answers. A
    template that writes the last message otherwise is refused.
    """
    for template, right in ((MARKED, True), (FORGETFUL, False)):
        tokenizer.chat_template = template
        tokenizer.save_pretrained(work / "other")
        done = run_prepare(work / "other", work / "held_out.jsonl", work / "other.safetensors")
        expect((done.returncode == 0) == right, f"another template: {done.returncode} {done.stderr}")
        if right:
            check_prepared(tokenizer, work / "other.safetensors", 8)
        else:
            expect("does not begin with the tokens of its first" in done.stderr, done.stderr)
    tokenizer.chat_template = TEMPLATE


def check_mistakes(work):
    """Lines that are not conversations are refused."""
    for line, what in (('{"messages": 3}', "line 1: give"), ('{"messages": []}', "no answer to learn"),
                       ('["a"]', "line 1: give"), ('{"messages": [{"role": "assistant"}]}', "KeyError: 'content'")):
        (work / "wrong.jsonl").write_text(line + "\n")
        with contextlib.redirect_stderr(io.StringIO()) as told:
            try:
                list(prepare_module.conversations(work / "wrong.jsonl"))
            except SystemExit as exit_of:
                expect(exit_of.code == 2, f"{line}: {exit_of.code}")
        expect(what in told.getvalue(), f"{line}: {told.getvalue()}")


def check_logits(work, inputs, trained):
    """The results' logits are the same in C++, in peft and in the merged model."""
    outputs = work / "outputs"
    subprocess.run([live, "--logits", outputs, work / "inputs.safetensors"], check=True)
    for kind, logits in trained.items():
        expect(not (outputs / kind / "refused.txt").exists(), f"{kind}: refused")
        ours = load_file(outputs / kind / "outputs.safetensors")["logits"]
        apart = (ours - logits).abs().max().item() / logits.abs().max().item()
        python = (read(work / kind / "model")(inputs["ids"]).logits - logits).abs().max().item()
        print(f"{kind}: logits apart by {apart:.1e}, merged by {python:.1e}")
        expect(apart < 2e-5 and python < 2e-4, f"{kind}: {apart}, {python}")


def check_resumed(work, flags, expected):
    """A run that is stopped, and goes on with two stages, has the losses and the hash of a run in one go. Token ids of
    another tokenizer are refused.
    """
    train(work, "again", *flags, "--stop_at=13")
    _, again = train(work, "again", *flags, "--stages=2")
    expect(again == expected and len(again) == 16, f"{again}, and not {expected}")
    words = work / "model" / "tokenizer.json"
    words.write_text(words.read_text() + "\n")
    done = subprocess.run([program, f"--model={work}/model", f"--data={work}/chats.safetensors", f"--run={work}/new"],
                          capture_output=True, text=True, check=False)
    expect(done.returncode == 2 and "another tokenizer: tokenizer.json had" in done.stderr, done.stderr)
    expect(not (work / "new").exists(), "a mistake leaves a folder")


def main():
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        tokenizer = make_all(work)
        held_out = None
        for chats, count in (("chats", 64), ("held_out", 8)):
            done = run_prepare(work / "model", work / f"{chats}.jsonl", work / f"{chats}.safetensors")
            expect(done.returncode == 0, f"prepare.py: {done.stderr}")
            held_out = check_prepared(tokenizer, work / f"{chats}.safetensors", count)

        check_templates(work, tokenizer)
        check_mistakes(work)
        inputs = {"ids": torch.randint(0, len(tokenizer), (3, 17))}
        save_file(inputs, work / "inputs.safetensors")
        before = loss_of(read(work / "model"), held_out)
        trained = {"lora": ["--rank=4", "--alpha=8"], "dora": ["--rank=4", "--dora", "--targets=q_proj,v_proj,down_proj", "--average=0.9"],
                   "full": ["--nolora", "--learning_rate=0.003"]}
        adapter = trained["lora"]
        hashes, outputs = {}, work / "outputs"
        outputs.mkdir()
        for kind, flags in trained.items():
            losses, hashes[kind] = train(work, kind, *flags)
            expect(len(losses) == 3 and losses[-1] < losses[0] < before, f"{kind}: from {before} to {losses}")
            # The result's loss is the loss that the run told for its best step.
            if kind == "full":
                model = read(work / kind / "model")
            else:
                model = PeftModel.from_pretrained(read(work / "model"), work / kind / "adapter").eval()
                # The run is over, so it trains nothing. It writes its result again, with the merged
                # model beside it.
                train(work, kind, *flags, "--merge")
                expect((work / kind / "model" / "tokenizer.json").exists(), f"{kind}: no tokenizer")
            told = loss_of(model, held_out)
            expect(abs(told - min(losses)) < 1e-4, f"{kind}: {told}, and not {min(losses)}")
            (outputs / kind).symlink_to(work / kind / "model")
            with torch.no_grad():
                trained[kind] = model(inputs["ids"]).logits
            # The result's folder has the tokenizer of the base.
            same = AutoTokenizer.from_pretrained(work / kind / "model")
            expect(same.chat_template == tokenizer.chat_template, f"{kind}: another template")
        check_logits(work, inputs, trained)
        check_resumed(work, adapter, hashes["lora"])
    if failures:
        sys.exit(1)
    print("PASSED")


if __name__ == "__main__":
    main()
