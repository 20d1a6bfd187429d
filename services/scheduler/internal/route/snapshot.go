package route

import "slices"

// Snapshot is the fleet at one moment. It is immutable, except for the Loads and Prefixes that it
// points to.
type Snapshot struct {
	// Known means that every configured worker has reported, or failed to answer, once. Before
	// that, a worker that is missing may exist.
	Known bool
	// Workers are sorted by address; no two that are Connected have the same ID.
	Workers []Worker

	pools map[string]*pool // by model; nil if NewSnapshot did not make the snapshot
}

// NewSnapshot returns a snapshot with an index of workers by model. The snapshot owns workers.
func NewSnapshot(known bool, workers []Worker) Snapshot {
	s := Snapshot{Known: known, Workers: workers, pools: map[string]*pool{}}
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

// Worker is the last report of one worker.
type Worker struct {
	// ID is empty until its first report.
	ID      string
	Address string
	// Connected means that its reports arrive. If not, the other fields are those of the last report.
	Connected bool
	State     State
	Models    []Model
	// Files are the names of model files that it could load or has loaded, Unusable those that it
	// cannot load.
	Files, Unusable []string
	// Load is never nil.
	Load *Load
}

// State is the state of a worker.
type State uint8

// States of a worker. It serves requests if it is Ready or Degraded.
const (
	Starting State = iota
	Ready
	Degraded
	Draining
	NotReady
)

// Serves reports whether the worker accepts new requests.
func (w *Worker) Serves() bool { return w.Connected && (w.State == Ready || w.State == Degraded) }

// Serving reports whether the worker served a model by its last report.
func (w *Worker) Serving(model string) bool {
	m := w.model(model)
	return m != nil && m.Ready
}

// Has reports whether the worker has a model in memory, loads or unloads it, or has its file.
func (w *Worker) Has(model string) bool {
	return w.model(model) != nil || slices.Contains(w.Files, model)
}

// model returns the worker's model with a name, or nil.
func (w *Worker) model(name string) *Model {
	for i := range w.Models {
		if w.Models[i].Name == name {
			return &w.Models[i]
		}
	}
	return nil
}

// Model is a model that a worker has in memory, loads or unloads.
type Model struct {
	Name string
	// Digest is empty while the model loads.
	Digest string
	// Ready means that the model serves requests.
	Ready bool
	// ClassID is the class of this model on this worker.
	ClassID string
	// ContextLength is the longest sequence in tokens; 0: not known.
	ContextLength int64
	// MaxSequences is the number of slots: sequences that are computed at once; 0: not known.
	MaxSequences int64
	// CacheTokens is how many tokens the KV cache holds, FreeTokens how many of them are free or
	// hold only cached prefixes. CacheTokens 0: neither is known.
	CacheTokens, FreeTokens int64
	// PrefillRate is the last measured rate of prompt tokens a second; 0: not known.
	PrefillRate float64
	// Prefixes are the cached prefixes; nil: none were reported over the worker's current connection.
	Prefixes *Prefixes
}
