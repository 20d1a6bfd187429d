// Package server serves a worker's models over gRPC: InferenceService, ModelService and
// WorkerService.
//
// New makes a Server over a model.Manager, Register puts it on an rpc.Server, and Run publishes the
// worker's state until its context ends:
//
//	       Run, once a pulse                                 Health, one subscriber a scheduler
//	models, device, drain -> health.Assess -> report -> snapshot -> full report, deltas, heartbeats
//	                              |                |
//	                      readiness, /readyz    load reports of balancers
//
// Requests are checked whole before they reach a model. Errors of the library become statuses in
// one table, status.go. How anything is computed is the library's business.
package server
