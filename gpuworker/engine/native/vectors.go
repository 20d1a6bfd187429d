package native

/*
#include "vectors.h"
*/
import "C"

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// vectors returns the engine's functions of vector codebooks, or ErrUnsupported.
func (t *table) vectors() (*C.mr_vector_api, error) {
	v := C.mrt_vectors(t.api)
	if v == nil {
		return nil, fmt.Errorf("engine %s (%s) has no vector codebooks: %w", t.from, t.build, engine.ErrUnsupported)
	}
	return v, nil
}

func codebookDesc(d engine.CodebookDesc) (C.mr_codebook_desc, error) {
	var n narrow
	return C.mr_codebook_desc{
		struct_size: C.sizeof_mr_codebook_desc, kind: C.int32_t(d.Kind), metric: C.int32_t(d.Metric),
		dimension: n.i32("dimension", d.Dimension), codewords: n.i32("codewords", d.Codewords),
		subspaces: n.i32("subspaces", d.Subspaces), codeword_type: C.int32_t(d.Type),
	}, n.err
}

func trainerConfig(c engine.TrainerConfig) (C.mr_trainer_config, error) {
	var n narrow
	book, a := c.Codebook, c.Annealing
	return C.mr_trainer_config{
		struct_size: C.sizeof_mr_trainer_config, rows: C.uint64_t(c.Rows), element_type: C.int32_t(c.Element),
		dimension: n.i32("dimension", book.Dimension), codewords: n.i32("codewords", book.Codewords),
		subspaces: n.i32("subspaces", book.Subspaces), kind: C.int32_t(book.Kind), codeword_type: C.int32_t(book.Type),
		metric: C.int32_t(book.Metric), algorithm: C.int32_t(c.Algorithm), init: C.int32_t(c.Init),
		max_iterations: n.i32("max iterations", c.MaxIterations), stable_iterations: n.i32("stable iterations", c.StableRounds),
		maintenance_interval: n.i32("maintenance interval", a.MaintenanceInterval), seed: C.uint64_t(c.Seed),
		min_changes: C.int64_t(c.MinChanges), energy_tolerance: C.double(c.EnergyTolerance),
		temperature: C.double(a.Temperature), cooling_rate: C.double(a.CoolingRate), learning_rate: C.double(a.LearningRate),
		momentum: C.double(a.Momentum), trim: C.double(a.Trim), step_limit: C.double(a.StepLimit),
		merge_distance: C.double(a.MergeDistance), split_load: C.double(a.SplitLoad), spool_bytes: C.uint64_t(c.SpoolBytes),
	}, n.err
}

// TrainerCost returns the memory that a trainer would allocate.
func (d *Device) TrainerCost(cfg engine.TrainerConfig) (engine.TrainerCost, error) {
	v, err := d.t.vectors()
	if err != nil {
		return engine.TrainerCost{}, err
	}
	ccfg, err := trainerConfig(cfg)
	if err != nil {
		return engine.TrainerCost{}, err
	}
	if err := d.acquire("device"); err != nil {
		return engine.TrainerCost{}, err
	}
	defer d.release()
	cost := C.mr_trainer_cost{struct_size: C.sizeof_mr_trainer_cost}
	if err := d.t.check(C.mrt_trainer_cost(v, d.h, &ccfg, &cost)); err != nil {
		return engine.TrainerCost{}, fmt.Errorf("trainer cost: %w", err)
	}
	return engine.TrainerCost{DeviceBytes: uint64(cost.device_bytes), SpoolBytes: uint64(cost.spool_bytes)}, nil
}

// NewTrainer allocates all memory of a training.
func (d *Device) NewTrainer(cfg engine.TrainerConfig) (engine.Trainer, error) {
	v, err := d.t.vectors()
	if err != nil {
		return nil, err
	}
	ccfg, err := trainerConfig(cfg)
	if err != nil {
		return nil, err
	}
	if err := d.acquire("device"); err != nil {
		return nil, err
	}
	defer d.release()
	var handle *C.mr_trainer
	if err := d.t.check(C.mrt_trainer_create(v, d.h, &ccfg, &handle)); err != nil {
		return nil, fmt.Errorf("create trainer: %w", err)
	}
	return &Trainer{d: d, v: v, h: handle, row: cfg.Codebook.Dimension * cfg.Element.Size()}, nil
}

// NewCodebook copies codewords.
func (d *Device) NewCodebook(desc engine.CodebookDesc, codewords []byte) (engine.Codebook, error) {
	v, err := d.t.vectors()
	if err != nil {
		return nil, err
	}
	cdesc, err := codebookDesc(desc)
	if err != nil {
		return nil, err
	}
	if err := d.acquire("device"); err != nil {
		return nil, err
	}
	defer d.release()
	var handle *C.mr_codebook
	err = d.t.check(C.mrt_codebook_create(v, d.h, &cdesc, bytesOf(codewords), C.uint64_t(len(codewords)), &handle))
	if err != nil {
		return nil, fmt.Errorf("create codebook: %w", err)
	}
	return &Codebook{d: d, v: v, h: handle, desc: desc}, nil
}

var _ engine.Vectors = (*Device)(nil)
