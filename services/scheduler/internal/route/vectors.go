package route

import "sync/atomic"

// Vectors is what a worker has and does of vector codebooks, as it last reported.
type Vectors struct {
	Codebooks []Codebook
	// MaxTrainings is how many trainings it runs at once; 0: it takes none.
	MaxTrainings int64
	// FreeDevice and FreeSpool are bytes that a training may take on its device, and on its host for rows that the device does not
	// hold.
	FreeDevice, FreeSpool uint64
}

// Codebook is a codebook in a worker's memory or codebooks directory.
type Codebook struct {
	Name   string
	Digest string
	State  CodebookState
}

// CodebookState is what a worker can do with a codebook.
type CodebookState uint8

// States of a codebook.
const (
	CodebookOnDisk   CodebookState = iota // a file that could be loaded
	CodebookUnusable                      // a file that cannot
	CodebookFailed                        // loaded, and out of service
	CodebookReady                         // serving
)

// codebook is the worker's codebook of that name, or nil.
func (w *Worker) codebook(name string) *Codebook {
	if w.Vectors == nil {
		return nil
	}
	for i := range w.Vectors.Codebooks {
		if w.Vectors.Codebooks[i].Name == name {
			return &w.Vectors.Codebooks[i]
		}
	}
	return nil
}

// VectorLoad counts what this process has under way of vectors on one worker. It is apart from what token streams take there. Safe
// for concurrent use; the zero value is idle.
type VectorLoad struct {
	calls, bytes atomic.Int64
	trainings    trainings
}

// Begin counts a call that encodes or decodes as many bytes.
func (l *VectorLoad) Begin(bytes int64) {
	l.calls.Add(1)
	l.bytes.Add(bytes)
}

// End takes the call off.
func (l *VectorLoad) End(bytes int64) {
	l.bytes.Add(-bytes)
	l.calls.Add(-1)
}

// Calls is the number of such calls, Bytes that of their bytes.
func (l *VectorLoad) Calls() int64 { return l.calls.Load() }

// Bytes are those of the calls under way.
func (l *VectorLoad) Bytes() int64 { return l.bytes.Load() }

// UnderWay is the number of this process's own calls there: those that encode, decode or train.
func (l *VectorLoad) UnderWay() int64 { return l.calls.Load() + l.trainings.own.Load() }

// Trainings are those that run there, of everybody: this process's own as of now, others' by the last report.
func (l *VectorLoad) Trainings() int64 { return l.trainings.sum() }

// Train counts a training, unless most run there; false: it is not counted.
func (l *VectorLoad) Train(most int64) bool { return l.trainings.take(most) }

// Trained takes a training off.
func (l *VectorLoad) Trained() { l.trainings.end() }

// Reported takes how many trainings a worker's report shows.
func (l *VectorLoad) Reported(trainings int64) { l.trainings.reported(trainings) }

// idle is whether nothing is under way.
func (l *VectorLoad) idle() bool { return l.UnderWay() == 0 }
