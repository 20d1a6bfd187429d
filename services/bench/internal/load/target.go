package load

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// ErrModel is returned if the server does not have the model loaded, or has several to choose from.
var ErrModel = errors.New("no model to measure")

// Target is the facts of a loaded model that a client needs.
type Target struct {
	Model      string
	Vocabulary int
	Context    int // longest sequence in tokens
	Tokenizer  bool
	Chat       bool // has a chat template
	Sequences  int  // running at once on each of its workers
}

// LoadModel loads a model on a server and returns when it is loaded.
func LoadModel(ctx context.Context, conn grpc.ClientConnInterface, in *pb.LoadModelRequest) error {
	stream, err := pb.NewModelServiceClient(conn).LoadModel(ctx, in)
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// FindTarget returns the loaded model of a name. If the name is empty, it returns the only loaded
// model.
func FindTarget(ctx context.Context, conn grpc.ClientConnInterface, name string) (Target, error) {
	list, err := pb.NewModelServiceClient(conn).ListModels(ctx, &pb.ListModelsRequest{})
	if err != nil {
		return Target{}, err
	}
	var ready []Target
	for _, m := range list.GetModels() {
		if m.GetState() != pb.ModelState_MODEL_STATE_READY || name != "" && m.GetName() != name {
			continue
		}
		ready = append(ready, Target{
			Model: m.GetName(), Vocabulary: int(m.GetCapabilities().GetVocabulary()),
			Context: int(m.GetLoaded().GetContextLength()), Tokenizer: m.GetCapabilities().GetTokenizer(),
			Chat:      m.GetCapabilities().GetChatTemplate(),
			Sequences: int(m.GetLoaded().GetMaxSequences()),
		})
	}
	switch {
	case len(ready) == 1:
		return ready[0], nil
	case len(ready) > 1:
		return Target{}, fmt.Errorf("%w: %d models are loaded: choose one with --model", ErrModel, len(ready))
	case name != "":
		return Target{}, fmt.Errorf("%w: %q is not loaded: `millrace load %s` first", ErrModel, name, name)
	default:
		return Target{}, fmt.Errorf("%w: none is loaded: `millrace load NAME` first", ErrModel)
	}
}

// Dial returns n connections to one server, which connect on first use. hangUp closes all.
func Dial(target string, n int, options ...grpc.DialOption) (conns []grpc.ClientConnInterface, hangUp func(), err error) {
	closers := make([]*grpc.ClientConn, 0, n)
	hangUp = func() {
		for _, conn := range closers {
			_ = conn.Close() // no call is running
		}
	}
	for range n {
		conn, err := rpc.Dial(target, "millrace-bench", options...)
		if err != nil {
			hangUp()
			return nil, nil, err
		}
		closers = append(closers, conn)
		conns = append(conns, conn)
	}
	return conns, hangUp, nil
}
