"""Streams from Millrace that fail over to another server when theirs is lost: a helper for the generated stubs."""

import time

import grpc

from millrace.v1 import inference_pb2 as pb
from millrace.v1 import inference_pb2_grpc


def channel(target, ca=None, cert=None, key=None):
    """A channel to a scheduler or worker: plaintext, or over TLS by files of PEM."""
    options = [("grpc.max_receive_message_length", 64 << 20)]  # of a server; gRPC's default is 4 MiB
    if ca is None:
        return grpc.insecure_channel(target, options)
    ca, key, cert = (open(path, "rb").read() if path else None for path in (ca, key, cert))
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(ca, key, cert), options)


def lost_server(error):
    """Whether a call failed because its server is lost. A proxy that has forwarded a part of the answer resets the stream then, which is
    INTERNAL in gRPC, without the details that errors of servers have."""
    detailed = any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())
    return error.code() == grpc.StatusCode.UNAVAILABLE or (error.code() == grpc.StatusCode.INTERNAL and not detailed)


def stream(channels, request, timeout=None):
    """Yields the events of a generation of one continuation. If a server is lost, the next of channels resumes the stream after the last
    token, and no event comes twice. Closing the generator cancels the call."""
    deadline = None if timeout is None else time.monotonic() + timeout
    started, ids, text_bytes, lost = None, [], 0, 0
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        stub = inference_pb2_grpc.InferenceServiceStub(channels[lost % len(channels)])
        call = stub.Generate(request, timeout=left)
        try:
            for event in call:
                kind = event.WhichOneof("event")
                if kind == "started":
                    if started is not None and not event.started.HasField("exact"):
                        continue  # it repeats the first one
                    started = started or event.started
                elif kind == "tokens":
                    ids.extend(event.tokens.token_ids)
                    text_bytes += len(event.tokens.text.encode())
                yield event
            return
        except grpc.RpcError as error:
            lost += 1
            if not lost_server(error) or lost > 2 * len(channels):
                raise
        finally:
            call.cancel()
        if started is not None:
            request.sampling.seed = started.seed
            request.expect_model_digest, request.expect_prompt_digest = started.model_digest, started.prompt_digest
            if started.HasField("max_tokens"):  # a server with another context must not change the length
                request.context_length = started.prompt_tokens + started.max_tokens
            del request.resume[:]
            request.resume.append(pb.Resume(output_index=0, token_ids=ids, text_bytes=text_bytes))
