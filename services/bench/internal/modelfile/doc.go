// Package modelfile writes the model files of random weights that benchmarks use, and keeps them
// for the next run.
//
// Ensure returns the path of the file of a shape, weight type and seed in a folder, and writes the
// file if it does not exist. A file gets its name when it is complete.
package modelfile
