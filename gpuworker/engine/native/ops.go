package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Run does one plain operation and returns when it is done.
func (d *Device) Run(a engine.OpArgs) (time.Duration, error) {
	if err := d.acquire("device"); err != nil {
		return 0, err
	}
	defer d.release()
	args := C.mr_op_args{
		struct_size: C.sizeof_mr_op_args,
		op:          C.int32_t(a.Op), a_type: C.int32_t(a.AType),
		rows: C.int64_t(a.Rows), cols: C.int64_t(a.Cols), inner: C.int64_t(a.Inner),
		batch: C.int32_t(a.Batch), heads: C.int32_t(a.Heads), kv_heads: C.int32_t(a.KVHeads),
		rope_style: C.int32_t(a.RopeStyle), first_position: C.int32_t(a.FirstPosition),
		eps: C.float(a.Eps), scale: C.float(a.Scale), rope_base: C.float(a.Base),
	}
	var out *C.mr_buffer
	var held []*Buffer
	defer func() {
		for _, b := range held {
			b.release()
		}
	}()
	for _, operand := range []struct {
		name string
		buf  engine.Buffer
		into **C.mr_buffer
	}{{"a", a.A, &args.a}, {"b", a.B, &args.b}, {"c", a.C, &args.c}, {"out", a.Out, &out}} {
		if operand.buf == nil {
			continue
		}
		own, err := d.t.buffer(operand.buf)
		if err != nil {
			return 0, fmt.Errorf("operand %s: %w", operand.name, err)
		}
		if err := own.acquire("operand " + operand.name); err != nil {
			return 0, err
		}
		held = append(held, own)
		*operand.into = own.h
	}
	args.out = out
	var ns C.uint64_t
	if err := d.t.check(C.mrt_op_run(d.t.api, d.h, &args, &ns)); err != nil {
		return 0, fmt.Errorf("run operation %d: %w", a.Op, err)
	}
	return time.Duration(ns), nil
}
