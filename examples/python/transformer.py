"""Fine-tunes a small transformer over processes, saves it and resumes it.

    python3 examples/python/transformer.py
    torchrun --nproc-per-node=2 examples/python/transformer.py --run=run

The last line has the loss and the hash of all parameters: they do not depend on the number of
processes. With --gpt2 the layers are those of transformers' GPT-2, with random weights; its
embedding and its head have one weight, in the first stage and in the last.
"""

import argparse

import torch
from torch import Tensor, nn

import gpipe
from gpipe.hugging_face import next_token_loss

VOCABULARY, WIDTH, LENGTH = 64, 32, 16


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.places.weight[: tokens.size(1)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=64, dropout=0.1, batch_first=True, norm_first=True
        )

    def forward(self, hidden: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(hidden.size(1))
        return self.layer(hidden, src_mask=mask, is_causal=True)


def own_layers() -> nn.Sequential:
    head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
    return nn.Sequential(Embedding(), *(Block() for _ in range(4)), head)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=4, n_head=4)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="steps of the whole run")
    parser.add_argument("--run", help="the folder of the checkpoint, to resume from and to save to")
    parser.add_argument("--gpt2", action="store_true", help="the layers of transformers' GPT-2")
    arguments = parser.parse_args()

    world = gpipe.World.from_environment()
    torch.manual_seed(1)  # the same model in every process
    layers = gpipe.hugging_face.layers(gpt2()) if arguments.gpt2 else own_layers()
    stages = max(world.size, 1)
    balance = [len(layers) // stages + (k < len(layers) % stages) for k in range(stages)]
    model = gpipe.GPipe(layers, balance, chunks=4, world=world, cpu_threads_per_stage=1)
    optimizer = torch.optim.AdamW(model.local_parameters(), lr=0.01)

    data = torch.randint(VOCABULARY, (64, LENGTH), generator=torch.Generator().manual_seed(2))
    data[:, 1::2] = data[:, ::2]  # something to learn: each token comes twice
    made, loss = 0, float("nan")  # how many steps were made, and the last one's loss
    if arguments.run and gpipe.has_checkpoint(arguments.run):
        made = gpipe.load_checkpoint(arguments.run, model, optimizer).step
    for step in range(made, arguments.steps):
        batch = data[step * 16 % 64 :][:16]
        optimizer.zero_grad()
        loss = model.step(batch if model.is_here(0) else None, batch, next_token_loss).loss
        model.clip_grad_norm_(1.0)
        optimizer.step()
        if world.rank == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
        made = step + 1
    if arguments.run:
        gpipe.save_checkpoint(arguments.run, model, optimizer, step=made)
    hash = model.parameter_hash()
    if world.rank == 0:
        print(f"loss {loss:.6f}, hash {hash}", flush=True)


if __name__ == "__main__":
    main()
