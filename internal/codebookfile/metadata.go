package codebookfile

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/vectorfile"
)

const format = "millrace.codebook.v1"

// metadata returns the texts of a file.
func (c Codebook) metadata() map[string]string {
	texts := map[string]string{
		"format":    format,
		"kind":      c.Kind,
		"metric":    c.Metric,
		"dimension": strconv.Itoa(c.Dimension),
		"codewords": strconv.Itoa(c.Codewords),
		"subspaces": strconv.Itoa(c.Subspaces),
		"digest":    hex.EncodeToString(c.Digest[:]),
	}
	if c.trained() {
		texts["element_type"], texts["algorithm"] = c.ElementType.String(), c.Algorithm
		texts["seed"], texts["numerics"] = strconv.FormatUint(c.Seed, 10), c.Numerics
	}
	return texts
}

// trainedKeys are all present or all absent.
var trainedKeys = []string{"element_type", "algorithm", "seed", "numerics"}

// fromMetadata is the inverse of metadata. Ranges are for Check.
func fromMetadata(metadata map[string]string) (Codebook, error) {
	if got, ok := metadata["format"]; !ok || got != format {
		return Codebook{}, fmt.Errorf("metadata format is %q, want %q: train the codebook with millrace: %w", got, format, ErrCodebook)
	}
	r := &texts{by: metadata}
	c := Codebook{
		Kind:      r.text("kind"),
		Metric:    r.text("metric"),
		Dimension: int(r.number("dimension", 31)),
		Codewords: int(r.number("codewords", 31)),
		Subspaces: int(r.number("subspaces", 31)),
		Digest:    r.digest("digest"),
	}
	if slices.ContainsFunc(trainedKeys, func(key string) bool { _, ok := metadata[key]; return ok }) {
		c.ElementType, c.Algorithm = r.elementType("element_type"), r.text("algorithm")
		c.Seed, c.Numerics = r.number("seed", 64), r.text("numerics")
	}
	return c, r.err
}

// texts reads texts and stores the first error.
type texts struct {
	by  map[string]string
	err error
}

func (r *texts) refuse(key, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("metadata %s is %q, want %s: %w", key, r.by[key], want, ErrCodebook)
	}
}

func (r *texts) text(key string) string {
	if _, ok := r.by[key]; !ok && r.err == nil {
		r.err = fmt.Errorf("metadata %s is missing: %w", key, ErrCodebook)
	}
	return r.by[key]
}

func (r *texts) number(key string, bits int) uint64 {
	text := r.text(key)
	n, err := strconv.ParseUint(text, 10, bits)
	// One text for one number: no signs, no leading zeros.
	if err != nil || strconv.FormatUint(n, 10) != text {
		r.refuse(key, fmt.Sprintf("a number below 2^%d in digits", bits))
		return 0
	}
	return n
}

func (r *texts) elementType(key string) vectorfile.ElementType {
	text := r.text(key)
	for e := vectorfile.F32; e <= vectorfile.U8; e++ {
		if e.String() == text {
			return e
		}
	}
	r.refuse(key, "F32, F16, BF16, U8 or I8")
	return 0
}

func (r *texts) digest(key string) (d [32]byte) {
	text := r.text(key)
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(d) || hex.EncodeToString(b) != text {
		r.refuse(key, "64 small hexadecimal digits")
		return d
	}
	return [32]byte(b)
}

// trainingPrefix begins the keys of the texts about the training.
const trainingPrefix = "training."

// Training returns the texts about the rows and parameters of the training, by name. The caller
// owns the map.
func (f *File) Training() map[string]string {
	out := map[string]string{}
	for key, text := range f.file.Metadata() {
		if name, ok := strings.CutPrefix(key, trainingPrefix); ok {
			out[name] = text
		}
	}
	return out
}
