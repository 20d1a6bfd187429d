package native

/*
#include "vectors.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// Codebook is a codebook of a native engine, and an engine.CodebookBitFlipper.
type Codebook struct {
	lease
	d    *Device
	v    *C.mr_vector_api
	h    *C.mr_codebook
	desc engine.CodebookDesc
}

// Encode returns the codes of rows.
func (b *Codebook) Encode(e engine.Encoding) (engine.Codes, error) {
	if err := rules.CheckEncoding(b.desc, e); err != nil { // before memory is allocated by its sizes
		return engine.Codes{}, fmt.Errorf("encode: %w", err)
	}
	if err := b.acquire("codebook"); err != nil {
		return engine.Codes{}, err
	}
	defer b.release()
	count := len(e.Rows) / (b.desc.Dimension * e.Element.Size())
	out := engine.Codes{Codes: make([]byte, count*b.desc.Subspaces*e.Neighbours*b.desc.CodeSize())}
	args := C.mr_encode_args{
		struct_size: C.sizeof_mr_encode_args, count: C.uint64_t(count), element_type: C.int32_t(e.Element),
		neighbours: C.int32_t(e.Neighbours),
	}
	if e.Distances {
		out.Distances = make([]float32, count*e.Neighbours)
	}
	if count > 0 {
		var pins runtime.Pinner
		defer pins.Unpin()
		pins.Pin(&e.Rows[0])
		pins.Pin(&out.Codes[0])
		args.rows, args.codes = bytesOf(e.Rows), bytesOf(out.Codes)
		if e.Distances {
			pins.Pin(&out.Distances[0])
			args.distances = (*C.float)(unsafe.SliceData(out.Distances))
		}
	}
	if err := b.d.t.check(C.mrt_codebook_encode(b.v, b.h, &args)); err != nil {
		return engine.Codes{}, fmt.Errorf("encode: %w", err)
	}
	out.Recomputed = uint64(args.recomputed)
	return out, nil
}

// Decode returns the codewords of codes.
func (b *Codebook) Decode(codes []byte) ([]byte, error) {
	size := b.desc.Subspaces * b.desc.CodeSize()
	if len(codes)%size != 0 {
		return nil, fmt.Errorf("decode: %d bytes of codes, want a multiple of %d: %w", len(codes), size, engine.ErrInvalid)
	}
	if err := b.acquire("codebook"); err != nil {
		return nil, err
	}
	defer b.release()
	count := len(codes) / size
	out := make([]byte, count*b.desc.Dimension*b.desc.Type.Size())
	err := b.d.t.check(C.mrt_codebook_decode(b.v, b.h, bytesOf(codes), C.uint64_t(count), bytesOf(out)))
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return out, nil
}

// Digest returns BLAKE3 of the codewords' bytes.
func (b *Codebook) Digest() (engine.Digest, error) {
	if err := b.acquire("codebook"); err != nil {
		return engine.Digest{}, err
	}
	defer b.release()
	var out C.mr_digest
	if err := b.d.t.check(C.mrt_codebook_digest(b.v, b.h, &out)); err != nil {
		return engine.Digest{}, fmt.Errorf("digest codebook: %w", err)
	}
	return digestOf(&out), nil
}

// FlipBit injects a flipped bit into the codewords.
func (b *Codebook) FlipBit(bit uint64) error {
	if err := b.acquire("codebook"); err != nil {
		return err
	}
	defer b.release()
	if err := b.d.t.check(C.mrt_codebook_fault(b.v, b.h, C.MR_FAULT_FLIP_BIT, 0, C.uint64_t(bit))); err != nil {
		return fmt.Errorf("flip bit %d of codebook: %w", bit, err)
	}
	return nil
}

// Close frees the codebook's memory.
func (b *Codebook) Close() error {
	if err := b.close("codebook"); err != nil {
		return err
	}
	if err := b.d.t.check(C.mrt_codebook_destroy(b.v, b.h)); err != nil {
		b.reopen()
		return fmt.Errorf("close codebook: %w", err)
	}
	b.d.watchFrees("a codebook was closed")
	return nil
}

var (
	_ engine.Codebook           = (*Codebook)(nil)
	_ engine.CodebookBitFlipper = (*Codebook)(nil)
)
