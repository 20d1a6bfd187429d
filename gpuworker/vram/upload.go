package vram

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/gpuworker/engine"
)

// DefaultChunk is how many bytes Upload moves at a time unless told: large enough that the device's copy dominates, small
// enough that cancellation and progress are prompt.
const DefaultChunk = 1 << 20

// Upload fills dst from its beginning with exactly dst.Size() bytes of src, chunk bytes at a time (0 = DefaultChunk). It
// calls progress, if not nil, with the bytes done so far after every chunk, and stops between chunks when ctx ends. A
// source that ends early is io.ErrUnexpectedEOF; what is behind the last byte wanted is not read.
func Upload(ctx context.Context, dst *Buffer, src io.Reader, chunk int, progress func(done uint64)) error {
	if chunk == 0 {
		chunk = DefaultChunk
	}
	if chunk < 0 {
		return fmt.Errorf("upload %s in chunks of %d bytes: %w", dst.Name(), chunk, engine.ErrInvalid)
	}
	piece := make([]byte, min(uint64(chunk), dst.Size()))
	for done := uint64(0); done < dst.Size(); {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("upload %s at byte %d of %d: %w", dst.Name(), done, dst.Size(), err)
		}
		p := piece[:min(uint64(len(piece)), dst.Size()-done)]
		if _, err := io.ReadFull(src, p); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("upload %s: read at byte %d of %d: %w", dst.Name(), done, dst.Size(), err)
		}
		if _, err := dst.WriteAt(p, int64(done)); err != nil {
			return fmt.Errorf("upload: %w", err)
		}
		done += uint64(len(p))
		if progress != nil {
			progress(done)
		}
	}
	return nil
}
