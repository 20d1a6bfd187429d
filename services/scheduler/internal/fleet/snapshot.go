package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Snapshot is the fleet at one moment. It is immutable.
type Snapshot struct {
	// Route is the fleet for routing. Route.Workers and Members have the same indices.
	Route route.Snapshot
	// Members are sorted by address.
	Members []Member
	// Next is closed when a newer snapshot exists.
	Next <-chan struct{}

	next chan struct{}
}

// Member is one address, or one configured name without an address.
type Member struct {
	// Address is the one that is dialled, or the configured "dns:///name:port" if that has no address.
	Address string
	// Connected means that its health stream is open and that no other member has its worker_id.
	Connected bool
	// Problem is why it is not connected.
	Problem string
	// Duplicate means that another process, at another address of the fleet, has its worker_id.
	Duplicate bool
	// Report is the last one; nil before the first. It is immutable.
	Report *pb.WorkerReport
	// LastMessage is when the last message arrived; zero before the first.
	LastMessage time.Time
	// ModelsAt is when the report's models arrived, to which their ages refer; zero before the
	// first report.
	ModelsAt time.Time
	// RoundTrip is the round trip of the last probe; 0 before the first.
	RoundTrip time.Duration
	// Link is nil unless Connected.
	Link *Link
	// Load is never nil.
	Load *route.Load
}

// Model returns the status of a model on the member, in any state, or nil.
func (m *Member) Model(name string) *pb.ModelStatus { return find(m.Report.GetModels(), name) }

// File returns a model file on the member, or nil.
func (m *Member) File(name string) *pb.ModelFile {
	for _, file := range m.Report.GetFiles() {
		if file.GetName() == name {
			return file
		}
	}
	return nil
}

// entry is a member in a snapshot, in both forms. It is made when the member changes and copied
// otherwise, so that all snapshots in between share its lists.
type entry struct {
	Member
	worker route.Worker
}

// states are the routing states of the contract's states.
var states = map[pb.WorkerState]route.State{
	pb.WorkerState_WORKER_STATE_STARTING:  route.Starting,
	pb.WorkerState_WORKER_STATE_READY:     route.Ready,
	pb.WorkerState_WORKER_STATE_DEGRADED:  route.Degraded,
	pb.WorkerState_WORKER_STATE_DRAINING:  route.Draining,
	pb.WorkerState_WORKER_STATE_NOT_READY: route.NotReady,
}

// memberLocked returns the member as of now.
func (m *member) memberLocked() Member {
	t := &m.mu.tracker
	out := Member{
		Address: m.address, Connected: m.mu.link != nil && t.usable(), Report: t.report,
		LastMessage: m.mu.last, ModelsAt: m.mu.modelsAt, RoundTrip: m.mu.roundTrip, Load: &m.mu.load.Load,
	}
	switch problem := t.problem(); {
	case out.Connected:
		out.Link = m.mu.link
	case problem != nil:
		out.Problem = reason(problem)
	default:
		out.Problem = m.mu.failure
	}
	return out
}

// entryLocked returns the member's entry as of now.
func (m *member) entryLocked() entry {
	out := m.memberLocked()
	return entry{out, forRouting(&out, m.mu.tracker.prefixes)}
}

// shadow says why an entry is left out of routing: another entry has its worker_id.
type shadow struct {
	problem string
	// by is the address of the other entry.
	by string
	// duplicate means that the other entry is another process.
	duplicate bool
}

// assemble returns a snapshot of entries, which must be sorted by address. shadowed are those to
// leave out.
func assemble(known bool, entries []*entry, shadowed map[*entry]shadow) *Snapshot {
	s := &Snapshot{Members: make([]Member, len(entries)), next: make(chan struct{})}
	s.Next = s.next
	workers := make([]route.Worker, len(entries))
	for i, e := range entries {
		s.Members[i], workers[i] = e.Member, e.worker
		if why, found := shadowed[e]; found {
			m := &s.Members[i]
			m.Connected, m.Link, m.Problem, m.Duplicate = false, nil, why.problem, why.duplicate
			workers[i].Connected = false
		}
	}
	s.Route = route.NewSnapshot(known, workers)
	return s
}

// shadows returns the connected entries whose worker_id an earlier entry has. Of several with one
// id, the first by address is used.
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

// duplicate compares two members with one worker_id.
func duplicate(m, before *Member) shadow {
	if m.Report.GetIncarnation() == before.Report.GetIncarnation() {
		return shadow{problem: fmt.Sprintf("the same worker as %s", before.Address), by: before.Address}
	}
	return shadow{
		problem: fmt.Sprintf("another process at %s has the same worker_id %q: give each worker its own", before.Address, m.Report.GetWorkerId()),
		by:      before.Address, duplicate: true,
	}
}

// forRouting returns a member in the form that routing uses.
func forRouting(m *Member, cached prefixes) route.Worker {
	w := route.Worker{
		ID: m.Report.GetWorkerId(), Address: m.Address, Connected: m.Connected, State: states[m.Report.GetState()],
		Load: m.Load,
	}
	if n := len(m.Report.GetModels()); n > 0 {
		w.Models = make([]route.Model, 0, n)
	}
	for _, model := range m.Report.GetModels() {
		class := model.GetClassId()
		if class == "" {
			class = m.Report.GetClassId()
		}
		load, perModel := loadOfModel(m.Report, model.GetName())
		w.Models = append(w.Models, route.Model{
			Name: model.GetName(), Digest: model.GetModelDigest(), ClassID: class,
			Ready:         model.GetState() == pb.ModelState_MODEL_STATE_READY,
			ContextLength: int64(model.GetContextLength()),
			MaxSequences:  int64(model.GetLoaded().GetMaxSequences()),
			CacheTokens:   cacheTokens(model, perModel), FreeTokens: int64(load.GetFreeBlocks()) * int64(model.GetLoaded().GetBlockSize()),
			PrefillRate: load.GetPrefillTokensPerSecond(),
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

// Changes are collected for a while before a snapshot is made of them, so that a fleet that reports
// often is copied at most once in that time. urgentDelay is for changes that decisions depend on,
// numbersDelay for numbers that workers report at intervals: requests of this process itself are
// counted at once.
const (
	urgentDelay  = 2 * time.Millisecond
	numbersDelay = 20 * time.Millisecond
)

// awaitChange waits until a snapshot is due. It returns false if ctx ended first.
func (f *Fleet) awaitChange(ctx context.Context) bool {
	if !sleep(ctx, urgentDelay) {
		return false
	}
	select {
	case <-f.dirty:
		return true
	case <-f.numbers:
	case <-ctx.Done():
		return false
	}
	t := time.NewTimer(numbersDelay - urgentDelay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-f.dirty:
	case <-ctx.Done():
		return false
	}
	return true
}

// publishSoon requests a snapshot after urgentDelay at most.
func (f *Fleet) publishSoon() {
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// publishLater requests a snapshot after numbersDelay at most.
func (f *Fleet) publishLater() {
	select {
	case f.numbers <- struct{}{}:
	default:
	}
}

// publish makes a snapshot of the current state. Members that have not changed keep their entries.
func (f *Fleet) publish() {
	f.mu.Lock()
	known := len(f.mu.addresses) == len(dedupe(f.cfg.Workers))
	entries := make([]*entry, 0, len(f.mu.order)+len(f.mu.problems))
	identities := f.mu.shadowed == nil
	for _, m := range f.mu.order {
		e, tried, identity := m.refresh()
		entries = append(entries, e)
		known, identities = known && tried, identities || identity
	}
	if identities {
		f.mu.shadowed = shadows(entries)
		f.warnLocked(f.mu.shadowed)
	}
	for _, m := range f.unresolvedLocked() {
		entries = append(entries, &entry{m, forRouting(&m, nil)})
	}
	if len(f.mu.problems) > 0 {
		slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.Address, b.Address) })
	}
	s := assemble(known || f.mu.graceOver, entries, f.mu.shadowed)
	f.mu.Unlock()
	close(f.snapshot.Swap(s).next)
}

// warnLocked logs each duplicate once: an address that is left out because the process at another
// one has its worker_id. After a duplicate has gone, the next one is logged again.
func (f *Fleet) warnLocked(shadowed map[*entry]shadow) {
	duplicates := map[string]bool{}
	for e, why := range shadowed {
		if !why.duplicate {
			continue
		}
		duplicates[e.Address] = true
		if !f.mu.warned[e.Address] {
			f.logger.Warn("two workers have one id, the second gets no requests: give each worker its own --worker-id",
				"worker", e.Report.GetWorkerId(), "serves", why.by, "left_out", e.Address)
		}
	}
	f.mu.warned = duplicates
}

// Members returns the members as of now. It is newer than any snapshot in the numbers that change
// with every heartbeat.
func (f *Fleet) Members() []Member {
	f.mu.Lock()
	entries := make([]*entry, 0, len(f.mu.order)+len(f.mu.problems))
	for _, m := range f.mu.order {
		entries = append(entries, &entry{Member: m.current()})
	}
	for _, m := range f.unresolvedLocked() {
		entries = append(entries, &entry{Member: m})
	}
	f.mu.Unlock()
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.Address, b.Address) })
	return assemble(true, entries, shadows(entries)).Members
}

// awaitTimeout bounds Await. A change that its worker does not report in time must not fail a call.
const awaitTimeout = 2 * time.Second

// Await waits until done returns true for the members of a snapshot of f, ctx ends, or two seconds
// have passed. A caller that gets a reply after it then finds the change in this scheduler's
// snapshots, too.
func Await(ctx context.Context, f interface{ Snapshot() *Snapshot }, done func([]Member) bool) {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for {
		snapshot := f.Snapshot()
		if done(snapshot.Members) {
			return
		}
		select {
		case <-snapshot.Next:
		case <-ctx.Done():
			return
		}
	}
}
