package load

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// ErrModel says that the server has no such model in service, or more than one to choose from.
var ErrModel = errors.New("no model to measure")

// Target is what must be known of a model to ask for it.
type Target struct {
	Model      string
	Vocabulary int
	Context    int // longest sequence in tokens
	Tokenizer  bool
	Sequences  int // at once, on each of its workers
}

// LoadModel has a server load a model, and waits until it is loaded.
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

// FindTarget asks a server for the model of that name, or for its only one when the name is empty. It must be loaded.
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
