package vectors

import (
	"cmp"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Config of a Manager.
type Config struct {
	Dir          string // of codebook files; it is made when the first is written
	MaxTrainings int    // at once; 0: none
	SpoolSpace   uint64 // bytes of host memory for rows that the device does not hold, of all trainings together
	PutSpace     uint64 // bytes of host memory for codebooks that are being put, of all together; 0: 2 GiB
	// Share of the time that trainings compute while models have work; (0, 1]. 0: a tenth.
	Share          float64
	VerifyInterval time.Duration // from one check of the resident codebooks to the next; 0 or less: they are checked at load only
	// Tokens says what the models do. nil: nothing ever.
	Tokens func() Tokens
}

const defaultPutSpace = 2 << 30

// Tokens is what the models of the same device do.
type Tokens struct {
	Busy  bool   // some sequence waits or runs
	Steps uint64 // done so far
}

// Job is what to train. Its Trainer says everything but Rows and SpoolBytes, which Begin fills in.
type Job struct {
	Trainer engine.TrainerConfig
	Rows    uint64 // of the data, as many as will be sent
	// MaxRows is the most rows to train on; 0: all. They are drawn evenly.
	MaxRows     uint64
	Checkpoint  int    // iterations from one checkpoint to the next; 0: none
	ResumeBytes uint64 // of the checkpoint that comes first; 0: it begins anew
	SaveAs      string // name of the file; empty: it is not saved
	Statistics  bool   // End has the rows and the variance of each codeword
}

// MaxStatistics is the most codewords, of all subspaces, of which an End has statistics: with more the host memory of a worker would
// grow with what its callers ask for.
const MaxStatistics = 1 << 22

// codewords are those of all subspaces.
func (j Job) codewords() int {
	return j.Trainer.Codebook.Codewords * j.Trainer.Codebook.Subspaces
}

// Sampled is the rows that are trained on.
func (j Job) Sampled() uint64 { return min(cmp.Or(j.MaxRows, j.Rows), j.Rows) }

// Ratio is the bytes of the codebook and of the rows' codes over those of the rows.
func (j Job) Ratio() float64 {
	d := j.Trainer.Codebook
	codes := float64(j.Rows) * float64(d.Subspaces) * float64(d.CodeSize())
	return (float64(d.Bytes()) + codes) / (float64(j.Rows) * float64(d.Dimension) * float64(j.Trainer.Element.Size()))
}

// prologue is the bytes that come before the rows.
func (j Job) prologue() uint64 {
	switch {
	case j.ResumeBytes > 0:
		return j.ResumeBytes
	case j.Trainer.Init == engine.Given:
		return j.Trainer.Codebook.Bytes()
	}
	return 0
}

// A state begins with a mark and then the updates before its round, int64; stateHeader is the bytes before its codewords.
const (
	stateMark   = "MRVSTAT\x01"
	stateHeader = 40
)

// canResume says whether a state of the job may have so many bytes: the codewords, those of the round before if there was one, and
// for Annealed a place and a velocity, in float64, for each value.
func (j Job) canResume(bytes uint64) bool {
	d := j.Trainer.Codebook
	least := stateHeader + d.Bytes()
	if j.Trainer.Algorithm == engine.Annealed {
		least += 16 * uint64(d.Codewords) * uint64(d.Dimension)
	}
	return bytes == least || bytes == least+d.Bytes()
}
