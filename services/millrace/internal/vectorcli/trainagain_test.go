package vectorcli_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/internal/vectorfile"
	"github.com/millrace/millrace/services/millrace/internal/tty/ttytest"
)

func TestTrainResumesToTheSameBytes(t *testing.T) {
	// A training resumes from its checkpoint to the same bytes.
	for name, flags := range map[string][]string{
		"lloyd":                     {"-k", "9", "--max-iterations", "12", "--seed", "5", "--stable-iterations", "20", "--init", "random"},
		"a drawn seed, on a sample": {"-k", "9", "--max-iterations", "12", "--max-rows-per-codeword", "20", "--stable-iterations", "20"},
		"annealed": {"-k", "9", "--max-iterations", "12", "--algorithm", "annealed", "--momentum", "0.5", "--trim", "0.1", "--maintenance-interval", "2",
			"--split-load", "1.5", "--seed", "5"},
		"product": {"-k", "4", "--subspaces", "3", "--max-iterations", "12", "--seed", "5", "--stable-iterations", "20", "--type", "f32"},
	} {
		t.Run(name, func(t *testing.T) {
			file := base(t, 400, 6)
			whole := trainedFile(t, serveVectors(t, &vectorServer{}), append(flags, file)...)
			kept := filepath.Join(t.TempDir(), "kept")
			out := filepath.Join(t.TempDir(), "cb.safetensors")
			lost := refusal(codes.Internal, "DEVICE_FAILED", "gone")
			dying := serveVectors(t, &vectorServer{round: func(_ context.Context, r engine.Round) error {
				if r.Iteration == 7 {
					return lost
				}
				return nil
			}})
			require.Equal(t, 1, dying.run(t, append([]string{"vectors", "train", file, "-o", out, "--checkpoint", kept, "--checkpoint-interval", "3"}, flags...)...))
			require.Contains(t, dying.err.String(), "it continues from iteration 6 with --resume "+kept)
			require.NoFileExists(t, out)
			require.Equal(t, 1, countFiles(t, filepath.Dir(kept)))

			// The flags come from the checkpoint.
			require.Equal(t, whole, trainedFile(t, serveVectors(t, &vectorServer{worker: "w2"}), file, "--resume", kept))
			require.Equal(t, whole, trainedFile(t, serveVectors(t, &vectorServer{worker: "w2"}), append(flags, file, "--resume", kept)...), "given again")
		})
	}
}

func TestTrainContinuesOnAnotherWorker(t *testing.T) {
	// A training whose workers are lost continues on another one by itself.
	file, kept := base(t, 400, 6), filepath.Join(t.TempDir(), "kept")
	flags := []string{file, "-k", "9", "--max-iterations", "12", "--stable-iterations", "20"} // the first worker draws the seed
	whole := trainedFile(t, serveVectors(t, &vectorServer{}), flags...)
	lost := map[int64]bool{}
	server := &vectorServer{round: func(_ context.Context, r engine.Round) error {
		if (r.Iteration == 4 || r.Iteration == 7 || r.Iteration == 8) && !lost[r.Iteration] {
			lost[r.Iteration] = true
			return refusal(codes.Unavailable, "WORKER_LOST", "gone")
		}
		return nil
	}}
	r := serveVectors(t, server)
	require.Equal(t, whole, trainedFile(t, r, append(flags, "--checkpoint", kept, "--checkpoint-interval", "3")...))
	for _, from := range []string{"3", "6", "9"} {
		require.Equal(t, 1, strings.Count(r.err.String(), "the worker w1 is lost; the training continues from iteration "+from+" elsewhere\n"))
	}
	require.Len(t, server.configs, 4)
	require.EqualValues(t, 4711, server.configs[3].GetSeed())
	require.FileExists(t, kept)
}

func TestATrainingWhoseWorkersStayAwayEnds(t *testing.T) {
	server := &vectorServer{round: func(_ context.Context, r engine.Round) error {
		if r.Iteration == 2 {
			return refusal(codes.Unavailable, "WORKER_LOST", "gone")
		}
		return nil
	}}
	r := serveVectors(t, server)
	args := []string{"vectors", "train", base(t, 400, 6), "-k", "9", "--save-as", "x", "--init", "random", "--seed", "1", "--stable-iterations", "20"}
	require.Equal(t, 3, r.run(t, args...))
	require.Len(t, server.configs, 1, "without a checkpoint it does not begin again")
	kept := filepath.Join(t.TempDir(), "kept")
	require.Equal(t, 3, r.run(t, append(args, "--checkpoint", kept, "--checkpoint-interval", "2")...))
	require.Len(t, server.configs, 1+6)
	require.Contains(t, r.err.String(), "it continues from iteration 2 with --resume "+kept)
}

func TestATrainingIsGivenMoreRounds(t *testing.T) {
	file := base(t, 300, 3)
	kept := filepath.Join(t.TempDir(), "kept")
	long := trainedFile(t, serveVectors(t, &vectorServer{}), file, "-k", "20", "--seed", "1", "--max-iterations", "8", "--min-changes", "0", "--init", "random")
	_ = trainedFile(t, serveVectors(t, &vectorServer{}), file, "-k", "20", "--seed", "1", "--max-iterations", "5", "--init", "random",
		"--checkpoint", kept, "--checkpoint-interval", "2")
	require.Equal(t, long, trainedFile(t, serveVectors(t, &vectorServer{}), file, "--resume", kept, "--max-iterations", "8", "--min-changes", "0"))
}

func TestResumeRefusesWhatTheCheckpointIsNotOf(t *testing.T) {
	file := base(t, 300, 4)
	kept := filepath.Join(t.TempDir(), "kept")
	server := &vectorServer{}
	r := serveVectors(t, server)
	_ = trainedFile(t, r, file, "-k", "8", "--seed", "1", "--checkpoint", kept, "--checkpoint-interval", "1", "--init", "random")
	other := floats(300, 4)
	other[0] ^= 1
	changed := npy(t, "changed.npy", vectorfile.F32, other, 300, 4)
	cut := filepath.Join(t.TempDir(), "cut")
	raw, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cut, raw[:len(raw)-1], 0o600))
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"another seed":         {[]string{file, "--resume", kept, "--seed", "2"}, "--seed is 2, and the checkpoint " + kept + " has 1: leave the flag out"},
		"another metric":       {[]string{file, "--resume", kept, "--metric", "cosine"}, "--metric is cosine"},
		"another size":         {[]string{file, "--resume", kept, "-k", "9"}, "--codewords is 9"},
		"other annealing":      {[]string{file, "--resume", kept, "--trim", "0.2", "--algorithm", "annealed"}, "--algorithm is annealed"},
		"fewer rows":           {[]string{base(t, 299, 4), "--resume", kept}, "has rows 299, and the checkpoint"},
		"another dimension":    {[]string{base(t, 300, 5), "--resume", kept}, "has dimension 5"},
		"rows with other bits": {[]string{changed, "--resume", kept}, "those of the checkpoint had"},
		"with a codebook":      {[]string{file, "--resume", kept, "--from", "x"}, "leave --from out"},
		"a cut file":           {[]string{file, "--resume", cut}, "--resume " + cut},
		"no file":              {[]string{file, "--resume", cut + "x"}, "no such file"},
		"rows as a checkpoint": {[]string{file, "--resume", file}, "--resume " + file},
		"a folder":             {[]string{file, "--resume", filepath.Dir(file)}, "no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			r.err = ttytest.Buffer{}
			out := filepath.Join(t.TempDir(), "cb.safetensors")
			require.Equal(t, 2, r.run(t, append([]string{"vectors", "train", "-o", out}, tc.args...)...), r.err.String())
			require.Contains(t, r.err.String(), tc.want)
			require.Zero(t, countFiles(t, filepath.Dir(out)))
		})
	}
	require.Empty(t, server.pieces[len(server.pieces)-1], "the rows' end is not sent before they are known to be the same")
}

func TestUnsavedCodebookIsWrittenHere(t *testing.T) {
	// A codebook that its worker could not save is written here, and the exit code says that it was
	// not saved.
	rows, out := base(t, 40, 3), filepath.Join(t.TempDir(), "cb.safetensors")
	want := trainedFile(t, serveVectors(t, &vectorServer{}), rows, "-k", "4", "--seed", "5") // a server notices the end after its client
	v := &vectorServer{}
	r := serveVectors(t, v)
	v.unsaved = refusal(codes.AlreadyExists, "CODEBOOK_EXISTS", "another codebook has the name")
	require.Equal(t, 5, r.run(t, "vectors", "train", rows, "-k", "4", "--seed", "5", "--save-as", "taken", "-o", out, "--checkpoint", out+".checkpoint"))
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Contains(t, r.err.String(), "another codebook has the name")
	require.Contains(t, r.err.String(), "could not save")
	require.NotContains(t, r.err.String(), "--resume")
	require.NotContains(t, r.out.String(), "taken")
	require.Equal(t, 5, r.run(t, "vectors", "train", rows, "-k", "4", "--seed", "5", "--save-as", "taken"))
	require.Contains(t, r.out.String(), "kept nowhere")
	v.unsaved = refusal(codes.Unavailable, "WORKER_LOST", "the worker is gone")
	require.NotEqual(t, 0, r.run(t, "vectors", "train", rows, "-k", "4", "--seed", "5", "--save-as", "taken"), "nobody knows whether it was saved")
	require.Len(t, v.configs, 3, "a training that has finished is not done again")
	require.Equal(t, 0, r.run(t, "vectors", "train", rows, "-k", "4", "-o", out), "who wants nothing saved has everything")
}
