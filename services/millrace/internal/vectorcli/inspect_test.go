package vectorcli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/tty/ttytest"
)

func TestInspectShowsWhatMadeACodebookAndItsLoads(t *testing.T) {
	rows := base(t, 100, 4)
	cb, dir := trainedCodebook(t, rows, "-k", "3", "--subspaces", "2"), t.TempDir()
	// 3 codewords have 2 bits: rows of the codes (0,1), (2,1), (0,0), (0,1).
	codes := npy(t, "codes.npy", vectorfile.U8, []byte{0b0100, 0b0110, 0b0000, 0b0100}, 4, 1)
	r := &rig{target: "127.0.0.1:1"} // no server is called
	require.Equal(t, 0, r.run(t, "vectors", "inspect", cb, "--codes", codes, "--plot", dir+"/cb.svg"), r.err.String())
	for _, line := range []string{
		`kind +PRODUCT`, `metric +L2`, `dimension +4`, `codewords +3`, `subspaces +2`, `codeword type +F16`, `size +24 B`, `digest +[0-9a-f]{64}`,
		`algorithm +LLOYD`, `element type +F32`, `seed +1`, `numerics +vectors-1`, `training rows +100`, `training rows digest +[0-9a-f]{64}`,
		`training init +random`, `training max iterations +3`, `energy +\d iterations?, from \S+ to \S+`, `rows +4`,
		`rows per codeword +least 0, median 1, most 3`, `without rows +2`, `imbalance +1\.875`, `variance +least \S+, median \S+, most \S+, mean \S+`,
	} {
		require.Regexp(t, `(?m)^`+line+`$`, r.out.String())
	}
	drawing, err := os.ReadFile(dir + "/cb.svg")
	require.NoError(t, err)
	require.Contains(t, string(drawing), "cb.safetensors: 3 x 4 in 2 f16, l2")

	r.out = ttytest.Buffer{}
	require.Equal(t, 0, r.run(t, "vectors", "inspect", cb, "--json"))
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &out))
	require.Equal(t, "PRODUCT", out["kind"])
	require.Equal(t, "1", out["seed"])
	require.EqualValues(t, 100, out["loads"].(map[string]any)["rows"], "those of the training")
	variances := out["variances"].(map[string]any)
	require.Positive(t, variances["least"])
	require.LessOrEqual(t, variances["least"], variances["median"])
	require.LessOrEqual(t, variances["median"], variances["most"])
	require.NotEmpty(t, out["energies"])
	require.Equal(t, 1, strings.Count(r.out.String(), "\n"))
}

// TestVariancesComeInTheirOrder has a server send statistics that do not fit together.
func TestVariancesComeInTheirOrder(t *testing.T) {
	for name, change := range map[string]func(*pb.CodewordStatistics){
		"a gap":              func(s *pb.CodewordStatistics) { s.First++ },
		"half a number":      func(s *pb.CodewordStatistics) { s.Rows = s.Rows[1:] },
		"rows alone":         func(s *pb.CodewordStatistics) { s.Variances = nil },
		"too many codewords": func(s *pb.CodewordStatistics) { s.Rows, s.Variances = make([]byte, 8000), make([]byte, 8000) },
	} {
		t.Run(name, func(t *testing.T) {
			r := serveVectors(t, &vectorServer{reply: func(m *pb.TrainCodebookResponse) error {
				if s := m.GetStatistics(); s != nil {
					change(s)
				}
				return nil
			}})
			require.Equal(t, 1, r.run(t, "vectors", "train", base(t, 100, 4), "-k", "3", "-o", filepath.Join(t.TempDir(), "cb.safetensors")))
			require.Contains(t, r.err.String(), "statistics of codewords from")
		})
	}
}

func TestInspectRefusesWhatIsNoCodebook(t *testing.T) {
	rows := base(t, 100, 4)
	cb := trainedCodebook(t, rows, "-k", "3")
	raw, err := os.ReadFile(cb)
	require.NoError(t, err)
	raw[len(raw)-1] ^= 0x40
	damaged := filepath.Join(t.TempDir(), "damaged.safetensors")
	require.NoError(t, os.WriteFile(damaged, raw, 0o600))
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no file":                   {nil, "want one, FILE"},
		"a file that is not there":  {[]string{cb + "x"}, "no such file"},
		"rows":                      {[]string{rows}, "base.npy: "},
		"damaged codewords":         {[]string{damaged}, "get the codebook again"},
		"a folder":                  {[]string{filepath.Dir(cb)}, "no regular file"},
		"codes of another codebook": {[]string{cb, "--codes", npy(t, "codes.npy", vectorfile.U8, []byte{0, 3}, 2)}, "codes.npy: row 1 has code 3, and there are 3 codewords"},
		"rows as codes":             {[]string{cb, "--codes", rows}, "base.npy"},
		"too many columns":          {[]string{cb, "--codes", npy(t, "codes.npy", vectorfile.U8, []byte{0, 1}, 1, 2)}, "has 2 codes a row"},
		"a drawing nowhere":         {[]string{cb, "--plot", filepath.Join(cb, "x.svg")}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{target: "127.0.0.1:1"}
			require.Equal(t, 2, r.run(t, append([]string{"vectors", "inspect"}, tc.args...)...))
			require.Contains(t, r.err.String(), tc.want)
			require.Empty(t, r.out.String())
		})
	}
}
