// Package textlimit has the limits of Tokenize and Detokenize, which the contract states and both
// kinds of servers enforce.
//
// A text becomes up to thirty times its bytes of ids and pieces. Without a limit on the response,
// twelve requests of 16 MiB took 7.8 GB of a worker. Bytes is the largest message that a gRPC
// client receives by default, so most clients could not receive a larger response anyway.
package textlimit
