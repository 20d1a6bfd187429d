package vectors

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// uploadStream describes PutCodebook's stream to a worker.
var uploadStream = &grpc.StreamDesc{ClientStreams: true}

// upload is a codebook on its way to one worker.
type upload struct {
	id     string
	had    bool // the worker has a codebook of that name
	stream grpc.ClientStream
	over   chan struct{} // closed when the worker has answered
	copies []*pb.CodebookCopy
	err    error // a status; set, like copies, before over is closed
	closed bool  // nothing more is sent
}

// Put serves a call of PutCodebook. It sends each message to all workers before it reads the next
// one, so that the slowest worker sets the pace and one message is held. Workers that have the name
// get the end of the stream first: if one of them refuses to replace its codebook, no other has
// written anything. The error is a status.
//
//	caller --message--> pour --reference--> upload 1 -> worker 1
//	                         \-reference--> upload 2 -> worker 2
func (v *Vectors) Put(down grpc.ServerStream) error {
	release, err := v.admit(streamBytes)
	if err != nil {
		return err
	}
	defer release()
	header, err := headerOf(down)
	if err != nil {
		return err
	}
	ctx := down.Context()
	rpc.Annotate(ctx, "codebook", header.GetCodebook())
	n, err := replicasOf("header.replicas", header.Replicas)
	if err != nil {
		return err
	}
	members, err := v.targets(header, n)
	if err != nil {
		return statusOf(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends every stream
	first := proto.CloneOf(header)
	first.Replicas = nil
	var all []*upload
	var receivers sync.WaitGroup
	for i := range members {
		c := v.open(ctx, &members[i], first, &receivers)
		all = append(all, c)
	}
	err = pour(rpc.RawStream(down), all)
	if err == nil {
		err = finish(all)
	}
	if err != nil {
		cancel()
		receivers.Wait()
		return err
	}
	var sum copies
	for _, c := range all {
		sum.add(c.id, c.copies, c.err)
	}
	v.awaitReady(ctx, header.GetCodebook(), sum.done) // also if some refuse: the status names the workers that have it
	done, err := outcome(header.GetCodebook(), n, sum.done, sum.failures)
	if err != nil {
		return err
	}
	return down.SendMsg(&pb.PutCodebookResponse{Copies: done})
}

// headerOf receives the header, the first message of a call.
func headerOf(down grpc.ServerStream) (*pb.PutCodebookHeader, error) {
	none := rpcstatus.Invalid("the call has no header: it is the first message",
		rpc.Violation{Field: "header", Description: "is missing: it is the first message"})
	var frame rpc.Frame
	if err := receive(rpc.RawStream(down), &frame); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, none
		}
		return nil, err
	}
	defer frame.Free()
	raw := frame.Data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	in := &pb.PutCodebookRequest{}
	if err := rpc.Decode(raw.ReadOnlyData(), in, rpcstatus.Domain); err != nil {
		return nil, err
	}
	if in.GetHeader() == nil {
		return nil, none
	}
	return in.GetHeader(), checkName("header.codebook", in.GetHeader().GetCodebook())
}

// targets returns the members that get the codebook: as many as wanted that accept requests, and
// all that have another codebook of the name. That includes draining ones, because they would serve
// the other codebook once they are undrained.
func (v *Vectors) targets(h *pb.PutCodebookHeader, n int) ([]fleet.Member, error) {
	members, err := v.able()
	if err != nil {
		return nil, err
	}
	drain := v.draining(h.GetCodebook(), h.GetExpectCodebookDigest())
	if want := h.GetExpectCodebookDigest(); want != "" && !h.GetReplace() {
		for _, m := range slices.Concat(members, drain) {
			if has := codebookOn(m.Report, h.GetCodebook()).GetCodebookDigest(); has != "" && has != want {
				return nil, codebookExists(h.GetCodebook(), m.Report.GetWorkerId(), has)
			}
		}
	}
	members, err = putTargets(members, h.GetCodebook(), h.GetShape(), n)
	return append(members, drain...), err
}

// open starts an upload.
func (v *Vectors) open(ctx context.Context, m *fleet.Member, header *pb.PutCodebookHeader, receivers *sync.WaitGroup) *upload {
	c := &upload{id: m.Report.GetWorkerId(), had: codebookOn(m.Report, header.GetCodebook()) != nil, over: make(chan struct{})}
	fail := func(err error) *upload {
		c.err, c.closed = err, true
		close(c.over)
		return c
	}
	if !m.Link.Acquire() {
		return fail(lostCall(c.id, errGone))
	}
	up, cancel := reach(ctx, m.Link)
	end := func() {
		cancel(nil)
		m.Link.Release()
	}
	stream, err := m.Link.Conn().NewStream(up, uploadStream, pb.VectorService_PutCodebook_FullMethodName, v.codec)
	if err == nil {
		err = stream.SendMsg(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: header}})
	}
	if err != nil && !errors.Is(err, io.EOF) { // else the status comes with the receive
		defer end()
		return fail(ended(ctx, m.Link.Lost(), c.id, err))
	}
	c.stream = stream
	receivers.Go(func() {
		defer end()
		defer close(c.over)
		out := &pb.PutCodebookResponse{}
		err := stream.RecvMsg(out)
		if errors.Is(err, io.EOF) {
			err = errors.New("it ended the call without an answer")
		}
		c.copies, c.err = out.GetCopies(), ended(ctx, m.Link.Lost(), c.id, err)
	})
	return c
}

// pour sends the caller's messages to all workers until there are no more, or until no worker
// receives any. The error ends the call.
func pour(down grpc.ServerStream, all []*upload) error {
	ctx := down.Context()
	frames, failed := make(chan rpc.Frame), make(chan error, 1)
	go func() { // ends with the call
		for {
			var f rpc.Frame
			if err := receive(down, &f); err != nil {
				failed <- err
				return
			}
			select {
			case frames <- f:
			case <-ctx.Done():
				f.Free()
				return
			}
		}
	}()
	for over := 0; over < len(all); { // a worker may end its call at any time, and the caller need not send more then
		select {
		case f := <-frames:
			for _, c := range all {
				c.send(f)
			}
			f.Free()
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			if ctx.Err() != nil {
				err = statusOf(context.Cause(ctx))
			}
			return err
		case <-all[over].over:
			over++
		}
	}
	return nil
}

// send gives a worker another reference to a message.
func (c *upload) send(f rpc.Frame) {
	if c.closed {
		return
	}
	f.Data.Ref()
	if err := c.stream.SendMsg(&f); err != nil {
		f.Free()
		c.closed = true // its status comes with the receive
	}
}

// finish ends the uploads: first to the workers that have the name. The error is the status of one
// that refuses to replace it.
func finish(all []*upload) error {
	for _, had := range []bool{true, false} {
		for _, c := range all {
			if c.had == had && !c.closed {
				_ = c.stream.CloseSend() // never fails
			}
		}
		for _, c := range all {
			if c.had != had {
				continue
			}
			<-c.over
			if had && status.Code(c.err) == codes.AlreadyExists {
				return c.err
			}
		}
	}
	return nil
}
