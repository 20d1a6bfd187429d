package vectorcli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/tty/ttytest"
)

// floats returns rows of a Gaussian mixture as F32.
func floats(rows, dimension int) []byte {
	r := rand.New(rand.NewPCG(uint64(rows), uint64(dimension)))
	values := make([]float64, rows*dimension)
	for i := range values {
		values[i] = float64(float32(r.NormFloat64() + 4*float64(i/dimension%5)))
	}
	return vq.Encode(engine.VectorF32, values)
}

// base writes a file of rows.
func base(t *testing.T, rows, dimension int) string {
	t.Helper()
	return npy(t, "base.npy", vectorfile.F32, floats(rows, dimension), int64(rows), int64(dimension))
}

func trainedFile(t *testing.T, r *rig, args ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "cb.safetensors")
	require.Equal(t, 0, r.run(t, append([]string{"vectors", "train", "-o", out}, args...)...), r.err.String())
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	return b
}

func TestTrainWritesTheCodebookAndWhatMadeIt(t *testing.T) {
	r := serveVectors(t, &vectorServer{})
	raw := trainedFile(t, r, base(t, 200, 6), "-k", "7", "--max-iterations", "3", "--seed", "3")
	f, err := codebookfile.Parse(bytes.NewReader(raw), int64(len(raw)))
	require.NoError(t, err)
	require.NoError(t, f.Verify())

	// The reference gives the expected content.
	reference, err := vq.New(engine.TrainerConfig{
		Codebook: engine.CodebookDesc{Dimension: 6, Codewords: 7, Subspaces: 1, Type: engine.VectorF16}, Rows: 200, Init: engine.KMeansPlusPlus,
		Seed: 3, MaxIterations: 3, EnergyTolerance: -1, MinChanges: -1, StableRounds: 1,
	}, vq.Decode(engine.VectorF32, floats(200, 6)), nil)
	require.NoError(t, err)
	var energies []float64
	for reference.Reason() == engine.Unfinished {
		round, err := reference.Round()
		require.NoError(t, err)
		energies = append(energies, round.Energy)
	}
	got := make([]byte, f.Bytes())
	_, err = f.Data().ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, reference.Codewords(), got)
	energiesInFile, err := f.Energies()
	require.NoError(t, err)
	require.Equal(t, energies, energiesInFile)
	require.EqualValues(t, 3, f.Seed)
	require.Equal(t, "vectors-1", f.Numerics)
	training := f.Training()
	require.Len(t, training["rows_digest"], 64)
	delete(training, "rows_digest")
	require.NotEmpty(t, training["energy"])
	delete(training, "energy")
	require.Equal(t, map[string]string{
		"rows": "200", "sampled_rows": "200", "init": "kmeans-plus-plus", "max_iterations": "3", "stable_iterations": "1",
		"iterations": "3", "reason": "max iterations", "empty": "0",
	}, training)

	require.Regexp(t, `^\S+cb\.safetensors: 7 x 6 f16, l2, 84 B, energy \d\S+, 3 iterations \(max iterations\), 5\.92 % of the rows' bytes, seed 3, digest [0-9a-f]{12}, .* worker w1\n$`, r.out.String())
	lines := strings.Split(strings.TrimSpace(r.err.String()), "\n")
	require.Equal(t, "w1: writing 100% of 200 rows", lines[0])
	require.Regexp(t, `^w1: iteration 0 of 3, energy \d\S+, 200 changes, 1\.00 s left$`, lines[1])
	require.Regexp(t, `^w1: iteration 3 of 3, energy \d\S+ \(-\S+ %\), \d+ changes`, lines[4])
	require.Len(t, lines, 5)
}

func TestEqualRowsAndFlagsGiveEqualBytes(t *testing.T) {
	data := floats(300, 4)
	file := base(t, 300, 4)
	fvecs := filepath.Join(t.TempDir(), "base.fvecs")
	var b bytes.Buffer
	w, err := vectorfile.NewVecsWriter(&b, 4)
	require.NoError(t, err)
	_, err = w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(fvecs, b.Bytes(), 0o600))

	flags := []string{"-k", "8", "--kind", "product", "--subspaces", "2", "--seed", "9", "--type", "bf16"}
	want := trainedFile(t, serveVectors(t, &vectorServer{}), append(flags, file)...)
	require.Equal(t, want, trainedFile(t, serveVectors(t, &vectorServer{worker: "another"}), append(flags, fvecs)...), "whatever the worker and the format")
	require.Equal(t, want, trainedFile(t, serveVectors(t, &vectorServer{}), append(flags, "--max-iterations", "25", "--init", "kmeans-plus-plus",
		"--metric", "l2", "--algorithm", "lloyd", "--save-as", "kept", file)...), "the defaults, and where else it is kept, do not matter")
	require.NotEqual(t, want, trainedFile(t, serveVectors(t, &vectorServer{}), append(flags[:len(flags)-2], file)...))
}

func countFiles(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	return len(entries)
}

func TestATrainingBeginsWithGivenCodewords(t *testing.T) {
	file := base(t, 300, 4)
	first := filepath.Join(t.TempDir(), "first.safetensors")
	require.NoError(t, os.WriteFile(first, trainedFile(t, serveVectors(t, &vectorServer{}), file, "-k", "8", "--seed", "1", "--max-iterations", "2", "--type", "f32"), 0o600))
	server := &vectorServer{}
	second := trainedFile(t, serveVectors(t, server), file, "--from", first, "--seed", "1", "--max-iterations", "3")
	whole := trainedFile(t, serveVectors(t, &vectorServer{}), file, "-k", "8", "--seed", "1", "--max-iterations", "5", "--type", "f32")
	a, err := codebookfile.Parse(bytes.NewReader(second), int64(len(second)))
	require.NoError(t, err)
	b, err := codebookfile.Parse(bytes.NewReader(whole), int64(len(whole)))
	require.NoError(t, err)
	require.Equal(t, b.Digest, a.Digest, "2 and 3 iterations are 5")
	require.Equal(t, pb.CodebookInit_CODEBOOK_INIT_GIVEN, server.configs[0].GetInit())
	require.Len(t, a.Training()["given_digest"], 64)

	for name, args := range map[string][]string{
		"another size": {"--from", first, "-k", "9"}, "another type": {"--from", first, "--type", "f16"}, "another init": {"--from", first, "--init", "random"},
		"no codewords": {"--init", "given", "-k", "8"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serveVectors(t, &vectorServer{})
			require.Equal(t, 2, r.run(t, append([]string{"vectors", "train", file, "--save-as", "x"}, args...)...))
		})
	}
}

func TestEveryFlagOfTrainReachesTheServer(t *testing.T) {
	server := &vectorServer{}
	r := serveVectors(t, server)
	server.reply = func(*pb.TrainCodebookResponse) error {
		return refusal(codes.InvalidArgument, "INVALID_ARGUMENT", "seen")
	}
	require.Equal(t, 4, r.run(t, "vectors", "train", base(t, 20, 4), "-k", "2", "--kind", "product", "--subspaces", "2", "--type", "bf16", "--metric", "cosine",
		"--algorithm", "annealed", "--init", "farthest", "--seed", "0", "--max-iterations", "0", "--energy-tolerance", "0", "--min-changes", "0",
		"--stable-iterations", "3", "--max-rows-per-codeword", "4", "--checkpoint", filepath.Join(t.TempDir(), "c"), "--checkpoint-interval", "6",
		"--save-as", "a/b", "--temperature", "0.5", "--cooling-rate", "0", "--learning-rate", "1", "--momentum", "0.25", "--trim", "0.125", "--step-limit", "7",
		"--maintenance-interval", "8", "--merge-distance", "9", "--split-load", "10", "--output", filepath.Join(t.TempDir(), "o.safetensors")))
	want := &pb.TrainingConfig{
		Dimension: 4, Rows: 20, ElementType: pb.ElementType_ELEMENT_TYPE_F32, Kind: pb.CodebookKind_CODEBOOK_KIND_PRODUCT, Codewords: 2,
		Subspaces: proto.Uint32(2), CodewordType: pb.ElementType_ELEMENT_TYPE_BF16, Metric: pb.VectorMetric_VECTOR_METRIC_COSINE,
		Algorithm: pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED, Init: pb.CodebookInit_CODEBOOK_INIT_FARTHEST, Seed: proto.Uint64(0),
		MaxIterations: proto.Uint32(0), EnergyTolerance: proto.Float64(0), MinChanges: proto.Uint64(0), StableIterations: proto.Uint32(3),
		MaxRowsPerCodeword: proto.Uint64(4), CheckpointInterval: proto.Uint32(6), SaveAs: proto.String("a/b"),
		ReturnStatistics: proto.Bool(true), // of an output file
		Annealing: &pb.Annealing{
			Temperature: proto.Float64(0.5), CoolingRate: proto.Float64(0), LearningRate: proto.Float64(1), Momentum: proto.Float64(0.25),
			Trim: proto.Float64(0.125), StepLimit: proto.Float64(7), MaintenanceInterval: proto.Uint32(8), MergeDistance: proto.Float64(9), SplitLoad: proto.Float64(10),
		},
	}
	require.True(t, proto.Equal(want, server.configs[0]), "%v", server.configs[0])
	for _, m := range []proto.Message{server.configs[0], server.configs[0].GetAnnealing()} {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if fields.Get(i).Name() != "resume_bytes" { // --resume sets it
				require.True(t, m.ProtoReflect().Has(fields.Get(i)), "%s has no flag", fields.Get(i).FullName())
			}
		}
	}
}

func TestRowsGoInMessagesOfFourMebibytes(t *testing.T) {
	server := &vectorServer{}
	r := serveVectors(t, server)
	rows := make([]byte, 2049*4096)
	for i := range rows {
		rows[i] = byte(i * 7919 >> 3)
	}
	file := npy(t, "base.npy", vectorfile.U8, rows, 2049, 4096)
	_ = trainedFile(t, r, file, "-k", "2", "--max-iterations", "0", "--init", "random")
	sum := 0
	for _, n := range server.pieces[0] {
		require.Zero(t, n%4096, "rows are whole")
		require.LessOrEqual(t, n, 4<<20)
		sum += n
	}
	require.Equal(t, len(rows), sum)
	require.Len(t, server.pieces[0], 3)
}

func TestTrainAsJSONPrintsOneEventALine(t *testing.T) {
	r := serveVectors(t, &vectorServer{})
	out := t.TempDir()
	require.Equal(t, 0, r.run(t, "vectors", "train", base(t, 100, 4), "-k", "60", "--init", "random", "--max-iterations", "3", "--stable-iterations", "9", "--json", "-o", out+"/cb.safetensors",
		"--checkpoint", out+"/c", "--checkpoint-interval", "1"))
	require.Empty(t, r.err.String())
	var seen []string
	for _, line := range strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n") {
		event := &pb.TrainCodebookResponse{}
		require.NoError(t, protojson.Unmarshal([]byte(line), event))
		var object map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &object))
		require.Less(t, len(line), 1000, "no bytes of codebooks")
		delete(object, "workerId")
		for kind := range object {
			seen = append(seen, kind)
		}
		if c := event.GetCheckpoint(); c != nil {
			require.Positive(t, c.GetTotal())
		}
	}
	text := strings.Join(seen, " ")
	require.Regexp(t, `^accepted (progress )+checkpoint (progress )+checkpoint (progress )+checkpoint (progress )+finished$`, text)
	require.FileExists(t, out+"/cb.safetensors")
}

func TestCtrlCCancelsTrainingAndNamesCheckpoint(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"with a checkpoint":   {[]string{"--checkpoint-interval", "2"}, "it continues from iteration 4 with --resume "},
		"before a checkpoint": {[]string{"--checkpoint-interval", "9"}, "ended before its first checkpoint"},
		"without one":         {nil, "--checkpoint FILE keeps how far one has come"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := make(chan context.Context, 1)
			r := serveVectors(t, &vectorServer{round: func(ctx context.Context, r engine.Round) error {
				switch {
				case r.Iteration == 0:
					calls <- ctx
				case r.Iteration == 4:
					<-ctx.Done()
				}
				return ctx.Err()
			}})
			dir := t.TempDir()
			args := append([]string{"vectors", "train", base(t, 400, 6), "-k", "30", "-o", filepath.Join(dir, "cb.safetensors"), "--init", "random", "--seed", "2"}, tc.args...)
			if tc.args != nil {
				args = append(args, "--checkpoint", filepath.Join(dir, "kept"))
			}
			r.interrupt(t, &r.err, "iteration 4")
			require.Equal(t, 130, r.run(t, args...))
			<-(<-calls).Done() // the server has noticed, wherever in a round it was
			require.Contains(t, r.err.String(), tc.want)
			require.Contains(t, r.err.String(), "millrace: interrupted")
			require.NoFileExists(t, filepath.Join(dir, "cb.safetensors"))
		})
	}
}

func TestTrainOnATerminalDrawsABar(t *testing.T) {
	r := serveVectors(t, &vectorServer{})
	s := ttytest.Open(t, 160, 30)
	shown := func(pattern string) {
		require.Eventually(t, func() bool { return regexp.MustCompile(pattern).MatchString(s.Seen.String()) }, hang, time.Millisecond, pattern)
	}
	require.Equal(t, 0, r.on(t, s.TTY, s.TTY, "vectors", "train", base(t, 400, 6), "-k", "30", "--save-as", "x", "--max-iterations", "6", "--init", "random", "--min-changes", "0"))
	shown(`w1 +\[[#.]+\] +(writing|iteration) `)
	shown(`x on w1: 30 x 6 f16, l2`)
}

func TestTrainDrawsEnergies(t *testing.T) {
	r := serveVectors(t, &vectorServer{})
	drawing := filepath.Join(t.TempDir(), "cb.svg")
	_ = trainedFile(t, r, base(t, 100, 4), "-k", "5", "--plot", drawing)
	b, err := os.ReadFile(drawing)
	require.NoError(t, err)
	require.Contains(t, string(b), "<svg")
	require.Contains(t, string(b), "base.npy: 5 x 4 f16, l2")
}

func TestTrainRefusesWhatCannotBe(t *testing.T) {
	good := base(t, 20, 4)
	text := write(t, "no vectors")
	broken := filepath.Join(t.TempDir(), "broken.npy")
	require.NoError(t, os.WriteFile(broken, []byte("\x93NUMPY\x01\x00"), 0o600))
	out := filepath.Join(t.TempDir(), "cb.safetensors")
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no rows":                  {[]string{"-k", "2", "-o", out}, 2, "want one, ROWS"},
		"no codewords":             {[]string{good, "-o", out}, 2, "give it with -k"},
		"no place":                 {[]string{good, "-k", "2"}, 2, "give -o FILE, --save-as NAME, or both"},
		"another ending":           {[]string{good, "-k", "2", "-o", "cb.npy"}, 2, "ends in .safetensors"},
		"a folder that is not":     {[]string{good, "-k", "2", "-o", filepath.Join(out, "x", "cb.safetensors")}, 2, "no such file or directory"},
		"a place for a folder":     {[]string{good, "-k", "2", "--save-as", "x", "--plot", t.TempDir()}, 2, "no regular file"},
		"no such file":             {[]string{good + "x", "-k", "2", "-o", out}, 2, "no such file"},
		"another format":           {[]string{text, "-k", "2", "-o", out}, 2, ".fvecs"},
		"a broken file":            {[]string{broken, "-k", "2", "-o", out}, 2, "broken.npy"},
		"no such metric":           {[]string{good, "-k", "2", "-o", out, "--metric", "l1"}, 2, "not one of l2, inner-product, cosine"},
		"no interval's file":       {[]string{good, "-k", "2", "-o", out, "--checkpoint-interval", "2"}, 2, "needs --checkpoint"},
		"more codewords than rows": {[]string{good, "-k", "21", "-o", out}, 4, "rows are 20"},
		"no such flag":             {[]string{good, "-k", "2", "-o", out, "--bogus"}, 2, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serveVectors(t, &vectorServer{})
			require.Equal(t, tc.code, r.run(t, append([]string{"vectors", "train"}, tc.args...)...), r.err.String())
			require.Contains(t, r.err.String(), tc.want)
			require.Empty(t, r.out.String())
			require.Zero(t, countFiles(t, filepath.Dir(out)), "nothing is left")
		})
	}
}

func TestTrainRefusesRepliesAgainstTheContract(t *testing.T) {
	for name, tc := range map[string]struct {
		reply func(*pb.TrainCodebookResponse)
		want  string
	}{
		"another digest": {func(m *pb.TrainCodebookResponse) {
			if m.GetFinished() != nil {
				m.GetFinished().CodebookDigest = strings.Repeat("ab", 32)
			}
		}, "announced was abab"},
		"a flipped bit": {func(m *pb.TrainCodebookResponse) {
			if c := bytes.Clone(m.GetCodebook()); len(c) > 0 {
				c[3] ^= 1
				m.Event = &pb.TrainCodebookResponse_Codebook{Codebook: c}
			}
		}, "announced was"},
		"a short codebook": {func(m *pb.TrainCodebookResponse) {
			if c := m.GetCodebook(); len(c) > 0 {
				m.Event = &pb.TrainCodebookResponse_Codebook{Codebook: c[:len(c)-1]}
			}
		}, "39 bytes of a codebook of 40 came"},
		"a long codebook": {func(m *pb.TrainCodebookResponse) {
			if c := m.GetCodebook(); len(c) > 0 {
				m.Event = &pb.TrainCodebookResponse_Codebook{Codebook: append(bytes.Clone(c), 0)}
			}
		}, "more than the 40 bytes"},
		"no end": {func(m *pb.TrainCodebookResponse) {
			if m.GetFinished() != nil {
				m.Event = nil
			}
		}, "without an end"},
		"a huge checkpoint": {func(m *pb.TrainCodebookResponse) {
			if m.GetProgress() != nil {
				m.Event = &pb.TrainCodebookResponse_Checkpoint{Checkpoint: &pb.TrainingCheckpoint{Total: math.MaxUint64}}
			}
		}, "a checkpoint's piece"},
		"a checkpoint with a gap": {func(m *pb.TrainCodebookResponse) {
			if m.GetProgress() != nil {
				m.Event = &pb.TrainCodebookResponse_Checkpoint{Checkpoint: &pb.TrainingCheckpoint{Offset: 1, Total: 10, Chunk: []byte{1}}}
			}
		}, "a checkpoint's piece of 1 bytes at 1 of 10"},
		"accepted twice": {func(m *pb.TrainCodebookResponse) {
			if m.GetProgress() != nil {
				m.Event = &pb.TrainCodebookResponse_Accepted{Accepted: &pb.TrainingAccepted{}}
			}
		}, "twice"},
		"no numerics": {func(m *pb.TrainCodebookResponse) {
			if m.GetFinished() != nil {
				m.GetFinished().Numerics = ""
			}
		}, "numerics is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			r := serveVectors(t, &vectorServer{reply: func(m *pb.TrainCodebookResponse) error {
				mu.Lock()
				defer mu.Unlock()
				tc.reply(m)
				return nil
			}})
			out := filepath.Join(t.TempDir(), "cb.safetensors")
			require.Equal(t, 1, r.run(t, "vectors", "train", base(t, 20, 4), "-k", "5", "-o", out))
			require.Contains(t, r.err.String(), tc.want)
			require.Zero(t, countFiles(t, filepath.Dir(out)))
		})
	}
}

func TestATrainingThatIsNotAcceptedEndsAtOnce(t *testing.T) {
	r := serveVectors(t, &vectorServer{reply: func(*pb.TrainCodebookResponse) error {
		return refusal(codes.ResourceExhausted, "OUT_OF_DEVICE_MEMORY", "too large")
	}})
	require.Equal(t, 7, r.run(t, "vectors", "train", base(t, 20, 4), "-k", "5", "--save-as", "x", "--plot", filepath.Join(t.TempDir(), "p.svg")))
	require.Contains(t, r.err.String(), "OUT_OF_DEVICE_MEMORY")
	require.NotContains(t, r.err.String(), "--checkpoint")
}
