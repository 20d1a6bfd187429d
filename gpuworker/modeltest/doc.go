// Package modeltest provides the stories model and its variants for tests.
//
// Stories returns the path of the variant with a weight type. Variants in the repository are used
// in place, and the others are quantized from the F16 file into the test's temporary folder.
// ReadGolden returns what an independent float64 implementation computes with the F16 weights.
// Split writes a model as several files. Quantize is the encoder: it rounds to the nearest value and
// does not search for better scales.
//
// The package is for tests only. It knows files and block formats, and no engine.
package modeltest
