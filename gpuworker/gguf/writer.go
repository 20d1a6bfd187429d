package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// ErrWriter means that a Writer was used out of order or given a value that no file can hold.
var ErrWriter = errors.New("gguf writer misused")

// Writer writes a version 3 file as a stream: first all metadata and tensor descriptions, then
// Begin, then the bytes of every tensor in that order, then Close. The first error is kept and
// returned by every later call. It is not safe for concurrent use.
type Writer struct {
	w         *bufio.Writer
	err       error
	alignment uint64
	pairs     []byte // encoded
	numPairs  uint64
	infos     []byte // encoded
	sizes     []uint64
	names     map[string]bool
	keys      map[string]bool
	next      uint64 // data offset of the next tensor
	begun     bool
	current   int    // tensor being written
	left      uint64 // bytes that it still needs
}

// NewWriter returns a Writer onto w. The Writer buffers; Close flushes and does not close w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: bufio.NewWriterSize(w, 64<<10), alignment: defaultAlignment, names: map[string]bool{}, keys: map[string]bool{}}
}

// ArrayOf is an array of arrays, or any array with an explicit element type. Each item has the Go
// type of the element type, and is an ArrayOf or a slice if Elem is Array.
type ArrayOf struct {
	Elem  ValueType
	Items []any
}

// Set adds a metadata pair. The value's Go type decides its type in the file: bool, string, intN,
// uintN, floatN, a slice of one of these, or ArrayOf. Setting general.alignment, as a uint32 before
// any tensor, aligns the tensors.
func (w *Writer) Set(key string, value any) {
	switch {
	case w.err != nil:
		return
	case w.begun || key == "" || len(key) > maxKey || w.keys[key]:
		w.fail("set %q: after Begin, twice, or a bad key", key)
		return
	}
	t, encoded, err := encode(value)
	if err != nil {
		w.fail("set %q: %v", key, err)
		return
	}
	if key == alignmentKey {
		a, ok := value.(uint32)
		if !ok || a < minAlignment || a > maxAlignment || a&(a-1) != 0 || len(w.sizes) > 0 {
			w.fail("set %q to %v", key, value)
			return
		}
		w.alignment = uint64(a)
	}
	w.keys[key] = true
	w.pairs = appendString(w.pairs, key)
	w.pairs = binary.LittleEndian.AppendUint32(w.pairs, uint32(t))
	w.pairs = append(w.pairs, encoded...)
	w.numPairs++
}

// Tensor describes the next tensor; its bytes follow after Begin.
func (w *Writer) Tensor(name string, t Type, dims ...uint64) {
	if w.err != nil {
		return
	}
	size, err := tensorSize(t, dims)
	if err != nil || w.begun || name == "" || len(name) > maxTensorName || w.names[name] {
		w.fail("tensor %q %v %v: after Begin, twice, or a bad name or size: %v", name, t, dims, err)
		return
	}
	if size > math.MaxInt64-maxAlignment || w.next > math.MaxInt64-maxAlignment-size {
		w.fail("tensor %q: file too large", name)
		return
	}
	w.names[name] = true
	w.infos = appendString(w.infos, name)
	w.infos = binary.LittleEndian.AppendUint32(w.infos, uint32(len(dims)))
	for _, d := range dims {
		w.infos = binary.LittleEndian.AppendUint64(w.infos, d)
	}
	w.infos = binary.LittleEndian.AppendUint32(w.infos, uint32(t))
	w.infos = binary.LittleEndian.AppendUint64(w.infos, w.next)
	w.sizes = append(w.sizes, size)
	w.next = alignUp(w.next+size, w.alignment)
}

// Begin writes the header. Tensor bytes follow through Write.
func (w *Writer) Begin() error {
	if w.begun {
		w.fail("Begin twice")
	}
	if w.err != nil {
		return w.err
	}
	w.begun = true
	head := append([]byte(magic), 3, 0, 0, 0)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(w.sizes)))
	head = binary.LittleEndian.AppendUint64(head, w.numPairs)
	w.put(head)
	w.put(w.pairs)
	w.put(w.infos)
	w.pad(uint64(len(head) + len(w.pairs) + len(w.infos)))
	if len(w.sizes) > 0 {
		w.left = w.sizes[0]
	}
	return w.err
}

// Write appends p to the tensors' bytes. p may end inside a tensor and may span several; Write adds
// the padding.
func (w *Writer) Write(p []byte) (n int, err error) {
	if !w.begun {
		w.fail("Write before Begin")
	}
	for len(p) > 0 && w.err == nil {
		if w.current == len(w.sizes) {
			w.fail("Write of %d bytes after the last tensor", len(p))
			break
		}
		k := min(uint64(len(p)), w.left)
		w.put(p[:k])
		p, n, w.left = p[k:], n+int(k), w.left-k
		if w.left == 0 {
			w.pad(w.sizes[w.current])
			if w.current++; w.current < len(w.sizes) {
				w.left = w.sizes[w.current]
			}
		}
	}
	return n, w.err
}

// Close checks that every tensor is complete and flushes.
func (w *Writer) Close() error {
	if w.err == nil && (!w.begun || w.current < len(w.sizes)) {
		w.fail("Close with tensor %d of %d incomplete", w.current, len(w.sizes))
	}
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

func (w *Writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format+": %w", append(args, ErrWriter)...)
	}
}

func (w *Writer) put(p []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(p)
	}
}

// pad fills up to the alignment after n bytes.
func (w *Writer) pad(n uint64) { w.put(make([]byte, alignUp(n, w.alignment)-n)) }

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// encode returns type and encoding of a metadata value.
func encode(value any) (ValueType, []byte, error) {
	switch v := value.(type) {
	case string:
		return String, appendString(nil, v), nil
	case ArrayOf:
		return encodeArrayOf(v)
	case []string:
		b := arrayHeader(String, len(v))
		for _, s := range v {
			b = appendString(b, s)
		}
		return Array, b, nil
	}
	if t, elems, isArray := fixedType(value); t < numValueTypes {
		var b []byte
		if isArray {
			b = arrayHeader(t, elems)
		}
		b, err := binary.Append(b, binary.LittleEndian, value)
		if isArray {
			t = Array
		}
		return t, b, err
	}
	return 0, nil, fmt.Errorf("go type %T has no metadata type", value)
}

func encodeArrayOf(a ArrayOf) (ValueType, []byte, error) {
	b := arrayHeader(a.Elem, len(a.Items))
	for i, item := range a.Items {
		t, encoded, err := encode(item)
		if err != nil {
			return 0, nil, err
		}
		if t != a.Elem {
			return 0, nil, fmt.Errorf("item %d is %v, want %v", i, t, a.Elem)
		}
		b = append(b, encoded...)
	}
	return Array, b, nil
}

func arrayHeader(elem ValueType, n int) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, uint32(elem)), uint64(n))
}

// fixedType returns the type of a fixed-size value or of the elements of a slice of them;
// numValueTypes for anything else.
func fixedType(value any) (t ValueType, elems int, isArray bool) {
	switch v := value.(type) {
	case uint8:
		return Uint8, 1, false
	case int8:
		return Int8, 1, false
	case uint16:
		return Uint16, 1, false
	case int16:
		return Int16, 1, false
	case uint32:
		return Uint32, 1, false
	case int32:
		return Int32, 1, false
	case uint64:
		return Uint64, 1, false
	case int64:
		return Int64, 1, false
	case float32:
		return Float32, 1, false
	case float64:
		return Float64, 1, false
	case bool:
		return Bool, 1, false
	case []uint8:
		return Uint8, len(v), true
	case []int8:
		return Int8, len(v), true
	case []uint16:
		return Uint16, len(v), true
	case []int16:
		return Int16, len(v), true
	case []uint32:
		return Uint32, len(v), true
	case []int32:
		return Int32, len(v), true
	case []uint64:
		return Uint64, len(v), true
	case []int64:
		return Int64, len(v), true
	case []float32:
		return Float32, len(v), true
	case []float64:
		return Float64, len(v), true
	case []bool:
		return Bool, len(v), true
	}
	return numValueTypes, 0, false
}
