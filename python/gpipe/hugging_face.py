"""Language models of Hugging Face's transformers as layers for a pipeline.

    from transformers import AutoModelForCausalLM
    from gpipe import GPipe, hugging_face

    model = AutoModelForCausalLM.from_pretrained("gpt2")
    layers = hugging_face.layers(model)
    pipe = GPipe(layers, balance=[7, 7], chunks=4)
    loss = pipe.step(ids, ids, hugging_face.next_token_loss).loss
    model.save_pretrained("trained")          # the parameters are the model's own
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["layers", "next_token_loss"]


class _Embedding(nn.Module):
    """Token numbers (N, T) -> (N, T, hidden)."""

    def __init__(self, tokens: nn.Module, positions: Any = None, dropout: Any = None) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.dropout = dropout

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.tokens(ids)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(ids.size(1), device=ids.device))
        return hidden if self.dropout is None else self.dropout(hidden)


class _Block(nn.Module):
    """(N, T, hidden) -> (N, T, hidden), each token seeing those before it."""

    def __init__(self, block: nn.Module, rotary: Any = None) -> None:
        super().__init__()
        self.block = block
        # Each block has a copy of the rotary module, because blocks may be on different devices.
        # The module has no parameters.
        self.rotary = copy.deepcopy(rotary)

    def forward(self, hidden: Tensor) -> Tensor:
        named = {}
        if self.rotary is not None:
            positions = torch.arange(hidden.size(1), device=hidden.device).unsqueeze(0)
            named["position_ids"] = positions
            named["position_embeddings"] = self.rotary(hidden, positions)
        output = self.block(hidden, **named)
        return output[0] if isinstance(output, tuple) else output


class _Head(nn.Module):
    """(N, T, hidden) -> logits (N, T, tokens)."""

    def __init__(self, norm: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.head = head

    def forward(self, hidden: Tensor) -> Tensor:
        return self.head(self.norm(hidden))


def layers(model: nn.Module) -> nn.Sequential:
    """The layers of a GPT2LMHeadModel or LlamaForCausalLM: an embedding, the blocks, the head.

    They take token numbers (N, T), all rows of full length (there is no attention mask), and give
    the logits (N, T, tokens) that the model gives. They are made of the model's own modules:
    training them trains the model. Weights that the model ties (embedding and head) stay tied: in
    a pipeline, both layers must then be on one device, or in different processes.

    Raises TypeError for another model, and ValueError for another attention than "sdpa" (which is
    causal without a mask), for cross-attention, and for gradient checkpointing, in whose place is
    GPipe(checkpoint=...).
    """
    kind = type(model).__name__
    if kind not in ("GPT2LMHeadModel", "LlamaForCausalLM"):
        raise TypeError(
            f"cannot cut a {kind} into layers: give a GPT2LMHeadModel or LlamaForCausalLM, or make "
            f"an nn.Sequential of its modules yourself"
        )
    config = model.config
    if config._attn_implementation != "sdpa":
        raise ValueError(
            f"the model has the attention '{config._attn_implementation}', which needs a mask to "
            f"be causal: load it with attn_implementation='sdpa'"
        )
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            "the model has gradient checkpointing: call gradient_checkpointing_disable(), and give "
            "GPipe the checkpoint mode instead"
        )
    if getattr(config, "add_cross_attention", False):
        raise ValueError("the model has cross-attention, which needs a second input")
    if kind == "GPT2LMHeadModel":
        inner = model.transformer
        embedding = _Embedding(inner.wte, inner.wpe, inner.drop)
        blocks, norm = [_Block(block) for block in inner.h], inner.ln_f
    else:
        inner = model.model
        embedding = _Embedding(inner.embed_tokens)
        blocks, norm = [_Block(block, inner.rotary_emb) for block in inner.layers], inner.norm
    named = [("embedding", embedding)]
    named += [(f"block{number}", block) for number, block in enumerate(blocks)]
    named.append(("head", _Head(norm, model.lm_head)))
    sequential = nn.Sequential(OrderedDict(named))
    sequential.training = model.training
    return sequential


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean cross entropy of each token given those before it: (N, T, tokens), (N, T) -> ()."""
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()
    )
