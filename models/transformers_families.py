"""Every published config.json, read by //models:hugging_face, computes what Python's transformers does.

    transformers_families.py PROGRAM PUBLISHED.JSON [--mutants[=COUNT]] [--only=PART_OF_A_NAME]

PROGRAM is transformers_live_program. Each published config is shrunk to two layers and a few heads, given random weights
by Python, saved in one file or several, in float32, bfloat16 or float16, and read there: logits in three types, gradients,
and what is written back are compared.

With --mutants, and nothing else, each field of each config is changed, removed or made null, and each field is set that
the file lacks and transformers' class has: it must be refused there, or give the logits that transformers gives for the
changed config. With =COUNT so many of these, drawn by GPIPE_TEST_SEED, each second one changed once more.
"""

import collections
import copy
import functools
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.initialization import no_init_weights
from transformers.utils import logging

ROWS, TOKENS = 2, 11
# Values are of order one. bfloat16 has 8 bits and rounds after each operation, and the two programs
# differ in the order: the bound for bfloat16 is this one, or a larger one that close_in_bfloat16
# finds.
BOUNDS = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 0.05}
READ = 44  # the number of published configs that are not refused
AT_ONCE = 200  # the number of mutants in a group
LARGE = 2_000_000  # parameters

program = pathlib.Path(sys.argv[1]).resolve()
published = json.loads(pathlib.Path(sys.argv[2]).read_text())
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print("FAILED:", what)
    return holds


SIZES = {"vocab_size": 29, "hidden_size": 24, "n_embd": 24, "intermediate_size": 40, "num_hidden_layers": 2, "n_layer": 2,
         "num_attention_heads": 4, "n_head": 4, "max_position_embeddings": 16, "n_positions": 16, "n_ctx": 16,
         "sliding_window": 4, "sliding_window_pattern": 2, "max_window_layers": 1, "query_pre_attn_scalar": 10,
         "num_local_experts": 6, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
         "shared_expert_intermediate_size": 28, "head_dim": 12, "rope_theta": 100.0, "rotary_emb_base": 100, "rope_local_base_freq": 10}


def shrink(config):
    small = copy.deepcopy(config)
    for key, value in config.items():
        if key in SIZES and value is not None:
            small[key] = SIZES[key]
        if key.endswith("token_id"):
            small[key] = None
    heads = config.get("num_attention_heads")
    if config.get("num_key_value_heads") is not None:
        small["num_key_value_heads"] = {heads: 4, 1: 1}.get(config["num_key_value_heads"], 2)
    if config.get("n_inner") is not None:
        small["n_inner"] = 40
    if "final_logit_softcapping" in config and config["final_logit_softcapping"] is not None:
        small["final_logit_softcapping"], small["attn_logit_softcapping"] = 3.0, 2.0
    # These families rotate a quarter of a head, which must be an even number of columns.
    if config["model_type"] in ("gpt_neox", "stablelm"):
        small["hidden_size"] = 32
    # Texts are longer than the windows, and than the lengths at which positions begin to be scaled.
    scaling = small.get("rope_scaling")
    if scaling and "original_max_position_embeddings" in scaling:
        scaling["original_max_position_embeddings"] = 8
    if "original_max_position_embeddings" in small:
        small["original_max_position_embeddings"] = 8
    if scaling and "long_factor" in scaling:
        head = small.get("head_dim") or 6
        pairs = int(head * small.get("partial_rotary_factor", 1.0)) // 2
        for key in ("long_factor", "short_factor"):
            scaling[key] = [1 + 0.25 * i + (0.5 if key[0] == "l" else 0) for i in range(pairs)]
    small.pop("torch_dtype", None)
    return small


# Published configs with fields that they could have but do not use.
MORE = {
    "mistral, window": ("mistral-7b-v0.3", {"sliding_window": 4}),
    "qwen2, windows": ("qwen2-0.5b", {"use_sliding_window": True, "tie_word_embeddings": False}),
    "qwen3, windows, biases": ("qwen3-0.6b", {"use_sliding_window": True, "sliding_window": 3, "attention_bias": True}),
    "llama, biases": ("llama-2-7b", {"attention_bias": True, "mlp_bias": True, "head_dim": 8}),
    "llama, dynamic": ("llama-2-7b", {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 8}),
    "llama, linear": ("llama-2-7b", {"rope_scaling": {"type": "linear", "factor": 4}}),
    "llama, yarn": ("llama-2-7b", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                    "original_max_position_embeddings": 8}}),
    "llama, yarn, mscale": ("llama-3.2-1b", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.8,
                                                              "mscale_all_dim": 0.5, "truncate": False, "beta_fast": 4,
                                                              "original_max_position_embeddings": 8}}),
    "qwen2, yarn": ("qwen2.5-3b", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 50.0}}),
    "gemma2, other caps": ("gemma-2-2b", {"attn_logit_softcapping": None, "tie_word_embeddings": False}),
    "gemma3, linear": ("gemma-3-1b-it", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "gemma3, three to one": ("gemma-3-1b-it", {"sliding_window_pattern": 4, "num_hidden_layers": 4}),
    "olmo2, shared heads": ("olmo-2-7b", {"num_key_value_heads": 2, "attention_bias": True}),
    "neox, partial": ("redpajama-3b", {"rotary_pct": 0.5, "tie_word_embeddings": True, "hidden_act": "relu"}),
    "neox, parallel": ("redpajama-3b", {"use_parallel_residual": True}),
    "mixtral, window": ("mixtral-8x7b-v0.1", {"sliding_window": 4, "num_key_value_heads": 4}),
    "mixtral, one expert": ("mixtral-8x7b-v0.1", {"num_experts_per_tok": 1, "num_local_experts": 40}),
    "qwen2 moe, windows": ("qwen2-moe", {"use_sliding_window": True, "norm_topk_prob": True, "num_hidden_layers": 3}),
    "qwen3 moe, dense": ("qwen3-30b-a3b", {"mlp_only_layers": [1], "num_hidden_layers": 4, "decoder_sparse_step": 2,
                                           "attention_bias": True}),
    "qwen3 moe, windows": ("qwen3-30b-a3b", {"use_sliding_window": True, "sliding_window": 3, "norm_topk_prob": False}),
    "starcoder2, no biases": ("starcoder2", {"use_bias": False, "sliding_window": None}),
    "bigcode, many heads": ("gpt-bigcode", {"multi_query": False}),
    "stablelm, biases": ("stablelm", {"use_qkv_bias": True, "num_key_value_heads": 2}),
    "gpt2, exact gelu": ("gpt2", {"activation_function": "gelu"}),
    "smollm3": ("smollm-135m", {"model_type": "smollm3", "num_hidden_layers": 4, "tie_word_embeddings": True}),
    "smollm3, windows": ("smollm-135m", {"model_type": "smollm3", "no_rope_layers": [1, 0], "use_sliding_window": True,
                                         "sliding_window": 4, "pretraining_tp": None}),
}


def cases():
    """The shrunk configs by name, without duplicates."""
    only = next((each.removeprefix("--only=") for each in sys.argv if each.startswith("--only=")), "")
    yield from ((name, config) for name, config in all_cases() if only in name)


def all_cases():
    seen = {}
    for name, config in published.items():
        small = shrink(config)
        harmless = ("_name_or_path", "transformers_version", "architectures", "task_specific_params", "id2label",
                    "label2id", "_commit_hash", "use_cache", "initializer_range")
        seen.setdefault(json.dumps({k: v for k, v in small.items() if k not in harmless}, sort_keys=True), (name, small))
    yield from seen.values()
    for name, (base, changes) in MORE.items():
        small = {**shrink(published[base]), **changes}
        if small["model_type"] == "smollm3":
            small.pop("pretraining_tp", None)
        yield name, small


def in_order(model):
    """Computes experts one after the other rather than in one kernel, which is less exact."""
    if has_experts(model):
        model.set_experts_implementation("eager")


def has_experts(model):
    return hasattr(model, "router_aux_loss_coef")


def fused(values):
    """The experts' tensors as transformers has them: one for all."""
    parts = {}
    whole = {}
    for key, value in values.items():
        found = re.fullmatch(r"(.*)\.(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(\w+)\.weight", key)
        if found:
            name = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(found[3], found[3])
            parts.setdefault((found[1] + ".mlp.experts.", name), {})[int(found[2])] = value
        else:
            whole[key.replace(".block_sparse_moe.", ".mlp.")] = value
    stacked = {key: torch.stack([experts[i] for i in range(len(experts))]) for key, experts in parts.items()}
    for (prefix, name), value in stacked.items():
        if name == "gate_proj":
            whole[prefix + "gate_up_proj"] = torch.cat([value, stacked[prefix, "up_proj"]], 1)
        elif name == "down_proj":
            whole[prefix + name] = value
    return whole


def make(folder):
    """transformers' model of folder/config.json, with random weights of order one."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    in_order(model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            # Matrices are scaled to keep the lengths of vectors. Norms and biases get values other than one and zero,
            # because these would hide mistakes.
            parameter.copy_(values / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else parameter + values * 0.3)
    model.eval()
    return model


def build(folder):
    """The same model without values, which takes no memory yet: for mutants, some of which are large."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    in_order(model)
    model.tie_weights()
    model.eval()
    return model


def fill(model):
    """Random weights of order one."""
    generator = torch.Generator().manual_seed(7)
    # Gemma's norms multiply with 1 + weight, so a weight near 0 leaves lengths as they are; in
    # other families it is 1.
    norm = 0 if model.config.model_type.startswith("gemma") else 1
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            # Matrices are scaled to keep the lengths of vectors. Norms and biases get values other than one and zero,
            # because these would hide mistakes.
            if parameter.dim() > 1:
                parameter.copy_(values / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(values * 0.3 + (0 if name.endswith("bias") else norm))


def run(batch, inputs):
    subprocess.run([program, "--batch", batch, inputs], check=True)


def apart(have, want):
    if have.shape != want.shape:
        return float("inf")
    return ((have.double() - want.double()).abs().max() / max(1.0, want.double().abs().max().item())).item()


def loaded(folder, **more):
    model, told = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", output_loading_info=True,
                                                       trust_remote_code=False, **more)
    expect(not any(told.values()), f"{folder}: {told}")
    in_order(model)
    return model


def exchange(work):
    inputs = {key: torch.randint(29, (ROWS, TOKENS), generator=torch.Generator().manual_seed(seed))
              for seed, key in enumerate(("ids", "targets"))}
    save_file(inputs, work / "inputs.safetensors")
    types = [torch.float32, torch.bfloat16, torch.float16]
    made = {}
    for number, (name, config) in enumerate(cases()):
        folder = work / "batch" / f"{number:03}"
        folder.mkdir(parents=True)
        # The config is written as published: what transformers saves of its own would be in the newer form.
        text = json.dumps(config)
        (folder / "config.json").write_text(text)
        try:
            model = make(folder)
        except Exception as error:  # the model is unknown, or needs another library
            made[folder] = (name, config, None, repr(error)[:80])
            continue
        # The weights of experts are saved apart, as published, or all in one tensor.
        model.to(types[number % 3]).save_pretrained(folder, max_shard_size="20KB" if number % 2 else "5GB",
                                                    save_original_format=number % 4 < 2)
        own = work / "own" / folder.name
        own.mkdir(parents=True)
        for path in folder.iterdir():
            (own / path.name).symlink_to(path) if path.name != "config.json" else shutil.copy(path, own)
        (folder / "config.json").write_text(text)
        (folder / "tokenizer.json").write_text('{"a": "tokenizer"}')
        made[folder] = (name, config, types[number % 3], "")
    run(work / "batch", work / "inputs.safetensors")
    subprocess.run([program, "--logits", work / "own", work / "inputs.safetensors"], check=True)
    largest = {}
    for folder, (name, config, dtype, error) in made.items():
        refused = (folder / "refused.txt").read_text() if (folder / "refused.txt").exists() else ""
        if refused or dtype is None:
            expect(refused, f"{name}: read, but not by transformers: {error}")
            print(f"{name}: {refused}")
            expect(name not in MORE, f"{name}: {refused}")
            continue
        compare(name, config, folder, dtype, inputs, largest)
        compare_own(name, work / "own" / folder.name, inputs)
    print("largest differences, of values of order one:")
    for family, differences in sorted(largest.items()):
        print(f"  {family:12}" + "".join(f"  {what} {value:.1e}" for what, value in differences.items()))


def compare_own(name, folder, inputs):
    """What transformers itself writes of the config."""
    if (folder / "refused.txt").exists():
        expect(False, f"{name}, as transformers writes it: {(folder / 'refused.txt').read_text()}")
        return
    with torch.no_grad():
        logits = loaded(folder, dtype=torch.float32).eval()(inputs["ids"]).logits
    difference = apart(load_file(folder / "outputs.safetensors")["logits"], logits)
    expect(difference <= BOUNDS["float32"], f"{name}, as transformers writes it: {difference:.1e} away")


def routers(outputs):
    """transformers' router logits as ours are: (rows, tokens, blocks, experts)."""
    return torch.stack([each.detach().view(ROWS, TOKENS, -1) for each in outputs.router_logits], 2)


def same_experts(one, other, per_token):
    """Which tokens, and all those before them in their row, go to the same experts: (rows, tokens)."""
    chosen = [torch.zeros(each.shape).scatter(-1, each.float().softmax(-1).topk(per_token)[1], 1) for each in (one, other)]
    return (chosen[0] == chosen[1]).flatten(2).all(-1).cummin(1)[0]


def close_in_bfloat16(name, ours, theirs, exact, per_token, close):
    """Our logits are at most twice as far from those in float64 as transformers' are, or differ by 0.05 at most.

    Rounding can send a token to another expert, where two are about as likely: then it and those behind it have other
    logits, in any program. So only the tokens before are compared, and the routers' logits where that happens.
    """
    have, want, right = ours["bfloat16.logits"], theirs.logits.detach(), exact.logits.detach()
    if not per_token:
        close("bfloat16", have, want, max(BOUNDS["bfloat16"], 3 * apart(want, right)))
        return
    have_routers, want_routers = ours["bfloat16.router_logits"], routers(theirs)
    steady = same_experts(want_routers, routers(exact), per_token)
    bound = max(BOUNDS["bfloat16"], 3 * apart(want[steady], right[steady]) if steady.any() else 0)
    same = same_experts(have_routers, want_routers, per_token)
    if same.any():
        close("bfloat16", have[same], want[same], bound)
    for row in range(ROWS):
        first = int(same[row].sum())
        if first == TOKENS:
            continue
        # In the row's first token that went to another expert, the routers' logits are compared up to the first block
        # where that happened: nothing of another expert is in them yet.
        for block in range(have_routers.shape[2]):
            close("bfloat16 routers", have_routers[row, first, block], want_routers[row, first, block], bound)
            pair = slice(first, first + 1), slice(block, block + 1)
            if not same_experts(have_routers[row:row + 1, *pair], want_routers[row:row + 1, *pair], per_token).all():
                break


def compare(name, config, folder, dtype, inputs, largest):
    ours = load_file(folder / "outputs.safetensors")
    differences = largest.setdefault(config["model_type"], {})

    def close(what, have, want, bound, detail=""):
        difference = apart(have, want)
        differences[what] = max(differences.get(what, 0), difference)
        expect(difference <= bound, f"{name}: {what} {detail} {difference:.1e}, more than {bound}")

    for prefix, bound in BOUNDS.items():
        # The model is loaded anew for each type, because a conversion also rounds what is not a
        # parameter.
        model = loaded(folder, dtype=torch.float32).to(getattr(torch, prefix)).eval()
        more = {"output_router_logits": True} if has_experts(model) else {}
        outputs = model(inputs["ids"], **more)
        logits = outputs.logits
        expect(logits.float().std() > 0.1, f"{name}: logits that say nothing")
        if prefix == "bfloat16":
            close_in_bfloat16(name, ours, outputs, exact, getattr(model.config, "num_experts_per_tok", 0), close)
            continue
        close(prefix, ours[prefix + ".logits"], logits.detach(), bound)
        if prefix != "float64":
            continue
        exact = outputs
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["targets"].flatten())
        if more:
            close("balance loss", ours["float64.balance_loss"], outputs.aux_loss.detach(), bound)
            loss = loss + model.router_aux_loss_coef * outputs.aux_loss
        loss.backward()
        gradients = {}
        for path in (folder / "gradients").glob("*.safetensors"):
            gradients.update(load_file(path))
        gradients = fused(gradients)
        want = {key: parameter.grad for key, parameter in model.named_parameters()}
        expect(gradients.keys() == want.keys(), f"{name}: gradients {sorted(gradients.keys() ^ want.keys())[:3]}")
        for key in gradients.keys() & want.keys():
            close("gradients", gradients[key], want[key], bound, key)
    # Both folders that the program wrote give the model that was read: `written`, based on the
    # folder that was read, and `complete`, written from the options alone.
    theirs = loaded(folder, dtype="auto").state_dict()
    for written in ("written", "complete"):
        back = loaded(folder / written, dtype=dtype)
        have = back.state_dict()
        expect(have.keys() == theirs.keys() and all(torch.equal(have[key].to(dtype), theirs[key].to(dtype))
                                                    for key in have), f"{name}: {written}: other values")
        model = back.to(torch.float64).eval()
        with torch.no_grad():
            logits = model(inputs["ids"]).logits
            want = loaded(folder, dtype=dtype).to(torch.float64).eval()(inputs["ids"]).logits
        expect(apart(logits, want) <= 1e-12, f"{name}: {written}: other logits")
    names = {key for path in folder.glob("*.safetensors") for key in load_file(path) if path.name != "outputs.safetensors"}
    written = {key for path in (folder / "written").glob("*.safetensors") for key in load_file(path)}
    expect(written == names, f"{name}: written under other names: {sorted(written ^ names)[:3]}")
    for path in (folder / "written").glob("*.safetensors"):
        expect(all(value.dtype == dtype for value in load_file(path).values()), f"{name}: written in another type")
    expect(json.loads((folder / "written/config.json").read_text()) == config, f"{name}: another config was written")
    expect((folder / "written/tokenizer.json").read_text() == '{"a": "tokenizer"}', f"{name}: no tokenizer")


def changed(value):
    """Other values for a field."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [value + 1, value * 2, 0, -1, None]
    if isinstance(value, float):
        return [value * 2, value / 2, 0.0, None]
    if isinstance(value, str):
        return ["other", None]
    if isinstance(value, list):
        return [value[:-1], value[::-1], None]
    if isinstance(value, dict):
        return [None, {}]
    return [1, True, "other", {}]


MISSING = object()


def replaced(config, keys, value):
    mutant = copy.deepcopy(config)
    inner = mutant
    for key in keys[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return f"{'.'.join(keys)}={'missing' if value is MISSING else value}", mutant


def mutants(config):
    """Each field changed, removed, made null; and those set that the file lacks, but its class has."""
    for key, value in config.items():
        if key == "model_type":
            continue
        for other in [*changed(value), MISSING]:
            yield replaced(config, [key], other)
        for inner, old in value.items() if isinstance(value, dict) else ():
            for other in [*changed(old), MISSING]:
                yield replaced(config, [key, inner], other)
    for key, value in defaults(config["model_type"]).items():
        if key not in config:
            for other in changed(value):
                yield replaced(config, [key], other)


@functools.cache
def defaults(model_type):
    """The fields of transformers' class, without those of all classes."""
    try:
        own = AutoConfig.for_model(model_type).to_dict()
    except ValueError:  # transformers has no class of this name
        return {}
    return {key: value for key, value in own.items() if key not in PretrainedConfig().to_dict()}


def all_mutants(most):
    """All of them by name, or so many that are drawn."""
    every = {}
    for name, config in cases():
        for what, mutant in mutants(config):
            every.setdefault(json.dumps(mutant, sort_keys=True), (f"{name}: {what}", mutant))
    every = list(every.values())
    if most is None or most >= len(every):
        return every
    seed = os.environ.get("GPIPE_TEST_SEED", "1")
    print(f"{most} of {len(every)} mutants, GPIPE_TEST_SEED={seed}")
    draw = random.Random(seed)
    drawn = draw.sample(every, most)
    # Each second config is changed once more.
    for i in range(1, most, 2):
        what, mutant = draw.choice(list(mutants(drawn[i][1])))
        drawn[i] = (f"{drawn[i][0]}, {what}", mutant)
    return drawn


def try_mutants(work, most):
    inputs = torch.randint(20, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    save_file({"ids": inputs}, work / "inputs.safetensors")
    counts = collections.Counter()
    # First the program reads all configs. A config that it refuses needs no weights and no model in
    # Python.
    tried = []
    for number, (what, mutant) in enumerate(all_mutants(most)):
        folder = work / "mutants" / f"{number:05}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(mutant))
        tried.append((folder, what))
    subprocess.run([program, "--configs", work / "mutants"], check=True)
    read = [each for each in tried if not (each[0] / "refused.txt").exists()]
    counts["refused"] = len(tried) - len(read)
    # PROGRAM computes one group while Python makes the next.
    before = None
    for begin in range(0, len(read), AT_ONCE):
        group = work / f"group{begin}"
        group.mkdir()
        want = make_mutants(read[begin:begin + AT_ONCE], group, inputs, counts)
        process = subprocess.Popen([program, "--logits", group, work / "inputs.safetensors"])
        if before:
            compare_mutants(*before, counts)
        before = process, group, want
    if before:
        compare_mutants(*before, counts)
    print("mutants:", dict(counts))


def make_mutants(some, group, inputs, counts):
    """Moves their folders, with weights, to `group`; the others are removed. Returns what logits there must be."""
    want = {}
    for folder, what in some:
        try:
            model = build(folder)
            if sum(parameter.numel() for parameter in model.parameters()) > LARGE:
                # A config without a size gets that of its class, which may be large. Then the shapes are compared, not
                # the logits.
                compare_shapes(what, model, folder, counts)
                shutil.rmtree(folder)
                continue
            fill(model)
            with torch.no_grad():
                logits = model(inputs).logits
        except Exception:  # transformers cannot use this config, so nothing is compared
            counts["not used by transformers"] += 1
            shutil.rmtree(folder)
            continue
        tied = model.config.tie_word_embeddings
        state = {key: value.contiguous() for key, value in model.state_dict().items()
                 if not (tied and key == "lm_head.weight")}
        folder = folder.rename(group / folder.name)
        save_file(state, folder / "model.safetensors")
        want[folder] = (what, logits)
    return want


def compare_shapes(what, model, folder, counts):
    shapes, ours = ({key: parameter.shape for key, parameter in each.named_parameters()}
                    for each in (model, build(folder / "complete")))
    counts["of equal shapes"] += shapes == ours
    expect(shapes == ours, f"mutant {what}: read, but as another model: {set(shapes.items()) ^ set(ours.items())}")


def compare_mutants(process, group, want, counts):
    expect(process.wait() == 0, f"{program} ended with {process.returncode}")
    for folder, (what, logits) in want.items():
        if (folder / "refused.txt").exists():
            counts["refused with its weights"] += 1
            continue
        difference = apart(load_file(folder / "outputs.safetensors")["logits"], logits)
        # Rounding grows with the number of layers. All but a few models have two, so the bound is for two.
        config = json.loads((folder / "complete/config.json").read_text())
        bound = BOUNDS["float32"] * max(1, config.get("num_hidden_layers", config.get("n_layer", 0)) / 2)
        counts["equal"] += difference <= bound
        expect(difference <= bound, f"mutant {what}: read, but the logits are {difference:.1e} away")
    shutil.rmtree(group)


def count_read(work):
    """How many of the published files are read as they are."""
    for name, config in published.items():
        folder = work / "configs" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([program, "--configs", work / "configs"], check=True)
    refused = sorted((work / "configs").glob("*/refused.txt"))
    for path in refused:
        print(f"{path.parent.name}: {path.read_text()}")
    print(f"{len(published) - len(refused)} of {len(published)} published configs are read")
    expect(len(published) - len(refused) == READ, "the number of published configs that are read has changed")


def main():
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        most = next((int(each.removeprefix("--mutants=")) for each in sys.argv if each.startswith("--mutants=")), None)
        if most is not None or "--mutants" in sys.argv:
            try_mutants(pathlib.Path(work), most)
        else:
            count_read(pathlib.Path(work))
            exchange(pathlib.Path(work))
    if failures:
        sys.exit(1)
    print("PASSED")


if __name__ == "__main__":
    main()
