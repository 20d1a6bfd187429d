package failure

import (
	"fmt"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// CallError is a failed call with the facts about its request that Explain uses.
type CallError struct {
	Err   error
	Model string
	Usage *pb.Usage // nil if the server sent none
}

func (e *CallError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the call.
func (e *CallError) Unwrap() error { return e.Err }

// OfCall adds the model, or codebook, and the trailer of its call to an error; nil stays nil.
func OfCall(err error, model string, trailer metadata.MD) error {
	if err == nil {
		return nil
	}
	call := &CallError{Err: err, Model: model}
	if raw := trailer.Get(rpc.UsageTrailer); len(raw) > 0 {
		usage := &pb.Usage{}
		if proto.Unmarshal([]byte(raw[0]), usage) == nil {
			call.Usage = usage
		}
	}
	return call
}

// Usagef is an error of the command line.
func Usagef(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUsage, fmt.Errorf(format, args...))
}
