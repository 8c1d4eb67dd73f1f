"""Random numbers of many kinds, twice from the same seed, by the default generator and one of the program's own.

Right: one stream; the same seed gives the same numbers.
"""
import os

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")


def draw(generator: torch.Generator) -> list[torch.Tensor]:
    ones = torch.ones(4, 1000, device=DEVICE)
    drawn = [torch.rand(1000, device=DEVICE), torch.randn(333, device=DEVICE), torch.randperm(500, device=DEVICE),
             torch.bernoulli(ones / 3), torch.poisson(ones * 4), torch.multinomial(ones, 8),
             torch.empty(77, device=DEVICE).exponential_(), torch.nn.functional.dropout(ones, 0.5)]
    return [*drawn, torch.rand(100_000, device=DEVICE, generator=generator)]


drawn = []
for _ in range(2):
    torch.manual_seed(3)
    drawn.append(draw(torch.Generator(DEVICE).manual_seed(5)))
print("the same:", sum(torch.equal(a, b) for a, b in zip(*drawn, strict=True)), "of", len(drawn[0]))
