"""A small U-Net whose skip connections go straight from one stage to another.

    python3 examples/python/unet.py

`skippable` layers give a tensor to a later layer by name, without a way through the layers between.
"""

import torch
from torch import Tensor, nn

from gpipe import GPipe
from gpipe.skip import Namespace, pop, skippable, stash


@skippable(stash=["skip"])
class Down(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)

    def forward(self, input: Tensor):
        yield stash("skip", input)
        return self.conv(input).relu()


@skippable(pop=["skip"])
class Up(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.conv = nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, input: Tensor):
        skip = yield pop("skip")
        return self.conv(torch.cat([self.up(input), skip], dim=1)).relu()


def unet(channels: int = 4, depth: int = 2) -> nn.Sequential:
    # One namespace for each level: all of them call their tensor "skip".
    levels = [Namespace() for _ in range(depth)]
    down = [Down(channels << k).isolate(levels[k]) for k in range(depth)]
    up = [Up(channels << k).isolate(levels[k]) for k in reversed(range(depth))]
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), *down, *up, nn.Conv2d(channels, 1, 3, padding=1)
    )


def main() -> None:
    torch.manual_seed(0)
    model = GPipe(unet(), balance=[2, 1, 1, 2], chunks=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    images = torch.randn(8, 3, 16, 16)
    masks = (images.sum(dim=1, keepdim=True) > 0).float()
    loss_fn = nn.functional.binary_cross_entropy_with_logits
    for step in range(10):
        optimizer.zero_grad()
        loss = model.step(images, masks, loss_fn, schedule="1f1b").loss
        optimizer.step()
        print(f"step {step}: loss {loss:.4f}")

    # Another balance moves the skips, and changes no bit.
    other = GPipe(nn.Sequential(*model), balance=[3, 3], chunks=4)
    with torch.no_grad():
        print("the same outputs:", torch.equal(model(images), other(images)))


if __name__ == "__main__":
    main()
