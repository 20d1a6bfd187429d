"""Reads GGUF model files: metadata, and tensors as float32 arrays, whatever type they are stored in."""

import concurrent.futures
import struct

import numpy as np

# struct formats of metadata values by type number; strings and arrays are read separately.
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9

AT_ONCE = 8  # tensors that are widened at the same time


def widen_f32(raw):
    return raw.view(np.float32).copy()


def widen_f16(raw):
    return raw.view(np.float16).astype(np.float32)


def widen_bf16(raw):
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def half(blocks, at):
    """Returns the f16 at a byte offset of every block, one in each row."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def widen_q8_0(raw):
    """Blocks of 34 bytes: f16 d, then 32 integers of 8 bits."""
    blocks = raw.reshape(-1, 34)
    return half(blocks, 0) * blocks[:, 2:].view(np.int8)


def widen_q4_k(raw):
    """Blocks of 144 bytes for 256 weights: f16 d and dmin, eight scales and minima of six bits in 12 bytes, 128 bytes of quants,
    32 of which hold two runs of 32 weights, low bits first."""
    blocks = raw.reshape(-1, 144)
    packed, quants = blocks[:, 4:16], blocks[:, 16:].reshape(-1, 4, 1, 32)
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=1)
    minima = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=1)
    quants = np.concatenate([quants & 15, quants >> 4], axis=2).reshape(-1, 8, 32)
    return (half(blocks, 0) * scales)[:, :, None] * quants - (half(blocks, 2) * minima)[:, :, None]


# By type number: the name, the bytes and weights of a block, and the function that converts bytes to float32.
TYPES = {
    0: ("F32", 4, 1, widen_f32),
    1: ("F16", 2, 1, widen_f16),
    8: ("Q8_0", 34, 32, widen_q8_0),
    12: ("Q4_K", 144, 256, widen_q4_k),
    30: ("BF16", 2, 1, widen_bf16),
}


class File:
    """An open file. metadata holds plain values by key; shapes holds (rows, columns) or (length,) by tensor name."""

    def __init__(self, path):
        self.data, self.at = np.memmap(path, np.uint8, "r"), 4
        if bytes(self.data[:4]) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        if (version := self.number("<I")) not in (2, 3):
            raise ValueError(f"{path} is of GGUF version {version}, want 2 or 3")
        tensors, pairs = self.number("<Q"), self.number("<Q")
        self.metadata = {}
        for _ in range(pairs):
            key = self.string()
            self.metadata[key] = self.value(self.number("<I"))
        self.shapes, self.places = {}, {}
        for _ in range(tensors):
            name = self.string()
            dims = [self.number("<Q") for _ in range(self.number("<I"))]
            self.shapes[name] = tuple(reversed(dims))
            self.places[name] = self.number("<I"), self.number("<Q")
        alignment = self.metadata.get("general.alignment", 32)
        self.start = -(-self.at // alignment) * alignment

    def number(self, kind):
        size = struct.calcsize(kind)
        self.at += size
        return struct.unpack(kind, bytes(self.data[self.at - size : self.at]))[0]

    def string(self):
        size = self.number("<Q")
        self.at += size
        return bytes(self.data[self.at - size : self.at]).decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind = self.number("<I")
            return [self.value(kind) for _ in range(self.number("<Q"))]
        return self.number(SCALARS[kind])

    def quantised(self):
        """Returns whether a tensor's weights are stored in blocks."""
        return any(TYPES[kind][2] > 1 for kind, _ in self.places.values() if kind in TYPES)

    def read(self, name):
        """Returns a tensor as float32 in its shape; quantised weights are dequantised."""
        kind, offset = self.places[name]
        if kind not in TYPES:
            raise ValueError(f"tensor {name} is of type {kind}, want one of {', '.join(t[0] for t in TYPES.values())}")
        _, size, weights, widen = TYPES[kind]
        shape = self.shapes[name]
        begin = self.start + offset
        return widen(self.data[begin : begin + int(np.prod(shape)) // weights * size]).reshape(shape)

    def read_all(self):
        """Yields every tensor as (name, float32), with a few in memory at a time."""
        names = list(self.shapes)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for first in range(0, len(names), AT_ONCE):
                some = names[first : first + AT_ONCE]
                yield from zip(some, pool.map(self.read, some))
