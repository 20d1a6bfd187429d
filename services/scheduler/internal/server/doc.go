// Package server implements the scheduler's services: InferenceService, ModelService and
// FleetService over a fleet.
//
// New takes a fleet, a relay and a loader; Register registers the services on a gRPC server. A
// handler checks the fields of a request that the scheduler itself uses, passes it to the relay,
// the loader or a worker, and forwards their answers. Statuses come from package rpcstatus.
//
// The package tokenizes nothing and keeps no state between calls.
package server
