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
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
)

// upward is the shape of a worker's end of a codebook that is put.
var upward = &grpc.StreamDesc{ClientStreams: true}

// copying is a codebook on its way to one worker.
type copying struct {
	id     string
	had    bool // the worker has a codebook of that name
	stream grpc.ClientStream
	over   chan struct{} // closed when the worker has answered
	copies []*pb.CodebookCopy
	err    error // a status; set, as copies, before over is closed
	closed bool  // nothing more is sent
}

// Put serves a call of PutCodebook: every message goes to all workers before the next one is read, so that the slowest sets the pace
// and one message is held. Workers that have the name get the end first: one that refuses to replace what it has does so before any other
// has written a thing. The error is a status.
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
		return fault.Status(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // every stream, whatever happens
	first := proto.CloneOf(header)
	first.Replicas = nil
	var all []*copying
	var receivers sync.WaitGroup
	for i := range members {
		c := v.open(ctx, &members[i], first, &receivers)
		all = append(all, c)
	}
	err = pour(rpc.Bare(down), all)
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
	v.awaitReady(ctx, header.GetCodebook(), sum.done) // also of a put that some refuse: the status names those that have it
	done, err := outcome(header.GetCodebook(), n, sum.done, sum.failures)
	if err != nil {
		return err
	}
	return down.SendMsg(&pb.PutCodebookResponse{Copies: done})
}

// headerOf is the first message of a call.
func headerOf(down grpc.ServerStream) (*pb.PutCodebookHeader, error) {
	none := fault.Invalid("the call has no header: it is the first message",
		rpc.Violation{Field: "header", Description: "is missing: it is the first message"})
	var frame rpc.Frame
	if err := receive(rpc.Bare(down), &frame); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, none
		}
		return nil, err
	}
	defer frame.Free()
	raw := frame.Data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	in := &pb.PutCodebookRequest{}
	if err := rpc.Decode(raw.ReadOnlyData(), in, fault.Domain); err != nil {
		return nil, err
	}
	if in.GetHeader() == nil {
		return nil, none
	}
	return in.GetHeader(), checkName("header.codebook", in.GetHeader().GetCodebook())
}

// targets are the members that get the codebook: as many as are wanted of those that take requests, and all that have another one of the
// name, also those that drain. These would serve it beside the others once they are undrained.
func (v *Vectors) targets(h *pb.PutCodebookHeader, n int) ([]fleet.Member, error) {
	members, err := v.able()
	if err != nil {
		return nil, err
	}
	drain := v.draining(h.GetCodebook(), h.GetExpectCodebookDigest())
	if want := h.GetExpectCodebookDigest(); want != "" && !h.GetReplace() {
		for _, m := range slices.Concat(members, drain) {
			if has := m.Codebook(h.GetCodebook()).GetCodebookDigest(); has != "" && has != want {
				return nil, fault.CodebookExists(h.GetCodebook(), m.Report.GetWorkerId(), has)
			}
		}
	}
	members, err = chosen(members, h.GetCodebook(), h.GetShape(), n)
	return append(members, drain...), err
}

// open begins a copy.
func (v *Vectors) open(ctx context.Context, m *fleet.Member, header *pb.PutCodebookHeader, receivers *sync.WaitGroup) *copying {
	c := &copying{id: m.Report.GetWorkerId(), had: m.Codebook(header.GetCodebook()) != nil, over: make(chan struct{})}
	fail := func(err error) *copying {
		c.err, c.closed = err, true
		close(c.over)
		return c
	}
	if !m.Link.Acquire() {
		return fail(fault.LostVectors(c.id, errGone))
	}
	up, cancel := reach(ctx, m.Link)
	end := func() {
		cancel(nil)
		m.Link.Release()
	}
	stream, err := m.Link.Conn().NewStream(up, upward, pb.VectorService_PutCodebook_FullMethodName, v.codec)
	if err == nil {
		err = stream.SendMsg(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: header}})
	}
	if err != nil && !errors.Is(err, io.EOF) { // whose status comes with the receive
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

// pour gives the caller's messages to all workers until there are no more, or nobody takes any. The error is the end of the call.
func pour(down grpc.ServerStream, all []*copying) error {
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
				err = fault.Status(context.Cause(ctx))
			}
			return err
		case <-all[over].over:
			over++
		}
	}
	return nil
}

// send gives a worker another reference to a message.
func (c *copying) send(f rpc.Frame) {
	if c.closed {
		return
	}
	f.Data.Ref()
	if err := c.stream.SendMsg(&f); err != nil {
		f.Free()
		c.closed = true // its status comes with the receive
	}
}

// finish ends the sending: first to the workers that have the name. The error is the word of one that refuses to replace it.
func finish(all []*copying) error {
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
