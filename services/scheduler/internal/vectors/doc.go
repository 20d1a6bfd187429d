// Package vectors carries calls of VectorService to the workers that have codebooks and take trainings.
//
// Encode and Decode are pure: a call goes to a worker that serves the codebook, and to another one when that is lost or cannot,
// until its deadline. A training is a stream both ways to one worker, and ends with it. A codebook that is put goes to several
// workers at once, piece by piece. Rows, codes and pieces are passed on as they came; of a message only the fields that route it are
// read. What is under way is bounded by calls and bytes of its own, so that it takes nothing from token streams.
//
// Who is chosen is package route's word for calls and trainings, and package place's for copies. The package computes nothing and
// keeps no codebook.
package vectors
