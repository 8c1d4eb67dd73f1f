"""CuPy's linear algebra and Fourier transforms: cuBLAS, cuSOLVER and cuFFT, whose workspaces come from CuPy's pool.

Right: one stream, the default one or, with `side`, one that does not wait for it.
"""
import contextlib
import sys

import cupy
from cupyx.scipy import fft

SIDE = "side" in sys.argv
right = 0
with cupy.cuda.Stream(non_blocking=True) if SIDE else contextlib.nullcontext():
    random = cupy.random.RandomState(0)
    for size in (8, 64, 200):
        a = random.rand(size, size)
        s = a @ a.T + size * cupy.eye(size)
        u, d, v = cupy.linalg.svd(a)
        values, vectors = cupy.linalg.eigh(s)
        q, r = cupy.linalg.qr(a)
        lower = cupy.linalg.cholesky(s)
        pairs = [(u * d @ v, a), (vectors * values @ vectors.T, s), (q @ r, a), (lower @ lower.T, s),
                 (s @ cupy.linalg.solve(s, a), a), (s @ cupy.linalg.inv(s), cupy.eye(size)),
                 (cupy.einsum("ij,jk->ik", a, s), a @ s), (cupy.fft.ifft2(cupy.fft.fft2(a)).real, a),
                 (fft.idct(fft.dct(a)), a), (cupy.fft.irfft(cupy.fft.rfft(a, axis=0), n=size, axis=0), a)]
        right += sum(bool(cupy.allclose(made, expected)) for made, expected in pairs)
print("right:", right, "of 30")
