"""CuPy's random numbers of many kinds, by the old generator (cuRAND) and the new ones.

Right: one stream; the same seed gives the same numbers.
"""
import cupy

kinds = []
for _ in range(2):
    old, new = cupy.random.RandomState(3), cupy.random.default_rng(5)
    kinds.append([old.rand(999), old.normal(size=1000), old.randint(0, 99, 500), old.permutation(300),
                  old.choice(cupy.arange(99), 9), old.gamma(2.0, size=99), new.random(1000), new.standard_normal(333),
                  new.integers(0, 9, 50), new.poisson(4.0, 77), old.lognormal(size=(1, 3)), old.rand(100_000)])
print("the same:", sum(bool((a == b).all()) for a, b in zip(*kinds, strict=True)), "of", len(kinds[0]))
