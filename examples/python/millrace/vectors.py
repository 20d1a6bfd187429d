"""Vector codebooks from numpy arrays: train, encode, decode. The calls are VectorService's; codebooks stay on the workers by name.

    from millrace import failover, vectors
    with failover.channel("localhost:7070") as channel:
        book = vectors.train(channel, x, codewords=256, name="mine")
        codes = vectors.encode(channel, "mine", x)
"""

import numpy

from millrace.v1 import codebooks_pb2 as books
from millrace.v1 import vectors_pb2 as pb
from millrace.v1 import vectors_pb2_grpc

# A message has at most 4 MiB; its rows must leave a few bytes.
PIECE = 3 << 20

_ELEMENTS = {
    "float32": books.ELEMENT_TYPE_F32, "float16": books.ELEMENT_TYPE_F16, "uint8": books.ELEMENT_TYPE_U8, "int8": books.ELEMENT_TYPE_I8,
}
_TYPES = {books.ELEMENT_TYPE_F32: "<f4", books.ELEMENT_TYPE_F16: "<f2"}


def _rows(x):
    """Returns the array as rows in the byte order of the wire, and the type of its elements."""
    x = numpy.asarray(x)
    if x.ndim != 2:
        raise ValueError(f"want an array of two dimensions, rows and elements, and it has {x.ndim}")
    if x.dtype.name not in _ELEMENTS:
        raise ValueError(f"elements are {x.dtype.name}, want one of {', '.join(_ELEMENTS)}: x.astype('float32')")
    return numpy.ascontiguousarray(x, x.dtype.newbyteorder("<")), _ELEMENTS[x.dtype.name]


def _pieces(x):
    """Yields pieces of x: as many whole rows as fit in a message."""
    step = max(PIECE // max(x.shape[1] * x.itemsize, 1), 1)
    for begin in range(0, len(x), step):
        yield x[begin : begin + step]


def train(channel, x, codewords, name=None, progress=None, **config):
    """Trains a codebook on the rows of x and returns the result of TrainCodebook: digest, iterations, empty codewords, and energy,
    which is the mean distance of the rows from their codewords: of the metric L2 the mean squared error of a row. With a name the codebook
    stays on the worker, and encode and decode take it. progress is called with each TrainingProgress. config has further fields of
    TrainingConfig, such as seed=1, max_iterations=50, subspaces=8 for a product codebook, metric=VECTOR_METRIC_COSINE."""
    x, element = _rows(x)
    kind = books.CODEBOOK_KIND_PRODUCT if "subspaces" in config else books.CODEBOOK_KIND_FLAT
    config = dict({"codeword_type": books.ELEMENT_TYPE_F32}, **config)
    first = pb.TrainingConfig(dimension=x.shape[1], rows=len(x), element_type=element, kind=kind, codewords=codewords, save_as=name, **config)

    def requests():
        yield pb.TrainCodebookRequest(config=first)
        for piece in _pieces(x):
            yield pb.TrainCodebookRequest(rows=piece.tobytes())

    finished = None
    for event in vectors_pb2_grpc.VectorServiceStub(channel).TrainCodebook(requests()):
        if event.WhichOneof("event") == "progress" and progress:
            progress(event.progress)
        elif event.WhichOneof("event") == "finished":
            finished = event.finished
    return finished


def encode(channel, name, x):
    """The codes of the rows of x: (rows,) of a flat codebook, (rows, subspaces) of a product codebook."""
    x, element = _rows(x)
    stub, pieces = vectors_pb2_grpc.VectorServiceStub(channel), []
    for piece in _pieces(x):
        answer = stub.Encode(pb.EncodeRequest(codebook=name, element_type=element, rows=piece.tobytes()))
        codes = numpy.frombuffer(answer.codes, "<u1" if answer.code_bytes == 1 else "<u2").reshape(len(piece), -1)
        pieces.append(codes)
    if not pieces:
        return numpy.empty(0, "u1")
    codes = numpy.concatenate(pieces)
    return codes[:, 0] if codes.shape[1] == 1 else codes


def decode(channel, name, codes):
    """Returns the codewords of codes from encode, as rows. Codewords in bfloat16, for which numpy has no type, are returned as float32."""
    codes = numpy.ascontiguousarray(codes)
    codes = codes.reshape(len(codes), -1)
    stub, pieces = vectors_pb2_grpc.VectorServiceStub(channel), []
    # The decoded rows must fit into an answer of 4 MiB, so request few rows until their width is known.
    begin, step = 0, 16
    while begin < len(codes):
        piece = codes[begin : begin + step]
        answer = stub.Decode(pb.DecodeRequest(codebook=name, codes=piece.tobytes()))
        if answer.element_type == books.ELEMENT_TYPE_BF16:
            rows = (numpy.frombuffer(answer.rows, "<u2").astype("<u4") << 16).view("<f4")
        else:
            rows = numpy.frombuffer(answer.rows, _TYPES[answer.element_type])
        pieces.append(rows.reshape(len(piece), -1))
        begin += len(piece)
        step = max(PIECE // max(len(answer.rows) // len(piece), 1), 1)
    return numpy.concatenate(pieces) if pieces else numpy.empty((0, 0), "<f4")
