"""Reads the output of `millrace generate --json`: ids and their logprobs."""

import json

import numpy as np


class Answer:
    """One generation. ids are those of the prompt (which needs --echo-prompt) and, from index prompt on, the generated ones.

    positions, tokens and logprobs are arrays of one length: that the token at that index of ids be this one has that logprob.
    They hold each token itself and its candidates.
    """

    def __init__(self, lines):
        prompt, generated, said = [], [], []
        for event in map(json.loads, lines):
            if part := event.get("prompt"):
                self.take(part, prompt, 0, said)
            elif part := event.get("tokens"):
                self.take(part, generated, len(prompt), said)
        self.ids, self.prompt = prompt + generated, len(prompt)
        if not said:
            raise ValueError("the answer has no logprobs")
        self.positions, self.tokens = np.array([s[:2] for s in said], np.int64).T
        self.logprobs = np.array([s[2] for s in said])

    @classmethod
    def read(cls, path):
        with open(path, encoding="utf-8") as lines:
            return cls(lines)

    @staticmethod
    def take(part, ids, before, said):
        """Adds an event. Fields that are zero are missing."""
        if part.get("tokenIndex", 0) != len(ids):
            raise ValueError(f"tokens {part.get('tokenIndex', 0)} and on come after {len(ids)} tokens")
        details = part.get("details", [])
        if len(details) != len(part["tokenIds"]):
            raise ValueError(f"{len(details)} details of {len(part['tokenIds'])} tokens")
        for token, detail in zip(part["tokenIds"], details):
            at = before + len(ids)
            ids.append(token)
            if at == 0:
                continue  # nothing is before the first
            said.append((at, token, detail["logprob"]))
            said += [(at, c.get("tokenId", 0), c["logprob"]) for c in detail.get("candidates", [])]
