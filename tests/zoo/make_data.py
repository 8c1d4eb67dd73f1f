"""Made-up data for the programs of public.toml:  python tests/zoo/make_data.py PUBLIC

Images and labels in MNIST's files, tokens for nanoGPT, papers that cite each other, a corpus for the language model:
small, random, and always the same.  Needs the standard library alone.
"""
from __future__ import annotations

import pickle
import random
import struct
import sys
from array import array
from pathlib import Path


def mnist(folder: Path, chance: random.Random) -> None:
    """Where torchvision looks for it; what lies there is not downloaded."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 3000), ("t10k", 1000)):
        images, labels = chance.randbytes(28 * 28 * count), bytes(chance.randrange(10) for _ in range(count))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)


def tokens(folder: Path, chance: random.Random) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 200_000), ("val", 20_000)):
        (folder / f"{name}.bin").write_bytes(array("H", (chance.randrange(65) for _ in range(count))).tobytes())
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def corpus(folder: Path, chance: random.Random) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"w{number}" for number in range(500)]
    for name, count in (("train", 600), ("valid", 150), ("test", 150)):
        lines = (" ".join(chance.choices(words, k=12)) for _ in range(count))
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def cora(folder: Path, chance: random.Random) -> None:
    """Papers with words and subjects, and which of them cites which."""
    folder.mkdir(parents=True, exist_ok=True)
    papers = [[number, *(chance.randrange(2) for _ in range(32)), f"subject{number % 5}"] for number in range(2000)]
    (folder / "cora.content").write_text("".join("\t".join(map(str, paper)) + "\n" for paper in papers))
    (folder / "cora.cites").write_text("".join(f"{n}\t{(n * 7 + k) % 2000}\n" for n in range(2000) for k in (1, 2)))


def main() -> None:
    public, chance = Path(sys.argv[1]), random.Random(0)
    for folder in ("data", "mnist_forward_forward/data"):
        mnist(public / "examples" / folder / "MNIST/raw", chance)
    tokens(public / "nanoGPT/data/made", chance)
    corpus(public / "examples/word_language_model/data/made", chance)
    cora(public / "examples/gat/cora", chance)
    (public / "examples/vae/results").mkdir(exist_ok=True)


if __name__ == "__main__":
    main()
