package memorybench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// everything asks for all of a device's memory in ever smaller pieces, and for its account when all is given back.
func (r *run) everything(_ context.Context) (text string, err error) {
	err = r.withDevice(true, func(dev engine.Device) (err error) {
		before, err := dev.Info()
		if err != nil {
			return err
		}
		h := hoard{dev: dev}
		defer func() { err = errors.Join(err, h.drop()) }()
		for size := r.cfg.Piece; size >= leastPiece; size /= 2 {
			if err := h.fill(size); err != nil {
				return err
			}
		}
		if err := h.agrees(); err != nil {
			return err
		}
		given := h.bytes
		r.report.Given = float64(given) / float64(before.BytesFree)
		text = fmt.Sprintf("%.2f of %.2f GB free were given in %d buffers, then: %v", float64(given)/1e9,
			float64(before.BytesFree)/1e9, len(h.buffers), h.refusal)
		if err := h.drop(); err != nil {
			return err
		}
		after, err := dev.Info()
		if err != nil {
			return err
		}
		if after.BytesFree != before.BytesFree || used(&after) != 0 || after.LiveBuffers != 0 || after.FailedFrees != 0 {
			return fmt.Errorf("after everything was given back %d bytes are free and were %d before; %d are used by %d buffers, and "+
				"%d frees failed", after.BytesFree, before.BytesFree, used(&after), after.LiveBuffers, after.FailedFrees)
		}
		return nil
	})
	return text, err
}

// markBytes are written to both ends of a piece that stays while others come and go.
const markBytes = 8

func mark(i int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(i)*0x9e3779b97f4a7c15+1) }

func setMark(b engine.Buffer, i int) error {
	_, err := b.WriteAt(mark(i), 0)
	_, err2 := b.WriteAt(mark(i), int64(b.Size())-markBytes)
	return errors.Join(err, err2)
}

func checkMark(b engine.Buffer, i int) error {
	for _, at := range []int64{0, int64(b.Size()) - markBytes} {
		got := make([]byte, markBytes)
		if _, err := b.ReadAt(got, at); err != nil {
			return err
		}
		if !bytes.Equal(got, mark(i)) {
			return fmt.Errorf("piece %d holds %x at %d and was given %x", i, got, at, mark(i))
		}
	}
	return nil
}

// fragments fills a device with pieces, gives every second back, and asks for one that fits no hole.
func (r *run) fragments(context.Context) (text string, err error) {
	err = r.withDevice(true, func(dev engine.Device) (err error) {
		h, kept := hoard{dev: dev}, hoard{dev: dev}
		defer func() { err = errors.Join(err, h.drop(), kept.drop()) }()
		if err := h.fill(r.cfg.Piece); err != nil {
			return err
		}
		if len(h.buffers) < 3 {
			return skip("%d pieces of %s are all the memory there is: at least 3 make holes", len(h.buffers), sizeName(r.cfg.Piece))
		}
		all := h.buffers
		h.buffers = nil
		for i, b := range all {
			to := &h // given back
			if i%2 == 1 {
				to = &kept
				if err := setMark(b, i); err != nil {
					return err
				}
			}
			to.buffers = append(to.buffers, b)
		}
		kept.bytes = uint64(len(kept.buffers)) * r.cfg.Piece
		holes := len(h.buffers)
		if err := h.drop(); err != nil {
			return err
		}
		wide := 2 * r.cfg.Piece
		if more, err := h.take(wide); err != nil || !more {
			return errors.Join(err, fmt.Errorf("%d holes of %s are free and %s were refused: %w", holes, sizeName(r.cfg.Piece),
				sizeName(wide), h.refusal))
		}
		for i, b := range kept.buffers {
			if err := checkMark(b, 2*i+1); err != nil {
				return err
			}
		}
		text = fmt.Sprintf("%s given where %d holes of %s were free between %d pieces, which kept their bytes", sizeName(wide),
			holes, sizeName(r.cfg.Piece), len(kept.buffers))
		return nil
	})
	return text, err
}
