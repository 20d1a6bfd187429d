package server

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
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
	logger hclog.Logger

	loads    context.Context // ends with Close
	cancel   context.CancelFunc
	wait     sync.WaitGroup
	loading  chan struct{} // holds one token for each LoadModel under way
	loadTime time.Duration // how long one is followed
}

const (
	// maxLoads bounds the LoadModels under way: they outlive their callers, who may come again.
	maxLoads = 64
	// maxLoadTime is how long a LoadModel is followed at the workers, with its caller or without. It is far above what the
	// largest model takes from a slow disk; a load that is still under way then goes on at its worker.
	maxLoadTime = 2 * time.Hour
)

// New makes the handlers. Close them.
func New(f Fleet, r *relay.Relay, logger hclog.Logger) *Server {
	s := &Server{
		fleet: f, relay: r, logger: logger.Named("server"), loading: make(chan struct{}, maxLoads), loadTime: maxLoadTime,
	}
	s.loads, s.cancel = context.WithCancel(context.Background())
	return s
}

// Register puts the services on a server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	s.registerInference(r)
	pb.RegisterModelServiceServer(r, s)
	pb.RegisterFleetServiceServer(r, s)
}

// Close lets go of loads under way, which their workers finish, and waits for their goroutines.
func (s *Server) Close() {
	s.cancel()
	s.wait.Wait()
}
