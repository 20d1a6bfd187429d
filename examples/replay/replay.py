#!/usr/bin/env python3
"""Computes the tokens of a response again from its seed and its candidates.

    millrace generate -m stories "Once upon a time" --seed 7 --temperature 0.8 --top-k 40 --output-candidates 64 --json > answer.jsonl
    python3 replay.py answer.jsonl --temperature 0.8 --top-k 40

The rules are those of docs/sampling.md. Only Python's standard library is used.
"""

import argparse
import json
import math
import struct
import sys

UNIT = 1 << 40  # a token as likely as the best one has this mass


def f32(x):
    """Rounds a number to single precision, as the engine does."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def random_bits(seed, position, output_index):
    """Returns 64 bits of Philox4x32-10 with the seed as key."""
    c, k = [position, output_index, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c[0] << 32 | c[1]


def reach(tokens, share):
    """Returns the first tokens whose mass reaches a share of the total mass."""
    total = sum(t["mass"] for t in tokens)
    target, so_far = min(max(math.ceil(f32(share) * float(total)), 1), total), 0
    for n, t in enumerate(tokens, 1):
        so_far += t["mass"]
        if so_far >= target:
            return tokens[:n]
    return tokens


def choose(candidates, knobs, seed, position, output_index):
    """Returns the token at a position, and the distance of the draw to the next token, as a share of the total mass."""
    tokens = [{"id": c.get("tokenId", 0), "x": f32(c.get("logprob", 0.0))} for c in candidates if c.get("tokenId", 0) not in knobs.forbid]
    if knobs.temperature == 0:
        return tokens[0]["id"], 1.0
    if len(tokens) < knobs.top_k:
        raise SystemExit(f"{len(tokens)} candidates, and top_k is {knobs.top_k}: ask for as many --output-candidates, and those of --forbid")
    temperature = max(f32(knobs.temperature), 2.0**-126)
    for t in tokens:
        t["l"] = f32(f32(t["x"] - tokens[0]["x"]) / temperature)
        t["w"] = f32(math.exp(t["l"]))
        t["mass"] = round(t["w"] * UNIT)  # ties to even
    tokens = [t for t in tokens[: knobs.top_k] if t["mass"] > 0]
    if knobs.typical_p < 1:
        total = sum(t["mass"] for t in tokens)
        entropy = math.log(total / UNIT) - sum(t["mass"] * t["l"] for t in sorted(tokens, key=lambda t: t["id"])) / total
        for t in tokens:
            t["deviation"] = f32(abs(math.log(total / UNIT) - t["l"] - entropy))
        tokens = reach(sorted(tokens, key=lambda t: (t["deviation"], t["id"])), knobs.typical_p)
    if knobs.top_p < 1:
        tokens = reach(sorted(tokens, key=lambda t: (-t["x"], t["id"])), knobs.top_p)
    floor = f32(f32(knobs.min_p) * max(t["w"] for t in tokens))
    tokens = sorted((t for t in tokens if t["w"] >= floor), key=lambda t: t["id"])
    total = sum(t["mass"] for t in tokens)
    threshold, so_far = random_bits(seed, position, output_index) * total >> 64, 0
    for t in tokens:
        so_far += t["mass"]
        if so_far > threshold:
            return t["id"], min(so_far - threshold, threshold - so_far + t["mass"]) / total


def main():
    p = argparse.ArgumentParser(description="Computes the tokens of a response again from its seed and candidates.")
    p.add_argument("file", help="what millrace generate --json printed, with --output-candidates of at least top_k")
    p.add_argument("--temperature", type=float, default=1.0)
    p.add_argument("--top-k", type=int, default=0)
    p.add_argument("--typical-p", type=float, default=1.0)
    p.add_argument("--top-p", type=float, default=1.0)
    p.add_argument("--min-p", type=float, default=0.0)
    p.add_argument("--forbid", type=lambda s: {int(i) for i in s.split(",")}, default=set(), help="ids that may not be chosen: 3,17")
    knobs = p.parse_args()
    if knobs.temperature != 0 and not 1 <= knobs.top_k <= 64:
        p.error("a response holds 64 candidates at most: it can be replayed if top_k is from 1 to 64")
    started, same, others = None, 0, 0
    for line in open(knobs.file, encoding="utf-8"):
        event = json.loads(line)
        started = event.get("started", started)
        run = event.get("tokens", {})
        for n, (token, detail) in enumerate(zip(run.get("tokenIds", []), run.get("details", []))):
            index = run.get("tokenIndex", 0) + n
            position, output = started.get("promptTokens", 0) + index, run.get("outputIndex", 0)
            got, margin = choose(detail.get("candidates", []), knobs, int(started.get("seed", 0)), position, output)
            if got == token:
                same += 1
                continue
            others += 1
            print(f"output {output}, token {index}: replayed {got}, served {token}; the draw was {margin:.1e} of all mass from a boundary")
    print(f"{same} tokens replayed as served, {others} otherwise")
    return 1 if others or not same else 0


if __name__ == "__main__":
    sys.exit(main())
