// Package rpcstatus is the one place where the scheduler's errors become gRPC statuses. It has a
// table from the sentinels of route, admission and placement to codes and reasons (Of), and a
// constructor for each status that another package reports about a call, a load or a drain.
//
// Packages that this one does not import, such as vectors, pass their rows of the table to Of.
//
// A worker's own status does not pass through here: it is forwarded unchanged, with the worker's
// domain.
package rpcstatus
