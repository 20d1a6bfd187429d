package server

import (
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/fleet"
)

// LimitLoads sets how many loads may be under way and how long one is followed, before the first.
func (s *Server) LimitLoads(most int, time time.Duration) {
	s.loading, s.loadTime = make(chan struct{}, most), time
}

// Fingerprint is what WatchFleet compares.
func Fingerprint(members []fleet.Member) string { return fingerprint(members) }
