// Package plot draws what the training of a codebook came to as a picture: energy over iterations, and how many rows each
// codeword has.
//
// A Figure's SVG is a pure function of its fields: the same bytes on every machine. The picture needs nothing from elsewhere, has
// the colours of a light page and of a dark one, says in words what it shows for those who cannot see it, and stays below 64 KiB
// whatever the training was.
//
// The package knows numbers. It knows neither files nor codebooks.
package plot
