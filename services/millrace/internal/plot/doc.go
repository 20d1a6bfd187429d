// Package plot draws a codebook and its training as a picture: energy over iterations, rows and variance of each codeword, and rows and
// codewords of dimension 2. A product codebook has a histogram and an energy for each subspace.
//
// A Figure's SVG is a pure function of its fields: the same bytes on every machine. The picture needs nothing from elsewhere, has
// the colours of a light page and of a dark one, says in words what it shows for those who cannot see it, and stays below 64 KiB
// whatever the training was.
//
// The package works on numbers. It has no access to files or codebooks.
package plot
