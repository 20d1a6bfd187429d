package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Limits of the continuation of streams whose server is lost.
const (
	// maxResumes bounds the attempts that bring no token. The waits between them grow from
	// resumeWait to maxResumeWait: about 20 s together, in which a scheduler restarts.
	maxResumes    = 14
	resumeWait    = 50 * time.Millisecond
	maxResumeWait = 2 * time.Second
	// maxKeptBytes bounds the requests that are kept for this, of all streams together. A stream
	// whose request has no room is not continued.
	maxKeptBytes = 256 << 20
)

// received has the events that a generation has sent so far. Another server needs no more to continue
// it.
type received struct {
	request *pb.GenerateRequest // nil: the stream cannot be continued
	bytes   int64               // of the request, as Client.kept counts them
	started *pb.Started
	prompt  int // tokens of the prompt whose events came
	outputs []*pb.Resume
	fresh   bool // a token came since the last attempt to continue
	tries   int
}

// keep begins to record a generation.
func (c *Client) keep(in *pb.GenerateRequest) received {
	r := received{bytes: int64(proto.Size(in))}
	if c.kept.Add(r.bytes) > maxKeptBytes {
		c.kept.Add(-r.bytes)
		return received{}
	}
	r.request = in
	for i := range max(1, in.GetSampling().GetNumSequences()) {
		r.outputs = append(r.outputs, &pb.Resume{OutputIndex: uint32(i), TextBytes: new(uint64)})
	}
	return r
}

// add records an event. It returns an error if events are missing before it.
func (r *received) add(event *pb.GenerateResponse) error {
	if r.request == nil {
		return nil
	}
	switch e := event.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		r.started = e.Started
	case *pb.GenerateResponse_Prompt:
		r.prompt = int(e.Prompt.GetTokenIndex()) + max(len(e.Prompt.GetTokenIds()), len(e.Prompt.GetDetails()))
	case *pb.GenerateResponse_Tokens:
		i := int(e.Tokens.GetOutputIndex())
		if i >= len(r.outputs) || len(r.outputs[i].GetTokenIds()) != int(e.Tokens.GetTokenIndex()) {
			return fmt.Errorf("the server sent token %d of output %d out of order", e.Tokens.GetTokenIndex(), i)
		}
		o := r.outputs[i]
		o.TokenIds = append(o.TokenIds, e.Tokens.GetTokenIds()...)
		*o.TextBytes += uint64(len(e.Tokens.GetText()))
		r.fresh = true
	case *pb.GenerateResponse_Finished:
		if i := int(e.Finished.GetOutputIndex()); i < len(r.outputs) {
			r.outputs[i].Finished = true
		}
	}
	return nil
}

// complete reports whether every output has ended.
func (r *received) complete() bool {
	for _, o := range r.outputs {
		if !o.GetFinished() {
			return false
		}
	}
	return true
}

// continuation returns the request that continues the stream at another server, or nil if none can:
// it sends nothing of the prompt again.
func (r *received) continuation() *pb.GenerateRequest {
	in := r.request
	if in == nil || r.started == nil {
		return nil
	}
	asked := in.GetResponse().GetEchoPrompt() || in.GetResponse() != nil && in.GetResponse().PromptLogprobs != nil
	if asked && r.prompt < int(r.started.GetPromptTokens()) {
		return nil
	}
	next := proto.CloneOf(in)
	next.Resume = r.outputs
	if next.Sampling == nil {
		next.Sampling = &pb.Sampling{}
	}
	next.Sampling.Seed = proto.Uint64(r.started.GetSeed())
	next.ExpectModelDigest, next.ExpectPromptDigest = &r.started.ModelDigest, &r.started.PromptDigest
	next.ExpectClassId = &r.started.ClassId
	if r.started.MaxTokens != nil { // so that another context does not change the length
		next.ContextLength = proto.Uint32(r.started.GetPromptTokens() + r.started.GetMaxTokens())
	}
	return next
}

// resume continues the stream at a server after err, the error with which it ended. It returns the
// error of a stream that cannot be continued.
func (g *Generation) resume(err error) error {
	for serverLost(err) {
		if g.got.request != nil && g.got.complete() {
			return io.EOF // only the end of the call was lost
		}
		next := g.got.continuation()
		if next == nil || !g.got.wait(g.ctx) {
			return err
		}
		g.stream, err = g.client.infer.Generate(g.ctx, next)
		var first *pb.GenerateResponse
		if err == nil {
			first, err = g.stream.Recv()
		}
		if err != nil {
			continue
		}
		if s := first.GetStarted(); s == nil || s.Exact != nil { // the continued stream's own start says nothing new
			g.first = first
		}
		return nil
	}
	return err
}

// wait waits before an attempt to continue. It returns false if there were too many, or ctx ends.
func (r *received) wait(ctx context.Context) bool {
	if r.fresh {
		r.fresh, r.tries = false, 0
	}
	if r.tries++; r.tries > maxResumes {
		return false
	}
	timer := time.NewTimer(min(resumeWait<<(r.tries-1), maxResumeWait))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// serverLost reports whether a call failed because its server went away or is leaving, so that
// another one may continue it. A scheduler that reports WORKER_LOST has waited for another worker.
func serverLost(err error) bool {
	if errors.Is(err, io.EOF) {
		return false
	}
	switch rpc.Reason(err) {
	case "", reason.Stopping, reason.WorkerStopping, reason.WorkerDraining, reason.FleetUnknown:
		return status.Code(err) == codes.Unavailable
	}
	return false
}
