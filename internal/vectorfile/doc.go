// Package vectorfile reads and writes the common files of vectors and codes: matrices of numbers,
// row after row.
//
//	format           rows as            codes as      written from
//	.npy             f4, f2, u1, i1     u1, u2, u4    every type but BF16
//	.fvecs           F32                -             F32
//	.bvecs           U8                 -             -
//	.ivecs           F32, where exact   U32           U32
//	.fbin .f16bin    F32, F16           -             -
//	.u8bin .i8bin    U8, I8             -             -
//
// OpenRows and OpenCodes check a file's head against its size, and return a Matrix. It reads any
// rows at any time, from several goroutines, and holds only a part of them. Callers get the
// elements as messages have them, whatever the format: little-endian bytes, row after row without
// gaps. NpyWriter and VecsWriter are the inverse, and stream; equal content gives equal bytes.
// Packing packs the codes of a product codebook into bytes.
//
// A one-dimensional .npy array of d numbers is one row of dimension d; as codes it is d rows of one
// code each. With two dimensions the first counts the rows. Arrays of other ranks, in Fortran
// order, big endian, of objects or of records are refused, and so is a byte too few or too many.
// The formats ending in vecs put the dimension in front of every row; all rows of a file must have
// the same one, which is checked where a row is read. Those ending in bin begin with the number of
// rows and the dimension.
//
// A vector file is untrusted input. Every refusal is a *FormatError with the offset, the error and
// the remedy; it matches ErrFormat or ErrUnsupported. The numbers in a head allocate no memory.
//
// The package knows bytes and sizes. It does no arithmetic on elements, so it passes on NaN and
// infinities, and it does not know of which codebook a code is.
package vectorfile
