package receivebench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/simfleet"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/rpc"
)

// kind is what a large request is full of.
type kind string

const (
	text kind = "text"      // random words
	ids  kind = "token ids" // of one byte each, which take four decoded
)

// request makes a request of so many bytes on the wire.
func (k kind) request(bytes int) ([]byte, error) {
	answer := int32(1)
	in := &pb.GenerateRequest{Model: simfleet.Model, Stopping: &pb.Stopping{MaxTokens: &answer}}
	// What a prompt of that length is beyond its own bytes is found out by making one.
	for room := bytes - proto.Size(in); room > 0; {
		if k == ids {
			in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: make([]uint32, room)}}
		} else {
			in.Input = &pb.GenerateRequest_Prompt{Prompt: words(room)}
		}
		over := proto.Size(in) - bytes
		if over <= 0 {
			return proto.Marshal(in)
		}
		room -= over
	}
	return nil, fmt.Errorf("a request of %d bytes has no room for a prompt", bytes)
}

// words are random lower-case words of n bytes together.
func words(n int) string {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	all := make([]byte, n)
	for i := range all {
		all[i] = byte('a' + r.IntN(26))
		if r.IntN(6) == 0 {
			all[i] = ' '
		}
	}
	return string(all)
}

// errNoStatus: the time is up.
var errNoStatus = errors.New("no status came in time")

// send makes a call of a request and waits for its status, for so long.
func send(ctx context.Context, conn grpc.ClientConnInterface, raw []byte, within time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, errNoStatus)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, pb.InferenceService_Generate_FullMethodName,
		grpc.ForceCodecV2(rpc.FrameCodec()))
	if err == nil {
		err = stream.SendMsg(&rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(raw)}})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil || errors.Is(err, io.EOF) && stream != nil { // what sending met, receiving tells
		var f rpc.Frame
		if err = stream.RecvMsg(&f); errors.Is(err, io.EOF) {
			return nil
		}
		f.Free()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// endOf names how a call ended.
func endOf(err error) string {
	if err == nil {
		return codes.OK.String()
	}
	if errors.Is(err, errNoStatus) {
		return errNoStatus.Error()
	}
	if reason := rpc.Reason(err); reason != "" {
		return status.Code(err).String() + " " + reason
	}
	return fmt.Sprintf("%s %q", status.Code(err), status.Convert(err).Message())
}

// small are small requests of another tenant, one after another.
type small struct {
	conn   grpc.ClientConnInterface
	took   stats.Histogram
	failed int
	first  string // failure
}

// run makes them until ctx ends, and one at least.
func (s *small) run(ctx context.Context) {
	maker := load.Maker{Model: simfleet.Model, Vocabulary: 250, IDsOnly: true, Tenant: "small"}
	for i := uint64(0); i == 0 || ctx.Err() == nil; i++ {
		// A call under way when ctx ends goes on to its end.
		o := load.Call(context.WithoutCancel(ctx), s.conn, maker.Request(i, load.Size{Prompt: 16, Output: 1}), time.Now(), 0, load.Observer{}, nil)
		if o.Code != codes.OK {
			if s.failed++; s.first == "" {
				s.first = fmt.Sprintf("%s %s: %s", o.Code, o.Reason, o.Message)
			}
			continue
		}
		s.took.Add(o.Total)
	}
}
