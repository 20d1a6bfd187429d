"""Makes the golden files of the template tests with Jinja2 (3.1), in the environment that transformers renders with.

    python3 golden.py              language.txt and variables.json -> language.json; families/*.jinja -> families/*.json
    python3 golden.py FOLDER       FOLDER/*.jinja -> FOLDER/*.json, for the corpus that is not part of the project
"""

import datetime
import glob
import json
import os
import sys

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
NOON = datetime.datetime(2025, 3, 7, 12, 4, 5)


class Generation(Extension):
    """The tag that marks the assistant's words: a block with variables of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("text"), [], [], body).set_lineno(line)

    def text(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOON.strftime(format)
    return env


def render(env, source, variables):
    """What Go must give: the text, or the template's own refusal, or that there is an error of another kind."""
    try:
        return {"text": env.from_string(source).render(**variables)}
    except jinja2.exceptions.TemplateError as e:
        if type(e) is jinja2.exceptions.TemplateError:
            return {"raised": str(e)}
        return {"error": f"{type(e).__name__}: {e}"}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def write(name, value):
    with open(name, "w", newline="\n") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)
        f.write("\n")


def language(env):
    with open(os.path.join(HERE, "variables.json")) as f:
        variables = json.load(f)
    out = []
    with open(os.path.join(HERE, "language.txt"), newline="\n") as f:
        for line in f.read().split("\n"):
            if line and not line.startswith("# "):
                source = line.replace("⏎", "\n")
                out.append({"source": source, **render(env, source, variables)})
    write(os.path.join(HERE, "language.json"), out)


def templates(env, folder):
    with open(os.path.join(HERE, "conversations.json")) as f:
        conversations = json.load(f)
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(path, newline="") as f:
            source = f.read()
        cases = {}
        for name, messages in conversations.items():
            for prompt in (True, False):
                for bos, eos in (("<s>", "</s>"), ("", "")):
                    cases[f"{name}, prompt={prompt}, bos={bos!r}"] = render(env, source, {
                        "messages": messages, "tools": None, "documents": None, "add_generation_prompt": prompt,
                        "bos_token": bos, "eos_token": eos,
                    })
        write(path.removesuffix(".jinja") + ".json", cases)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        templates(environment(), sys.argv[1])
    else:
        language(environment())
        templates(environment(), os.path.join(HERE, "families"))
