"""Compares Millrace with transformers in float32 on the small models of a folder, one of each family.

The folder has NAME.gguf with float32 weights, and for each prompt NAME-PROMPT-generated.json and NAME-PROMPT-replayed.json: what
`millrace generate --json` printed of the prompt and greedy tokens, and of the same prompt computed by decoding; and for each pooling
NAME-POOLING.jsonl, what `millrace embed` printed of the prompts, the shortest first, whose ids are the lines of NAME-prompts.txt. Of a
model that makes vectors alone there are no answers. Prints three lines a model, or one, `ok` or `FAIL` first, and ends with 1 unless all
are ok. Where one fails, tracebacks and places are printed to standard error, and NAME-hidden.npz
gets transformers' hidden states of the shortest prompt.
"""

import argparse
import functools
import glob
import json
import os
import sys
import traceback

import numpy as np
import torch
import transformers

import gguf_file
import layout
import verdict
from answer import Answer
from check import at
from reference import Reference, require_float32


def prompts(folder, name):
    """Yields the number and the two answers of each prompt, the shortest first."""
    found = glob.glob(os.path.join(glob.escape(folder), name + "-*-generated.json"))
    numbers = sorted(int(number) for path in found if (number := os.path.basename(path)[len(name) + 1 : -len("-generated.json")]).isdigit())
    for number in numbers:
        yield number, *(Answer.read(os.path.join(folder, f"{name}-{number}-{part}.json")) for part in ("generated", "replayed"))


def judge(folder, name):
    """Yields the verdicts of logprobs and of greedy tokens."""
    file = gguf_file.File(os.path.join(folder, name + ".gguf"))
    reference = Reference(file, "cpu", "eager")
    dense = [file.read(each).astype(np.float64) for each in layout.DENSE if each in file.shapes]
    with open(os.path.join(folder, name + "-prompts.txt"), encoding="utf-8") as lines:
        texts = [[int(each) for each in line.split(",")] for line in lines]
    vectors = verdict.of_vectors({pooling: least_cosine(reference, texts, dense, folder, name, pooling) for pooling in POOLINGS})
    if file.metadata["general.architecture"] in VECTORS_ALONE:
        yield vectors
        return
    parts, chosen, best, gaps = {}, [], [], []
    for number, generated, replayed in prompts(folder, name):
        exact = reference.logprobs(generated.ids, "f32")
        for part, answer in ("", generated), (" by decoding", replayed):
            if answer.ids != generated.ids[: len(answer.ids)]:
                raise ValueError("the two answers are not of one prompt")
            want = at(exact if len(answer.ids) == len(generated.ids) else reference.logprobs(answer.ids, "f32"), answer)
            parts[f"{number}{part}"] = verdict.largest(answer.logprobs, want)
            tell_places(f"{name} {number}{part}", answer, np.abs(answer.logprobs - want))
        rows = exact[generated.prompt - 1 : len(generated.ids) - 1].double().numpy()
        tokens = np.array(generated.ids[generated.prompt :])
        chosen, best, gaps = [*chosen, *tokens], [*best, *rows.argmax(1)], [*gaps, *(rows.max(1) - rows[np.arange(len(rows)), tokens])]
    kept = verdict.of_float32(parts)
    yield kept
    yield verdict.of_tokens(chosen, best, gaps, np.max(list(parts.values())))
    yield vectors
    if not kept.kept:
        np.savez_compressed(os.path.join(folder, name + "-hidden.npz"), ids=texts[0], hidden=reference.hidden(texts[0]).numpy())


VECTORS_ALONE = ("gemma-embedding",)
POOLINGS = {"first": lambda states: states[0], "mean": lambda states: states.mean(0), "last": lambda states: states[-1]}


def least_cosine(reference, texts, dense, folder, name, pooling):
    """The least cosine of a vector with the pooled final hidden states of transformers, multiplied by the layers after the pooling."""
    with open(os.path.join(folder, f"{name}-{pooling}.jsonl"), encoding="utf-8") as lines:
        vectors = [np.array(json.loads(line)["embedding"]) for line in lines]
    if len(vectors) != len(texts):
        raise ValueError(f"{len(vectors)} vectors of {len(texts)} prompts")
    wants = [functools.reduce(lambda vector, layer: layer @ vector, dense, POOLINGS[pooling](reference.final(text).double().numpy()))
             for text in texts]
    return min(float(got @ want / np.linalg.norm(got) / np.linalg.norm(want)) for got, want in zip(vectors, wants))


def tell_places(name, answer, errors):
    """Prints where logprobs differ, which tells a window from a rotation."""
    each = [errors[answer.positions == position].max() for position in np.unique(answer.positions)]
    if not max(each) < verdict.FLOAT32:
        beyond = [int(p) for p, error in zip(np.unique(answer.positions), each) if not error < verdict.FLOAT32]
        print(f"{name}: beyond {verdict.FLOAT32:g} at {len(beyond)} of {len(each)} positions, first {beyond[:5]}; "
              f"at the first positions {np.array2string(np.array(each[:8]), precision=2)}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("names", nargs="*", help="models (default: all)")
    arguments = parser.parse_args()
    require_float32("cpu")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)
    names = arguments.names or sorted(name[: -len(".gguf")] for name in os.listdir(arguments.folder) if name.endswith(".gguf"))
    kept = bool(names)
    for name in names:
        try:
            for each in judge(arguments.folder, name):
                kept &= each.kept
                print("ok" if each.kept else "FAIL", f"{name}: {each.text}", flush=True)
        except Exception as error:  # the other models are compared all the same
            kept = False
            print(f"FAIL {name}: {type(error).__name__}: {' '.join(str(error).split())[:600]}", flush=True)
            print(f"{name}:", file=sys.stderr)
            traceback.print_exc()
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
