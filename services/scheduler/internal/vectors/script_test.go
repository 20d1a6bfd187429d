package vectors

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/scripttest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// A script is lines of commands; the line after one that picks, "-> ...", is its outcome, and
// -update rewrites it.
//
//	fleet known|unknown
//	worker ID [lost] [state=S]
//	gone ID
//	has ID [book=NAME:DIGEST:ready|disk|unusable|failed]... [trains=MAX] [device=BYTES] [spool=BYTES]    the report of the worker
//	trainings ID [running=N]                            a report
//	encode NAME [digest=D] [bytes=N] [exclude=ID]... [tie=N] [other=N]
//	encoded ID [bytes=N]
//	train _ [rows=BYTES] [rest=BYTES] [exclude=ID]... [tie=N] [other=N]
//	trained ID
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T, text string) string {
		t.Helper()
		return (&player{T: t, known: true}).play(text)
	})
}

// player plays one script. It is the fleet, too.
type player struct {
	*testing.T
	known   bool
	workers []route.Worker
	reports map[string]*pb.WorkerReport // by worker
	indexes indexes
}

// Snapshot makes a snapshot of the workers as the script has them now.
func (p *player) Snapshot() *fleet.Snapshot {
	s := &fleet.Snapshot{Route: route.NewSnapshot(p.known, slices.Clone(p.workers))}
	for i := range p.workers {
		w := &p.workers[i]
		s.Members = append(s.Members, fleet.Member{Address: w.Address, Connected: w.Connected, Report: p.reports[w.ID]})
	}
	return s
}

// play runs a script and returns it with the actual outcomes.
func (p *player) play(script string) string {
	p.Helper()
	p.reports = map[string]*pb.WorkerReport{}
	var out strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "-> ") {
			continue
		}
		out.WriteString(line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		o := map[string][]string{}
		for _, w := range words[2:] {
			key, value, _ := strings.Cut(w, "=")
			o[key] = append(o[key], value)
		}
		out.WriteString(p.command(words[0], words[1], o))
	}
	return out.String()
}

func (p *player) command(name, of string, o map[string][]string) string {
	p.Helper()
	tie := uint64(p.number(o, "tie")) | uint64(p.number(o, "other"))<<32
	x := p.indexes.of(p)
	switch name {
	case "fleet":
		p.known = of == "known"
	case "worker":
		p.setWorker(of, o)
	case "gone":
		p.workers = slices.DeleteFunc(p.workers, func(w route.Worker) bool { return w.ID == of })
	case "has":
		p.reports[of] = p.report(of, o)
	case "trainings":
		before := p.reports[of]
		p.reports[of] = &pb.WorkerReport{WorkerId: of, Device: before.GetDevice(), Vectors: &pb.VectorStatus{
			Codebooks: before.GetVectors().GetCodebooks(), MaxTrainings: before.GetVectors().GetMaxTrainings(),
			FreeSpoolBytes: before.GetVectors().GetFreeSpoolBytes(), Trainings: uint32(p.number(o, "running")),
		}}
		p.indexes.of(p)
	case "encode":
		i, err := pickCodebook(x, codebookRequest{codebook: of, digest: one(o, "digest"), exclude: o["exclude"], tie: tie})
		if err != nil {
			return p.refused(err)
		}
		l := x.workers[i].load
		l.begin(p.number(o, "bytes"))
		return fmt.Sprintf("-> %s has %d calls of %d bytes\n", x.workers[i].ID, l.calls.Load(), l.bytes.Load())
	case "encoded":
		p.load(of).end(p.number(o, "bytes"))
	case "train":
		i, err := pickTraining(x, trainingRequest{rows: uint64(p.number(o, "rows")), rest: uint64(p.number(o, "rest")),
			exclude: o["exclude"], tie: tie})
		if err != nil {
			return p.refused(err)
		}
		w := &x.workers[i]
		require.True(p, w.load.trainings.begin(w.maxTrainings()))
		return fmt.Sprintf("-> %s has %d trainings\n", w.ID, w.load.trainings.running())
	case "trained":
		p.load(of).trainings.end()
	default:
		require.FailNow(p, "unknown command", name)
	}
	return ""
}

func (p *player) setWorker(id string, o map[string][]string) {
	p.Helper()
	states := map[string]route.State{"": route.Ready, "starting": route.Starting, "ready": route.Ready,
		"degraded": route.Degraded, "draining": route.Draining, "not_ready": route.NotReady}
	_, lost := o["lost"]
	state, known := states[one(o, "state")]
	require.True(p, known, "state of %s", id)
	p.workers = slices.DeleteFunc(p.workers, func(w route.Worker) bool { return w.ID == id })
	p.workers = append(p.workers, route.Worker{ID: id, Address: id + ":1", Connected: !lost, State: state, Load: &route.Load{}})
	slices.SortFunc(p.workers, func(a, b route.Worker) int { return strings.Compare(a.Address, b.Address) })
}

// report makes a report of vectors.
func (p *player) report(id string, o map[string][]string) *pb.WorkerReport {
	p.Helper()
	v := &pb.VectorStatus{MaxTrainings: uint32(p.number(o, "trains")), FreeSpoolBytes: uint64(p.number(o, "spool"))}
	for _, book := range o["book"] {
		parts := strings.SplitN(book, ":", 3)
		require.Len(p, parts, 3, book)
		b := &pb.CodebookInfo{Name: parts[0], CodebookDigest: parts[1], State: pb.CodebookState_CODEBOOK_STATE_ON_DISK}
		switch parts[2] {
		case "ready":
			b.State = pb.CodebookState_CODEBOOK_STATE_READY
		case "failed":
			b.State = pb.CodebookState_CODEBOOK_STATE_FAILED
		case "unusable":
			b.Problem = "truncated"
		default:
			require.Equal(p, "disk", parts[2], book)
		}
		v.Codebooks = append(v.Codebooks, b)
	}
	return &pb.WorkerReport{WorkerId: id, Device: &pb.DeviceStatus{BytesFree: uint64(p.number(o, "device"))}, Vectors: v}
}

func (p *player) load(id string) *load {
	p.Helper()
	l := p.indexes.loads[run{id: id}]
	require.NotNil(p, l, id)
	return l
}

func (p *player) refused(err error) string {
	p.Helper()
	var refusal *route.Refusal
	require.ErrorAs(p, err, &refusal)
	require.ErrorIs(p, err, refusal.Err)
	if refusal.Loadable {
		later := ""
		if refusal.Returns {
			later = ", later"
		}
		return fmt.Sprintf("-> %v (a load would help%s)\n", err, strings.TrimRight(" "+refusal.Digest, " ")+later)
	}
	return fmt.Sprintf("-> %v\n", err)
}

func (p *player) number(o map[string][]string, key string) int64 {
	p.Helper()
	if len(o[key]) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(o[key][0], 10, 64)
	require.NoError(p, err)
	return n
}

func one(o map[string][]string, key string) string {
	if len(o[key]) == 0 {
		return ""
	}
	return o[key][0]
}

// Trainings that begin at the same time never exceed a worker's bound.
func TestTrainingsNeverExceedTheBound(t *testing.T) {
	const bound, asked = 3, 50
	var l load
	var wait sync.WaitGroup
	begun := make(chan bool, asked)
	for range asked {
		wait.Go(func() { begun <- l.trainings.begin(bound) })
	}
	wait.Wait()
	count := 0
	for range asked {
		if <-begun {
			count++
		}
	}
	require.Equal(t, bound, count)
	l.trainings.reported(bound)
	require.EqualValues(t, bound, l.trainings.running(), "a report counts our own trainings, too")
	for range bound {
		l.trainings.end()
	}
	require.True(t, l.trainings.begin(bound))
}

// Calls are spread over the copies by their bytes.
func TestPickSpreadsBytesOverCopies(t *testing.T) {
	p := &player{T: t, known: true, reports: map[string]*pb.WorkerReport{}}
	for _, id := range []string{"a", "b", "c"} {
		p.setWorker(id, nil)
		p.reports[id] = p.report(id, map[string][]string{"book": {"k:d:ready"}})
	}
	x := p.indexes.of(p)
	const piece = 4 << 20
	for n := range uint64(30) {
		i, err := pickCodebook(x, codebookRequest{codebook: "k", tie: n * 0x9e3779b97f4a7c15})
		require.NoError(t, err)
		x.workers[i].load.begin(piece)
		require.False(t, x.workers[i].load.idle())
	}
	for i := range x.workers {
		require.EqualValues(t, 10*piece, x.workers[i].load.bytes.Load(), x.workers[i].ID)
	}
	var refusal *route.Refusal
	_, err := pickCodebook(x, codebookRequest{codebook: "k", exclude: []string{"a", "b", "c"}})
	require.ErrorAs(t, err, &refusal)
	require.ErrorIs(t, err, route.ErrNoWorker)
}

// The load of a run outlives snapshots while calls run, and is dropped when its run is gone and idle.
func TestIndexKeepsLoadsOfRuns(t *testing.T) {
	p := &player{T: t, known: true, reports: map[string]*pb.WorkerReport{}}
	p.setWorker("a", nil)
	p.reports["a"] = p.report("a", nil)
	l := p.indexes.of(p).workers[0].load
	l.begin(7)
	p.workers = nil
	p.indexes.of(p)
	require.Same(t, l, p.load("a"))
	l.end(7)
	p.indexes.of(p)
	require.Empty(t, p.indexes.loads)
}

// A report counts once, in however many snapshots it is.
func TestIndexCountsAReportOnce(t *testing.T) {
	p := &player{T: t, known: true, reports: map[string]*pb.WorkerReport{}}
	p.setWorker("a", nil)
	p.reports["a"] = p.report("a", map[string][]string{"trains": {"2"}})
	l := p.indexes.of(p).workers[0].load
	require.True(t, l.trainings.begin(2))
	p.command("trainings", "a", map[string][]string{"running": {"1"}})
	l.trainings.end()
	for range 5 {
		p.indexes.of(p)
		require.Zero(t, l.trainings.running(), "the report is older than the end of our training")
	}
}
