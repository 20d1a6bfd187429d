package proctest

import (
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/transport"
)

// modeKey is set while a test binary acts as a program.
const modeKey = "MILLRACE_PROCTEST"

// Modes of the programs.
const (
	Knowing  = "knowing"  // a scheduler sends each prompt to the worker with its longest prefix
	Ignorant = "ignorant" // a scheduler uses the workers in turn
	Failing  = "failing"  // every other call fails
)

// Use sets the mode of this test's programs and returns their path.
func Use(t *testing.T, mode string) string {
	t.Helper()
	t.Setenv(modeKey, mode)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

// serve listens at the address of --listen until SIGTERM: as a scheduler if there is --workers,
// else as a worker.
func serve(args []string, mode string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	value := func(flag string) string {
		if i := slices.Index(args, flag); i >= 0 {
			return args[i+1]
		}
		return ""
	}
	lis, err := rpc.Listen(ctx, value("--listen"))
	if err != nil {
		return err
	}
	cfg := rpc.ServerConfig{Domain: rpc.WorkerDomain, DrainTimeout: time.Second}
	secure := transport.Flags{
		Cert: value("--tls-cert"), Key: value("--tls-key"), ClientCA: value("--tls-client-ca"), ClientSANs: list(value("--tls-client-san")),
		CA: value("--tls-ca"), ServerSANs: list(value("--tls-server-san")),
	}
	if err := secure.Serve(&cfg, hclog.NewNullLogger()); err != nil {
		return err
	}
	creds, err := secure.Dialer(hclog.NewNullLogger())
	if err != nil {
		return err
	}
	if address := value("--metrics-listen"); address != "" {
		page, err := rpc.Listen(ctx, address)
		if err != nil {
			return err
		}
		pages := &http.Server{Handler: http.HandlerFunc(metrics), ReadHeaderTimeout: time.Minute}
		go func() { _ = pages.Serve(page) }() // it ends when it is closed
		defer func() { _ = pages.Close() }()  // nothing is left to be lost
	}
	s := rpc.NewServer(cfg, hclog.NewNullLogger())
	pb.RegisterModelServiceServer(s, models{})
	workers := value("--workers")
	if workers == "" {
		pb.RegisterInferenceServiceServer(s, &worker{mode: mode, cached: map[[sha256.Size]byte]bool{}})
		return s.Serve(ctx, lis)
	}
	fake := &scheduler{mode: mode}
	defer fake.hangUp()
	for address := range strings.SplitSeq(workers, ",") {
		conn, err := rpc.Dial(address, "proctest", grpc.WithTransportCredentials(creds))
		if err != nil {
			return err
		}
		fake.workers = append(fake.workers, conn)
	}
	pb.RegisterInferenceServiceServer(s, fake)
	pb.RegisterFleetServiceServer(s, fake)
	return s.Serve(ctx, lis)
}

// list is the texts of a flag that has several.
func list(value string) []string {
	if value == "" {
		return nil
	}
	return strings.Split(value, ",")
}

// metrics serves a page with the one metric that every server has.
func metrics(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "grpc_server_started_total 1\n") // the client may have closed the connection
}

// models reports one loaded model.
type models struct {
	pb.UnimplementedModelServiceServer
}

func (models) LoadModel(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
	return stream.Send(&pb.LoadModelResponse{Event: &pb.LoadModelResponse_Result{Result: &pb.LoadResult{}}})
}

func (models) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	return &pb.ListModelsResponse{Models: []*pb.ModelInfo{{Name: "bench", State: pb.ModelState_MODEL_STATE_READY}}}, nil
}
