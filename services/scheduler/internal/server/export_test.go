package server

import "github.com/millrace/millrace/services/scheduler/internal/fleet"

// Fingerprint is what WatchFleet compares.
func Fingerprint(members []fleet.Member) string { return fingerprint(members) }

// Ended is ended.
var Ended = ended
