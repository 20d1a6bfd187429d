package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// cutter is a proxy of a worker with its own worker id. It breaks streams as a lost worker does, at
// an exact place, which killing the process could not. The id of a request says where:
//
//	cut-K-...   the first attempt breaks after K tokens; 0: after `started` and the prompt; -1: before any event
//	each-...    every attempt breaks after its first token, or after its end
type cutter struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedWorkerServiceServer
	id     string
	worker *server
	cuts   *cuts
}

// cuts counts the broken streams of all cutters of a test, by request id.
type cuts struct {
	mu sync.Mutex
	n  map[string]int // guarded by mu
}

// allow counts a break, and returns false if the request may have no more.
func (c *cuts) allow(id string, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n[id] >= most {
		return false
	}
	c.n[id]++
	return true
}

func (c *cuts) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[id]
}

// startCutters starts n cutters of one worker. A scheduler sees n workers of one class.
func startCutters(t *testing.T, w *server, n int) ([]*server, *cuts) {
	t.Helper()
	counted := &cuts{n: map[string]int{}}
	var all []*server
	for i := range n {
		c := &cutter{id: fmt.Sprintf("cutter-%d", i), worker: w, cuts: counted}
		s := grpc.NewServer()
		pb.RegisterInferenceServiceServer(s, c)
		pb.RegisterWorkerServiceServer(s, c)
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var serving sync.WaitGroup
		serving.Go(func() { _ = s.Serve(lis) })
		t.Cleanup(func() { s.Stop(); serving.Wait() })
		all = append(all, &server{address: lis.Addr().String()})
	}
	return all, counted
}

// Health forwards the worker's reports with the cutter's id.
func (c *cutter) Health(down grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]) error {
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := c.worker.worker.Health(ctx)
	if err != nil {
		return err
	}
	go func() {
		for {
			in, err := down.Recv()
			if err != nil || up.Send(in) != nil {
				cancel()
				return
			}
		}
	}()
	for {
		out, err := up.Recv()
		if err != nil {
			return err
		}
		if full := out.GetFull(); full != nil {
			full.WorkerId = c.id
		}
		if err := down.Send(out); err != nil {
			return err
		}
	}
}

// errCut is the status of a call whose worker process has ended.
var errCut = status.Error(codes.Unavailable, "error reading from server: EOF")

// Generate forwards a call until it is to break.
func (c *cutter) Generate(in *pb.GenerateRequest, down grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	id, left, each := in.GetRequestId(), 0, false
	switch kind, rest, _ := strings.Cut(id, "-"); kind {
	case "cut":
		if _, err := fmt.Sscanf(rest, "%d", &left); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
	case "each":
		left, each = 1, true
	}
	most := 1
	if each {
		most = 1 << 20
	}
	cut := (strings.HasPrefix(id, "cut-") || each) && c.cuts.allow(id, most)
	if cut && left < 0 {
		return errCut
	}
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := c.worker.infer.Generate(ctx, in)
	if err != nil {
		return err
	}
	for {
		out, err := up.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		n := len(out.GetTokens().GetTokenIds())
		if cut && !each && (n > left || out.GetFinished() != nil) {
			return errCut
		}
		if err := down.Send(out); err != nil {
			return err
		}
		if left -= n; cut && n > 0 && left <= 0 || each && out.GetFinished() != nil {
			return errCut
		}
	}
}
