package vectors

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
)

// errGone is why a worker could not be asked whose connection has ended.
var errGone = errors.New("its connection ended")

// outcome is what became of copies: all of them, the only worker's own word, or what each of several says.
func outcome(name string, wanted int, copies []*pb.CodebookCopy, failures []fault.CopyFailure) ([]*pb.CodebookCopy, error) {
	slices.SortFunc(copies, func(a, b *pb.CodebookCopy) int { return cmp.Compare(a.GetWorkerId(), b.GetWorkerId()) })
	slices.SortFunc(failures, func(a, b fault.CopyFailure) int { return cmp.Compare(a.WorkerID, b.WorkerID) })
	switch {
	case len(failures) == 0:
		return copies, nil
	case len(failures) == 1 && len(copies) == 0:
		return nil, failures[0].Err
	}
	var done []string
	for _, c := range copies {
		done = append(done, c.GetWorkerId())
	}
	return nil, fault.IncompleteCopies(name, wanted, done, failures)
}

// copies takes what workers say of copies. Safe for concurrent use.
type copies struct {
	mu       sync.Mutex
	done     []*pb.CodebookCopy  // guarded by mu
	failures []fault.CopyFailure // guarded by mu
}

func (c *copies) add(id string, copies []*pb.CodebookCopy, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failures = append(c.failures, fault.CopyFailure{WorkerID: id, Err: err})
		return
	}
	c.done = append(c.done, copies...)
}

// Load makes sure that as many workers as wanted serve a codebook that they have, and answers when the fleet's snapshots say so too.
// The error is a status.
func (v *Vectors) Load(ctx context.Context, in *pb.LoadCodebookRequest) (*pb.LoadCodebookResponse, error) {
	if err := checkName("codebook", in.GetCodebook()); err != nil {
		return nil, err
	}
	n, err := replicasOf("replicas", in.Replicas)
	if err != nil {
		return nil, err
	}
	rpc.Annotate(ctx, "codebook", in.GetCodebook())
	all, err := v.loadCopies(ctx, target{in.GetCodebook(), in.GetExpectCodebookDigest()}, n)
	if err != nil {
		return nil, err
	}
	return &pb.LoadCodebookResponse{Copies: all}, nil
}

// loadCopies is Load with n checked.
func (v *Vectors) loadCopies(ctx context.Context, t target, n int) ([]*pb.CodebookCopy, error) {
	members, err := v.able()
	if err != nil {
		return nil, fault.Status(err)
	}
	ids, err := choose(members, t, n)
	if err != nil {
		return nil, fault.Status(err)
	}
	byID := map[string]*fleet.Member{}
	for i := range members {
		byID[members[i].Report.GetWorkerId()] = &members[i]
	}
	asked := make(chan string, len(ids)) // those not asked yet, the best first
	for _, id := range ids {
		asked <- id
	}
	close(asked)
	var all copies
	var wait sync.WaitGroup
	for range n {
		wait.Go(func() {
			var failures []fault.CopyFailure
			for id := range asked {
				got, err := v.loadOn(ctx, byID[id], t)
				if err == nil {
					all.add(id, got, nil)
					return
				}
				failures = append(failures, fault.CopyFailure{WorkerID: id, Err: err})
				if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unavailable || ctx.Err() != nil {
					break
				}
			}
			for _, f := range failures {
				all.add(f.WorkerID, nil, f.Err)
			}
		})
	}
	wait.Wait()
	return outcome(t.codebook, n, all.done, all.failures)
}

// loadOn loads a copy on one worker.
func (v *Vectors) loadOn(ctx context.Context, m *fleet.Member, t target) ([]*pb.CodebookCopy, error) {
	id := m.Report.GetWorkerId()
	if !m.Link.Acquire() {
		return nil, fault.LostVectors(id, errGone)
	}
	defer m.Link.Release()
	up, cancel := reach(ctx, m.Link)
	defer cancel(nil)
	in := &pb.LoadCodebookRequest{Codebook: t.codebook}
	if t.digest != "" {
		in.ExpectCodebookDigest = &t.digest
	}
	out, err := pb.NewVectorServiceClient(m.Link.Conn()).LoadCodebook(up, in)
	if err != nil {
		return nil, ended(ctx, m.Link.Lost(), id, err)
	}
	v.awaitReady(ctx, t.codebook, out.GetCopies())
	return out.GetCopies(), nil
}

// awaitReady waits until snapshots show copies as serving, so that a caller who is told of them can use them through this scheduler.
func (v *Vectors) awaitReady(ctx context.Context, name string, copies []*pb.CodebookCopy) {
	for _, c := range copies {
		fleet.Await(ctx, v.fleet, func(members []fleet.Member) bool {
			for i := range members {
				m := &members[i]
				b := m.Codebook(name)
				if m.Connected && m.Report.GetWorkerId() == c.GetWorkerId() && b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY &&
					b.GetCodebookDigest() == c.GetCodebookDigest() {
					return true
				}
			}
			return false
		})
	}
}

// Unload unloads the codebook on every worker that has it loaded, and answers when the fleet's snapshots say so too. The error is a
// status.
func (v *Vectors) Unload(ctx context.Context, in *pb.UnloadCodebookRequest) (*pb.UnloadCodebookResponse, error) {
	if err := checkName("codebook", in.GetCodebook()); err != nil {
		return nil, err
	}
	rpc.Annotate(ctx, "codebook", in.GetCodebook())
	members, err := loading.Reachable(v.fleet.Snapshot()) // those that drain, too
	if err != nil {
		return nil, fault.Status(err)
	}
	var mu sync.Mutex
	var wait sync.WaitGroup
	var failed error
	out := &pb.UnloadCodebookResponse{}
	for i := range members {
		m := &members[i]
		if !loaded(m, in.GetCodebook()) || !m.Link.Acquire() {
			continue
		}
		wait.Go(func() {
			defer m.Link.Release()
			up, cancel := reach(ctx, m.Link)
			defer cancel(nil)
			id := m.Report.GetWorkerId()
			answer, err := pb.NewVectorServiceClient(m.Link.Conn()).UnloadCodebook(up, in)
			err = ended(ctx, m.Link.Lost(), id, err)
			if code := status.Code(err); code == codes.OK || code == codes.NotFound { // gone already: that is what was asked for
				v.awaitGone(ctx, id, in.GetCodebook())
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case status.Code(err) == codes.NotFound:
			case err != nil:
				failed = err
			default:
				out.WorkerIds = append(out.WorkerIds, id)
				out.FreedBytes += answer.GetFreedBytes()
			}
		})
	}
	wait.Wait()
	switch {
	case failed != nil:
		return nil, failed
	case len(out.GetWorkerIds()) == 0:
		return nil, fault.CodebookNotLoaded(in.GetCodebook())
	}
	slices.Sort(out.WorkerIds)
	return out, nil
}

// loaded is whether a member has the codebook in device memory, in service or not.
func loaded(m *fleet.Member, name string) bool {
	state := m.Codebook(name).GetState()
	return state == pb.CodebookState_CODEBOOK_STATE_READY || state == pb.CodebookState_CODEBOOK_STATE_FAILED
}

// awaitGone waits until no snapshot shows the codebook as loaded on the worker.
func (v *Vectors) awaitGone(ctx context.Context, id, name string) {
	fleet.Await(ctx, v.fleet, func(members []fleet.Member) bool {
		return !slices.ContainsFunc(members, func(m fleet.Member) bool {
			return m.Connected && m.Report.GetWorkerId() == id && loaded(&m, name)
		})
	})
}
