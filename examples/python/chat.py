"""Chats with a model that has a chat template, and loads it first if need be. Each line of standard input is a message."""

import argparse
import sys

import grpc

from millrace import errors, failover
from millrace.v1 import inference_pb2 as pb
from millrace.v1 import models_pb2, models_pb2_grpc, prompts_pb2

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--target", default="localhost:7070", help="servers, separated by commas: host:port")
parser.add_argument("--model", default="stories")
parser.add_argument("--system", help="system message")
parser.add_argument("--max-tokens", type=int, default=500)
parser.add_argument("--temperature", type=float, default=0.7)
parser.add_argument("--seed", type=int)
args = parser.parse_args()

channels = [failover.channel(target) for target in args.target.split(",")]


def load():
    """Loads the model and shows the progress. The load continues in the server if this program ends."""
    stub = models_pb2_grpc.ModelServiceStub(channels[0])
    for event in stub.LoadModel(models_pb2.LoadModelRequest(model=args.model)):
        if event.WhichOneof("event") == "progress" and event.progress.bytes_total:
            print(f"\rloading {event.progress.bytes_done * 100 // event.progress.bytes_total} %", end="", file=sys.stderr)
        elif event.WhichOneof("event") == "failure":
            sys.exit(f"\n{event.worker_id}: {event.failure.message} ({event.failure.reason})")
    print("\rloaded       ", file=sys.stderr)


def answer(messages):
    """Streams the next answer to standard output and returns it."""
    request = pb.GenerateRequest(
        model=args.model,
        chat=prompts_pb2.Chat(messages=messages),
        sampling=pb.Sampling(temperature=args.temperature, top_p=0.9, seed=args.seed),
        stopping=pb.Stopping(max_tokens=args.max_tokens),
    )
    text = ""
    for event in failover.stream(channels, request):
        if event.WhichOneof("event") == "tokens":
            print(event.tokens.text, end="", flush=True)
            text += event.tokens.text
    print()
    return text


messages = [prompts_pb2.ChatMessage(role="system", content=args.system)] if args.system else []
loaded = False
for line in sys.stdin:
    messages.append(prompts_pb2.ChatMessage(role="user", content=line.rstrip("\n")))
    while True:
        try:
            messages.append(prompts_pb2.ChatMessage(role="assistant", content=answer(messages)))
            break
        except grpc.RpcError as error:
            # The reason is for programs; the message is for people, and may change.
            info = errors.info(error)
            if info is None:
                sys.exit(f"{error.code().name}: {error.details()}")
            if info.reason == "MODEL_NOT_LOADED" and not loaded:
                loaded = True
                load()
                continue
            sys.exit(f"{error.details()} ({info.reason})")
