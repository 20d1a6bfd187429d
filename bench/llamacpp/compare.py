#!/usr/bin/env python3
"""Compares Millrace with llama.cpp on the same model files, on one machine, and prints a table in Markdown.

    make build cuda
    bench/llamacpp/compare.py --llama-bench DIR/llama-bench --llama-batched-bench DIR/llama-batched-bench --save figures.json FILE.gguf ...
    bench/llamacpp/compare.py --device cpu --prompts 128 --tokens 32 --batch 1,8 --llama-bench ... --llama-batched-bench ... FILE.gguf ...

The programs take turns, --rounds times. A cell is the median over the rounds, in tokens a second of all sequences together. Both read the
same file, so anyone with a build of llama.cpp can repeat the tables of a release. `millrace-bench synth --list` lists the shapes
of which it makes files of random weights.

A prompt is one sequence. Decoding follows the first of --prompts in Millrace and in llama-batched-bench, and an empty cache in llama-bench,
which measures batch 1. llama.cpp runs with flash attention and, on a GPU, with all layers there. --save writes every figure of every round,
the versions of the programs, and Millrace's reports with the roofs of the machine.

Exit code 1: a program failed; its last lines are printed.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    args = arguments()
    results = []
    for file in args.files:
        rounds = []
        for _ in range(args.rounds):
            rounds.append({"Millrace": millrace(args, file), "llama.cpp": llamacpp(args, file)})
        results.append({"file": str(file), "rounds": rounds})
        print_rows(args, results)
    if args.save:
        pathlib.Path(args.save).write_text(json.dumps(results, indent=1) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE.gguf")
    parser.add_argument("--llama-bench", required=True, metavar="PROGRAM")
    parser.add_argument("--llama-batched-bench", required=True, metavar="PROGRAM")
    parser.add_argument("--millrace-bench", default=str(ROOT / "build/bin/millrace-bench"), metavar="PROGRAM")
    parser.add_argument("--engine-path", default=str(ROOT / "build/cuda"), help="folder of libmillrace_cuda.so")
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--threads", type=int, default=0, help="of a CPU, for both programs (default: each program's own)")
    parser.add_argument("--prompts", type=numbers, default=[512, 4096], help="lengths (default 512,4096)")
    parser.add_argument("--batch", type=numbers, default=[1, 8, 64], help="sequences that decode together (default 1,8,64)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens that a sequence decodes (default 64)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--save", metavar="FILE.json")
    args = parser.parse_args()
    for file in args.files:
        if not file.is_file():
            parser.error(f"{file}: no such file")
    if args.rounds < 1 or args.tokens < 2:
        parser.error("--rounds must be at least 1 and --tokens at least 2")
    return args


def numbers(text):
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text}: want numbers of at least 1, separated by commas")
    return values


def output(command):
    """The command's output. It ends this program if the command fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        sys.exit(f"{' '.join(map(str, command))} failed with code {done.returncode}:\n{tail}")
    return done.stdout


def millrace(args, file):
    """Tokens a second by "prompt N" and "decode N", the version of the program, and its reports, which have the machine and its roofs."""
    figures = {"version": output([args.millrace_bench, "--version"]).strip(), "reports": []}
    for index, prompt in enumerate(args.prompts):
        batch = args.batch if index == 0 else [1]
        command = [args.millrace_bench, "engine", "--json", "--model", file, "--device", args.device, "--prompt", prompt, "--repeat", 3,
                   "--batch", ",".join(map(str, sorted({1, *batch}))), "--tokens", args.tokens if index == 0 else 2]
        if args.device == "gpu":
            command += ["--engine-path", args.engine_path]
        elif args.threads:
            command += ["--threads", args.threads]
        report = json.loads(output(command))
        figures["reports"].append(report)
        for line in report["lines"]:
            rate = line["tokens_per_second"]["median"]
            if line["class"] == "prefill" and line["batch"] == 1:
                figures[f"prompt {prompt}"] = rate
            elif line["class"] == "decode" and index == 0 and line["batch"] in args.batch:
                figures[f"decode {line['batch']}"] = rate
    return figures


def llamacpp(args, file):
    figures = {}
    common = ["-m", file, "-ngl", 99 if args.device == "gpu" else 0]
    if args.device == "cpu" and args.threads:
        common += ["-t", args.threads]
    command = [args.llama_bench, *common, "-p", ",".join(map(str, args.prompts)), "-n", args.tokens, "-r", 3, "-fa", 1, "-o", "json"]
    for line in json.loads(output(command)):
        figures["version"] = line["build_commit"]
        if line["n_gen"] == 0:
            figures[f"prompt {line['n_prompt']}"] = line["avg_ts"]
        elif 1 in args.batch:
            figures["decode 1"] = line["avg_ts"]
    together = [batch for batch in args.batch if batch > 1]
    if together:
        prompt = args.prompts[0]
        command = [args.llama_batched_bench, *common, "-npp", prompt, "-ntg", args.tokens, "-npl", ",".join(map(str, together)),
                   "-fa", "on", "-c", max(together) * (prompt + args.tokens), "-b", 2048, "-ub", 512, "--output-format", "jsonl"]
        rows = []
        for _ in range(5):  # its log is written by a thread that sometimes does not end before the program, and then lines are missing
            rows = [json.loads(line) for line in output(command).splitlines() if line.startswith("{")]
            if len(rows) == len(together):
                break
        else:
            sys.exit(f"{args.llama_batched_bench} printed {len(rows)} of {len(together)} rows: {' '.join(map(str, command))}")
        for row in rows:
            figures[f"decode {row['pl']}"] = row["speed_tg"]
    return figures


def print_rows(args, results):
    columns = [f"prompt {n}" for n in args.prompts] + [f"decode {n}" for n in args.batch]
    if len(results) == 1:
        print("| file | program | " + " | ".join(columns) + " |")
        print("| --- | --- |" + " --- |" * len(columns))
    result = results[-1]
    for program in ("Millrace", "llama.cpp"):
        name = pathlib.Path(result["file"]).stem if program == "Millrace" else ""
        cells = [statistics.median(one[program][column] for one in result["rounds"]) for column in columns]
        texts = [f"{cell:,.0f}".replace(",", " ") if cell >= 100 else f"{cell:.1f}" for cell in cells]
        print(f"| {name} | {program} | {' | '.join(texts)} |", flush=True)


main()
