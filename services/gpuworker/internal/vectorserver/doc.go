// Package vectorserver serves a worker's codebooks and trainings over gRPC: VectorService.
//
// New makes a Server over a vectors.Manager; server.Server takes it as its Extension, which puts it
// on the worker's rpc.Server and its part into the worker's reports. Requests are checked
// completely before they reach the manager; its errors become statuses in one table, status.go.
//
//	TrainCodebook: inbox (one message ahead) -> trainingCall -> vectors.Training
//	               mailer (16 messages)      <- trainingEvents <-
//
// An inbox bounds how long a caller may be silent, and a mailer how long it may not read, because a
// training holds device memory that others could use. The package does not know how anything is
// computed.
package vectorserver
