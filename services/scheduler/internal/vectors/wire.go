package vectors

import (
	"encoding/binary"
	"errors"
	"io"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxName bounds the texts that are read from a message: names and digests are far shorter.
const maxName = 4 << 10

// errWire: the bytes are not a message.
var errWire = errors.New("is not a valid protobuf message")

// field is one field of a message in buffers.
type field struct {
	number protowire.Number
	value  uint64 // if it is a number
	size   int    // if it has bytes; else -1
	r      *mem.Reader
	end    int // what remains of the message after it, in bytes
}

// text reads a short text. Longer ones than maxName bytes are invalid.
func (f *field) text() (string, error) {
	if f.size < 0 || f.size > maxName {
		return "", errWire
	}
	out := make([]byte, f.size)
	if _, err := io.ReadFull(f.r, out); err != nil || !utf8.Valid(out) {
		return "", errWire
	}
	return string(out), nil
}

// walk visits the fields of a message that ends where r has end bytes left. Bytes that a visit does
// not read are skipped without a copy, so that rows and codes are never decoded.
func walk(r *mem.Reader, end int, visit func(f *field) error) error {
	for r.Remaining() > end {
		tag, err := binary.ReadUvarint(r)
		if err != nil || r.Remaining() < end {
			return errWire
		}
		number, kind := protowire.DecodeTag(tag)
		if number < 1 {
			return errWire
		}
		f := field{number: number, size: -1, r: r}
		skip := 0
		switch kind {
		case protowire.VarintType:
			f.value, err = binary.ReadUvarint(r)
		case protowire.Fixed64Type:
			skip = 8
		case protowire.Fixed32Type:
			skip = 4
		case protowire.BytesType:
			var size uint64
			if size, err = binary.ReadUvarint(r); size > uint64(r.Remaining()) {
				return errWire
			}
			f.size, skip = int(size), int(size)
		default:
			return errWire
		}
		if f.end = r.Remaining() - skip; err != nil || f.end < end {
			return errWire
		}
		if err := visit(&f); err != nil {
			return err
		}
		if _, err := r.Discard(r.Remaining() - f.end); err != nil {
			return errWire
		}
	}
	return nil
}

// target has the fields of an EncodeRequest or DecodeRequest that route it. Both have them under
// the same numbers.
type target struct{ codebook, digest string }

// targetOf reads the target of a request.
func targetOf(data mem.BufferSlice) (t target, err error) {
	r := data.Reader()
	defer func() { _ = r.Close() }() // never fails
	err = walk(r, 0, func(f *field) (err error) {
		switch f.number {
		case 1:
			t.codebook, err = f.text()
		case 2:
			t.digest, err = f.text()
		}
		return err
	})
	if err != nil {
		err = malformed("millrace.v1 request", err.Error()+", or has a name of more than 4 KiB or that is not UTF-8")
	}
	return t, err
}

// event has the fields of a TrainCodebookResponse that the end of a training may need.
type event struct {
	finished  bool
	iteration uint64 // of a checkpoint
	whole     bool   // whether this piece completes it
}

// eventOf reads an event; other bytes give an empty event.
func eventOf(data mem.BufferSlice) (e event) {
	r := data.Reader()
	defer func() { _ = r.Close() }()      // never fails
	_ = walk(r, 0, func(f *field) error { // the caller gets every byte anyway
		switch f.number {
		case 4:
			var offset, total, size uint64
			err := walk(f.r, f.end, func(f *field) error {
				switch f.number {
				case 1:
					e.iteration = f.value
				case 2:
					offset = f.value
				case 3:
					total = f.value
				case 4:
					size = uint64(max(f.size, 0))
				}
				return nil
			})
			e.whole = err == nil && total > 0 && offset+size == total
			return err
		case 6:
			e.finished = true
		}
		return nil
	})
	return e
}
