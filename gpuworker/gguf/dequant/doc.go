// Package dequant converts stored weights to float64 exactly and slowly. It is the reference that
// engines are tested against.
//
// Dequantize takes whole blocks as they are in a file and fills one float64 per weight. Every
// supported value is a sum of products of small integers and half-precision scales, divided by at
// most 8: a multiple of 2^-27 below 2^28, which float64 holds without rounding.
package dequant
