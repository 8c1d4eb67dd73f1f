"""optax by hand: clipping, schedules, a mean of the weights, several optimizers, with buffers that are donated.

Right: JAX orders what it launches; donated arrays are not used again.
"""
from functools import partial

import jax
import jax.numpy as jnp
import optax

data = jax.random.normal(jax.random.key(0), (256, 32))
target = jnp.tanh(data @ jax.random.normal(jax.random.key(1), (32, 4)))


def loss_of(weights):
    return jnp.mean((jnp.tanh(data @ weights["a"]) @ weights["b"] - target) ** 2)


fell = 0
for optimizer in (optax.sgd(0.1, momentum=0.9), optax.adam(optax.cosine_decay_schedule(0.01, 50)), optax.lion(1e-3),
                  optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-3)), optax.adafactor(1e-2)):
    @partial(jax.jit, donate_argnums=(0, 1))
    def step(weights, state, optimizer=optimizer):
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    keys = jax.random.split(jax.random.key(2))
    weights = {"a": jax.random.normal(keys[0], (32, 64)) / 6, "b": jax.random.normal(keys[1], (64, 4)) / 8}
    state, first = optimizer.init(weights), loss_of(weights)
    for _ in range(40):
        weights, state, loss = step(weights, state)
    fell += bool(loss < first)
print("losses that fell:", fell, "of 5")
