"""torchaudio: spectrograms, resampling and a biquad filter of a sound.

Right: one stream; the loudest frequency is the one that was put in.
"""
import math
import os

import torch
from torchaudio import functional, transforms

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

right = 0
for pitch in (440.0, 1000.0, 2500.0):
    sound = torch.sin(torch.arange(16_000, device=DEVICE) * (2 * math.pi * pitch / 16_000)).expand(2, -1)
    power = transforms.Spectrogram(n_fft=512).to(DEVICE)(sound).mean(-1)
    right += abs(power[0].argmax().item() * 16_000 / 512 - pitch) < 32
    mel = transforms.AmplitudeToDB()(transforms.MelSpectrogram(16_000, n_fft=512, n_mels=40).to(DEVICE)(sound))
    right += mel.shape[:2] == (2, 40) and bool(torch.isfinite(mel).all())
    right += functional.resample(sound, 16_000, 8_000).shape == (2, 8_000)
print("right:", right, "of 9")
