// Package plot draws a codebook and its training as a picture: energy over iterations, rows and variance of each codeword, and rows and
// codewords of dimension 2. A product codebook has a histogram and an energy for each subspace.
//
// A Figure's SVG is a pure function of its fields: the same bytes on every machine. The picture
// loads no other file, has colours for a light page and a dark one, has a description for screen
// readers, and is smaller than 64 KiB for every training.
//
// The package works on numbers. It has no access to files or codebooks.
package plot
