// Package textlimit is the limits of Tokenize and Detokenize, which the contract states and servers of both kinds enforce.
//
// A text becomes up to thirty times its bytes of ids and pieces. Without a limit on the response, twelve requests of 16 MiB took
// 7.8 GB of a worker. Bytes is the largest message that a gRPC client receives by default, so that a larger response would not
// arrive at most clients anyway.
package textlimit
