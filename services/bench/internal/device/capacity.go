package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
)

// everything allocates all of a device's memory in ever smaller pieces, frees it, and compares the
// device's counters.
func (r *run) everything(_ context.Context) (text string, err error) {
	err = r.withDevice(true, func(dev engine.Device) (err error) {
		before, err := dev.Info()
		if err != nil {
			return err
		}
		h := hoard{dev: dev}
		defer func() { err = errors.Join(err, h.free()) }()
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
		if err := h.free(); err != nil {
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

// markBytes are written to both ends of a piece that stays allocated while others are freed.
const markBytes = 8

func mark(i int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(i)*0x9e3779b97f4a7c15+1) }

func setMark(b engine.Buffer, i int) error {
	_, err := b.WriteAt(mark(i), 0)
	_, err2 := b.WriteAt(mark(i), int64(b.Size())-markBytes)
	return errors.Join(err, err2)
}

func checkMark(b engine.Buffer, i int) error {
	for _, offset := range []int64{0, int64(b.Size()) - markBytes} {
		got := make([]byte, markBytes)
		if _, err := b.ReadAt(got, offset); err != nil {
			return err
		}
		if !bytes.Equal(got, mark(i)) {
			return fmt.Errorf("piece %d holds %x at %d and was given %x", i, got, offset, mark(i))
		}
	}
	return nil
}

// fragments fills a device with pieces, frees every second one, and allocates one that fits no
// hole.
func (r *run) fragments(context.Context) (text string, err error) {
	err = r.withDevice(true, func(dev engine.Device) (err error) {
		h, kept := hoard{dev: dev}, hoard{dev: dev}
		defer func() { err = errors.Join(err, h.free(), kept.free()) }()
		if err := h.fill(r.cfg.Piece); err != nil {
			return err
		}
		if len(h.buffers) < 3 {
			return skip("%d pieces of %s are all the memory there is: at least 3 make holes", len(h.buffers), sizeName(r.cfg.Piece))
		}
		all := h.buffers
		h.buffers = nil
		for i, b := range all {
			target := &h // freed
			if i%2 == 1 {
				target = &kept
				if err := setMark(b, i); err != nil {
					return err
				}
			}
			target.buffers = append(target.buffers, b)
		}
		kept.bytes = uint64(len(kept.buffers)) * r.cfg.Piece
		holes := len(h.buffers)
		if err := h.free(); err != nil {
			return err
		}
		wide := 2 * r.cfg.Piece
		if more, err := h.alloc(wide); err != nil || !more {
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

// leastPiece is the smallest piece: the page size with which drivers map large blocks.
const leastPiece = 2 << 20

// numbersOfFree finds "N of M bytes free".
var numbersOfFree = regexp.MustCompile(`\d+ of \d+ bytes free`)

// checkRefusal returns an error unless a refusal is ErrOutOfMemory and its text has the requested
// and the free bytes.
func checkRefusal(err error, asked uint64) error {
	if !errors.Is(err, engine.ErrOutOfMemory) {
		return fmt.Errorf("%s were refused with %w: want %q", sizeName(asked), err, engine.ErrOutOfMemory.Error())
	}
	_, text, _ := strings.Cut(err.Error(), engine.ErrOutOfMemory.Error()) // the engine's text, without that of its callers
	switch {
	case !regexp.MustCompile(`\b` + strconv.FormatUint(asked, 10) + `\b`).MatchString(text):
		return fmt.Errorf("the refusal %q does not say the %d bytes asked", text, asked)
	case !numbersOfFree.MatchString(text):
		return fmt.Errorf("the refusal %q does not say the bytes that are free", text)
	}
	return nil
}

// hoard is the buffers that a check holds on one device.
type hoard struct {
	dev     engine.Device
	buffers []engine.Buffer
	bytes   uint64
	refusal error // the last
}

// alloc allocates one piece. It returns false if the device refused, and an error if the refusal
// is not as it must be.
func (h *hoard) alloc(size uint64) (bool, error) {
	b, err := h.dev.Alloc(size, engine.Weights)
	if err != nil {
		h.refusal = err
		return false, checkRefusal(err, size)
	}
	h.buffers = append(h.buffers, b)
	h.bytes += size
	return true, nil
}

// fill allocates pieces of one size until one is refused.
func (h *hoard) fill(size uint64) error {
	for {
		if more, err := h.alloc(size); err != nil || !more {
			return err
		}
	}
}

// free frees everything.
func (h *hoard) free() error {
	var errs []error
	for _, b := range h.buffers {
		errs = append(errs, b.Free())
	}
	h.buffers, h.bytes = nil, 0
	return errors.Join(errs...)
}

// used returns the live bytes of every purpose.
func used(info *engine.DeviceInfo) (sum uint64) {
	for _, n := range info.BytesUsed {
		sum += n
	}
	return sum
}

// agrees compares the device's counters with the buffers of h.
func (h *hoard) agrees() error {
	info, err := h.dev.Info()
	if err != nil {
		return err
	}
	if used(&info) != h.bytes || info.LiveBuffers != uint64(len(h.buffers)) {
		return fmt.Errorf("the device counts %d bytes in %d buffers, and %d in %d are held", used(&info), info.LiveBuffers,
			h.bytes, len(h.buffers))
	}
	return nil
}
