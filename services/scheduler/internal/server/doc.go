// Package server is the scheduler's face: InferenceService, ModelService, FleetService and VectorService over a fleet.
//
// New takes a fleet, a relay and a loader; Register puts the services on a server. A handler checks what the scheduler itself
// needs of a request, gives it to the relay, the loader, package vectors or a worker, and passes on what workers say; statuses come from package
// fault.
//
// It tokenises nothing, keeps no state between calls, and knows no engine.
package server
