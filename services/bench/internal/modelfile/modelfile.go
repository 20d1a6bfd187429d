package modelfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// ErrUnknown is returned for an unknown shape or weight type. The message lists the known ones.
var ErrUnknown = errors.New("unknown name")

// types are the weight types and mixes of synthetic models.
var types = mixes(
	gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q4K, gguf.Q5K, gguf.Q6K, gguf.IQ4NL,
	gguf.Q2K, gguf.Q3K, gguf.IQ4XS, gguf.IQ3S, gguf.IQ3XXS, gguf.IQ2S, gguf.IQ2XS, gguf.IQ2XXS, gguf.MXFP4, gguf.NVFP4,
)

func mixes(alone ...gguf.Type) []synth.Mix {
	all := make([]synth.Mix, 0, len(alone)+2)
	for _, t := range alone {
		all = append(all, synth.Only(t))
	}
	return append(all, synth.Q4KM, synth.Q5KM)
}

// Tiny returns a shape that loads in no time, for the sim engine, which does not use the weights.
func Tiny(name string) synth.Shape {
	return synth.Shape{Name: name, Architecture: "llama", Desc: engine.Uniform{
		Layers: 1, Hidden: 32, Heads: 1, FFN: 32, Vocab: TinyVocabulary, Context: 1 << 20,
	}}
}

// TinyVocabulary is the number of token ids of Tiny.
const TinyVocabulary = 32000

// Types lists the names of the weight types, in lower case.
func Types() []string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = strings.ToLower(t.String())
	}
	return names
}

// ParseType returns the weight type, or mix, of a name in any case.
func ParseType(name string) (synth.Mix, error) {
	if i := slices.Index(Types(), strings.ToLower(name)); i >= 0 {
		return types[i], nil
	}
	return synth.Mix{}, fmt.Errorf("%w: type %q, want one of %s", ErrUnknown, name, strings.Join(Types(), " "))
}

// smallPrefix begins the names of the small shapes, which tests and checks use.
const smallPrefix = "small-"

// ParseShape returns the shape of a name: one that is listed, or small- and an architecture.
func ParseShape(name string) (synth.Shape, error) {
	if s, ok := synth.Lookup(name); ok {
		return s, nil
	}
	if small, ok := strings.CutPrefix(name, smallPrefix); ok {
		if s, ok := synth.Small(small); ok {
			return s, nil
		}
		return synth.Shape{}, fmt.Errorf("%w: shape %q, want %s with one of %s", ErrUnknown, name, smallPrefix, strings.Join(synth.SmallNames(), " "))
	}
	return synth.Shape{}, fmt.Errorf("%w: shape %q, want one of %s", ErrUnknown, name, strings.Join(synth.Names(), " "))
}

// Ensure returns the path of the file in dir and writes the file if it does not exist. If progress
// is not nil, it is called before that with the size in bytes.
func Ensure(dir string, shape synth.Shape, typ synth.Mix, seed uint64, progress func(path string, size uint64)) (string, error) {
	name := strings.ReplaceAll(shape.Name, " ", "-") // a worker takes no name with a space
	path := filepath.Join(dir, fmt.Sprintf("%s-%s-seed%d.gguf", name, strings.ToLower(typ.String()), seed))
	size, err := synth.TensorBytes(shape, typ)
	if err != nil {
		return "", err
	}
	if complete(path, size) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	if progress != nil {
		progress(path, size)
	}
	return path, Write(path, shape, typ, seed)
}

// complete reports whether the file is whole: it opens, and its tensors have the right size. A
// file of an older layout is not.
func complete(path string, size uint64) bool {
	f, err := gguf.Open(path)
	if err != nil {
		return false
	}
	var sum uint64
	for _, t := range f.Tensors() {
		sum += t.Size
	}
	return f.Close() == nil && sum == size
}

// Write writes a file. It gets its name when it is complete.
func Write(path string, shape synth.Shape, typ synth.Mix, seed uint64) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".millrace-synth-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if err := To(f, shape, typ, seed); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return f.Close()
}

// To writes a file to w.
func To(w io.Writer, shape synth.Shape, typ synth.Mix, seed uint64) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	if err := synth.Write(buffered, shape, typ, seed); err != nil {
		return err
	}
	return buffered.Flush()
}
