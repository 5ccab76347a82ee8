"""torchgpipe's three lines, unchanged but for the import.

    python3 examples/python/three_lines.py
"""

import torch
from torch import nn

from gpipe.torchgpipe import GPipe

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
model = GPipe(model, balance=[2, 3], chunks=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

input = torch.randn(64, 8)
target = input.sum(dim=1, keepdim=True)
for step in range(20):
    optimizer.zero_grad()
    output = model(input)
    loss = nn.functional.mse_loss(output, target)
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")
