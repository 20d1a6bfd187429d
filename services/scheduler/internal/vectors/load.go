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
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
)

// errGone: a worker's connection ended before it could be asked.
var errGone = errors.New("its connection ended")

// outcome merges the results of several copies. If a single copy was wanted, its failure is
// returned as it is; a failure of several names each worker.
func outcome(name string, wanted int, copies []*pb.CodebookCopy, failures []copyFailure) ([]*pb.CodebookCopy, error) {
	slices.SortFunc(copies, func(a, b *pb.CodebookCopy) int { return cmp.Compare(a.GetWorkerId(), b.GetWorkerId()) })
	slices.SortFunc(failures, func(a, b copyFailure) int { return cmp.Compare(a.workerID, b.workerID) })
	switch {
	case len(failures) == 0:
		return copies, nil
	case len(failures) == 1 && len(copies) == 0:
		return nil, failures[0].err
	}
	var done []string
	for _, c := range copies {
		done = append(done, c.GetWorkerId())
	}
	return nil, incompleteCopies(name, wanted, done, failures)
}

// copies collects the results of workers. Safe for concurrent use.
type copies struct {
	mu       sync.Mutex
	done     []*pb.CodebookCopy // guarded by mu
	failures []copyFailure      // guarded by mu
}

func (c *copies) add(id string, copies []*pb.CodebookCopy, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failures = append(c.failures, copyFailure{id, err})
		return
	}
	c.done = append(c.done, copies...)
}

// Load loads a codebook from disk until as many workers as wanted serve it, and returns when the
// fleet's snapshots show that. The error is a status.
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

// loadCopies is Load with n validated.
func (v *Vectors) loadCopies(ctx context.Context, t target, n int) ([]*pb.CodebookCopy, error) {
	members, err := v.able()
	if err != nil {
		return nil, statusOf(err)
	}
	ids, err := choose(members, t, n)
	if err != nil {
		return nil, statusOf(err)
	}
	byID := map[string]*fleet.Member{}
	for i := range members {
		byID[members[i].Report.GetWorkerId()] = &members[i]
	}
	asked := make(chan string, len(ids)) // workers not asked yet, the best first
	for _, id := range ids {
		asked <- id
	}
	close(asked)
	var all copies
	var wait sync.WaitGroup
	for range n {
		wait.Go(func() {
			var failures []copyFailure
			for id := range asked {
				got, err := v.loadOn(ctx, byID[id], t)
				if err == nil {
					all.add(id, got, nil)
					return
				}
				failures = append(failures, copyFailure{id, err})
				if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unavailable || ctx.Err() != nil {
					break
				}
			}
			for _, f := range failures {
				all.add(f.workerID, nil, f.err)
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
		return nil, lostCall(id, errGone)
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

// awaitReady waits until snapshots show copies as serving, so that a caller can use them through this
// scheduler at once.
func (v *Vectors) awaitReady(ctx context.Context, name string, copies []*pb.CodebookCopy) {
	for _, c := range copies {
		loading.Await(ctx, v.fleet, c.GetWorkerId(), true, func(m *fleet.Member) bool {
			b := codebookOn(m.Report, name)
			return m.Connected && stateOf(b) == ready && b.GetCodebookDigest() == c.GetCodebookDigest()
		})
	}
}

// Unload unloads the codebook on every worker that has it loaded, and returns when the fleet's
// snapshots show that. The error is a status.
func (v *Vectors) Unload(ctx context.Context, in *pb.UnloadCodebookRequest) (*pb.UnloadCodebookResponse, error) {
	if err := checkName("codebook", in.GetCodebook()); err != nil {
		return nil, err
	}
	rpc.Annotate(ctx, "codebook", in.GetCodebook())
	members, err := loading.Reachable(v.fleet.Snapshot()) // draining ones, too
	if err != nil {
		return nil, statusOf(err)
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
			if code := status.Code(err); code == codes.OK || code == codes.NotFound { // unloaded already
				loading.Await(ctx, v.fleet, id, false, func(m *fleet.Member) bool { return m.Connected && loaded(m, in.GetCodebook()) })
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
		return nil, codebookNotLoaded(in.GetCodebook())
	}
	slices.Sort(out.WorkerIds)
	return out, nil
}

// loaded reports whether a member has the codebook in device memory, in service or not.
func loaded(m *fleet.Member, name string) bool {
	state := codebookOn(m.Report, name).GetState()
	return state == pb.CodebookState_CODEBOOK_STATE_READY || state == pb.CodebookState_CODEBOOK_STATE_FAILED
}
