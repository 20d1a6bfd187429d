// Package reason is the vocabulary of the reasons that statuses carry in their ErrorInfo: one word for one thing, whoever
// says it. The domain beside a reason says who does.
//
// Workers and the scheduler give them, the client advises on each of them, and other programs may decide by them; so a reason
// is never renamed, and its comment says with which codes it comes and which numbers are in the metadata. Tests hold that
// nobody writes one as a literal, that none is unused, and that the client has advice for all.
//
// It refuses to know how a status is made; package rpc does that.
package reason
