"""cupyx.scipy: filters of images, signals, sparse matrices and their solvers.

Right: one stream, the default one or, with `side`, one that does not wait for it.
"""
import contextlib
import sys

import cupy
from cupyx.scipy import ndimage, signal, sparse
from cupyx.scipy.sparse import linalg

SIDE = "side" in sys.argv
right = 0
with cupy.cuda.Stream(non_blocking=True) if SIDE else contextlib.nullcontext():
    random = cupy.random.RandomState(0)
    for size in (32, 150):
        image = random.rand(size, size)
        right += ndimage.zoom(image, 2).shape == (2 * size, 2 * size)
        right += abs(float(ndimage.gaussian_filter(image, 2).mean() - image.mean())) < 0.05
        right += int(ndimage.label(cupy.eye(size))[1]) == size
        right += signal.fftconvolve(image[0], image[1][:9]).shape == (size + 8,)
        right += bool(cupy.allclose(signal.convolve2d(image, cupy.ones((1, 1))), image))
        matrix = sparse.random(size, size, 0.1, format="csr", random_state=1) + 10 * sparse.identity(size, format="csr")
        dense, vector = matrix.toarray(), random.rand(size)
        right += bool(cupy.allclose(matrix @ vector, dense @ vector))
        right += bool(cupy.allclose((matrix @ matrix).toarray(), dense @ dense))
        right += bool(cupy.allclose(dense @ linalg.gmres(matrix, vector, rtol=1e-8)[0], vector, atol=1e-3))
        square = matrix @ matrix.T
        right += bool(cupy.allclose(square @ linalg.cg(square, vector, rtol=1e-8)[0], vector, atol=1e-3))
print("right:", right, "of 18")
