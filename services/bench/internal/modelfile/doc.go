// Package modelfile makes the synthetic model files that benchmarks run, and keeps them for the next run.
//
// Ensure gives the path of the file of a shape, weight type and seed in a folder, writing it if it is not there. A file
// appears under its name only when it is complete.
package modelfile
