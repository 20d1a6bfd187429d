// Package vectors serves VectorService: it relays calls to the workers that have codebooks and that
// accept trainings.
//
// Encode and Decode are pure. A call goes to a worker that serves the codebook, and to another one
// if that worker is lost or refuses, until the call's deadline. A training is one stream to one
// worker and ends with it. A codebook that is put goes to several workers at once, piece by piece.
// Rows, codes and pieces pass unchanged; of a message only the fields that route it are read. Calls
// and their bytes have their own bounds, so that they take nothing from token streams.
//
//	caller -> Register -> Piece   one message    pick.go -> one worker, retried
//	                      Train   two-way stream pick.go -> one worker
//	                      Put     upload         choose.go -> several workers
//	                      Load    no stream      choose.go -> several workers
//
// index.go holds what routing reads: one index for each of the fleet's snapshots. The package
// computes nothing and stores no codebook.
package vectors
