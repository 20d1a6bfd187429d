package e2e

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/vectorfile"
)

// client runs a command line of the client, which must succeed, and returns its output.
func client(t *testing.T, address string, args ...string) string {
	t.Helper()
	out, err := clientCommand(address, args...).CombinedOutput()
	require.NoError(t, err, "%v\n%s", args, out)
	return string(out)
}

func clientCommand(address string, args ...string) *exec.Cmd {
	return exec.Command(clientBinary, append(args, "--target", address)...)
}

// vectorFile writes Gaussian rows around eight centres to a .npy file and returns its path.
func vectorFile(t *testing.T, rows, dimension int) string {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 0, 4*rows*dimension)
	for i := range rows * dimension {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(r.NormFloat64()+3*float64(i/dimension%8))))
	}
	path := filepath.Join(t.TempDir(), "rows.npy")
	f, err := os.Create(path)
	require.NoError(t, err)
	w, err := vectorfile.NewNpyWriter(f, vectorfile.F32, int64(rows), int64(dimension))
	require.NoError(t, err)
	_, err = w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
	return path
}

// startVectorWorker starts a worker with its own codebooks folder.
func startVectorWorker(t *testing.T, device string) *server {
	t.Helper()
	return startWorker(t, device, "--device", device, "--codebooks", filepath.Join(t.TempDir(), "codebooks"))
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// TestEveryDeviceWritesTheSameVectorFiles trains a codebook, uses it by its file and by its name,
// and shows it. The sim engine's vectors are the float64 reference.
func TestEveryDeviceWritesTheSameVectorFiles(t *testing.T) {
	t.Parallel()
	rows := vectorFile(t, 2000, 24)
	workers := map[string]*server{"cpu": startVectorWorker(t, "cpu"), "sim": startVectorWorker(t, "sim")}
	for name, flags := range map[string][]string{
		"lloyd":    {"-k", "40"},
		"wide":     {"-k", "300", "--type", "f32", "--init", "random", "--max-rows-per-codeword", "7"},
		"cosine":   {"-k", "17", "--metric", "cosine", "--type", "bf16"},
		"product":  {"-k", "30", "--subspaces", "6"},
		"annealed": {"-k", "40", "--algorithm", "annealed", "--trim", "0.1", "--maintenance-interval", "3", "--split-load", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string][]byte{} // of the first device
			for device, w := range workers {
				dir := t.TempDir()
				at := func(file string) string { return filepath.Join(dir, file) }
				train := []string{"vectors", "train", rows, "--seed", "7", "--max-iterations", "8", "-o", at("cb.safetensors"), "--save-as", "kept/" + name}
				client(t, w.address, append(train, flags...)...)
				client(t, w.address, "vectors", "encode", rows, "-c", at("cb.safetensors"), "-o", at("codes.npy"), "--distances", at("distances.npy"))
				client(t, w.address, "vectors", "encode", rows, "-c", "kept/"+name, "-o", at("named.npy"))
				client(t, w.address, "vectors", "decode", at("codes.npy"), "-c", at("cb.safetensors"), "-o", at("decoded.npy"))
				inspected := client(t, w.address, "vectors", "inspect", at("cb.safetensors"), "--codes", at("codes.npy"), "--plot", at("cb.svg"))
				require.Regexp(t, `(?m)^rows +2000$`, inspected)
				require.NoError(t, os.WriteFile(at("inspected"), []byte(inspected), 0o600))
				require.Equal(t, read(t, at("codes.npy")), read(t, at("named.npy")))
				for _, file := range []string{"cb.safetensors", "codes.npy", "distances.npy", "decoded.npy", "inspected", "cb.svg"} {
					if before, ok := files[file]; ok {
						require.True(t, bytes.Equal(before, read(t, at(file))), "%s of %s differs", file, device)
					}
					files[file] = read(t, at(file))
				}
			}
		})
	}
	for _, w := range workers {
		require.Contains(t, client(t, w.address, "vectors", "selftest"), "passed\n")
	}
}

// TestKilledWorkersTrainingContinues resumes a training on another device, to the
// bytes of an undisturbed one.
func TestKilledWorkersTrainingContinues(t *testing.T) {
	t.Parallel()
	rows, dir := vectorFile(t, 20_000, 32), t.TempDir()
	at := func(file string) string { return filepath.Join(dir, file) }
	const many = "1000000" // more than the test waits for
	flags := []string{"vectors", "train", rows, "-k", "100", "--seed", "7", "--init", "random", "--stable-iterations", many}
	first := startVectorWorker(t, "cpu")
	training := clientCommand(first.address, append(flags, "-o", at("cut.safetensors"), "--checkpoint", at("kept"), "--checkpoint-interval", "1",
		"--max-iterations", many)...)
	var said output
	training.Stdout, training.Stderr = &said, &said
	require.NoError(t, training.Start())
	require.Eventually(t, func() bool {
		_, err := os.Stat(at("kept"))
		return err == nil
	}, hang, 5*time.Millisecond)
	first.kill()
	_ = training.Wait() // its state says how it ended
	require.Equal(t, 3, training.ProcessState.ExitCode(), said.String())
	require.Contains(t, said.String(), "with --resume "+at("kept"))
	require.NoFileExists(t, at("cut.safetensors"))

	found := regexp.MustCompile(`continues from iteration (\d+) `).FindStringSubmatch(said.String())
	require.NotNil(t, found, said.String())
	done, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	updates := strconv.Itoa(done + 3)
	second := startVectorWorker(t, "cpu")
	client(t, second.address, "vectors", "train", rows, "--resume", at("kept"), "-o", at("resumed.safetensors"), "--max-iterations", updates)
	client(t, second.address, append(flags, "-o", at("whole.safetensors"), "--max-iterations", updates)...)
	require.True(t, bytes.Equal(read(t, at("whole.safetensors")), read(t, at("resumed.safetensors"))))
}

// TestWorkerRefusesInvalidVectors checks the client's exit codes for the errors of a
// real worker.
func TestWorkerRefusesInvalidVectors(t *testing.T) {
	t.Parallel()
	rows, dir := vectorFile(t, 100, 8), t.TempDir()
	w := startVectorWorker(t, "cpu")
	broken := read(t, rows)
	binary.LittleEndian.PutUint32(broken[len(broken)-4*8*3:], math.Float32bits(float32(math.NaN()))) // row 97
	bad := filepath.Join(dir, "bad.npy")
	require.NoError(t, os.WriteFile(bad, broken, 0o600))
	client(t, w.address, "vectors", "train", rows, "-k", "4", "--save-as", "good")
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"more codewords than rows":      {[]string{"train", rows, "-k", "101", "--save-as", "x"}, 4, "101"},
		"one codeword":                  {[]string{"train", rows, "-k", "1", "--save-as", "x"}, 4, "codewords"},
		"subspaces that do not divide":  {[]string{"train", rows, "-k", "4", "--subspaces", "3", "--save-as", "x"}, 4, "subspaces"},
		"a name that leads out":         {[]string{"train", rows, "-k", "4", "--save-as", "../x"}, 4, "../x"},
		"a name that is taken":          {[]string{"train", rows, "-k", "5", "--save-as", "good"}, 5, "good"},
		"a row that is no number":       {[]string{"train", bad, "-k", "4", "--save-as", "x"}, 4, "row 97"},
		"that row to be encoded":        {[]string{"encode", bad, "-c", "good", "-o", filepath.Join(dir, "x.npy")}, 4, "row 97"},
		"too many neighbours":           {[]string{"encode", rows, "-c", "good", "-o", filepath.Join(dir, "x.npy"), "--neighbours", "5"}, 4, "neighbours"},
		"no such codebook":              {[]string{"load", "none"}, 5, "none"},
		"a codebook that is not loaded": {[]string{"unload", "none"}, 5, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := clientCommand(w.address, append([]string{"vectors"}, tc.args...)...)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Equal(t, tc.code, cmd.ProcessState.ExitCode(), "%s", out)
			require.Contains(t, string(out), tc.want)
		})
	}
	require.Contains(t, client(t, w.address, "vectors", "list"), "good")
	client(t, w.address, "vectors", "encode", rows, "-c", "good", "-o", filepath.Join(dir, "codes.npy"), "--neighbours", "4")
}
