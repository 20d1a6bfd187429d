package server

import "github.com/millrace/millrace/services/scheduler/internal/fleet"

// Fingerprint exports Server.fingerprint.
func Fingerprint(members []fleet.Member) string {
	s := &Server{others: func(*fleet.Member) int64 { return 0 }}
	return s.fingerprint(members)
}

// FinishedOutputs exports finishedOutputs.
var FinishedOutputs = finishedOutputs
