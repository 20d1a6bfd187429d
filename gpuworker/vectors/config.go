package vectors

import (
	"cmp"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Config configures a Manager.
type Config struct {
	Dir          string // of codebook files; created with the first file
	MaxTrainings int    // at once; 0: none
	SpoolSpace   uint64 // bytes of host memory for rows that do not fit on the device, of all trainings together
	PutSpace     uint64 // bytes of host memory for codebooks in the middle of a put, all together; 0: 2 GiB
	// Share of the time that trainings compute while models have work; (0, 1]. 0: a tenth.
	Share          float64
	VerifyInterval time.Duration // between checks of a resident codebook; 0 or less: it is checked at load only
	// Tokens returns the work of the models. nil: they are idle.
	Tokens func() Tokens
}

const defaultPutSpace = 2 << 30

// Tokens is the work of the models of the same device.
type Tokens struct {
	Busy  bool   // whether a sequence waits or runs
	Steps uint64 // computed so far
}

// Job describes a training. Its Trainer has all but Rows and SpoolBytes, which Begin sets.
type Job struct {
	Trainer engine.TrainerConfig
	Rows    uint64 // of the data: how many will be sent
	// MaxRows bounds the rows to train on; 0: all. They are drawn evenly.
	MaxRows     uint64
	Checkpoint  int    // iterations from one checkpoint to the next; 0: none
	ResumeBytes uint64 // size of the checkpoint that comes first; 0: none comes
	SaveAs      string // name of the file; empty: the codebook is not saved
	Statistics  bool   // whether End has the rows and the variance of each codeword
}

// MaxStatistics bounds the codewords, of all subspaces, whose statistics an End has. Without it the
// host memory of a worker would grow with the requests of its callers.
const MaxStatistics = 1 << 22

// codewords returns the codewords of all subspaces.
func (j Job) codewords() int {
	return j.Trainer.Codebook.Codewords * j.Trainer.Codebook.Subspaces
}

// Sampled returns the number of rows to train on.
func (j Job) Sampled() uint64 { return min(cmp.Or(j.MaxRows, j.Rows), j.Rows) }

// Ratio returns the bytes of the codebook and the rows' codes, divided by those of the rows.
func (j Job) Ratio() float64 {
	d := j.Trainer.Codebook
	codes := float64(j.Rows) * float64(d.Subspaces) * float64(d.CodeSize())
	return (float64(d.Bytes()) + codes) / (float64(j.Rows) * float64(d.Dimension) * float64(j.Trainer.Element.Size()))
}

// prologue returns the bytes that come before the rows.
func (j Job) prologue() uint64 {
	switch {
	case j.ResumeBytes > 0:
		return j.ResumeBytes
	case j.Trainer.Init == engine.Given:
		return j.Trainer.Codebook.Bytes()
	}
	return 0
}

// A state begins with a magic number and the updates before its round, int64. stateHeader is the
// bytes before its codewords.
const (
	stateMark   = "MRVSTAT\x01"
	stateHeader = 40
)

// canResume reports whether a state of the job may have this size: the codewords, those of the
// round before if there was one, and for Annealed a place and a velocity, in float64, for each
// value.
func (j Job) canResume(bytes uint64) bool {
	d := j.Trainer.Codebook
	least := stateHeader + d.Bytes()
	if j.Trainer.Algorithm == engine.Annealed {
		least += 16 * uint64(d.Codewords) * uint64(d.Dimension)
	}
	return bytes == least || bytes == least+d.Bytes()
}
