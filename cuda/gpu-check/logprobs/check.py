"""Compares logprobs and greedy tokens of Millrace with transformers in float32 on the same weights.

Prints one line a verdict, `ok` or `FAIL` first, and ends with 1 if a bound is not kept.
"""

import argparse

import numpy as np
import torch

import gguf_file
import verdict
from answer import Answer
from reference import Reference, require_float32


def at(table, answer):
    """Returns the logprobs of an answer's tokens from a table. Row i is for the token after token i."""
    index = torch.from_numpy(answer.positions - 1), torch.from_numpy(answer.tokens)
    return table[index[0].to(table.device), index[1].to(table.device)].double().cpu().numpy()


def judge(reference, quantised, kind, generated, replayed):
    """Judges a generation, whose prompt the prefill kernels computed, and the same prompt computed one token a step."""
    if replayed.ids != generated.ids[: generated.prompt] or replayed.prompt != generated.prompt:
        raise ValueError("the two answers are not of one prompt")
    exact, own = reference.logprobs(generated.ids, "f32"), reference.logprobs(generated.ids, kind)
    want = at(exact, generated)
    of_prompt = generated.positions < generated.prompt
    parts = {
        "prompt": verdict.largest(generated.logprobs[of_prompt], want[of_prompt]),
        "by decoding": verdict.largest(replayed.logprobs, at(exact, replayed)),
        "generated": verdict.largest(generated.logprobs[~of_prompt], want[~of_prompt]),
    }
    own_of = at(own, generated)
    own_error = np.max([verdict.largest(own_of, want), verdict.largest(at(own, replayed), at(exact, replayed))])
    means = verdict.mean(generated.logprobs, want), verdict.mean(own_of, want)
    yield verdict.of_logprobs(parts, own_error, kind, means, quantised)

    rows = exact[generated.prompt - 1 : len(generated.ids) - 1].double().cpu().numpy()
    chosen, best = np.array(generated.ids[generated.prompt :]), rows.argmax(1)
    gaps = rows.max(1) - rows[np.arange(len(rows)), chosen]
    yield verdict.of_tokens(chosen, best, gaps, np.max(list(parts.values())))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="where transformers runs")
    parser.add_argument("--name", default="", help="what the lines begin with")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("type", choices=verdict.SHARES, help="of transformers' own run, beside whose errors the answers' are held")
    parser.add_argument("generated", help="what millrace generate --json printed of prompt and greedy tokens, with logprobs")
    parser.add_argument("replayed", help="the same of the prompt alone, computed by decoding")
    arguments = parser.parse_args()
    require_float32(arguments.device)
    file = gguf_file.File(arguments.model)
    reference = Reference(file, arguments.device)
    verdicts = list(judge(reference, file.quantised(), arguments.type, Answer.read(arguments.generated), Answer.read(arguments.replayed)))
    for each in verdicts:
        print("ok" if each.kept else "FAIL", f"{arguments.name}: {each.text}")
    return 0 if all(each.kept for each in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
