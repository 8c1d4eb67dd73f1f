"""numpyro: a regression by NUTS, whose chain is one compiled loop, and by variational inference.

Right: JAX orders what it launches; both find the slope.
"""
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

places = jnp.linspace(-1, 1, 200)
values = 2 * places + 0.1 * jax.random.normal(jax.random.key(0), (200,))


def model(places, values):
    slope = numpyro.sample("slope", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    numpyro.sample("values", dist.Normal(slope * places, spread), obs=values)


chain = MCMC(NUTS(model), num_warmup=60, num_samples=60, progress_bar=False)
chain.run(jax.random.key(1), places, values)
guide = AutoNormal(model)
found = SVI(model, guide, numpyro.optim.Adam(0.05), Trace_ELBO()).run(
    jax.random.key(2), 1500, places, values, progress_bar=False)
slopes = [float(chain.get_samples()["slope"].mean()), float(guide.median(found.params)["slope"])]
print("slopes near 2:", [abs(slope - 2) < 0.2 for slope in slopes])
