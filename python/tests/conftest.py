"""One seed, and one thread per operator, as the pipelines of these tests have."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    torch.set_num_threads(1)
