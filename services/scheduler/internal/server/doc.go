// Package server is the scheduler's face: InferenceService, ModelService and FleetService over a fleet.
//
// New takes a fleet and a relay; Register puts the services on a server; Close waits for loads that go on after their
// callers left. A handler checks what it needs to route, asks route or place, and passes on what workers say; statuses
// come from package fault.
//
// It tokenises nothing, keeps no state between calls, and knows no engine.
package server
