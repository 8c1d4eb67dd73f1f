"""Runs a program with at most 256 images in torchvision's FakeData:  few_images.py PROGRAM [ARGUMENT...]

imagenet/main.py of PyTorch's examples makes up more than a million with --dummy.
"""
import os
import runpy
import sys

import torchvision

plain = torchvision.datasets.FakeData.__init__


def few(self, size=1000, *arguments, **keywords):
    plain(self, min(size, 256), *arguments, **keywords)


torchvision.datasets.FakeData.__init__ = few
if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
