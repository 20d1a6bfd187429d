package vectorcli_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// trainedCodebook trains a codebook and returns its file and its codewords.
func trainedCodebook(t *testing.T, rows string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cb.safetensors")
	raw := trainedFile(t, serveVectors(t, &vectorServer{}), append(args, rows, "--max-iterations", "3", "--seed", "1", "--init", "random")...)
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	return path
}

func readCodes(t *testing.T, path string) (*vectorfile.File, []byte) {
	t.Helper()
	f, err := vectorfile.OpenCodes(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	b := make([]byte, f.Rows()*int64(f.RowBytes()))
	n, err := f.ReadRows(b, 0)
	require.NoError(t, err)
	require.EqualValues(t, f.Rows(), n)
	return f, b
}

func readRows(t *testing.T, path string) (*vectorfile.File, []byte) {
	t.Helper()
	f, err := vectorfile.OpenRows(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	b := make([]byte, f.Rows()*int64(f.RowBytes()))
	n, err := f.ReadRows(b, 0)
	require.NoError(t, err)
	require.EqualValues(t, f.Rows(), n)
	return f, b
}

func TestFilesAreEncodedAndDecoded(t *testing.T) {
	rows := base(t, 700, 12)
	for name, tc := range map[string]struct {
		train   []string
		code    vectorfile.ElementType
		columns int // of the codes' file
		element vectorfile.ElementType
	}{
		"flat, bytes":                     {[]string{"-k", "9"}, vectorfile.U8, 1, vectorfile.F16},
		"flat, two bytes":                 {[]string{"-k", "300", "--type", "f32"}, vectorfile.U16, 1, vectorfile.F32},
		"flat, bf16 becomes f4":           {[]string{"-k", "9", "--type", "bf16"}, vectorfile.U8, 1, vectorfile.F32},
		"cosine":                          {[]string{"-k", "9", "--metric", "cosine"}, vectorfile.U8, 1, vectorfile.F16},
		"subspaces, whole bytes":          {[]string{"-k", "256", "--subspaces", "4"}, vectorfile.U8, 4, vectorfile.F16},
		"subspaces of 3 bits, packed":     {[]string{"-k", "8", "--subspaces", "12"}, vectorfile.U8, 5, vectorfile.F16},
		"subspaces of 9 bits, packed":     {[]string{"-k", "300", "--subspaces", "3"}, vectorfile.U8, 4, vectorfile.F16},
		"as many subspaces as dimensions": {[]string{"-k", "2", "--subspaces", "12"}, vectorfile.U8, 2, vectorfile.F16},
	} {
		t.Run(name, func(t *testing.T) {
			cb, dir := trainedCodebook(t, rows, tc.train...), t.TempDir()
			server := &vectorServer{}
			r := serveVectors(t, server)
			require.Equal(t, 0, r.run(t, "vectors", "encode", rows, "-c", cb, "-o", dir+"/codes.npy", "--distances", dir+"/distances.npy"), r.err.String())
			f, packed := readCodes(t, dir+"/codes.npy")
			require.Equal(t, tc.code, f.ElementType())
			require.Equal(t, tc.columns, f.Dimension())
			require.EqualValues(t, 700, f.Rows())

			// The result of the reference for all rows at once.
			require.Len(t, server.books, 1)
			var own *book
			for _, b := range server.books {
				own = b
			}
			want, err := own.codes.Encode(engine.Encoding{Element: engine.VectorF32, Rows: floats(700, 12), Neighbours: 1, Distances: true})
			require.NoError(t, err)
			unpacked := packed
			if s := own.info.GetShape(); s.GetKind() == pb.CodebookKind_CODEBOOK_KIND_PRODUCT {
				p := vectorfile.PackingOf(int(s.GetSubspaces()), int(s.GetCodewords()))
				unpacked = make([]byte, 700*p.CodeBytes())
				require.NoError(t, p.Unpack(unpacked, packed))
			}
			require.Equal(t, want.Codes, unpacked)
			d, raw := readRows(t, dir+"/distances.npy")
			require.Equal(t, vectorfile.F32, d.ElementType())
			require.Equal(t, 700, d.Dimension()*int(d.Rows()))
			for i, v := range want.Distances {
				require.Equal(t, math.Float32bits(v), binary.LittleEndian.Uint32(raw[4*i:]))
			}

			require.Equal(t, 0, r.run(t, "vectors", "decode", dir+"/codes.npy", "-c", cb, "-o", dir+"/rows.npy"), r.err.String())
			out, decoded := readRows(t, dir+"/rows.npy")
			require.Equal(t, tc.element, out.ElementType())
			exact, err := own.codes.Decode(want.Codes)
			require.NoError(t, err)
			from := engineType(own.info.GetShape().GetCodewordType())
			wide := vq.Encode(engine.VectorF32, vq.Decode(from, exact))
			if from == engine.VectorBF16 {
				exact = wide
			}
			require.Equal(t, exact, decoded)
			require.Equal(t, 0, r.run(t, "vectors", "decode", dir+"/codes.npy", "-c", cb, "-o", dir+"/rows.fvecs"), r.err.String())
			_, decoded = readRows(t, dir+"/rows.fvecs")
			require.Equal(t, wide, decoded)

			require.Equal(t, 1, server.puts, "it is put once")
			require.Equal(t, 1, strings.Count(r.err.String(), "put "+cb+" on w1 as cb-"))
			require.Equal(t, 1, strings.Count(r.err.String(), " stays on w1 "), "the call that put it says so")
			require.Equal(t, 4, countFiles(t, dir))
		})
	}
}

func TestNeighboursAreColumns(t *testing.T) {
	rows := base(t, 50, 3)
	cb, dir := trainedCodebook(t, rows, "-k", "9"), t.TempDir()
	r := serveVectors(t, &vectorServer{})
	require.Equal(t, 0, r.run(t, "vectors", "encode", rows, "-c", cb, "-o", dir+"/codes.npy", "--neighbours", "4", "--distances", dir+"/d.npy", "--json"), r.err.String())
	f, codes := readCodes(t, dir+"/codes.npy")
	require.Equal(t, 4, f.Dimension())
	d, _ := readRows(t, dir+"/d.npy")
	require.Equal(t, 4, d.Dimension())
	require.Empty(t, r.err.String())
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &out))
	require.EqualValues(t, 50, out["rows"])

	require.Equal(t, 0, r.run(t, "vectors", "encode", rows, "-c", cb, "-o", dir+"/first.npy", "--neighbours", "1"))
	one, first := readCodes(t, dir+"/first.npy")
	require.Equal(t, 1, one.Dimension())
	for i := range first {
		require.Equal(t, codes[4*i], first[i])
	}
	require.Equal(t, 2, r.run(t, "vectors", "decode", dir+"/codes.npy", "-c", cb, "-o", dir+"/rows.npy"))
	require.Contains(t, r.err.String(), "has 4 codes a row")
}

// large returns rows that need more than one piece.
func large(t *testing.T) (path string, rows []byte) {
	t.Helper()
	rows = make([]byte, 24_000*512)
	for i := range rows {
		rows[i] = byte(i * 2654435761 >> 13)
	}
	return npy(t, "large.npy", vectorfile.I8, rows, 24_000, 512), rows
}

func TestPiecesAreRetriedAndKeepTheirOrder(t *testing.T) {
	path, rows := large(t)
	few := npy(t, "few.npy", vectorfile.I8, rows[:20*512], 20, 512)
	cb, dir := trainedCodebook(t, few, "-k", "2"), t.TempDir()
	var mu sync.Mutex
	lost, calls := map[byte]bool{}, 0
	server := &vectorServer{encode: func(in *pb.EncodeRequest) error {
		mu.Lock()
		defer mu.Unlock()
		calls++
		if at := in.GetRows()[0] ^ in.GetRows()[511]; !lost[at] {
			lost[at] = true
			return refusal(codes.Unavailable, "WORKER_LOST", "gone")
		}
		return nil
	}}
	r := serveVectors(t, server)
	require.Equal(t, 0, r.run(t, "vectors", "encode", path, "-c", cb, "-o", dir+"/codes.npy", "--in-flight", "3"), r.err.String())
	_, got := readCodes(t, dir+"/codes.npy")
	var own *book
	for _, b := range server.books {
		own = b
	}
	want, err := own.codes.Encode(engine.Encoding{Element: engine.VectorI8, Rows: rows, Neighbours: 1})
	require.NoError(t, err)
	require.True(t, bytes.Equal(want.Codes, got))
	require.GreaterOrEqual(t, calls, 4, "each of three pieces, one at least twice")

	// Decoded rows are twice as large: the reply bounds the pieces.
	require.Equal(t, 0, r.run(t, "vectors", "decode", dir+"/codes.npy", "-c", cb, "-o", dir+"/rows.npy"), r.err.String())
	_, decoded := readRows(t, dir+"/rows.npy")
	exact, err := own.codes.Decode(want.Codes)
	require.NoError(t, err)
	require.True(t, bytes.Equal(exact, decoded))
}

func TestARefusalOfAPieceSaysWhichRowsItHas(t *testing.T) {
	path, rows := large(t)
	cb := trainedCodebook(t, npy(t, "few.npy", vectorfile.I8, rows[:20*512], 20, 512), "-k", "2")
	r := serveVectors(t, &vectorServer{encode: func(in *pb.EncodeRequest) error {
		if len(in.GetRows()) != 8190*512 { // the last piece
			return refusal(codes.InvalidArgument, "INVALID_ARGUMENT", "row 7 is bad")
		}
		return nil
	}})
	require.Equal(t, 4, r.run(t, "vectors", "encode", path, "-c", cb, "-o", filepath.Join(t.TempDir(), "codes.npy")))
	require.Contains(t, r.err.String(), "millrace: rows 16380 to 23999, numbered from 0 there: row 7 is bad\n  reason: INVALID_ARGUMENT (from worker")
}

func TestManyNeighboursMakeSmallPieces(t *testing.T) {
	rows := make([]byte, 30_000)
	for i := range rows {
		rows[i] = byte(i)
	}
	path := npy(t, "narrow.npy", vectorfile.U8, rows, 30_000, 1)
	cb := trainedCodebook(t, path, "-k", "64")
	r := serveVectors(t, &vectorServer{}) // it refuses replies above 4 MiB
	out := filepath.Join(t.TempDir(), "codes.npy")
	require.Equal(t, 0, r.run(t, "vectors", "encode", path, "-c", cb, "-o", out, "--neighbours", "64", "--distances", out+".npy"), r.err.String())
	_, got := readCodes(t, out)
	require.Len(t, got, 30_000*64)
	sorted := slices.Sorted(slices.Values(got[:64]))
	require.Len(t, slices.Compact(sorted), 64, "each codeword once")
}

func TestAFailureThatStaysEndsTheWork(t *testing.T) {
	rows := base(t, 50, 3)
	cb := trainedCodebook(t, rows, "-k", "9")
	values := vq.Decode(engine.VectorF32, floats(50, 3))
	values[100] = math.Inf(1)
	bad := npy(t, "bad.npy", vectorfile.F32, vq.Encode(engine.VectorF32, values), 50, 3)
	calls := 0
	for name, tc := range map[string]struct {
		server *vectorServer
		rows   string
		code   int
		want   string
	}{
		"a row that is not finite": {&vectorServer{}, bad, 4, "row 33 has +Inf"},
		"a worker that stays away": {&vectorServer{encode: func(*pb.EncodeRequest) error {
			calls++
			return refusal(codes.Unavailable, "WORKER_LOST", "gone for good")
		}}, rows, 3, "gone for good"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serveVectors(t, tc.server)
			out := filepath.Join(t.TempDir(), "codes.npy")
			require.Equal(t, tc.code, r.run(t, "vectors", "encode", tc.rows, "-c", cb, "-o", out))
			require.Contains(t, r.err.String(), tc.want)
			require.Empty(t, r.out.String())
			require.Zero(t, countFiles(t, filepath.Dir(out)))
		})
	}
	require.Equal(t, 6, calls)
}

func TestCtrlCEndsAnEncoding(t *testing.T) {
	rows := base(t, 50, 3)
	cb := trainedCodebook(t, rows, "-k", "9")
	r := serveVectors(t, &vectorServer{encode: func(*pb.EncodeRequest) error {
		return rpc.Error{Code: codes.Unavailable, Domain: rpc.WorkerDomain, Reason: "WORKER_LOST", Message: "gone", RetryAfter: time.Hour}.Err()
	}})
	out := filepath.Join(t.TempDir(), "codes.npy")
	r.interrupt(t, &r.err, "put ")
	require.Equal(t, 130, r.run(t, "vectors", "encode", rows, "-c", cb, "-o", out))
	require.Zero(t, countFiles(t, filepath.Dir(out)))
}

func TestACodebookOfTheWorkersIsNamed(t *testing.T) {
	rows := base(t, 50, 3)
	server := &vectorServer{}
	r := serveVectors(t, server)
	require.Equal(t, 0, r.run(t, "vectors", "train", rows, "-k", "9", "--save-as", "mine/base", "--seed", "1"), r.err.String())
	out := filepath.Join(t.TempDir(), "codes.npy")
	require.Equal(t, 0, r.run(t, "vectors", "encode", rows, "-c", "mine/base", "-o", out), r.err.String())
	require.Zero(t, server.puts)

	// A file is recognised by its digest, whatever its name.
	file := filepath.Join(t.TempDir(), "cb.safetensors")
	require.Equal(t, 0, r.run(t, "vectors", "train", rows, "-k", "9", "-o", file, "--seed", "1"), r.err.String())
	require.Equal(t, 0, r.run(t, "vectors", "encode", rows, "-c", file, "-o", out), r.err.String())
	require.Zero(t, server.puts)
	require.Contains(t, r.out.String(), "codebook mine/base ")

	require.Equal(t, 5, r.run(t, "vectors", "encode", rows, "-c", "other", "-o", out))
	require.Contains(t, r.err.String(), `there is no codebook "other"; there are: mine/base`)
	require.Equal(t, 0, r.run(t, "vectors", "unload", "mine/base"), r.err.String())
	require.Equal(t, 5, r.run(t, "vectors", "encode", rows, "-c", "mine/base", "-o", out))
	require.Contains(t, r.err.String(), "try: millrace vectors load mine/base --target ")
}

func TestEmptyFilesHaveEmptyCodes(t *testing.T) {
	cb, dir := trainedCodebook(t, base(t, 50, 3), "-k", "9"), t.TempDir()
	none := npy(t, "none.npy", vectorfile.F32, nil, 0, 3)
	r := serveVectors(t, &vectorServer{})
	require.Equal(t, 0, r.run(t, "vectors", "encode", none, "-c", cb, "-o", dir+"/codes.npy"), r.err.String())
	f, err := vectorfile.OpenCodes(dir + "/codes.npy")
	require.NoError(t, err)
	require.Zero(t, f.Rows())
	require.NoError(t, f.Close())
	require.Equal(t, 0, r.run(t, "vectors", "decode", dir+"/codes.npy", "-c", cb, "-o", dir+"/rows.npy"), r.err.String())
	require.Equal(t, 2, r.run(t, "vectors", "decode", dir+"/codes.npy", "-c", cb, "-o", dir+"/rows.fvecs"))
	require.Contains(t, r.err.String(), "write .npy")
}

func TestEncodeAndDecodeRefuseWhatCannotBe(t *testing.T) {
	rows := base(t, 50, 4)
	flat, product := trainedCodebook(t, rows, "-k", "9"), trainedCodebook(t, rows, "-k", "9", "--subspaces", "2")
	damaged := filepath.Join(t.TempDir(), "damaged.safetensors")
	raw, err := os.ReadFile(flat)
	require.NoError(t, err)
	raw[len(raw)-1] ^= 1
	require.NoError(t, os.WriteFile(damaged, raw, 0o600))
	wide := npy(t, "wide.npy", vectorfile.U32, []byte{1, 0, 0, 0, 9, 0, 0, 0}, 2)
	high := npy(t, "high.npy", vectorfile.U8, []byte{1, 9}, 2)
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no codebook":               {[]string{"encode", rows, "-o", dir + "/x.npy"}, 2, "with -c"},
		"no output":                 {[]string{"encode", rows, "-c", flat}, 2, "want a file that ends in .npy"},
		"another output":            {[]string{"encode", rows, "-c", flat, "-o", dir + "/x.fvecs"}, 2, "ends in .npy"},
		"rows of another dimension": {[]string{"encode", base(t, 5, 3), "-c", flat, "-o", dir + "/x.npy"}, 2, "has dimension 3, codebook"},
		"nothing in flight":         {[]string{"encode", rows, "-c", flat, "-o", dir + "/x.npy", "--in-flight", "0"}, 2, "want 1 to 64"},
		"no neighbours":             {[]string{"encode", rows, "-c", flat, "-o", dir + "/x.npy", "--neighbours", "0"}, 2, "want 1 to 64"},
		"too many neighbours":       {[]string{"encode", rows, "-c", flat, "-o", dir + "/x.npy", "--neighbours", "10"}, 4, "neighbours are 10"},
		"neighbours of a product":   {[]string{"encode", rows, "-c", product, "-o", dir + "/x.npy", "--neighbours", "2"}, 4, "neighbours are 2"},
		"a damaged codebook":        {[]string{"encode", rows, "-c", damaged, "-o", dir + "/x.npy"}, 2, "damaged.safetensors: the codewords have digest"},
		"rows as a codebook":        {[]string{"encode", rows, "-c", rows + ".safetensors", "-o", dir + "/x.npy"}, 2, "no such file"},
		"codes of another codebook": {[]string{"decode", wide, "-c", flat, "-o", dir + "/x.npy"}, 2, "row 1 has code 9"},
		"a code that is too high":   {[]string{"decode", high, "-c", flat, "-o", dir + "/x.npy"}, 4, "row 1 has code 9"},
		"codes of a flat one":       {[]string{"decode", high, "-c", product, "-o", dir + "/x.npy"}, 4, "there are 9 codewords"},
		"packed codes of a wider":   {[]string{"decode", npy(t, "p.npy", vectorfile.U8, make([]byte, 6), 2, 3), "-c", product, "-o", dir + "/x.npy"}, 2, "gives 1 bytes"},
		"bits behind packed codes":  {[]string{"decode", npy(t, "p.npy", vectorfile.U8, []byte{0, 255}, 2, 1), "-c", trainedCodebook(t, rows, "-k", "3", "--subspaces", "2"), "-o", dir + "/x.npy"}, 2, "codes from row 0 on"},
		"rows to another format":    {[]string{"decode", high, "-c", flat, "-o", dir + "/x.bvecs"}, 2, ".npy or .fvecs"},
		"no codes":                  {[]string{"decode", "-c", flat, "-o", dir + "/x.npy"}, 2, "want one, CODES"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serveVectors(t, &vectorServer{})
			require.Equal(t, tc.code, r.run(t, append([]string{"vectors"}, tc.args...)...), r.err.String())
			require.Contains(t, r.err.String(), tc.want)
			require.Zero(t, countFiles(t, dir))
		})
	}
}

func TestEncodeReusesAnUnloadedCodebook(t *testing.T) {
	// A file that workers have on disk under another name is loaded, not written a second time.
	rows := base(t, 50, 4)
	cb, out := trainedCodebook(t, rows, "-k", "9"), filepath.Join(t.TempDir(), "codes.npy")
	server := &vectorServer{}
	r := serveVectors(t, server)
	require.Equal(t, 0, r.run(t, "vectors", "put", cb, "mine"), r.err.String())
	require.Equal(t, 0, r.run(t, "vectors", "unload", "mine"), r.err.String())
	require.Equal(t, 0, r.run(t, "vectors", "encode", rows, "-c", cb, "-o", out), r.err.String())
	require.Len(t, server.books, 1)
	require.Contains(t, r.out.String(), "codebook mine ")
}
