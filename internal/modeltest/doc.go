// Package modeltest finds the stories model and its variants for tests.
//
// Stories returns the path of one variant by the name of its weight type: the files that the repository holds are used
// in place, the other types are quantised from the F16 file into the test's own folder. ReadGolden returns what an
// independent float64 implementation computes with the F16 weights; Path names any other file of the repository. Quantize is
// the plain encoder behind it: nearest values, no search for better scales.
//
// It is for tests alone; it knows files and block formats and refuses to know engines.
package modeltest
