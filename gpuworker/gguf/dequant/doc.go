// Package dequant turns stored weights into float64 exactly, slowly and plainly: it is the reference
// that engines are tested against.
//
// Dequantize takes whole blocks as they lie in a file and fills one float64 per weight. Every supported format's value
// is a sum of products of small integers and half-precision scales: a multiple of 2^-24 below 2^28, which float64 holds
// without rounding.
//
// The package knows block layouts. It knows nothing of files, engines or speed.
package dequant
