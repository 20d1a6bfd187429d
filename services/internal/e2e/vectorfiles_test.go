package e2e

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// npyOf returns an array file with a given header.
func npyOf(header string, data []byte) []byte {
	out := binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(header)+1))
	return append(append(append(out, header...), '\n'), data...)
}

// fvecsOf returns rows of zeros with the given dimensions.
func fvecsOf(dimensions ...uint32) (out []byte) {
	for _, d := range dimensions {
		out = append(binary.LittleEndian.AppendUint32(out, d), make([]byte, 4*d)...)
	}
	return out
}

// safetensorsOf returns a file with a given header.
func safetensorsOf(header string, data int) []byte {
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), make([]byte, data)...)
}

// TestHostileVectorFilesAreRefused gives the client invalid rows, codes and
// codebooks, and the worker invalid codebooks.
func TestHostileVectorFilesAreRefused(t *testing.T) {
	t.Parallel()
	good, dir := vectorFile(t, 100, 8), t.TempDir()
	books := filepath.Join(t.TempDir(), "codebooks")
	w := startWorker(t, "w", "--codebooks", books)
	client(t, w.address, "vectors", "train", good, "-k", "4", "--save-as", "good", "-o", filepath.Join(dir, "good.safetensors"))
	client(t, w.address, "vectors", "encode", good, "-c", "good", "-o", filepath.Join(dir, "good.npy"))
	array := func(descr, order, shape string) string {
		return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }"
	}
	book := read(t, filepath.Join(dir, "good.safetensors"))
	flipped := append([]byte(nil), book...)
	flipped[len(flipped)-1] ^= 1
	files := map[string][]byte{
		"short.npy": read(t, good)[:1000], "header.npy": read(t, good)[:60], "empty.npy": nil,
		"fortran.npy":   npyOf(array("'<f4'", "True", "(4, 2)"), make([]byte, 32)),
		"big.npy":       npyOf(array("'>f4'", "False", "(4, 2)"), make([]byte, 32)),
		"object.npy":    npyOf(array("'|O'", "False", "(4, 2)"), make([]byte, 32)),
		"negative.npy":  npyOf(array("'<f4'", "False", "(-4, 2)"), make([]byte, 32)),
		"huge.npy":      npyOf(array("'<f4'", "False", "(4611686018427387904, 8)"), make([]byte, 32)),
		"wide.npy":      npyOf(array("'|u1'", "False", "(2, 65537)"), make([]byte, 2*65537)),
		"four.npy":      npyOf(array("'<f4'", "False", "(2, 4)"), make([]byte, 32)),
		"narrow.npy":    npyOf(array("'<f4'", "False", "(4, 0)"), nil),
		"mixed.fvecs":   fvecsOf(8, 8, 7),
		"zero.fvecs":    fvecsOf(0, 0),
		"cut.fvecs":     fvecsOf(8, 8)[:50],
		"minus.fvecs":   binary.LittleEndian.AppendUint32(nil, 0x80000000),
		"codes.npy":     npyOf(array("'|u1'", "False", "(2, 1)"), []byte{3, 4}),
		"manycodes.npy": npyOf(array("'|u1'", "False", "(1, 2)"), []byte{3, 4}),

		"cut.safetensors":     book[:len(book)-1],
		"flipped.safetensors": flipped,
		"length.safetensors":  binary.LittleEndian.AppendUint64(nil, 1<<62),
		"deep.safetensors":    safetensorsOf(strings.Repeat("[", 1<<16), 0),
		"beyond.safetensors":  safetensorsOf(`{"codebook":{"dtype":"F16","shape":[4,8],"data_offsets":[0,9223372036854775807]}}`, 64),
		"over.safetensors":    safetensorsOf(`{"codebook":{"dtype":"F16","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0),
		"bare.safetensors":    safetensorsOf(`{"codebook":{"dtype":"F16","shape":[4,8],"data_offsets":[0,64]}}`, 64),
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, data := range files {
		require.NoError(t, os.WriteFile(at(name), data, 0o600))
	}
	for name, want := range map[string]string{
		"short.npy": "short.npy", "header.npy": "header.npy", "empty.npy": "empty.npy", "fortran.npy": "Fortran", "big.npy": "big endian",
		"object.npy": "Python objects", "negative.npy": "negative.npy", "huge.npy": "huge.npy", "narrow.npy": "narrow.npy",
		"wide.npy":    "allowed is 1 to 65536",
		"mixed.fvecs": "mixed.fvecs", "zero.fvecs": "zero.fvecs", "cut.fvecs": "cut.fvecs", "minus.fvecs": "minus.fvecs",
		"good.safetensors": "good.safetensors",
	} {
		t.Run("rows of "+name, func(t *testing.T) {
			refusedCommand(t, w, 2, want, "train", at(name), "-k", "2", "--save-as", "x")
			refusedCommand(t, w, 2, want, "encode", at(name), "-c", "good", "-o", at("x.npy"))
		})
	}
	for name, want := range map[string]string{
		"cut.safetensors": "cut.safetensors", "flipped.safetensors": "flipped.safetensors", "length.safetensors": "length.safetensors",
		"deep.safetensors": "deep.safetensors", "beyond.safetensors": "beyond.safetensors", "over.safetensors": "over.safetensors",
		"bare.safetensors": "bare.safetensors",
	} {
		t.Run("a codebook of "+name, func(t *testing.T) {
			refusedCommand(t, w, 2, want, "encode", good, "-c", at(name), "-o", at("x.npy"))
			refusedCommand(t, w, 2, want, "inspect", at(name))
			refusedCommand(t, w, 2, want, "put", at(name), "x")
			require.NoError(t, os.WriteFile(filepath.Join(books, "x.safetensors"), files[name], 0o600))
			refusedCommand(t, w, 5, "INVALID_CODEBOOK_FILE", "load", "x")
			require.NoError(t, os.Remove(filepath.Join(books, "x.safetensors")))
		})
	}
	t.Run("another dimension", func(t *testing.T) {
		refusedCommand(t, w, 2, "8", "encode", at("four.npy"), "-c", "good", "-o", at("x.npy"))
	})
	t.Run("a code of no codeword", func(t *testing.T) {
		refusedCommand(t, w, 4, "row 1", "decode", at("codes.npy"), "-c", "good", "-o", at("x.npy"))
	})
	t.Run("too many codes a row", func(t *testing.T) {
		refusedCommand(t, w, 2, "2 codes a row", "decode", at("manycodes.npy"), "-c", "good", "-o", at("x.npy"))
	})
	require.NoFileExists(t, at("x.npy"))
	require.NoFileExists(t, filepath.Join(books, "x.safetensors"))
	client(t, w.address, "vectors", "decode", at("good.npy"), "-c", "good", "-o", at("decoded.npy"))
	require.NotContains(t, w.log.String(), "panic")
}

// refusedCommand requires that a vectors command fails with an exit code and a text.
func refusedCommand(t *testing.T, w *server, code int, says string, args ...string) {
	t.Helper()
	cmd := clientCommand(w.address, append([]string{"vectors"}, args...)...)
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "%v\n%s", args, out)
	require.Equal(t, code, cmd.ProcessState.ExitCode(), "%v\n%s", args, out)
	require.Contains(t, string(out), says, "%v", args)
	require.NotContains(t, string(out), "goroutine ", "%v", args)
}
