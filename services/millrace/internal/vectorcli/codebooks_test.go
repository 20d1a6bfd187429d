package vectorcli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/safetensors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/tty/ttytest"
)

func TestCodebooksAreATable(t *testing.T) {
	server := &vectorServer{books: map[string]*book{
		"broken": {info: &pb.CodebookInfo{Name: "broken", State: pb.CodebookState_CODEBOOK_STATE_ON_DISK, Problem: "truncated\nat 5", WorkerIds: []string{"w1"}}},
	}}
	r := serveVectors(t, server)
	rows := base(t, 50, 4)
	require.Equal(t, 0, r.run(t, "vectors", "train", rows, "-k", "9", "--save-as", "flat", "--seed", "1"), r.err.String())
	require.Equal(t, 0, r.run(t, "vectors", "train", rows, "-k", "4", "--subspaces", "2", "--save-as", "pq", "--seed", "1"), r.err.String())
	require.Equal(t, 0, r.run(t, "vectors", "unload", "pq"), r.err.String())
	require.Contains(t, r.out.String(), "pq unloaded from w1: 32 B freed\n")
	r.out = ttytest.Buffer{}
	require.Equal(t, 0, r.run(t, "vectors", "list"), r.err.String())
	require.Regexp(t, ""+
		`^NAME +STATE +SHAPE +DEVICE +DIGEST +VERIFIED +WORKERS\n`+
		`broken +unusable +- +- +- +- +w1\n`+
		`flat +ready +flat 9 x 4 f16, l2 +72 B +[0-9a-f]{12} +60 s ago +w1\n`+
		`pq +on disk +product 4 x 4 in 2 f16, l2 +32 B +[0-9a-f]{12} +60 s ago +w1\n`+
		`broken: truncated at 5\n$`, r.out.String())
	r.out = ttytest.Buffer{}
	require.Equal(t, 0, r.run(t, "vectors", "list", "--json"))
	require.True(t, json.Valid([]byte(r.out.String())))
	r.out = ttytest.Buffer{}
	require.Equal(t, 0, r.run(t, "vectors", "load", "pq"))
	require.Regexp(t, `^pq loaded on w1: 32 B, digest [0-9a-f]{64}\n$`, r.out.String())
	require.Equal(t, 0, r.run(t, "vectors", "load", "pq"))
	require.Contains(t, r.out.String(), "pq was already there on w1")
	require.Equal(t, 5, r.run(t, "vectors", "load", "pq", "--digest", strings.Repeat("0", 64)))
	require.Equal(t, 5, r.run(t, "vectors", "unload", "none"))
}

func TestPutBringsAFile(t *testing.T) {
	rows := base(t, 50, 4)
	one, other := trainedCodebook(t, rows, "-k", "9"), trainedCodebook(t, rows, "-k", "8")
	server := &vectorServer{}
	r := serveVectors(t, server)
	require.Equal(t, 0, r.run(t, "vectors", "put", one, "mine"), r.err.String())
	require.Regexp(t, `^mine put on w1: 72 B, digest [0-9a-f]{64}\n$`, r.out.String())
	require.Equal(t, 5, r.run(t, "vectors", "put", other, "mine"))
	require.Equal(t, 0, r.run(t, "vectors", "put", other, "mine", "--replace", "--replicas", "1", "--json"), r.err.String())
	r.out = ttytest.Buffer{}
	require.Equal(t, 0, r.run(t, "vectors", "put", one), r.err.String())
	require.Regexp(t, `^cb-[0-9a-f]{12} put on w1`, r.out.String())
	require.Equal(t, 2, r.run(t, "vectors", "put", rows))
	require.Equal(t, 2, r.run(t, "vectors", "put"))
}

func TestALargeCodebookIsPutInPieces(t *testing.T) {
	codewords := make([]byte, 9<<20+512)
	for i := range codewords {
		codewords[i] = byte(i*2654435761>>11) & 0x3f // not infinite
	}
	c := codebookfile.Codebook{
		Kind: codebookfile.Flat, Metric: codebookfile.L2, Dimension: 256, Codewords: len(codewords) / 512, Subspaces: 1,
		CodewordType: safetensors.F16, Digest: blake3.Sum256(codewords),
	}
	path := filepath.Join(t.TempDir(), "big.safetensors")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, codebookfile.Write(f, c, bytes.NewReader(codewords), codebookfile.History{}))
	require.NoError(t, f.Close())
	server := &vectorServer{} // it checks the digest of the codewords
	r := serveVectors(t, server)
	require.Equal(t, 0, r.run(t, "vectors", "put", path, "big"), r.err.String())
	require.Contains(t, server.books, "big")
	require.Equal(t, 0, r.run(t, "vectors", "inspect", path), "nobody knows how it was trained")
	require.NotContains(t, r.out.String(), "seed")
}

func TestAnEmptyListSaysHowToMakeACodebook(t *testing.T) {
	r := serveVectors(t, &vectorServer{})
	require.Equal(t, 0, r.run(t, "vectors", "list"))
	require.Empty(t, r.out.String())
	require.Contains(t, r.err.String(), "millrace vectors train --save-as NAME")
}

func TestServerTextsCannotSteerATerminal(t *testing.T) {
	rows := base(t, 50, 4)
	cb := trainedCodebook(t, rows, "-k", "9")
	info := ttytest.Poisoned(&pb.CodebookInfo{Name: "n", State: pb.CodebookState_CODEBOOK_STATE_READY, Problem: "p", WorkerIds: []string{"w"}})
	r := serveVectors(t, &vectorServer{
		worker: "w" + ttytest.Poison, books: map[string]*book{"n" + ttytest.Poison: {info: info}},
		reply: func(m *pb.TrainCodebookResponse) error {
			if f := m.GetFinished(); f != nil {
				f.Numerics += ttytest.Poison
			}
			return nil
		},
	})
	dir := t.TempDir()
	for _, args := range [][]string{
		{"list"}, {"list", "--json"}, {"train", rows, "-k", "3", "-o", dir + "/x.safetensors"}, {"train", rows, "-k", "3", "--save-as", "x", "--json"},
		{"inspect", dir + "/x.safetensors"}, {"put", cb}, {"encode", rows, "-c", cb, "-o", dir + "/c.npy"}, {"encode", rows, "-c", "none" + ttytest.Poison, "-o", dir + "/c.npy"},
		{"selftest"}, {"train", rows + ttytest.Poison}, {"inspect", cb + ttytest.Poison},
	} {
		t.Run(args[0], func(t *testing.T) {
			r.out, r.err = ttytest.Buffer{}, ttytest.Buffer{}
			r.run(t, append([]string{"vectors"}, args...)...)
			for _, c := range r.out.String() + r.err.String() {
				require.False(t, unicode.IsControl(c) && c != '\n', "%q", r.out.String()+r.err.String())
			}
			require.NotRegexp(t, `(?m)^millrace: all is well`, r.out.String()+r.err.String())
			require.NotEmpty(t, r.out.String()+r.err.String())
		})
	}
}

func TestAShapeThatCannotBeIsNotBelieved(t *testing.T) {
	rows := base(t, 50, 4)
	server := &vectorServer{}
	r := serveVectors(t, server)
	require.Equal(t, 0, r.run(t, "vectors", "train", rows, "-k", "9", "--save-as", "x"), r.err.String())
	good := server.books["x"].info.GetShape()
	for name, change := range map[string]func(*pb.CodebookShape){
		"no subspaces": func(s *pb.CodebookShape) { s.Subspaces = 0 }, "no kind": func(s *pb.CodebookShape) { s.Kind = 0 },
		"codewords of bytes": func(s *pb.CodebookShape) { s.CodewordType = pb.ElementType_ELEMENT_TYPE_U8 },
		"no dimension":       func(s *pb.CodebookShape) { s.Dimension = 0 }, "another kind": func(s *pb.CodebookShape) { s.Kind = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			bad := proto.CloneOf(good)
			change(bad)
			server.books["x"].info.Shape = bad
			out := filepath.Join(t.TempDir(), "c.npy")
			require.Equal(t, 1, r.run(t, "vectors", "encode", rows, "-c", "x", "-o", out))
			require.Contains(t, r.err.String(), "reports an impossible codebook")
			_, err := os.Stat(out)
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

func TestVectorsAndEachOfItsCommandsHaveHelp(t *testing.T) {
	r := &rig{target: "127.0.0.1:1"}
	require.Equal(t, 0, r.run(t, "--help"))
	require.Contains(t, r.out.String(), "vectors      Train vector codebooks")
	for command, texts := range map[string][]string{
		"":         {"train ", "encode ", "decode ", "inspect ", "selftest ", "list ", "put ", "load ", "unload ", ".fvecs", "packs them"},
		"train":    {"-k, --codewords", "-o, --output", "--kind flat|product", "--metric l2|inner-product|cosine", "--algorithm lloyd|annealed", "--resume", "--checkpoint", "--split-load"},
		"encode":   {"-c, --codebook", "--neighbours", "--distances", "--in-flight"},
		"decode":   {"-c, --codebook", ".fvecs"},
		"inspect":  {"--codes", "--plot", "No server is needed"},
		"selftest": {"--large", "float64"},
		"list":     {"--json"}, "put": {"--replace", "--replicas"}, "load": {"--digest"}, "unload": {"its file stays"},
	} {
		t.Run(command, func(t *testing.T) {
			r.out = ttytest.Buffer{}
			require.Equal(t, 0, r.run(t, strings.Fields("vectors "+command+" --help")...))
			for _, text := range texts {
				require.Contains(t, r.out.String(), text)
			}
			require.Empty(t, r.err.String())
		})
	}
}
