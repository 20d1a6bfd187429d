"""Trains a codebook on random vectors, encodes them, and compares the error with that of the training."""

import argparse

import numpy

from millrace import failover, vectors

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--target", default="localhost:7070", help="a scheduler or a worker: host:port")
parser.add_argument("--rows", type=int, default=10000)
parser.add_argument("--dimension", type=int, default=64)
parser.add_argument("--codewords", type=int, default=256)
parser.add_argument("--subspaces", type=int, help="of a product codebook")
parser.add_argument("--name", default="random")
args = parser.parse_args()

x = numpy.random.default_rng(1).standard_normal((args.rows, args.dimension), dtype="float32")
config = {"subspaces": args.subspaces} if args.subspaces else {}
with failover.channel(args.target) as channel:
    book = vectors.train(channel, x, args.codewords, name=args.name, seed=1, **config)
    codes = vectors.encode(channel, args.name, x)
    back = vectors.decode(channel, args.name, codes)
error = ((x - back) ** 2).sum(1).mean()
variance = ((x - x.mean(0)) ** 2).sum(1).mean()
print(f"{book.iterations} iterations, codes {codes.shape} {codes.dtype}, energy {book.energy:.4f}, mean squared error {error:.4f}, "
      f"share of the variance that is left {error / variance:.3f}")
