"""Streams a story. Ctrl-C stops it, on the device too; if a server is lost, the next of --target continues."""

import argparse
import sys

import grpc

from millrace import failover
from millrace.v1 import inference_pb2 as pb

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("prompt", nargs="?", default="Once upon a time")
parser.add_argument("--target", default="localhost:7070", help="servers, separated by commas: host:port")
parser.add_argument("--model", default="stories")
parser.add_argument("--max-tokens", type=int, default=200)
parser.add_argument("--temperature", type=float, default=0.7)
parser.add_argument("--seed", type=int)
parser.add_argument("--timeout", type=float, help="seconds for the whole call")
parser.add_argument("--stop-after", type=int, help="tokens after which to cancel")
for name in ("ca", "cert", "key"):
    parser.add_argument("--tls-" + name, help="file of PEM")
args = parser.parse_args()

request = pb.GenerateRequest(
    model=args.model,
    prompt=args.prompt,
    sampling=pb.Sampling(temperature=args.temperature, top_p=0.9, seed=args.seed),
    stopping=pb.Stopping(max_tokens=args.max_tokens),
)
channels = [failover.channel(t, args.tls_ca, args.tls_cert, args.tls_key) for t in args.target.split(",")]
events = failover.stream(channels, request, timeout=args.timeout)
tokens = 0
try:
    for event in events:
        if event.WhichOneof("event") == "tokens":
            print(event.tokens.text, end="", flush=True)
            tokens += len(event.tokens.token_ids)
            if args.stop_after and tokens >= args.stop_after:
                break
        elif event.WhichOneof("event") == "finished":
            print(f"\n{event.finished.usage.completion_tokens} tokens", file=sys.stderr)
except KeyboardInterrupt:
    pass
except grpc.RpcError as error:
    sys.exit(f"\n{error.code().name}: {error.details()}")
finally:
    events.close()
