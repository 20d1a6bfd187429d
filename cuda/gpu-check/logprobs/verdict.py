"""Judges logprobs and greedy tokens against float32's."""

import dataclasses

import numpy as np

# The engine's error may reach this share of transformers' own error in a type. For quantised models, which transformers
# multiplies dequantised, it may reach all of it.
SHARES = {"f16": 1 / 4, "bf16": 1 / 2}
QUANTISED_SHARE = 1
# The largest difference of a logprob between two computations in float32, in nats. Mistakes such as a window that is one position
# off or a scale that is a hundredth off make more than twice as much; see TestFamilyBoundCatchesMistakes.
FLOAT32 = 1e-4
# The least cosine of an embedding with float32's.
COSINE = 0.99999


@dataclasses.dataclass
class Verdict:
    """kept is whether the bound holds; text names the figure and the bound."""

    kept: bool
    text: str


def largest(got, want):
    """Returns the largest difference; NaN if any difference is NaN."""
    return float(np.max(np.abs(np.asarray(got, np.float64) - want)))


def mean(got, want):
    """Returns the average difference."""
    return float(np.mean(np.abs(np.asarray(got, np.float64) - want)))


def of_logprobs(parts, own, kind, means, quantised=False):
    """Judges the largest differences of parts, by name, beside own: transformers' in a type, over the same tokens. means, on both
    sides, are told and not judged."""
    share = QUANTISED_SHARE if quantised else SHARES[kind]
    error, bound = np.max(list(parts.values())), own * share
    each = ", ".join(f"{name} {part:.3g}" for name, part in parts.items())
    return Verdict(bool(error < bound), f"logprobs differ by {error:.3g} at most, want below {bound:.3g}, {share:g} of "
                   f"the {own:.3g} of transformers' own {kind}: {each}; on average {means[0]:.3g} beside {means[1]:.3g}")


def of_float32(parts):
    """Judges the largest differences of parts, by name, of models with float32 weights and caches."""
    error = np.max(list(parts.values()))
    each = ", ".join(f"{name} {part:.3g}" for name, part in parts.items())
    return Verdict(bool(error < FLOAT32), f"logprobs differ by {error:.3g} at most, want below {FLOAT32:g}: {each}")


def of_vectors(cosines):
    """Judges the least cosines of vectors, by name of the pooling."""
    least = np.min(list(cosines.values()))
    each = ", ".join(f"{name} {1 - cosine:.2g}" for name, cosine in cosines.items())
    return Verdict(bool(least >= COSINE), f"vectors have cosines of 1 less {1 - least:.2g} at least, want {COSINE}: {each}")


def of_tokens(chosen, best, gaps, error):
    """Judges greedy tokens beside float32's best ones at the same places. gaps are how far float32's logit of the chosen token is
    below its best one: another token than the best is a tie only where that is less than the error of logprobs."""
    other = [i for i in range(len(chosen)) if chosen[i] != best[i]]
    missed = [i for i in other if not gaps[i] < error]
    text = f"{len(chosen) - len(other)} of {len(chosen)} greedy tokens are equal"
    if other:
        text += f", {len(other) - len(missed)} ties"
    for i in missed:
        text += f"; token {i} is {chosen[i]} for {best[i]}, whose logit is {gaps[i]:.3g} above"
    return Verdict(not missed and len(chosen) > 0, text)
