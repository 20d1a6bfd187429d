package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Snapshot is the fleet at one moment. It is immutable.
type Snapshot struct {
	// Route is what routing sees; Route.Workers and Members have the same indices.
	Route route.Snapshot
	// Members are sorted by address.
	Members []Member
	// Next is closed when a newer snapshot is out.
	Next <-chan struct{}

	next chan struct{}
}

// Member is one address, or one configured name that has none.
type Member struct {
	// Address is the one dialled; the configured "dns:///name:port" while that name has no address.
	Address string
	// Connected is whether its health stream is up and nobody else has its worker_id.
	Connected bool
	// Problem is why not.
	Problem string
	// Report is the last one, nil before the first; never changed.
	Report *pb.WorkerReport
	// LastMessage is when the last message came; zero before the first.
	LastMessage time.Time
	// RoundTrip is that of the last probe; 0 before the first.
	RoundTrip time.Duration
	// Link is nil unless Connected.
	Link *Link
	// Load is never nil.
	Load *route.Load

	prefixes prefixes
}

// states are the states of the contract in routing's terms.
var states = map[pb.WorkerState]route.State{
	pb.WorkerState_WORKER_STATE_STARTING:  route.Starting,
	pb.WorkerState_WORKER_STATE_READY:     route.Ready,
	pb.WorkerState_WORKER_STATE_DEGRADED:  route.Degraded,
	pb.WorkerState_WORKER_STATE_DRAINING:  route.Draining,
	pb.WorkerState_WORKER_STATE_NOT_READY: route.NotReady,
}

// assemble makes a snapshot of members in any order. Of connected members with one worker_id the first by address
// stays connected.
func assemble(known bool, members []Member) *Snapshot {
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Address, b.Address) })
	s := &Snapshot{Members: members, next: make(chan struct{})}
	s.Next = s.next
	s.Route.Known = known
	s.Route.Workers = make([]route.Worker, len(members))
	first := map[string]*Member{}
	for i := range members {
		m := &members[i]
		if m.Connected {
			if before := first[m.Report.GetWorkerId()]; before != nil {
				m.Connected, m.Link = false, nil
				m.Problem = duplicate(m, before)
			} else {
				first[m.Report.GetWorkerId()] = m
			}
		}
		s.Route.Workers[i] = routed(m)
	}
	return s
}

// duplicate says what two members with one worker_id are.
func duplicate(m, before *Member) string {
	if m.Report.GetIncarnation() == before.Report.GetIncarnation() {
		return fmt.Sprintf("the same worker as %s", before.Address)
	}
	return fmt.Sprintf("another process at %s has the same worker_id %q: give each worker its own",
		before.Address, m.Report.GetWorkerId())
}

// routed is a member in routing's terms.
func routed(m *Member) route.Worker {
	w := route.Worker{
		ID: m.Report.GetWorkerId(), Address: m.Address, Connected: m.Connected, State: states[m.Report.GetState()],
		Sequences: int64(m.Report.GetLoad().GetRunning()) + int64(m.Report.GetLoad().GetWaiting()), Load: m.Load,
	}
	for _, model := range m.Report.GetModels() {
		class := model.GetClassId()
		if class == "" {
			class = m.Report.GetClassId()
		}
		w.Models = append(w.Models, route.Model{
			Name: model.GetName(), Digest: model.GetModelDigest(), ClassID: class,
			Ready:         model.GetState() == pb.ModelState_MODEL_STATE_READY,
			ContextLength: int64(model.GetContextLength()),
			Prefixes:      m.prefixes.of(model.GetName(), model.GetModelDigest()),
		})
	}
	for _, file := range m.Report.GetFiles() {
		if file.GetProblem() != "" {
			w.Unusable = append(w.Unusable, file.GetName())
			continue
		}
		w.Files = append(w.Files, file.GetName())
	}
	return w
}
