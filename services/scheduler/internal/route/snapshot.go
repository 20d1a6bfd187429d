package route

import "slices"

// Snapshot is the fleet at one moment. It is immutable, the Loads and Prefixes it points to aside.
type Snapshot struct {
	// Known is whether every configured worker has reported or failed to answer once: before that, nothing may be
	// concluded from what is missing.
	Known bool
	// Workers are sorted by address; no two that are Connected have the same ID.
	Workers []Worker

	pools   map[string]*pool   // by model; nil in a snapshot that NewSnapshot has not made
	shelves map[string][]shelf // by codebook; as pools
}

// NewSnapshot makes a snapshot in which Pick finds the workers of a model at once. It keeps workers.
func NewSnapshot(known bool, workers []Worker) Snapshot {
	s := Snapshot{Known: known, Workers: workers, pools: map[string]*pool{}, shelves: shelves(workers)}
	for i := range workers {
		w := &workers[i]
		if !w.Serves() {
			continue
		}
		for j := range w.Models {
			if m := &w.Models[j]; m.Ready {
				p := s.pools[m.Name]
				if p == nil {
					p = &pool{entries: make([]entry, 0, len(workers)-i)}
					s.pools[m.Name] = p
				}
				p.add(i, w, m)
			}
		}
	}
	return s
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
	// Vectors is nil where the worker has none.
	Vectors *Vectors
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

// Serving is whether it served a model by its last report.
func (w *Worker) Serving(model string) bool {
	m := w.model(model)
	return m != nil && m.Ready
}

// Has is whether it has a model, in memory, on its way there, or on disk.
func (w *Worker) Has(model string) bool {
	return w.model(model) != nil || slices.Contains(w.Files, model)
}

// model is the worker's model of that name, or nil.
func (w *Worker) model(name string) *Model {
	for i := range w.Models {
		if w.Models[i].Name == name {
			return &w.Models[i]
		}
	}
	return nil
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
	// MaxSequences is how many sequences it computes at once; 0 is not known.
	MaxSequences int64
	// CacheTokens is how many tokens its KV cache holds, FreeTokens how many of them are free or hold cached prefixes only.
	// CacheTokens 0: neither is known.
	CacheTokens, FreeTokens int64
	// PrefillRate is the prompt tokens that it computed a second when it last computed any; 0 is not known.
	PrefillRate float64
	// Prefixes are the cached ones; nil: none were told. Only the worker's present connection tells of them.
	Prefixes *Prefixes
}
