"""Fourier transforms there and back: of one and two dimensions, real and complex, of lengths that are primes.

Right: one stream; each comes back as it was.
"""
import os

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
right = 0
for shape in ((64, 64), (8, 1009), (3, 128, 96), (1000,)):
    values = torch.rand(*shape, device=DEVICE)
    right += torch.allclose(torch.fft.irfft(torch.fft.rfft(values), n=shape[-1]), values, atol=1e-4)
    right += torch.allclose(torch.fft.ifftn(torch.fft.fftn(values)).real, values, atol=1e-4)
window = torch.hann_window(64, device=DEVICE)
sound = torch.rand(2, 1024, device=DEVICE)
spectrum = torch.stft(sound, 64, window=window, return_complex=True)
right += torch.allclose(torch.istft(spectrum, 64, window=window, length=1024), sound, atol=1e-4)
print("right:", right, "of 9")
