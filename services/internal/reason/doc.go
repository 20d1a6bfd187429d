// Package reason has the reasons that statuses carry in their ErrorInfo: one word for one
// condition. The domain of the ErrorInfo names the program that reports it.
//
// Workers and the scheduler return reasons, the client gives advice for each, and other programs
// may act on them. So a reason is never renamed, and its comment names its codes and the numbers in
// its metadata. Tests check that reasons are not written as literals, that none is unused, and that
// the client has advice for all.
//
// The package does not make statuses; package rpc does.
package reason
