"""A DataLoader with two workers pins batches in a thread; they are uploaded without waiting, and used.

Right: one stream; PyTorch reuses page-locked memory only after the upload from it.
"""
import os

import torch
from torch.utils.data import DataLoader, Dataset

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")


class Numbers(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((1000,), index), index


def main():
    right = 0
    loader = DataLoader(Numbers(), 16, shuffle=True, num_workers=2, persistent_workers=True,
                        pin_memory=DEVICE == "cuda")
    for _ in range(2):
        for values, index in loader:
            values, index = values.to(DEVICE, non_blocking=True), index.to(DEVICE, non_blocking=True)
            right += (values == index[:, None]).all(1).sum()
    print("right:", right.item(), "of 512")


if __name__ == "__main__":
    main()
