package server

import (
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
)

// Fleet provides the state of the workers.
type Fleet interface {
	// Snapshot returns the newest snapshot.
	Snapshot() *fleet.Snapshot
	// Members returns the members as of now, with numbers that are newer than the snapshot's.
	Members() []fleet.Member
}

// Server implements the services. It is safe for concurrent use.
type Server struct {
	pb.UnimplementedModelServiceServer
	pb.UnimplementedFleetServiceServer

	fleet  Fleet
	relay  *relay.Relay
	loader *loading.Loader
	others func(*fleet.Member) int64
}

// New returns a server that owns none of its arguments. others returns how many calls of this
// process a member serves in addition to those of the relay.
func New(f Fleet, r *relay.Relay, l *loading.Loader, others func(*fleet.Member) int64) *Server {
	return &Server{fleet: f, relay: r, loader: l, others: others}
}

// Register puts the services on a server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	s.registerInference(r)
	pb.RegisterModelServiceServer(r, s)
	pb.RegisterFleetServiceServer(r, s)
}
