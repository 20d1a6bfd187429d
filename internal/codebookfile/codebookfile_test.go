package codebookfile_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/internal/safetensors"
	"github.com/millrace/millrace/internal/vectorfile"
)

// example is a codebook with codewords for it.
func example(change func(*codebookfile.Codebook)) (codebookfile.Codebook, []byte) {
	c := codebookfile.Codebook{
		Kind: codebookfile.Product, Metric: codebookfile.L2, Dimension: 6, Codewords: 4, Subspaces: 2, CodewordType: safetensors.F16,
		ElementType: vectorfile.F32, Algorithm: codebookfile.Lloyd, Seed: math.MaxUint64, Numerics: "v1",
	}
	if change != nil {
		change(&c)
	}
	codewords := make([]byte, max(0, min(c.Bytes(), 1<<24)))
	for i := range codewords {
		codewords[i] = byte(i * 3)
	}
	c.Digest = blake3.Sum256(codewords)
	return c, codewords
}

func written(t *testing.T, c codebookfile.Codebook, codewords []byte, h codebookfile.History) []byte {
	t.Helper()
	var file bytes.Buffer
	require.NoError(t, codebookfile.Write(&file, c, bytes.NewReader(codewords), h))
	return file.Bytes()
}

func parse(data []byte) (*codebookfile.File, error) {
	return codebookfile.Parse(bytes.NewReader(data), int64(len(data)))
}

func TestCodebooksComeBack(t *testing.T) {
	for name, change := range map[string]func(*codebookfile.Codebook){
		"product":            nil,
		"product of one":     func(c *codebookfile.Codebook) { c.Subspaces = 1 },
		"as many as columns": func(c *codebookfile.Codebook) { c.Subspaces = 6 },
		"flat": func(c *codebookfile.Codebook) {
			c.Kind, c.Subspaces, c.Metric, c.CodewordType = codebookfile.Flat, 1, codebookfile.Cosine, safetensors.F32
		},
		"one codeword of one element": func(c *codebookfile.Codebook) {
			c.Kind, c.Subspaces, c.Codewords, c.Dimension = codebookfile.Flat, 1, 1, 1
		},
		"the most codewords": func(c *codebookfile.Codebook) {
			c.Kind, c.Subspaces, c.Codewords, c.Dimension = codebookfile.Flat, 1, 65_536, 1
		},
		"the largest dimension": func(c *codebookfile.Codebook) {
			c.Dimension, c.Subspaces, c.CodewordType = 65_536, 65_536, safetensors.BF16
		},
		"nobody knows how it was trained": func(c *codebookfile.Codebook) {
			c.Algorithm, c.ElementType, c.Seed, c.Numerics = "", 0, 0, ""
		},
		"other words": func(c *codebookfile.Codebook) {
			c.Algorithm, c.ElementType, c.Seed, c.Numerics = codebookfile.Annealed, vectorfile.I8, 0, `<"é">`
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, codewords := example(change)
			loads := make([]int64, c.Subspaces*c.Codewords)
			for i := range loads {
				loads[i] = int64(i) << 33
			}
			variances := make([]float64, len(loads))
			for i := range variances {
				variances[i] = float64(i) / 3
			}
			for _, h := range []codebookfile.History{{}, {Energies: []float64{}}, {Energies: []float64{2.5, 1.25}, Loads: loads}, {Variances: variances}} {
				f, err := parse(written(t, c, codewords, h))
				require.NoError(t, err)
				require.Equal(t, c, f.Codebook)
				require.NoError(t, f.Verify())
				got := make([]byte, c.Bytes())
				_, err = f.Data().ReadAt(got, 0)
				require.NoError(t, err)
				require.True(t, bytes.Equal(codewords, got))
				energies, err := f.Energies()
				require.NoError(t, err)
				require.Equal(t, h.Energies, energies)
				got2, err := f.Loads()
				require.NoError(t, err)
				require.Equal(t, h.Loads, got2)
				got3, err := f.Variances()
				require.NoError(t, err)
				require.Equal(t, h.Variances, got3)
				require.NoError(t, f.Close())
			}
		})
	}
}

func TestTheBytesOfACodebookStayTheSame(t *testing.T) {
	c, codewords := example(nil)
	got := written(t, c, codewords, codebookfile.History{Energies: []float64{3, 2}, Loads: []int64{1, 2, 3, 4, 5, 0, 7, 8}})
	path := filepath.Join("testdata", "product.safetensors")
	if *repotest.Update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "go test ./internal/codebookfile -run BytesOfACodebook -update writes it")
	require.Equal(t, want, got)

	f, err := codebookfile.Open(path)
	require.NoError(t, err)
	require.NoError(t, f.Verify())
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Verify(), fs.ErrClosed)
}

func TestWhatIsNoCodebookIsRefusedByName(t *testing.T) {
	c, codewords := example(nil)
	good, err := safetensors.Parse(bytes.NewReader(written(t, c, codewords, codebookfile.History{})), int64(len(written(t, c, codewords, codebookfile.History{}))))
	require.NoError(t, err)
	type source = safetensors.Source
	tensor := func(name string, e safetensors.Type, shape ...int64) source {
		n := e.Size()
		for _, length := range shape {
			n *= length
		}
		return source{Name: name, Type: e, Shape: shape, Data: bytes.NewReader(make([]byte, n))}
	}
	for name, tc := range map[string]struct {
		set  map[string]string // "-" deletes the key
		with []source          // besides the codewords, or instead of them
		says string
	}{
		"another format":            {set: map[string]string{"format": "pt"}, says: `format is "pt"`},
		"no format":                 {set: map[string]string{"format": "-"}, says: `format is ""`},
		"no seed":                   {set: map[string]string{"seed": "-"}, says: "metadata seed is missing"},
		"no numerics":               {set: map[string]string{"numerics": "-"}, says: "metadata numerics is missing"},
		"empty numerics":            {set: map[string]string{"numerics": ""}, says: "numerics is empty"},
		"kind in small letters":     {set: map[string]string{"kind": "product"}, says: `kind is "product", want FLAT or PRODUCT`},
		"an unknown metric":         {set: map[string]string{"metric": "L1"}, says: `metric is "L1"`},
		"a product of cosines":      {set: map[string]string{"metric": "COSINE"}, says: "PRODUCT codebook supports L2 only"},
		"an unknown algorithm":      {set: map[string]string{"algorithm": ""}, says: `algorithm is ""`},
		"dimension 0":               {set: map[string]string{"dimension": "0"}, says: "dimension is 0"},
		"one dimension too many":    {set: map[string]string{"dimension": "65537"}, says: "dimension is 65537"},
		"a signed dimension":        {set: map[string]string{"dimension": "+6"}, says: `dimension is "+6"`},
		"a zero in front":           {set: map[string]string{"dimension": "06"}, says: `dimension is "06"`},
		"codewords beyond 2^31":     {set: map[string]string{"codewords": "2147483648"}, says: `codewords is "2147483648"`},
		"one codeword too many":     {set: map[string]string{"codewords": "65537"}, says: "codewords are 65537"},
		"too many values":           {set: map[string]string{"codewords": "65536", "dimension": "32768"}, says: "more than 2147483647 values"},
		"no divisor":                {set: map[string]string{"subspaces": "4"}, says: "a divisor of the dimension 6"},
		"no subspaces":              {set: map[string]string{"subspaces": "0"}, says: "subspaces are 0"},
		"a flat one in parts":       {set: map[string]string{"kind": "FLAT"}, says: "FLAT codebook has 1"},
		"a seed beyond 2^64":        {set: map[string]string{"seed": "18446744073709551616"}, says: "below 2^64"},
		"an element type of codes":  {set: map[string]string{"element_type": "U16"}, says: `element_type is "U16"`},
		"a short digest":            {set: map[string]string{"digest": "00"}, says: "64 small hexadecimal digits"},
		"a digest in large letters": {set: map[string]string{"digest": strings.Repeat("AB", 32)}, says: "64 small hexadecimal digits"},
		"another shape":             {set: map[string]string{"codewords": "5"}, says: "shape [2 4 3], and the metadata say [2 5 3]"},
		"flat in metadata alone":    {set: map[string]string{"kind": "FLAT", "subspaces": "1"}, says: "the metadata say [4 6]"},
		"no codewords":              {with: []source{tensor("weights", safetensors.F16, 2, 4, 3)}, says: "no tensor codewords"},
		"integers":                  {with: []source{tensor("codewords", safetensors.I16, 2, 4, 3)}, says: "codewords are of type I16"},
		"energies in F32":           {with: []source{tensor("energies", safetensors.F32, 2)}, says: "energies is F32 [2]"},
		"energies in two lengths":   {with: []source{tensor("energies", safetensors.F64, 2, 1)}, says: "energies is F64 [2 1]"},
		"loads in U64":              {with: []source{tensor("loads", safetensors.U64, 2, 4)}, says: "loads is U64 [2 4]"},
		"variances in F32":          {with: []source{tensor("variances", safetensors.F32, 2, 4)}, says: "variances is F32 [2 4], want F64 [2 4]"},
		"loads of other codewords":  {with: []source{tensor("loads", safetensors.I64, 8)}, says: "want I64 [2 4]"},
	} {
		t.Run(name, func(t *testing.T) {
			texts := good.Metadata()
			for key, text := range tc.set {
				texts[key] = text
				if text == "-" {
					delete(texts, key)
				}
			}
			sources := tc.with
			if len(sources) == 0 || slices.Contains([]string{"energies", "loads", "variances"}, sources[0].Name) {
				sources = append(sources, tensor("codewords", safetensors.F16, 2, 4, 3))
			}
			var file bytes.Buffer
			require.NoError(t, safetensors.Write(&file, texts, sources))
			_, err := parse(file.Bytes())
			require.ErrorIs(t, err, codebookfile.ErrCodebook)
			require.ErrorContains(t, err, tc.says)
		})
	}
	_, err = parse([]byte("{}"))
	require.ErrorIs(t, err, safetensors.ErrFormat)
}

func TestOtherTextsAndTensorsAreLeftAlone(t *testing.T) {
	c, codewords := example(nil)
	data := written(t, c, codewords, codebookfile.History{})
	s, err := safetensors.Parse(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	texts := s.Metadata()
	texts["license"] = "CC0"
	var file bytes.Buffer
	require.NoError(t, safetensors.Write(&file, texts, []safetensors.Source{
		{Name: "codewords", Type: c.CodewordType, Shape: []int64{2, 4, 3}, Data: bytes.NewReader(codewords)},
		{Name: "means", Type: safetensors.F32, Shape: []int64{1}, Data: strings.NewReader("mean")},
	}))
	f, err := parse(file.Bytes())
	require.NoError(t, err)
	require.Equal(t, c, f.Codebook)
}

func TestDamagedCodewordsAreFoundOut(t *testing.T) {
	c, codewords := example(nil)
	data := written(t, c, codewords, codebookfile.History{})
	for _, at := range []int{len(data) - len(codewords), len(data) - 1} {
		data[at] ^= 1
		f, err := parse(data)
		require.NoError(t, err)
		err = f.Verify()
		require.ErrorIs(t, err, codebookfile.ErrCodebook)
		require.ErrorContains(t, err, hex.EncodeToString(c.Digest[:]))
		data[at] ^= 1
	}
}

func TestWriteRefusesWhatDoesNotFit(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*codebookfile.Codebook)
		data   func([]byte) []byte
		h      codebookfile.History
		kind   error
	}{
		"a codebook out of range": {change: func(c *codebookfile.Codebook) { c.Metric = "" }, kind: codebookfile.ErrCodebook},
		"a byte too few":          {data: func(b []byte) []byte { return b[1:] }, kind: safetensors.ErrWrite},
		"a byte too many":         {data: func(b []byte) []byte { return append(b, 0) }, kind: safetensors.ErrWrite},
		"other codewords":         {data: func(b []byte) []byte { b[3]++; return b }, kind: codebookfile.ErrCodebook},
		"too few variances":       {h: codebookfile.History{Variances: make([]float64, 9)}, kind: codebookfile.ErrCodebook},
		"too few loads":           {h: codebookfile.History{Loads: make([]int64, 7)}, kind: codebookfile.ErrCodebook},
	} {
		t.Run(name, func(t *testing.T) {
			c, codewords := example(tc.change)
			if tc.data != nil {
				codewords = tc.data(codewords)
			}
			var file bytes.Buffer
			require.ErrorIs(t, codebookfile.Write(&file, c, bytes.NewReader(codewords), tc.h), tc.kind)
		})
	}
}

func TestWhatIsNoFileIsRefusedWithItsPath(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.safetensors")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for path, kind := range map[string]error{filepath.Join(dir, "none"): fs.ErrNotExist, dir: codebookfile.ErrCodebook, empty: safetensors.ErrFormat} {
		_, err := codebookfile.Open(path)
		require.ErrorIs(t, err, kind)
		require.ErrorContains(t, err, path)
	}
}

// FuzzParse checks that every accepted file is a codebook, and stays the same when it is written
// and read again.
func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse(data)
		if err != nil {
			return
		}
		require.NoError(t, file.Check())
		require.Equal(t, file.Bytes(), file.Data().Size())
		energies, err := file.Energies()
		require.NoError(t, err)
		loads, err := file.Loads()
		require.NoError(t, err)
		variances, err := file.Variances()
		require.NoError(t, err)
		if file.Verify() != nil {
			return
		}
		var again bytes.Buffer
		require.NoError(t, codebookfile.Write(&again, file.Codebook, file.Data(), codebookfile.History{Energies: energies, Loads: loads, Variances: variances}))
		second, err := parse(again.Bytes())
		require.NoError(t, err)
		require.Equal(t, file.Codebook, second.Codebook)
	})
}

func TestTheSeedCorpusIsTheGoldenFile(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "product.safetensors"))
	require.NoError(t, err)
	path := filepath.Join("testdata", "fuzz", "FuzzParse", "product")
	want := fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n", data)
	if *repotest.Update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err, "go test ./internal/codebookfile -run SeedCorpus -update writes it")
	require.Equal(t, want, string(got))
}
