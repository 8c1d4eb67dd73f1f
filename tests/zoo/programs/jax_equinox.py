"""An Equinox network: filtered transforms, a batch of models by vmap, and a recurrent cell in a scan.

Right: JAX orders what it launches.
"""
import equinox as eqx
import jax
import jax.numpy as jnp
import optax

keys = jax.random.split(jax.random.key(0), 3)


class Net(eqx.Module):
    cell: eqx.nn.GRUCell
    last: eqx.nn.Linear

    def __init__(self, key):
        self.cell = eqx.nn.GRUCell(2, 16, key=key)
        self.last = eqx.nn.Linear(16, 1, key=key)

    def __call__(self, sequence):
        hidden, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(16), sequence)
        return self.last(hidden)[0]


model = Net(keys[0])
sequences = jax.random.normal(keys[1], (64, 12, 2))
answers = sequences[:, -3:, 0].sum(1)
optimizer = optax.adam(1e-2)
state = optimizer.init(eqx.filter(model, eqx.is_array))


@eqx.filter_jit
def step(model, state):
    def loss_of(model):
        return jnp.mean((jax.vmap(model)(sequences) - answers) ** 2)

    loss, gradients = eqx.filter_value_and_grad(loss_of)(model)
    updates, state = optimizer.update(gradients, state)
    return eqx.apply_updates(model, updates), state, loss


losses = []
for _ in range(25):
    model, state, loss = step(model, state)
    losses.append(float(loss))
print("the loss fell:", losses[-1] < losses[0])
