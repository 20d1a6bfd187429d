# Writes the files of this folder with numpy; see README.md. Element (i, j) of an array with d columns is i*d + j - 3, or that
# without the -3 where the type has no sign.
import io

import numpy as np
from numpy.lib import format as npy


def numbers(dtype, *shape):
    first = 0 if np.dtype(dtype).kind == "u" else -3
    return np.arange(first, first + int(np.prod(shape))).reshape(shape).astype(dtype)


for t in ("<f4", "<f2", "|i1", "|u1", "<u2", "<u4"):
    np.save(t[1:] + ".npy", numbers(t, 3, 4))
    np.save(t[1:] + "-one-dimension.npy", numbers(t, 5))
np.save("no-rows.npy", numbers("<f4", 0, 4))
np.save("one-element.npy", numbers("<f4", 1, 1))
np.save("one-column.npy", numbers("<f4", 5, 1))
for version in ((1, 0), (2, 0), (3, 0)):
    with open("version-%d.npy" % version[0], "wb") as f:
        npy.write_array(f, numbers("<f4", 3, 4), version=version)

np.save("refused-fortran.npy", np.asfortranarray(numbers("<f4", 3, 4)))
np.save("refused-big-endian.npy", numbers(">f4", 3, 4))
np.save("refused-object.npy", np.array([[1, "a"]], dtype=object), allow_pickle=True)
np.save("refused-record.npy", np.zeros(3, dtype=[("id", "<u4"), ("v", "<f4", 4)]))
np.save("refused-void.npy", np.zeros((3, 4), dtype="V2"))
np.save("refused-f8.npy", numbers("<f8", 3, 4))
np.save("refused-i8.npy", numbers("<i8", 3, 4))
np.save("refused-bool.npy", np.ones((3, 4), dtype=bool))
np.save("refused-scalar.npy", np.float32(1))
np.save("refused-three-dimensions.npy", numbers("<f4", 2, 3, 4))
np.save("refused-no-columns.npy", numbers("<f4", 3, 0))
with open("refused-archive.npy", "wb") as f:
    np.savez(f, numbers("<f4", 3, 4))

# The heads of larger arrays: type, lengths, bytes in hexadecimal digits.
with open("heads.txt", "w") as out:
    for t in ("<f4", "<f2", "|i1", "|u1", "<u2", "<u4"):
        for shape in ((0,), (1,), (10**9,), (10**18,), (0, 1), (1, 65536), (10**9, 128), (10**12, 65536)):
            with io.BytesIO() as f:
                npy.write_array_header_1_0(f, {"descr": t, "fortran_order": False, "shape": shape})
                print(t, ",".join(map(str, shape)), f.getvalue().hex(), file=out)

# What faiss's contrib/vecs_io.py and big-ann-benchmarks' dataset_io.py write.
for name, t in (("f4.fvecs", "<f4"), ("i4.ivecs", "<i4"), ("u1.bvecs", "|u1")):
    with open(name, "wb") as f:
        for row in numbers(t, 3, 4):
            np.array([4], dtype="<i4").tofile(f)
            row.tofile(f)
for name, t in (("f4.fbin", "<f4"), ("f2.f16bin", "<f2"), ("u1.u8bin", "|u1"), ("i1.i8bin", "|i1")):
    with open(name, "wb") as f:
        np.array([3, 4], dtype="<u4").tofile(f)
        numbers(t, 3, 4).tofile(f)
