"""The machine-readable reason of a failed call, which Millrace sends with every error besides gRPC's status."""

from collections import namedtuple

Info = namedtuple("Info", "reason domain metadata")


def info(error):
    """The ErrorInfo of a grpc.RpcError, or None if no server of Millrace gave one. docs/troubleshooting.md lists the reasons, such as
    MODEL_NOT_LOADED; metadata has the numbers of the message as strings. It decodes google.rpc.Status, so that no package beside grpcio
    is needed."""
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for number, detail in _fields(value):
            if number != 3:  # Status.details
                continue
            packed = dict(_fields(detail))  # google.protobuf.Any
            if packed.get(1, b"").endswith(b"/google.rpc.ErrorInfo"):
                return _error_info(packed.get(2, b""))
    return None


def _error_info(data):
    reason = domain = ""
    metadata = {}
    for number, value in _fields(data):
        if number == 1:
            reason = value.decode()
        elif number == 2:
            domain = value.decode()
        elif number == 3:
            entry = dict(_fields(value))
            metadata[entry.get(1, b"").decode()] = entry.get(2, b"").decode()
    return Info(reason, domain, metadata)


def _fields(data):
    """Yields the fields of a message in protobuf's wire format: their number, and bytes or an integer."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            yield number, varint()
            continue
        size = {1: 8, 2: None, 5: 4}[kind]
        if size is None:
            size = varint()
        yield number, data[at : at + size]
        at += size
