package safetensors

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Source is a tensor to write: its name, type and shape as in Tensor, and a reader of exactly its
// bytes, little-endian and in row-major order.
type Source struct {
	Name  string
	Type  Type
	Shape []int64
	Data  io.Reader
}

// Write writes a file. The bytes depend only on the content of its arguments, and neither on the
// order of sources nor on the sizes of their reads. After an error the file is unusable. Write does
// not close w.
func Write(w io.Writer, metadata map[string]string, sources []Source) error {
	sources = slices.Clone(sources)
	slices.SortStableFunc(sources, func(a, b Source) int {
		return cmp.Or(cmp.Compare(b.Type, a.Type), cmp.Compare(a.Name, b.Name))
	})
	header, err := buildHeader(metadata, sources)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	if _, err := out.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))); err != nil {
		return err
	}
	if _, err := out.Write(header); err != nil {
		return err
	}
	for _, s := range sources {
		if err := s.copyTo(out); err != nil {
			return fmt.Errorf("write tensor %q: %w", s.Name, err)
		}
	}
	return out.Flush()
}

// copyTo writes the source's bytes, and checks that there are as many as its shape requires.
func (s Source) copyTo(w io.Writer) error {
	size, _ := bytesOf(s.Type, s.Shape)
	switch n, err := io.Copy(w, io.LimitReader(s.Data, size)); {
	case err != nil:
		return err
	case n < size:
		return fmt.Errorf("%d bytes, want %d: %w", n, size, ErrWrite)
	}
	switch n, err := io.CopyN(io.Discard, s.Data, 1); {
	case n > 0:
		return fmt.Errorf("more than %d bytes: %w", size, ErrWrite)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// buildHeader returns the header of sources in that order, padded so that the data are aligned.
func buildHeader(metadata map[string]string, sources []Source) ([]byte, error) {
	h := &header{}
	if len(metadata) > 0 {
		h.key(metadataName)
		h.WriteByte('{')
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				h.WriteByte(',')
			}
			h.text(key)
			h.WriteByte(':')
			h.text(metadata[key])
		}
		h.WriteByte('}')
	}
	names := map[string]bool{metadataName: true, "": true}
	next := int64(0)
	for _, s := range sources {
		size, ok := bytesOf(s.Type, s.Shape)
		switch {
		case names[s.Name]:
			return nil, fmt.Errorf("tensor %q: there is another one of that name, or it is none: %w", s.Name, ErrWrite)
		case s.Type.Size() == 0 || !ok || len(s.Shape) > MaxRank || slices.ContainsFunc(s.Shape, func(n int64) bool { return n < 0 }) || next+size < next:
			return nil, fmt.Errorf("tensor %q of shape %v in %v: no file holds it: %w", s.Name, s.Shape, s.Type, ErrWrite)
		}
		names[s.Name] = true
		h.key(s.Name)
		shape := strings.ReplaceAll(strings.Trim(fmt.Sprint(s.Shape), "[]"), " ", ",")
		fmt.Fprintf(h, `{"dtype":"%v","shape":[%s],"data_offsets":[%d,%d]}`, s.Type, shape, next, next+size)
		next += size
	}
	if h.Len() == 0 {
		h.WriteByte('{')
	}
	h.WriteByte('}')
	for h.Len()%lengthBytes != 0 {
		h.WriteByte(' ')
	}
	switch {
	case h.invalid != "":
		return nil, fmt.Errorf("%q is not UTF-8 or has U+FFFD: %w", h.invalid, ErrWrite)
	case h.Len() > MaxHeader:
		return nil, fmt.Errorf("the header would have %d bytes, allowed are %d: %w", h.Len(), MaxHeader, ErrWrite)
	}
	return h.Bytes(), nil
}

// header is a dictionary under construction.
type header struct {
	bytes.Buffer
	invalid string // a text that cannot be written
}

// key begins the next pair of the outermost dictionary.
func (h *header) key(name string) {
	if h.Len() == 0 {
		h.WriteByte('{')
	} else {
		h.WriteByte(',')
	}
	h.text(name)
	h.WriteByte(':')
}

func (h *header) text(s string) {
	if !utf8.ValidString(s) || strings.ContainsRune(s, utf8.RuneError) {
		h.invalid = s
	}
	e := json.NewEncoder(&h.Buffer)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		h.invalid = s
	}
	h.Truncate(h.Len() - 1) // the newline that Encode appends
}
