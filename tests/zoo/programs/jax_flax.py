"""A Flax network is trained with optax: each step is one compiled program, dispatched ahead of the host.

Right: JAX orders what it launches; the host waits for the losses.
"""
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn


class Net(nn.Module):
    @nn.compact
    def __call__(self, images):
        hidden = nn.avg_pool(nn.relu(nn.Conv(16, (3, 3))(images)), (2, 2), (2, 2))
        return nn.Dense(10)(nn.LayerNorm()(hidden.reshape(hidden.shape[0], -1)))


model, optimizer = Net(), optax.adamw(1e-3)
parameters = model.init(jax.random.key(0), jnp.ones((1, 28, 28, 1)))
state = optimizer.init(parameters)


@jax.jit
def step(parameters, state, images, labels):
    def loss_of(parameters):
        scores = model.apply(parameters, images)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(parameters)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, loss


random, losses = np.random.default_rng(0), []
for _ in range(30):
    labels = random.integers(0, 10, 32)
    images = random.random((32, 28, 28, 1), np.float32) + labels[:, None, None, None].astype(np.float32)
    parameters, state, loss = step(parameters, state, jax.device_put(images), jax.device_put(labels))
    losses.append(loss)
print("the loss fell:", float(losses[-1]) < float(losses[0]))
