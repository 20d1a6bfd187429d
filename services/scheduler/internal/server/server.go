package server

import (
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
)

// Fleet is what the handlers read.
type Fleet interface {
	// Snapshot is the newest.
	Snapshot() *fleet.Snapshot
	// Members are as of now, heartbeats included.
	Members() []fleet.Member
}

// Server holds the handlers. Safe for concurrent use.
type Server struct {
	pb.UnimplementedModelServiceServer
	pb.UnimplementedFleetServiceServer

	fleet  Fleet
	relay  *relay.Relay
	loader *loading.Loader
}

// New makes the handlers. They close nothing.
func New(f Fleet, r *relay.Relay, l *loading.Loader) *Server {
	return &Server{fleet: f, relay: r, loader: l}
}

// Register puts the services on a server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	s.registerInference(r)
	pb.RegisterModelServiceServer(r, s)
	pb.RegisterFleetServiceServer(r, s)
}
