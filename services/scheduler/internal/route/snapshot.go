package route

import "sync/atomic"

// Snapshot is the fleet at one moment. It is immutable, the Loads and Prefixes it points to aside.
type Snapshot struct {
	// Known is whether every configured worker has reported or failed to answer once: before that, nothing may be
	// concluded from what is missing.
	Known bool
	// Workers are sorted by address; no two that are Connected have the same ID.
	Workers []Worker
}

// Worker is one worker as it last reported.
type Worker struct {
	// ID is empty until its first report.
	ID      string
	Address string
	// Connected is whether its reports arrive; the rest is the last report, also when they do not.
	Connected bool
	State     State
	Models    []Model
	// Files are the names of model files that it could load or has loaded, Unusable those of files that it cannot load.
	Files, Unusable []string
	// Sequences are its running and waiting ones, of all schedulers.
	Sequences int64
	// Load is never nil.
	Load *Load
}

// State is what a worker can do.
type State uint8

// States of a worker. Ready and Degraded ones serve.
const (
	Starting State = iota
	Ready
	Degraded
	Draining
	NotReady
)

// Serves reports whether new requests may go there.
func (w *Worker) Serves() bool { return w.Connected && (w.State == Ready || w.State == Degraded) }

// model is the worker's model of that name, or nil.
func (w *Worker) model(name string) *Model {
	for i := range w.Models {
		if w.Models[i].Name == name {
			return &w.Models[i]
		}
	}
	return nil
}

// ClassOf is the class of the worker's model of that name; empty if it has none.
func (w *Worker) ClassOf(name string) string {
	if m := w.model(name); m != nil {
		return m.ClassID
	}
	return ""
}

// Model is a model in a worker's memory, or on the way there or out.
type Model struct {
	Name string
	// Digest is empty while loading.
	Digest string
	// Ready is whether it serves.
	Ready bool
	// ClassID is the class of this model on this worker.
	ClassID string
	// ContextLength is the longest sequence in tokens; 0 is not known.
	ContextLength int64
	// Prefixes are the cached ones; nil: none were told. Only the worker's present connection tells of them.
	Prefixes *Prefixes
}

// Load counts what this process has under way on one worker. Safe for concurrent use; the zero value is idle.
type Load struct {
	inFlight atomic.Int64
	tokens   atomic.Int64
}

// Begin counts a request that may need as many tokens, unless most are under way; most 0 is no bound.
func (l *Load) Begin(tokens, most int64) bool {
	for {
		now := l.inFlight.Load()
		if most > 0 && now >= most {
			return false
		}
		if l.inFlight.CompareAndSwap(now, now+1) {
			l.tokens.Add(tokens)
			return true
		}
	}
}

// Progress takes computed tokens off.
func (l *Load) Progress(tokens int64) { l.tokens.Add(-tokens) }

// End takes a request off, with what is left of its tokens.
func (l *Load) End(tokens int64) {
	l.tokens.Add(-tokens)
	l.inFlight.Add(-1)
}

// InFlight is the number of requests under way.
func (l *Load) InFlight() int64 { return l.inFlight.Load() }

// Tokens is the number of tokens these may still need: prompts not started plus tokens not generated.
func (l *Load) Tokens() int64 { return l.tokens.Load() }
