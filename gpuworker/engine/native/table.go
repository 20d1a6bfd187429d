package native

/*
#cgo CFLAGS: -I${SRCDIR}/../../../cuda/include
#include "table.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cuda/cpu"
	"github.com/millrace/millrace/gpuworker/engine"
)

// abiMajor is the only major version of the ABI that this package speaks.
const abiMajor = uint32(C.MR_ABI_MAJOR)

// table is one engine: its function pointers and where they came from.
type table struct {
	api   *C.mr_api
	build string
	from  string // "built in", or the path of a library
}

// embedded is the CPU engine that is linked into the binary.
func embedded() (*table, error) { return newTable((*C.mr_api)(cpu.Table()), "built in") }

// newTable checks that api has every function this package calls.
func newTable(api *C.mr_api, from string) (*table, error) {
	switch {
	case api == nil:
		return nil, fmt.Errorf("engine %s: no table for abi version %d: %w", from, abiMajor, engine.ErrNoDevice)
	case uint32(api.abi_major) != abiMajor:
		return nil, versionError(from, uint32(api.abi_major))
	case api.struct_size < C.mrt_table_size():
		return nil, fmt.Errorf("engine %s speaks abi version %d.%d and this program needs %d.%d (a table of %d bytes, it has "+
			"%d), install the engine of this release: %w", from, api.abi_major, api.abi_minor, abiMajor,
			uint32(C.MR_ABI_MINOR), C.mrt_table_size(), api.struct_size, engine.ErrNoDevice)
	}
	return &table{api: api, build: C.GoString(api.build), from: from}, nil
}

func versionError(from string, has uint32) error {
	return fmt.Errorf("engine %s speaks abi version %d and this program version %d, install the engine of this release: %w",
		from, has, abiMajor, engine.ErrNoDevice)
}

// deviceCount is how many devices the engine can open.
func (t *table) deviceCount() (int, error) {
	var n C.int32_t
	if err := t.check(C.mrt_device_count(t.api, &n)); err != nil {
		return 0, fmt.Errorf("count devices: %w", err)
	}
	return int(n), nil
}

// open opens a device of this engine, and others that hold models together with it, of a size that
// o gives. What frees later refuse is logged to logger.
func (t *table) open(index int, others []int, o Options, logger hclog.Logger) (*Device, error) {
	var n narrow
	opts := C.mr_device_options{
		struct_size: C.sizeof_mr_device_options,
		index:       n.i32("device index", index),
		threads:     n.i32("threads", o.Threads),
		bytes_limit: C.uint64_t(o.BytesLimit),
		pool_limit:  C.uint64_t(o.PoolLimit),
		other_count: n.i32("number of GPUs", len(others)),
	}
	indices := make([]C.int32_t, len(others))
	for i, other := range others {
		indices[i] = n.i32("device index", other)
	}
	if n.err != nil {
		return nil, n.err
	}
	if len(indices) > 0 {
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(&indices[0])
		opts.others = &indices[0]
	}
	if o.Path != "" { // Check refuses it for a GPU
		opts.path = cString(o.Path)
		defer cFree(unsafe.Pointer(opts.path))
	}
	var handle *C.mr_device
	if err := t.check(C.mrt_device_open(t.api, &opts, &handle)); err != nil {
		return nil, fmt.Errorf("open device %s: %w", strings.Trim(fmt.Sprint(append([]int{index}, others...)), "[]"), err)
	}
	return &Device{t: t, h: handle, logger: logger.Named("engine")}, nil
}
