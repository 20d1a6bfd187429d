package vectorcli_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/safetensors"
)

func TestAHostileCheckpointIsRefusedByName(t *testing.T) {
	rows := base(t, 20, 4)
	good := map[string]string{"format": "millrace.checkpoint.v1", "training.rows": "20", "training.dimension": "4", "training.element_type": "f32",
		"training.codewords": "2", "training.kind": "flat", "training.seed": "1"}
	state := safetensors.Source{Name: "state", Type: safetensors.U8, Shape: []int64{3}, Data: bytes.NewReader([]byte("abc"))}
	energies := safetensors.Source{Name: "energies", Type: safetensors.F64, Shape: []int64{1}, Data: bytes.NewReader(make([]byte, 8))}
	for name, tc := range map[string]struct {
		change  map[string]string
		tensors []safetensors.Source
		code    int
		want    string
	}{
		"a state that is none":     {nil, nil, 4, "a state of 3 bytes does not begin as one"},
		"another format":           {map[string]string{"format": "millrace.codebook.v1"}, nil, 2, `its format is "millrace.codebook.v1", want`},
		"no state":                 {nil, []safetensors.Source{energies}, 2, "no bytes of a state"},
		"an empty state":           {nil, []safetensors.Source{{Name: "state", Type: safetensors.U8, Shape: []int64{0}, Data: bytes.NewReader(nil)}, energies}, 2, "no bytes of a state"},
		"no energies":              {nil, []safetensors.Source{state}, 2, "no energies"},
		"a seed that is none":      {map[string]string{"training.seed": "1e3"}, nil, 2, `seed: wrong value: "1e3" is not a whole number`},
		"a kind that is none":      {map[string]string{"training.kind": "flat\x1b[2J"}, nil, 2, "is not one of flat, product"},
		"texts for later versions": {map[string]string{"training.weather": "rain", "training.save_as": "../x", "training.output": "/etc/passwd"}, nil, 4, "a state of 3 bytes"},
		"rows that are not theirs": {map[string]string{"training.element_type": "u8"}, nil, 2, "has element type f32"},
	} {
		t.Run(name, func(t *testing.T) {
			metadata := maps.Clone(good)
			maps.Copy(metadata, tc.change)
			if tc.tensors == nil {
				tc.tensors = []safetensors.Source{state, energies}
			}
			var b bytes.Buffer
			for _, s := range tc.tensors {
				_, err := s.Data.(*bytes.Reader).Seek(0, 0)
				require.NoError(t, err)
			}
			require.NoError(t, safetensors.Write(&b, metadata, tc.tensors))
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "kept"), b.Bytes(), 0o600))
			server := &vectorServer{}
			r := serveVectors(t, server)
			require.Equal(t, tc.code, r.run(t, "vectors", "train", rows, "--resume", filepath.Join(dir, "kept"), "-o", filepath.Join(dir, "cb.safetensors")), r.err.String())
			require.Contains(t, r.err.String(), tc.want)
			require.NotContains(t, r.err.String(), "\x1b")
			for _, cfg := range server.configs {
				require.Nil(t, cfg.SaveAs, "a file does not say where a codebook is kept")
			}
			require.Equal(t, 1, countFiles(t, dir))
		})
	}
}

func TestUnaskedCheckpointIsNotKept(t *testing.T) {
	// A checkpoint that a stopping worker sends without being asked is not kept.
	r := serveVectors(t, &vectorServer{every: 1})
	_ = trainedFile(t, r, base(t, 50, 4), "-k", "5")
	require.NotContains(t, r.err.String(), "checkpoint")
}
