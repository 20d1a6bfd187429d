package fleet

import (
	"fmt"
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
	// Duplicate is whether another process, which the fleet follows at another address, has its worker_id.
	Duplicate bool
	// Report is the last one, nil before the first; never changed.
	Report *pb.WorkerReport
	// LastMessage is when the last message came; zero before the first.
	LastMessage time.Time
	// ModelsAt is when the report's models came: their ages are as of then. Zero before the first report.
	ModelsAt time.Time
	// RoundTrip is that of the last probe; 0 before the first.
	RoundTrip time.Duration
	// Link is nil unless Connected.
	Link *Link
	// Load is never nil.
	Load *route.Load
}

// entry is a member as snapshots have it, in both ways. It is made when the member changes, and copied as it is otherwise: the lists
// in it are shared by all the snapshots between.
type entry struct {
	Member
	routed route.Worker
}

// states are the states of the contract in routing's terms.
var states = map[pb.WorkerState]route.State{
	pb.WorkerState_WORKER_STATE_STARTING:  route.Starting,
	pb.WorkerState_WORKER_STATE_READY:     route.Ready,
	pb.WorkerState_WORKER_STATE_DEGRADED:  route.Degraded,
	pb.WorkerState_WORKER_STATE_DRAINING:  route.Draining,
	pb.WorkerState_WORKER_STATE_NOT_READY: route.NotReady,
}

// memberLocked is the member as of now.
func (m *member) memberLocked() Member {
	t := &m.tracker
	is := Member{
		Address: m.address, Connected: m.link != nil && t.offered(), Report: t.report,
		LastMessage: m.last, ModelsAt: m.modelsAt, RoundTrip: m.roundTrip, Load: &m.load.Load,
	}
	switch problem := t.problem(); {
	case is.Connected:
		is.Link = m.link
	case problem != nil:
		is.Problem = reason(problem)
	default:
		is.Problem = m.failure
	}
	return is
}

// viewLocked is its entry.
func (m *member) viewLocked() entry {
	is := m.memberLocked()
	return entry{is, routed(&is, m.tracker.prefixes)}
}

// shadow is why an entry is left out of routing: another entry has its worker_id.
type shadow struct {
	problem string
	// by is the address of the entry that stays.
	by string
	// duplicate is whether that entry is another process.
	duplicate bool
}

// assemble makes a snapshot of entries sorted by address; shadowed has each that another member stands for.
func assemble(known bool, entries []*entry, shadowed map[*entry]shadow) *Snapshot {
	s := &Snapshot{Members: make([]Member, len(entries)), next: make(chan struct{})}
	s.Next = s.next
	workers := make([]route.Worker, len(entries))
	for i, e := range entries {
		s.Members[i], workers[i] = e.Member, e.routed
		if why, is := shadowed[e]; is {
			m := &s.Members[i]
			m.Connected, m.Link, m.Problem, m.Duplicate = false, nil, why.problem, why.duplicate
			workers[i].Connected = false
		}
	}
	s.Route = route.NewSnapshot(known, workers)
	return s
}

// shadows finds the connected entries whose worker_id an earlier one has: of those with one id the first by address stays.
func shadows(entries []*entry) map[*entry]shadow {
	first, found := make(map[string]*entry, len(entries)), map[*entry]shadow{}
	for _, e := range entries {
		if !e.Connected {
			continue
		}
		id := e.Report.GetWorkerId()
		if before := first[id]; before != nil {
			found[e] = duplicate(&e.Member, &before.Member)
			continue
		}
		first[id] = e
	}
	return found
}

// duplicate compares two members that have one worker_id.
func duplicate(m, before *Member) shadow {
	if m.Report.GetIncarnation() == before.Report.GetIncarnation() {
		return shadow{problem: fmt.Sprintf("the same worker as %s", before.Address), by: before.Address}
	}
	return shadow{
		problem: fmt.Sprintf("another process at %s has the same worker_id %q: give each worker its own", before.Address, m.Report.GetWorkerId()),
		by:      before.Address, duplicate: true,
	}
}

// routed is a member in routing's terms.
func routed(m *Member, cached prefixes) route.Worker {
	w := route.Worker{
		ID: m.Report.GetWorkerId(), Address: m.Address, Connected: m.Connected, State: states[m.Report.GetState()],
		Load: m.Load, Vectors: vectorsOf(m.Report),
	}
	if n := len(m.Report.GetModels()); n > 0 {
		w.Models = make([]route.Model, 0, n)
	}
	for _, model := range m.Report.GetModels() {
		class := model.GetClassId()
		if class == "" {
			class = m.Report.GetClassId()
		}
		of, tells := loadOfModel(m.Report, model.GetName())
		w.Models = append(w.Models, route.Model{
			Name: model.GetName(), Digest: model.GetModelDigest(), ClassID: class,
			Ready:         model.GetState() == pb.ModelState_MODEL_STATE_READY,
			ContextLength: int64(model.GetContextLength()),
			MaxSequences:  int64(model.GetLoaded().GetMaxSequences()),
			CacheTokens:   cacheTokens(model, tells), FreeTokens: int64(of.GetFreeBlocks()) * int64(model.GetLoaded().GetBlockSize()),
			PrefillRate: of.GetPrefillTokensPerSecond(),
			Prefixes:    cached.of(model.GetName(), model.GetModelDigest()),
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
