// Package server serves a worker's models over gRPC: InferenceService, ModelService, VectorService and
// WorkerService.
//
// New makes a Server over a model.Manager, Register puts it on an rpc.Server, Run keeps health current until its
// context ends. Requests are checked whole before they reach a model; errors of the core become statuses in one table,
// status.go. It refuses to know how anything is computed.
package server
