"""JAX's functions: scan, while_loop, vmap, sort, svd, eigh, cholesky, Fourier transforms, random numbers, einsum.

Right: JAX orders what it launches; factors make the matrix again.
"""
import jax
import jax.numpy as jnp
import numpy as np

a = jax.random.uniform(jax.random.key(0), (64, 64))
s = a @ a.T + 64 * jnp.eye(64)
right = []
u, d, v = jnp.linalg.svd(a)
values, vectors = jnp.linalg.eigh(s)
lower = jnp.linalg.cholesky(s)
for made, expected in ((u * d @ v, a), (vectors * values @ vectors.T, s), (lower @ lower.T, s),
                       (s @ jnp.linalg.solve(s, a), a), (jnp.fft.ifft2(jnp.fft.fft2(a)).real, a)):
    right.append(bool(jnp.allclose(made, expected, rtol=1e-2, atol=1e-2)))
carry, sums = jax.lax.scan(lambda c, x: (c + x, c.sum()), jnp.zeros(64), jnp.ones((20, 64)))
right.append(bool((carry == 20).all()) and float(sums[-1]) == 19 * 64)
right.append(int(jax.lax.while_loop(lambda n: n < 1000, lambda n: n * 2, 1)) == 1024)
numbers = jax.random.permutation(jax.random.key(1), 10_000).reshape(10, 1000)
right.append(bool((jax.vmap(jnp.sort)(numbers) == jnp.sort(numbers, axis=1)).all()))
right.append(bool(jnp.allclose(jax.hessian(lambda x: (x ** 3).sum())(a[0]), jnp.diag(6 * a[0]), atol=1e-4)))
right.append(bool(jnp.allclose(jnp.einsum("ij,jk,kl->il", a, s, a), a @ s @ a, rtol=1e-2)))
right.append(all(np.array_equal(np.asarray(jax.jit(lambda x, k=k: x * k)(numbers)), np.asarray(numbers) * k)
                 for k in range(4)))
print("right:", sum(right), "of", len(right))
