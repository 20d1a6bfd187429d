package vectors

import (
	"context"
	"errors"
	"io"
	"math"
	"math/bits"
	"math/rand/v2"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// both is the shape of a training's stream.
var both = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// training is one call of TrainCodebook.
type training struct {
	*Vectors
	ctx     context.Context
	down    grpc.ServerStream
	config  rpc.Frame // kept until a worker has accepted it
	request route.TrainingRequest

	trailer    metadata.MD
	finished   bool
	checkpoint uint64 // iteration of the last whole one
	has        bool   // whether there is one
}

// Train serves a call of TrainCodebook. The error is a status.
func (v *Vectors) Train(stream grpc.ServerStream) error {
	release, err := v.admit(streamBytes)
	if err != nil {
		return err
	}
	defer release()
	t := &training{Vectors: v, ctx: stream.Context(), down: rpc.Bare(stream)}
	if err := receive(t.down, &t.config); err != nil {
		if errors.Is(err, io.EOF) {
			return noConfig()
		}
		return err
	}
	defer t.config.Free()
	raw := t.config.Data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	in := &pb.TrainCodebookRequest{}
	if err := rpc.Decode(raw.ReadOnlyData(), in, fault.Domain); err != nil {
		return err
	}
	if in.GetConfig() == nil {
		return noConfig()
	}
	t.request = needs(in.GetConfig())
	err = t.run()
	t.down.SetTrailer(t.trailer)
	return err
}

func noConfig() error {
	return fault.Invalid("the training has no config: it is the first message",
		rpc.Violation{Field: "config", Description: "is missing: it is the first message"})
}

// needs is the least that a training takes: its rows, and a 64-bit sum for each value of the codebook. Whatever is out of range is for
// a worker to refuse.
func needs(c *pb.TrainingConfig) route.TrainingRequest {
	sizes := map[pb.ElementType]uint64{
		pb.ElementType_ELEMENT_TYPE_F32: 4, pb.ElementType_ELEMENT_TYPE_F16: 2, pb.ElementType_ELEMENT_TYPE_BF16: 2,
		pb.ElementType_ELEMENT_TYPE_U8: 1, pb.ElementType_ELEMENT_TYPE_I8: 1,
	}
	codewords, dimension, rows := uint64(c.GetCodewords()), uint64(c.GetDimension()), c.GetRows()
	if c.MaxRowsPerCodeword != nil {
		rows = min(rows, times(c.GetMaxRowsPerCodeword(), codewords))
	}
	return route.TrainingRequest{
		Rows: times(rows, dimension*sizes[c.GetElementType()]), Rest: times(codewords*dimension, 8), Tie: rand.Uint64(),
	}
}

// times is a product, at most the largest number.
func times(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high > 0 {
		return math.MaxUint64
	}
	return low
}

// run offers the training to workers until one accepts it, and stays with that one. Of the caller's messages only the config is read
// before.
func (t *training) run() error {
	var last error // what the last worker said
	for lost := 0; ; {
		s := t.fleet.Snapshot()
		i, err := route.PickTraining(&s.Route, t.request)
		if err != nil {
			if last != nil {
				return last
			}
			return fault.Status(err)
		}
		w := &s.Route.Workers[i]
		if !w.Load.Vectors.Train(w.Vectors.MaxTrainings) {
			continue // others took the place meanwhile
		}
		if !s.Members[i].Link.Acquire() {
			w.Load.Vectors.Trained()
			t.request.Exclude = append(t.request.Exclude, w.ID)
			continue
		}
		accepted, err := t.on(s.Members[i].Link, w.ID)
		s.Members[i].Link.Release()
		w.Load.Vectors.Trained()
		of := blameOf(err)
		if of == either {
			lost++
		}
		if accepted || err == nil || t.ctx.Err() != nil || of == request || lost == maxLost {
			return err
		}
		last = err
		t.request.Exclude = append(t.request.Exclude, w.ID)
	}
}

// on trains on one worker; accepted: it has taken the training, and the error is its end.
func (t *training) on(link *fleet.Link, id string) (accepted bool, err error) {
	lost := link.Lost()
	up, cancel := reach(t.ctx, link)
	defer cancel(nil)
	rpc.Annotate(t.ctx, "worker", id)
	t.trailer = nil
	stream, err := link.Conn().NewStream(up, both, pb.VectorService_TrainCodebook_FullMethodName, t.codec)
	if err != nil {
		return false, ended(t.ctx, lost, id, err)
	}
	t.config.Data.Ref()
	// A failed send means that the stream has ended; its status comes with the receive.
	if err := stream.SendMsg(&rpc.Frame{Data: t.config.Data}); err != nil && !errors.Is(err, io.EOF) {
		return false, ended(t.ctx, lost, id, err)
	}
	var frame rpc.Frame
	for {
		if err := stream.RecvMsg(&frame); err != nil {
			t.trailer = relay.Returned(stream.Trailer())
			return accepted, t.ended(up, lost, id, accepted, err)
		}
		link.Heard()
		if !accepted {
			accepted = true
			if err := t.begin(stream); err != nil {
				frame.Free()
				return true, err
			}
			go t.pump(stream, cancel)
		}
		t.note(&frame)
		if err := t.down.SendMsg(&frame); err != nil {
			frame.Free()
			return true, err
		}
	}
}

// begin lets go of what no other worker will be asked, and passes the worker's headers on.
func (t *training) begin(stream grpc.ClientStream) error {
	header, err := stream.Header()
	if err != nil {
		return err
	}
	if header = relay.Returned(header); header != nil {
		return t.down.SetHeader(header)
	}
	return nil
}

// note reads what the end may need.
func (t *training) note(frame *rpc.Frame) {
	e := eventOf(frame.Data)
	t.finished = t.finished || e.finished
	if e.whole {
		t.checkpoint, t.has = e.iteration, true
	}
}

// pump passes the caller's messages on, one at a time: a worker that does not read holds the caller back. It ends with the call.
func (t *training) pump(stream grpc.ClientStream, cancel context.CancelCauseFunc) {
	var frame rpc.Frame
	for {
		err := receive(t.down, &frame)
		switch {
		case errors.Is(err, io.EOF):
			_ = stream.CloseSend() // never fails
			return
		case err != nil:
			cancel(err) // the caller is gone, or what it sent is refused here
			return
		}
		if err := stream.SendMsg(&frame); err != nil {
			frame.Free()
			return // the worker has ended the stream, and says why to who receives
		}
	}
}

// ended is how a training ended whose stream did. Behind `finished` a status is about what was to be done with the codebook, which has
// come whole.
func (t *training) ended(up, lost context.Context, id string, accepted bool, err error) error {
	if errors.Is(err, io.EOF) {
		if t.finished {
			return nil
		}
		err = errors.New("it ended the training before it had finished")
	}
	if own := context.Cause(up); rpc.Domain(own) == fault.Domain && t.ctx.Err() == nil {
		return own
	}
	out := ended(t.ctx, lost, id, err)
	if _, known := blames[rpc.Reason(out)]; accepted && !t.finished && known && rpc.Domain(out) == fault.Domain {
		cause := err
		if lost.Err() != nil {
			cause = context.Cause(lost)
		}
		return fault.LostTraining(id, t.checkpoint, t.has, cause)
	}
	return out
}
