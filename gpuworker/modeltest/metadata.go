package modeltest

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// copyMetadata sets every pair of m in w. It supports the types that the stories model uses.
func copyMetadata(w *gguf.Writer, m *gguf.Metadata) error {
	for _, key := range m.Keys() {
		v, err := value(m, key)
		if err != nil {
			return err
		}
		w.Set(key, v)
	}
	return nil
}

// value returns a metadata value as the Go type for Writer.Set.
func value(m *gguf.Metadata, key string) (v any, err error) {
	raw, _ := m.Value(key)
	typ := raw.Type
	if typ == gguf.Array {
		typ = raw.Elem
	}
	switch {
	case raw.Type == gguf.Array && typ == gguf.String:
		v, _, err = m.Strings(key)
	case raw.Type == gguf.Array && typ == gguf.Int32:
		var wide []int64
		wide, _, err = m.Ints(key)
		narrow := make([]int32, len(wide))
		for i, x := range wide {
			narrow[i] = int32(x)
		}
		v = narrow
	case typ == gguf.String:
		v, _, err = m.String(key)
	case typ == gguf.Bool:
		v, _, err = m.Bool(key)
	case typ == gguf.Uint32:
		var x uint64
		x, _, err = m.Uint(key)
		v = uint32(x)
	case typ == gguf.Float32:
		var x float64
		x, _, err = m.Float(key)
		v = float32(x)
	default:
		err = fmt.Errorf("metadata %s: %v is no type of the stories model", key, raw.Type)
	}
	return v, err
}
