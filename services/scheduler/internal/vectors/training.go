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
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// trainStream describes TrainCodebook's stream to a worker.
var trainStream = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// training is one call of TrainCodebook.
type training struct {
	*Vectors
	ctx     context.Context
	down    grpc.ServerStream
	config  rpc.Frame // kept until a worker has accepted the training
	request trainingRequest

	trailer    metadata.MD
	finished   bool
	checkpoint uint64 // iteration of the last complete checkpoint
	has        bool   // whether there is one
}

// Train serves a call of TrainCodebook. The error is a status.
func (v *Vectors) Train(stream grpc.ServerStream) error {
	release, err := v.admit(streamBytes)
	if err != nil {
		return err
	}
	defer release()
	t := &training{Vectors: v, ctx: stream.Context(), down: rpc.RawStream(stream)}
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
	if err := rpc.Decode(raw.ReadOnlyData(), in, rpcstatus.Domain); err != nil {
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
	return rpcstatus.Invalid("the training has no config: it is the first message",
		rpc.Violation{Field: "config", Description: "is missing: it is the first message"})
}

// needs returns a lower bound of the memory that a training needs: its rows, and a 64-bit sum for
// each value of the codebook. A config that is out of range is left to the worker to refuse.
func needs(c *pb.TrainingConfig) trainingRequest {
	sizes := map[pb.ElementType]uint64{
		pb.ElementType_ELEMENT_TYPE_F32: 4, pb.ElementType_ELEMENT_TYPE_F16: 2, pb.ElementType_ELEMENT_TYPE_BF16: 2,
		pb.ElementType_ELEMENT_TYPE_U8: 1, pb.ElementType_ELEMENT_TYPE_I8: 1,
	}
	codewords, dimension, rows := uint64(c.GetCodewords()), uint64(c.GetDimension()), c.GetRows()
	if c.MaxRowsPerCodeword != nil {
		rows = min(rows, times(c.GetMaxRowsPerCodeword(), codewords))
	}
	return trainingRequest{
		rows: times(rows, dimension*sizes[c.GetElementType()]), rest: times(codewords*dimension, 8), tie: rand.Uint64(),
	}
}

// times returns a * b, or the largest number if that overflows.
func times(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high > 0 {
		return math.MaxUint64
	}
	return low
}

// run offers the training to workers until one accepts it. Until then only the config is read of
// the caller's messages, because another worker may need to get it.
func (t *training) run() error {
	var last error // of the last worker
	for lost := 0; ; {
		x := t.index()
		i, err := pickTraining(x, t.request)
		if err != nil {
			if last != nil {
				return last
			}
			return statusOf(err)
		}
		w, link := &x.workers[i], x.snapshot.Members[i].Link
		if !w.load.trainings.begin(w.maxTrainings()) {
			continue // another training took the slot since the pick
		}
		if !link.Acquire() {
			w.load.trainings.end()
			t.request.exclude = append(t.request.exclude, w.ID)
			continue
		}
		accepted, err := t.trainOn(link, w.ID)
		link.Release()
		w.load.trainings.end()
		scope := scopeOf(err)
		if scope == scopeEither {
			lost++
		}
		if accepted || err == nil || t.ctx.Err() != nil || scope == scopeRequest || lost == maxLost {
			return err
		}
		last = err
		t.request.exclude = append(t.request.exclude, w.ID)
	}
}

// trainOn runs the training on one worker. accepted reports whether the worker accepted it; the
// error is then how it ended.
func (t *training) trainOn(link *fleet.Link, id string) (accepted bool, err error) {
	lost := link.Lost()
	up, cancel := reach(t.ctx, link)
	defer cancel(nil)
	rpc.Annotate(t.ctx, "worker", id)
	t.trailer = nil
	stream, err := link.Conn().NewStream(up, trainStream, pb.VectorService_TrainCodebook_FullMethodName, t.codec)
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
			if err := t.passHeader(stream); err != nil {
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

// passHeader sends the worker's headers to the caller.
func (t *training) passHeader(stream grpc.ClientStream) error {
	header, err := stream.Header()
	if err != nil {
		return err
	}
	if header = relay.Returned(header); header != nil {
		return t.down.SetHeader(header)
	}
	return nil
}

// note records the facts that the end of the training may need.
func (t *training) note(frame *rpc.Frame) {
	e := eventOf(frame.Data)
	t.finished = t.finished || e.finished
	if e.whole {
		t.checkpoint, t.has = e.iteration, true
	}
}

// pump sends the caller's messages to the worker, one at a time, so that a worker that does not
// read slows the caller down. It ends with the call.
func (t *training) pump(stream grpc.ClientStream, cancel context.CancelCauseFunc) {
	var frame rpc.Frame
	for {
		err := receive(t.down, &frame)
		switch {
		case errors.Is(err, io.EOF):
			_ = stream.CloseSend() // never fails
			return
		case err != nil:
			cancel(err) // the caller is gone, or this scheduler refuses its message
			return
		}
		if err := stream.SendMsg(&frame); err != nil {
			frame.Free()
			return // the worker has ended the stream; the receiver gets its status
		}
	}
}

// ended returns how a training ended whose stream ended. After `finished` the codebook is complete;
// a status then says that the worker could not save it.
func (t *training) ended(up, lost context.Context, id string, accepted bool, err error) error {
	if errors.Is(err, io.EOF) {
		if t.finished {
			return nil
		}
		err = errors.New("it ended the training before it had finished")
	}
	if cause := context.Cause(up); rpc.Domain(cause) == rpcstatus.Domain && t.ctx.Err() == nil {
		return cause
	}
	out := ended(t.ctx, lost, id, err)
	if _, known := scopesOfReasons[rpc.Reason(out)]; accepted && !t.finished && known && rpc.Domain(out) == rpcstatus.Domain {
		cause := err
		if lost.Err() != nil {
			cause = context.Cause(lost)
		}
		return lostTraining(id, t.checkpoint, t.has, cause)
	}
	return out
}
