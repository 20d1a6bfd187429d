package native

/*
#include "vectors.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"time"
	"unsafe"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Trainer is a training of a native engine.
type Trainer struct {
	lease
	d      *Device
	v      *C.mr_vector_api
	h      *C.mr_trainer
	row    int   // bytes of one
	rounds []int // maximum of rounds of each slice in flight, the oldest first
}

// call runs one function of the trainer. Its error has the name of the operation.
func (t *Trainer) call(what string, f func() *C.mr_error) error {
	if err := t.acquire("trainer"); err != nil {
		return err
	}
	defer t.release()
	if err := t.d.t.check(f()); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Write appends whole rows.
func (t *Trainer) Write(first uint64, rows []byte) error {
	if len(rows)%t.row != 0 {
		return fmt.Errorf("write rows: %d bytes, want a multiple of %d: %w", len(rows), t.row, engine.ErrInvalid)
	}
	return t.call("write rows", func() *C.mr_error {
		return C.mrt_trainer_write(t.v, t.h, C.uint64_t(first), bytesOf(rows), C.uint64_t(len(rows)/t.row))
	})
}

// Give sets the first codewords of a training with Init Given.
func (t *Trainer) Give(codewords []byte) error {
	return t.call("give codewords", func() *C.mr_error {
		return C.mrt_trainer_give(t.v, t.h, bytesOf(codewords), C.uint64_t(len(codewords)))
	})
}

// Restore sets a state that State returned.
func (t *Trainer) Restore(state []byte) error {
	return t.call("restore", func() *C.mr_error {
		return C.mrt_trainer_restore(t.v, t.h, bytesOf(state), C.uint64_t(len(state)))
	})
}

// Submit starts a slice.
func (t *Trainer) Submit(s engine.Slice) error {
	var n narrow
	slice := C.mr_slice{struct_size: C.sizeof_mr_slice, budget_ns: C.uint64_t(max(s.Budget, 0)), max_rounds: n.i32("rounds", s.Rounds)}
	if n.err != nil {
		return n.err
	}
	if err := t.call("submit slice", func() *C.mr_error { return C.mrt_trainer_submit(t.v, t.h, &slice) }); err != nil {
		return err
	}
	t.rounds = append(t.rounds, s.Rounds)
	return nil
}

// Wait blocks its thread in the engine until the oldest slice has ended or the timeout has passed.
// A negative timeout counts as zero.
func (t *Trainer) Wait(timeout time.Duration) (engine.Training, error) {
	room := 1
	if len(t.rounds) > 0 {
		room = t.rounds[0]
	}
	rounds := make([]C.mr_round, room)
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&rounds[0])
	out := C.mr_training{
		struct_size: C.sizeof_mr_training, round_stride: C.sizeof_mr_round,
		rounds: &rounds[0], round_capacity: C.int32_t(room),
	}
	if err := t.call("wait for slice", func() *C.mr_error {
		return C.mrt_trainer_wait(t.v, t.h, C.uint64_t(max(timeout, 0)), &out)
	}); err != nil {
		return engine.Training{}, err
	}
	t.rounds = t.rounds[min(1, len(t.rounds)):]
	if n := int(out.round_count); n < 0 || n > room {
		return engine.Training{}, fmt.Errorf("engine gave %d rounds, more than it was offered: %w", n, engine.ErrDevice)
	}
	return trainingOf(&out, rounds[:out.round_count]), nil
}

func trainingOf(in *C.mr_training, rounds []C.mr_round) engine.Training {
	out := engine.Training{
		Phase: engine.Phase(in.phase), Reason: engine.Reason(in.reason), RowsDone: uint64(in.rows_done), RowsTotal: uint64(in.rows_total),
		Computed: uint64(in.computed), Recomputed: uint64(in.recomputed), DeviceTime: time.Duration(in.device_ns),
	}
	for i := range rounds {
		r := &rounds[i]
		out.Rounds = append(out.Rounds, engine.Round{
			Iteration: int64(r.iteration), Energy: float64(r.energy), Changes: int64(r.changes), Temperature: float64(r.temperature),
			Empty: int64(r.empty), Merged: int64(r.merged), Split: int64(r.split), Imbalance: float64(r.imbalance),
		})
	}
	return out
}

// read reads one of the arrays of the trainer.
func (t *Trainer) read(what C.int32_t, noun string) ([]byte, error) {
	var size C.uint64_t
	if err := t.call("size of "+noun, func() *C.mr_error { return C.mrt_trainer_size(t.v, t.h, what, &size) }); err != nil {
		return nil, err
	}
	if size > math.MaxInt {
		return nil, fmt.Errorf("read %s: %d bytes: %w", noun, uint64(size), engine.ErrDevice)
	}
	out := make([]byte, size)
	err := t.call("read "+noun, func() *C.mr_error { return C.mrt_trainer_read(t.v, t.h, what, 0, bytesOf(out), size) })
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Codewords returns the codebook.
func (t *Trainer) Codewords() ([]byte, error) { return t.read(C.MR_TRAINER_CODEWORDS, "codewords") }

// State returns the state for Restore.
func (t *Trainer) State() ([]byte, error) { return t.read(C.MR_TRAINER_STATE, "state") }

// IDs returns the ids of the last round.
func (t *Trainer) IDs() ([]uint32, error) {
	b, err := t.read(C.MR_TRAINER_IDS, "ids")
	return numbers(b, binary.LittleEndian.Uint32), err
}

// Loads returns the loads of the last round.
func (t *Trainer) Loads() ([]uint64, error) {
	b, err := t.read(C.MR_TRAINER_LOADS, "loads")
	return numbers(b, binary.LittleEndian.Uint64), err
}

// Variances returns the codewords' mean distances in the last round.
func (t *Trainer) Variances() ([]float64, error) {
	b, err := t.read(C.MR_TRAINER_VARIANCES, "variances")
	return numbers(b, func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }), err
}

func numbers[T any](b []byte, get func([]byte) T) []T {
	var zero T
	size := int(unsafe.Sizeof(zero))
	out := make([]T, len(b)/size)
	for i := range out {
		out[i] = get(b[i*size:])
	}
	return out
}

// Close frees all memory.
func (t *Trainer) Close() error {
	if err := t.close("trainer"); err != nil {
		return err
	}
	if err := t.d.t.check(C.mrt_trainer_destroy(t.v, t.h)); err != nil {
		t.reopen()
		return fmt.Errorf("close trainer: %w", err)
	}
	t.d.watchFrees("a trainer was closed")
	return nil
}

var _ engine.Trainer = (*Trainer)(nil)
