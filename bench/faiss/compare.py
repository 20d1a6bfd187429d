#!/usr/bin/python3
"""Holds Millrace's vector codebooks against faiss: rates of assigning and encoding, and final energies of trainings.

    apt-get install python3-faiss
    make build
    bench/faiss/compare.py rates --save rates.json
    bench/faiss/compare.py rates --program ./rates --save rates.json
    bench/faiss/compare.py energies --save energies.json

rates: rows and codewords are those that `millrace-bench vectors` draws from the same seed, and every program computes on as many
threads. They take turns, and what is told is the median of the ratios within a round, since a machine that others use differs from
second to second; --clock processor --threads 1 tells more where they do. Faiss is Debian's, and with --program one that was built from source too:

    cmake -B build -DFAISS_ENABLE_GPU=OFF -DFAISS_ENABLE_PYTHON=OFF -DBUILD_TESTING=OFF -DFAISS_OPT_LEVEL=avx512 \\
        -DCMAKE_BUILD_TYPE=Release -DBLA_VENDOR=OpenBLAS . && cmake --build build --target faiss_avx512
    g++ -O2 -std=c++20 -fopenmp -mavx512f -I. bench/faiss/rates.cpp build/faiss/libfaiss_avx512.a -lopenblas -o rates

energies: each training has the same rows and as many iterations, each program its own default start. The energy is the mean
squared distance of all rows from the final codewords, in float64 and computed here for both. The bar is on the medians over seeds.

Exit code 1: a bar is missed.
"""

import argparse
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import faiss
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
WITHOUT_SIGN = 2**64 - 1  # codewords are drawn from the inverse of the seed's bits


def fvecs(path):
    """Rows of an .fvecs file, (n, dimension) float32."""
    raw = numpy.fromfile(path, dtype=numpy.float32)
    dimension = raw[:1].view(numpy.int32)[0]
    return numpy.ascontiguousarray(raw.reshape(-1, dimension + 1)[:, 1:])


def load():
    return "%.2f" % os.getloadavg()[0]


def facts(options):
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine()),
        "cores": os.cpu_count(),
        "threads": options.threads,
        "clock": options.clock,
        "load_1m": load(),
    }


def draw(options, folder, name, rows, dimension, seed, clusters=0):
    path = os.path.join(folder, name + ".fvecs")
    subprocess.run(
        [options.bin / "millrace-bench", "vectors", "--write-data", path, "--rows", str(rows), "--dimension", str(dimension), "--seed",
         str(seed), "--clusters", str(clusters)], check=True)
    return path


class Built:
    """A faiss behind rates.cpp."""

    def __init__(self, program, shape, rows, codewords, threads, clock):
        self.clock = clock
        kind = "product" if shape["subspaces"] > 1 else "flat"
        environment = dict(os.environ, OPENBLAS_NUM_THREADS=str(threads))
        self.process = subprocess.Popen(
            [program, kind, rows, codewords, str(shape["subspaces"]), str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=environment)

    def once(self):
        print(file=self.process.stdin, flush=True)
        wall, processor = self.process.stdout.readline().split()
        return float(processor if self.clock == "processor" else wall)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Debian:
    """The installed faiss."""

    def __init__(self, shape, rows, codewords, clock):
        self.clock = time.process_time if clock == "processor" else time.perf_counter
        rows, codewords = fvecs(rows), fvecs(codewords)
        if shape["subspaces"] > 1:
            product = faiss.ProductQuantizer(shape["dimension"], shape["subspaces"], 8)
            faiss.copy_array_to_vector(codewords.ravel(), product.centroids)
            self.compute = lambda: product.compute_codes(rows)
        else:
            index = faiss.IndexFlatL2(shape["dimension"])
            index.add(codewords)
            self.compute = lambda: index.search(rows, 1)
        self.compute()

    def once(self):
        begin = self.clock()
        self.compute()
        return self.clock() - begin

    def close(self):
        pass


class Millrace:
    """millrace-bench, which measures twice and tells the second."""

    def __init__(self, options, shape):
        self.clock = "processor_seconds" if options.clock == "processor" else "seconds"
        part = "product" if shape["subspaces"] > 1 else "encode"
        self.arguments = [
            options.bin / "millrace-bench", "vectors", "--json", "--device", "cpu", "--threads", str(options.threads), "--parts", part,
            "--type", "f32", "--dimension", str(shape["dimension"]), "--codewords", str(shape["codewords"]), "--subspaces",
            str(shape["subspaces"]), "--rows", str(shape["rows"]), "--seed", str(options.seed), "--repeat", "1", "--roof-time", "50ms",
        ] + options.millrace

    def once(self):
        run = subprocess.run(self.arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # On a machine that others use a roof may be measured too low, which makes shares void; here they do not matter.
        if run.returncode != 0 and "a share is above 100 %" not in run.stderr:
            raise RuntimeError(run.stderr)
        return json.loads(run.stdout)["lines"][0][self.clock]["median"]

    def close(self):
        pass


def rates(options):
    """Measures every shape; returns the report and the bars missed."""
    faiss.omp_set_num_threads(options.threads)
    shapes = [
        {"name": "128/256", "dimension": 128, "codewords": 256, "subspaces": 1, "rows": 1 << 16},
        {"name": "128/4096", "dimension": 128, "codewords": 4096, "subspaces": 1, "rows": 1 << 14},
        {"name": "128/65536", "dimension": 128, "codewords": 65536, "subspaces": 1, "rows": 1 << 10},
        {"name": "128/16x256", "dimension": 128, "codewords": 256, "subspaces": 16, "rows": 1 << 16},
    ]
    report, missed = {"machine": facts(options), "rounds": options.rounds, "shapes": []}, []
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            rows = draw(options, folder, "rows", shape["rows"], shape["dimension"], options.seed)
            codewords = draw(options, folder, "codewords", shape["codewords"], shape["dimension"], options.seed ^ WITHOUT_SIGN)
            programs = {"millrace": Millrace(options, shape), "debian": Debian(shape, rows, codewords, options.clock)}
            bars = {"debian": 4.0}
            if options.program:
                programs["built"] = Built(options.program, shape, rows, codewords, options.threads, options.clock)
                bars["built"] = 1.3
                programs["built"].once()
            seconds = {name: [] for name in programs}
            for _ in range(options.rounds):
                for name, program in programs.items():
                    seconds[name].append(program.once())
            for program in programs.values():
                program.close()
            line = dict(shape, load_1m=load(), vectors_per_second={n: shape["rows"] / statistics.median(s) for n, s in seconds.items()})
            line["ratios"] = {}
            for name, bar in bars.items():
                ratios = sorted(theirs / ours for theirs, ours in zip(seconds[name], seconds["millrace"]))
                line["ratios"][name] = {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1], "bar": bar}
                if shape["subspaces"] == 1 and statistics.median(ratios) < bar:
                    missed.append("%s is %.2f times %s, want %g" % (shape["name"], statistics.median(ratios), name, bar))
            report["shapes"].append(line)
            print("%-12s %s; %s; load %s" % (
                shape["name"], ", ".join("%s %.0f/s" % (n, v) for n, v in line["vectors_per_second"].items()),
                ", ".join("%.2f (%.2f..%.2f) times %s" % (r["median"], r["min"], r["max"], n) for n, r in line["ratios"].items()), load()),
                flush=True)
    return report, missed


def energy(rows, codewords, subspaces):
    """Mean squared distance from the nearest codeword, in float64; codewords (subspaces, k, width)."""
    total, width = 0.0, rows.shape[1] // subspaces
    for s in range(subspaces):
        centers = codewords[s].astype(numpy.float64)
        squares = (centers**2).sum(1)
        for first in range(0, len(rows), 4096):
            part = rows[first:first + 4096, s * width:(s + 1) * width].astype(numpy.float64)
            nearest = centers[(squares - 2 * part @ centers.T).argmin(1)]
            total += ((part - nearest)**2).sum()
    return total / len(rows)


def trained_by_faiss(rows, codewords, subspaces, iterations, seed):
    dimension = rows.shape[1]
    if subspaces > 1:
        product = faiss.ProductQuantizer(dimension, subspaces, 8)
        parameters, train = product.cp, lambda: product.train(rows)
    else:
        clustering = faiss.Clustering(dimension, codewords)
        parameters = clustering
        train = lambda: clustering.train(rows, faiss.IndexFlatL2(dimension))
    parameters.niter, parameters.seed, parameters.max_points_per_centroid = iterations, seed, len(rows)
    train()
    found = product.centroids if subspaces > 1 else clustering.centroids
    return faiss.vector_to_array(found).reshape(subspaces, codewords, dimension // subspaces)


def trained_by_millrace(options, target, path, folder, codewords, subspaces, iterations, seed):
    out = os.path.join(folder, "codebook.safetensors")
    kind = ["--kind", "product", "--subspaces", str(subspaces)] if subspaces > 1 else []
    subprocess.run(
        [options.bin / "millrace", "--target", target, "vectors", "train", path, "-k", str(codewords), "--type", "f32", "--seed", str(seed),
         "--max-iterations", str(iterations), "--json", "-o", out] + kind + options.train, check=True, stdout=subprocess.DEVNULL)
    raw = open(out, "rb").read()
    size = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + size])
    tensor = head["codewords"]
    begin, end = tensor["data_offsets"]
    return numpy.frombuffer(raw[8 + size + begin:8 + size + end], dtype="<f4").reshape(subspaces, codewords, -1)


def energies(options):
    """Trains both on the same rows; returns the report and the bars missed."""
    faiss.omp_set_num_threads(options.threads)
    cases = [
        {"name": "flat gaussian", "rows": 32768, "dimension": 32, "codewords": 256, "subspaces": 1, "clusters": 0},
        {"name": "flat clusters", "rows": 32768, "dimension": 32, "codewords": 256, "subspaces": 1, "clusters": 400},
        {"name": "product gaussian", "rows": 16384, "dimension": 64, "codewords": 256, "subspaces": 8, "clusters": 0},
        {"name": "product clusters", "rows": 16384, "dimension": 64, "codewords": 256, "subspaces": 8, "clusters": 400},
    ]
    report, missed = {"machine": facts(options), "iterations": options.iterations, "cases": []}, []
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        target = "127.0.0.1:%d" % s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        worker = subprocess.Popen(
            [options.bin / "millrace-worker", "--listen", target, "--device", "cpu", "--threads", str(options.threads), "--models", folder,
             "--log-level", "error"])
        try:
            for case in cases:
                path = draw(options, folder, "data", case["rows"], case["dimension"], options.seed, case["clusters"])
                rows, found = fvecs(path), {"millrace": [], "faiss": []}
                shape = (case["codewords"], case["subspaces"], options.iterations)
                for seed in range(1, options.seeds + 1):
                    ours = trained_by_millrace(options, target, path, folder, *shape, seed)
                    found["millrace"].append(energy(rows, ours, case["subspaces"]))
                    found["faiss"].append(energy(rows, trained_by_faiss(rows, *shape, seed), case["subspaces"]))
                ratio = statistics.median(found["millrace"]) / statistics.median(found["faiss"])
                report["cases"].append(dict(case, energies=found, ratio=ratio, bar=1.005))
                if not ratio <= 1.005:
                    missed.append("%s: %.4f times the energy of faiss, want at most 1.005" % (case["name"], ratio))
                print("%-18s millrace %s, faiss %s: %.4f" % (
                    case["name"], *("%.6g (%.6g..%.6g)" % (statistics.median(v), min(v), max(v)) for v in found.values()), ratio), flush=True)
        finally:
            worker.terminate()
            worker.wait()
    return report, missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rates", "energies"])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin", help="folder of the programs")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall",
                        help="processor: time of all threads, for a machine that others use; with --threads 1, as waiting threads spin")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each program at a rate")
    parser.add_argument("--seed", type=int, default=1, help="seed of the data")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each kind")
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--program", help="rates.cpp, linked with a faiss built from source")
    parser.add_argument("--millrace", nargs="*", default=[], metavar="FLAG", help="more flags of millrace-bench, such as --cpu-path=avx2")
    parser.add_argument("--train", nargs="*", default=[], metavar="FLAG", help="more flags of millrace vectors train, such as --init=random")
    parser.add_argument("--save", help="file of the report, JSON")
    options = parser.parse_args()
    report, missed = rates(options) if options.what == "rates" else energies(options)
    report["missed"] = missed
    if options.save:
        pathlib.Path(options.save).write_text(json.dumps(report, indent=2) + "\n")
    for line in missed:
        print("missed:", line, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
