// Package codebookfile keeps vector codebooks in safetensors files.
//
// A file has the tensor codewords: (codewords, dimension) for a FLAT codebook, (subspaces, codewords, dimension/subspaces) for a
// PRODUCT one, in F32, F16 or BF16. Three more record the training, where it is known: energies, F64, one for each round;
// loads, I64, the rows of each codeword; and variances, F64, the mean distance of these rows from it, with L2 squared, 0 without
// rows. The last two have the shape of the codewords without the last length. The metadata are texts:
//
//	format        millrace.codebook.v1
//	kind          FLAT or PRODUCT
//	dimension, codewords, subspaces
//	              decimal; they say the same as the shape
//	metric        L2, INNER_PRODUCT or COSINE
//	element_type  of the rows that it was trained on: F32, F16, BF16, U8 or I8
//	algorithm     LLOYD or ANNEALED
//	seed          decimal, 0 to 2^64-1
//	numerics      the rules by which it was trained
//	digest        BLAKE3 of the codewords' bytes, 64 hexadecimal digits
//	training.*    which rows and parameters made it, where that is known
//
// A codebook of which nobody knows how it was trained lacks element_type, algorithm, seed and numerics, all four. Parse checks
// that all else of this is there and agrees; other metadata and tensors are left alone. Verify reads the codewords and
// compares their digest. Write refuses codewords whose digest is not the one announced. Equal codebooks give equal bytes.
//
// The package knows shapes and texts. It computes nothing with codewords and makes no call.
package codebookfile
