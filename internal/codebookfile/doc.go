// Package codebookfile reads and writes vector codebooks in safetensors files.
//
// A file has the tensor codewords: (codewords, dimension) for a FLAT codebook, (subspaces,
// codewords, dimension/subspaces) for a PRODUCT one, in F32, F16 or BF16. Three more record the
// training, if it is known: energies, F64, one for each round; loads, I64, the rows of each
// codeword; and variances, F64, the mean distance of these rows from it, squared for L2, 0 without
// rows. The last two have the shape of the codewords without the last length. The metadata are
// texts:
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
//	training.*    its rows and parameters, if they are known
//
// A codebook of unknown training lacks all four of element_type, algorithm, seed and numerics.
// Parse checks that the rest is present and agrees; it ignores other metadata and tensors. Verify
// reads the codewords and compares their digest. Write refuses codewords with another digest than
// the announced one. Equal codebooks give equal bytes.
//
// The package knows shapes and texts. It computes nothing with codewords and makes no call.
package codebookfile
