"""diffrax: an equation with steps that adapt inside one compiled loop, and the gradient through it.

Right: JAX orders what it launches; the solution is known.
"""
import diffrax
import jax
import jax.numpy as jnp


@jax.jit
@jax.value_and_grad
def end_of(rate):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, r: -r * y), diffrax.Tsit5(), t0=0.0, t1=1.0, dt0=0.1, y0=jnp.ones(1000), args=rate,
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-6))
    return solution.ys[-1].mean()


value, gradient = end_of(1.0)
noise = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(100,), key=jax.random.key(0))
terms = diffrax.MultiTerm(diffrax.ODETerm(lambda t, y, _: -y),
                          diffrax.ControlTerm(lambda t, y, _: 0.1 * jnp.eye(100), noise))
walk = diffrax.diffeqsolve(terms, diffrax.Euler(), t0=0.0, t1=1.0, dt0=0.05, y0=jnp.ones(100))
print("value:", abs(float(value) - 0.36788) < 1e-3, "gradient:", abs(float(gradient) + 0.36788) < 1e-3,
      "walk:", 0.2 < float(walk.ys[-1].mean()) < 0.5)
