// Package pieces does numbered pieces of a work several at a time and takes what they give in order.
//
// Do is its only function: what is computed of pieces and where it goes are the caller's functions. At most as many results are
// held as pieces are in flight, so that memory does not grow with the work.
//
// It knows no call and no file, and retries nothing.
package pieces
